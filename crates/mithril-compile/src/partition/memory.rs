//! What a device of a mesh holds.

use mithril_ir::graph::{Def, Graph, NodeId, Role, ValueId};
use mithril_ir::interp::use_counts;
use rustc_hash::FxHashSet;

use super::pass::bytes;
use crate::compiled::gradient_of;

/// Bytes on one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Parameters.
    pub parameters: u64,
    /// States.
    pub states: u64,
    /// Data and cotangents of a call.
    pub data: u64,
    /// Gradients.
    pub gradients: u64,
    /// The most that values between inputs and results take at a time, if each op stores its results.
    pub activations: u64,
}

/// What the device that runs this graph holds. Sizes are numbers.
pub fn device_memory(graph: &Graph) -> DeviceMemory {
    weighted_memory(graph, &[], &[])
}

/// The same where nodes and inputs stand for several; for one if there are no weights.
pub(super) fn weighted_memory(graph: &Graph, weights: &[u32], copies: &[u32]) -> DeviceMemory {
    let mut memory = DeviceMemory::default();
    let size = |v: ValueId| graph.ty(v).map_or(0, bytes);
    for (i, &v) in graph.inputs.iter().enumerate() {
        let size = size(v) * u64::from(copies.get(i).copied().unwrap_or(1));
        match graph.value(v).def {
            Def::Input(Role::Param) => memory.parameters += size,
            Def::Input(Role::State) => memory.states += size,
            _ => memory.data += size,
        }
    }
    let weight = |n: NodeId| weights.get(n.index()).copied().unwrap_or(1);
    let mut results = FxHashSet::default();
    for (name, &v) in &graph.outputs {
        if results.insert(v) && gradient_of(name).is_some() {
            memory.gradients += size(v) * u64::from(graph.producer(v).map_or(1, weight));
        }
    }
    results.extend(graph.updates.iter().map(|(_, new)| *new));
    let mut uses = use_counts(graph);
    let is_between = |v: ValueId| matches!(graph.value(v).def, Def::Node(..)) && !results.contains(&v);
    // Bytes that are held, and the most so far. A stretch of nodes that stands for several of its kind, one after the
    // other, begins with what those before it have left.
    let (mut held, mut most) = (0i64, 0i64);
    let mut stretch = (1, 0i64, 0i64);
    let repeat = |(times, before, peak): (u32, i64, i64), held: &mut i64, most: &mut i64| {
        let left = (*held - before) * i64::from(times.saturating_sub(1));
        *most = (*most).max(peak).max(peak + left);
        *held += left;
    };
    for (n, node) in graph.nodes() {
        if weight(n) != stretch.0 {
            repeat(stretch, &mut held, &mut most);
            stretch = (weight(n), held, held);
        }
        let made = |v: &&ValueId| is_between(**v);
        held += node.outputs.iter().filter(made).map(|&v| size(v) as i64).sum::<i64>();
        stretch.2 = stretch.2.max(held);
        for &v in &node.inputs {
            let left = &mut uses[v.index()];
            *left -= 1;
            if *left == 0 && is_between(v) {
                held -= size(v) as i64;
            }
        }
        let unread = |v: &&ValueId| is_between(**v) && uses[v.index()] == 0;
        held -= node.outputs.iter().filter(unread).map(|&v| size(v) as i64).sum::<i64>();
    }
    repeat(stretch, &mut held, &mut most);
    memory.activations = u64::try_from(most).unwrap_or(0);
    memory
}
