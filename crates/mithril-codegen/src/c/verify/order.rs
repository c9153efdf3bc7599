//! Whether steps read what was written before: by earlier steps, in the same part, in the same row.

use crate::c::ir::expr::{Argument, BufferId, Expr, Index};
use crate::c::ir::program::{
    ALIGNMENT, KernelCall, KernelMemory, KernelProgram, KernelStep, KernelWork, Nest, Parts, Place, Rows,
};
use crate::c::verify::index::{Scope, each_load};
use crate::c::verify::memory::Memory;
use crate::c::verify::messages::{in_step, named};
use crate::c::verify::rows::{Written, same_row};

/// Looks at what is done once, and then at what is done at every call.
pub fn check(program: &KernelProgram) -> Result<(), String> {
    let mut memory = Memory::new(program);
    for (i, step) in program.prepacking.entries() {
        check_prepared(program, step)
            .and_then(|()| check_step(&mut memory, program, step))
            .map_err(|text| in_step(program, i, step, &format!("done once, {text}")))?;
    }
    memory.forget(|place| matches!(place, Place::Memory(KernelMemory::Packing(_))));
    for (i, step) in program.steps.entries() {
        check_called(program, step)
            .and_then(|()| check_step(&mut memory, program, step))
            .map_err(|text| in_step(program, i, step, &text))?;
    }
    let is_missing =
        |b: &BufferId| matches!(program.buffers[*b].place, Place::Output(_)) && !memory.holds(*b);
    match (program.buffers.ids()).find(is_missing) {
        Some(b) => Err(format!("no step fills the output {}", named(program, b))),
        None => Ok(()),
    }
}

/// What is done once knows parameters and constants alone.
fn check_prepared(program: &KernelProgram, step: &KernelStep) -> Result<(), String> {
    let is_known = |b: &BufferId| {
        let b = &program.buffers[*b];
        b.is_param
            || b.count() == 0
            || matches!(
                b.place,
                Place::Constant(_) | Place::Memory(KernelMemory::Packed(_) | KernelMemory::Packing(_))
            )
    };
    let all: Vec<BufferId> = step.reads().into_iter().chain(step.writes()).collect();
    let unknown = all.iter().find(|b| !is_known(b));
    unknown.map_or(Ok(()), |b| Err(format!("names {}, which is not known then", named(program, *b))))
}

/// What is packed does not change at a call; scratch memory of packing and of another step is not there.
fn check_called(program: &KernelProgram, step: &KernelStep) -> Result<(), String> {
    let place = |b: &BufferId| &program.buffers[*b].place;
    if let Some(b) = step
        .writes()
        .iter()
        .find(|b| matches!(place(b), Place::Memory(KernelMemory::Packed(_)) | Place::Constant(_)))
    {
        return Err(format!("changes {}, which is packed or constant", named(program, *b)));
    }
    let is_inside = matches!(step.work, KernelWork::Rows(_) | KernelWork::Parts(_));
    let is_gone = |b: &&BufferId| match place(b) {
        Place::Memory(KernelMemory::Packing(_)) => true,
        Place::Memory(KernelMemory::Scratch(_)) => !is_inside || !step.writes().contains(b),
        _ => false,
    };
    let all: Vec<BufferId> = step.reads().into_iter().chain(step.writes()).collect();
    let gone = all.iter().find(is_gone);
    gone.map_or(Ok(()), |b| Err(format!("names {}, which only another step has", named(program, *b))))
}

fn check_step(memory: &mut Memory<'_>, program: &KernelProgram, step: &KernelStep) -> Result<(), String> {
    for b in step.reads() {
        memory.read(b)?;
    }
    let (reads, writes) = (step.reads(), step.writes());
    for (i, &to) in writes.iter().enumerate() {
        let others = reads.iter().chain(&writes[..i]).filter(|b| **b != to);
        if let Some(&b) = others.into_iter().find(|b| memory.overlap(to, **b)) {
            return Err(format!("writes {} over {}", named(program, to), named(program, b)));
        }
    }
    match &step.work {
        KernelWork::Nest(nest) => reads_own(program, nest, &coordinates(nest), nest.to)?,
        KernelWork::Call(call) => check_call(program, &call.args)?,
        KernelWork::Kernel(k) => check_kernel(program, k)?,
        KernelWork::Rows(rows) => {
            check_own_memory(program, rows.nests.iter().map(|(nest, _)| nest.to), 0, rows.scratch_bytes)?;
            check_rows(memory, program, rows)?;
        }
        KernelWork::Parts(parts) => check_parts(memory, program, parts)?,
        KernelWork::Pack(_) => {}
    }
    for b in writes {
        memory.write(b);
    }
    memory.forget(|place| matches!(place, Place::Memory(KernelMemory::Scratch(_))));
    Ok(())
}

fn coordinates(nest: &Nest) -> Vec<Index> {
    nest.vars.iter().map(|&v| Index::var(v)).collect()
}

/// Whether a nest reads of what it changes only the element that it stores.
fn reads_own(program: &KernelProgram, nest: &Nest, own: &[Index], buffer: BufferId) -> Result<(), String> {
    let mut is_own = true;
    nest.value.walk(&mut |e| {
        if let Expr::Load { from, at, .. } = e {
            is_own &= *from != buffer || at == own;
        }
    });
    if is_own { Ok(()) } else { Err(format!("reads {} while it changes it", named(program, buffer))) }
}

fn check_call(program: &KernelProgram, args: &[Argument]) -> Result<(), String> {
    let is_read = |b: BufferId| args.iter().any(|arg| matches!(arg, Argument::In(other) if *other == b));
    let both = args.iter().find_map(|arg| match arg {
        Argument::Out(b) if is_read(*b) => Some(*b),
        _ => None,
    });
    both.map_or(Ok(()), |b| Err(format!("reads {} while it changes it", named(program, b))))
}

/// A kernel writes nothing that it reads, and its weights are packed where it looks for them.
fn check_kernel(program: &KernelProgram, k: &KernelCall) -> Result<(), String> {
    let reads = k.inputs.iter().chain(&k.operands).map(|(b, _)| *b);
    if let Some(b) = reads.into_iter().find(|b| *b == k.to || Some(*b) == k.shared) {
        return Err(format!("reads {} while it changes it", named(program, b)));
    }
    if k.shared == Some(k.to) {
        return Err(format!("has its scratch memory in its result, {}", named(program, k.to)));
    }
    Ok(())
}

/// Scratch memory of a thread, from `first` on to `bytes`, is divided among these buffers.
fn check_own_memory(
    program: &KernelProgram,
    buffers: impl Iterator<Item = BufferId>,
    first: usize,
    bytes: usize,
) -> Result<(), String> {
    let mut places: Vec<(usize, usize, BufferId)> = Vec::new();
    for b in buffers {
        let buffer = &program.buffers[b];
        let Place::Memory(KernelMemory::Scratch(at)) = buffer.place else { continue };
        if buffer.is_constant() || buffer.count() == 0 {
            continue;
        }
        let end = at + buffer.bytes();
        if at % ALIGNMENT != 0 || at < first || end > bytes {
            let text = named(program, b);
            return Err(format!("keeps {text} at {at} of {bytes} bytes, of which {first} are taken"));
        }
        if let Some((_, _, other)) = places.iter().find(|(from, to, c)| *c != b && *from < end && at < *to) {
            return Err(format!("keeps {} and {} in one place", named(program, b), named(program, *other)));
        }
        places.push((at, end, b));
    }
    Ok(())
}

/// Nests read what earlier nests have made of their row, and of what they change only their own element.
fn check_rows(memory: &Memory<'_>, program: &KernelProgram, rows: &Rows) -> Result<(), String> {
    for (i, (nest, at)) in rows.nests.iter().enumerate() {
        let mut result = Ok(());
        let mut scope = Scope { vars: nest.vars.clone(), choices: Vec::new() };
        each_load(&nest.value, &mut scope, &mut |scope, from, read| {
            let writer = rows.nests.iter().enumerate().find(|(_, (writer, _))| writer.to == from);
            let Some((number, (writer, stored))) = writer.filter(|_| result.is_ok()) else { return };
            let of = || named(program, from);
            result = if number >= i && !memory.holds(from) {
                Err(format!("reads {} in a row before it is written there", of()))
            } else if number == i && read != at {
                Err(format!("reads {} while it changes it", of()))
            } else {
                same_row(rows, &Written { nest: writer, at: stored }, scope, read)
                    .map_err(|text| format!("reads {} {text}", of()))
            };
        });
        result?;
    }
    Ok(())
}

/// What is packed in front of the parts is there by then; a part reads what it has made itself, in the memory of its thread.
fn check_parts(memory: &Memory<'_>, program: &KernelProgram, parts: &Parts) -> Result<(), String> {
    let made: Vec<BufferId> = parts.steps.iter().flat_map(KernelStep::writes).collect();
    let kernels = parts.steps.iter().filter_map(|step| match &step.work {
        KernelWork::Kernel(k) => Some(k),
        _ => None,
    });
    let own = made.iter().copied();
    let kernel_bytes = kernels.clone().map(|k| k.kernel.scratch_bytes).max().unwrap_or(0);
    check_own_memory(program, own, kernel_bytes, parts.scratch_bytes)?;
    let mut scratch = Vec::new();
    for k in kernels {
        let what = || format!("has a part, the {}, that", k.what);
        if let Some(b) = k.reads_before().find(|b| made.contains(b)) {
            let text = named(program, b);
            return Err(format!("{} packs {text} in front of the parts, which fill it", what()));
        }
        if k.kernel.pack.is_some() || k.kernel.phases.len() > 2 {
            return Err(format!("{} is not done in two phases at every call", what()));
        }
        if k.shared.is_some_and(|b| scratch.contains(&b)) {
            return Err(format!("{} has the scratch memory of another", what()));
        }
        scratch.extend(k.shared);
    }
    let mut memory = memory.clone();
    for step in &parts.steps {
        let text = |text: String| format!("has a part, `{}`, that {text}", step.name);
        for b in step.reads() {
            memory.read(b).map_err(text)?;
            let is_shared = made.contains(&b)
                && !matches!(program.buffers[b].place, Place::Memory(KernelMemory::Scratch(_)));
            if is_shared {
                return Err(text(format!("reads {}, of which other parts fill some", named(program, b))));
            }
        }
        match &step.work {
            KernelWork::Kernel(k) => check_kernel(program, k).map_err(text)?,
            KernelWork::Rows(rows) => {
                let count: i64 = rows.vars[..rows.part_vars].iter().map(|v| v.size).product();
                if count != parts.count {
                    return Err(text(format!("counts {count} of {} parts", parts.count)));
                }
                check_rows(&memory, program, rows).map_err(text)?;
            }
            _ => return Err(text("is neither a kernel nor rows".to_owned())),
        }
        for b in step.writes() {
            memory.write(b);
        }
    }
    Ok(())
}
