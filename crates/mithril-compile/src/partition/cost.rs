//! What a program costs a device: arithmetic, bytes, and estimated time on a description of hardware.
//!
//! The time of an op is the longer one of its arithmetic at the device's peak and of its bytes at the bandwidth of the
//! memory (the roofline model). Views cost nothing. A collective over `n` devices takes the time of the ring algorithm:
//! `rounds · (n − 1) · latency + bytes / bandwidth`, where an all-reduce has two rounds, and `bytes` is what a device
//! sends. Results that nothing reads, such as gradients, are exchanged together, and wait once for each axis of the mesh.

use mithril_ir::DType;
use mithril_ir::graph::{Graph, ValueId};
use mithril_ir::op::OpDef;
use mithril_ir::ops::collective;
use rustc_hash::FxHashSet;

use super::memo::Memo;
use super::mesh::Mesh;
use super::pass::{bytes, communications};
use super::rule::{Arg, Use};
use super::work;

/// A device and its links.
#[derive(Clone, Debug, Default)]
pub struct Hardware {
    /// Operations per second on floats of 32 bits and more.
    pub flops: f64,
    /// The same on floats of 16 bits.
    pub half_flops: f64,
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes per second between the memory and the processor.
    pub bandwidth: f64,
    /// Bytes per second that a device sends along each axis of the mesh.
    pub links: Vec<f64>,
    /// Seconds until the first byte of a message arrives.
    pub latency: f64,
}

/// What an op costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Operations.
    pub flops: u64,
    /// Bytes read and written.
    pub moved: u64,
    /// Whether it computes in 16 bits.
    pub is_half: bool,
}

impl Work {
    /// What a use costs.
    pub fn of(call: &Use) -> Self {
        if collective::is_collective(call.op) || work::is_view(call) {
            return Self::default();
        }
        let flops = work::arithmetic(call);
        let elements = work::work(call).max(1);
        let mut moved: u64 = call.outputs.iter().map(bytes).sum();
        for arg in &call.args {
            if let Arg::Tensor(ty) = arg {
                // A lookup reads some rows of its table.
                moved += bytes(ty).min(elements.saturating_mul(ty.dtype.size() as u64));
            }
        }
        let halves =
            |arg: &Arg| matches!(arg, Arg::Tensor(ty) if matches!(ty.dtype, DType::F16 | DType::BF16));
        Self { flops, moved, is_half: call.args.iter().any(halves) }
    }
    /// Seconds of arithmetic, and of reading and writing.
    pub fn seconds(&self, hardware: &Hardware) -> (f64, f64) {
        let peak = if self.is_half { hardware.half_flops } else { hardware.flops };
        (self.flops as f64 / peak, self.moved as f64 / hardware.bandwidth)
    }
}

/// What a program costs a device.
#[derive(Clone, Debug, Default)]
pub struct Estimate {
    /// Operations.
    pub flops: u64,
    /// Bytes that ops read and write.
    pub moved: u64,
    /// Seconds of ops that their arithmetic limits.
    pub arithmetic: f64,
    /// Seconds of ops that the memory limits.
    pub memory_bound: f64,
    /// Seconds of each collective, in the order of the program.
    pub collectives: Vec<f64>,
    /// Seconds of computation before each collective, and after the last one.
    pub computation: Vec<f64>,
}

impl Estimate {
    /// Seconds of a step without overlap.
    pub fn seconds(&self) -> f64 {
        self.arithmetic + self.memory_bound + self.collectives.iter().sum::<f64>()
    }
}

/// How many messages follow one another in a collective.
fn steps(op: &OpDef, devices: usize) -> usize {
    match () {
        () if op == &collective::ALL_REDUCE => 2 * (devices - 1),
        () if op == &collective::COLLECTIVE_PERMUTE => 1,
        () => devices - 1,
    }
}

/// What the program of a device costs.
pub fn estimate(graph: &Graph, mesh: &Mesh, hardware: &Hardware, memo: &Memo) -> Estimate {
    weighted_estimate(graph, &[], mesh, hardware, memo)
}

/// The same where each node stands for so many; for one if there are no weights.
pub(super) fn weighted_estimate(
    graph: &Graph,
    weights: &[u32],
    mesh: &Mesh,
    hardware: &Hardware,
    memo: &Memo,
) -> Estimate {
    let mut estimate = Estimate::default();
    let communications = communications(graph);
    let mut exchanges = communications.iter();
    let mut since = 0.0;
    let read: FxHashSet<ValueId> = graph.nodes().flat_map(|(_, node)| node.inputs.iter().copied()).collect();
    let mut bundled: FxHashSet<&str> = FxHashSet::default();
    for (n, node) in graph.nodes() {
        let weight = weights.get(n.index()).copied().unwrap_or(1);
        let times = f64::from(weight);
        if collective::communicates(node.op) {
            let Some(exchange) = exchanges.next() else { continue };
            let steps = steps(node.op, exchange.devices) as f64;
            let axis = mesh.axis(&exchange.mesh_axis).ok();
            let link = axis.and_then(|axis| hardware.links.get(axis)).copied().unwrap_or(f64::INFINITY);
            // Results that nothing else reads, as gradients, are exchanged together.
            let is_read = read.contains(&node.outputs[0]);
            let is_bundled = !is_read && !bundled.insert(&exchange.mesh_axis);
            let messages = if is_bundled { 0.0 } else { steps };
            let waits = messages * hardware.latency * if is_read { times } else { 1.0 };
            estimate.collectives.push(waits + times * exchange.bytes as f64 / link);
            estimate.computation.push(since);
            since = 0.0;
            continue;
        }
        let Some(call) = Use::of(graph, node) else { continue };
        let work = memo.work(&call);
        let (arithmetic, moving) = work.seconds(hardware);
        let (arithmetic, moving) = (times * arithmetic, times * moving);
        estimate.flops = estimate.flops.saturating_add(work.flops.saturating_mul(u64::from(weight)));
        estimate.moved = estimate.moved.saturating_add(work.moved.saturating_mul(u64::from(weight)));
        if arithmetic >= moving {
            estimate.arithmetic += arithmetic;
        } else {
            estimate.memory_bound += moving;
        }
        since += arithmetic.max(moving);
    }
    estimate.computation.push(since);
    estimate
}
