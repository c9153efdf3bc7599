//! Moves sums over the devices to where they send the least.
//!
//! What is linear may be computed of partial values and summed up afterwards, or of sums. The values that are partial
//! form a network, from the contractions over divided axes to the ops that need a whole value: the cheapest set of
//! values that lies on all ways between them is reduced. So the partial results of several contractions are added up
//! before they are reduced, and what is needed in several places is reduced once.

use mithril_ir::build::Builder;
use mithril_ir::error::{Error, Result};
use mithril_ir::graph::{Def, Graph, NodeId, TensorType, ValueId, Values};
use mithril_ir::ops::collective;
use mithril_ir::{DType, Lit};
use rustc_hash::FxHashMap;

use super::flow::Network;
use super::pass::{Divided, bytes};
use super::rule::{Placement, Reduction};

const PARTIAL: Option<Placement> = Some(Placement::Partial(Reduction::Sum));

/// What a collective costs in bytes sent, apart from its own: messages take a time to arrive.
const COST_OF_MESSAGE: u64 = 4096;

/// What a node does with partial values.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// It has none.
    Other,
    /// It makes one.
    Source,
    /// It makes one of others, to which it is linear.
    Linear,
    /// It is their sum over the devices, or a shard of it.
    Sum,
}

/// Moves the sums of a graph that was divided along an axis of the mesh.
pub(super) fn move_reductions(old: Divided, axis: &str, devices: usize) -> Result<Divided> {
    let graph = &old.graph;
    let is_partial = |v: ValueId| old.place(v) == PARTIAL;
    let kinds: Vec<Kind> = graph
        .nodes()
        .map(|(_, node)| {
            let reads = node.inputs.iter().any(|&v| is_partial(v));
            match (reads, node.outputs.iter().any(|&v| is_partial(v))) {
                (false, true) => Kind::Source,
                (true, true) => Kind::Linear,
                (true, false) if is_sum(graph, node, axis) => Kind::Sum,
                _ => Kind::Other,
            }
        })
        .collect();
    if !kinds.contains(&Kind::Linear) {
        return Ok(old);
    }
    let Some(cut) = cut(&old, &kinds, devices as u64) else { return Ok(old) };
    let mover = Mover { old: &old, kinds, cut, axis, devices };
    mover.moved()
}

/// Whether a node sums its operand up over the axis.
fn is_sum(graph: &Graph, node: &mithril_ir::graph::Node, axis: &str) -> bool {
    let is_reduce = node.op == &collective::ALL_REDUCE;
    let is_scatter = node.op == &collective::REDUCE_SCATTER;
    (is_reduce || is_scatter) && collective::mesh_axis_of(graph, node).is_some_and(|(name, _)| name == axis)
}

/// The values that are reduced; `None` if they are the same as before.
fn cut(old: &Divided, kinds: &[Kind], devices: u64) -> Option<Vec<bool>> {
    let graph = &old.graph;
    let is_partial = |v: ValueId| old.place(v) == PARTIAL;
    let mut numbers: FxHashMap<ValueId, usize> = FxHashMap::default();
    let mut values = Vec::new();
    for (_, node) in graph.nodes() {
        for &v in node.outputs.iter().filter(|&&v| is_partial(v)) {
            numbers.insert(v, values.len());
            values.push(v);
        }
    }
    // Sums that nothing else reads are exchanged together.
    let mut is_read = vec![false; graph.values().len()];
    for (_, node) in graph.nodes() {
        for v in &node.inputs {
            is_read[v.index()] = true;
        }
    }
    let mut rounds = vec![2; values.len()];
    let mut messages = vec![COST_OF_MESSAGE; values.len()];
    let mut summed = vec![false; values.len()];
    for ((_, node), kind) in graph.nodes().zip(kinds) {
        if *kind != Kind::Sum {
            continue;
        }
        let Some(&at) = numbers.get(&node.inputs[0]) else { continue };
        let is_scatter = node.op == &collective::REDUCE_SCATTER;
        rounds[at] = if is_scatter && !summed[at] { 1 } else { 2 };
        if !is_read[node.outputs[0].index()] && !summed[at] {
            messages[at] = 0;
        }
        summed[at] = true;
    }
    let cost = |(at, v): (usize, &ValueId)| {
        // Nodes that stand for several count once: the cut of equal layers is to be the same.
        let size = graph.ty(*v).map_or(0, bytes);
        rounds[at] * size * (devices - 1) / devices + messages[at]
    };
    let mut network = Network::new(values.iter().enumerate().map(cost));
    for ((_, node), kind) in graph.nodes().zip(kinds) {
        let made = node.outputs.iter().filter_map(|v| numbers.get(v));
        let read = || node.inputs.iter().filter_map(|v| numbers.get(v));
        match kind {
            Kind::Other => read().for_each(|&from| network.sink(from)),
            Kind::Source => made.for_each(|&to| network.source(to)),
            Kind::Linear => made.for_each(|&to| read().for_each(|&from| network.link(from, to))),
            Kind::Sum => read().for_each(|&from| network.sink(from)),
        }
    }
    let on_cut = network.cut();
    if on_cut == summed {
        return None;
    }
    let mut cut = vec![false; graph.values().len()];
    for (v, is_cut) in values.iter().zip(on_cut) {
        cut[v.index()] = is_cut;
    }
    Some(cut)
}

/// Writes the graph with other sums.
struct Mover<'a> {
    old: &'a Divided,
    kinds: Vec<Kind>,
    /// By value whether it is reduced.
    cut: Vec<bool>,
    axis: &'a str,
    devices: usize,
}

impl Mover<'_> {
    /// By value whether its partial form is needed, and whether its sum is.
    fn needed(&self) -> (Vec<bool>, Vec<bool>) {
        let graph = &self.old.graph;
        let (mut parts, mut sums) = (vec![false; graph.values().len()], vec![false; graph.values().len()]);
        for (n, node) in graph.nodes().collect::<Vec<_>>().into_iter().rev() {
            match self.kinds[n.index()] {
                Kind::Other | Kind::Source => {}
                Kind::Sum => sums[node.inputs[0].index()] = true,
                Kind::Linear => {
                    for &v in node.inputs.iter().filter(|&&v| self.old.place(v) == PARTIAL) {
                        for out in &node.outputs {
                            let out = out.index();
                            parts[v.index()] |= parts[out] || sums[out] && self.cut[out];
                            sums[v.index()] |= sums[out] && !self.cut[out];
                        }
                    }
                }
            }
        }
        (parts, sums)
    }

    #[expect(clippy::too_many_lines, reason = "one pass over the nodes, with shared maps")]
    fn moved(&self) -> Result<Divided> {
        let graph = &self.old.graph;
        let (parts, sums) = self.needed();
        let mut builder = Builder::new(DType::F32);
        let (mut places, mut weights) = (Vec::new(), Vec::new());
        // Partial values as they are, everything else; and their sums.
        let mut part: FxHashMap<ValueId, ValueId> = FxHashMap::default();
        let mut sum: FxHashMap<ValueId, ValueId> = FxHashMap::default();
        let put = |places: &mut Vec<Option<Placement>>, v: ValueId, place: Option<Placement>| {
            if places.len() <= v.index() {
                places.resize(v.index() + 1, None);
            }
            places[v.index()] = place;
        };
        for &v in &graph.inputs {
            let value = graph.value(v);
            let (Def::Input(role), Some(ty)) = (&value.def, &value.ty) else { continue };
            let name = value.name.clone().unwrap_or_else(|| "input".into());
            let new = builder.graph.add_input(name, *role, ty.clone());
            put(&mut places, new, self.old.place(v));
            part.insert(v, new);
        }
        let missing = || Error::internal("a sum that was moved is not there");
        for (n, node) in graph.nodes() {
            builder.set_origin(graph.place(n).clone());
            let kind = self.kinds[n.index()];
            if kind == Kind::Sum {
                let input = node.inputs[0];
                let whole = *sum.get(&input).ok_or_else(missing)?;
                let is_scatter = node.op == &collective::REDUCE_SCATTER;
                let new = if is_scatter {
                    let mut args =
                        node.inputs[1..].iter().map(|&v| relit(graph, &mut builder, v)).collect::<Values>();
                    args.insert(0, whole);
                    builder.push(&collective::SHARD, &args)?[0]
                } else {
                    whole
                };
                if is_scatter {
                    put(&mut places, new, self.old.place(node.outputs[0]));
                }
                part.insert(node.outputs[0], new);
                weights.resize(builder.graph.nodes().len(), self.old.weight(n));
                continue;
            }
            let needs = |all: &[bool], cut: bool| {
                node.outputs.iter().any(|v| all[v.index()] && (!cut || self.cut[v.index()]))
            };
            let is_linear = kind == Kind::Linear;
            if !is_linear || needs(&parts, false) || needs(&sums, true) {
                let new = self.copy(&mut builder, n, &|v| part.get(&v).copied())?;
                for (&v, new) in node.outputs.iter().zip(new) {
                    put(&mut places, new, self.old.place(v));
                    part.insert(v, new);
                    let is_summed = sums[v.index()] && (self.cut[v.index()] || !is_linear);
                    if is_summed && self.old.place(v) == PARTIAL {
                        let whole = self.reduce(&mut builder, new)?;
                        put(&mut places, whole, Some(Placement::Replicate));
                        sum.insert(v, whole);
                    }
                }
            }
            if is_linear && node.outputs.iter().any(|v| sums[v.index()] && !self.cut[v.index()]) {
                let find = |v: ValueId| if self.old.place(v) == PARTIAL { sum.get(&v) } else { part.get(&v) };
                let new = self.copy(&mut builder, n, &|v| find(v).copied())?;
                for (&v, new) in node.outputs.iter().zip(new) {
                    put(&mut places, new, Some(Placement::Replicate));
                    sum.insert(v, new);
                }
            }
            weights.resize(builder.graph.nodes().len(), self.old.weight(n));
        }
        for (name, v) in &graph.outputs {
            let new = find_result(graph, &mut builder, &part, *v).ok_or_else(missing)?;
            builder.graph.outputs.insert(name.clone(), new);
        }
        for (state, v) in &graph.updates {
            let new = find_result(graph, &mut builder, &part, *v).ok_or_else(missing)?;
            let state = *part.get(state).ok_or_else(missing)?;
            builder.graph.updates.push((state, new));
        }
        if self.old.weights.is_empty() {
            weights.clear();
        }
        Ok(Divided { graph: builder.graph, places, weights })
    }

    fn copy(
        &self,
        builder: &mut Builder,
        n: NodeId,
        find: &dyn Fn(ValueId) -> Option<ValueId>,
    ) -> Result<Values> {
        let graph = &self.old.graph;
        let node = graph.node(n);
        let mut inputs = Values::new();
        for &v in &node.inputs {
            inputs.push(match &graph.value(v).def {
                Def::Const(_) => relit(graph, builder, v),
                _ => find(v).ok_or_else(|| Error::internal("an operand of a moved sum is not there"))?,
            });
        }
        let types: Vec<TensorType> = node.outputs.iter().filter_map(|&v| graph.ty(v).cloned()).collect();
        let new = builder.push_typed(node.op, inputs, types);
        for (&v, &new) in node.outputs.iter().zip(&new) {
            if let Some(name) = &graph.value(v).name {
                builder.graph.name_value(new, name.clone());
            }
        }
        Ok(new)
    }

    fn reduce(&self, builder: &mut Builder, v: ValueId) -> Result<ValueId> {
        let args = [
            v,
            builder.lit(Lit::text(self.axis)),
            builder.lit(Lit::int(self.devices as i64)),
            builder.lit(Lit::text(Reduction::Sum.text())),
        ];
        Ok(builder.push(&collective::ALL_REDUCE, &args)?[0])
    }
}

fn relit(graph: &Graph, builder: &mut Builder, v: ValueId) -> ValueId {
    match &graph.value(v).def {
        Def::Const(lit) => builder.graph.add_literal(lit.clone()),
        _ => v,
    }
}

fn find_result(
    graph: &Graph,
    builder: &mut Builder,
    known: &FxHashMap<ValueId, ValueId>,
    v: ValueId,
) -> Option<ValueId> {
    match &graph.value(v).def {
        Def::Const(lit) => Some(builder.graph.add_literal(lit.clone())),
        _ => known.get(&v).copied(),
    }
}
