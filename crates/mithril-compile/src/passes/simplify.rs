//! Algebraic simplification: identities that hold bit for bit, including NaN, infinities and signed zeros.

use mithril_ir::error::Result;
use mithril_ir::graph::{Graph, Node, ValueId};
use mithril_ir::literal::Lit;
use mithril_ir::ops::{elementwise as e, movement, random, slicing};

use super::slices;
use crate::rewrite::Rewrite;

/// Removes nodes that return one of their inputs unchanged: `x * 1`, `x / 1`, `x - 0`, a cast to the same dtype, a
/// reshape or broadcast to the same shape, a transposition that keeps the order, a slice of everything, `-(-x)`, a
/// maximum with minus infinity and a minimum with infinity, a cast to a wider float and back, dropout and
/// replaced gradients outside of training. Slices are taken of the earliest value that they are slices of.
///
/// `x + 0` and `x * 0` stay: the first changes `-0.0`, the second NaN and infinity.
pub fn simplify(graph: &Graph) -> Result<Graph> {
    let mut rewrite = Rewrite::new(graph, mithril_ir::DType::F32);
    let only_sliced = slices::only_sliced(graph);
    for (n, node) in graph.nodes() {
        match same_as(graph, node) {
            Some(v) => {
                let new = rewrite.get(v)?;
                rewrite.set_outputs(node, &[new]);
            }
            None if slices::resolve(graph, n, &only_sliced, &mut rewrite)? => {}
            None => {
                rewrite.copy(n)?;
            }
        }
    }
    rewrite.finish()
}

/// The operand that a node is equal to, if there is one.
fn same_as(graph: &Graph, node: &Node) -> Option<ValueId> {
    let [output] = node.outputs.as_slice() else { return None };
    let x = *node.inputs.first()?;
    let number = |i: usize| node.inputs.get(i).and_then(|&v| graph.lit(v)).and_then(scalar);
    let op = node.op;
    let unbounded = [(&e::MAXIMUM, f64::NEG_INFINITY), (&e::MINIMUM, f64::INFINITY)];
    let unbounded = unbounded.iter().find(|(same, _)| op == *same).map(|(_, bound)| *bound);
    let is_unbounded = |i: usize| unbounded.is_some() && number(i) == unbounded;
    let source = if op == &e::MULTIPLY && number(0) == Some(1.0) || is_unbounded(0) {
        *node.inputs.get(1)?
    } else if (op == &e::MULTIPLY || op == &e::DIVIDE) && number(1) == Some(1.0)
        || is_unbounded(1)
        || op == &e::SUBTRACT && number(1).is_some_and(|n| n == 0.0 && n.is_sign_positive())
        || [&e::CAST, &movement::RESHAPE, &movement::BROADCAST_TO].contains(&op)
        || op == &movement::TRANSPOSE && keeps_order(graph, node)
        || op == &slicing::SLICE && has_unit_steps(graph, node)
        || [&random::DROPOUT, &random::FEATURE_DROPOUT].contains(&op) && drops_nothing(graph, node)
        || op == &e::REPLACE_GRADIENT && is_no_training(graph, node, 2)
    {
        x
    } else if op == &e::NEGATIVE {
        let inner = graph.node(graph.producer(x)?);
        if inner.op != &e::NEGATIVE {
            return None;
        }
        *inner.inputs.first()?
    } else {
        return None;
    };
    let source = if op == &e::CAST { before_widening(graph, source).unwrap_or(source) } else { source };
    // A scalar operand may broadcast or promote: only the same type is the same value.
    (graph.ty(source).is_some() && graph.ty(source) == graph.ty(*output)).then_some(source)
}

/// The operand of a cast to a wider float.
fn before_widening(graph: &Graph, v: ValueId) -> Option<ValueId> {
    let node = graph.node(graph.producer(v)?);
    let source = *node.inputs.first().filter(|_| node.op == &e::CAST)?;
    let (from, to) = (graph.ty(source)?.dtype, graph.ty(v)?.dtype);
    (from.is_float() && to.is_float() && from.promote(to) == to).then_some(source)
}

fn scalar(lit: &Lit) -> Option<f64> {
    match lit {
        Lit::Float(x) => Some(*x),
        Lit::Int(d) => d.known().map(|n| n as f64),
        Lit::Tensor(t) if t.rank() == 0 => Some(t.get(0).f64()),
        _ => None,
    }
}

/// Whether dropout returns its input: `training` is false, or `p` is 0.
fn drops_nothing(graph: &Graph, node: &Node) -> bool {
    let lit = |i: usize| node.inputs.get(i).and_then(|&v| graph.lit(v));
    is_no_training(graph, node, 3) || lit(2).and_then(scalar) == Some(0.0)
}

/// Whether the attribute at `i`, which says whether the model is trained, is false.
fn is_no_training(graph: &Graph, node: &Node, i: usize) -> bool {
    node.inputs.get(i).and_then(|&v| graph.lit(v)) == Some(&Lit::Bool(false))
}

fn keeps_order(graph: &Graph, node: &Node) -> bool {
    let rank = graph.ty(node.outputs[0]).map_or(0, |t| t.shape.rank());
    match node.inputs.get(1).and_then(|&v| graph.lit(v)) {
        Some(Lit::Tuple(axes)) => axes
            .iter()
            .enumerate()
            .all(|(i, a)| *a == Lit::int(i as i64) || *a == Lit::int(i as i64 - rank as i64)),
        _ => rank < 2,
    }
}

/// Whether every step of a slice is 1: if the shape stays too, it selects everything.
fn has_unit_steps(graph: &Graph, node: &Node) -> bool {
    match node.inputs.get(3).and_then(|&v| graph.lit(v)) {
        Some(Lit::Tuple(steps)) => steps.iter().all(|step| step.is_none() || *step == Lit::int(1)),
        steps => steps.is_none_or(Lit::is_none),
    }
}
