//! Constant folding: evaluates, in the interpreter, every node that depends on no input.

use std::sync::Arc;

use mithril_ir::dim::Dim;
use mithril_ir::error::Result;
use mithril_ir::graph::{Def, Graph, Node, ValueId};
use mithril_ir::interp::{self, EvalArg};
use mithril_ir::literal::Lit;
use mithril_ir::tensor::Tensor;

use crate::rewrite::Rewrite;

/// A result with more elements than this is folded only if it is no larger than the constants it is computed from.
const MAX_ELEMENTS: usize = 4096;
/// The same where formulas are kept.
const MAX_WRITTEN: usize = 32;

/// Evaluates nodes whose operands are all constants. A creation op (`zeros`, `arange`) with a remaining user is kept:
/// the call is shorter than its elements.
pub fn fold_constants(graph: &Graph) -> Result<Graph> {
    fold_up_to(graph, MAX_ELEMENTS)
}

/// As [`fold_constants`], for targets that write formulas: results that are too large to be written out stay formulas.
pub fn fold_small(graph: &Graph) -> Result<Graph> {
    fold_up_to(graph, MAX_WRITTEN)
}

fn fold_up_to(graph: &Graph, most: usize) -> Result<Graph> {
    let mut known: Vec<Option<Arc<Tensor>>> = vec![None; graph.values().len()];
    let mut rewrite = Rewrite::new(graph, mithril_ir::DType::F32);
    for (n, node) in graph.nodes() {
        rewrite.at(n);
        if let Some(results) = evaluate(graph, node, &known, most) {
            for (&v, t) in node.outputs.iter().zip(results) {
                known[v.index()] = Some(t);
            }
            if !is_creation(graph, node) {
                for &v in &node.outputs {
                    if let Some(t) = &known[v.index()] {
                        let literal = rewrite.builder.graph.add_literal(Lit::Tensor(t.clone()));
                        rewrite.set(v, literal);
                    }
                }
                continue;
            }
        }
        rewrite.copy(n)?;
    }
    rewrite.finish()
}

fn is_creation(graph: &Graph, node: &Node) -> bool {
    node.inputs.iter().all(|&v| graph.ty(v).is_none())
}

fn evaluate(
    graph: &Graph,
    node: &Node,
    known: &[Option<Arc<Tensor>>],
    most: usize,
) -> Option<Vec<Arc<Tensor>>> {
    let mut out = Vec::with_capacity(node.outputs.len());
    for &v in &node.outputs {
        let ty = graph.ty(v)?;
        out.push((ty.dtype, ty.shape.known()?));
    }
    let mut operand_elements = 0;
    let mut args = Vec::with_capacity(node.inputs.len());
    for (i, &v) in node.inputs.iter().enumerate() {
        let arg = argument(graph, node, i, v, known)?;
        if let EvalArg::Tensor(t) = &arg {
            operand_elements += t.len();
        }
        args.push(arg);
    }
    let size: usize = out.iter().map(|(_, shape)| shape.iter().product::<usize>()).sum();
    if size > most.max(operand_elements) {
        return None;
    }
    // An evaluation that fails here fails with the same message at run time; folding never raises it at compile time.
    interp::eval(node.op, &args, &out).ok()
}

fn argument(
    graph: &Graph,
    node: &Node,
    i: usize,
    v: ValueId,
    known: &[Option<Arc<Tensor>>],
) -> Option<EvalArg> {
    if let Some(t) = &known[v.index()] {
        return Some(EvalArg::Tensor(t.clone()));
    }
    match &graph.value(v).def {
        Def::Const(Lit::Tensor(t)) => Some(EvalArg::Tensor(t.clone())),
        Def::Const(lit) if has_symbol(lit) => None,
        Def::Const(lit) if node.op.takes_tensor(i) && lit.is_numeric() => {
            interp::operand(graph, node, lit).ok().map(|t| EvalArg::Tensor(Arc::new(t)))
        }
        Def::Const(lit) => Some(EvalArg::Lit(lit.clone())),
        _ => None,
    }
}

fn has_symbol(lit: &Lit) -> bool {
    match lit {
        Lit::Int(Dim::Expr(_)) => true,
        Lit::Tuple(items) => items.iter().any(has_symbol),
        Lit::Slice(parts) => parts.iter().any(has_symbol),
        _ => false,
    }
}
