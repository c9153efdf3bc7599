//! Batch independence: whether each element of a batch is computed by itself, for programs whose batch size is an argument at
//! run time.
//!
//! Two programs, for two prime batch sizes, are compared. For every tensor that grows with the batch, the [`BatchAxis`] says
//! which part of which coordinate counts batch elements. An element of a result may read the same element of its operands and
//! whatever has no batch axis, and nothing may depend on its number or on the batch size: with the batch coordinate removed,
//! the loops of both programs have to be equal.

use std::cell::Cell;

use mithril_ir::error::{Code, Error, Result};

use crate::c::ir::expr::{Argument, BufferId, Expr, Index, Var};
use crate::c::ir::program::{LoopProgram, LoopStep, LoopWork, Nest, Place};
use crate::ids::{Id as _, Table};

/// Batch sizes that are compared: no other size of a model is a multiple of them by chance.
pub const SIZES: [i64; 2] = [10_007, 10_009];

/// Ids of the variables that a coordinate of a batch axis is split into: outer part, batch element, inner part.
pub(crate) const SPLIT_VARS: [u32; 3] = [u32::MAX - 2, u32::MAX - 1, u32::MAX];

/// Bytes of one row of every input and output; `None`: it has no rows, and is the same for all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    /// Of the inputs, in order.
    pub inputs: Vec<Option<usize>>,
    /// Of the outputs, in order; all of them have rows.
    pub outputs: Vec<Option<usize>>,
}

/// The rows of a graph, given with a size being each of [`SIZES`]; an error that names the op if it does not treat each
/// row by itself. `name` is what the size is called.
pub fn rows(programs: &[LoopProgram; 2], name: &str) -> Result<Rows> {
    let [first, second] = programs;
    if first.buffers.len() != second.buffers.len() || first.steps.len() != second.steps.len() {
        return Err(Error::new(
            Code::Unsupported,
            format!("what is computed depends on how large {name} is"),
        )
        .help(FIX));
    }
    let mut axes: BatchAxes = Table::beside(&first.buffers, None);
    for b in first.buffers.ids() {
        let slot = &mut axes[b];
        let buffer = &first.buffers[b];
        match (&buffer.place, grown(programs, b)) {
            (_, Grown::Not) => {}
            (Place::Input(_), Grown::Axis(0, inner)) => *slot = Some(BatchAxis { axis: 0, inner }),
            (Place::Input(_), _) => {
                return Err(Error::new(
                    Code::Unsupported,
                    format!("{name} is not the first size of `{}`", buffer.name),
                )
                .help("each row has to lie in memory by itself: transpose in front of the model"));
            }
            (Place::Constant(_), _) => return Err(mixed(None, &buffer.name, name)),
            _ => {}
        }
    }
    for (one, two) in first.steps.iter().zip(&second.steps) {
        step(programs, [one, two], &mut axes).ok_or_else(|| mixed(Some(one), "", name))?;
    }
    collect(first, &axes, name)
}

const FIX: &str = "give it a number: a program is made for each size then";

fn mixed(step: Option<&LoopStep>, buffer: &str, name: &str) -> Error {
    let text = match step {
        Some(step) => {
            format!("`{}` in {} does not treat each row of {name} by itself", step.name, step.origin)
        }
        None => format!("`{buffer}` holds numbers that depend on {name}"),
    };
    Error::new(Code::Unsupported, text).help(FIX)
}

/// Which part of a coordinate counts batch elements: `coordinate / inner % batch` on this axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchAxis {
    pub axis: usize,
    pub inner: i64,
}

/// The batch axis of each buffer that has one.
pub(crate) type BatchAxes = Table<BufferId, Option<BatchAxis>>;

/// How a tensor depends on the size.
enum Grown {
    /// Not at all.
    Not,
    /// This axis is so many times as long.
    Axis(usize, i64),
    /// In another way.
    Otherwise,
}

fn grown(programs: &[LoopProgram; 2], b: BufferId) -> Grown {
    let [one, two] = programs.each_ref().map(|p| &p.buffers[b].shape);
    let differ: Vec<usize> = (0..one.len().min(two.len())).filter(|&i| one[i] != two[i]).collect();
    match differ[..] {
        _ if one.len() != two.len() => Grown::Otherwise,
        [] => Grown::Not,
        [axis] => {
            let times = one[axis] / SIZES[0];
            let fits = one[axis] == times * SIZES[0] && two[axis] == times * SIZES[1] && times > 0;
            if fits { Grown::Axis(axis, times) } else { Grown::Otherwise }
        }
        _ => Grown::Otherwise,
    }
}

/// Finds the batch axes of the results of a step; `None` if batch elements depend on each other.
fn step(programs: &[LoopProgram; 2], steps: [&LoopStep; 2], axes: &mut BatchAxes) -> Option<()> {
    match (&steps[0].work, &steps[1].work) {
        (LoopWork::Nest(one), LoopWork::Nest(two)) if one.to == two.to => {
            let (axis, times) = match grown(programs, one.to) {
                Grown::Not => {
                    let free = |nest: &Nest| without_row(&nest.value, axes, None);
                    return (free(one)? == free(two)?).then_some(());
                }
                Grown::Axis(axis, times) => (axis, times),
                Grown::Otherwise => return None,
            };
            let inner = divisors(times).into_iter().find(|&inner| {
                let row =
                    |which: usize, nest: &Nest| row_of(nest, axes, SIZES[which], BatchAxis { axis, inner });
                row(0, one).is_some_and(|row_start| row(1, two) == Some(row_start))
            })?;
            axes[one.to] = Some(BatchAxis { axis, inner });
            Some(())
        }
        (LoopWork::Call(one), LoopWork::Call(two)) if one == two => {
            let has_rows =
                |a: &Argument| matches!(a, Argument::In(b) | Argument::Out(b) if axes[*b].is_some());
            let grows =
                |a: &Argument| matches!(a, Argument::Out(b) if !matches!(grown(programs, *b), Grown::Not));
            (!one.args.iter().any(|a| has_rows(a) || grows(a))).then_some(())
        }
        _ => None,
    }
}

/// The divisors of a positive number, the largest first. The size of the inner part of a batch axis is one of them: batch
/// elements are the outermost part of the axis unless that fails.
pub(crate) fn divisors(n: i64) -> Vec<i64> {
    let small: Vec<i64> = (1..=n.isqrt()).filter(|d| n % d == 0).collect();
    let large = small.iter().map(|d| n / d);
    let mut divisors: Vec<i64> = large.chain(small.iter().rev().copied()).collect();
    divisors.dedup();
    divisors
}

/// The value of a nest with the batch coordinate removed from all positions, if this is the batch axis of its result; `None`
/// if it depends on the batch element otherwise. The coordinate is split into three variables, [`SPLIT_VARS`], and each batch
/// axis into its outer and inner part.
pub(crate) fn row_of(nest: &Nest, axes: &BatchAxes, size: i64, batch: BatchAxis) -> Option<Expr> {
    let BatchAxis { axis, inner } = batch;
    let var = *nest.vars.get(axis)?;
    let [outer, element, within] = SPLIT_VARS.map(|id| move |size: i64| Index::var(Var { id, size }));
    let position = outer(var.size / (size * inner)) * (size * inner) + element(size) * inner + within(inner);
    let value = nest.value.substitute(&|v| if v == var { position.clone() } else { Index::var(v) });
    without_row(&value, axes, Some(size))
}

/// A value with the batch coordinate removed from all positions; `None` if it depends on the batch element otherwise. Without
/// a batch size it has no batch axis, and may read nothing that has one.
fn without_row(value: &Expr, axes: &BatchAxes, size: Option<i64>) -> Option<Expr> {
    let row = size.map(|size| Index::var(Var { id: SPLIT_VARS[1], size }));
    let is_mixed = Cell::new(false);
    let moved = value.map_loads(&|from, mut at, stored| {
        let Some(BatchAxis { axis, inner }) = axes[from] else { return Expr::Load { from, at, stored } };
        // Without a size nothing with rows may be read: there is no row to compare with.
        let size = size.unwrap_or(1);
        let element = at[axis].floor_div(inner).modulo(size);
        is_mixed.set(is_mixed.get() || row != Some(element));
        let rest = [at[axis].floor_div(inner * size), at[axis].modulo(inner)];
        at.splice(axis..=axis, rest);
        Expr::Load { from, at, stored }
    });
    let mut names_row = false;
    moved.each_free_var(&mut |v| names_row |= v.id == SPLIT_VARS[1]);
    moved.walk(&mut |e| {
        for index in e.indices() {
            index.each_var(&mut |v| names_row |= v.id == SPLIT_VARS[1]);
        }
    });
    (!is_mixed.get() && !names_row).then_some(moved)
}

fn collect(program: &LoopProgram, axes: &BatchAxes, name: &str) -> Result<Rows> {
    let mut places: [Vec<(usize, Option<usize>)>; 2] = [Vec::new(), Vec::new()];
    for (b, buffer) in program.buffers.entries() {
        let is_first = |d: &BatchAxis| d.axis == 0 && d.inner * SIZES[0] == buffer.shape[0];
        let bytes = axes[b].filter(is_first).map(|_| buffer.bytes() / SIZES[0] as usize);
        match buffer.place {
            Place::Input(n) => places[0].push((n.index(), bytes)),
            Place::Output(n) => {
                if bytes.is_none() {
                    let text = format!("{name} is not the first size of the result `{}`", buffer.name);
                    return Err(Error::new(Code::Unsupported, text).help(FIX));
                }
                places[1].push((n.index(), bytes));
            }
            _ => {}
        }
    }
    let [inputs, outputs] = places.map(|mut list| {
        list.sort_unstable();
        list.into_iter().map(|(_, bytes)| bytes).collect()
    });
    Ok(Rows { inputs, outputs })
}
