//! Weight packing: the weights of kernels are packed as soon as they are there.

use std::collections::BTreeSet;

use crate::c::analysis::packing::parts;
use crate::c::ir::expr::StepId;
use crate::c::ir::program::{KernelProgram, KernelStep, KernelWork};
use crate::ids::Id as _;

/// Packs the weights of every kernel as soon as they are there.
pub fn pack_weights(program: &mut KernelProgram) {
    let mut places = BTreeSet::new();
    for step in &program.steps {
        let KernelWork::Kernel(k) = &step.work else { continue };
        let Some(call) = k.pack() else { continue };
        // Kernels that read the same weights in the same order share them.
        if !places.insert(call.packed) {
            continue;
        }
        let pack = KernelStep { work: KernelWork::Pack(call), ..step.clone() };
        let reads = pack.reads();
        let last = program.prepacking.last_position(|s| s.writes().iter().any(|b| reads.contains(b)));
        program.prepacking.insert(last.map_or(program.prepacking.end(), StepId::next), pack);
    }
    // Memory is taken when it is written: with the largest parameters first, the others need little beside what is packed.
    let largest = |part: &Vec<StepId>| {
        let read = part.iter().flat_map(|&i| program.prepacking[i].reads());
        read.map(|b| program.buffers[b].bytes()).max()
    };
    let mut order = parts(program);
    order.sort_by_key(|part| std::cmp::Reverse(largest(part)));
    program.prepacking = order.iter().flatten().map(|&i| program.prepacking[i].clone()).collect();
}
