//! From models to graphs: types, symbols, roles, constants, outputs, errors.

use std::sync::Arc;

use mithril_ir::error::Line;
use mithril_ir::{Code, DType, Place, Role, Tensor};
use mithril_model::{FlattenOptions, IOKey, Model, Size, Spec, flatten, layers};

fn layer(name: &str, args: &[i64]) -> Model {
    layers::build(name, args.iter().map(|&n| n.into()).collect(), vec![]).unwrap()
}

fn line(n: u32) -> Place {
    Place { path: None, line: Some(Line { file: "model.py".into(), line: n }) }
}

fn two_layers() -> Model {
    let mut m = Model::new();
    m.extend(&layer("Linear", &[8]), [("input", "input"), ("output", "hidden")], line(1)).unwrap();
    m.extend(&layer("Linear", &[4]), [("input", "hidden"), ("output", "output")], line(2)).unwrap();
    m
}

fn with_shape(shape: Vec<Size>) -> FlattenOptions {
    FlattenOptions { shapes: vec![("input".into(), shape)], ..FlattenOptions::default() }
}

fn ty(m: &Model, o: &FlattenOptions, name: &str) -> String {
    flatten(m, o).unwrap().inputs.iter().find(|i| &*i.name == name).unwrap().ty.to_string()
}

#[test]
fn sizes_that_stay_open_become_symbols() {
    let m = two_layers();
    let open = with_shape(vec![Size::Unknown, 6.into()]);
    assert_eq!(ty(&m, &open, "input"), "f32[input_0, 6]");
    let named = with_shape(vec!["batch".into(), "f".into()]);
    assert_eq!(ty(&m, &named, "linear.weight"), "f32[8, f]");
    // Taken names are avoided.
    let taken = with_shape(vec![Size::Unknown, "input_0".into()]);
    assert_eq!(ty(&m, &taken, "input"), "f32[input_0_, input_0]");
    let e = flatten(&m, &with_shape(vec![2.into(), Size::Unknown])).unwrap_err();
    assert_eq!(e.code(), Code::UnknownShape);
    assert!(e.message().contains("`linear.weight`") && !e.message().contains("`linear_1.weight`"), "{e}");
}

#[test]
fn shapes_are_known_backwards_too() {
    let mut m = Model::new();
    let key = IOKey::new("w").shape([8, 6]);
    m.extend(&layer("Linear", &[8]), Spec::new().with("input", "input").with("weight", key), line(1))
        .unwrap();
    assert_eq!(m.shape_text("input").unwrap(), "[..., 6]");
    let flat = flatten(&m, &with_shape(vec![3.into(), Size::Unknown])).unwrap();
    assert_eq!(flat.inputs[0].ty.to_string(), "f32[3, 6]");
}

#[test]
fn integers_are_factored_in_the_default_float() {
    let mut m = Model::new();
    m.extend(&layer("Solve", &[]), [("left", "a"), ("right", "b"), ("output", "output")], line(1)).unwrap();
    m.set_dtypes([("a", DType::I64), ("b", DType::I64)], &line(1)).unwrap();
    let shapes = ["a", "b"].map(|name| (name.into(), vec![2.into(), 2.into()])).to_vec();
    let of = |float| FlattenOptions { float, shapes: shapes.clone(), ..FlattenOptions::default() };
    for float in [DType::F32, DType::F64] {
        let graph = flatten(&m, &of(float)).unwrap().graph;
        assert_eq!(graph.ty(graph.outputs[0]).unwrap().dtype, float);
    }
    assert_eq!(flatten(&m, &of(DType::F16)).unwrap_err().code(), Code::DTypeMismatch);
}

#[test]
fn a_wrong_shape_is_an_error_at_its_line() {
    let mut m = Model::new();
    let at = |n| line(n);
    m.extend(&layer("Linear", &[8]), [("input", "a"), ("output", "x")], at(1)).unwrap();
    m.extend(&layer("Linear", &[7]), [("input", "b"), ("output", "y")], at(2)).unwrap();
    let e = m.extend(&layer("Add", &[]), [("left", "x"), ("right", "y")], at(3)).unwrap_err();
    assert_eq!(e.code(), Code::ShapeMismatch, "{e}");
    let text = e.to_string();
    assert!(text.contains("[..., 8]") && text.contains("[..., 7]") && text.contains("model.py:3"), "{text}");
    assert_eq!(m.len(), 2);
    let e = m.set_shapes([("a", vec![2.into(), 3.into(), (-1).into()])], &at(4)).unwrap_err();
    assert!(e.to_string().contains("model.py:4"), "{e}");
    m.set_shapes([("a", vec![2.into(), 5.into()])], &at(5)).unwrap();
    assert_eq!(m.shape_text("linear.weight").unwrap(), "[8, 5]");
    let e = m.set_shapes([("a", vec![2.into(), 6.into()])], &at(6)).unwrap_err();
    assert!(e.to_string().contains("model.py:5"), "the line that said otherwise: {e}");
    assert_eq!((e.code(), m.shape_text("a").unwrap().as_str()), (Code::ShapeMismatch, "[2, 5]"));
    let e = m.set_shapes([("aa", vec![2.into()])], &at(7)).unwrap_err();
    assert!(e.hint().unwrap().contains("did you mean \"a\"?"), "{e}");
}

#[test]
fn wrong_dtypes_are_errors() {
    let mut m = Model::new();
    m.extend(&layer("Embedding", &[10, 4]), [("input", "ids"), ("output", "x")], line(1)).unwrap();
    let e = m.set_dtypes([("ids", DType::F32)], &line(2)).unwrap_err();
    assert_eq!(e.code(), Code::DTypeMismatch, "{e}");
    m.set_dtypes([("ids", DType::I32)], &line(3)).unwrap();
    let shapes = vec![("ids".into(), vec![3.into()])];
    assert_eq!(ty(&m, &FlattenOptions { shapes, ..FlattenOptions::default() }, "ids"), "i32[3]");
}

#[test]
fn roles_and_constants() {
    let mut m = two_layers();
    let o = with_shape(vec![2.into(), 6.into()]);
    let roles = |m: &Model, o: &FlattenOptions| {
        let flat = flatten(m, o).unwrap();
        flat.inputs.iter().filter(|i| i.role == Role::Param).map(|i| i.name.to_string()).collect::<Vec<_>>()
    };
    let all = ["linear.weight", "linear.bias", "linear_1.weight", "linear_1.bias"];
    assert_eq!(roles(&m, &o), all);
    m.set_differentiability([("linear.bias", false), ("input", true)], &line(1)).unwrap();
    // A parameter stays one, and is frozen.
    assert_eq!(roles(&m, &o), ["input", "linear.weight", "linear.bias", "linear_1.weight", "linear_1.bias"]);
    let frozen = |m: &Model, o: &FlattenOptions| {
        let flat = flatten(m, o).unwrap();
        flat.inputs.iter().filter(|i| i.is_frozen).map(|i| i.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(frozen(&m, &o), ["linear.bias"]);
    assert_eq!(m.frozen()[..], ["linear.bias".into()]);
    let mut outer = Model::new();
    outer.extend(&m, [("input", "x")], line(2)).unwrap();
    assert_eq!(outer.frozen().len(), 1, "it stays frozen in a larger model");
    let forced =
        FlattenOptions { trainable: vec!["linear.bias".into()], data: vec!["input".into()], ..o.clone() };
    assert_eq!(roles(&m, &forced), all);
    assert!(frozen(&m, &forced).is_empty());
    let e = m.set_differentiability([("hidden", true)], &line(1)).unwrap_err();
    assert_eq!(e.code(), Code::BadArgument);
    let weight = Arc::new(Tensor::full(DType::F32, &[8, 6], 0.5));
    let constant =
        FlattenOptions { constants: vec![("linear.weight".into(), weight)], ..FlattenOptions::default() };
    let flat =
        flatten(&m, &FlattenOptions { shapes: with_shape(vec![2.into(), Size::Unknown]).shapes, ..constant })
            .unwrap();
    assert!(flat.inputs.iter().all(|i| &*i.name != "linear.weight"));
    assert_eq!(flat.inputs[0].ty.to_string(), "f32[2, 6]");
}

#[test]
fn outputs_are_kept_dropped_and_added() {
    let m = two_layers();
    let o = with_shape(vec![2.into(), 6.into()]);
    let names = |o: FlattenOptions| {
        flatten(&m, &o).map(|f| f.graph.outputs.keys().map(ToString::to_string).collect::<Vec<_>>())
    };
    let keep = FlattenOptions { keep_edges: vec!["hidden".into()], ..o.clone() };
    assert_eq!(names(keep.clone()).unwrap(), ["output", "hidden"]);
    let only = FlattenOptions { discard: vec!["output".into()], ..keep };
    let flat = flatten(&m, &only).unwrap();
    assert_eq!((flat.graph.nodes().len(), flat.inputs.len()), (1, 3), "the second layer is not needed");
    let none = FlattenOptions { discard: vec!["output".into()], ..o.clone() };
    assert_eq!(names(none).unwrap_err().code(), Code::EmptyModel);
    let wrong = FlattenOptions { outputs: Some(vec!["ouptut".into()]), ..o.clone() };
    assert!(names(wrong).unwrap_err().hint().unwrap().contains("\"output\""));
    let mut outer = Model::new();
    outer.chain(&m.clone().named("net").unwrap(), (), line(1)).unwrap();
    let deep = FlattenOptions { keep_edges: vec!["net.hidden".into()], ..o };
    assert_eq!(flatten(&outer, &deep).unwrap().graph.outputs.len(), 2);
}

#[test]
fn places_lead_to_the_users_line() {
    let m = two_layers();
    let e = flatten(&m, &with_shape(vec![2.into(), i64::MAX.into()])).unwrap_err();
    assert_eq!(e.code(), Code::BadSize, "{e}");
    let flat = flatten(&m, &with_shape(vec![2.into(), 6.into()])).unwrap();
    let places: Vec<String> = flat
        .graph
        .nodes()
        .map(|(n, _)| {
            let p = flat.graph.place(n);
            format!("{} {}", p.path.as_deref().unwrap_or(""), p.line.as_ref().unwrap())
        })
        .collect();
    assert_eq!(places, ["linear model.py:1", "linear_1 model.py:2"]);
}

#[test]
fn arguments_have_to_be_known() {
    let mut m = Model::new();
    m.extend(&layer("Reshape", &[]), [("input", "input"), ("output", "output")], line(1)).unwrap();
    let o = with_shape(vec![2.into(), 6.into()]);
    assert_eq!(flatten(&m, &o).unwrap_err().code(), Code::UnknownArgument);
    m.set_values([("reshape.shape", [3, 4].into())], &line(2)).unwrap();
    let flat = flatten(&m, &o).unwrap();
    assert_eq!(flat.graph.ty(flat.graph.outputs[0]).unwrap().to_string(), "f32[3, 4]");
    // A tensor is not a shape.
    let mut m = Model::new();
    m.extend(&layer("Relu", &[]), [("input", "input"), ("output", "sizes")], line(1)).unwrap();
    let e = m
        .extend(&layer("Reshape", &[]), [("input", "input"), ("shape", "sizes")], line(2))
        .and_then(|_| flatten(&m, &o))
        .unwrap_err();
    assert_eq!(e.code(), Code::UnknownArgument, "{e}");
}

#[test]
fn renaming_and_outputs() {
    let mut m = two_layers();
    m.rename("hidden", "h", &line(1)).unwrap();
    m.rename("output", "logits", &line(1)).unwrap();
    assert_eq!(m.outputs()[..], ["logits".into()]);
    assert_eq!(m.rename("h", "logits", &line(1)).unwrap_err().code(), Code::BadName);
    m.set_outputs([("h", m.connection("h").unwrap()), ("y", m.connection("logits").unwrap())], &line(2))
        .unwrap();
    assert_eq!(m.outputs()[..], ["h".into(), "y".into()]);
    let flat = flatten(&m, &with_shape(vec![2.into(), 6.into()])).unwrap();
    assert_eq!(flat.graph.value(flat.graph.outputs["y"]).name.as_deref(), Some("logits"));
}
