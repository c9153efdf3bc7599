//! Whether every element that a step reads or stores exists, is read as what it is stored as, and whether a nest fills all of
//! its buffer.

use std::collections::BTreeSet;

use crate::c::ir::expr::{Argument, Atom, Expr, Index, Var, arithmetic, flat};
use crate::c::ir::program::{
    KernelBuffer, KernelCall, KernelMemory, KernelProgram, KernelStep, KernelWork, Nest, Place, Rows,
};
use crate::c::verify::index::Scope;
use crate::c::verify::messages::{in_step, named};

/// Looks at all steps.
pub fn check(program: &KernelProgram) -> Result<(), String> {
    for (b, buffer) in program.buffers.entries() {
        let has_halo = buffer.blocks.is_some_and(|blocks| blocks.has_halo());
        // Programs of loops do not know the functions that fill halos.
        if program.info.arena_bytes.is_some() && has_halo != program.info.halos.contains_key(&b) {
            return Err(format!("no function fills the halo of {}", named(program, b)));
        }
    }
    for (i, step) in program.prepacking.entries().chain(program.steps.entries()) {
        check_step(program, step).map_err(|text| in_step(program, i, step, &text))?;
    }
    Ok(())
}

fn check_step(program: &KernelProgram, step: &KernelStep) -> Result<(), String> {
    for b in step.reads().into_iter().chain(step.writes()) {
        if b >= program.buffers.end() {
            return Err(format!("names {}", named(program, b)));
        }
    }
    match &step.work {
        KernelWork::Nest(nest) => {
            let at: Vec<Index> = nest.vars.iter().map(|&v| Index::var(v)).collect();
            check_nest(program, nest, &at)
        }
        KernelWork::Rows(rows) => check_rows(program, rows),
        KernelWork::Parts(parts) => parts.steps.iter().try_for_each(|step| check_step(program, step)),
        KernelWork::Kernel(k) => check_kernel(program, k),
        KernelWork::Call(call) => call.args.iter().try_for_each(|arg| match arg {
            Argument::In(b) | Argument::Out(b) if program.buffers[*b].blocks.is_some() => {
                Err(format!("is given {}, which does not lie in row-major order", named(program, *b)))
            }
            _ => Ok(()),
        }),
        KernelWork::Pack(_) => Ok(()),
    }
}

fn check_rows(program: &KernelProgram, rows: &Rows) -> Result<(), String> {
    for (nest, at) in &rows.nests {
        if nest.vars.get(..rows.vars.len()) != Some(&rows.vars[..]) {
            return Err(format!("fills {} in other rows than the others", named(program, nest.to)));
        }
        check_nest(program, nest, at)?;
    }
    Ok(())
}

fn check_kernel(program: &KernelProgram, k: &KernelCall) -> Result<(), String> {
    let starts = k.inputs.iter().chain(&k.operands);
    for &(b, first) in starts {
        let buffer = &program.buffers[b];
        if buffer.count() > 0 && first * buffer.dtype.size() >= buffer.bytes() {
            return Err(format!("starts at {first} in {}", named(program, b)));
        }
    }
    let bytes = k.shared.map_or(0, |b| program.buffers[b].bytes());
    if bytes < k.kernel.shared_bytes {
        return Err(format!("has {bytes} bytes of scratch memory and needs {}", k.kernel.shared_bytes));
    }
    Ok(())
}

/// Whether a nest stores at each position of its buffer once, and reads what there is.
fn check_nest(program: &KernelProgram, nest: &Nest, at: &[Index]) -> Result<(), String> {
    let buffer = &program.buffers[nest.to];
    let of = || named(program, nest.to);
    let ids: BTreeSet<u32> = nest.vars.iter().map(|v| v.id).collect();
    if ids.len() < nest.vars.len() {
        return Err(format!("counts twice with one variable to fill {}", of()));
    }
    if at.len() != buffer.shape.len() {
        return Err(format!("stores at {} coordinates of {}", at.len(), of()));
    }
    if matches!(buffer.place, Place::Input(_) | Place::Constant(_)) {
        return Err(format!("changes {}, which is given", of()));
    }
    let is_bytes = |buffer: &KernelBuffer| buffer.blocks.is_some_and(|blocks| blocks.bytes.is_some());
    if nest.value.dtype() != arithmetic(buffer.dtype) && !is_bytes(buffer) {
        return Err(format!("stores {} in {}, which holds {}", nest.value.dtype(), of(), buffer.dtype));
    }
    let mut scope = Scope { vars: nest.vars.clone(), choices: Vec::new() };
    if scope.is_empty() {
        return Ok(());
    }
    for (index, &size) in at.iter().zip(&buffer.shape) {
        if let Some((point, value)) = scope.outside(index, size) {
            return Err(format!("stores at {value} on an axis of {size} of {} ({})", of(), point.text()));
        }
    }
    let is_own = matches!(buffer.place, Place::Memory(KernelMemory::Scratch(_)));
    if !fills(&flat(at, &buffer.shape), nest, buffer.count(), is_own) {
        return Err(format!("does not fill every element of {} once", of()));
    }
    check_value(program, &nest.value, &mut scope)
}

/// Whether a position goes through all from 0 to `count` (not reached), each once. Scratch memory of a row is filled
/// again in every row.
fn fills(position: &Index, nest: &Nest, count: i64, is_own: bool) -> bool {
    let mut digits: Vec<(i64, Var)> = Vec::new();
    for (atom, factor) in &position.terms {
        match atom {
            Atom::Var(v) => digits.push((*factor, *v)),
            // Divisions stand for digits of a variable, too; they are left to those who read.
            _ => return true,
        }
    }
    digits.sort_unstable_by_key(|(factor, _)| *factor);
    let mut next = 1;
    for (factor, v) in &digits {
        if *factor != next {
            return false;
        }
        next *= v.size;
    }
    let mut others = nest.vars.iter().filter(|v| v.size != 1 && !digits.iter().any(|(_, w)| w == *v));
    position.constant == 0 && next == count && (is_own || others.next().is_none())
}

fn check_value(program: &KernelProgram, e: &Expr, scope: &mut Scope) -> Result<(), String> {
    for index in e.indices() {
        check_index(program, index, scope)?;
    }
    match e {
        Expr::Load { from, at, stored } => {
            let buffer = &program.buffers[*from];
            let of = || named(program, *from);
            let is_bytes = buffer.blocks.is_some_and(|blocks| blocks.bytes.is_some());
            if *stored != buffer.dtype && !is_bytes {
                return Err(format!("reads {stored} from {}, which holds {}", of(), buffer.dtype));
            }
            if at.len() != buffer.shape.len() {
                return Err(format!("reads at {} coordinates of {}", at.len(), of()));
            }
            for (index, &size) in at.iter().zip(&buffer.shape) {
                if let Some((point, value)) = scope.outside(index, size) {
                    let text = format!("reads at {index} = {value} on an axis of {size} of {}", of());
                    return Err(format!("{text} ({})", point.text()));
                }
            }
            Ok(())
        }
        Expr::Select { when, yes, no } => {
            for (side, passes) in [(yes, true), (no, false)] {
                scope.choices.push((when.clone(), passes));
                let checked = check_value(program, side, scope);
                scope.choices.pop();
                checked?;
            }
            Ok(())
        }
        Expr::Reduce { vars, body, .. } => {
            if let Some(v) = vars.iter().find(|v| scope.vars.iter().any(|w| w.id == v.id)) {
                return Err(format!("counts with i{} inside of a loop that does", v.id));
            }
            let known = scope.vars.len();
            scope.vars.extend(vars);
            let checked = if scope.is_empty() { Ok(()) } else { check_value(program, body, scope) };
            scope.vars.truncate(known);
            checked
        }
        _ => e.children().into_iter().try_for_each(|child| check_value(program, child, scope)),
    }
}

/// Looks at what is read to know a position.
fn check_index(program: &KernelProgram, index: &Index, scope: &mut Scope) -> Result<(), String> {
    index.terms.iter().try_for_each(|(atom, _)| match atom {
        Atom::Var(v) if !scope.vars.contains(v) => Err(format!("uses i{}, which no loop counts", v.id)),
        Atom::Var(_) => Ok(()),
        Atom::Div(inner, _) | Atom::Mod(inner, _) => check_index(program, inner, scope),
        Atom::Value { value, .. } => check_value(program, value, scope),
    })
}
