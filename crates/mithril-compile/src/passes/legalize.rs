//! Legalize: composites that the target cannot spell are expanded; what is left over is reported, all at once.
//!
//! A method of a user's backend may lack a word for an explicit padding (`padding="SAME"` alone). Its op is then given a
//! padded input, so that the method runs and not the expansion.

use mithril_ir::build::Builder;
use mithril_ir::error::Result;
use mithril_ir::graph::{Graph, NodeId, TensorType, ValueId, Values};
use mithril_ir::op::OpDef;
use mithril_ir::{DType, Dim, Lit, ops};

use crate::pipeline::Target;
use crate::rewrite::{Rewrite, inline};

/// Says something of a node of a graph.
pub type OfNode<'a> = dyn Fn(&Graph, NodeId) -> bool + 'a;

/// What a target can do.
#[derive(Clone, Copy)]
struct Able<'a> {
    /// Whether a user's backend has a method for an op.
    has_method: &'a dyn Fn(&OpDef) -> bool,
    /// Whether it writes a node.
    can_spell: &'a OfNode<'a>,
    /// Whether a method of a user's backend runs a node.
    is_method: &'a OfNode<'a>,
}

/// Brings a graph to what a target can write.
pub fn legalize_for(target: &dyn Target, graph: &Graph, float: DType) -> Result<Graph> {
    let able = Able {
        has_method: &|op| target.has_method(op),
        can_spell: &|g, n| target.can_spell(g, n),
        is_method: &|g, n| target.is_method(g, n),
    };
    legalized(graph, float, able)
}

/// Expands what `can_spell` refuses, as far as it has an expansion. Nodes without one stay, and the writer lists
/// them all in its error.
pub fn legalize(graph: &Graph, float: DType, can_spell: &OfNode<'_>) -> Result<Graph> {
    legalized(graph, float, Able { has_method: &|_| false, can_spell, is_method: &|_, _| false })
}

fn legalized(graph: &Graph, float: DType, able: Able<'_>) -> Result<Graph> {
    let mut rewrite = Rewrite::new(graph, float);
    for (n, node) in graph.nodes() {
        let is_final = node.op.expand.is_none() || (able.can_spell)(graph, n);
        if is_final && ((able.is_method)(graph, n) || !(able.has_method)(node.op)) {
            rewrite.copy(n)?;
            continue;
        }
        rewrite.at(n);
        let inputs = rewrite.inputs(node)?;
        let outputs = match with_padded_input(&mut rewrite.builder, node.op, &inputs, able)? {
            Some(outputs) => outputs,
            None if is_final => {
                rewrite.copy(n)?;
                continue;
            }
            None => expand(&mut rewrite.builder, node.op, &inputs, able).map_err(|e| e.at(graph.place(n)))?,
        };
        rewrite.set_outputs(node, &outputs);
    }
    rewrite.finish()
}

fn expand(b: &mut Builder, op: &'static OpDef, inputs: &[ValueId], able: Able<'_>) -> Result<Values> {
    inline(b, op, inputs, &mut |b, op, inputs, types: Vec<TensorType>| {
        if op.expand.is_none() {
            return Ok(b.push_typed(op, inputs, types));
        }
        // The target is asked about the node in the graph; if it refuses, the node stays unused and is pruned.
        let outputs = b.push_typed(op, inputs.clone(), types);
        let Some(n) = outputs.first().and_then(|&v| b.graph.producer(v)) else { return Ok(outputs) };
        if (able.is_method)(&b.graph, n) {
            return Ok(outputs);
        }
        if let Some(padded) = with_padded_input(b, op, &inputs, able)? {
            return Ok(padded);
        }
        if (able.can_spell)(&b.graph, n) { Ok(outputs) } else { expand(b, op, &inputs, able) }
    })
}

/// The same use of an op without padding, of an input that is padded before, if a method then runs it.
fn with_padded_input(
    b: &mut Builder,
    op: &'static OpDef,
    inputs: &[ValueId],
    able: Able<'_>,
) -> Result<Option<Values>> {
    if !(able.has_method)(op) {
        return Ok(None);
    }
    let (Some(value), Some(at), Some(pad)) = (op.padded_with, op.port("padding"), ops::find("pad")) else {
        return Ok(None);
    };
    // What a pooling does with windows that begin in the padding, it does no more when that is input.
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
        outputs.first().and_then(|&v| b.graph.producer(v)).is_some_and(|n| (able.is_method)(&b.graph, n));
    // If not, both stay unused and are pruned.
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
