//! Layers: parameters, shapes, arguments.

use mithril_ir::{Code, Lit, Place, Role};
use mithril_model::{FlattenOptions, Model, flatten, layers};

fn options(name: &str, sizes: &[i64]) -> FlattenOptions {
    FlattenOptions {
        shapes: vec![(name.into(), sizes.iter().map(|&n| n.into()).collect())],
        ..FlattenOptions::default()
    }
}

fn build(name: &str, args: &[i64], named: &[(&str, Lit)]) -> Model {
    layers::build(name, args.iter().map(|&n| n.into()).collect(), named.to_vec()).unwrap()
}

/// Parameters with types, then the type of the output.
fn types(model: &Model, input: &[i64]) -> Vec<String> {
    let flat = flatten(model, &options("input", input)).unwrap();
    let mut all: Vec<String> =
        flat.inputs.iter().filter(|i| i.role != Role::Data).map(|i| format!("{} {}", i.name, i.ty)).collect();
    all.push(flat.graph.ty(flat.graph.outputs[0]).unwrap().to_string());
    all
}

#[test]
fn the_image_model_of_the_guide() {
    let mut m = Model::new();
    let add = |m: &mut Model, layer: Model, from: &str, to: &str| {
        m.chain(&layer, [("input", from), ("output", to)], Place::default()).unwrap();
    };
    let conv = |n: i64| {
        build(
            "Conv2d",
            &[],
            &[
                ("filters", n.into()),
                ("kernel_size", 3.into()),
                ("stride", 1.into()),
                ("padding", Lit::text("same")),
            ],
        )
    };
    add(&mut m, conv(16), "input", "conv1");
    add(&mut m, build("Relu", &[], &[]), "conv1", "conv1_act");
    add(&mut m, build("MaxPool2d", &[2], &[]), "conv1_act", "pool1");
    add(&mut m, conv(32), "pool1", "conv2");
    add(&mut m, build("Relu", &[], &[]), "conv2", "conv2_act");
    add(&mut m, build("MaxPool2d", &[2], &[]), "conv2_act", "pool2");
    add(&mut m, build("Flatten", &[], &[]), "pool2", "flat");
    add(&mut m, build("Linear", &[64], &[]), "flat", "hidden");
    add(&mut m, build("Relu", &[], &[]), "hidden", "hidden_act");
    add(&mut m, build("Linear", &[10], &[]), "hidden_act", "output");
    assert_eq!(
        types(&m, &[8, 3, 28, 28]),
        [
            "conv2d.weight f32[16, 3, 3, 3]",
            "conv2d.bias f32[16]",
            "conv2d_1.weight f32[32, 16, 3, 3]",
            "conv2d_1.bias f32[32]",
            "linear.weight f32[64, 1568]",
            "linear.bias f32[64]",
            "linear_1.weight f32[10, 64]",
            "linear_1.bias f32[10]",
            "f32[8, 10]",
        ]
    );
}

#[test]
fn layouts_are_those_of_torch() {
    assert_eq!(
        types(&build("Conv1d", &[6, 3], &[("groups", 2.into())]), &[2, 4, 9])[0],
        "weight f32[6, 2, 3]"
    );
    assert_eq!(
        types(
            &build("ConvTranspose2d", &[6, 4], &[("stride", 2.into()), ("padding", 1.into())]),
            &[2, 5, 8, 8]
        ),
        ["weight f32[5, 6, 4, 4]", "bias f32[6]", "f32[2, 6, 16, 16]"]
    );
    assert_eq!(
        types(&build("MLP", &[], &[("dimensions", [8, 4].into())]), &[2, 3]).last().unwrap(),
        "f32[2, 4]"
    );
}

#[test]
fn aliases_and_mistakes() {
    let by_alias =
        layers::build("Conv2D", vec![], vec![("out_channels", 4.into()), ("kernel_size", 3.into())]);
    assert_eq!(by_alias.unwrap().class(), "Conv2d");
    for name in ["ReLU", "Relu", "BatchNorm2D", "MaxPool2D", "Softmax", "GELU"] {
        assert!(layers::find(name).is_some(), "{name}");
    }
    let error =
        |name: &str, args: Vec<Lit>, named: Vec<(&str, Lit)>| layers::build(name, args, named).unwrap_err();
    let e = error("Linear", vec![], vec![]);
    assert!(
        e.message().contains("`dimension` of Linear is missing")
            && e.hint().unwrap().contains("Linear(dimension")
    );
    let e = error("Linear", vec![4.into()], vec![("dimensoin", 3.into())]);
    assert!(e.hint().unwrap().contains("did you mean \"dimension\"?"), "{e}");
    let e = error("Linear", vec![], vec![("dimension", 4.into()), ("units", 3.into())]);
    assert_eq!(e.code(), Code::ConflictingOptions);
    let e = error("Linear", vec![4.into()], vec![("units", 3.into())]);
    assert_eq!(e.code(), Code::BadArgument);
    for bad in [Lit::int(0), Lit::int(-4), Lit::int(i64::MAX), Lit::text("8"), Lit::Float(2.5)] {
        assert_eq!(error("Linear", vec![bad], vec![]).code(), Code::BadArgument);
    }
    assert_eq!(error("Lineer", vec![], vec![]).code(), Code::UnknownName);
}

#[test]
fn every_layer_is_documented_and_builds_or_says_what_is_missing() {
    for layer in layers::all() {
        assert!(!layer.doc.is_empty(), "{}", layer.name);
        match layer.build(vec![], vec![]) {
            Ok(model) => assert!(!model.outputs().is_empty(), "{}", layer.name),
            Err(e) => assert!(e.message().contains("is missing"), "{}: {e}", layer.name),
        }
    }
}

#[test]
fn normalizations() {
    assert_eq!(
        types(&build("BatchNorm2d", &[], &[]), &[4, 3, 5, 5]),
        ["weight f32[3]", "bias f32[3]", "running_mean f32[3]", "running_var f32[3]", "f32[4, 3, 5, 5]"]
    );
    let flat = |training| {
        let options = FlattenOptions { training, ..options("input", &[4, 3, 5, 5]) };
        flatten(&build("BatchNorm2d", &[3], &[]), &options).unwrap()
    };
    assert_eq!((flat(true).graph.updates.len(), flat(false).graph.updates.len()), (2, 0));
    assert_eq!(
        types(&build("LayerNorm", &[], &[]), &[2, 7, 6]),
        ["weight f32[6]", "bias f32[6]", "f32[2, 7, 6]"]
    );
    let two = build("LayerNorm", &[], &[("normalized_shape", [7, 6].into()), ("bias", false.into())]);
    assert_eq!(types(&two, &[2, 7, 6]), ["weight f32[7, 6]", "f32[2, 7, 6]"]);
    assert_eq!(
        types(&build("GroupNorm", &[2], &[]), &[2, 4, 6]),
        ["weight f32[4]", "bias f32[4]", "f32[2, 4, 6]"]
    );
    assert_eq!(types(&build("RMSNorm", &[], &[]), &[2, 6]), ["weight f32[6]", "f32[2, 6]"]);
}

#[test]
fn embedding_takes_integers() {
    let flat = flatten(&build("Embedding", &[100, 16], &[]), &options("input", &[2, 7])).unwrap();
    let types: Vec<String> = flat.inputs.iter().map(|i| format!("{} {}", i.name, i.ty)).collect();
    assert_eq!(types, ["input i64[2, 7]", "weight f32[100, 16]"]);
    assert_eq!(flat.graph.ty(flat.graph.outputs[0]).unwrap().to_string(), "f32[2, 7, 16]");
}

#[test]
fn recurrent_layers() {
    assert_eq!(
        types(&build("LSTM", &[5], &[("length", 3.into())]), &[3, 2, 4]),
        [
            "weight_ih_l0 f32[20, 4]",
            "weight_hh_l0 f32[20, 5]",
            "bias_ih_l0 f32[20]",
            "bias_hh_l0 f32[20]",
            "f32[3, 2, 5]"
        ]
    );
    let gru = build(
        "GRU",
        &[5],
        &[
            ("length", 3.into()),
            ("num_layers", 2.into()),
            ("bidirectional", true.into()),
            ("batch_first", true.into()),
        ],
    );
    let flat = flatten(&gru, &options("input", &[2, 3, 4])).unwrap();
    let find = |n: &str| flat.inputs.iter().find(|i| &*i.name == n).unwrap().ty.to_string();
    assert_eq!(find("weight_ih_l1_reverse"), "f32[15, 10]");
    let outputs: Vec<String> =
        flat.graph.outputs.iter().map(|(n, v)| format!("{n} {}", flat.graph.ty(*v).unwrap())).collect();
    assert_eq!(outputs, ["output f32[2, 3, 10]", "last_hidden f32[4, 2, 5]"]);
    assert_eq!(types(&build("RNNCell", &[5], &[]), &[2, 4]).last().unwrap(), "f32[2, 5]");
}

#[test]
fn attention_and_transformers() {
    let mut m = Model::new();
    m.chain(&build("SelfAttention", &[8, 2], &[]), (), Place::default()).unwrap();
    assert_eq!(
        types(&m, &[2, 5, 8]),
        [
            "self_attention.in_proj_weight f32[24, 8]",
            "self_attention.in_proj_bias f32[24]",
            "self_attention.out_proj.weight f32[8, 8]",
            "self_attention.out_proj.bias f32[8]",
            "f32[2, 5, 8]",
        ]
    );
    let named = [("dim_feedforward", 16.into()), ("dropout", 0.0.into()), ("norm", true.into())];
    let encoder = build("TransformerEncoder", &[2, 8, 2], &named);
    let all = types(&encoder, &[2, 5, 8]);
    assert_eq!(all.len(), 2 * 12 + 2 + 1);
    assert!(all.contains(&"layers.1.self_attn.in_proj_weight f32[24, 8]".to_owned()), "{all:?}");
    assert!(all.contains(&"layers.0.linear1.weight f32[16, 8]".to_owned()), "{all:?}");
    assert!(all.contains(&"norm.weight f32[8]".to_owned()), "{all:?}");
    let decoder = build("TransformerDecoder", &[1, 8, 2], &named);
    let options = FlattenOptions {
        shapes: vec![
            ("input".into(), vec!["n".into(), 5.into(), 8.into()]),
            ("memory".into(), vec!["n".into(), 7.into(), 8.into()]),
        ],
        ..FlattenOptions::default()
    };
    let flat = flatten(&decoder, &options).unwrap();
    assert_eq!(flat.graph.ty(flat.graph.outputs[0]).unwrap().to_string(), "f32[n, 5, 8]");
}

#[test]
fn transformers_train_with_dropout_and_masks() {
    let encoder = build("TransformerEncoder", &[2, 8, 2], &[("dim_feedforward", 16.into())]);
    let shapes = options("input", &[2, 5, 8]).shapes;
    let train = FlattenOptions { training: true, shapes, ..FlattenOptions::default() };
    let flat = flatten(&encoder, &train).unwrap();
    assert_eq!(flat.inputs.last().unwrap().name.as_ref(), "key");
    let mut m = Model::new();
    m.extend(&encoder, [("input", "input"), ("mask", "mask"), ("output", "y")], Place::default()).unwrap();
    let mut o = options("input", &[2, 5, 8]);
    assert_eq!(flatten(&m, &o).unwrap_err().code(), Code::UnknownShape);
    o.shapes.push(("mask".into(), vec![5.into(), 5.into()]));
    let flat = flatten(&m, &o).unwrap();
    assert!(flat.inputs.iter().any(|i| &*i.name == "mask" && i.ty.to_string() == "f32[5, 5]"));
    // A mask that does not fit is found in the parts of the parts.
    o.shapes[1].1 = vec![4.into(), 5.into()];
    assert_eq!(flatten(&m, &o).unwrap_err().code(), Code::ShapeMismatch);
}
