//! Reductions that ignore NaN, and quantiles.

use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::formula::{ExpandCx, V};
use crate::literal::Lit;
use crate::op::{Attr, BLANK, DTypeRule, DefaultLit, OpDef, Port, ShapeRule, Tolerance, attr, tensor};
use crate::ops::reduce::{
    ALL, ANY, ARGMAX, ARGMIN, MAX, MIN, PROD, REDUCTION, SUM, axes, float_of, float_result, floating, keepdim,
};
use crate::ops::scan::{CUMPROD, CUMSUM};
use crate::ops::sort::SORT;
use crate::rules::{Attrs, ShapeCx};
use crate::shape::Shape;

/// Ops of this file.
pub static OPS: &[&OpDef] = &[
    &NANSUM,
    &NANPROD,
    &NANMEAN,
    &NANVAR,
    &NANSTD,
    &NANMAX,
    &NANMIN,
    &NANARGMAX,
    &NANARGMIN,
    &NANCUMSUM,
    &NANCUMPROD,
    &QUANTILE,
    &NANQUANTILE,
    &MEDIAN,
    &NANMEDIAN,
];

/// The condition that an element is NaN; `None` if the dtype has no NaN.
fn is_nan(x: V<'_>) -> Option<V<'_>> {
    x.dtype().is_float().then(|| x.is_nan())
}

/// The input with a number in place of NaN.
fn without_nan(x: V<'_>, instead: f64) -> V<'_> {
    is_nan(x).map_or(x, |nan| nan.select(instead, x))
}

// --- sums --------------------------------------------------------------------------------------------------

/// A reduction that ignores NaN.
const WITHOUT_NAN: OpDef = OpDef { dtype: DTypeRule::Expansion, ..REDUCTION };

/// sum without NaN
pub static NANSUM: OpDef = OpDef {
    name: "nansum",
    doc: "Sum over `axis` of all elements except NaN; the sum of nothing else is 0. See `sum`. The gradient of NaN is 0.",
    layer: "NanSum",
    expand: Some(|c| vec![without_nan(c.x[0], 0.0).op(&SUM, &c.x[1..])]),
    ..WITHOUT_NAN
};

/// product without NaN
pub static NANPROD: OpDef = OpDef {
    name: "nanprod",
    doc: "Product over `axis` of all elements except NaN; the product of nothing else is 1. See `prod`. The gradient of NaN \
         is 0.",
    layer: "NanProd",
    expand: Some(|c| vec![without_nan(c.x[0], 1.0).op(&PROD, &c.x[1..])]),
    domain: (0.5, 2.0),
    ..WITHOUT_NAN
};

/// The number of elements that are not NaN, in the dtype of `x`.
fn counted<'a>(x: V<'a>, axis: V<'a>, keep: V<'a>) -> V<'a> {
    let ones = match is_nan(x) {
        Some(nan) => nan.select(0.0, 1.0).cast(x.dtype()),
        None => x,
    };
    ones.sum(axis, keep)
}

/// mean without NaN
pub static NANMEAN: OpDef = OpDef {
    name: "nanmean",
    doc: "Mean over `axis` of all elements except NaN; NaN if all elements are NaN. See `mean`. The gradient of NaN is 0.",
    layer: "NanMean",
    dtype: DTypeRule::Fn(float_result),
    expand: Some(|c| {
        let x = floating(c.x[0]);
        let sum = without_nan(x, 0.0).op(&SUM, &c.x[1..]);
        vec![(sum / counted(x, c.x[1], c.x[2])).cast(float_of(c.x[0]))]
    }),
    ..WITHOUT_NAN
};

static VARIANCE_PORTS: &[Port] = &[
    tensor("input"),
    attr("axis", Attr::OptInts, DefaultLit::None),
    attr("keepdim", Attr::Bool, DefaultLit::Bool(false)),
    attr("correction", Attr::Float, DefaultLit::Float(1.0)),
];

const VARIANCE: OpDef = OpDef {
    ports: VARIANCE_PORTS,
    dtype: DTypeRule::Fn(float_result),
    cases: &[
        "[2,3]",
        "[2,3] axis=1 keepdim=true",
        "[2,3,4] axis=(0,-1) correction=0",
        "[4,5] axis=0 correction=2",
    ],
    ..REDUCTION
};

/// The variance of elements that are not NaN, in float32 at least.
fn variance<'a>(c: &ExpandCx<'a>) -> V<'a> {
    let (x, axis, yes) = (floating(c.x[0]), c.x[1], c.cx.lit(true));
    let correction = c.get(|c| c.f64(3));
    let mean = without_nan(x, 0.0).sum(axis, yes) / counted(x, axis, yes);
    // The select comes last: a difference with NaN would reach the gradient.
    let difference = match is_nan(x) {
        Some(nan) => nan.select(0.0, without_nan(x, 0.0) - mean),
        None => x - mean,
    };
    let freedom = counted(x, axis, c.x[2]) - correction;
    let freedom = freedom.maximum(0.0);
    (difference * difference).sum(axis, c.x[2]) / freedom
}

/// variance without NaN
pub static NANVAR: OpDef = OpDef {
    name: "nanvar",
    doc: "Variance over `axis` of all `n` elements but NaN: `Σ (x - mean)² / max(0, n - correction)`, NaN where there are \
         too few. The correction is 1 unless given, as for `var`. The gradient of NaN is 0.",
    layer: "NanVar",
    expand: Some(|c| vec![variance(c).cast(float_of(c.x[0]))]),
    ..VARIANCE
};

/// standard deviation without NaN
pub static NANSTD: OpDef = OpDef {
    name: "nanstd",
    doc: "Standard deviation over `axis` of all elements except NaN, the square root of `nanvar`. The gradient at identical \
         values and of NaN is 0.",
    layer: "NanStd",
    expand: Some(|c| {
        // The slope of the root is infinite at 0; the gradient is 0 if all elements are equal.
        let var = variance(c);
        let is_zero = var.equal(0.0);
        let root = is_zero.select(1.0, var).sqrt();
        vec![is_zero.select(0.0, root).cast(float_of(c.x[0]))]
    }),
    ..VARIANCE
};

// --- extremes ----------------------------------------------------------------------------------------------

/// The extremum of elements that are not NaN; NaN if all elements are.
fn extreme<'a>(c: &ExpandCx<'a>, op: &'static OpDef, least: f64) -> Vec<V<'a>> {
    let x = c.x[0];
    let value = without_nan(x, least).op(op, &c.x[1..]);
    vec![match is_nan(x) {
        Some(nan) => nan.op(&ALL, &c.x[1..]).select(f64::NAN, value),
        None => value,
    }]
}

/// maximum without NaN
pub static NANMAX: OpDef = OpDef {
    name: "nanmax",
    doc: "Largest element over `axis` that is not a NaN; NaN if all elements are NaN. See `max`.",
    layer: "NanMax",
    expand: Some(|c| extreme(c, &MAX, f64::NEG_INFINITY)),
    tolerance: Tolerance::Exact,
    ..WITHOUT_NAN
};

/// minimum without NaN
pub static NANMIN: OpDef = OpDef {
    name: "nanmin",
    doc: "Smallest element over `axis` that is not a NaN; NaN if all elements are NaN. See `min`.",
    layer: "NanMin",
    expand: Some(|c| extreme(c, &MIN, f64::INFINITY)),
    tolerance: Tolerance::Exact,
    ..WITHOUT_NAN
};

/// Index of the extremum: the first element that equals it.
fn position<'a>(c: &ExpandCx<'a>, op: &'static OpDef) -> Vec<V<'a>> {
    let value = c.x[0].op(op, &[c.x[1], c.cx.lit(true)]);
    let is_extremum = c.x[0].equal(value).cast(DType::I32);
    vec![is_extremum.op(&ARGMAX, &c.x[1..])]
}

/// index of the maximum without NaN
pub static NANARGMAX: OpDef = OpDef {
    name: "nanargmax",
    doc: "Position, in int64, of the first largest element over `axis` that is not a NaN; 0 where there is nothing else. See \
         `argmax`.",
    layer: "NanArgMax",
    ports: ARGMAX.ports,
    expand: Some(|c| position(c, &NANMAX)),
    cases: ARGMAX.cases,
    tolerance: Tolerance::Exact,
    ..WITHOUT_NAN
};

/// index of the minimum without NaN
pub static NANARGMIN: OpDef = OpDef {
    name: "nanargmin",
    doc: "Position, in int64, of the first smallest element over `axis` that is not a NaN; 0 where there is nothing else. \
         See `argmin`.",
    layer: "NanArgMin",
    ports: ARGMIN.ports,
    expand: Some(|c| position(c, &NANMIN)),
    cases: ARGMIN.cases,
    tolerance: Tolerance::Exact,
    ..WITHOUT_NAN
};

// --- cumulative --------------------------------------------------------------------------------------------

/// A cumulative sum or product that ignores NaN.
const RUNNING: OpDef =
    OpDef { ports: CUMSUM.ports, cases: CUMSUM.cases, tolerance: Tolerance::Contraction, ..BLANK };

/// cumulative sum without NaN
pub static NANCUMSUM: OpDef = OpDef {
    name: "nancumsum",
    doc: "Running sum along `axis`, to which NaN adds nothing. See `cumsum`.",
    layer: "NanCumSum",
    expand: Some(|c| vec![without_nan(c.x[0], 0.0).op(&CUMSUM, &c.x[1..])]),
    ..RUNNING
};

/// cumulative product without NaN
pub static NANCUMPROD: OpDef = OpDef {
    name: "nancumprod",
    doc: "Running product along `axis`, which NaN leaves as it is. See `cumprod`.",
    layer: "NanCumProd",
    expand: Some(|c| vec![without_nan(c.x[0], 1.0).op(&CUMPROD, &c.x[1..])]),
    domain: (0.5, 2.0),
    ..RUNNING
};

// --- quantiles ---------------------------------------------------------------------------------------------

const WAYS: &[&str] = &["linear", "lower", "higher", "nearest", "midpoint"];

static QUANTILE_PORTS: &[Port] = &[
    tensor("input"),
    tensor("q"),
    attr("axis", Attr::OptInts, DefaultLit::None),
    attr("keepdim", Attr::Bool, DefaultLit::Bool(false)),
    attr("interpolation", Attr::Choice(WAYS), DefaultLit::Str("linear")),
];

/// The shape of `q`, followed by that of the reduced input.
fn quantile_shape(cx: &ShapeCx<'_>) -> Result<Vec<Shape>> {
    let input = cx.shape(0);
    cx.rank(1, &[0, 1])?;
    let (axes, keep) = (axes(cx, input.rank())?, keepdim(cx)?);
    if let Some(axis) = axes.iter().find(|&&axis| input[axis].is(0)) {
        let message = format!("{} of no elements is not defined", cx.op().name);
        return Err(Error::new(Code::BadSize, message)
            .note(format!("the shape is {input}, its axis {axis} is empty"))
            .help("reduce over an axis that has elements"));
    }
    let rest = input
        .iter()
        .enumerate()
        .filter_map(|(i, d)| if axes.contains(&i) { keep.then_some(Dim::ONE) } else { Some(d.clone()) });
    Ok(vec![cx.shape(1).iter().cloned().chain(rest).collect()])
}

/// The elements of each reduction in ascending order, along a new last axis.
fn in_order<'a>(c: &ExpandCx<'a>) -> V<'a> {
    let x = floating(c.x[0]);
    let shape = x.shape();
    let chosen = c.get(|c| axes(c, shape.rank()));
    let rest: Vec<usize> = (0..shape.rank()).filter(|i| !chosen.contains(i)).collect();
    let many = chosen.iter().fold(Dim::ONE, |n, &i| &n * &shape[i]);
    let order: Vec<usize> = rest.iter().chain(&chosen).copied().collect();
    let is_moved = order.iter().enumerate().any(|(i, &axis)| i != axis);
    let moved = if is_moved { x.transpose(order) } else { x };
    let dims = rest.iter().map(|&i| shape[i].clone()).chain([many]);
    let lines = moved.reshape(Lit::tuple(dims));
    lines.op(&SORT, &[c.cx.lit(-1)])
}

/// `input[q · (n - 1)]` of the sorted elements.
fn quantile<'a>(c: &ExpandCx<'a>, leaves_nan_out: bool) -> Vec<V<'a>> {
    let (sorted, zero) = (in_order(c), c.cx.lit(0.0));
    let dtype = sorted.dtype();
    let (last, yes) = (c.cx.lit(-1), c.cx.lit(true));
    let many = sorted.dim(-1);
    let lines: Vec<Dim> = sorted.shape().iter().take(sorted.rank() - 1).cloned().collect();
    // A `q` of shape [k] indexes the last axis, which becomes the first one at the end.
    let shape = c.x[1].shape();
    let count = shape.iter().next().cloned().unwrap_or(Dim::ONE);
    let ones = std::iter::repeat_n(Dim::ONE, lines.len());
    let q = c.x[1].cast(dtype).reshape(Lit::tuple(ones.chain([count.clone()])));
    let nan = sorted.is_nan();
    // NaN is sorted to the end.
    let top = if leaves_nan_out {
        let numbers = nan.select(zero, 1.0).cast(dtype).sum(last, yes);
        (numbers - 1.0).maximum(zero)
    } else {
        c.cx.lit(&many - &Dim::ONE)
    };
    let whole = c.cx.lit(Lit::tuple(lines.iter().cloned().chain([count.clone()])));
    let place = (q * top).broadcast_to(whole);
    let (low, high) = (place.floor(), place.ceil());
    let at = |place: V<'a>| {
        let clamped = place.clip(zero, &many - &Dim::ONE);
        sorted.take_along_axis(clamped.cast(DType::I64), last)
    };
    let value = match c.text(4).unwrap_or_default().as_str() {
        "lower" => at(low),
        "higher" => at(high),
        "nearest" => at(place.round()),
        "midpoint" => between(at(low), at(high), (high - low) * 0.5),
        _ => between(at(low), at(high), place - low),
    };
    // The result is NaN if an element is, or if `q` is not between 0 and 1.
    let outside = q.less(zero).logical_or(c.cx.lit(1.0).less(q));
    let outside = outside.logical_or(q.is_nan());
    let lost = nan.op(if leaves_nan_out { &ALL } else { &ANY }, &[last, yes]);
    let value = lost.logical_or(outside).select(f64::NAN, value);
    vec![arranged(c, value, &lines, shape.rank() == 1).cast(float_of(c.x[0]))]
}

/// The point at `fraction` between `low` and `high`. It is `low` if both are equal or the fraction is 0, since the difference of
/// infinities is NaN.
fn between<'a>(low: V<'a>, high: V<'a>, fraction: V<'a>) -> V<'a> {
    let zero = low.lit(0.0);
    let is_low = fraction.equal(zero);
    let is_same = low.equal(high).logical_and(low.is_inf());
    let is_first = is_low.logical_or(is_same);
    let (from, to) = (is_first.select(zero, low), is_first.select(zero, high));
    is_first.select(low, from + (to - from) * fraction)
}

/// Moves the axis of `q` from the end to the front, and restores the reduced axes with size 1 if `keepdim` is true.
fn arranged<'a>(c: &ExpandCx<'a>, value: V<'a>, lines: &[Dim], has_axis: bool) -> V<'a> {
    let n = lines.len();
    let order: Vec<usize> = [n].into_iter().chain(0..n).collect();
    let front = if n > 0 { value.transpose(order) } else { value };
    let input = c.x[0].shape();
    let (chosen, keep) = (c.get(|c| axes(c, input.rank())), c.get(keepdim));
    let rest = input
        .iter()
        .enumerate()
        .filter_map(|(i, d)| if chosen.contains(&i) { keep.then_some(Dim::ONE) } else { Some(d.clone()) });
    let dims = has_axis.then(|| value.dim(-1)).into_iter().chain(rest);
    front.reshape(Lit::tuple(dims))
}

const QUANTILES: OpDef = OpDef {
    ports: QUANTILE_PORTS,
    shape: ShapeRule::Fn(quantile_shape),
    dtype: DTypeRule::Fn(float_result),
    domain: (0.05, 0.95),
    cases: &[
        "[5] q=0.3",
        "[2,3] q=0.5 axis=1 keepdim=true",
        "[2,3,4] [2] axis=(0,-1)",
        "[4,3] [3] axis=0 keepdim=true interpolation=\"nearest\"",
        "[7] q=0.6 interpolation=\"midpoint\"",
        "[7,2] q=0.6 axis=0 interpolation=\"lower\"",
        "[7] q=0.6 interpolation=\"higher\"",
        "i64[6] q=0.25",
        "[2,3] q=1",
    ],
    tolerance: Tolerance::Contraction,
    ..BLANK
};

/// quantile
pub static QUANTILE: OpDef = OpDef {
    name: "quantile",
    doc: "The value below which the part `q` of the elements over `axis` (all axes if none is given) lies: of the `n` \
          elements in order the one at position `q·(n - 1)`. Between two positions it is interpolated: `linear`, the \
          `lower` or the `higher` one, the `nearest` (of two equally near ones that at the even position), or their \
          `midpoint`. `q` is a number or a vector of them, whose axis comes first. NaN where an element is NaN, or `q` \
          lies outside of 0 to 1. Integers become the default float; half precision is computed in float32.",
    layer: "Quantile",
    expand: Some(|c| quantile(c, false)),
    ..QUANTILES
};

/// quantile without NaN
pub static NANQUANTILE: OpDef = OpDef {
    name: "nanquantile",
    doc: "As `quantile`, of all elements except NaN; NaN if all elements are NaN.",
    layer: "NanQuantile",
    expand: Some(|c| quantile(c, true)),
    ..QUANTILES
};

/// The quantile for `q = 0.5`.
fn median<'a>(c: &ExpandCx<'a>, op: &'static OpDef) -> Vec<V<'a>> {
    let half = c.cx.lit(0.5);
    vec![c.x[0].op(op, &[half, c.x[1], c.x[2]])]
}

/// median
pub static MEDIAN: OpDef = OpDef {
    name: "median",
    doc: "The element in the middle over `axis` (all axes if none is given), the mean of the two in the middle where their \
         number is even, as in NumPy; torch takes the lower of the two: `quantile(input, 0.5, interpolation=\"lower\")`. \
         NaN where an element is.",
    layer: "Median",
    dtype: DTypeRule::Fn(float_result),
    expand: Some(|c| median(c, &QUANTILE)),
    ..REDUCTION
};

/// median without NaN
pub static NANMEDIAN: OpDef = OpDef {
    name: "nanmedian",
    doc: "As `median`, of all elements except NaN; NaN if all elements are NaN.",
    layer: "NanMedian",
    dtype: DTypeRule::Fn(float_result),
    expand: Some(|c| median(c, &NANQUANTILE)),
    ..REDUCTION
};
