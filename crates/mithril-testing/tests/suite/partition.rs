//! Partitioning: every op of the registry in every way that it divides, and whole graphs, equal one device.

use std::sync::Arc;

use mithril::compile::partition::rule::{self, Arg, Use};
use mithril::compile::partition::{
    Layout, Mesh, Partitioned, Placement, Reduction, Sections, partition, virtual_mesh, write,
};
use mithril::ir::build::Builder;
use mithril::ir::dtype::DType;
use mithril::ir::graph::{Graph, Role, TensorType, ValueId};
use mithril::ir::interp;
use mithril::ir::literal::Lit;
use mithril::ir::ops;
use mithril::ir::tensor::Tensor;
use mithril_testing::case::cases;
use mithril_testing::run::graph_of;
use mithril_testing::tolerance::{error, magnitude};

/// The program in which each device computes its part of a use.
fn program(graph: &Graph, part: &rule::Local, places: &[Placement], devices: usize) -> Partitioned {
    let mut builder = Builder::new(DType::F64);
    let node = graph.nodes().next().unwrap().1;
    let mut inputs = Vec::new();
    let mut args = Vec::new();
    for ((v, arg), place) in node.inputs.iter().zip(&part.call.args).zip(places) {
        args.push(match arg {
            Arg::Lit(lit) => builder.lit(lit.clone()),
            Arg::Tensor(ty) => {
                let name = graph.value(*v).name.clone().unwrap();
                // Of a partial operand each device has a multiple, so that all of them add up to it.
                let held = if place.is_partial() { Placement::Replicate } else { *place };
                inputs.push(vec![held]);
                let input = builder.graph.add_input(name, Role::Data, ty.clone());
                if place.is_partial() { share(&mut builder, input, devices) } else { input }
            }
        });
    }
    let results = write(&mut builder, "mesh", devices as i64, part, &args).unwrap();
    let mut outputs = Vec::new();
    for (i, (v, placement)) in results.into_iter().zip(&part.placements).enumerate() {
        let (v, placement) = match placement {
            Placement::Partial(by) => {
                let args = [v, builder.lit("mesh"), builder.lit(devices as i64), builder.lit(by.text())];
                (builder.push(&ops::collective::ALL_REDUCE, &args).unwrap()[0], Placement::Replicate)
            }
            other => (v, *other),
        };
        builder.graph.outputs.insert(format!("y{i}").into(), v);
        outputs.push(vec![placement]);
    }
    let mesh = Mesh::new([("mesh", devices)]).unwrap();
    Partitioned { graph: builder.graph, mesh, inputs, outputs, communications: Vec::new() }
}

/// What a device adds to a sum that is the value: `2 (p + 1) / (n (n + 1))` of it.
fn share(builder: &mut Builder, v: ValueId, devices: usize) -> ValueId {
    let n = devices as f64;
    let args = [builder.lit("mesh"), builder.lit(devices as i64)];
    let index = builder.push(&ops::collective::MESH_INDEX, &args).unwrap()[0];
    let float = builder.lit(DType::F64);
    let index = builder.push(ops::find("cast").unwrap(), &[index, float]).unwrap()[0];
    let one = builder.lit(1.0);
    let index = builder.push(ops::find("add").unwrap(), &[index, one]).unwrap()[0];
    let factor = builder.lit(2.0 / (n * (n + 1.0)));
    let factor = builder.push(ops::find("multiply").unwrap(), &[index, factor]).unwrap()[0];
    builder.push(ops::find("multiply").unwrap(), &[v, factor]).unwrap()[0]
}

fn agree(what: &str, actual: &[Arc<Tensor>], expected: &[Arc<Tensor>], tolerance: f64) {
    assert_eq!(actual.len(), expected.len(), "{what}");
    for (actual, expected) in actual.iter().zip(expected) {
        assert_eq!(actual.shape(), expected.shape(), "{what}");
        let scale = magnitude(expected).max(1.0);
        let off = error(actual, expected, Some(scale));
        assert!(off <= tolerance, "{what}: off by {off} eps\n{actual:?}\n{expected:?}");
    }
}

/// Placements of the operands of a use whose operand `i` is divided along an axis, also with partial sums as the others
/// or as operand `i` itself.
fn candidates(call: &Use, i: usize, axis: usize, devices: usize) -> Vec<Vec<Placement>> {
    let devices = devices as i64;
    let Arg::Tensor(ty) = &call.args[i] else { return Vec::new() };
    let size = ty.shape.known().unwrap()[axis] as i64;
    let mut candidates = rule::candidates(call, i, Placement::Shard(axis));
    if let Some(sections) = Sections::new(&[size / 2, size - size / 2], devices) {
        candidates.extend(rule::candidates(call, i, Placement::Sections(axis, sections)));
    }
    let partial = Placement::Partial(Reduction::Sum);
    let is_float = |arg: &Arg| matches!(arg, Arg::Tensor(ty) if ty.dtype.is_float());
    let others_partial = |places: &Vec<Placement>| -> Vec<Placement> {
        let each = places.iter().zip(&call.args);
        let is_partial = |p: Placement, arg: &Arg| p == Placement::Replicate && is_float(arg);
        each.map(|(p, arg)| if is_partial(*p, arg) { partial } else { *p }).collect()
    };
    candidates.extend(candidates.iter().map(others_partial).collect::<Vec<_>>());
    let mut whole = vec![Placement::Replicate; call.args.len()];
    candidates.push(others_partial(&whole));
    if is_float(&call.args[i]) {
        whole[i] = partial;
        candidates.push(whole);
    }
    candidates
}

/// Every op, every case, every operand divided along every axis: what the rule accepts equals one device.
#[test]
fn every_op_divides_as_the_rule_says() {
    let mut divided = std::collections::BTreeSet::new();
    let mut linear = std::collections::BTreeSet::new();
    let mut uses = 0;
    for op in ops::all() {
        for case in cases(op, DType::F64).unwrap() {
            let Ok((graph, inputs)) = graph_of(&case, DType::F64) else { continue };
            if graph.nodes().len() != 1 {
                continue;
            }
            let node = graph.nodes().next().unwrap().1;
            let Some(call) = Use::of(&graph, node) else { continue };
            let Ok(expected) = interp::run(&graph, &inputs) else { continue };
            for (i, arg) in call.args.iter().enumerate() {
                let Arg::Tensor(ty) = arg else { continue };
                for (axis, size) in ty.shape.known().unwrap().into_iter().enumerate() {
                    for devices in [2, 3].into_iter().filter(|n| size > 0 && size % n == 0) {
                        let partial = Placement::Partial(Reduction::Sum);
                        for places in candidates(&call, i, axis, devices) {
                            let Some(part) = rule::local(&call, &places, devices as i64) else { continue };
                            uses += 1;
                            divided.insert(op.name);
                            let is_partial = part.placements.iter().all(|p| p.is_partial());
                            if places.contains(&partial) && is_partial && magnitude(&expected[0]) > 0.0 {
                                linear.insert(op.name);
                            }
                            let program = program(&graph, &part, &places, devices);
                            let actual = virtual_mesh::run(&program, &inputs).unwrap();
                            agree(&format!("{} {} {places:?}", op.name, case.text), &actual, &expected, 64.0);
                        }
                    }
                }
            }
        }
    }
    assert!(uses > 1000 && divided.len() > 150, "{uses} uses of {} ops divide", divided.len());
    for op in
        ["add", "matmul", "sum", "reshape", "transpose", "conv2d", "linear", "softmax", "layer_norm", "take"]
    {
        assert!(divided.contains(op), "{op} does not divide in any case: {divided:?}");
    }
    let all_linear = "add multiply negative where sum mean reshape matmul concat slice index_add";
    for op in all_linear.split(' ') {
        assert!(linear.contains(op), "{op} is linear: {linear:?}");
    }
    for op in ["exp", "relu", "maximum", "softmax", "floor", "power"] {
        assert!(!linear.contains(op), "{op} is not linear");
    }
}

fn graph(build: impl FnOnce(&mut Builder)) -> Graph {
    let mut builder = Builder::new(DType::F64);
    build(&mut builder);
    builder.graph
}

fn ty(sizes: &[i64]) -> TensorType {
    TensorType { dtype: DType::F64, shape: sizes.iter().copied().collect() }
}

fn spec(axes: &[&str]) -> Vec<Vec<String>> {
    axes.iter().map(|a| if a.is_empty() { vec![] } else { vec![(*a).to_owned()] }).collect()
}

/// Two linear layers, the first divided by its outputs and the second by its inputs: one reduction, as in Megatron-LM.
#[test]
fn a_pair_of_linear_layers_reduces_once() {
    let op = |name| ops::find(name).unwrap();
    let graph = graph(|b| {
        let x = b.graph.add_input("x", Role::Data, ty(&[4, 6]));
        let first = b.graph.add_input("up.weight", Role::Param, ty(&[64, 6]));
        let bias = b.graph.add_input("up.bias", Role::Param, ty(&[64]));
        let second = b.graph.add_input("down.weight", Role::Param, ty(&[6, 64]));
        let hidden = b.push(op("linear"), &[x, first, bias]).unwrap()[0];
        let hidden = b.push(op("gelu"), &[hidden]).unwrap()[0];
        let y = b.push(op("linear"), &[hidden, second]).unwrap()[0];
        b.graph.outputs.insert("y".into(), y);
    });
    let mesh = Mesh::new([("data", 2), ("model", 4)]).unwrap();
    let layout = Layout {
        batch: vec!["data".into()],
        patterns: vec![("up.*".into(), spec(&["model"])), ("down.weight".into(), spec(&["", "model"]))],
        ..Layout::new(mesh)
    };
    let program = partition(&graph, &layout, DType::F64, &|_| None).unwrap();
    let ops: Vec<(&str, &str)> =
        program.communications.iter().map(|c| (c.op, c.mesh_axis.as_str())).collect();
    assert_eq!(ops, [("all_reduce", "model")], "{:?}", program.graph);
    let inputs: Vec<Arc<Tensor>> = graph
        .inputs
        .iter()
        .enumerate()
        .map(|(k, &v)| {
            let shape = graph.ty(v).unwrap().shape.known().unwrap();
            Arc::new(Tensor::build(DType::F64, &shape, |i| ((i * 7 + k * 3) as f64 * 0.37).sin().into()))
        })
        .collect();
    let actual = virtual_mesh::run(&program, &inputs).unwrap();
    agree("pair", &actual, &interp::run(&graph, &inputs).unwrap(), 64.0);
}

/// A layout that does not fit is an error that says what would.
#[test]
fn layouts_that_do_not_fit() {
    let graph = graph(|b| {
        let x = b.graph.add_input("x", Role::Data, ty(&[3, 6]));
        b.graph.outputs.insert("y".into(), x);
    });
    let mesh = Mesh::new([("data", 2)]).unwrap();
    let whole = || Layout::new(mesh.clone());
    let fails = |layout: Layout| partition(&graph, &layout, DType::F64, &|_| None).unwrap_err().to_string();
    let error = fails(Layout { batch: vec!["data".into()], ..whole() });
    assert!(error.contains("axis 0 of `x`") && error.contains("such as 4"), "{error}");
    let error = fails(Layout { batch: vec!["date".into()], ..whole() });
    assert!(error.contains("did you mean `data`"), "{error}");
    let error = fails(Layout { patterns: vec![("z".into(), spec(&["data"]))], ..whole() });
    assert!(error.contains("no input is called `z`"), "{error}");
    let error = fails(Layout { patterns: vec![("x".into(), spec(&["", "data", "data"]))], ..whole() });
    assert!(error.contains("has 3 axes"), "{error}");
    let error =
        fails(Layout { patterns: vec![("x".into(), vec![vec![], vec!["data".into(); 2]])], ..whole() });
    assert!(error.contains("twice"), "{error}");
    let _ = Lit::None;
}
