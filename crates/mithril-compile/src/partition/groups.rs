//! Parameters that are used alike: of equal layers, each parameter is in one group with those of the other layers.

use std::hash::{Hash, Hasher};

use mithril_ir::graph::{Def, Graph, NodeId, Role, ValueId};
use rustc_hash::{FxHashMap, FxHasher};

use super::pass::bytes;

/// Inputs of a graph by number, of one type, that ops use alike; the largest group first.
///
/// Two parameters are alike if the ops that read them, and the ops that read the results of these, are the same.
pub fn groups(graph: &Graph) -> Vec<Vec<usize>> {
    let mut readers: FxHashMap<ValueId, Vec<(NodeId, usize)>> = FxHashMap::default();
    for (n, node) in graph.nodes() {
        for (position, &v) in node.inputs.iter().enumerate() {
            readers.entry(v).or_default().push((n, position));
        }
    }
    let mut order: Vec<(u64, Vec<usize>)> = Vec::new();
    for (i, &v) in graph.inputs.iter().enumerate() {
        if !matches!(graph.value(v).def, Def::Input(Role::Param)) {
            continue;
        }
        let color = color(graph, &readers, v, 2);
        match order.iter_mut().find(|(other, _)| *other == color) {
            Some((_, group)) => group.push(i),
            None => order.push((color, vec![i])),
        }
    }
    let mut all: Vec<Vec<usize>> = order.into_iter().map(|(_, group)| group).collect();
    let size = |group: &Vec<usize>| -> u64 {
        group.iter().filter_map(|&i| graph.ty(graph.inputs[i])).map(bytes).sum()
    };
    all.sort_by_key(|group| std::cmp::Reverse(size(group)));
    all
}

/// A number that is equal for values of one type that are read alike, so many ops deep.
fn color(
    graph: &Graph,
    readers: &FxHashMap<ValueId, Vec<(NodeId, usize)>>,
    value: ValueId,
    depth: usize,
) -> u64 {
    let mut hasher = FxHasher::default();
    graph.ty(value).hash(&mut hasher);
    if depth > 0 {
        let mut uses: Vec<u64> = Vec::new();
        for (n, position) in readers.get(&value).into_iter().flatten() {
            let node = graph.node(*n);
            let mut hasher = FxHasher::default();
            (node.op.name, position).hash(&mut hasher);
            for &v in &node.outputs {
                color(graph, readers, v, depth - 1).hash(&mut hasher);
            }
            uses.push(hasher.finish());
        }
        uses.sort_unstable();
        // How often a value is read does not matter: the first layers have no gradient of their input.
        uses.dedup();
        uses.hash(&mut hasher);
    }
    hasher.finish()
}
