//! Legalization: expands composites that the target does not support; the ops that remain unsupported are reported
//! together.
//!
//! A method of a user-defined backend may not support explicit padding (only `padding="SAME"`, say). Its op then gets a
//! padded input, so that the method runs rather than the expansion.

use mithril_ir::build::Builder;
use mithril_ir::error::Result;
use mithril_ir::graph::{Graph, NodeId, TensorType, ValueId, Values};
use mithril_ir::op::OpDef;
use mithril_ir::{DType, Dim, Lit, ops};

use crate::pipeline::Target;
use crate::rewrite::{Rewrite, inline};

/// A predicate on a node of a graph.
pub type OfNode<'a> = dyn Fn(&Graph, NodeId) -> bool + 'a;

/// What a target supports.
#[derive(Clone, Copy)]
struct Support<'a> {
    /// Whether a user-defined backend has a method for an op.
    has_method: &'a dyn Fn(&OpDef) -> bool,
    /// Whether it writes a node.
    can_spell: &'a OfNode<'a>,
    /// Whether a method of a user-defined backend runs a node.
    is_method: &'a OfNode<'a>,
}

/// Lowers a graph to ops that a target supports.
pub fn legalize_for(target: &dyn Target, graph: &Graph, float: DType) -> Result<Graph> {
    let support = Support {
        has_method: &|op| target.has_method(op),
        can_spell: &|g, n| target.can_spell(g, n),
        is_method: &|g, n| target.is_method(g, n),
    };
    legalized(graph, float, support)
}

/// Expands the nodes that `can_spell` rejects. Nodes without an expansion stay, and the code generator lists all of
/// them in its error.
pub fn legalize(graph: &Graph, float: DType, can_spell: &OfNode<'_>) -> Result<Graph> {
    legalized(graph, float, Support { has_method: &|_| false, can_spell, is_method: &|_, _| false })
}

fn legalized(graph: &Graph, float: DType, support: Support<'_>) -> Result<Graph> {
    let mut rewrite = Rewrite::new(graph, float);
    for (n, node) in graph.nodes() {
        let is_final = node.op.expand.is_none() || (support.can_spell)(graph, n);
        if is_final && ((support.is_method)(graph, n) || !(support.has_method)(node.op)) {
            rewrite.copy(n)?;
            continue;
        }
        rewrite.at(n);
        let inputs = rewrite.inputs(node)?;
        let outputs = match with_padded_input(&mut rewrite.builder, node.op, &inputs, support)? {
            Some(outputs) => outputs,
            None if is_final => {
                rewrite.copy(n)?;
                continue;
            }
            None => {
                expand(&mut rewrite.builder, node.op, &inputs, support).map_err(|e| e.at(graph.place(n)))?
            }
        };
        rewrite.set_outputs(node, &outputs);
    }
    rewrite.finish()
}

fn expand(b: &mut Builder, op: &'static OpDef, inputs: &[ValueId], support: Support<'_>) -> Result<Values> {
    inline(b, op, inputs, &mut |b, op, inputs, types: Vec<TensorType>| {
        if op.expand.is_none() {
            return Ok(b.push_typed(op, inputs, types));
        }
        // The target is asked about the node in the graph; if it refuses, the node stays unused, and DCE removes it.
        let outputs = b.push_typed(op, inputs.clone(), types);
        let Some(n) = outputs.first().and_then(|&v| b.graph.producer(v)) else { return Ok(outputs) };
        if (support.is_method)(&b.graph, n) {
            return Ok(outputs);
        }
        if let Some(padded) = with_padded_input(b, op, &inputs, support)? {
            return Ok(padded);
        }
        if (support.can_spell)(&b.graph, n) { Ok(outputs) } else { expand(b, op, &inputs, support) }
    })
}

/// The op applied without padding to an input padded beforehand, if a method then runs it.
fn with_padded_input(
    b: &mut Builder,
    op: &'static OpDef,
    inputs: &[ValueId],
    support: Support<'_>,
) -> Result<Option<Values>> {
    if !(support.has_method)(op) {
        return Ok(None);
    }
    let (Some(value), Some(at), Some(pad)) = (op.padded_with, op.port("padding"), ops::find("pad")) else {
        return Ok(None);
    };
    // With `ceil_mode`, windows that start in the padding are treated differently from those in an input.
    let ceil = op.port("ceil_mode").and_then(|i| b.graph.lit(*inputs.get(i)?));
    if ceil.is_some_and(|lit| *lit != Lit::Bool(false)) {
        return Ok(None);
    }
    let Some((x, ty)) = inputs.first().and_then(|&x| Some((x, b.graph.ty(x)?.clone()))) else {
        return Ok(None);
    };
    let pads = inputs.get(at).and_then(|&v| explicit(b.graph.lit(v)?, ty.shape.rank().saturating_sub(2)));
    let Some(pads) = pads.filter(|_| value.is_finite() || ty.dtype.is_float()) else { return Ok(None) };
    let all: Vec<Lit> =
        [[0, 0]; 2].into_iter().chain(pads).map(|[a, z]| Lit::tuple([Lit::int(a), Lit::int(z)])).collect();
    let args = [x, b.lit(Lit::Tuple(all.into())), b.lit(Lit::text("constant")), b.lit(Lit::Float(value))];
    let padded = b.push(pad, &args)?;
    let mut args: Values = inputs.into();
    args[0] = padded[0];
    args[at] = b.lit(Lit::int(0));
    let outputs = b.push(op, &args)?;
    let runs =
        outputs.first().and_then(|&v| b.graph.producer(v)).is_some_and(|n| (support.is_method)(&b.graph, n));
    // If not, both stay unused, and DCE removes them.
    Ok(runs.then_some(outputs))
}

/// Pads of each axis that are numbers and not all 0.
fn explicit(lit: &Lit, axes: usize) -> Option<Vec<[i64; 2]>> {
    let number = |lit: &Lit| match lit {
        Lit::Int(Dim::Const(n)) => Some(*n),
        _ => None,
    };
    let pads: Vec<[i64; 2]> = match lit {
        Lit::Int(_) => vec![[number(lit)?; 2]; axes],
        Lit::Tuple(items) if items.len() == axes => items
            .iter()
            .map(|item| match item {
                Lit::Tuple(pair) if pair.len() == 2 => Some([number(&pair[0])?, number(&pair[1])?]),
                one => Some([number(one)?; 2]),
            })
            .collect::<Option<_>>()?,
        _ => return None,
    };
    pads.iter().flatten().any(|&n| n != 0).then_some(pads)
}
