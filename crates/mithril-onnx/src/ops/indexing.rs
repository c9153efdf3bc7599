//! Elements at positions that are data.

use std::sync::Arc;

use mithril_ir::{DType, Dim, Lit, Result, Tensor, ValueId};

use super::{Table, one};
use crate::context::{Value, malformed};
use crate::node::{Use, op};

type Outputs = Result<Vec<Value>>;

pub static OPS: Table = &[
    ("Gather", gather),
    ("GatherElements", gather_elements),
    ("GatherND", gather_nd),
    ("Scatter", scatter_elements),
    ("ScatterElements", scatter_elements),
    ("ScatterND", scatter_nd),
    ("TensorScatter", tensor_scatter),
    ("OneHot", one_hot),
    ("Compress", compress),
    ("ReverseSequence", reverse_sequence),
];

/// Positions that are data are looked up; one that is known is a part of the axis, as if it had been written so.
fn gather(u: &mut Use<'_>) -> Outputs {
    let (x, axis) = (u.x(0)?, u.int("axis", 0)?);
    let known = if u.has(1) { u.known_sizes(1).filter(|known| known.is_scalar) } else { None };
    let Some(index) = known.and_then(|known| known.dims.first()?.known()) else {
        let indices = u.x(1)?;
        return one(op!(u, "take", x, indices, axis)?);
    };
    let mut key = vec![Lit::Slice(Arc::new([Lit::None, Lit::None, Lit::None])); Use::axis(axis, u.rank(x))?];
    key.push(Lit::int(index));
    one(op!(u, "getitem", x, Lit::tuple(key))?)
}

fn gather_elements(u: &mut Use<'_>) -> Outputs {
    let (mut x, indices) = (u.x(0)?, u.x(1)?);
    let axis = Use::axis(u.int("axis", 0)?, u.rank(x))?;
    x = cut(u, x, indices, axis)?;
    one(op!(u, "take_along_axis", x, indices, axis as i64)?)
}

/// The first elements along all axes but one, as many as there are indices.
fn cut(u: &mut Use<'_>, x: ValueId, indices: ValueId, axis: usize) -> Result<ValueId> {
    let (own, counts) = (u.shape(x), u.shape(indices));
    if own.rank() != counts.rank() {
        return Err(malformed("data and indices have a different number of axes"));
    }
    let ends: Vec<Lit> = (0..own.rank())
        .map(|i| if i == axis || own[i] == counts[i] { Lit::None } else { counts[i].clone().into() })
        .collect();
    if ends.iter().all(Lit::is_none) {
        return Ok(x);
    }
    let starts = vec![Lit::None; own.rank()];
    op!(u, "slice", x, starts, ends)
}

/// The parts of the last axis of indices, each without that axis.
fn columns(u: &mut Use<'_>, indices: ValueId) -> Result<Vec<ValueId>> {
    let shape = u.shape(indices);
    let count = shape
        .last()
        .and_then(Dim::known)
        .ok_or_else(|| Use::refuse("its indices have a last axis of unknown size"))?;
    (0..count).map(|i| op!(u, "take", indices, i, -1_i64)).collect()
}

fn gather_nd(u: &mut Use<'_>) -> Outputs {
    let (x, indices) = (u.x(0)?, u.x(1)?);
    let batch =
        usize::try_from(u.int("batch_dims", 0)?).map_err(|_| malformed("`batch_dims` is negative"))?;
    let mut places = Vec::new();
    let shape = u.shape(indices);
    if shape.rank() <= batch {
        return Err(malformed("`batch_dims` is not smaller than the number of axes of the indices"));
    }
    // A position along each batch axis, beside the indices.
    for i in 0..batch {
        let range = op!(u, "arange", Lit::from(shape[i].clone()), Lit::None, 1_i64, DType::I64)?;
        let mut sizes = vec![Dim::ONE; shape.rank() - 1];
        sizes[i] = shape[i].clone();
        places.push(op!(u, "reshape", range, sizes)?);
    }
    places.extend(columns(u, indices)?);
    let key = Lit::tuple(places.iter().map(|_| Lit::text("tensor")));
    let mut args = vec![x, u.cx.lit(key)];
    args.extend(places);
    one(u.op("getitem", &args)?)
}

fn reduction(u: &Use<'_>) -> Result<&'static str> {
    Ok(match u.text("reduction", "none")?.as_str() {
        "none" => "none",
        "add" => "sum",
        "mul" => "prod",
        "max" => "amax",
        "min" => "amin",
        other => return Err(malformed(format!("the reduction is {other:?}"))),
    })
}

fn scatter_elements(u: &mut Use<'_>) -> Outputs {
    let (x, indices, source) = (u.x(0)?, u.x(1)?, u.x(2)?);
    let axis = Use::axis(u.int("axis", 0)?, u.rank(x))? as i64;
    let indices = counted(u, indices, x, axis)?;
    match reduction(u)? {
        "none" => one(op!(u, "scatter", x, axis, indices, source)?),
        how => one(op!(u, "scatter_reduce", x, axis, indices, source, how)?),
    }
}

/// Indices counted from the front: negative ones count from the end.
fn counted(u: &mut Use<'_>, indices: ValueId, x: ValueId, axis: i64) -> Result<ValueId> {
    if let Some(known) = u.cx.constant(indices)
        && (0..known.len()).all(|i| known.get(i).i64() >= 0)
    {
        return Ok(indices);
    }
    let size = u.shape(x)[Use::axis(axis, u.rank(x))?].clone();
    let negative = op!(u, "less", indices, 0_i64)?;
    let moved = op!(u, "add", indices, size)?;
    op!(u, "where", negative, moved, indices)
}

fn scatter_nd(u: &mut Use<'_>) -> Outputs {
    let (x, indices, source) = (u.x(0)?, u.x(1)?, u.x(2)?);
    let how = reduction(u)?;
    if how == "none" || how == "sum" {
        let places = columns(u, indices)?;
        let key = Lit::tuple(places.iter().map(|_| Lit::text("tensor")));
        let mut args = vec![x, u.cx.lit(key), source, u.cx.lit(how == "sum")];
        args.extend(places);
        return one(u.op("index_put", &args)?);
    }
    // Other reductions: the axes that are indexed as one, along which rows are reduced.
    let shape = u.shape(x);
    let places = columns(u, indices)?;
    let (front, back) = shape.split_at(places.len().min(shape.rank()));
    let product = |dims: &[Dim]| dims.iter().fold(Dim::ONE, |a, b| &a * b);
    let mut flat: Option<ValueId> = None;
    for (i, &place) in places.iter().enumerate() {
        let place = counted(u, place, x, i as i64)?;
        flat = Some(match flat {
            None => place,
            Some(sum) => {
                let sum = op!(u, "multiply", sum, front[i].clone())?;
                op!(u, "add", sum, place)?
            }
        });
    }
    let flat = flat.ok_or_else(|| malformed("its indices are empty"))?;
    let (rows, width, count) = (product(front), product(back), u.shape(flat).numel());
    let table = op!(u, "reshape", x, vec![rows, width.clone()])?;
    let source = op!(u, "reshape", source, vec![count.clone(), width.clone()])?;
    let flat = op!(u, "reshape", flat, vec![count.clone(), Dim::ONE])?;
    let flat = op!(u, "broadcast_to", flat, vec![count, width])?;
    let y = op!(u, "scatter_reduce", table, 0_i64, flat, source, how)?;
    one(op!(u, "reshape", y, shape.to_vec())?)
}

/// Writes new rows into a cache, from a position of each example on.
fn tensor_scatter(u: &mut Use<'_>) -> Outputs {
    let (x, update, places) = (u.x(0)?, u.x(1)?, u.optional(2)?);
    let (shape, rank) = (u.shape(x), u.rank(x));
    let axis = Use::axis(u.int("axis", -2)?, rank)?;
    let (size, count) = (shape[axis].clone(), u.shape(update)[axis].clone());
    let mut steps = op!(u, "arange", Lit::from(count.clone()), Lit::None, 1_i64, DType::I64)?;
    if let Some(start) = places {
        let start = u.cast(start, DType::I64)?;
        let start = op!(u, "expand_dims", start, 1_i64)?;
        steps = op!(u, "add", start, steps)?;
    }
    if u.text("mode", "linear")? == "circular" {
        steps = op!(u, "remainder", steps, size)?;
    }
    let mut sizes = vec![Dim::ONE; rank];
    if places.is_some() {
        sizes[0] = shape[0].clone();
    }
    sizes[axis] = count;
    let indices = op!(u, "reshape", steps, sizes)?;
    let whole = u.shape(update).to_vec();
    let indices = op!(u, "broadcast_to", indices, whole)?;
    one(op!(u, "scatter", x, axis as i64, indices, update)?)
}

/// Of two values the second at the index, the first elsewhere. An index out of range gives none.
fn one_hot(u: &mut Use<'_>) -> Outputs {
    let (indices, values) = (u.x(0)?, u.x(2)?);
    let depth = match u.dims(1) {
        Ok(dims) => dims.first().and_then(Dim::known),
        Err(_) => Some(u.number(1)? as i64),
    };
    let depth = depth.ok_or_else(|| Use::refuse("its depth is a symbol"))?;
    let rank = u.rank(indices) as i64 + 1;
    let axis = u.int("axis", -1)?;
    let axis = Use::axis(axis, rank as usize)? as i64;
    let dtype = u.dtype(indices);
    let indices = op!(u, "expand_dims", indices, axis)?;
    u.has(1);
    let limit = u.like(depth as f64, indices);
    let negative = {
        let zero = u.like(0.0, indices);
        op!(u, "less", indices, zero)?
    };
    let moved = op!(u, "add", indices, limit)?;
    let indices = op!(u, "where", negative, moved, indices)?;
    let mut sizes = vec![1_i64; rank as usize];
    sizes[axis as usize] = depth;
    let range = op!(u, "arange", depth, Lit::None, 1_i64, dtype)?;
    let range = op!(u, "reshape", range, sizes)?;
    let hot = op!(u, "equal", indices, range)?;
    let (off, on) = (op!(u, "take", values, 0_i64, 0_i64)?, op!(u, "take", values, 1_i64, 0_i64)?);
    one(op!(u, "where", hot, on, off)?)
}

/// The slices where a condition holds, which has to be known: it decides about the shape.
fn compress(u: &mut Use<'_>) -> Outputs {
    let (x, condition) = (u.x(0)?, u.constant(1)?);
    let chosen: Vec<i64> =
        (0..condition.len()).filter(|&i| condition.get(i).bool()).map(|i| i as i64).collect();
    let axis: Lit = u.optional_int("axis")?.map_or(Lit::None, Lit::from);
    let chosen = u.cx.lit(Tensor::of(&[chosen.len()], chosen)?);
    one(op!(u, "take", x, chosen, axis)?)
}

/// The first elements of each example in reverse order, as many as `sequence_lens` says.
fn reverse_sequence(u: &mut Use<'_>) -> Outputs {
    let (x, lengths) = (u.x(0)?, u.x(1)?);
    let (time, batch) = (u.int("time_axis", 0)?, u.int("batch_axis", 1)?);
    let (shape, rank) = (u.shape(x), u.rank(x));
    let (time, batch) = (Use::axis(time, rank)?, Use::axis(batch, rank)?);
    let mut sizes = vec![Dim::ONE; rank];
    sizes[batch] = shape[batch].clone();
    let lengths = op!(u, "reshape", lengths, sizes)?;
    let mut sizes = vec![Dim::ONE; rank];
    sizes[time] = shape[time].clone();
    let steps = op!(u, "arange", Lit::from(shape[time].clone()), Lit::None, 1_i64, DType::I64)?;
    let steps = op!(u, "reshape", steps, sizes)?;
    let last = op!(u, "subtract", lengths, 1_i64)?;
    let mirrored = op!(u, "subtract", last, steps)?;
    let inside = op!(u, "less", steps, lengths)?;
    let places = op!(u, "where", inside, mirrored, steps)?;
    one(op!(u, "take_along_axis", x, places, time as i64)?)
}
