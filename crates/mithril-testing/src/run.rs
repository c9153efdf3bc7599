//! Building and running single uses of ops.

use std::sync::Arc;

use mithril::ir::build::Builder;
use mithril::ir::dtype::DType;
use mithril::ir::error::Result;
use mithril::ir::graph::{Graph, Role, TensorType};
use mithril::ir::tensor::Tensor;
use mithril::ir::{Shape, interp};

use crate::case::{Arg, Case};

/// A graph of one node whose tensors are inputs `x0`, `x1` … and outputs `y0`, `y1` …, and the inputs.
pub fn graph_of(case: &Case, float: DType) -> Result<(Graph, Vec<Arc<Tensor>>)> {
    let mut b = Builder::new(float);
    let mut inputs = Vec::new();
    let mut args = Vec::new();
    for arg in &case.args {
        args.push(match arg {
            Arg::Lit(lit) => b.lit(lit.clone()),
            Arg::Tensor(t) => {
                let ty = TensorType { dtype: t.dtype(), shape: Shape::of(t.shape().iter().copied()) };
                let v = b.graph.add_input(format!("x{}", inputs.len()), Role::Data, ty);
                inputs.push(Arc::new(t.clone()));
                v
            }
        });
    }
    for (i, v) in b.push(case.op, &args)?.into_iter().enumerate() {
        b.graph.outputs.insert(format!("y{i}").into(), v);
    }
    Ok((b.graph, inputs))
}

/// Runs a case on the interpreter.
pub fn run(case: &Case, float: DType) -> Result<Vec<Arc<Tensor>>> {
    let (graph, inputs) = graph_of(case, float)?;
    interp::run(&graph, &inputs)
}
