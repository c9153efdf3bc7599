//! The text of generated C, of models of every kind: no arithmetic that is already known, one indentation, lines that fit,
//! and the words of the field. What it computes is compared elsewhere.

use std::collections::BTreeMap;
use std::sync::Arc;

use mithril::compile::c::{C, COptions, CRequest, Quantize, Scheme, compile_c, request};
use mithril::compile::compiled::Compiled;
use mithril::compile::pipeline::lower;
use mithril::ir::graph::Graph;
use mithril::ir::{DType, Place, text};
use mithril::model::optimizers::{Clipping, Part, join};
use mithril::model::{FlattenOptions, Model, layers, zoo};
use mithril_testing::c_text::problems;

const FLOAT: DType = DType::F32;

/// Convolutions with groups, strides, dilation and margins, of lines, images and volumes, one after the other.
const CONVOLUTIONS: &str = "
    data %0 \"image\": f32[1, 16, 19, 17]
    param %1 \"a\": f32[32, 16, 3, 3]
    param %2 \"b\": f32[32, 8, 3, 3]
    param %3 \"c\": f32[32, 1, 5, 5]
    param %4 \"d\": f32[32, 32, 1, 1]
    param %5 \"e\": f32[16, 32, 3, 3]
    param %6 \"f\": f32[32, 32, 3, 3]
    %10: f32[1, 32, 19, 17] = conv_general(%0, %1, (1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1), 1) in \"first\"
    %11: f32[1, 32, 19, 17] = relu(%10) in \"first\"
    %12: f32[1, 32, 10, 9] = conv_general(%11, %2, (2, 2), ((1, 1), (1, 1)), (1, 1), (1, 1), 4) in \"groups\"
    %13: f32[1, 32, 10, 9] = conv_general(%12, %3, (1, 1), ((2, 2), (2, 2)), (1, 1), (1, 1), 32) in \"depthwise\"
    %14: f32[1, 32, 10, 9] = hard_swish(%13) in \"depthwise\"
    %15: f32[1, 32, 10, 9] = conv_general(%14, %4, (1, 1), ((0, 0), (0, 0)), (1, 1), (1, 1), 1) in \"point\"
    %16: f32[1, 32, 10, 9] = add(%15, %13) in \"residual\"
    %17: f32[1, 16, 6, 5] = conv_general(%16, %5, (1, 1), ((0, 0), (0, 0)), (2, 2), (1, 1), 1) in \"dilated\"
    %18: f32[1, 32, 9, 9] = conv_general(%16, %6, (1, 1), ((8, 7), (8, 8)), (8, 8), (1, 1), 1) in \"far\"
    return \"dilated\" = %17
    return \"far\" = %18";

/// Products of one row, of many, of a batch and of both, with what follows.
const PRODUCTS: &str = "
    data %0 \"x\": f32[1, 256]
    data %1 \"y\": f32[37, 256]
    data %2 \"z\": f32[4, 24, 40]
    param %3 \"w\": f32[256, 130]
    param %4 \"b\": f32[130]
    %5: f32[1, 130] = matmul(%0, %3) in \"\"
    %6: f32[1, 130] = add(%5, %4) in \"\"
    %7: f32[1, 130] = tanh(%6) in \"\"
    %8: f32[37, 130] = matmul(%1, %3) in \"\"
    %9: f32[37, 130] = softmax(%8, -1) in \"\"
    %10: f32[4, 40, 24] = transpose(%2, (0, 2, 1)) in \"\"
    %11: f32[4, 24, 24] = matmul(%2, %10) in \"\"
    %12: f32[4, 24, 40] = matmul(%11, %2) in \"\"
    return \"one\" = %7
    return \"many\" = %9
    return \"batch\" = %12";

/// Decompositions, sorting, scans, positions that are data, and integers.
const HELPERS: &str = "
    data %0 \"a\": f64[5, 5]
    data %1 \"i\": i64[7]
    %2: f64[5, 5] = cholesky(%0) in \"\"
    %3: f64[7, 5] = take(%2, %1, 0) in \"\"
    %4: f64[7, 5] = sort(%3, -1, false) in \"\"
    %5: f64[7, 5] = cumsum(%4, 0, false, false) in \"\"
    %6: f64[7, 5] = sin(%5) in \"\"
    %7: i64[7] = multiply(%1, 3) in \"\"
    return \"y\" = %6
    return \"k\" = %7";

fn parsed(lines: &str) -> Graph {
    let graph = text::parse(&format!("graph {{{lines}\n}}\n")).unwrap_or_else(|e| panic!("{e}"));
    lower(&graph, &C, FLOAT, &mut |_, _| {}).unwrap_or_else(|e| panic!("{e}"))
}

fn compiled(model: &Model, shapes: &[(&str, &[i64])], training: bool) -> Compiled {
    let shapes = shapes.iter().map(|&(name, shape)| (name.into(), shape.iter().map(|&n| n.into()).collect()));
    let options = FlattenOptions { shapes: shapes.collect(), training, ..Default::default() };
    Compiled::new(model, &options).unwrap_or_else(|e| panic!("{e}"))
}

/// A model of the zoo.
fn of_zoo(name: &str, sizes: &[(&'static str, i64)], shapes: &[(&str, &[i64])]) -> Compiled {
    let sizes = sizes.iter().map(|&(name, size)| (name, size.into())).collect();
    compiled(&zoo::build(name, vec![], sizes).unwrap_or_else(|e| panic!("{e}")), shapes, false)
}

fn forward(compiled: &Compiled) -> Graph {
    compiled.forward(&C, &mut |_, _| {}).unwrap_or_else(|e| panic!("{e}"))
}

/// A step of Adam that trains a small convolutional network.
fn training_step() -> Graph {
    let build = |name: &str, args: Vec<mithril::ir::Lit>| layers::build(name, args, vec![]).expect("a layer");
    let mut model = Model::new();
    let parts: [(&str, Vec<mithril::ir::Lit>, &str, &str); 5] = [
        ("Convolution2D", vec![16.into(), 3.into()], "input", "a"),
        ("BatchNorm2D", vec![], "a", "b"),
        ("Relu", vec![], "b", "c"),
        ("Flatten", vec![1.into()], "c", "d"),
        ("Linear", vec![10.into()], "d", "logits"),
    ];
    for (name, args, input, output) in parts {
        let names = [("input", input), ("output", output)];
        model.extend(&build(name, args), names, Place::default()).unwrap_or_else(|e| panic!("{e}"));
    }
    let names = [("input", "logits"), ("target", "target"), ("output", "loss")];
    model.extend(&build("MSELoss", vec![]), names, Place::default()).unwrap_or_else(|e| panic!("{e}"));
    let forward_pass = compiled(&model, &[("input", &[4, 3, 12, 12]), ("target", &[4, 10])], true);
    let trained: Vec<_> = forward_pass.trained().cloned().collect();
    let part = |input: &mithril::model::Input| Part {
        shape: input.ty.shape.known().expect("sizes").into_iter().map(|n| n as i64).collect(),
        dtype: input.ty.dtype,
        gradient: input.ty.dtype,
        args: Vec::new(),
        rate: 0,
        counter: 0,
    };
    let parts: Vec<Part> = trained.iter().map(part).collect();
    let rule = join("Adam", &parts, Clipping::default(), false).expect("a rule").model;
    let rule = compiled(&rule, &[], false);
    let names: Vec<Arc<str>> = trained.iter().map(|input| input.name.clone()).collect();
    forward(&forward_pass.training_step("loss", &names, &rule).unwrap_or_else(|e| panic!("{e}")))
}

/// Graphs by name.
fn models() -> Vec<(&'static str, Graph)> {
    let gpt = [("block_size", 16), ("dims", 32), ("num_heads", 4), ("num_layers", 2), ("vocab_size", 100)];
    let llama = [
        ("vocab_size", 100),
        ("dims", 32),
        ("num_heads", 4),
        ("num_kv_heads", 2),
        ("num_layers", 1),
        ("hidden", 64),
    ];
    let vit = [
        ("image_size", 32),
        ("patch_size", 8),
        ("num_layers", 1),
        ("num_heads", 4),
        ("hidden_dim", 32),
        ("mlp_dim", 64),
    ];
    let image = of_zoo("resnet18", &[("num_classes", 10)], &[("input", &[2, 3, 64, 64])]);
    vec![
        ("products", parsed(PRODUCTS)),
        ("convolutions", parsed(CONVOLUTIONS)),
        ("helpers", parsed(HELPERS)),
        ("resnet18", forward(&image)),
        ("gpt", forward(&of_zoo("create_gpt", &gpt, &[("input", &[2, 16])]))),
        ("gpt, one token", forward(&of_zoo("create_gpt", &gpt, &[("input", &[1, 1])]))),
        ("llama", forward(&of_zoo("create_llama", &llama, &[("input", &[1, 12])]))),
        ("vit", forward(&of_zoo("vit", &vit, &[("input", &[1, 3, 32, 32])]))),
        ("training step", training_step()),
    ]
}

/// How each is compiled: vectors, whether parameters are packed, and in which scheme weights are kept.
const WAYS: &[(usize, bool, Option<Scheme>)] = &[
    (16, true, None),
    (8, false, None),
    (4, true, None),
    (1, true, None),
    (16, true, Some(Scheme::Int8)),
    (8, true, Some(Scheme::Int8Weights)),
    (16, true, Some(Scheme::Int4Weights)),
];

#[test]
fn generated_c_is_text_that_one_would_write() {
    let mut texts = Vec::new();
    for (name, graph) in models() {
        for &(lanes, pack, scheme) in WAYS {
            let quantize = scheme.map(|scheme| Quantize {
                rules: vec![("*".to_owned(), Some(scheme))],
                ranges: BTreeMap::default(),
                strict: false,
            });
            let has_params = graph.inputs.iter().any(|&v| mithril::codegen::c::is_fixed(&graph, v));
            if quantize.is_some() && !has_params {
                continue;
            }
            let options = COptions {
                prefix: "net".to_owned(),
                pack,
                lanes: Some(lanes),
                quantize,
                in_place: name == "training step",
                ..COptions::default()
            };
            let profile = name == "products";
            let request = CRequest { profile, ..request(options).expect("a processor") };
            let source = compile_c(&graph, &request).unwrap_or_else(|e| panic!("{name}: {e}"));
            if let Ok(folder) = std::env::var("MITHRIL_TEST_KEEP") {
                let file = format!("{name}.{lanes}.{pack}.{}.c", scheme.map_or("float", Scheme::name));
                std::fs::write(std::path::Path::new(&folder).join(file), &source.c).expect("the C file");
            }
            let here = format!("{name}, {lanes} lanes, {}", scheme.map_or("float", Scheme::name));
            for text in [&source.c, &source.h] {
                texts.extend(problems(text).into_iter().map(|problem| format!("{here}: {problem}")));
            }
        }
    }
    let count = texts.len();
    texts.truncate(60);
    assert!(texts.is_empty(), "{count} lines\n{}", texts.join("\n"));
}
