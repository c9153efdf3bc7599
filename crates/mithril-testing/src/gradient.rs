//! Gradients against central differences in `f64`.

use std::sync::Arc;

use mithril::compile::passes::differentiate::{COTANGENT, Request, differentiate};
use mithril::ir::dtype::DType;
use mithril::ir::error::Result;
use mithril::ir::graph::{Def, Graph, Role};
use mithril::ir::tensor::{Scalar, Tensor};
use mithril::ir::{ValueId, interp};

use crate::case::{Case, Random};
use crate::run::graph_of;

/// Step of the differences; the error of a central difference is about its square.
const STEP: f64 = 1e-5;
/// Largest difference allowed, relative to the largest gradient of the case.
const ALLOWED: f64 = 1e-6;
/// Elements of each input that second derivatives are checked by.
const SECOND: usize = 12;

/// The largest difference between the gradient formulas and central differences, relative to the largest
/// gradient; `None` if the op has no float input or output.
pub fn check(case: &Case) -> Result<Option<f64>> {
    let (graph, inputs) = graph_of(case, DType::F64)?;
    check_graph(&graph, &inputs, case.op.name)
}

/// As [`check`] for the gradients of the gradients, by the inputs and by the first cotangents.
pub fn check_second(case: &Case) -> Result<Option<f64>> {
    let (graph, inputs) = graph_of(case, DType::F64)?;
    match first_order(&graph, &inputs, case.op.name)? {
        Some(first) => check_some(&first.backward, &first.inputs, case.op.name, SECOND),
        None => Ok(None),
    }
}

/// A graph with its gradients, and what to run it on.
struct FirstOrder {
    backward: Graph,
    /// Inputs of the graph, then the cotangents.
    inputs: Vec<Arc<Tensor>>,
    /// Float outputs and the cotangents of them.
    cotangents: Vec<(Arc<str>, Arc<Tensor>)>,
    /// Number of gradients.
    count: usize,
}

fn is_float(graph: &Graph, v: ValueId) -> bool {
    graph.ty(v).is_some_and(|t| t.dtype == DType::F64)
}

fn first_order(graph: &Graph, inputs: &[Arc<Tensor>], seed: &str) -> Result<Option<FirstOrder>> {
    let name = |v: ValueId| -> Arc<str> {
        let value = graph.value(v);
        let name = value.name.as_deref().unwrap_or_default();
        let prefix = if value.def == Def::Input(Role::Cotangent) { COTANGENT } else { "" };
        format!("{prefix}{name}").into()
    };
    let wrt: Vec<_> = graph.inputs.iter().filter(|v| is_float(graph, **v)).map(|&v| name(v)).collect();
    let outputs: Vec<_> =
        graph.outputs.iter().filter(|(_, v)| is_float(graph, **v)).map(|(n, _)| n.clone()).collect();
    if wrt.is_empty() || outputs.is_empty() {
        return Ok(None);
    }
    let count = wrt.len();
    let request = Request { outputs, inputs: wrt, recompute: false };
    let backward = differentiate(graph, &request, DType::F64)?;
    mithril::ir::verify::verify(&backward, DType::F64)?;

    let forward = interp::run(graph, inputs)?;
    let mut random = Random::new(seed, 7 + inputs.len() as u64);
    let mut inputs = inputs.to_vec();
    let mut cotangents = Vec::new();
    for (output, t) in graph.outputs.keys().zip(&forward) {
        if request.outputs.contains(output) {
            let g = Tensor::build(DType::F64, t.shape(), |_| Scalar::Float(random.unit() + 0.5));
            cotangents.push((output.clone(), Arc::new(g)));
        }
    }
    inputs.extend(cotangents.iter().map(|(_, g)| g.clone()));
    Ok(Some(FirstOrder { backward, inputs, cotangents, count }))
}

/// As [`check`] for a whole graph.
pub fn check_graph(graph: &Graph, inputs: &[Arc<Tensor>], seed: &str) -> Result<Option<f64>> {
    check_some(graph, inputs, seed, usize::MAX)
}

/// At most `most` elements of each input are checked, evenly spread.
fn check_some(graph: &Graph, inputs: &[Arc<Tensor>], seed: &str, most: usize) -> Result<Option<f64>> {
    let Some(first) = first_order(graph, inputs, seed)? else { return Ok(None) };
    let FirstOrder { backward, inputs: leaves, cotangents, count } = first;
    let all = interp::run(&backward, &leaves)?;
    let mut gradients = all[backward.outputs.len() - count..].iter();
    let loss = |inputs: &[Arc<Tensor>]| -> Result<f64> {
        let outs = interp::run(graph, inputs)?;
        let mut sum = 0.0;
        for (output, t) in graph.outputs.keys().zip(&outs) {
            if let Some((_, g)) = cotangents.iter().find(|(name, _)| name == output) {
                sum += t.to_f64s().iter().zip(g.to_f64s()).map(|(y, g)| y * g).sum::<f64>();
            }
        }
        Ok(sum)
    };
    let (mut worst, mut largest) = (0.0_f64, 1.0_f64);
    for (k, _) in graph.inputs.iter().enumerate().filter(|(_, v)| is_float(graph, **v)) {
        let g = gradients.next().map(|g| g.to_f64s()).unwrap_or_default();
        let x = inputs[k].to_f64s();
        for i in (0..x.len()).step_by(x.len().div_ceil(most).max(1)) {
            let moved = |by: f64| {
                let mut moved = x.clone();
                moved[i] += by;
                let mut inputs = inputs.to_vec();
                inputs[k] = Arc::new(Tensor::from_f64s(DType::F64, inputs[k].shape(), &moved));
                loss(&inputs)
            };
            let expected = (moved(STEP)? - moved(-STEP)?) / (2.0 * STEP);
            let difference = (g[i] - expected).abs();
            worst = worst.max(if difference.is_nan() { f64::INFINITY } else { difference });
            largest = largest.max(expected.abs());
        }
    }
    Ok(Some(worst / largest / ALLOWED))
}
