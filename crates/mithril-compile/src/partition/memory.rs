//! What a device of a mesh holds.

use mithril_ir::graph::{Def, Graph, Role, ValueId};
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
    let mut memory = DeviceMemory::default();
    let size = |v: ValueId| graph.ty(v).map_or(0, bytes);
    for &v in &graph.inputs {
        match graph.value(v).def {
            Def::Input(Role::Param) => memory.parameters += size(v),
            Def::Input(Role::State) => memory.states += size(v),
            _ => memory.data += size(v),
        }
    }
    let mut results = FxHashSet::default();
    for (name, &v) in &graph.outputs {
        if results.insert(v) && gradient_of(name).is_some() {
            memory.gradients += size(v);
        }
    }
    results.extend(graph.updates.iter().map(|(_, new)| *new));
    let mut uses = use_counts(graph);
    let is_between = |v: ValueId| matches!(graph.value(v).def, Def::Node(..)) && !results.contains(&v);
    let mut held = 0;
    for (_, node) in graph.nodes() {
        held += node.outputs.iter().filter(|&&v| is_between(v)).map(|&v| size(v)).sum::<u64>();
        memory.activations = memory.activations.max(held);
        for &v in &node.inputs {
            let left = &mut uses[v.index()];
            *left -= 1;
            if *left == 0 && is_between(v) {
                held -= size(v);
            }
        }
        held -= node
            .outputs
            .iter()
            .filter(|&&v| is_between(v) && uses[v.index()] == 0)
            .map(|&v| size(v))
            .sum::<u64>();
    }
    memory
}
