//! What of a program runs when parameters are packed: which of its steps belong together, and which inputs they read.

use std::collections::{BTreeMap, BTreeSet};

use crate::c::ir::expr::{BufferId, StepId};
use crate::c::ir::program::{Buffer, KernelProgram, KernelStep, Place};
use crate::ids::Table;

/// The steps of packing that belong together: some read what others make.
pub fn parts(program: &KernelProgram) -> Vec<Vec<StepId>> {
    let steps = &program.prepared;
    let mut part: Table<StepId, StepId> = steps.ids().collect();
    let mut first: BTreeMap<BufferId, StepId> = BTreeMap::new();
    let made: BTreeSet<BufferId> = steps.iter().flat_map(KernelStep::writes).collect();
    for (i, step) in steps.entries() {
        for b in step.writes().into_iter().chain(step.reads()).filter(|b| made.contains(b)) {
            let (from, to) = (part[i], part[*first.entry(b).or_insert(i)]);
            part.iter_mut().filter(|other| **other == from).for_each(|other| *other = to);
        }
    }
    let mut found: BTreeMap<StepId, Vec<StepId>> = BTreeMap::new();
    part.entries().for_each(|(i, part)| found.entry(*part).or_default().push(i));
    found.into_values().collect()
}

/// Numbers of the inputs that some steps read.
pub fn inputs<'a>(program: &KernelProgram, steps: impl Iterator<Item = &'a KernelStep>) -> Vec<usize> {
    let read: BTreeSet<BufferId> = steps.flat_map(KernelStep::reads).collect();
    let number = |(i, buffer): (BufferId, &Buffer)| match buffer.place {
        Place::Input(n) | Place::State { input: n, .. } if read.contains(&i) => Some(n),
        _ => None,
    };
    program.buffers.entries().filter_map(number).collect()
}
