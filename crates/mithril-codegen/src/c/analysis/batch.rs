//! A size that is an argument when running: whether a program only carries it along, and the function that walks
//! through any number of rows in blocks of those that the program computes.
//!
//! That is looked at in the loops of the ops, for two sizes that are prime. Of every tensor that grows with the size it
//! is known which digit of a position counts the rows. A row of a result may then read the same row of its operands and
//! whatever has no rows, and nothing in it may depend on which row it is or how many there are: with the digit taken
//! out, the loops for both sizes have to be the same.

use std::cell::Cell;

use mithril_ir::error::{Code, Error, Result};

use crate::c::ir::expr::{Argument, BufferId, Expr, Index, Var};
use crate::c::ir::program::{LoopProgram, LoopStep, LoopWork, Nest, Place};
use crate::ids::Table;

/// Sizes that are tried: no digit of a position is divided by them by chance.
pub const SIZES: [i64; 2] = [10_007, 10_009];

/// Variables of a batched result: around the rows, the row, inside of a row.
pub(crate) const DIGITS: [u32; 3] = [u32::MAX - 2, u32::MAX - 1, u32::MAX];

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
    let mut digits: Digits = Table::beside(&first.buffers, None);
    for b in first.buffers.ids() {
        let slot = &mut digits[b];
        let buffer = &first.buffers[b];
        match (&buffer.place, grown(programs, b)) {
            (_, Grown::Not) => {}
            (Place::Input(_), Grown::Axis(0, inside)) => *slot = Some(Digit { axis: 0, inside }),
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
        step(programs, [one, two], &mut digits).ok_or_else(|| mixed(Some(one), "", name))?;
    }
    collect(first, &digits, name)
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

/// Which digit of a position counts the rows: on an axis, above so many elements of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Digit {
    pub axis: usize,
    pub inside: i64,
}

/// Of each buffer the digit that counts rows, if it has some.
pub(crate) type Digits = Table<BufferId, Option<Digit>>;

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

/// Finds how the results of a step have rows; `None` if rows mix.
fn step(programs: &[LoopProgram; 2], steps: [&LoopStep; 2], digits: &mut Digits) -> Option<()> {
    match (&steps[0].work, &steps[1].work) {
        (LoopWork::Nest(one), LoopWork::Nest(two)) if one.to == two.to => {
            let (axis, times) = match grown(programs, one.to) {
                Grown::Not => {
                    let free = |nest: &Nest| without_row(&nest.value, digits, None);
                    return (free(one)? == free(two)?).then_some(());
                }
                Grown::Axis(axis, times) => (axis, times),
                Grown::Otherwise => return None,
            };
            let inside = divisors(times).into_iter().find(|&inside| {
                let row =
                    |which: usize, nest: &Nest| row_of(nest, digits, SIZES[which], Digit { axis, inside });
                row(0, one).is_some_and(|found| row(1, two) == Some(found))
            })?;
            digits[one.to] = Some(Digit { axis, inside });
            Some(())
        }
        (LoopWork::Call(one), LoopWork::Call(two)) if one == two => {
            let has_rows =
                |a: &Argument| matches!(a, Argument::In(b) | Argument::Out(b) if digits[*b].is_some());
            let grows =
                |a: &Argument| matches!(a, Argument::Out(b) if !matches!(grown(programs, *b), Grown::Not));
            (!one.args.iter().any(|a| has_rows(a) || grows(a))).then_some(())
        }
        _ => None,
    }
}

/// The numbers that divide one above 0, the largest first. What lies inside of the digit that counts rows on an axis is
/// one of them: rows are outside of whatever shares the axis with them, unless that fails.
pub(crate) fn divisors(n: i64) -> Vec<i64> {
    let small: Vec<i64> = (1..=n.isqrt()).filter(|d| n % d == 0).collect();
    let large = small.iter().map(|d| n / d);
    let mut found: Vec<i64> = large.chain(small.iter().rev().copied()).collect();
    found.dedup();
    found
}

/// The value of a nest with the rows taken out of all positions, if this digit of its result counts them; `None` if it
/// depends on them otherwise. The axis is written as three digits, [`DIGITS`], and each that has rows is two axes: what
/// is outside and inside of them.
pub(crate) fn row_of(nest: &Nest, digits: &Digits, size: i64, digit: Digit) -> Option<Expr> {
    let var = *nest.vars.get(digit.axis)?;
    let inside = digit.inside;
    let [o, b, i] = DIGITS.map(|id| move |size: i64| Index::var(Var { id, size }));
    let position = o(var.size / (size * inside)) * (size * inside) + b(size) * inside + i(inside);
    let value = nest.value.substitute(&|v| if v == var { position.clone() } else { Index::var(v) });
    without_row(&value, digits, Some(size))
}

/// A value with the rows taken out of all positions; `None` if it depends on them otherwise. Without a size there are no
/// rows, and nothing that has some may be read.
fn without_row(value: &Expr, digits: &Digits, size: Option<i64>) -> Option<Expr> {
    let row = size.map(|size| Index::var(Var { id: DIGITS[1], size }));
    let is_mixed = Cell::new(false);
    let found = value.map_loads(&|from, mut at, stored| {
        let Some(Digit { axis, inside }) = digits[from] else { return Expr::Load { from, at, stored } };
        // Without a size nothing with rows may be read: there is no row to compare with.
        let size = size.unwrap_or(1);
        let digit = at[axis].floor_div(inside).modulo(size);
        is_mixed.set(is_mixed.get() || row != Some(digit));
        let rest = [at[axis].floor_div(inside * size), at[axis].modulo(inside)];
        at.splice(axis..=axis, rest);
        Expr::Load { from, at, stored }
    });
    let mut names_row = false;
    found.each_free_var(&mut |v| names_row |= v.id == DIGITS[1]);
    found.walk(&mut |e| {
        for index in e.indices() {
            index.each_var(&mut |v| names_row |= v.id == DIGITS[1]);
        }
    });
    (!is_mixed.get() && !names_row).then_some(found)
}

fn collect(program: &LoopProgram, digits: &Digits, name: &str) -> Result<Rows> {
    let mut places: [Vec<(usize, Option<usize>)>; 2] = [Vec::new(), Vec::new()];
    for (b, buffer) in program.buffers.entries() {
        let is_first = |d: &Digit| d.axis == 0 && d.inside * SIZES[0] == buffer.shape[0];
        let bytes = digits[b].filter(is_first).map(|_| buffer.bytes() / SIZES[0] as usize);
        match buffer.place {
            Place::Input(n) => places[0].push((n, bytes)),
            Place::Output(n) => {
                if bytes.is_none() {
                    let text = format!("{name} is not the first size of the result `{}`", buffer.name);
                    return Err(Error::new(Code::Unsupported, text).help(FIX));
                }
                places[1].push((n, bytes));
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
