//! What stages know of micro-batches: which values are the same for all of them, and sums over them, which devices take
//! before they send.

use mithril_ir::error::Result;
use mithril_ir::graph::{Def, Graph, Node, NodeId, ValueId};
use mithril_ir::ops::{collective, elementwise};
use mithril_ir::{DType, Lit};
use rustc_hash::FxHashSet;

use super::rule::Placement;
use super::stages::devices_of;
use crate::passes::dce::dce;
use crate::rewrite::Rewrite;

/// Whether a node is a collective along an axis of the mesh.
pub(super) fn is_along(graph: &Graph, node: &Node, axis: &str) -> bool {
    collective::is_collective(node.op)
        && collective::mesh_axis_of(graph, node).is_none_or(|(name, _)| name == axis)
}

/// Whether a collective over the micro-batches has one result for all of them.
pub(super) fn has_one_result(node: &Node) -> bool {
    node.op == &collective::ALL_REDUCE || node.op == &collective::ALL_GATHER
}

/// By value whether it is the same for all micro-batches, which is then computed once: what follows from parameters,
/// states and sums over the micro-batches. What reads nothing at all belongs to those that read it.
pub(super) fn shared(graph: &Graph, places: &[Vec<Placement>], time: &str) -> Vec<bool> {
    let mut shared = vec![false; graph.values().len()];
    let mut is_fixed = vec![false; graph.values().len()];
    for (&v, places) in graph.inputs.iter().zip(places) {
        shared[v.index()] = places.first().is_none_or(|place| *place == Placement::Replicate);
    }
    for (_, node) in graph.nodes() {
        let mut tensors = node.inputs.iter().filter(|&&v| !matches!(graph.value(v).def, Def::Const(_)));
        let (is_shared, is_constant) = if is_along(graph, node, time) {
            (has_one_result(node), false)
        } else {
            let is_constant = tensors.clone().all(|v| is_fixed[v.index()]);
            (!is_constant && tensors.all(|v| shared[v.index()] || is_fixed[v.index()]), is_constant)
        };
        for v in &node.outputs {
            shared[v.index()] = is_shared;
            is_fixed[v.index()] = is_constant;
        }
    }
    for (_, node) in graph.nodes().rev() {
        let is_shared = node.outputs.iter().any(|v| shared[v.index()]);
        for v in node.inputs.iter().filter(|v| is_fixed[v.index()]) {
            shared[v.index()] |= is_shared;
        }
        // All results of a node are computed at once.
        if is_shared {
            node.outputs.iter().for_each(|v| shared[v.index()] = true);
        }
    }
    shared
}

/// Sums the addends of a sum over the micro-batches where they are computed, if that is on several devices: each is sent
/// once, and not for each micro-batch. So it is with the gradient of a parameter that several layers have.
pub(super) fn sum_before_sending(
    graph: &Graph,
    time: &str,
    layers: &[(String, usize)],
) -> Result<Option<Graph>> {
    let devices = devices_of(graph, time, layers);
    let mut uses = vec![0_usize; graph.values().len()];
    let read = graph.nodes().flat_map(|(_, node)| node.inputs.iter());
    for v in read.chain(graph.outputs.values()).chain(graph.updates.iter().map(|(_, new)| new)) {
        uses[v.index()] += 1;
    }
    let sums = Sums { graph, devices, uses };
    let is_apart =
        |node: &Node| is_along(graph, node, time) && is_sum(graph, node) && sums.is_apart(node.inputs[0]);
    let apart: FxHashSet<NodeId> = graph.nodes().filter(|(_, node)| is_apart(node)).map(|(n, _)| n).collect();
    if apart.is_empty() {
        return Ok(None);
    }
    let mut rewrite = Rewrite::new(graph, DType::F32);
    for (n, node) in graph.nodes() {
        if apart.contains(&n) {
            let sum = sums.write(&mut rewrite, n, node.inputs[0])?;
            rewrite.set(node.outputs[0], sum);
        } else {
            rewrite.copy(n)?;
        }
    }
    dce(&rewrite.finish()?).map(Some)
}

fn is_sum(graph: &Graph, node: &Node) -> bool {
    node.op == &collective::ALL_REDUCE
        && matches!(graph.lit(node.inputs[collective::AXIS]), Some(Lit::Str(kind)) if &**kind == "SUM")
}

struct Sums<'g> {
    graph: &'g Graph,
    devices: Vec<usize>,
    /// How often each value is read.
    uses: Vec<usize>,
}

impl Sums<'_> {
    /// The addition that a value comes from, if nothing else reads it.
    fn addition(&self, v: ValueId) -> Option<(NodeId, &Node)> {
        let n = self.graph.producer(v).filter(|_| self.uses[v.index()] == 1)?;
        let node = self.graph.node(n);
        let is_of_type =
            |input: &ValueId| self.graph.lit(*input).is_none() && self.graph.ty(*input) == self.graph.ty(v);
        let is_addition = node.op == &elementwise::ADD && node.inputs.iter().all(is_of_type);
        is_addition.then_some((n, node))
    }

    /// Whether the addends of a value are computed on several devices.
    fn is_apart(&self, v: ValueId) -> bool {
        let Some((n, node)) = self.addition(v) else { return false };
        let on_other = |v: &ValueId| {
            self.graph.producer(*v).is_some_and(|m| self.devices[m.index()] != self.devices[n.index()])
        };
        node.inputs.iter().any(|v| on_other(v) || self.is_apart(*v))
    }

    /// Writes the sum of a value over the micro-batches; the new value.
    fn write(&self, rewrite: &mut Rewrite<'_>, sum: NodeId, v: ValueId) -> Result<ValueId> {
        let graph = self.graph;
        match self.addition(v) {
            Some((n, node)) if self.is_apart(v) => {
                let mut sums = mithril_ir::graph::Values::new();
                for input in &node.inputs {
                    sums.push(self.write(rewrite, sum, *input)?);
                }
                rewrite.at(n);
                Ok(rewrite.builder.push_typed(node.op, sums, graph.ty(v).cloned())[0])
            }
            _ => {
                rewrite.at(graph.producer(v).unwrap_or(sum));
                let mut inputs = rewrite.inputs(graph.node(sum))?;
                inputs[0] = rewrite.get(v)?;
                Ok(rewrite.builder.push_typed(&collective::ALL_REDUCE, inputs, graph.ty(v).cloned())[0])
            }
        }
    }
}
