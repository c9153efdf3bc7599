//! Equal layers, costed once: a shorter program in which one layer stands for many.
//!
//! Models repeat layers, and so do their gradients, in the opposite order. A *run* is a stretch of the node list that
//! repeats with a period: the same ops on the same types, reading what lies as many nodes back, or the same values.
//! The layers of a run and the matching ones of other runs (those that use the same parameters, backward for instance)
//! are removed but for the first two and the last one. The second one stands for those removed: its nodes have a
//! *weight*, with which time and memory are counted. As layers in the middle are divided alike, a candidate costs what
//! it costs on the whole program. Where the structure does not prove that layers are equal, nothing is removed.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::ops::Range;

use mithril_ir::graph::{Def, Graph, NodeId, ValueId, Values};
use rustc_hash::{FxHashMap, FxHashSet, FxHasher};

use crate::compiled::gradient_of;

/// A program in which some layers stand for others.
#[derive(Debug)]
pub struct Shortened {
    /// The program.
    pub graph: Graph,
    /// For each of its nodes, how many nodes it stands for.
    pub weights: Vec<u32>,
    /// For each of its inputs, the input of the whole program.
    pub inputs: Vec<usize>,
    /// For each of its inputs, how many inputs it stands for.
    pub copies: Vec<u32>,
}

/// Layers that stay: the first two and the last one; fewer than two more are not worth removing.
const KEPT: usize = 3;
/// How many nodes have to agree for a distance to be tried as a period.
const WINDOW: usize = 12;

/// Shortens a program as far as it repeats. `alike` are the groups of inputs that are divided alike.
pub fn shorten(graph: &Graph, alike: &[Vec<usize>]) -> Shortened {
    let mut group = vec![None; graph.inputs.len()];
    for (g, members) in alike.iter().enumerate() {
        for &i in members {
            group[i] = Some(g);
        }
    }
    let mut at = Shortened {
        graph: graph.clone(),
        weights: vec![1; graph.nodes().len()],
        inputs: (0..graph.inputs.len()).collect(),
        copies: vec![1; graph.inputs.len()],
    };
    // Each pass removes layers of one stack, such as those of an encoder.
    while let Some(shorter) = shorten_stack(&at, &group) {
        at = shorter;
    }
    at
}

/// A stretch of nodes that repeats.
#[derive(Clone, Debug)]
struct Run {
    nodes: Range<usize>,
    period: usize,
}

/// The layers of a run: node `n` belongs to the layer `direction · floor((n − origin) / period)`.
#[derive(Clone, Debug)]
struct Layers {
    run: Run,
    origin: i64,
    direction: i64,
}

impl Layers {
    fn of(&self, n: usize) -> Option<i64> {
        let number = (n as i64 - self.origin).div_euclid(self.run.period as i64);
        self.run.nodes.contains(&n).then_some(self.direction * number)
    }
    /// The node at the same place so many layers later.
    fn shifted(&self, n: usize, layers: i64) -> usize {
        (n as i64 + self.direction * layers * self.run.period as i64) as usize
    }
    /// First and last layer that lie in the run with all their nodes.
    fn whole(&self) -> (i64, i64) {
        let period = self.run.period as i64;
        let first = (self.run.nodes.start as i64 - self.origin + period - 1).div_euclid(period);
        let last = (self.run.nodes.end as i64 - self.origin).div_euclid(period) - 1;
        if self.direction > 0 { (first, last) } else { (-last, -first) }
    }
}

fn shorten_stack(at: &Shortened, group: &[Option<usize>]) -> Option<Shortened> {
    let runs = runs(&at.graph, &at.weights);
    for (i, run) in runs.iter().enumerate() {
        // Where a layer begins is not known: what other runs do with its parameters has to agree.
        for phase in 0..run.period {
            let own = Layers { run: run.clone(), origin: (run.nodes.start + phase) as i64, direction: 1 };
            let others = runs.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, run)| run);
            let Some(family) = family(&at.graph, own, others) else { continue };
            if let Some(shorter) = removed(at, &family, group) {
                return Some(shorter);
            }
        }
    }
    None
}

/// All runs that do not overlap, the longest first.
fn runs(graph: &Graph, weights: &[u32]) -> Vec<Run> {
    let keys: Vec<u64> = graph.nodes().map(|(n, _)| key(graph, n, weights)).collect();
    let mut last: FxHashMap<u64, usize> = FxHashMap::default();
    let mut distances: BTreeMap<usize, usize> = BTreeMap::new();
    for (n, window) in keys.windows(WINDOW).enumerate() {
        let mut hasher = FxHasher::default();
        window.hash(&mut hasher);
        if let Some(before) = last.insert(hasher.finish(), n) {
            *distances.entry(n - before).or_default() += 1;
        }
    }
    let mut periods: Vec<(usize, usize)> =
        distances.into_iter().map(|(period, count)| (count, period)).collect();
    periods.sort_by_key(|&(count, period)| (std::cmp::Reverse(count), period));
    let mut all: Vec<Run> = Vec::new();
    for &(_, period) in periods.iter().take(8) {
        let mut start = 0;
        for n in 0..=keys.len().saturating_sub(period) {
            let goes_on =
                n + period < keys.len() && keys[n] == keys[n + period] && linked(graph, n, period, &keys);
            if !goes_on {
                // The nodes from `start` to `n` have equal ones a period later.
                if n - start >= (KEPT + 1) * period {
                    all.push(Run { nodes: start..n + period, period });
                }
                start = n + 1;
            }
        }
    }
    all.sort_by_key(|run| (std::cmp::Reverse(run.nodes.len()), run.period, run.nodes.start));
    let mut chosen: Vec<Run> = Vec::new();
    for run in all {
        let overlaps = |other: &Run| run.nodes.start < other.nodes.end && other.nodes.start < run.nodes.end;
        if !chosen.iter().any(overlaps) {
            chosen.push(run);
        }
    }
    chosen
}

fn key(graph: &Graph, n: NodeId, weights: &[u32]) -> u64 {
    let node = graph.node(n);
    let mut hasher = FxHasher::default();
    (std::ptr::from_ref(node.op), node.inputs.len(), weights[n.index()]).hash(&mut hasher);
    for &v in &node.inputs {
        match &graph.value(v).def {
            Def::Const(_) => v.hash(&mut hasher),
            Def::Input(role) => (role, graph.ty(v)).hash(&mut hasher),
            Def::Node(_, output) => (output, graph.ty(v)).hash(&mut hasher),
        }
    }
    for &v in &node.outputs {
        graph.ty(v).hash(&mut hasher);
    }
    hasher.finish()
}

/// Whether a node and the one a period later read corresponding values.
fn linked(graph: &Graph, n: usize, period: usize, keys: &[u64]) -> bool {
    let (a, b) = (graph.node(NodeId::new(n)), graph.node(NodeId::new(n + period)));
    a.inputs.iter().zip(&b.inputs).all(|(&a, &b)| {
        let (from, to) = (&graph.value(a).def, &graph.value(b).def);
        match (from, to) {
            _ if a == b => true,
            (Def::Input(x), Def::Input(y)) => x == y,
            (Def::Node(x, i), Def::Node(y, j)) => {
                // A period later, or what an earlier layer computed forward.
                let (x, y) = (x.index(), y.index());
                i == j && (y == x + period || y < x && keys[x] == keys[y])
            }
            _ => false,
        }
    })
}

/// The runs that use the parameters of these layers, each layer those of one.
fn family<'a>(graph: &Graph, own: Layers, others: impl Iterator<Item = &'a Run>) -> Option<Vec<Layers>> {
    let mut layer_of: FxHashMap<ValueId, i64> = FxHashMap::default();
    let mut shared: FxHashSet<ValueId> = FxHashSet::default();
    for n in own.run.nodes.clone() {
        let layer = own.of(n)?;
        for &v in &graph.node(NodeId::new(n)).inputs {
            if matches!(graph.value(v).def, Def::Input(_)) && *layer_of.entry(v).or_insert(layer) != layer {
                shared.insert(v);
            }
        }
    }
    layer_of.retain(|v, _| !shared.contains(v));
    let names: FxHashMap<&str, ValueId> =
        layer_of.keys().filter_map(|&v| Some((graph.value(v).name.as_deref()?, v))).collect();
    let mut gradients: FxHashMap<NodeId, i64> = FxHashMap::default();
    for (name, &v) in &graph.outputs {
        if let Some(input) = gradient_of(name).and_then(|name| names.get(name))
            && let Some(n) = graph.producer(v)
        {
            gradients.insert(n, layer_of[input]);
        }
    }
    let mut family = vec![own];
    for run in others {
        let mut uses: Vec<(i64, i64)> = Vec::new();
        for n in run.nodes.clone() {
            let id = NodeId::new(n);
            let inputs = graph.node(id).inputs.iter().filter_map(|v| layer_of.get(v));
            uses.extend(inputs.chain(gradients.get(&id)).map(|&layer| (n as i64, layer)));
        }
        let (Some(first), Some(last)) = (uses.first(), uses.last()) else { continue };
        let direction = if last.1 < first.1 { -1 } else { 1 };
        let origins = || uses.iter().map(|(n, layer)| n - direction * layer * run.period as i64);
        let (least, most) = (origins().min()?, origins().max()?);
        if most - least >= run.period as i64 {
            return None;
        }
        family.push(Layers { run: run.clone(), origin: least, direction });
    }
    Some(family)
}

/// The program without the layers in the middle; `None` where these are not equal.
#[expect(clippy::too_many_lines, reason = "one pass over inputs, nodes and results, with shared maps")]
fn removed(at: &Shortened, family: &[Layers], group: &[Option<usize>]) -> Option<Shortened> {
    let graph = &at.graph;
    let bounds = family.iter().map(Layers::whole);
    let (first, last) = bounds.reduce(|a, b| (a.0.max(b.0), a.1.min(b.1)))?;
    if last - first < KEPT as i64 {
        return None;
    }
    // Layer `first + 1` stands for those from `first + 2` to `last − 1`.
    let stands = first + 1;
    let count = last - first - 2;
    let home = |n: usize| family.iter().find_map(|layers| Some((layers, layers.of(n)?)));
    let homes: Vec<Option<(&Layers, i64)>> = (0..graph.nodes().len()).map(home).collect();
    let is_removed = |n: usize| homes[n].is_some_and(|(_, layer)| stands < layer && layer < last);
    let of_input = |v: ValueId| matches!(graph.value(v).def, Def::Input(_));

    // Inputs of removed layers, with those that stand for them.
    let mut stand_in: FxHashMap<ValueId, ValueId> = FxHashMap::default();
    for n in (0..homes.len()).filter(|&n| is_removed(n)) {
        let (layers, layer) = homes[n]?;
        let (node, other) = (NodeId::new(n), NodeId::new(layers.shifted(n, stands - layer)));
        for (&v, &w) in graph.node(node).inputs.iter().zip(&graph.node(other).inputs) {
            if of_input(v) && v != w && *stand_in.entry(v).or_insert(w) != w {
                return None;
            }
        }
    }
    let position: FxHashMap<ValueId, usize> = graph.inputs.iter().enumerate().map(|(i, &v)| (v, i)).collect();
    let mut copies = at.copies.clone();
    for v in &graph.inputs {
        let Some(w) = stand_in.get(v) else { continue };
        let (i, j) = (position[v], position.get(w).copied()?);
        let is_alike = graph.value(*v).def == graph.value(*w).def && graph.ty(*v) == graph.ty(*w);
        if !is_alike || stand_in.contains_key(w) || group[at.inputs[i]] != group[at.inputs[j]] {
            return None;
        }
        copies[j] += at.copies[i];
    }

    let mut short = Graph::new();
    let mut map: FxHashMap<ValueId, ValueId> = FxHashMap::default();
    let mut inputs = Vec::new();
    for (i, &v) in graph.inputs.iter().enumerate() {
        let value = graph.value(v);
        if let (Def::Input(role), Some(ty)) = (&value.def, &value.ty)
            && !stand_in.contains_key(&v)
        {
            let name = value.name.clone().unwrap_or_else(|| "input".into());
            map.insert(v, short.add_input(name, *role, ty.clone()));
            inputs.push(i);
        }
    }
    let mut weights = Vec::new();
    for (id, node) in graph.nodes() {
        let n = id.index();
        if is_removed(n) {
            continue;
        }
        let mut args = Values::new();
        for &v in &node.inputs {
            let from = match &graph.value(v).def {
                Def::Const(lit) => {
                    args.push(short.add_literal(lit.clone()));
                    continue;
                }
                // What a removed layer gives to the next one comes from the layer before.
                Def::Node(producer, output) if is_removed(producer.index()) => {
                    homes[n]?;
                    let (layers, _) = homes[producer.index()]?;
                    let by = -layers.direction * count;
                    let other = NodeId::new(layers.shifted(producer.index(), by));
                    graph.node(other).outputs.get(*output as usize).copied()?
                }
                _ => v,
            };
            if graph.ty(from) != graph.ty(v) {
                return None;
            }
            args.push(*map.get(&from)?);
        }
        let origin = short.add_origin(graph.place(id).clone());
        let types: Option<Vec<_>> = node.outputs.iter().map(|&v| graph.ty(v).cloned()).collect();
        let new = short.add_node(node.op, args, types?, origin);
        map.extend(node.outputs.iter().copied().zip(short.node(new).outputs.iter().copied()));
        let repeats = if homes[n].is_some_and(|(_, layer)| layer == stands) { 1 + count as u32 } else { 1 };
        weights.push(at.weights[n] * repeats);
    }
    let results: FxHashSet<ValueId> =
        graph.outputs.values().copied().chain(graph.updates.iter().map(|(_, new)| *new)).collect();
    // A result of a removed layer is one of the layer that stands for it, too.
    let stands_for = |v: ValueId| {
        let Def::Node(producer, output) = graph.value(v).def else { return false };
        let Some((layers, layer)) = homes[producer.index()] else { return false };
        let other = NodeId::new(layers.shifted(producer.index(), stands - layer));
        graph.node(other).outputs.get(output as usize).is_some_and(|w| results.contains(w))
    };
    for (name, v) in &graph.outputs {
        match map.get(v) {
            Some(&new) => {
                short.outputs.insert(name.clone(), new);
            }
            None if stands_for(*v) => {}
            None => return None,
        }
    }
    for (state, v) in &graph.updates {
        match (map.get(state), map.get(v)) {
            (Some(&state), Some(&new)) => short.updates.push((state, new)),
            (None, None) if stands_for(*v) => {}
            _ => return None,
        }
    }
    // A gradient without its parameter would be divided in another way.
    let names: FxHashSet<&str> =
        short.inputs.iter().filter_map(|&v| short.value(v).name.as_deref()).collect();
    if short.outputs.keys().filter_map(|name| gradient_of(name)).any(|name| !names.contains(name)) {
        return None;
    }
    let copies = inputs.iter().map(|&i| copies[i]).collect();
    let inputs = inputs.iter().map(|&i| at.inputs[i]).collect();
    Some(Shortened { graph: short, weights, inputs, copies })
}
