//! What of a program runs when parameters are packed: which of its steps belong together, and which inputs they read.

use std::collections::{BTreeMap, BTreeSet};

use crate::c::ir::expr::{BufferId, StepId};
use crate::c::ir::program::{KernelBuffer, KernelProgram, KernelStep};
use crate::ids::{InputId, Table};

/// The steps of packing that belong together: some read what others make.
pub fn parts(program: &KernelProgram) -> Vec<Vec<StepId>> {
    let steps = &program.prepacking;
    let mut part: Table<StepId, StepId> = steps.ids().collect();
    let mut first: BTreeMap<BufferId, StepId> = BTreeMap::new();
    let made: BTreeSet<BufferId> = steps.iter().flat_map(KernelStep::writes).collect();
    for (i, step) in steps.entries() {
        for b in step.writes().into_iter().chain(step.reads()).filter(|b| made.contains(b)) {
            let (from, to) = (part[i], part[*first.entry(b).or_insert(i)]);
            part.iter_mut().filter(|other| **other == from).for_each(|other| *other = to);
        }
    }
    let mut parts: BTreeMap<StepId, Vec<StepId>> = BTreeMap::new();
    part.entries().for_each(|(i, part)| parts.entry(*part).or_default().push(i));
    parts.into_values().collect()
}

/// The inputs that some steps read.
pub fn inputs<'a>(program: &KernelProgram, steps: impl Iterator<Item = &'a KernelStep>) -> Vec<InputId> {
    let read: BTreeSet<BufferId> = steps.flat_map(KernelStep::reads).collect();
    let input = |(b, buffer): (BufferId, &KernelBuffer)| buffer.input().filter(|_| read.contains(&b));
    program.buffers.entries().filter_map(input).collect()
}
