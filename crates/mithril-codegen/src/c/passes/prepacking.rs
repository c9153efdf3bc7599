//! Weight prepacking: what depends on parameters alone is computed once, when they are packed.
//!
//! - Steps that read nothing but parameters move from the calls to the packing; their results lie among the packed
//!   parameters, or in the scratch memory of packing if nothing else reads them.
//! - Batch-norm folding: a contraction that is first of all multiplied by a prepacked number per filter is computed from
//!   weights that are multiplied by it before they are packed; what is then added becomes one number per filter.

use std::collections::BTreeSet;

use mithril_ir::Scalar;

use crate::affine::Affine;
use crate::c::analysis::contraction::{contraction, loaded, replaced, the_sum};
use crate::c::ir::expr::{Atom, Binary, BufferId, Expr, Index, Var};
use crate::c::ir::program::{LoopBuffer, LoopMemory, LoopProgram, LoopStep, LoopWork, Nest, Place};
use crate::ids::Table;

/// Moves to the packing what can be done there.
pub fn prepack(program: &mut LoopProgram) {
    move_steps(program);
    for step in program.steps.ids() {
        let original = program.steps[step].clone();
        if let LoopWork::Nest(nest) = &original.work
            && let Some(nest) = fold(program, &original, nest)
        {
            program.steps[step].work = LoopWork::Nest(nest);
        }
    }
}

fn move_steps(program: &mut LoopProgram) {
    let buffers = &program.buffers;
    // What reads nothing is cheaper to fill than to keep; what is exchanged over a mesh is not there when packing.
    let is_exchange = |s: &LoopStep| matches!(&s.work, LoopWork::Call(call) if call.uses_mesh());
    let mut moves: Vec<bool> = program
        .steps
        .iter()
        .map(|s| {
            let is_own = s.writes().iter().all(|&b| buffers[b].is_temporary());
            is_own && !s.reads().is_empty() && !is_exchange(s)
        })
        .collect();
    // A temporary that nobody fills has no elements; it lies in the arena, which packing does not have.
    let filled: BTreeSet<BufferId> = program.steps.iter().flat_map(LoopStep::writes).collect();
    loop {
        let is_made = |(i, b): (BufferId, &LoopBuffer)| b.is_temporary() && filled.contains(&i);
        let mut changes: Table<BufferId, bool> =
            buffers.entries().map(|(i, b)| !b.is_fixed() && !is_made((i, b))).collect();
        for (step, _) in program.steps.iter().zip(&moves).filter(|(_, moves)| !**moves) {
            step.writes().into_iter().for_each(|b| changes[b] = true);
        }
        let before = moves.clone();
        for (step, moves) in program.steps.iter().zip(&mut moves) {
            // A buffer may be filled by several steps.
            *moves = *moves && !step.reads().into_iter().chain(step.writes()).any(|b| changes[b]);
            if !*moves {
                step.writes().into_iter().for_each(|b| changes[b] = true);
            }
        }
        if moves == before {
            break;
        }
    }
    let mut moves = moves.into_iter();
    let (prepared, steps): (Vec<LoopStep>, Vec<LoopStep>) =
        std::mem::take(&mut program.steps).into_iter().partition(|_| moves.next() == Some(true));
    (program.prepacking, program.steps) = (prepared.into(), steps.into());
    for step in &program.prepacking {
        step.writes()
            .into_iter()
            .for_each(|b| program.buffers[b].place = Place::Memory(LoopMemory::Prepacked));
    }
}

/// The nest with weights that are multiplied ahead; `None` if nothing is gained.
fn fold(program: &mut LoopProgram, step: &LoopStep, nest: &Nest) -> Option<Nest> {
    let c = contraction(nest)?;
    let (weight, at) = c.factors.iter().find_map(|factor| {
        let (weight, at) = loaded(factor, c.element)?;
        let buffer = &program.buffers[weight];
        (buffer.is_fixed() && is_whole(at, &buffer.shape)).then(|| (weight, at.to_vec()))
    })?;
    let is_filter = |v: &Var| v.size > 1 && at.contains(&Index::var(*v));
    let filters: Vec<Var> = nest.vars.iter().copied().filter(is_filter).collect();
    let sum = the_sum(&nest.value)?;
    let (end, Affine { scale, shift }) = largest(&nest.value, sum, &|e| is_ready(program, e, &filters))?;
    let gains = match &scale {
        Some(scale) => loads(scale) > 0,
        None => shift.as_ref().is_some_and(|shift| loads(shift) > 1),
    };
    if !gains {
        return None;
    }
    let (end, mut new) = (end.clone(), sum.clone());
    let LoopBuffer { name, dtype, shape, .. } = program.buffers[weight].clone();
    if let Some(scale) = scale {
        let load = Expr::Load { from: weight, at: at.clone(), stored: dtype };
        let scaled = keep(program, step, (&name, "scaled"), &(load.clone() * scale), &at, shape);
        new = replaced(&new, &load, &scaled);
    }
    if let Some(mut shift) = shift {
        if loads(&shift) > 1 {
            let at: Vec<Index> = filters.iter().map(|&v| Index::var(v)).collect();
            let shape = filters.iter().map(|v| v.size).collect();
            shift = keep(program, step, (&name, "shift"), &shift, &at, shape);
        }
        new = new + shift;
    }
    Some(Nest { value: replaced(&nest.value, &end, &new), ..nest.clone() })
}

/// Whether a tensor is read along whole axes, each by a variable of its own.
fn is_whole(at: &[Index], shape: &[i64]) -> bool {
    at.iter().zip(shape).enumerate().all(|(i, (index, &size))| match index.terms[..] {
        [] => size == 1 && index.constant == 0,
        [(Atom::Var(v), 1)] => v.size == size && index.constant == 0 && !at[..i].contains(index),
        _ => false,
    })
}

/// Whether a value is known when parameters are packed, once the variables are chosen.
fn is_ready(program: &LoopProgram, e: &Expr, vars: &[Var]) -> bool {
    let mut is_ready = !e.reduces();
    e.walk(&mut |e| {
        is_ready &= e.indices().iter().all(|index| !index.reads());
        is_ready &= !matches!(e, Expr::Load { from, .. } if !program.buffers[*from].is_fixed());
    });
    e.each_free_var(&mut |v| is_ready &= vars.contains(&v));
    is_ready
}

/// The largest part of a value that is such arithmetic on its sum.
fn largest<'e>(
    e: &'e Expr,
    sum: &Expr,
    is_ready: &dyn Fn(&Expr) -> bool,
) -> Option<(&'e Expr, Affine<Expr>)> {
    match affine(e, sum, is_ready) {
        Some(affine) => Some((e, affine)),
        None => e.children().into_iter().find_map(|child| largest(child, sum, is_ready)),
    }
}

fn affine(e: &Expr, sum: &Expr, is_ready: &dyn Fn(&Expr) -> bool) -> Option<Affine<Expr>> {
    if e == sum {
        return Some(Affine::default());
    }
    let Expr::Binary(op, a, b) = e else { return None };
    let (before, other) = match affine(a, sum, is_ready) {
        Some(before) if is_ready(b) => (before, &**b),
        None if matches!(op, Binary::Add | Binary::Multiply) && is_ready(a) => {
            (affine(b, sum, is_ready)?, &**a)
        }
        _ => return None,
    };
    let combine = |op: Binary, x: Option<Expr>, y: Expr| {
        let neutral = if matches!(op, Binary::Add | Binary::Subtract) { 0.0 } else { 1.0 };
        Some(x.unwrap_or_else(|| Expr::Number(Scalar::Float(neutral), e.dtype())).binary(op, y))
    };
    before.then(*op, other.clone(), combine)
}

/// Number of elements that are read.
fn loads(e: &Expr) -> usize {
    let mut n = 0;
    e.walk(&mut |e| n += usize::from(matches!(e, Expr::Load { .. })));
    n
}

/// Computes a value when parameters are packed, into a new tensor, which is what of a weight; its element at `at`.
fn keep(
    program: &mut LoopProgram,
    like: &LoopStep,
    (weight, what): (&str, &str),
    value: &Expr,
    at: &[Index],
    shape: Vec<i64>,
) -> Expr {
    let (stored, to) = (value.dtype(), program.buffers.end());
    let vars = program.fresh_vars(shape.iter().copied());
    let own = |v: Var| at.iter().position(|index| *index == Index::var(v)).map_or(v, |axis| vars[axis]);
    let value = value.substitute(&|v| Index::var(own(v)));
    let buffer = LoopBuffer::temporary(format!("{weight}_{what}"), stored, shape);
    program.buffers.push(LoopBuffer { place: Place::Memory(LoopMemory::Prepacked), ..buffer });
    let work = LoopWork::Nest(Nest { to, vars, value });
    program.prepacking.push(LoopStep { name: what.to_owned(), work, ..like.clone() });
    Expr::Load { from: to, at: at.to_vec(), stored }
}
