//! Stage `state`: new states are written where the old ones lie, if their places may be one (an option); and so are
//! outputs that are a donated input with some changes, such as a cache with a new entry.
//!
//! A new state that is computed element by element from its old value, after everybody else has read that, takes its
//! place at once. Any other is computed beside, and copied when all is done.

use mithril_ir::loops::{Argument, Expr, Index, Var};

use super::program::{Nest, Place, Program, Step, Work};

/// Makes updates of donated inputs, by number: of each, the first output of its kind that starts as a copy of it, and
/// is written when nobody needs the input any more.
pub fn donate(program: &mut Program, inputs: &[usize]) {
    for &input in inputs {
        let is_given = |place: &Place| matches!(place, Place::Input(n) if *n == input);
        let Some(old) = program.buffers.iter().position(|b| is_given(&b.place)) else { continue };
        let starts_as = |new: usize| {
            let written = program.steps.iter().find(|step| step.writes().contains(&new));
            written.is_some_and(|step| matches!(step.work, Work::Nest(_)) && step.reads().contains(&old))
        };
        let fits = |&new: &usize| {
            let (a, b) = (&program.buffers[old], &program.buffers[new]);
            matches!(b.place, Place::Output(_))
                && (a.dtype, &a.shape) == (b.dtype, &b.shape)
                && !program.updates.iter().any(|(_, other)| *other == new)
                && starts_as(new)
                && can_replace(program, old, new)
        };
        if let Some(new) = (0..program.buffers.len()).find(fits) {
            program.updates.push((old, new));
        }
    }
}

/// Gives each new state the place of the old one.
pub fn in_place(program: &mut Program) {
    for (old, new) in program.updates.clone() {
        let (Place::Input(input), Place::Output(output)) =
            (&program.buffers[old].place, &program.buffers[new].place)
        else {
            continue;
        };
        let place = Place::State { input: *input, output: *output };
        program.buffers[new].place = Place::Arena(None);
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
fn is_itself(step: &Step, buffer: usize) -> bool {
    let Work::Nest(nest) = &step.work else { return false };
    let own: Vec<Index> = nest.vars.iter().map(|&v| Index::var(v)).collect();
    nest.to == buffer && matches!(&nest.value, Expr::Load { from, at, .. } if *from == buffer && *at == own)
}

/// Whether nobody needs an old value when its new one is written.
fn can_replace(program: &Program, old: usize, new: usize) -> bool {
    let Some(written) = program.steps.iter().position(|step| step.writes().contains(&new)) else {
        return false;
    };
    let is_read_later = program.steps[written + 1..].iter().any(|step| step.reads().contains(&old));
    !is_read_later
        && match &program.steps[written].work {
            Work::Nest(nest) => is_elementwise(nest, old),
            _ => !program.steps[written].reads().contains(&old),
        }
}

/// Whether a nest reads a buffer only at the element that it computes.
fn is_elementwise(nest: &Nest, buffer: usize) -> bool {
    let own: Vec<Index> = nest.vars.iter().map(|&v| Index::var(v)).collect();
    let mut found = true;
    nest.value.walk(&mut |e| {
        if let Expr::Load { from, at, .. } = e {
            found &= *from != buffer || *at == own;
        }
        // A sum over other elements reads them after some have changed.
        if let Expr::Reduce { body, .. } = e {
            body.walk(&mut |e| found &= !matches!(e, Expr::Load { from, .. } if *from == buffer));
        }
    });
    found
}

fn copy(program: &mut Program, from: usize, to: usize) {
    let buffer = program.buffers[from].clone();
    let vars: Vec<Var> =
        buffer.shape.iter().zip(program.next_var..).map(|(&size, id)| Var { id, size }).collect();
    program.next_var += vars.len() as u32;
    let at = vars.iter().map(|&v| Index::var(v)).collect();
    let value = Expr::Load { from, at, stored: buffer.dtype };
    let work = Work::Nest(Nest { to, vars, value });
    program.steps.push(Step { name: buffer.name, origin: String::new(), work });
}

/// Puts one buffer into the place of another in all steps, none of which is a kernel yet.
fn rename(program: &mut Program, from: usize, to: usize) {
    let other = |b: usize| if b == from { to } else { b };
    for step in &mut program.steps {
        match &mut step.work {
            Work::Nest(nest) => {
                nest.to = other(nest.to);
                nest.value = nest.value.map_loads(&|f, at, stored| Expr::Load { from: other(f), at, stored });
            }
            Work::Call(call) => {
                for arg in &mut call.args {
                    if let Argument::In(b) | Argument::Out(b) = arg {
                        *b = other(*b);
                    }
                }
            }
            Work::Kernel(_) | Work::Rows(_) | Work::Parts(_) | Work::Pack(_) => {}
        }
    }
}

/// Moves what makes new states to where all is there that it needs: gradients are used as soon as they are known, and
/// their memory is free for the next. Before anything is changed that can fail has been done: a call that fails leaves
/// the states as they were.
pub fn schedule(program: &mut Program) {
    let mut safe = last_check(program);
    for i in (0..safe).rev() {
        if writes_state(program, &program.steps[i])
            && !program.steps[i + 1..safe].iter().any(|later| depends(later, &program.steps[i]))
        {
            let step = program.steps.remove(i);
            safe -= 1;
            program.steps.insert(safe, step);
        }
    }
    // Numbers that follow from what is given, such as the corrections of an optimizer, are there before any state is
    // made, so that what uses them stands beside what does not.
    let (mut known, mut numbers) = (Vec::new(), 0);
    for i in safe + 1..program.steps.len() {
        let step = &program.steps[i];
        let is_given = step.reads().iter().all(|b| known.contains(b) || !program.buffers[*b].is_temporary());
        if is_given {
            known.extend(step.writes().into_iter().filter(|&b| program.buffers[b].count() == 1));
        }
        if !matches!(step.work, Work::Nest(_)) || !(is_given || writes_state(program, step)) {
            continue;
        }
        let last = program.steps[safe..i].iter().rposition(|other| depends(step, other));
        let after = last.map_or(0, |at| at + 1);
        let place = safe + if is_given { after } else { after.max(numbers) };
        numbers += usize::from(is_given && after <= numbers);
        let step = program.steps.remove(i);
        program.steps.insert(place, step);
    }
}

/// Inputs with the outputs that may lie in the same memory.
pub fn shared(program: &Program) -> Vec<(usize, usize)> {
    let pair = |place: &Place| match place {
        Place::State { input, output } => Some((*input, *output)),
        _ => None,
    };
    program.buffers.iter().filter_map(|buffer| pair(&buffer.place)).collect()
}

/// Whether a step changes a state.
pub fn writes_state(program: &Program, step: &Step) -> bool {
    step.writes().iter().any(|&b| matches!(program.buffers[b].place, Place::State { .. }))
}

/// Whether a step has to stay behind another.
pub fn depends(step: &Step, other: &Step) -> bool {
    let meets = |a: &[usize], b: &[usize]| a.iter().any(|x| b.contains(x));
    let (reads, writes) = (step.reads(), step.writes());
    let (theirs, written) = (other.reads(), other.writes());
    meets(&reads, &written) || meets(&writes, &theirs) || meets(&writes, &written)
}

/// How many steps there are up to the last that reads positions nobody has looked at before.
fn last_check(program: &Program) -> usize {
    let mut known = Vec::new();
    let mut last = 0;
    for (i, step) in program.steps.iter().enumerate() {
        for buffer in positions(program, step) {
            if !known.contains(&buffer) {
                known.push(buffer);
                last = i + 1;
            }
        }
    }
    last
}

/// Buffers whose elements say where something is read or written.
fn positions(program: &Program, step: &Step) -> Vec<usize> {
    let mut found = Vec::new();
    match &step.work {
        Work::Nest(nest) => nest.value.walk(&mut |e| {
            for index in e.indices().into_iter().filter(|index| index.reads()) {
                Expr::Index(Box::new(index.clone())).walk(&mut |e| {
                    if let Expr::Load { from, .. } = e {
                        found.push(*from);
                    }
                });
            }
        }),
        Work::Call(_) => {
            found.extend(step.reads().into_iter().filter(|&b| !program.buffers[b].dtype.is_float()));
        }
        Work::Kernel(_) | Work::Rows(_) | Work::Parts(_) | Work::Pack(_) => {}
    }
    found
}
