//! Random graphs on random meshes with random layouts equal one device, values and gradients; so do they, and every op,
//! with batches that are padded.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use mithril::compile::partition::{Layout, Mesh, pad, partition, virtual_mesh};
use mithril::compile::passes::specialize::specialize;
use mithril::ir::dtype::DType;
use mithril::ir::graph::{Def, Graph, Role, ValueId};
use mithril::ir::tensor::Tensor;
use mithril::ir::{interp, ops};
use mithril_testing::case::cases;
use mithril_testing::program::{Program, Style};
use mithril_testing::random::{Check, for_programs, request, with_gradients};
use mithril_testing::run::graph_of;
use mithril_testing::tolerance::{error, magnitude};

const MESHES: &[&[(&str, usize)]] =
    &[&[("a", 2)], &[("a", 3)], &[("a", 2), ("b", 2)], &[("a", 2), ("b", 3), ("c", 2)]];

/// Divides every input along an axis that the extra bytes choose, where it divides.
fn check(program: &Program, extra: &[u8]) -> Check {
    let symbols = interp::bind(&program.graph, &program.inputs).map_err(|e| e.to_string())?;
    let graph = specialize(&program.graph, &symbols, DType::F64).map_err(|e| e.to_string())?;
    let program = Program { graph, inputs: program.inputs.clone() };
    let choose = |i: usize| extra.get(i % extra.len().max(1)).map_or(i, |&b| b as usize + i);
    let axes = MESHES[choose(0) % MESHES.len()];
    let mesh = Mesh::new(axes.iter().copied()).map_err(|e| e.to_string())?;
    let mut patterns = Vec::new();
    for (i, (&v, t)) in program.graph.inputs.iter().zip(&program.inputs).enumerate() {
        let mut spec = vec![Vec::new(); t.rank()];
        for (k, (name, _)) in axes.iter().enumerate() {
            let axis = choose(i + k + 1);
            if t.rank() > 0 {
                divide(&mut spec, t, axis % t.rank(), &mesh, name);
            }
        }
        let name = program.graph.value(v).name.as_deref().unwrap_or("input");
        patterns.push((name.to_owned(), spec));
    }
    let layout = Layout { patterns, ..Layout::new(mesh.clone()) };
    let expected = interp::run(&program.graph, &program.inputs).map_err(|e| e.to_string())?;
    let divided = partition(&program.graph, &layout, DType::F64, &|_| None).map_err(|e| e.to_string())?;
    let actual = virtual_mesh::run(&divided, &program.inputs).map_err(|e| e.to_string())?;
    compare(&program.graph, &actual, &expected).map_err(|text| format!("on {mesh}: {text}"))
}

/// Fails if an output differs by more than sums in another order may; NaN is no difference where both have it.
pub(crate) fn compare(graph: &Graph, actual: &[Arc<Tensor>], expected: &[Arc<Tensor>]) -> Check {
    for ((name, actual), expected) in graph.outputs.keys().zip(actual).zip(expected) {
        if actual.shape() != expected.shape() || actual.dtype() != expected.dtype() {
            return Err(format!("{name} is {:?}, not {:?}", actual.shape(), expected.shape()));
        }
        let off = error(actual, expected, Some(magnitude(expected).max(1.0)));
        if off > 1e6 {
            return Err(format!("{name} is off by {off} eps\n{actual:?}\n{expected:?}"));
        }
    }
    Ok(())
}

/// Divides an axis of a tensor along one of the mesh, if it divides.
pub(crate) fn divide(spec: &mut [Vec<String>], t: &Tensor, axis: usize, mesh: &Mesh, name: &str) {
    let size = |name: &str| mesh.axes()[mesh.axis(name).expect("an axis of the mesh")].1;
    let parts: usize = spec[axis].iter().map(|a| size(a)).product();
    if t.shape()[axis] > 0 && t.shape()[axis].is_multiple_of(parts * size(name)) {
        spec[axis].push(name.to_owned());
    }
}

/// Values and gradients of random graphs pass a check.
pub(crate) fn check_gradients(count: u32, check: fn(&Program, &[u8]) -> Check) {
    for_programs(count, (Style::Smooth, 4..16), DType::F64, |program, extra| {
        let request = request(&program.graph);
        if request.outputs.is_empty() || request.inputs.is_empty() {
            return Ok(());
        }
        match with_gradients(program, &request, DType::F64) {
            Ok(program) => check(&program, extra),
            Err(_) => Ok(()),
        }
    });
}

#[test]
fn values_of_random_graphs() {
    for_programs(400, (Style::Smooth, 4..24), DType::F64, check);
    for_programs(400, (Style::Any, 4..24), DType::F64, |program, extra| {
        match interp::run(&program.graph, &program.inputs) {
            Ok(_) => check(program, extra),
            Err(_) => Ok(()),
        }
    });
    for_programs(100, (Style::Products, 4..16), DType::F64, check);
}

#[test]
fn gradients_of_random_graphs() {
    check_gradients(200, check);
}

/// Some more examples than a batch has.
const FURTHER: usize = 2;

/// A tensor with further examples, copies of the last one.
fn extended(tensor: &Arc<Tensor>) -> Arc<Tensor> {
    let mut shape = tensor.shape().to_vec();
    let one = tensor.len() / shape[0];
    shape[0] += FURTHER;
    let last = tensor.len() - one;
    let copies = (0..FURTHER).flat_map(|_| last..tensor.len());
    Arc::new(tensor.select(&shape, (0..tensor.len()).chain(copies)))
}

/// The program with further examples in the data that are chosen, if they have as many rows as the first of them; `None` if
/// it mixes them.
fn padded(graph: &Graph, inputs: &[Arc<Tensor>], chosen: &dyn Fn(usize) -> bool) -> Option<Program> {
    let is_data = |v: ValueId| matches!(graph.value(v).def, Def::Input(Role::Data));
    let all = || graph.inputs.iter().zip(inputs).enumerate();
    let is_chosen =
        |i: usize, v: ValueId, t: &Tensor| is_data(v) && t.rank() > 0 && !t.is_empty() && chosen(i);
    let batch = all().find(|(i, (v, t))| is_chosen(*i, **v, t)).map(|(_, (_, t))| t.shape()[0])?;
    let mesh = Mesh::new([("data", batch + FURTHER)]).ok()?;
    let (mut patterns, mut own) = (Vec::new(), Vec::new());
    for (i, (&v, t)) in all() {
        let is_padded = is_chosen(i, v, t) && t.shape()[0] == batch;
        let spec = if is_padded { vec![vec!["data".to_owned()]] } else { Vec::new() };
        patterns.push((graph.value(v).name.as_deref()?.to_owned(), spec));
        own.push(if is_padded { extended(t) } else { Arc::clone(t) });
    }
    let graph = pad(graph, &Layout { patterns, ..Layout::new(mesh) }, DType::F64).ok()?.graph;
    Some(Program { graph, inputs: own })
}

fn same(names: &Graph, actual: &[Arc<Tensor>], expected: &[Arc<Tensor>]) -> Check {
    for ((name, actual), expected) in names.outputs.keys().zip(actual).zip(expected) {
        let mut actual = Arc::clone(actual);
        if actual.shape() != expected.shape() && actual.len() > expected.len() {
            // The gradient of data with further examples, of which it is zero.
            let rest = actual.to_f64s().split_off(expected.len());
            if rest.iter().any(|x| *x != 0.0) {
                return Err(format!("{name} of further examples is {rest:?}"));
            }
            actual = Arc::new(actual.select(expected.shape(), 0..expected.len()));
        }
        if actual.shape() != expected.shape() || actual.dtype() != expected.dtype() {
            return Err(format!("{name} is {:?}, not {:?}", actual.shape(), expected.shape()));
        }
        let off = error(&actual, expected, Some(magnitude(expected).max(1.0)));
        if off > 1e6 {
            return Err(format!("{name} is off by {off} eps\n{actual:?}\n{expected:?}"));
        }
    }
    Ok(())
}

#[test]
fn every_op_pads_as_the_rule_says() {
    let mut known = BTreeSet::new();
    for op in ops::all() {
        for case in cases(op, DType::F64).unwrap() {
            let Ok((graph, inputs)) = graph_of(&case, DType::F64) else { continue };
            let Ok(expected) = interp::run(&graph, &inputs) else { continue };
            for mask in 1..8_usize {
                let Some(program) = padded(&graph, &inputs, &|i| mask >> (i % 3) & 1 == 1) else { continue };
                let actual = interp::run(&program.graph, &program.inputs)
                    .unwrap_or_else(|e| panic!("{} {}: {e}", op.name, case.text));
                same(&graph, &actual, &expected).unwrap_or_else(|e| panic!("{} {}: {e}", op.name, case.text));
                known.insert(op.name);
            }
        }
    }
    for name in
        ["add", "sum", "mean", "linear", "conv2d", "layer_norm", "batch_norm", "cross_entropy", "mse_loss"]
    {
        assert!(known.contains(name), "{name} is not padded: {known:?}");
    }
}

#[test]
fn padded_random_graphs() {
    let count = RefCell::new(0);
    for style in [Style::Smooth, Style::Any, Style::Products] {
        for_programs(100, (style, 4..16), DType::F64, |program, extra| {
            let Ok(symbols) = interp::bind(&program.graph, &program.inputs) else { return Ok(()) };
            let Ok(graph) = specialize(&program.graph, &symbols, DType::F64) else { return Ok(()) };
            let Ok(expected) = interp::run(&graph, &program.inputs) else { return Ok(()) };
            let chosen = |i: usize| extra.get(i % extra.len().max(1)).is_none_or(|&b| b % 4 > 0);
            let Some(larger) = padded(&graph, &program.inputs, &chosen) else { return Ok(()) };
            *count.borrow_mut() += 1;
            let actual = interp::run(&larger.graph, &larger.inputs).map_err(|e| e.to_string())?;
            same(&graph, &actual, &expected)?;
            let request = request(&graph);
            if request.outputs.is_empty() || request.inputs.is_empty() || style == Style::Any {
                return Ok(());
            }
            let program = Program { graph, inputs: program.inputs.clone() };
            let Ok(own) = with_gradients(&program, &request, DType::F64) else { return Ok(()) };
            let larger = with_gradients(&larger, &request, DType::F64).map_err(|e| e.to_string())?;
            let expected = interp::run(&own.graph, &own.inputs).map_err(|e| e.to_string())?;
            let actual = interp::run(&larger.graph, &larger.inputs).map_err(|e| e.to_string())?;
            same(&own.graph, &actual, &expected)
        });
    }
    assert!(*count.borrow() > 60, "{count:?} of 300");
}
