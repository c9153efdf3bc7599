//! Reductions over axes: sums, products, extremes, booleans.

use std::cmp::Ordering;

pub use super::statistics::{LOGSUMEXP, NORM, STD, VAR};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::formula::{ExpandCx, GradCx, V};
use crate::interp::EvalCx;
use crate::literal::Lit;
use crate::loops::{Expr, Index, LoopCx, ReduceOp};
use crate::lowering::LoweringRule::Function;
use crate::lowering::{Lowering, LoweringCx, tuple};
use crate::op::{
    Attr, BLANK, DTypeRule, DefaultLit, Eval, Grad, OpDef, Port, ShapeRule, Tolerance, Unsigned, attr, tensor,
};
use crate::rules::{Attrs, DTypeCx, DTypes, ShapeCx};
use crate::shape::Shape;
use crate::tensor::{Scalar, Tensor, strides};

/// Ops of this file.
pub static OPS: &[&OpDef] = &[&SUM, &MEAN, &PROD, &MAX, &MIN, &ARGMAX, &ARGMIN, &ANY, &ALL, &COUNT_NONZERO];

static PORTS: &[Port] = &[
    tensor("input"),
    attr("axis", Attr::OptInts, DefaultLit::None),
    attr("keepdim", Attr::Bool, DefaultLit::Bool(false)),
];

const CASES: &[&str] = &[
    "[2,3]",
    "[2,3] axis=1 keepdim=true",
    "[2,3,4] axis=-2",
    "[2,3,4] axis=(0,-1)",
    "[3] axis=0",
    "[] keepdim=true",
];

/// A reduction over `axis`.
pub(super) const REDUCTION: OpDef = OpDef {
    ports: PORTS,
    shape: ShapeRule::Fn(reduced),
    cases: CASES,
    tolerance: Tolerance::Contraction,
    ..BLANK
};

/// Position of a port that the op is known to have.
pub(super) fn port(cx: &impl Attrs, name: &str) -> usize {
    cx.op().port(name).unwrap_or(usize::MAX)
}

pub(super) fn axes(cx: &impl Attrs, rank: usize) -> Result<Vec<usize>> {
    cx.axes(port(cx, "axis"), rank)
}

pub(super) fn keepdim(cx: &impl Attrs) -> Result<bool> {
    cx.bool(port(cx, "keepdim"))
}

/// The shape without the reduced axes, or with 1 in their place.
fn reduced(cx: &ShapeCx<'_>) -> Result<Vec<Shape>> {
    let input = cx.shape(0);
    let (axes, keep) = (axes(cx, input.rank())?, keepdim(cx)?);
    let dims = input
        .iter()
        .enumerate()
        .filter_map(|(i, d)| if axes.contains(&i) { keep.then_some(Dim::ONE) } else { Some(d.clone()) });
    Ok(vec![Shape(dims.collect())])
}

/// Integers and booleans are accumulated in `i64`, `u64` in itself.
pub(super) fn accumulated(cx: &DTypeCx<'_>) -> Result<DTypes> {
    let dtype = cx.dtype(0).unwrap_or(cx.float);
    Ok(DTypes::keep([if dtype.is_float() || dtype == DType::U64 { dtype } else { DType::I64 }]))
}

/// Offsets of all positions of a tensor with these sizes and strides, in row-major order.
fn offsets(sizes: impl Iterator<Item = (usize, usize)>) -> Vec<usize> {
    sizes.fold(vec![0], |all, (n, stride)| {
        all.iter().flat_map(|&base| (0..n).map(move |i| base + i * stride)).collect()
    })
}

/// Computes each element of the output from the elements of the input that it reduces.
fn reduce(c: &EvalCx<'_>, mut f: impl FnMut(&[Scalar]) -> Scalar) -> Result<Vec<Tensor>> {
    let x = c.tensor(0);
    let axes = axes(c, x.rank())?;
    let steps: Vec<_> = x.shape().iter().copied().zip(strides(x.shape())).collect();
    let part = |reduced: bool| {
        let chosen = steps.iter().enumerate().filter(|(i, _)| axes.contains(i) == reduced);
        offsets(chosen.map(|(_, &step)| step).collect::<Vec<_>>().into_iter())
    };
    let (kept, inner) = (part(false), part(true));
    let mut line = Vec::with_capacity(inner.len());
    Ok(vec![Tensor::build(c.dtype(), c.shape(), |i| {
        line.clear();
        line.extend(inner.iter().map(|&at| x.get(kept[i] + at)));
        f(&line)
    })])
}

/// The reduction of `f` of all elements.
pub(super) fn reduce_loops(c: &LoopCx<'_>, op: ReduceOp, f: impl Fn(Expr) -> Expr) -> Result<Vec<Expr>> {
    let (shape, axes, keep) = (c.shape(0), axes(c, c.rank(0))?, keepdim(c)?);
    let sizes: Vec<i64> = axes.iter().map(|&axis| shape[axis]).collect();
    let element = |at: &[Index], inner: &[Index]| {
        let (mut outer, mut inner) = (at.iter(), inner.iter());
        let coordinates = (0..shape.len()).filter_map(|axis| {
            if !axes.contains(&axis) {
                return outer.next().cloned();
            }
            if keep {
                outer.next();
            }
            inner.next().cloned()
        });
        f(c.load(0, coordinates.collect::<Vec<_>>()))
    };
    Ok(vec![c.output(0, |at| c.reduce(op, &sizes, |inner| element(at, inner)))])
}

/// A sum in `f64` with compensated rounding errors (Neumaier 1974), so that it is an oracle for sums in `f64`.
fn exact_sum(values: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut lost) = (0.0_f64, 0.0_f64);
    for x in values {
        let next = sum + x;
        lost += if sum.abs() >= x.abs() { (sum - next) + x } else { (x - next) + sum };
        sum = next;
    }
    if lost.is_finite() { sum + lost } else { sum }
}

fn sum_of(values: &[Scalar]) -> Scalar {
    match values.first() {
        Some(Scalar::Float(_)) | None => Scalar::Float(exact_sum(values.iter().map(|x| x.f64()))),
        _ => Scalar::Int(values.iter().fold(0, |sum, x| sum.wrapping_add(x.int()))),
    }
}

/// The output's shape with 1 in place of the reduced axes.
fn kept_shape(call: &ExpandCx<'_>) -> Lit {
    let shape = call.x[0].shape();
    let axes = call.get(|c| axes(c, shape.rank()));
    let dims = shape.iter().enumerate().map(|(i, d)| if axes.contains(&i) { Dim::ONE } else { d.clone() });
    Lit::tuple(dims)
}

/// A tensor of the output's shape with the reduced axes restored as axes of size 1.
pub(super) fn keep<'a>(v: &GradCx<'a>, t: V<'a>) -> V<'a> {
    if v.get(keepdim) { t } else { t.reshape(kept_shape(v)) }
}

/// A tensor of the output's shape broadcast over the reduced axes.
fn broadcast_back<'a>(v: &GradCx<'a>, t: V<'a>) -> V<'a> {
    let shape = Lit::tuple(v.x[0].shape().iter().cloned());
    keep(v, t).broadcast_to(shape)
}

/// A call of a framework's reduction, e.g. `np.max(x, axis=1, keepdims=True)`: `head` is the text before the input, `words`
/// are the framework's names for axis and keepdim. Defaults are omitted.
pub(super) fn call_text(c: &LoweringCx<'_>, head: &str, words: (&str, &str), more: &str) -> String {
    call_of(c, head, c.arg(0), words, more)
}

/// As [`call_text`], with an expression in place of the input.
fn call_of(c: &LoweringCx<'_>, head: &str, operand: &str, words: (&str, &str), more: &str) -> String {
    let (axis, keep) = (port(c, "axis"), keepdim(c).unwrap_or(false));
    let axis = match c.absent(axis) {
        // PyTorch keeps dimensions only if they are listed.
        true if words == TORCH && keep => format!(", dim={}", all_axes(c)),
        true => String::new(),
        false => format!(", {}={}", words.0, c.arg(axis)),
    };
    let keep = if keep { format!(", {}=True", words.1) } else { String::new() };
    format!("{head}{operand}{axis}{keep}{more})")
}

pub(super) fn all_axes(c: &LoweringCx<'_>) -> String {
    tuple((0..c.ty(0).map_or(0, |t| t.shape.rank())).map(|axis| axis.to_string()))
}

pub(super) const ARRAY: (&str, &str) = ("axis", "keepdims");
pub(super) const TORCH: (&str, &str) = ("dim", "keepdim");

pub(super) fn input_dtype(c: &LoweringCx<'_>) -> Option<DType> {
    c.ty(0).map(|t| t.dtype)
}

pub(super) fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// A call of the array module's function of that name.
fn plain(c: &LoweringCx<'_>, name: &str) -> Option<String> {
    Some(call_text(c, &format!("{}.{name}(", c.xp), ARRAY, ""))
}

/// As [`plain`], for booleans; MLX needs the result for an empty input, `nothing`.
fn truth(c: &LoweringCx<'_>, name: &str, nothing: &str) -> Option<String> {
    if c.xp == "mx" { Some(call_text(c, &mlx_head(c, name, nothing), ARRAY, "")) } else { plain(c, name) }
}

/// A sum or product: integers in int64, 16-bit floats of NumPy through float32.
fn accumulating(c: &LoweringCx<'_>, name: &str) -> Option<String> {
    let function = format!("{}.{name}", c.xp);
    Some(match input_dtype(c)? {
        d if is_half(d) && c.xp == "np" => call_text(c, &format!("_wide({function}, "), ARRAY, ""),
        d if d.is_float() || d.size() == 8 => plain(c, name)?,
        _ => call_text(c, &format!("{function}("), ARRAY, &format!(", dtype={}", c.dtype(DType::I64))),
    })
}

/// A mean or variance: integers in float64, 16-bit floats of NumPy through float32.
pub(super) fn statistic(c: &LoweringCx<'_>, name: &str, more: &str) -> Option<String> {
    let function = format!("{}.{name}", c.xp);
    Some(match input_dtype(c)? {
        d if is_half(d) && c.xp == "np" => call_text(c, &format!("_wide({function}, "), ARRAY, more),
        d if is_half(d) && c.xp == "mx" => {
            // MLX rounds the mean before it computes the distances from it.
            let wide = format!("{}.astype({})", c.arg(0), c.dtype(DType::F32));
            let text = call_of(c, &mlx_head(c, name, "mx.nan"), &wide, ARRAY, more);
            format!("{text}.astype({})", c.dtype(d))
        }
        d if d.is_float() && c.xp == "mx" => call_text(c, &mlx_head(c, name, "mx.nan"), ARRAY, more),
        d if d.is_float() => call_text(c, &format!("{function}("), ARRAY, more),
        _ if c.xp == "np" => {
            let float = c.dtype(c.out(0)?.dtype);
            call_text(c, &format!("{function}("), ARRAY, more) + &format!(".astype({float})")
        }
        _ => return None,
    })
}

/// A sum or product of MLX, which accumulates integers in their own dtype.
fn mlx_accumulating(c: &LoweringCx<'_>, name: &str, nothing: &str) -> Option<String> {
    let wide = input_dtype(c)?.is_float() || input_dtype(c)?.size() == 8;
    let operand = if wide { c.arg(0).to_owned() } else { format!("{}.astype(mx.int64)", c.arg(0)) };
    Some(call_of(c, &mlx_head(c, name, nothing), &operand, ARRAY, ""))
}

/// The head of a reduction of MLX, which reads out of bounds or does not terminate if a dimension is 0.
fn mlx_head(c: &LoweringCx<'_>, name: &str, nothing: &str) -> String {
    let filled = c.ty(0).is_some_and(|t| t.shape.iter().all(|d| d.known().is_some_and(|n| n > 0)));
    if filled { format!("mx.{name}(") } else { format!("_reduced(mx.{name}, {nothing}, ") }
}

/// A reduction of PyTorch, in which an empty `dim` means all axes rather than none.
pub(super) fn torch(c: &LoweringCx<'_>, head: &str, more: &str) -> Option<String> {
    let empty = is_empty(&c.lit(port(c, "axis")));
    let alone = || format!("{head}{}[None], dim=0{more})", c.arg(0));
    Some(if empty { alone() } else { call_text(c, head, TORCH, more) })
}

fn is_empty(axis: &Lit) -> bool {
    matches!(axis, Lit::Tuple(items) if items.is_empty())
}

/// As [`torch`], for booleans: of uint8 PyTorch returns uint8.
fn torch_truth(c: &LoweringCx<'_>, head: &str) -> Option<String> {
    let text = torch(c, head, "")?;
    Some(if input_dtype(c)? == DType::U8 { text + ".to(torch.bool)" } else { text })
}

/// As [`torch`], for functions that accept only floats.
pub(super) fn torch_float(c: &LoweringCx<'_>, head: &str, more: &str) -> Option<String> {
    if input_dtype(c)?.is_float() { torch(c, head, more) } else { None }
}

/// A function of ggml that reduces rows, applied along the axes.
fn rows_of(c: &LoweringCx<'_>, function: &str) -> Option<String> {
    super::ggml::reduction(c, &axes(c, c.ty(0)?.shape.rank()).ok()?, function)
}

/// `Σ input`
pub static SUM: OpDef = OpDef {
    name: "sum",
    doc: "Sum over `axis` (all axes if none is given). Integers and booleans add up in int64; the sum of \
         nothing is 0. `keepdim` leaves the reduced axes in place with size 1.",
    aliases: &["reduce_sum"],
    layer: "Sum",
    dtype: DTypeRule::Fn(accumulated),
    eval: Some(Eval::Tensors(|c| reduce(c, sum_of))),
    loops: Some(|c| reduce_loops(c, ReduceOp::Sum, |x| x.cast(c.out_dtype(0)))),
    unsigned: Unsigned::Bits,
    grad: Grad::Formula(|v| vec![broadcast_back(v, v.g)]),
    lowering: Lowering {
        py: Function(|c| accumulating(c, "sum")),
        torch: Function(|c| torch(c, "torch.sum(", "")),
        mlx: Function(|c| mlx_accumulating(c, "sum", "0")),
        ggml: Function(|c| rows_of(c, "ggml_sum_rows")),
        onnx: Function(|s| super::onnx::reduction(s, "ReduceSum")),
        ..Lowering::NONE
    },
    ..REDUCTION
};

/// Number of elements that are reduced to one.
pub(super) fn count(call: &ExpandCx<'_>) -> Dim {
    let shape = call.x[0].shape();
    call.get(|c| axes(c, shape.rank())).into_iter().fold(Dim::ONE, |n, axis| &n * &shape[axis])
}

/// 16-bit floats in float32, since sums of squares overflow early.
pub(super) fn at_least_f32(x: V<'_>) -> V<'_> {
    if is_half(x.dtype()) { x.cast(DType::F32) } else { x }
}

/// The float dtype of the result.
pub(super) fn float_of(x: V<'_>) -> DType {
    let dtype = x.dtype();
    if dtype.is_float() { dtype } else { x.cx().float() }
}

/// A float at least as wide as float32.
pub(super) fn floating(x: V<'_>) -> V<'_> {
    at_least_f32(x.cast(float_of(x)))
}

pub(super) fn float_result(cx: &DTypeCx<'_>) -> Result<DTypes> {
    let dtype = cx.dtype(0).unwrap_or(cx.float);
    Ok(DTypes::keep([if dtype.is_float() { dtype } else { cx.float }]))
}

/// `Σ input / n`
pub static MEAN: OpDef = OpDef {
    name: "mean",
    doc: "Arithmetic mean over `axis` (all axes if none is given). The mean of integers is of the default float; \
         the mean of nothing is NaN. Half precision is added up in float32.",
    aliases: &["reduce_mean", "average"],
    layer: "Mean",
    dtype: DTypeRule::Fn(float_result),
    expand: Some(|c| {
        let sum = at_least_f32(c.x[0]).op(&SUM, &c.x[1..]);
        vec![(sum / count(c)).cast(float_of(c.x[0]))]
    }),
    lowering: Lowering {
        py: Function(|c| statistic(c, "mean", "")),
        torch: Function(|c| torch_float(c, "torch.mean(", "")),
        ggml: Function(|c| rows_of(c, "ggml_mean")),
        onnx: Function(|s| super::onnx::reduction(s, "ReduceMean")),
        ..Lowering::NONE
    },
    ..REDUCTION
};

/// `Π input`
pub static PROD: OpDef = OpDef {
    name: "prod",
    doc: "Product over `axis` (all axes if none is given). Integers and booleans multiply in int64, 16-bit \
         floats in float32; the product of nothing is 1. The gradient of an element is the product of the others, also where some are 0.",
    aliases: &["reduce_prod", "product"],
    layer: "Prod",
    dtype: DTypeRule::Fn(accumulated),
    eval: Some(Eval::Tensors(|c| {
        reduce(c, |values| match values.first() {
            Some(Scalar::Float(_)) | None => Scalar::Float(values.iter().map(|x| x.f64()).product()),
            _ => Scalar::Int(values.iter().fold(1, |product, x| product.wrapping_mul(x.int()))),
        })
    })),
    loops: Some(|c| reduce_loops(c, ReduceOp::Prod, |x| x.cast(c.out_dtype(0)))),
    unsigned: Unsigned::Bits,
    grad: Grad::Formula(prod_grad),
    lowering: Lowering {
        py: Function(|c| accumulating(c, "prod")),
        torch: Function(torch_prod),
        mlx: Function(|c| mlx_accumulating(c, "prod", "1")),
        ggml: Function(|c| rows_of(c, "mithril_prod_rows")),
        onnx: Function(|s| super::onnx::reduction(s, "ReduceProd")),
        ..Lowering::NONE
    },
    domain: (0.5, 2.0),
    ..REDUCTION
};

/// PyTorch multiplies over one axis at a time, and rounds 16-bit floats after each factor.
fn torch_prod(c: &LoweringCx<'_>) -> Option<String> {
    let (rank, keep) = (c.ty(0)?.shape.rank(), keepdim(c).ok()?);
    let axes = axes(c, rank).ok()?;
    if axes.is_empty() && rank > 0 {
        return torch(c, "torch.prod(", "");
    }
    let dtype = c.ty(0)?.dtype;
    let (x, narrow) = if is_half(dtype) {
        (format!("{}.float()", c.arg(0)), format!(".to({})", c.dtype(dtype)))
    } else {
        (c.arg(0).to_owned(), String::new())
    };
    if axes.len() == rank && (rank == 0 || !keep) {
        return Some(format!("torch.prod({x}){narrow}"));
    }
    let keep = if keep { ", keepdim=True" } else { "" };
    let last_first = axes.iter().rev();
    let product = last_first.fold(x, |text, axis| format!("torch.prod({text}, dim={axis}{keep})"));
    Some(product + &narrow)
}

/// One axis after the other; along an axis, the product of the other elements is that of those before times those after.
fn prod_grad<'a>(v: &GradCx<'a>) -> Vec<V<'a>> {
    let axes = v.get(|c| axes(c, c.x[0].rank()));
    let (yes, no) = (v.cx.lit(true), v.cx.lit(false));
    let mut levels = vec![v.x[0]];
    for &axis in &axes {
        let last = levels[levels.len() - 1];
        levels.push(last.prod(axis, yes));
    }
    let mut g = keep(v, v.g);
    for (x, &axis) in levels.into_iter().zip(&axes).rev() {
        let before = x.cumprod(axis, yes, no);
        let after = x.cumprod(axis, yes, yes);
        g = g * (before * after);
    }
    vec![g]
}

/// Orders elements; NaN is larger than every number.
pub(super) fn order(a: &Scalar, b: &Scalar) -> Ordering {
    match (a, b) {
        (Scalar::Float(a), Scalar::Float(b)) => {
            a.partial_cmp(b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
        }
        _ => a.int().cmp(&b.int()),
    }
}

/// Index of the first extremum; NaN counts as one.
fn extremum_index(values: &[Scalar], ordering: Ordering) -> usize {
    let nan = values.iter().position(|x| x.f64().is_nan());
    nan.unwrap_or_else(|| {
        (1..values.len())
            .fold(0, |best, i| if order(&values[i], &values[best]) == ordering { i } else { best })
    })
}

/// As [`reduced`]; reduced axes must not be empty.
fn chosen(cx: &ShapeCx<'_>) -> Result<Vec<Shape>> {
    let input = cx.shape(0);
    for axis in axes(cx, input.rank())? {
        if input[axis].is(0) {
            return Err(
                nothing_to_choose(cx.op()).note(format!("the shape is {input}, its axis {axis} is empty"))
            );
        }
    }
    reduced(cx)
}

fn nothing_to_choose(op: &OpDef) -> Error {
    Error::new(Code::BadSize, format!("{} of no elements is not defined", op.name))
        .help("reduce over an axis that has elements")
}

fn choose(c: &EvalCx<'_>, ordering: Ordering, pick: fn(&[Scalar], usize) -> Scalar) -> Result<Vec<Tensor>> {
    let x = c.tensor(0);
    if axes(c, x.rank())?.iter().any(|&axis| x.shape()[axis] == 0) {
        return Err(nothing_to_choose(c.op()));
    }
    reduce(c, |values| pick(values, extremum_index(values, ordering)))
}

/// The cotangent, distributed equally to all elements that are the extremum.
fn share<'a>(v: &GradCx<'a>) -> Vec<V<'a>> {
    let is_extreme = v.x[0].equal(keep(v, v.y));
    let ties = is_extreme.cast(v.g.dtype()).sum(v.x[1], true);
    vec![is_extreme.select(keep(v, v.g) / ties, 0.0)]
}

const EXTREMUM: OpDef = OpDef {
    shape: ShapeRule::Fn(chosen),
    dtype: DTypeRule::Same(0),
    unsigned: Unsigned::Order,
    grad: Grad::Formula(share),
    tolerance: Tolerance::Exact,
    ..REDUCTION
};

/// Largest element
pub static MAX: OpDef = OpDef {
    name: "max",
    doc: "Largest element over `axis` (all axes if none is given); NaN if one is NaN. The gradient is shared evenly \
         among elements that tie.",
    aliases: &["reduce_max", "amax"],
    layer: "Max",
    eval: Some(Eval::Tensors(|c| choose(c, Ordering::Greater, |values, i| values[i]))),
    loops: Some(|c| reduce_loops(c, ReduceOp::Max, |x| x)),
    lowering: Lowering {
        py: Function(|c| plain(c, "max")),
        torch: Function(|c| torch(c, "torch.amax(", "")),
        ggml: Function(|c| rows_of(c, "mithril_max_rows")),
        onnx: Function(|s| super::onnx::reduction(s, "ReduceMax")),
        ..Lowering::NONE
    },
    ..EXTREMUM
};

/// Smallest element
pub static MIN: OpDef = OpDef {
    name: "min",
    doc: "Smallest element over `axis` (all axes if none is given); NaN if one is NaN. The gradient is shared \
         evenly among elements that tie.",
    aliases: &["reduce_min", "amin"],
    layer: "Min",
    eval: Some(Eval::Tensors(|c| choose(c, Ordering::Less, |values, i| values[i]))),
    loops: Some(|c| reduce_loops(c, ReduceOp::Min, |x| x)),
    lowering: Lowering {
        py: Function(|c| plain(c, "min")),
        torch: Function(|c| torch(c, "torch.amin(", "")),
        ggml: Function(|c| rows_of(c, "mithril_min_rows")),
        onnx: Function(|s| super::onnx::reduction(s, "ReduceMin")),
        ..Lowering::NONE
    },
    ..EXTREMUM
};

static INDEX_PORTS: &[Port] = &[
    tensor("input"),
    attr("axis", Attr::OptInt, DefaultLit::None),
    attr("keepdim", Attr::Bool, DefaultLit::Bool(false)),
];

/// PyTorch does not accept booleans.
fn torch_index(c: &LoweringCx<'_>, name: &str) -> Option<String> {
    let as_numbers = if input_dtype(c)? == DType::Bool { ".to(torch.uint8)" } else { "" };
    let axis = if c.absent(1) { String::new() } else { format!(", dim={}", c.arg(1)) };
    let keep = if keepdim(c).ok()? { ", keepdim=True" } else { "" };
    Some(format!("torch.{name}({}{as_numbers}{axis}{keep})", c.arg(0)))
}

const EXTREMUM_INDEX: OpDef = OpDef {
    ports: INDEX_PORTS,
    shape: ShapeRule::Fn(chosen),
    dtype: DTypeRule::Fn(|_| Ok(DTypes::keep([DType::I64]))),
    unsigned: Unsigned::Order,
    grad: Grad::Zero,
    cases: &[
        "[2,3]",
        "[2,3] axis=1 keepdim=true",
        "[2,3,4] axis=-2",
        "i64[4,5]<3 axis=0",
        "[]",
        "[] keepdim=true",
    ],
    tolerance: Tolerance::Exact,
    ..REDUCTION
};

/// Indices of MLX, without their gradient: MLX raises an error for lookups that use them.
fn mlx_index(c: &LoweringCx<'_>, name: &str) -> Option<String> {
    // Of a number MLX has no position if axes are kept.
    if c.ty(0)?.shape.rank() == 0 || c.out(0)?.shape.iter().any(|d| d.is(0)) {
        return Some(format!("mx.zeros({}, mx.int64)", c.dims(&c.out(0)?.shape)));
    }
    let stopped = format!("mx.stop_gradient({})", c.arg(0));
    let operand = if input_dtype(c)?.is_float() { &stopped } else { c.arg(0) };
    Some(call_of(c, &format!("mx.{name}("), operand, ARRAY, "") + ".astype(mx.int64)")
}

/// Position of the largest element
pub static ARGMAX: OpDef = OpDef {
    name: "argmax",
    doc: "Position of the largest element along `axis`, in int64; without an axis the position in the flattened \
         input. The first one where several tie; the first NaN if there is one.",
    layer: "ArgMax",
    eval: Some(Eval::Tensors(|c| choose(c, Ordering::Greater, |_, i| Scalar::Int(i as i128)))),
    loops: Some(|c| reduce_loops(c, ReduceOp::ArgMax, |x| x)),
    lowering: Lowering {
        py: Function(|c| Some(format!("{}.astype({})", plain(c, "argmax")?, c.dtype(DType::I64)))),
        numpy: Function(|c| plain(c, "argmax")),
        torch: Function(|c| torch_index(c, "argmax")),
        mlx: Function(|c| mlx_index(c, "argmax")),
        onnx: Function(|s| super::onnx::position(s, "ArgMax")),
        ..Lowering::NONE
    },
    ..EXTREMUM_INDEX
};

/// Position of the smallest element
pub static ARGMIN: OpDef = OpDef {
    name: "argmin",
    doc: "Position of the smallest element along `axis`, in int64; without an axis the position in the flattened \
         input. The first one where several tie; the first NaN if there is one.",
    layer: "ArgMin",
    eval: Some(Eval::Tensors(|c| choose(c, Ordering::Less, |_, i| Scalar::Int(i as i128)))),
    loops: Some(|c| reduce_loops(c, ReduceOp::ArgMin, |x| x)),
    lowering: Lowering {
        py: Function(|c| Some(format!("{}.astype({})", plain(c, "argmin")?, c.dtype(DType::I64)))),
        numpy: Function(|c| plain(c, "argmin")),
        torch: Function(|c| torch_index(c, "argmin")),
        mlx: Function(|c| mlx_index(c, "argmin")),
        onnx: Function(|s| super::onnx::position(s, "ArgMin")),
        ..Lowering::NONE
    },
    ..EXTREMUM_INDEX
};

const LOGICAL: OpDef = OpDef {
    dtype: DTypeRule::Fn(|_| Ok(DTypes::keep([DType::Bool]))),
    unsigned: Unsigned::Bits,
    grad: Grad::Zero,
    cases: &["bool[2,3]", "i64[2,3]<2 axis=1 keepdim=true", "[2,3,4] axis=(0,-1)", "[2,0] axis=1", "bool[]"],
    tolerance: Tolerance::Exact,
    ..REDUCTION
};

/// Whether any element is true
pub static ANY: OpDef = OpDef {
    name: "any",
    doc: "Whether any element over `axis` (all axes if none is given) is true, that is, nonzero; NaN is true. \
         False for no elements.",
    aliases: &["reduce_any"],
    layer: "Any",
    expand: Some(|c| vec![c.x[0].op(&COUNT_NONZERO, &c.x[1..]).cast(DType::Bool)]),
    lowering: Lowering {
        py: Function(|c| truth(c, "any", "False")),
        torch: Function(|c| torch_truth(c, "torch.any(")),
        ..Lowering::NONE
    },
    ..LOGICAL
};

/// Whether all elements are true
pub static ALL: OpDef = OpDef {
    name: "all",
    doc: "Whether all elements over `axis` (all axes if none is given) are true, that is, nonzero; NaN is \
         true. True for no elements.",
    aliases: &["reduce_all"],
    layer: "All",
    expand: Some(|c| {
        let zeros = c.x[0].equal(0).op(&SUM, &c.x[1..]);
        vec![zeros.equal(0)]
    }),
    lowering: Lowering {
        py: Function(|c| truth(c, "all", "True")),
        torch: Function(|c| torch_truth(c, "torch.all(")),
        ..Lowering::NONE
    },
    ..LOGICAL
};

/// The condition that an element is not zero.
fn unequal(c: &LoweringCx<'_>) -> String {
    format!("{} != 0", c.arg(0))
}

/// Number of elements that are not zero
pub static COUNT_NONZERO: OpDef = OpDef {
    name: "count_nonzero",
    doc: "How many elements over `axis` (all axes if none is given) are not zero, in int64; NaN counts.",
    layer: "CountNonzero",
    dtype: DTypeRule::Fn(|_| Ok(DTypes::keep([DType::I64]))),
    expand: Some(|c| vec![c.x[0].cast(DType::Bool).op(&SUM, &c.x[1..])]),
    lowering: Lowering {
        numpy: Function(|c| Some(call_of(c, "np.sum(", &unequal(c), ARRAY, ""))),
        torch: Function(|c| {
            let text = || call_of(c, "torch.sum(", &unequal(c), TORCH, "");
            (!is_empty(&c.lit(port(c, "axis")))).then(text)
        }),
        ..Lowering::NONE
    },
    ..LOGICAL
};

#[cfg(test)]
pub(super) mod tests;
