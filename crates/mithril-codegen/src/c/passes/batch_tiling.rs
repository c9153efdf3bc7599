//! Batch tiling: independent batch elements (the images of a batch) are computed a block at a time.
//!
//! A program of 8 images runs every step for all of them, and a tensor between two steps is 8 times as large as that of one
//! image: more than the caches of a processor hold. Where no image needs another, the program becomes one of fewer images,
//! and a call goes several times through its steps.
//!
//! Independence is read from the loops. The first size of the data that some inputs have in common, and for which it holds,
//! is the batch. The part of an index expression that counts batch elements is followed from step to step, as
//! `analysis/batch.rs` does it; where nothing else depends on it, it is removed from the loops, or counts fewer elements.

use std::collections::BTreeSet;
use std::result;

use mithril_ir::error::{Code, Error, Result};

use crate::c::analysis::batch::{DIGITS, Digit, Digits, divisors, row_of};
use crate::c::ir::expr::{BufferId, Expr, Index, Var};
use crate::c::ir::program::{Apart, Buffer, LoopProgram, LoopStep, LoopWork, Place};
use crate::c::options::Options;

/// Bytes that steps may read and write of tensors between them as long as these stay in the caches: what two cores
/// have of the last one, about.
const CACHE: i64 = 8 << 20;

/// Steps of less are not worth going through them once more.
const LEAST: i64 = 1 << 20;

/// Has as many rows computed at a time as is asked for, or an error says why that cannot be; by default as many as are
/// estimated to be quickest, if that can be.
pub fn tile(program: &mut LoopProgram, options: &Options) -> Result<()> {
    let block = options.block;
    // What is made of parameters would be made each time. Ranges of integers are found in all data of a call.
    if block.is_none() && (!options.pack || options.quantize.is_some()) {
        return Ok(());
    }
    let (size, found) = match (independent(program), block) {
        (Ok(found), _) => found,
        (Err(_), None) => return Ok(()),
        (Err(_), Some(_)) if program.buffers.iter().any(|b| is_data(b) && b.shape[0] == 0) => return Ok(()),
        (Err(reason), Some(block)) => {
            let text = format!("{block} rows cannot be computed at a time: {reason}");
            return Err(Error::new(Code::Unsupported, text).help("leave out the option block"));
        }
    };
    let block = match block.map(|block| block as i64) {
        None => best(program, size, &found),
        Some(block) if block > 0 && size % block == 0 => block,
        Some(block) => {
            let text = format!("block is {block}, which does not divide the {size} rows of the data");
            return Err(Error::new(Code::BadArgument, text).help("give a divisor of their number, such as 1"));
        }
    };
    if block < size {
        *program = divided(program, size, block, &found);
    }
    Ok(())
}

/// As many of so many rows as are estimated to be quickest to compute at a time; all of them if they meet.
pub fn estimate(program: &LoopProgram, rows: usize) -> usize {
    match independent(program) {
        Ok((size, found)) if size == rows as i64 => best(program, size, &found) as usize,
        _ => rows,
    }
}

/// What is known of a program whose rows never meet.
struct Found {
    /// Of each buffer the digit that counts rows, if it has some.
    digits: Digits,
    /// Of each step that fills such a buffer its value, with the row taken out of all positions.
    values: Vec<Option<Expr>>,
}

/// How many rows there are, if none needs another; else the reason.
fn independent(program: &LoopProgram) -> result::Result<(i64, Found), String> {
    let is_changed = |b: &Buffer| matches!(b.place, Place::State { .. });
    if !program.updates.is_empty() || program.buffers.iter().any(is_changed) {
        return Err("the model changes states, or data that were donated".to_owned());
    }
    let mut sizes: Vec<i64> = program.buffers.iter().filter(|b| is_data(b)).map(|b| b.shape[0]).collect();
    let mut known = BTreeSet::new();
    sizes.retain(|&size| size > 0 && known.insert(size));
    let mut reason = "no data have rows".to_owned();
    for (i, &size) in sizes.iter().enumerate() {
        match of_size(program, size) {
            Ok(found) => return Ok((size, found)),
            Err(other) if i == 0 => reason = other,
            Err(_) => {}
        }
    }
    Err(reason)
}

/// Whether that is an input that may have rows.
fn is_data(buffer: &Buffer) -> bool {
    matches!(buffer.place, Place::Input(_)) && !buffer.is_param && !buffer.shape.is_empty()
}

/// What is known if all data whose first size is this one have so many rows; else why some rows meet.
fn of_size(program: &LoopProgram, size: i64) -> result::Result<Found, String> {
    let digit = |b: &Buffer| (is_data(b) && b.shape[0] == size).then_some(Digit { axis: 0, inside: 1 });
    let mut found = Found { digits: program.buffers.iter().map(digit).collect(), values: Vec::new() };
    for step in &program.steps {
        let value = follow(program, step, size, &mut found.digits)?;
        found.values.push(value);
    }
    for (step, value) in program.steps.iter().zip(&found.values) {
        // What was filled without rows, and is changed row by row later.
        if value.is_none() && step.writes().iter().any(|b| found.digits[*b].is_some()) {
            return Err(meet(step));
        }
    }
    for (buffer, digit) in program.buffers.iter().zip(&found.digits) {
        let is_whole = digit.is_some_and(|d| d.axis == 0 && d.inside * size == buffer.shape[0]);
        if matches!(buffer.place, Place::Output(_)) && !is_whole {
            return Err(format!("`{}` does not have one row for each row of the data", buffer.name));
        }
    }
    Ok(found)
}

fn meet(step: &LoopStep) -> String {
    format!("`{}` in {} does not treat each row by itself", step.name, step.origin)
}

/// The value of a step that fills rows from rows, without them; `None` if it has nothing to do with rows, the reason if
/// they meet in it.
fn follow(
    program: &LoopProgram,
    step: &LoopStep,
    size: i64,
    digits: &mut Digits,
) -> result::Result<Option<Expr>, String> {
    let has_rows = |b: &BufferId| digits[*b].is_some();
    if !step.reads().iter().chain(&step.writes()).any(has_rows) {
        return Ok(None);
    }
    let LoopWork::Nest(nest) = &step.work else { return Err(meet(step)) };
    let shape = &program.buffers[nest.to].shape;
    let axes = shape.iter().enumerate().filter(|(_, n)| *n % size == 0);
    let mut candidates =
        axes.flat_map(|(axis, n)| divisors(n / size).into_iter().map(move |inside| Digit { axis, inside }));
    let found = candidates.find_map(|digit| Some((digit, row_of(nest, digits, size, digit)?)));
    let (digit, value) = found.ok_or_else(|| meet(step))?;
    if digits[nest.to].is_some_and(|before| before != digit) {
        return Err(meet(step));
    }
    digits[nest.to] = Some(digit);
    Ok(Some(value))
}

/// The program of so many rows.
fn divided(program: &LoopProgram, size: i64, rows: i64, found: &Found) -> LoopProgram {
    let Found { digits, values } = found;
    let mut program = program.clone();
    for (buffer, digit) in program.buffers.iter_mut().zip(digits) {
        if let Some(Digit { axis, .. }) = digit {
            buffer.shape[*axis] = buffer.shape[*axis] / size * rows;
        }
    }
    for (step, value) in program.steps.iter_mut().zip(values) {
        let (LoopWork::Nest(nest), Some(value)) = (&mut step.work, value) else { continue };
        let Some(Digit { axis, inside }) = digits[nest.to] else { continue };
        let var = Var { size: nest.vars[axis].size / size * rows, ..nest.vars[axis] };
        let at = Index::var(var);
        let row = at.floor_div(inside).modulo(rows);
        let [outside, _, within] = DIGITS;
        let value = value.substitute(&|v| match v.id {
            id if id == outside => at.floor_div(inside * rows),
            id if id == within => at.modulo(inside),
            _ => Index::var(v),
        });
        nest.vars[axis] = var;
        nest.value = value.map_loads(&|from, mut at, stored| {
            if let Some(Digit { axis, inside }) = digits[from] {
                let within = at.remove(axis + 1);
                at[axis] = at[axis].clone() * (rows * inside) + row.clone() * inside + within;
            }
            Expr::Load { from, at, stored }
        });
    }
    let has_rows = |(b, digit): (&Buffer, &Option<Digit>)| match b.place {
        Place::Input(n) => digit.map(|_| n),
        _ => None,
    };
    let inputs = program.buffers.iter().zip(digits).filter_map(has_rows).collect();
    program.apart = Some(Apart { times: (size / rows) as usize, inputs });
    program
}

/// So many rows at a time that least goes through memory: tensors between steps, where they are too large for the
/// caches, and the parameters once more each time.
fn best(program: &LoopProgram, size: i64, found: &Found) -> i64 {
    let bytes = |b: BufferId| program.buffers[b].bytes() as i64;
    let between = |step: &LoopStep| -> i64 {
        let mut all: Vec<BufferId> = step.reads();
        all.extend(step.writes());
        all.sort_unstable();
        all.dedup();
        let is_between = |b: &BufferId| program.buffers[*b].is_temporary() && found.digits[*b].is_some();
        all.into_iter().filter(is_between).map(bytes).sum()
    };
    let steps: Vec<i64> = program.steps.iter().map(between).collect();
    let read: BTreeSet<BufferId> = program.steps.iter().flat_map(LoopStep::reads).collect();
    let parameters: i64 = read.into_iter().filter(|b| program.buffers[*b].is_param).map(bytes).sum();
    let through_memory = |rows: i64| -> i64 {
        let large = steps.iter().filter(|bytes| *bytes / size * rows > CACHE);
        large.sum::<i64>() + size / rows * parameters
    };
    let largest = steps.iter().max().copied().unwrap_or(0);
    let worth = |rows: &i64| *rows == size || largest / size * rows >= LEAST;
    divisors(size).into_iter().filter(worth).min_by_key(|&rows| through_memory(rows)).unwrap_or(size)
}
