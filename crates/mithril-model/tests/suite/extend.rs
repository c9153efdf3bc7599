//! Adding parts to models: wiring, names, values, errors.

use mithril_ir::{Code, DType, Place, Role, Tensor};
use mithril_model::{Connection, FlattenOptions, IOKey, Model, flatten, layers};

fn at() -> Place {
    Place::default()
}

fn op(name: &str) -> Model {
    Model::leaf(mithril_ir::ops::find(name).unwrap(), 0)
}

fn names(list: Vec<std::sync::Arc<str>>) -> Vec<String> {
    list.into_iter().map(|n| n.to_string()).collect()
}

fn shapes(name: &str, sizes: &[i64]) -> FlattenOptions {
    FlattenOptions {
        shapes: vec![(name.into(), sizes.iter().map(|&n| n.into()).collect())],
        ..FlattenOptions::default()
    }
}

fn classifier() -> Model {
    let mut m = Model::new();
    m.extend(&layers::linear(128, true).unwrap(), [("input", "input"), ("output", "hidden1")], at()).unwrap();
    m.chain(&op("relu"), [("input", "hidden1"), ("output", "hidden1_act")], at()).unwrap();
    m.chain(&layers::linear(64, true).unwrap(), [("input", "hidden1_act"), ("output", "hidden2")], at())
        .unwrap();
    m.chain(&op("relu"), [("input", "hidden2"), ("output", "hidden2_act")], at()).unwrap();
    m.chain(&layers::linear(10, true).unwrap(), [("input", "hidden2_act"), ("output", "logits")], at())
        .unwrap();
    m.chain(&op("softmax"), [("input", "logits"), ("output", "output")], at()).unwrap();
    m
}

#[test]
fn the_classifier_of_the_guide() {
    let m = classifier();
    assert_eq!(names(m.outputs()), ["output"]);
    assert_eq!(names(m.inputs_of(Role::Data)), ["input"]);
    let parameters = [
        "linear.weight",
        "linear.bias",
        "linear_1.weight",
        "linear_1.bias",
        "linear_2.weight",
        "linear_2.bias",
    ];
    assert_eq!(names(m.parameters()), parameters);
    assert_eq!(m.to_string(), "Model(6 layers, inputs=[input], outputs=[output])");
    let flat = flatten(&m, &shapes("input", &[100, 784])).unwrap();
    let types: Vec<String> = flat.inputs.iter().map(|i| format!("{} {}", i.name, i.ty)).collect();
    assert_eq!(types[0], "input f32[100, 784]");
    assert_eq!(types[1], "linear.weight f32[128, 784]");
    assert_eq!(types[6], "linear_2.bias f32[10]");
    let output = flat.graph.outputs["output"];
    assert_eq!(flat.graph.ty(output).unwrap().to_string(), "f32[100, 10]");
    assert_eq!(flat.graph.value(flat.edges["logits"]).name.as_deref(), Some("logits"));
}

#[test]
fn missing_shapes_are_listed_at_once() {
    let error = flatten(&classifier(), &FlattenOptions::default()).unwrap_err();
    assert_eq!(error.code(), Code::UnknownShape);
    assert!(error.message().contains("`input`, `linear.weight`"), "{error}");
    assert!(error.hint().unwrap().contains("shapes={'input': [...]} or call evaluate once"));
}

#[test]
fn adding_changes_neither_part() {
    let linear = layers::linear(4, true).unwrap();
    let mut block = Model::new();
    block.extend(&linear, (), at()).unwrap();
    let copy = block.clone();
    block.chain(&linear, (), at()).unwrap();
    assert_eq!((copy.len(), block.len()), (1, 2));
    assert_eq!(linear.to_string(), "Linear(inputs=[input], outputs=[output])");
    let twice = block.clone();
    block.chain(&twice, (), at()).unwrap();
    assert_eq!((twice.len(), block.len()), (2, 3));
}

#[test]
fn unlisted_inputs_become_inputs_and_nest() {
    let mut attention = Model::new().named("attn").unwrap();
    attention.chain(&layers::linear(4, true).unwrap().named("c_attn").unwrap(), (), at()).unwrap();
    let mut block = Model::new().named("0").unwrap();
    block.chain(&attention, (), at()).unwrap();
    let mut blocks = Model::new().named("h").unwrap();
    blocks.chain(&block, (), at()).unwrap();
    let mut gpt = Model::new();
    gpt.chain(&blocks, (), at()).unwrap();
    assert_eq!(names(gpt.inputs()), ["input", "h.0.attn.c_attn.weight", "h.0.attn.c_attn.bias"]);
    let mut listed = Model::new();
    listed.extend(&layers::linear(4, false).unwrap(), (), at()).unwrap();
    assert_eq!(names(listed.inputs()), ["linear.input", "linear.weight"]);
    let flat = flatten(&gpt, &shapes("input", &[2, 3])).unwrap();
    assert_eq!(flat.inputs[1].name.as_ref(), "h.0.attn.c_attn.weight");
    let place = flat.graph.nodes().next().map(|(n, _)| flat.graph.place(n).clone()).unwrap();
    assert_eq!(place.path.as_deref(), Some("h.0.attn.c_attn"));
}

#[test]
fn the_order_of_adding_does_not_matter() {
    let parts = [
        (layers::linear(8, true).unwrap().named("a").unwrap(), "input", "x"),
        (op("relu").named("b").unwrap(), "x", "y"),
        (layers::linear(3, true).unwrap().named("c").unwrap(), "y", "output"),
    ];
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let mut m = Model::new();
        for i in order {
            let (part, from, to) = &parts[i];
            m.extend(part, [("input", *from), ("output", *to)], at()).unwrap();
        }
        assert_eq!(names(m.outputs()), ["output"], "{order:?}");
        let flat = flatten(&m, &shapes("input", &[5, 6])).unwrap();
        let find = |n: &str| flat.inputs.iter().find(|i| &*i.name == n).unwrap().ty.to_string();
        assert_eq!((find("a.weight"), find("c.weight")), ("f32[8, 6]".into(), "f32[3, 8]".into()));
    }
}

#[test]
fn wiring_mistakes_are_errors_and_leave_the_model_as_it_was() {
    let mut m = classifier();
    let before = (m.to_string(), names(m.inputs()), m.len());
    let relu = op("relu");
    let cases: Vec<(Model, mithril_model::Spec, Code, &str)> = vec![
        (relu.clone(), [("inptu", "hidden1")].into(), Code::UnknownName, "did you mean \"input\"?"),
        (
            relu.clone(),
            [("input", "hidden1"), ("output", "hidden2")].into(),
            Code::TwoSources,
            "another name",
        ),
        (relu.clone(), [("input", "output"), ("output", "input")].into(), Code::Cycle, "one direction"),
        (relu.clone(), [("input", "new"), ("output", "new")].into(), Code::Cycle, "one direction"),
        (relu.clone(), [("input", "")].into(), Code::BadName, "visible"),
        (relu.clone(), [("input", "a\nb")].into(), Code::BadName, "read"),
        (relu.clone().named("linear").unwrap(), [("input", "logits")].into(), Code::BadName, "another name"),
        (relu.clone(), [("input", "linear.wieght")].into(), Code::BadName, "without a dot"),
    ];
    for (part, spec, code, help) in cases {
        let error = m.extend(&part, spec, at()).unwrap_err();
        assert_eq!(error.code(), code, "{error}");
        assert!(error.hint().unwrap().contains(help), "{error}");
        assert_eq!((m.to_string(), names(m.inputs()), m.len()), before);
    }
    // The failed names are free again.
    m.extend(&relu, [("input", "logits"), ("output", "new")], at()).unwrap();
}

#[test]
fn weights_are_shared_by_name() {
    let mut m = Model::new();
    m.chain(&layers::linear(4, false).unwrap(), (), at()).unwrap();
    m.chain(&layers::linear(4, false).unwrap(), [("weight", "linear.weight")], at()).unwrap();
    assert_eq!(names(m.parameters()), ["linear.weight"]);
    let flat = flatten(&m, &shapes("input", &[2, 4])).unwrap();
    assert_eq!(flat.inputs.len(), 2);
}

#[test]
fn literals_and_keys_at_ports() {
    let mut m = Model::new();
    let key = IOKey::new("x").shape([2_i64, 3]).expose(false);
    m.extend(&op("add"), mithril_model::Spec::new().with("left", key).with("right", 2.0), at()).unwrap();
    assert_eq!(names(m.inputs()), ["x"]);
    assert_eq!(m.shape_text("x").unwrap(), "[2, 3]");
    let flat = flatten(&m, &FlattenOptions::default()).unwrap();
    assert_eq!(flat.graph.ty(flat.graph.outputs["output"]).unwrap().to_string(), "f32[2, 3]");
}

#[test]
fn expressions_make_models() {
    let x = Connection::input("input");
    let h = layers::linear(8, true).unwrap().call([&x]).unwrap();
    let y = (&op("relu").call([&h]).unwrap() + &x).unwrap();
    let m = Model::from_outputs([("output", y)]).unwrap();
    assert_eq!(names(m.inputs_of(Role::Data)), ["input"]);
    let flat = flatten(&m, &shapes("input", &[4, 8])).unwrap();
    assert_eq!(flat.graph.ty(flat.graph.outputs["output"]).unwrap().to_string(), "f32[4, 8]");
    // The same expression twice is computed once.
    let h = layers::linear(8, true).unwrap().call([&x]).unwrap();
    let m = Model::from_outputs([("a", (&h + 1.0).unwrap()), ("b", (&h + 2.0).unwrap())]).unwrap();
    assert_eq!(m.len(), 3);
}

/// A table is read at constant places first, then the data is added: the data is the first argument of a call.
#[test]
fn constants_come_last_among_the_arguments_of_a_call() {
    let table = Connection::input(IOKey::new("table").shape([4_i64, 8]).dtype(DType::F32).trainable(true));
    let rows = Tensor::from_f64s(DType::I64, &[2], &[3.0, 0.0]);
    let rows = Connection::input(IOKey::new("rows").value(rows));
    let row = op("embedding").call([&rows, &table]).unwrap();
    let inner = Model::from_outputs([("output", (&row + &Connection::input("data")).unwrap())]).unwrap();
    let output = inner.call([&Connection::input("x")]).unwrap();
    let outer = Model::from_outputs([("output", output)]).unwrap();
    let flat = flatten(&outer, &shapes("x", &[2, 8])).unwrap();
    assert_eq!(flat.graph.ty(flat.graph.outputs["output"]).unwrap().to_string(), "f32[2, 8]");
}

#[test]
fn long_expressions_neither_overflow_nor_take_long() {
    let mut x = Connection::input("input");
    for _ in 0..20_000 {
        x = (&x + 1.0).unwrap();
    }
    let m = Model::from_outputs([("output", x)]).unwrap();
    assert_eq!(m.len(), 20_000);
}

#[test]
fn sizes_are_computed_exactly() {
    let x = Connection::input("input");
    let rows = x.shape().unwrap().item(0).unwrap();
    let half = Connection::arithmetic("floor_divide", rows.into(), 2.into()).unwrap();
    let shape = Connection::tuple([half.into(), (-1).into()]).unwrap();
    let y = Connection::op("reshape", vec![x.into(), shape.into()], vec![]).unwrap();
    let m = Model::from_outputs([("output", y)]).unwrap();
    let flat = flatten(&m, &shapes("input", &[6, 4])).unwrap();
    assert_eq!(flat.graph.ty(flat.graph.outputs["output"]).unwrap().to_string(), "f32[3, 8]");
    assert_eq!(flat.graph.nodes().len(), 1);
}

#[test]
fn connections_of_other_models_are_refused() {
    let (a, mut b) = (classifier(), Model::new());
    let other = a.connection("logits").unwrap();
    let error = b.extend(&op("relu"), [("input", &other)], at()).unwrap_err();
    assert_eq!(error.code(), Code::BadConnection);
    let linear = layers::linear(2, true).unwrap();
    let port = linear.port("output").unwrap();
    assert_eq!(b.extend(&op("relu"), [("input", &port)], at()).unwrap_err().code(), Code::BadConnection);
    b.extend(&linear, (), at()).unwrap();
    b.extend(&op("relu"), [("input", &port)], at()).unwrap();
    assert_eq!(b.len(), 2);
    b.extend(&linear, (), at()).unwrap();
    assert_eq!(b.extend(&op("relu"), [("input", &port)], at()).unwrap_err().code(), Code::BadConnection);
}

#[test]
fn models_that_explode_are_refused() {
    let mut m = Model::new();
    m.chain(&op("relu"), (), at()).unwrap();
    let error = (0..200)
        .find_map(|_| {
            let part = m.clone();
            m = Model::new();
            m.chain(&part, (), at()).err()
        })
        .unwrap();
    assert_eq!(error.code(), Code::BadConnection);
}
