//! Movement, slices, lookups and scatters in ONNX.

use super::{list, sizes};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::literal::Lit;
use crate::lowering::LoweringCx;
use crate::ops::slicing::ranges;
use crate::rules::Attrs;
use crate::shape::normalize_axis;

pub(in crate::ops) fn transpose(s: &LoweringCx<'_>) -> Option<String> {
    let rank = s.ty(0)?.shape.rank();
    let order: Vec<usize> = if s.absent(1) {
        (0..rank).rev().collect()
    } else {
        s.ints(1).ok()?.into_iter().map(|a| normalize_axis(a, rank)).collect::<Result<_, _>>().ok()?
    };
    if rank == 0 {
        return Some("{0}".into());
    }
    Some(format!("Transpose<perm={}>({{0}})", list(order.into_iter().map(|a| a as i64))))
}

pub(in crate::ops) fn concat(s: &LoweringCx<'_>) -> Option<String> {
    let axis = s.axis(0, s.out(0)?.shape.rank()).ok()?;
    let inputs: Vec<String> = (1..s.node.inputs.len()).map(|i| format!("{{{i}}}")).collect();
    Some(format!("Concat<axis={axis}>({})", inputs.join(", ")))
}

/// Removes axes of size 1.
pub(in crate::ops) fn squeeze(s: &LoweringCx<'_>) -> Option<String> {
    let shape = &s.ty(0)?.shape;
    let axes: Vec<i64> = if s.absent(1) {
        (0..shape.rank()).filter(|&i| shape[i].is(1)).map(|i| i as i64).collect()
    } else {
        s.axes(1, shape.rank()).ok()?.into_iter().map(|a| a as i64).collect()
    };
    Some(if axes.is_empty() { "{0}".into() } else { format!("Squeeze({{0}}, {})", list(axes)) })
}

pub(in crate::ops) fn pad(s: &LoweringCx<'_>) -> Option<String> {
    let mode = match s.text(2).ok()?.as_str() {
        "constant" => "constant",
        "reflect" => "reflect",
        "replicate" | "edge" => "edge",
        _ => return None,
    };
    let shape = &s.ty(0)?.shape;
    let pads = crate::ops::joining::pads(s, shape.rank()).ok()?;
    if pads.is_empty() {
        return Some("{0}".into());
    }
    let grows = pads.iter().all(|&(lo, hi)| lo >= 0 && hi >= 0);
    if mode != "constant" && !(grows && shape.iter().all(|d| d.known().is_some_and(|n| n > 0))) {
        return None;
    }
    let all = list(pads.iter().map(|p| p.0).chain(pads.iter().map(|p| p.1)));
    Some(match mode {
        "constant" => format!("Pad({{0}}, {all}, like({{value}}, {{0}}))"),
        other => format!("Pad<mode=\"{other}\">({{0}}, {all})"),
    })
}

/// `Slice` with the ranges at the ports from `at` on.
fn sliced(s: &LoweringCx<'_>, of: &str, at: usize) -> Option<String> {
    let shape = &s.ty(0)?.shape;
    let (mut starts, mut stops, mut axes, mut steps) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (i, (range, size)) in ranges(s, at, shape).ok()?.into_iter().zip(shape.iter()).enumerate() {
        if range.is_whole(size) {
            continue;
        }
        let (first, last) = if range.step > 0 { (0, i64::MAX) } else { (i64::MAX, i64::MIN) };
        starts.push(range.start.unwrap_or(Dim::Const(first)));
        stops.push(range.stop.unwrap_or(Dim::Const(last)));
        axes.push(i as i64);
        steps.push(range.step);
    }
    if axes.is_empty() {
        return Some(of.to_owned());
    }
    let (starts, stops, axes, steps) = (sizes(&starts), sizes(&stops), list(axes), list(steps));
    Some(format!("Slice({of}, {starts}, {stops}, {axes}, {steps})"))
}

pub(in crate::ops) fn slice(s: &LoweringCx<'_>) -> Option<String> {
    sliced(s, "{0}", 1)
}

/// The indices of the part in the flattened tensor are the same slice of the tensor of all indices.
pub(in crate::ops) fn slice_update(s: &LoweringCx<'_>) -> Option<String> {
    let numel = s.ty(0)?.shape.numel();
    let all = format!("Range(i64(0), reshape({}, []), i64(1))", super::size(&numel));
    let part = sliced(s, &format!("reshape({all}, sizes({{0}}))"), 2)?;
    Some(format!(
        "$part = {part} | $to = Expand({{1}}, Shape($part)) \
         | reshape(ScatterElements<axis=0>(reshape({{0}}, [-1]), reshape($part, [-1]), reshape($to, [-1])))"
    ))
}

/// Indices in a dtype that ONNX accepts.
fn indices(s: &LoweringCx<'_>, i: usize) -> String {
    match s.ty(i).map(|t| t.dtype) {
        Some(DType::I32 | DType::I64) => format!("{{{i}}}"),
        _ => format!("i64({{{i}}})"),
    }
}

pub(in crate::ops) fn take(s: &LoweringCx<'_>) -> Option<String> {
    let at = indices(s, 1);
    if s.absent(2) {
        return Some(format!("Gather<axis=0>(reshape({{0}}, [-1]), {at})"));
    }
    let axis = s.axis(2, s.ty(0)?.shape.rank()).ok()?;
    Some(format!("Gather<axis={axis}>({{0}}, {at})"))
}

pub(in crate::ops) fn take_along_axis(s: &LoweringCx<'_>) -> Option<String> {
    let (x, i, out) = (&s.ty(0)?.shape, &s.ty(1)?.shape, &s.out(0)?.shape);
    let axis = s.axis(2, x.rank()).ok()?;
    let mut table = out.clone();
    table.0[axis] = x[axis].clone();
    let table =
        if *x == table { "{0}".to_owned() } else { format!("Expand({{0}}, {})", sizes(table.iter())) };
    let at = if i == out { indices(s, 1) } else { format!("Expand({}, sizes())", indices(s, 1)) };
    Some(format!("GatherElements<axis={axis}>({table}, {at})"))
}

/// Combines elements of the source with the elements of the input at the indices, by this reduction.
pub(in crate::ops) fn scatter(
    s: &LoweringCx<'_>,
    axis: usize,
    ports: [usize; 2],
    reduction: &str,
) -> Option<String> {
    let (rank, dtype) = (s.ty(0)?.shape.rank(), s.ty(0)?.dtype);
    let axis = s.axis(axis, rank).ok()?;
    let reduction = if reduction == "none" { String::new() } else { format!(", reduction=\"{reduction}\"") };
    let (at, source) = (indices(s, ports[0]), format!("{{{}}}", ports[1]));
    // Few implementations support other integers, or booleans.
    let wide = match dtype {
        _ if reduction.is_empty() || dtype.is_float() => None,
        DType::I32 | DType::I64 => None,
        _ => Some("i64"),
    };
    Some(match wide {
        None => format!("ScatterElements<axis={axis}{reduction}>({{0}}, {at}, {source})"),
        Some(wide) => {
            format!("cast(ScatterElements<axis={axis}{reduction}>({wide}({{0}}), {at}, {wide}({source})))")
        }
    })
}

/// As [`scatter`], of whole slices: their indices are repeated along the other axes.
pub(in crate::ops) fn scatter_slices(s: &LoweringCx<'_>, reduction: &str) -> Option<String> {
    let rank = s.ty(0)?.shape.rank();
    let axis = s.axis(3, rank).ok()?;
    let mut line = vec![1; rank];
    line[axis] = -1;
    let at = format!("Expand(reshape({}, {}), sizes({{2}}))", indices(s, 1), list(line));
    let text = scatter(s, 3, [1, 2], reduction)?;
    Some(text.replacen(&indices(s, 1), &at, 1))
}

pub(in crate::ops) fn arange(s: &LoweringCx<'_>) -> Option<String> {
    let (out, count) = (s.out(0)?.dtype, s.out(0)?.shape.first()?.clone());
    let range = format!("Range(i64(0), reshape({}, []), i64(1))", super::size(&count));
    let start = if s.absent(1) { Lit::int(0) } else { s.lit(0) };
    let whole = |lit: &Lit| match lit {
        Lit::Int(d) => Some(d.clone()),
        _ => None,
    };
    if let (Some(start), Some(step)) = (whole(&start), whole(&s.lit(2))) {
        let steps = if step.is(1) { range } else { format!("Mul({range}, {})", super::size(&step)) };
        let all = if start.is(0) { steps } else { format!("Add({steps}, {})", super::size(&start)) };
        return Some(format!("cast({all})"));
    }
    let wide = if out == DType::F64 || !out.is_float() { "f64" } else { "f32" };
    let number = |lit: &Lit| match lit {
        Lit::Float(x) => Some(*x),
        Lit::Int(d) => d.known().map(|n| n as f64),
        _ => None,
    };
    let (start, step) = (number(&start)?, number(&s.lit(2))?);
    Some(format!("cast(Add(Mul({wide}({range}), {step:?}), {start:?}))"))
}

pub(in crate::ops) fn matrix_transpose(s: &LoweringCx<'_>) -> Option<String> {
    let rank = s.ty(0)?.shape.rank() as i64;
    let order = (0..rank - 2).chain([rank - 1, rank - 2]);
    Some(format!("Transpose<perm={}>({{0}})", list(order)))
}
