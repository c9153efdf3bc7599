//! Scheduling of state updates: as early as their operands allow, and after everything that can fail.

use crate::c::analysis::dependence::{depends, writes_state};
use crate::c::ir::expr::{BufferId, Expr, StepId};
use crate::c::ir::program::{KernelProgram, KernelStep, KernelWork};
use crate::ids::Id as _;

/// Moves what makes new states to where all is there that it needs: gradients are used as soon as they are known, and
/// their memory is free for the next. Before anything is changed that can fail has been done: a call that fails leaves
/// the states as they were.
pub fn schedule(program: &mut KernelProgram) {
    let mut safe = last_check(program);
    for i in StepId::new(0).until(safe).rev() {
        if writes_state(program, &program.steps[i])
            && !program.steps[i.next()..safe].iter().any(|later| depends(later, &program.steps[i]))
        {
            let step = program.steps.remove(i);
            safe = safe - 1;
            program.steps.insert(safe, step);
        }
    }
    // Numbers that follow from what is given, such as the corrections of an optimizer, are there before any state is
    // made, so that what uses them stands beside what does not.
    let (mut known, mut numbers) = (Vec::new(), 0);
    for i in safe.next().until(program.steps.end()) {
        let step = &program.steps[i];
        let is_available =
            step.reads().iter().all(|b| known.contains(b) || !program.buffers[*b].is_temporary());
        if is_available {
            known.extend(step.writes().into_iter().filter(|&b| program.buffers[b].count() == 1));
        }
        if !matches!(step.work, KernelWork::Nest(_)) || !(is_available || writes_state(program, step)) {
            continue;
        }
        let last = program.steps[safe..i].iter().rposition(|other| depends(step, other));
        let after = last.map_or(0, |at| at + 1);
        let place = safe + if is_available { after } else { after.max(numbers) };
        numbers += usize::from(is_available && after <= numbers);
        let step = program.steps.remove(i);
        program.steps.insert(place, step);
    }
}

/// How many steps there are up to the last that reads positions nobody has looked at before, or exchanges tensors over a mesh.
fn last_check(program: &KernelProgram) -> StepId {
    let mut known = Vec::new();
    let mut last = StepId::new(0);
    for (i, step) in program.steps.entries() {
        if matches!(&step.work, KernelWork::Call(call) if call.uses_mesh()) {
            last = i.next();
        }
        for buffer in positions(program, step) {
            if !known.contains(&buffer) {
                known.push(buffer);
                last = i.next();
            }
        }
    }
    last
}

/// KernelBuffers whose elements say where something is read or written.
fn positions(program: &KernelProgram, step: &KernelStep) -> Vec<BufferId> {
    let mut positions = Vec::new();
    match &step.work {
        KernelWork::Nest(nest) => nest.value.walk(&mut |e| {
            for index in e.indices().into_iter().filter(|index| index.reads()) {
                Expr::Index(Box::new(index.clone())).walk(&mut |e| {
                    if let Expr::Load { from, .. } = e {
                        positions.push(*from);
                    }
                });
            }
        }),
        KernelWork::Call(_) => {
            positions.extend(step.reads().into_iter().filter(|&b| !program.buffers[b].dtype.is_float()));
        }
        KernelWork::Kernel(_) | KernelWork::Rows(_) | KernelWork::Parts(_) | KernelWork::Pack(_) => {}
    }
    positions
}
