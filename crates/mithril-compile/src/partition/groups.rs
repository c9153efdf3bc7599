//! Parameters that are used alike: of equal layers, each parameter is in one group with those of the other layers.

use std::hash::{Hash, Hasher};

use mithril_ir::graph::{Def, Graph, NodeId, Role, ValueId};
use rustc_hash::{FxHashMap, FxHasher};

use super::pass::bytes;

/// Inputs of a graph by number, of one type, that ops use alike; the largest group first.
///
/// Two parameters are alike if the ops that read them first are the same, and those that read the results of these first,
/// and so on for some steps: how a model uses them, whatever its gradient does.
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
        let color = color(graph, &readers, v, DEPTH);
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

/// How many ops deep uses are compared.
const DEPTH: usize = 4;

/// A number that is equal for values of one type that are read alike, so many ops deep.
fn color(
    graph: &Graph,
    readers: &FxHashMap<ValueId, Vec<(NodeId, usize)>>,
    value: ValueId,
    depth: usize,
) -> u64 {
    let mut hasher = FxHasher::default();
    graph.ty(value).hash(&mut hasher);
    let first = readers.get(&value).and_then(|all| all.first());
    if let Some((n, position)) = first.filter(|_| depth > 0) {
        let node = graph.node(*n);
        (node.op.name, position).hash(&mut hasher);
        for &v in &node.outputs {
            color(graph, readers, v, depth - 1).hash(&mut hasher);
        }
    }
    hasher.finish()
}
