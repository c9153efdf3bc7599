//! Legalize: composites that the target cannot spell are expanded; what is left over is reported, all at once.

use mithril_ir::DType;
use mithril_ir::build::Builder;
use mithril_ir::error::Result;
use mithril_ir::graph::{Graph, NodeId, TensorType, Values};
use mithril_ir::op::OpDef;

use crate::rewrite::{Rewrite, inline};

/// Says whether a target can write a node.
pub type CanSpell<'a> = dyn Fn(&Graph, NodeId) -> bool + 'a;

/// Expands what `can_spell` refuses, as far as it has an expansion. Nodes without one stay, and the writer lists
/// them all in its error.
pub fn legalize(graph: &Graph, float: DType, can_spell: &CanSpell<'_>) -> Result<Graph> {
    let mut rewrite = Rewrite::new(graph, float);
    for (n, node) in graph.nodes() {
        if node.op.expand.is_none() || can_spell(graph, n) {
            rewrite.copy(n)?;
            continue;
        }
        rewrite.at(n);
        let inputs = rewrite.inputs(node)?;
        let outputs =
            expand(&mut rewrite.builder, node.op, &inputs, can_spell).map_err(|e| e.at(graph.place(n)))?;
        rewrite.set_outputs(node, &outputs);
    }
    rewrite.finish()
}

fn expand(
    b: &mut Builder,
    op: &'static OpDef,
    inputs: &[mithril_ir::ValueId],
    can_spell: &CanSpell<'_>,
) -> Result<Values> {
    inline(b, op, inputs, &mut |b, op, inputs, types: Vec<TensorType>| {
        if op.expand.is_none() {
            return Ok(b.push_typed(op, inputs, types));
        }
        // The target is asked about the node in the graph; if it refuses, the node stays unused and is pruned.
        let outputs = b.push_typed(op, inputs.clone(), types);
        let n = outputs.first().and_then(|&v| b.graph.producer(v));
        match n {
            Some(n) if !can_spell(&b.graph, n) => expand(b, op, &inputs, can_spell),
            _ => Ok(outputs),
        }
    })
}
