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

use crate::c::analysis::batch::{BatchAxes, BatchAxis, SPLIT_VARS, divisors, row_of};
use crate::c::ir::expr::{BufferId, Expr, Index, Var};
use crate::c::ir::program::{BatchTiling, LoopBuffer, LoopProgram, LoopStep, LoopWork, Place};
use crate::c::request::Request;

/// Bytes that steps may read and write of tensors between them as long as these stay in the caches: what two cores
/// have of the last one, about.
const CACHE: i64 = 8 << 20;

/// Steps of less are not worth going through them once more.
const LEAST: i64 = 1 << 20;

/// Has as many rows computed at a time as is asked for, or an error says why that cannot be; by default as many as are
/// estimated to be quickest, if that can be.
pub fn tile(program: &mut LoopProgram, request: &Request) -> Result<()> {
    // With an argument for their number, the program is that of one block.
    let block = request.options.block.filter(|_| request.options.batch.is_none());
    if request.mesh.is_some() {
        let text = "the ranks of a mesh compute their part of a batch at once";
        let error = || Error::new(Code::Unsupported, text).help("leave out the option block");
        return block.map_or(Ok(()), |_| Err(error()));
    }
    // What is made of parameters would be made each time. Ranges of integers are found in all data of a call.
    if block.is_none() && (!request.options.pack || request.options.quantize.is_some()) {
        return Ok(());
    }
    let (size, independence) = match (independent(program), block) {
        (Ok(independence), _) => independence,
        (Err(_), None) => return Ok(()),
        (Err(_), Some(_)) if program.buffers.iter().any(|b| is_data(b) && b.shape[0] == 0) => return Ok(()),
        (Err(reason), Some(block)) => {
            let text = format!("{block} rows cannot be computed at a time: {reason}");
            return Err(Error::new(Code::Unsupported, text).help("leave out the option block"));
        }
    };
    let block = match block.map(|block| block as i64) {
        None => best(program, size, &independence),
        Some(block) if block > 0 && size % block == 0 => block,
        Some(block) => {
            let text = format!("block is {block}, which does not divide the {size} rows of the data");
            return Err(Error::new(Code::BadArgument, text).help("give a divisor of their number, such as 1"));
        }
    };
    if block < size {
        *program = divided(program, size, block, &independence);
    }
    Ok(())
}

/// As many of so many rows as are estimated to be quickest to compute at a time; all of them if they meet.
pub fn estimate(program: &LoopProgram, rows: usize) -> usize {
    match independent(program) {
        Ok((size, independence)) if size == rows as i64 => best(program, size, &independence) as usize,
        _ => rows,
    }
}

/// What is known of a program whose batch elements are independent.
struct Independence {
    /// The batch axis of each buffer that has one.
    axes: BatchAxes,
    /// The value of each step that fills such a buffer, with the batch coordinate removed from all positions.
    values: Vec<Option<Expr>>,
}

/// How many rows there are, if none needs another; else the reason.
fn independent(program: &LoopProgram) -> result::Result<(i64, Independence), String> {
    if !program.updates.is_empty() || program.buffers.iter().any(LoopBuffer::is_state) {
        return Err("the model changes states, or data that were donated".to_owned());
    }
    let mut sizes: Vec<i64> = program.buffers.iter().filter(|b| is_data(b)).map(|b| b.shape[0]).collect();
    let mut known = BTreeSet::new();
    sizes.retain(|&size| size > 0 && known.insert(size));
    let mut reason = "no data have rows".to_owned();
    for (i, &size) in sizes.iter().enumerate() {
        match of_size(program, size) {
            Ok(independence) => return Ok((size, independence)),
            Err(other) if i == 0 => reason = other,
            Err(_) => {}
        }
    }
    Err(reason)
}

/// Whether that is an input that may have rows.
fn is_data(buffer: &LoopBuffer) -> bool {
    matches!(buffer.place, Place::Input(_)) && !buffer.is_param && !buffer.shape.is_empty()
}

/// What is known if all data whose first size is this one have so many rows; else why some rows meet.
fn of_size(program: &LoopProgram, size: i64) -> result::Result<Independence, String> {
    let batch =
        |b: &LoopBuffer| (is_data(b) && b.shape[0] == size).then_some(BatchAxis { axis: 0, inner: 1 });
    let mut independence =
        Independence { axes: program.buffers.iter().map(batch).collect(), values: Vec::new() };
    for step in &program.steps {
        let value = follow(program, step, size, &mut independence.axes)?;
        independence.values.push(value);
    }
    for (step, value) in program.steps.iter().zip(&independence.values) {
        // What was filled without rows, and is changed row by row later.
        if value.is_none() && step.writes().iter().any(|b| independence.axes[*b].is_some()) {
            return Err(meet(step));
        }
    }
    for (buffer, batch) in program.buffers.iter().zip(&independence.axes) {
        let is_whole = batch.is_some_and(|d| d.axis == 0 && d.inner * size == buffer.shape[0]);
        if matches!(buffer.place, Place::Output(_)) && !is_whole {
            return Err(format!("`{}` does not have one row for each row of the data", buffer.name));
        }
    }
    Ok(independence)
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
    axes: &mut BatchAxes,
) -> result::Result<Option<Expr>, String> {
    let has_rows = |b: &BufferId| axes[*b].is_some();
    if !step.reads().iter().chain(&step.writes()).any(has_rows) {
        return Ok(None);
    }
    let LoopWork::Nest(nest) = &step.work else { return Err(meet(step)) };
    let shape = &program.buffers[nest.to].shape;
    let multiples = shape.iter().enumerate().filter(|(_, n)| *n % size == 0);
    let mut candidates = multiples
        .flat_map(|(axis, n)| divisors(n / size).into_iter().map(move |inner| BatchAxis { axis, inner }));
    let row = candidates.find_map(|batch| Some((batch, row_of(nest, axes, size, batch)?)));
    let (batch, value) = row.ok_or_else(|| meet(step))?;
    if axes[nest.to].is_some_and(|before| before != batch) {
        return Err(meet(step));
    }
    axes[nest.to] = Some(batch);
    Ok(Some(value))
}

/// The program of so many rows.
fn divided(program: &LoopProgram, size: i64, rows: i64, independence: &Independence) -> LoopProgram {
    let Independence { axes, values } = independence;
    let mut program = program.clone();
    for (buffer, batch) in program.buffers.iter_mut().zip(axes) {
        if let Some(BatchAxis { axis, .. }) = batch {
            buffer.shape[*axis] = buffer.shape[*axis] / size * rows;
        }
    }
    for (step, value) in program.steps.iter_mut().zip(values) {
        let (LoopWork::Nest(nest), Some(value)) = (&mut step.work, value) else { continue };
        let Some(BatchAxis { axis, inner }) = axes[nest.to] else { continue };
        let var = Var { size: nest.vars[axis].size / size * rows, ..nest.vars[axis] };
        let at = Index::var(var);
        let row = at.floor_div(inner).modulo(rows);
        let [outside, _, within] = SPLIT_VARS;
        let value = value.substitute(&|v| match v.id {
            id if id == outside => at.floor_div(inner * rows),
            id if id == within => at.modulo(inner),
            _ => Index::var(v),
        });
        nest.vars[axis] = var;
        nest.value = value.map_loads(&|from, mut at, stored| {
            if let Some(BatchAxis { axis, inner }) = axes[from] {
                let within = at.remove(axis + 1);
                at[axis] = at[axis].clone() * (rows * inner) + row.clone() * inner + within;
            }
            Expr::Load { from, at, stored }
        });
    }
    let has_rows = |(b, batch): (&LoopBuffer, &Option<BatchAxis>)| match b.place {
        Place::Input(n) => batch.map(|_| n),
        _ => None,
    };
    let inputs = program.buffers.iter().zip(axes).filter_map(has_rows).collect();
    program.tiling = Some(BatchTiling { tiles: (size / rows) as usize, inputs });
    program
}

/// So many rows at a time that least goes through memory: tensors between steps, where they are too large for the
/// caches, and the parameters once more each time.
fn best(program: &LoopProgram, size: i64, independence: &Independence) -> i64 {
    let bytes = |b: BufferId| program.buffers[b].bytes() as i64;
    let between = |step: &LoopStep| -> i64 {
        let mut all: Vec<BufferId> = step.reads();
        all.extend(step.writes());
        all.sort_unstable();
        all.dedup();
        let is_between = |b: &BufferId| program.buffers[*b].is_temporary() && independence.axes[*b].is_some();
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
