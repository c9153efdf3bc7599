//! Adaptive pooling: the size of the output is given.

use super::pool::{check_rank, nothing_to_pool};
use super::reduce::at_least_f32;
use super::window;
use crate::dim::Dim;
use crate::dtype::Kinds;
use crate::error::{Code, Error, Result};
use crate::formula::{ExpandCx, V};
use crate::literal::Lit;
use crate::op::{Attr, BLANK, DTypeRule, DefaultLit, OpDef, Port, ShapeRule, Tolerance, attr, tensor_of};
use crate::rules::{Attrs, ShapeCx};
use crate::shape::Shape;
use crate::tensor::{Scalar, Tensor};

/// Ops of this file.
pub static OPS: &[&OpDef] = &[
    &ADAPTIVE_AVG_POOL1D,
    &ADAPTIVE_AVG_POOL2D,
    &ADAPTIVE_AVG_POOL3D,
    &ADAPTIVE_MAX_POOL1D,
    &ADAPTIVE_MAX_POOL2D,
    &ADAPTIVE_MAX_POOL3D,
];

static ADAPTIVE_PORTS: &[Port] =
    &[tensor_of("input", Kinds::NUMBER), attr("output_size", Attr::Any, DefaultLit::Int(1))];

const ADAPTIVE: OpDef = OpDef { ports: ADAPTIVE_PORTS, ..BLANK };

macro_rules! adaptive_doc {
    ($what:literal, $shape:literal) => {
        concat!(
            $what, " of so many windows that the output has `output_size`; input `", $shape, "`.\n\nWindow `i` of \
             `o` over `n` elements runs from `⌊i·n/o⌋` to `⌈(i+1)·n/o⌉`. `output_size` is an integer or one per \
             axis; `None` keeps the size of an axis, and 1 pools over the whole axis."
        )
    };
}

/// mean to a given length
pub static ADAPTIVE_AVG_POOL1D: OpDef = OpDef {
    name: "adaptive_avg_pool1d",
    doc: adaptive_doc!("Mean", "[n, c, length]"),
    shape: ShapeRule::Fn(adaptive_shape::<1>),
    dtype: DTypeRule::Float,
    expand: Some(adaptive_avg),
    cases: &["[2,3,8] output_size=4", "[2,3,7] output_size=3", "[2,3,7] output_size=1"],
    tolerance: Tolerance::Contraction,
    ..ADAPTIVE
};

/// mean to a given size of the image
pub static ADAPTIVE_AVG_POOL2D: OpDef = OpDef {
    name: "adaptive_avg_pool2d",
    doc: adaptive_doc!("Mean", "[n, c, height, width]"),
    aliases: &["global_avg_pool2d"],
    shape: ShapeRule::Fn(adaptive_shape::<2>),
    dtype: DTypeRule::Float,
    expand: Some(adaptive_avg),
    cases: &["[2,3,8,6] output_size=(4,1)", "[2,3,7,5] output_size=3", "[2,3,4,5] output_size=(none,2)"],
    tolerance: Tolerance::Contraction,
    ..ADAPTIVE
};

/// mean to a given size of the volume
pub static ADAPTIVE_AVG_POOL3D: OpDef = OpDef {
    name: "adaptive_avg_pool3d",
    doc: adaptive_doc!("Mean", "[n, c, depth, height, width]"),
    shape: ShapeRule::Fn(adaptive_shape::<3>),
    dtype: DTypeRule::Float,
    expand: Some(adaptive_avg),
    cases: &["[1,2,4,3,5] output_size=(2,1,3)"],
    tolerance: Tolerance::Contraction,
    ..ADAPTIVE
};

/// maximum to a given length
pub static ADAPTIVE_MAX_POOL1D: OpDef = OpDef {
    name: "adaptive_max_pool1d",
    doc: adaptive_doc!("Maximum", "[n, c, length]"),
    shape: ShapeRule::Fn(adaptive_shape::<1>),
    dtype: DTypeRule::Same(0),
    expand: Some(adaptive_max),
    cases: &["[2,3,8] output_size=4", "[2,3,7] output_size=3"],
    tolerance: Tolerance::Exact,
    ..ADAPTIVE
};

/// maximum to a given size of the image
pub static ADAPTIVE_MAX_POOL2D: OpDef = OpDef {
    name: "adaptive_max_pool2d",
    doc: adaptive_doc!("Maximum", "[n, c, height, width]"),
    aliases: &["global_max_pool2d"],
    shape: ShapeRule::Fn(adaptive_shape::<2>),
    dtype: DTypeRule::Same(0),
    expand: Some(adaptive_max),
    cases: &["[2,3,8,6] output_size=(4,1)", "[2,3,7,5] output_size=3", "[2,3,4,5] output_size=(none,2)"],
    tolerance: Tolerance::Exact,
    ..ADAPTIVE
};

/// maximum to a given size of the volume
pub static ADAPTIVE_MAX_POOL3D: OpDef = OpDef {
    name: "adaptive_max_pool3d",
    doc: adaptive_doc!("Maximum", "[n, c, depth, height, width]"),
    shape: ShapeRule::Fn(adaptive_shape::<3>),
    dtype: DTypeRule::Same(0),
    expand: Some(adaptive_max),
    cases: &["[1,2,4,3,5] output_size=(2,1,3)"],
    tolerance: Tolerance::Exact,
    ..ADAPTIVE
};

/// The requested output sizes; `None` keeps the size of an axis.
fn output_sizes(cx: &(impl Attrs + ?Sized), n: usize) -> Result<Vec<Option<i64>>> {
    let lit = cx.lit(1);
    let error = || cx.bad(1, &lit, &format!("an integer of at least 1 or none, or {n} of them"));
    let one = |item: &Lit| match item {
        Lit::None => Ok(None),
        Lit::Int(Dim::Const(o)) if *o >= 1 => Ok(Some(*o)),
        Lit::Int(d @ Dim::Expr(_)) => Err(cx.symbolic(1, d)),
        _ => Err(error()),
    };
    match &lit {
        Lit::Tuple(items) if items.len() == n => items.iter().map(one).collect(),
        Lit::Tuple(items) if items.len() == 1 => Ok(vec![one(&items[0])?; n]),
        Lit::Tensor(_) => Ok(window::positive(cx, 1, n)?.into_iter().map(Some).collect()),
        item => Ok(vec![one(item)?; n]),
    }
}

fn adaptive_shape<const N: usize>(cx: &ShapeCx<'_>) -> Result<Vec<Shape>> {
    check_rank(cx, N)?;
    let mut out = cx.shape(0).clone();
    for (i, o) in output_sizes(cx, N)?.into_iter().enumerate() {
        if out[i + 2].is(0) {
            return Err(nothing_to_pool(cx, i));
        }
        if let Some(o) = o {
            out.0[i + 2] = Dim::Const(o);
        }
    }
    Ok(vec![out])
}

/// Windows by which an axis gets its output size.
enum AxisWindows {
    Keep,
    Whole,
    /// Adjacent windows of that size.
    Even(i64),
    /// First element and end of each window.
    Uneven(Vec<[i64; 2]>),
}

fn axis_windows(cx: &(impl Attrs + ?Sized), n: &Dim, o: Option<i64>) -> Result<AxisWindows> {
    let Some(o) = o else { return Ok(AxisWindows::Keep) };
    Ok(match n.known() {
        Some(n) if n == o => AxisWindows::Keep,
        _ if o == 1 => AxisWindows::Whole,
        Some(n) if n % o == 0 => AxisWindows::Even(n / o),
        Some(n) if n.max(o) > window::MAX_TABLE => {
            let message = format!("{} takes {o} windows of uneven size from {n} elements", cx.op().name);
            return Err(Error::new(Code::BadSize, message).help(format!(
                "with more than {} of either, the output size must divide the input",
                window::MAX_TABLE
            )));
        }
        Some(n) => AxisWindows::Uneven((0..o).map(|i| [i * n / o, ((i + 1) * n + o - 1) / o]).collect()),
        None => return Err(cx.symbolic(0, n)),
    })
}

/// Reduces the spatial axes by `f`, one at a time from the last to the first.
fn each_axis<'a>(c: &ExpandCx<'a>, f: impl Fn(V<'a>, usize, AxisWindows) -> V<'a>) -> V<'a> {
    let n = c.x[0].rank().saturating_sub(2);
    let sizes = c.get(|c| output_sizes(c, n));
    let mut y = c.x[0];
    for (i, o) in sizes.into_iter().enumerate().rev() {
        match axis_windows(c, &y.dim(i as i64 + 2), o) {
            Ok(axis_windows) => y = f(y, i + 2, axis_windows),
            Err(error) => c.cx.fail(error),
        }
    }
    y
}

/// Splits an axis into adjacent windows; the axis of a window's elements follows it.
fn split_axis(x: V<'_>, axis: usize, window: i64) -> V<'_> {
    let mut shape = x.shape();
    let windows = shape[axis].floor_div(&Dim::Const(window));
    shape.0[axis] = windows;
    shape.0.insert(axis + 1, Dim::Const(window));
    x.reshape(shape.0.to_vec())
}

fn adaptive_avg<'a>(c: &ExpandCx<'a>) -> Vec<V<'a>> {
    let dtype = c.x[0].dtype();
    let y = each_axis(c, |x, axis, axis_windows| {
        let mean = |x: V<'a>, axis: usize, keep: bool| at_least_f32(x).mean(axis, keep);
        match axis_windows {
            AxisWindows::Keep => x,
            AxisWindows::Whole => mean(x, axis, true),
            AxisWindows::Even(window) => mean(split_axis(x, axis, window), axis + 1, false),
            AxisWindows::Uneven(windows) => {
                let picked = at_least_f32(uneven(x, axis, &windows));
                let longest = longest(&windows);
                let weight = |at: usize| {
                    let [start, end] = windows[at / longest];
                    let inside = (at % longest) < (end - start) as usize;
                    Scalar::Float(if inside { 1.0 / (end - start) as f64 } else { 0.0 })
                };
                let mut shape = vec![1; x.rank() - axis + 1];
                shape[..2].copy_from_slice(&[windows.len(), longest]);
                let weights = Tensor::build(picked.dtype(), &shape, weight);
                (picked * picked.lit(weights)).sum(axis + 1, false)
            }
        }
    });
    vec![y.cast(dtype)]
}

fn longest(windows: &[[i64; 2]]) -> usize {
    windows.iter().map(|[start, end]| end - start).max().unwrap_or(1) as usize
}

/// The elements of windows, along a new axis behind the given one; a shorter window repeats its last element.
fn uneven<'a>(x: V<'a>, axis: usize, windows: &[[i64; 2]]) -> V<'a> {
    let longest = longest(windows) as i64;
    let elements = |&[start, end]: &[i64; 2]| (0..longest).map(move |i| (start + i).min(end - 1));
    let indices: Vec<i64> = windows.iter().flat_map(elements).collect();
    let picked = x.take(Tensor::from_parts(&[indices.len()], indices), axis);
    split_axis(picked, axis, longest)
}

fn adaptive_max<'a>(c: &ExpandCx<'a>) -> Vec<V<'a>> {
    vec![each_axis(c, |x, axis, axis_windows| match axis_windows {
        AxisWindows::Keep => x,
        AxisWindows::Whole => first_max(x, axis, true),
        AxisWindows::Even(window) => first_max(split_axis(x, axis, window), axis + 1, false),
        AxisWindows::Uneven(windows) => first_max(uneven(x, axis, &windows), axis + 1, false),
    })]
}

/// Maximum whose gradient goes to the first of equal elements.
fn first_max(x: V<'_>, axis: usize, keep: bool) -> V<'_> {
    let axis = x.lit(axis);
    let first = x.argmax(axis, true);
    let max = x.take_along_axis(first, axis);
    if keep { max } else { max.squeeze(axis) }
}
