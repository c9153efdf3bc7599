//! Gradients against central differences in `f64`.

use std::sync::Arc;

use mithril::compile::passes::differentiate::{GRADIENT, Request, differentiate};
use mithril::ir::dtype::DType;
use mithril::ir::error::{Error, Result};
use mithril::ir::graph::Graph;
use mithril::ir::interp;
use mithril::ir::tensor::{Scalar, Tensor};

use crate::case::{Case, Random};
use crate::run::graph_of;

/// Step of the differences; the error of a central difference is about its square.
const STEP: f64 = 1e-5;
/// Largest difference allowed, relative to the largest gradient of the case.
const ALLOWED: f64 = 1e-6;

/// The largest difference between the gradient formulas and central differences, relative to the largest
/// gradient; `None` if the op has no float input or output.
pub fn check(case: &Case) -> Result<Option<f64>> {
    let (graph, inputs) = graph_of(case, DType::F64)?;
    check_graph(&graph, &inputs, case.op.name)
}

/// As [`check`] for a whole graph.
pub fn check_graph(graph: &Graph, inputs: &[Arc<Tensor>], seed: &str) -> Result<Option<f64>> {
    let name = |v: mithril::ir::ValueId| graph.value(v).name.clone().unwrap_or_else(|| "".into());
    let floats = |v: &mithril::ir::ValueId| graph.ty(*v).is_some_and(|t| t.dtype == DType::F64);
    let wrt: Vec<_> = graph.inputs.iter().filter(|v| floats(v)).map(|&v| name(v)).collect();
    let outputs: Vec<_> = graph.outputs.iter().filter(|(_, v)| floats(v)).map(|(n, _)| n.clone()).collect();
    if wrt.is_empty() || outputs.is_empty() {
        return Ok(None);
    }
    let request = Request { outputs: outputs.clone(), inputs: wrt.clone() };
    let backward = differentiate(graph, &request, DType::F64)?;
    mithril::ir::verify::verify(&backward, DType::F64)?;

    let forward = interp::run(graph, inputs)?;
    let mut random = Random::new(seed, 7);
    let mut given = inputs.to_vec();
    let mut cotangents = Vec::new();
    for (output, t) in graph.outputs.keys().zip(&forward) {
        if outputs.contains(output) {
            let g = Tensor::build(DType::F64, t.shape(), |_| Scalar::Float(random.unit() + 0.5));
            cotangents.push((output.clone(), Arc::new(g)));
        }
    }
    given.extend(cotangents.iter().map(|(_, g)| g.clone()));
    let all = interp::run(&backward, &given)?;
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
    for (k, &v) in graph.inputs.iter().enumerate().filter(|(_, v)| floats(v)) {
        let key = format!("{GRADIENT}{}", name(v));
        let at = backward.outputs.get_index_of(&*key).ok_or_else(|| Error::internal("no gradient"))?;
        let g = all[at].to_f64s();
        let x = inputs[k].to_f64s();
        for i in 0..x.len() {
            let moved = |by: f64| {
                let mut moved = x.clone();
                moved[i] += by;
                let mut inputs = inputs.to_vec();
                inputs[k] = Arc::new(Tensor::from_f64s(DType::F64, inputs[k].shape(), &moved));
                loss(&inputs)
            };
            let wanted = (moved(STEP)? - moved(-STEP)?) / (2.0 * STEP);
            let difference = (g[i] - wanted).abs();
            worst = worst.max(if difference.is_nan() { f64::INFINITY } else { difference });
            largest = largest.max(wanted.abs());
        }
    }
    Ok(Some(worst / largest / ALLOWED))
}
