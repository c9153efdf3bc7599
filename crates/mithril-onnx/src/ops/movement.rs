//! Shapes, order and parts of tensors.

use mithril_ir::{Dim, Lit, Result, ValueId};

use super::{Table, one};
use crate::context::{Sizes, Value, malformed};
use crate::node::{Use, op};

type Outputs = Result<Vec<Value>>;

pub static OPS: Table = &[
    ("Shape", shape),
    ("Size", |u| {
        let x = u.x(0)?;
        let dims = vec![u.shape(x).numel()];
        Ok(vec![u.cx.known_or_sizes(Sizes { dims, is_scalar: true, dtype: mithril_ir::DType::I64 })])
    }),
    ("Reshape", reshape),
    ("Flatten", flatten),
    ("Transpose", |u| {
        let x = u.x(0)?;
        let axes: Lit = u.ints("perm")?.map_or(Lit::None, Lit::from);
        one(op!(u, "transpose", x, axes)?)
    }),
    ("Squeeze", squeeze),
    ("Unsqueeze", |u| {
        let (x, axes) = (u.x(0)?, axes(u)?.ok_or_else(|| malformed("the axes are missing"))?);
        one(op!(u, "expand_dims", x, axes)?)
    }),
    ("Expand", expand),
    ("Tile", |u| {
        let (x, reps) = (u.x(0)?, u.dims(1)?);
        if reps.len() != u.rank(x) {
            return Err(malformed(format!("{} repeats are given for {} axes", reps.len(), u.rank(x))));
        }
        one(op!(u, "tile", x, reps)?)
    }),
    ("Concat", |u| {
        let all = u.all()?;
        let axis = u.int("axis", 1)?;
        let mut args = vec![u.cx.lit(axis)];
        args.extend(all);
        one(u.op("concat", &args)?)
    }),
    ("Split", split),
    ("Slice", slice),
    ("Pad", pad),
    ("DepthToSpace", depth_to_space),
    ("SpaceToDepth", space_to_depth),
    ("CenterCropPad", center),
];

/// The axes of a node: an attribute, since opset 13 the second input.
fn axes(u: &Use<'_>) -> Result<Option<Vec<i64>>> {
    match u.ints("axes")? {
        Some(axes) => Ok(Some(axes)),
        None if u.has(1) => u.numbers(1).map(Some),
        None => Ok(None),
    }
}

fn shape(u: &mut Use<'_>) -> Outputs {
    let x = u.x(0)?;
    let shape = u.shape(x);
    let n = shape.rank() as i64;
    let at = |i: i64| (if i < 0 { i.saturating_add(n) } else { i }).clamp(0, n) as usize;
    let (start, end) = (at(u.int("start", 0)?), at(u.int("end", n)?));
    let dims = shape.get(start..end.max(start)).unwrap_or_default().to_vec();
    Ok(vec![u.cx.known_or_sizes(Sizes { dims, is_scalar: false, dtype: mithril_ir::DType::I64 })])
}

/// A size of 0 is that of the input, unless `allowzero` is set.
fn reshape(u: &mut Use<'_>) -> Outputs {
    let (x, mut sizes) = (u.x(0)?, u.dims(1)?);
    let own = u.shape(x);
    if !u.flag("allowzero", false)? {
        for (i, size) in sizes.iter_mut().enumerate().filter(|(_, n)| n.is(0)) {
            *size = own
                .get(i)
                .cloned()
                .ok_or_else(|| malformed("a size of 0 stands for an axis that the input lacks"))?;
        }
    }
    // A size that follows from the others keeps chains of reshapes simple, and -1 the code free of arithmetic.
    if *own == *sizes { one(x) } else { one(op!(u, "reshape", x, sizes)?) }
}

fn flatten(u: &mut Use<'_>) -> Outputs {
    let x = u.x(0)?;
    let shape = u.shape(x);
    let axis = u.int("axis", 1)?;
    let at = if axis < 0 { axis + shape.rank() as i64 } else { axis };
    let at = usize::try_from(at).ok().filter(|&n| n <= shape.rank());
    let at = at.ok_or_else(|| malformed(format!("axis {axis} does not exist")))?;
    let product = |dims: &[Dim]| dims.iter().fold(Dim::ONE, |a, b| &a * b);
    let (rows, columns) = (product(&shape[..at]), product(&shape[at..]));
    if at == 1 && columns.known() != Some(0) && !rows.is(0) {
        return one(op!(u, "reshape", x, vec![rows, Dim::Const(-1)])?);
    }
    one(op!(u, "reshape", x, vec![rows, columns])?)
}

fn squeeze(u: &mut Use<'_>) -> Outputs {
    let x = u.x(0)?;
    let axes = axes(u)?.unwrap_or_else(|| {
        let shape = u.shape(x);
        (0..shape.rank()).filter(|&i| shape[i].is(1)).map(|i| i as i64).collect()
    });
    one(op!(u, "squeeze", x, axes)?)
}

/// Both the input and the shape broadcast.
fn expand(u: &mut Use<'_>) -> Outputs {
    let (x, target) = (u.x(0)?, u.dims(1)?);
    let own = u.shape(x);
    let rank = own.rank().max(target.len());
    let at = |sizes: &[Dim], i: usize| {
        (i + sizes.len()).checked_sub(rank).and_then(|i| sizes.get(i)).cloned().unwrap_or(Dim::ONE)
    };
    let size = |i: usize| {
        let (a, b) = (at(&own, i), at(&target, i));
        if b.is(1) { a } else { b }
    };
    let sizes: Vec<Dim> = (0..rank).map(size).collect();
    if *own == *sizes { one(x) } else { one(op!(u, "broadcast_to", x, sizes)?) }
}

fn split(u: &mut Use<'_>) -> Outputs {
    let x = u.x(0)?;
    let axis = Use::axis(u.int("axis", 0)?, u.rank(x))?;
    let count = u.int("num_outputs", u.node.output.len() as i64)?;
    let sizes = match u.ints("split")? {
        Some(sizes) => Some(sizes),
        None if u.has(1) => Some(u.numbers(1)?),
        None => None,
    };
    let size = u.shape(x)[axis].clone();
    let sections: Lit = match (sizes, size.known()) {
        (Some(sizes), _) => sizes.into(),
        (None, Some(n)) => {
            let each = (n + count - 1) / count.max(1);
            let part = |i: i64| (n - each.saturating_mul(i)).clamp(0, each);
            (0..count).map(part).collect::<Vec<_>>().into()
        }
        (None, None) => count.into(),
    };
    let args = [x, u.cx.lit(sections), u.cx.lit(axis as i64)];
    Ok(u.outputs("split", &args)?.into_iter().map(Value::Graph).collect())
}

fn slice(u: &mut Use<'_>) -> Outputs {
    let x = u.x(0)?;
    let shape = u.shape(x);
    let (starts, ends, axes, steps);
    if u.opset < 10 {
        let list = |name: &str| -> Result<Option<Vec<Dim>>> {
            Ok(u.ints(name)?.map(|v| v.into_iter().map(Dim::from).collect()))
        };
        starts = list("starts")?.unwrap_or_default();
        ends = list("ends")?.unwrap_or_default();
        axes = u.ints("axes")?;
        steps = None;
    } else {
        (starts, ends) = (u.dims(1)?, u.dims(2)?);
        axes = if u.has(3) { Some(u.numbers(3)?) } else { None };
        steps = if u.has(4) { Some(u.numbers(4)?) } else { None };
    }
    let axes = axes.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = steps.unwrap_or_else(|| vec![1; starts.len()]);
    if ends.len() != starts.len() || axes.len() != starts.len() || steps.len() != starts.len() {
        return Err(malformed("starts, ends, axes and steps have different lengths"));
    }
    let rank = shape.rank();
    let mut bounds: [Vec<Lit>; 3] = [vec![Lit::None; rank], vec![Lit::None; rank], vec![1_i64.into(); rank]];
    for (i, axis) in axes.iter().enumerate() {
        let at = Use::axis(*axis, rank)?;
        let (start, end, step) = (&starts[i], &ends[i], steps[i]);
        if step == 0 {
            return Err(malformed("a step is 0"));
        }
        // Ends beyond the axis say: to the end.
        let far = |d: &Dim, positive: bool| {
            d.known()
                .is_some_and(|n| if positive { n >= i64::from(i32::MAX) } else { n <= -i64::from(i32::MAX) })
        };
        let forward = step > 0;
        let starts_at_once =
            (forward && (start.is(0) || far(start, false))) || (!forward && far(start, true));
        let ends_at_last =
            (forward && (far(end, true) || *end == shape[at])) || (!forward && far(end, false));
        bounds[0][at] = if starts_at_once { Lit::None } else { start.clone().into() };
        bounds[1][at] = if ends_at_last { Lit::None } else { end.clone().into() };
        bounds[2][at] = step.into();
    }
    if bounds[0].iter().chain(&bounds[1]).all(Lit::is_none) && bounds[2].iter().all(|s| *s == Lit::int(1)) {
        return one(x);
    }
    let last = (0..rank)
        .rev()
        .find(|&i| !bounds[0][i].is_none() || !bounds[1][i].is_none() || bounds[2][i] != Lit::int(1));
    for list in &mut bounds {
        list.truncate(last.map_or(0, |i| i + 1));
    }
    let [starts, ends, steps] = bounds;
    let steps = if steps.iter().all(|s| *s == Lit::int(1)) { Lit::None } else { Lit::tuple(steps) };
    one(op!(u, "slice", x, starts, ends, steps)?)
}

fn pad(u: &mut Use<'_>) -> Outputs {
    let x = u.x(0)?;
    let (shape, rank) = (u.shape(x), u.rank(x));
    let (pads, value, axes);
    if u.opset < 11 {
        let list = u.ints("pads")?.ok_or_else(|| malformed("`pads` is missing"))?;
        pads = list.into_iter().map(Dim::from).collect();
        value = u.float("value", 0.0)?;
        axes = None;
    } else {
        pads = u.dims(1)?;
        value = if u.has(2) { u.number(2)? } else { 0.0 };
        axes = if u.has(3) { Some(u.numbers(3)?) } else { None };
    }
    let axes = axes.unwrap_or_else(|| (0..rank as i64).collect());
    if pads.len() != 2 * axes.len() {
        return Err(malformed(format!("{} pads are given for {} axes", pads.len(), axes.len())));
    }
    let mut all = vec![[Dim::Const(0), Dim::Const(0)]; rank];
    for (i, axis) in axes.iter().enumerate() {
        all[Use::axis(*axis, rank)?] = [pads[i].clone(), pads[axes.len() + i].clone()];
    }
    let mode = u.text("mode", "constant")?;
    let mut x = x;
    if mode != "constant" && all.iter().flatten().any(|p| p.known().is_some_and(|n| n < 0)) {
        // What is cut off is not part of what is mirrored.
        let cut = |p: &Dim| p.known().filter(|&n| n < 0);
        let starts: Vec<Lit> = all.iter().map(|[a, _]| cut(a).map_or(Lit::None, |n| (-n).into())).collect();
        let ends: Vec<Lit> = all
            .iter()
            .zip(shape.iter())
            .map(|([_, b], size)| cut(b).map_or(Lit::None, |n| Lit::from(size + &Dim::Const(n))))
            .collect();
        x = op!(u, "slice", x, starts, ends)?;
        for p in all.iter_mut().flatten().filter(|p| p.known().is_some_and(|n| n < 0)) {
            *p = Dim::Const(0);
        }
    }
    if all.iter().flatten().all(|p| p.is(0)) {
        return one(x);
    }
    let pads = Lit::tuple(all.into_iter().map(Lit::tuple));
    let value = u.like(value, x);
    one(op!(u, "pad", x, pads, &*mode, value)?)
}

/// Channels become pixels, in the order that `mode` says.
fn depth_to_space(u: &mut Use<'_>) -> Outputs {
    let (x, r) = (u.x(0)?, u.int("blocksize", 1)?);
    let [n, c, h, w] = &u.shape(x)[..] else { return Err(malformed("its input has no 4 axes")) };
    let (n, h, w) = (n.clone(), h.clone(), w.clone());
    let c = c.known().filter(|c| r > 0 && r < 1 << 20 && c % (r * r) == 0);
    let c = c.ok_or_else(|| Use::refuse("its channels are not a known multiple of the block"))? / (r * r);
    let r_dim = Dim::Const(r);
    if u.text("mode", "DCR")? == "CRD" {
        return one(op!(u, "pixel_shuffle", x, r)?);
    }
    let split = op!(u, "reshape", x, vec![n.clone(), r.into(), r.into(), c.into(), h.clone(), w.clone()])?;
    let turned = op!(u, "transpose", split, vec![0_i64, 3, 4, 1, 5, 2])?;
    one(op!(u, "reshape", turned, vec![n, c.into(), &h * &r_dim, &w * &r_dim])?)
}

fn space_to_depth(u: &mut Use<'_>) -> Outputs {
    let (x, r) = (u.x(0)?, u.int("blocksize", 1)?);
    let [n, c, h, w] = &u.shape(x)[..] else { return Err(malformed("its input has no 4 axes")) };
    if r < 1 {
        return Err(malformed(format!("the block has size {r}")));
    }
    let r_dim = Dim::Const(r);
    let (n, c, h, w) = (n.clone(), c.clone(), h.floor_div(&r_dim), w.floor_div(&r_dim));
    if u.text("mode", "DCR")? == "CRD" {
        return one(op!(u, "pixel_unshuffle", x, r)?);
    }
    let split = op!(u, "reshape", x, vec![n.clone(), c.clone(), h.clone(), r.into(), w.clone(), r.into()])?;
    let turned = op!(u, "transpose", split, vec![0_i64, 3, 5, 1, 2, 4])?;
    one(op!(u, "reshape", turned, vec![n, &(&c * &r_dim) * &r_dim, h, w])?)
}

/// Cuts or pads axes around their center.
fn center(u: &mut Use<'_>) -> Outputs {
    let (mut x, target) = (u.x(0)?, u.numbers(1)?);
    let rank = u.rank(x);
    let axes = u.ints("axes")?.unwrap_or_else(|| (0..rank as i64).collect());
    if axes.len() != target.len() {
        return Err(malformed("the shape has another number of axes"));
    }
    for (axis, target) in axes.into_iter().zip(target) {
        x = centered(u, x, axis, target)?;
    }
    one(x)
}

fn centered(u: &mut Use<'_>, x: ValueId, axis: i64, target: i64) -> Result<ValueId> {
    let rank = u.rank(x);
    let at = Use::axis(axis, rank)?;
    let size = u.shape(x)[at].known().ok_or_else(|| Use::refuse("a size is a symbol: give shapes"))?;
    if target < size {
        let start = (size - target) / 2;
        let whole = vec![Lit::None; at];
        let starts: Vec<Lit> = whole.iter().cloned().chain([start.into()]).collect();
        let ends: Vec<Lit> = whole.into_iter().chain([(start + target).into()]).collect();
        return op!(u, "slice", x, starts, ends);
    }
    let before = (target - size) / 2;
    let pads = Lit::tuple(
        (0..rank).map(|i| Lit::from(if i == at { vec![before, target - size - before] } else { vec![0, 0] })),
    );
    let zero = u.like(0.0, x);
    op!(u, "pad", x, pads, "constant", zero)
}
