//! In-place updates: new states take the memory of the old ones, where that is asked for; so do outputs that are a donated
//! input with some changes, such as a cache with a new entry.
//!
//! A new state that is computed element by element from its old value, after every other read of that, is written in its
//! place. Any other is computed in a buffer of its own, and copied at the end.

use crate::c::ir::expr::{Argument, BufferId, Expr, Index};
use crate::c::ir::program::{
    KernelBuffer, KernelProgram, LoopMemory, LoopProgram, LoopStep, LoopWork, Nest, Place,
};
use crate::ids::{Id as _, InputId, OutputId};

/// Makes updates of donated inputs, by number: of each, the first output of its kind that starts as a copy of it, and
/// is written when nobody needs the input any more.
pub fn donate(program: &mut LoopProgram, inputs: &[InputId]) {
    for &input in inputs {
        let Some(old) = program.buffers.position(|b| b.place == Place::Input(input)) else { continue };
        let starts_as = |new: BufferId| {
            let written = program.steps.iter().find(|step| step.writes().contains(&new));
            written.is_some_and(|step| matches!(step.work, LoopWork::Nest(_)) && step.reads().contains(&old))
        };
        let fits = |&new: &BufferId| {
            let (a, b) = (&program.buffers[old], &program.buffers[new]);
            matches!(b.place, Place::Output(_))
                && (a.dtype, &a.shape) == (b.dtype, &b.shape)
                && !program.updates.iter().any(|(_, other)| *other == new)
                && starts_as(new)
                && can_replace(program, old, new)
        };
        if let Some(new) = (program.buffers.ids()).find(fits) {
            program.updates.push((old, new));
        }
    }
}

/// Gives each new state the place of the old one.
pub fn in_place(program: &mut LoopProgram) {
    for (old, new) in program.updates.clone() {
        let (Place::Input(input), Place::Output(output)) =
            (&program.buffers[old].place, &program.buffers[new].place)
        else {
            continue;
        };
        let place = Place::State { input: *input, output: *output };
        program.buffers[new].place = Place::Memory(LoopMemory::Temporary);
        if can_replace(program, old, new) {
            rename(program, new, old);
        } else {
            copy(program, new, old);
        }
        program.buffers[old].place = place;
        program.steps.retain(|step| !is_itself(step, old));
    }
}

/// Whether a step copies a buffer to itself.
fn is_itself(step: &LoopStep, buffer: BufferId) -> bool {
    let LoopWork::Nest(nest) = &step.work else { return false };
    let own: Vec<Index> = nest.vars.iter().map(|&v| Index::var(v)).collect();
    nest.to == buffer && matches!(&nest.value, Expr::Load { from, at, .. } if *from == buffer && *at == own)
}

/// Whether nobody needs an old value when its new one is written.
fn can_replace(program: &LoopProgram, old: BufferId, new: BufferId) -> bool {
    let Some(written) = program.steps.position(|step| step.writes().contains(&new)) else {
        return false;
    };
    let is_read_later = program.steps[written.next()..].iter().any(|step| step.reads().contains(&old));
    !is_read_later
        && match &program.steps[written].work {
            LoopWork::Nest(nest) => is_elementwise(nest, old),
            LoopWork::Call(_) => !program.steps[written].reads().contains(&old),
        }
}

/// Whether a nest reads a buffer only at the element that it computes.
fn is_elementwise(nest: &Nest, buffer: BufferId) -> bool {
    let own: Vec<Index> = nest.vars.iter().map(|&v| Index::var(v)).collect();
    let mut is_elementwise = true;
    nest.value.walk(&mut |e| {
        if let Expr::Load { from, at, .. } = e {
            is_elementwise &= *from != buffer || *at == own;
        }
        // A sum over other elements reads them after some have changed.
        if let Expr::Reduce { body, .. } = e {
            body.walk(&mut |e| is_elementwise &= !matches!(e, Expr::Load { from, .. } if *from == buffer));
        }
    });
    is_elementwise
}

fn copy(program: &mut LoopProgram, from: BufferId, to: BufferId) {
    let buffer = program.buffers[from].clone();
    let vars = program.fresh_vars(buffer.shape.iter().copied());
    let at = vars.iter().map(|&v| Index::var(v)).collect();
    let value = Expr::Load { from, at, stored: buffer.dtype };
    let work = LoopWork::Nest(Nest { to, vars, value });
    program.steps.push(LoopStep { name: buffer.name, origin: String::new(), work });
}

/// Puts one buffer into the place of another in all steps.
pub fn rename(program: &mut LoopProgram, from: BufferId, to: BufferId) {
    let other = |b: BufferId| if b == from { to } else { b };
    for step in &mut program.steps {
        match &mut step.work {
            LoopWork::Nest(nest) => {
                nest.to = other(nest.to);
                nest.value = nest.value.map_loads(&|f, at, stored| Expr::Load { from: other(f), at, stored });
            }
            LoopWork::Call(call) => {
                for arg in &mut call.args {
                    if let Argument::In(b) | Argument::Out(b) = arg {
                        *b = other(*b);
                    }
                }
            }
        }
    }
}

/// Inputs with the outputs that may lie in the same memory.
pub fn shared(program: &KernelProgram) -> Vec<(InputId, OutputId)> {
    let pair = |buffer: &KernelBuffer| match buffer.place {
        Place::State { input, output } => Some((input, output)),
        _ => None,
    };
    program.buffers.iter().filter_map(pair).collect()
}
