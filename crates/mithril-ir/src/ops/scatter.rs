//! Writes at indices that are data: elements that are replaced or combined, and masks.
//!
//! If several elements are written to the same index, the last one is kept, on every target. Negative indices count from the
//! end, and an index out of range is an error.

use smallvec::smallvec;

use crate::dim::Dim;
use crate::dtype::{DType, Kind, Kinds};
use crate::error::{Code, Error, Result};
use crate::formula::{ExpandCx, V};
use crate::interp::EvalCx;
use crate::literal::Lit;
use crate::loops::{CallArgument, Expr, LoopCx, accumulator, sizes_around};
use crate::lowering::LoweringRule::{Function, Template};
use crate::lowering::{Lowering, LoweringCx};
use crate::op::{
    Attr, BLANK, DTypeRule, DefaultLit, Effect, Eval, Grad, Indexed, OpDef, Port, PortKind, ShapeRule,
    Tolerance, Unsigned, attr, tensor, tensor_of,
};
use crate::ops::getitem::GETITEM;
use crate::ops::index::{
    ADDITION, INDICES, SCATTER_ADD, base, counted_from_front, positions, source_as_input,
};
use crate::ops::joining::CONCAT;
use crate::ops::movement::{INPUT, MOVE};
use crate::rules::{Attrs, DTypeCx, DTypes, ShapeCx};
use crate::shape::Shape;
use crate::tensor::{Scalar, Tensor, strides};

/// Ops of this file.
pub static OPS: &[&OpDef] = &[
    &SCATTER_PROD,
    &SCATTER_MAX,
    &SCATTER_MIN,
    &SCATTER,
    &SCATTER_REDUCE,
    &INDEX_FILL,
    &INDEX_PUT,
    &MASKED_FILL,
    &MASKED_SCATTER,
];

// --- combined ----------------------------------------------------------------------------------------------

/// A scatter that combines values with a function of two numbers.
const COMBINING: OpDef = OpDef {
    shape: SCATTER_ADD.shape,
    indexed: Some(Indexed { table: 0, indices: 1, axis: Some(3), effect: Effect::Change(2) }),
    cases: &[
        "[6,3] i64[4,3] [4,3] axis=0",
        "[2,6] i64[2,9] [2,9] axis=-1",
        "[6] i64[0]<5 [0]",
        "i64[6] i64[8] i64[8]",
    ],
    ..ADDITION
};

/// `x` with each element of the source combined with the element at its index.
fn combine(c: &EvalCx<'_>, float: fn(f64, f64) -> f64, int: fn(i128, i128) -> i128) -> Result<Vec<Tensor>> {
    let (x, source) = (c.tensor(0), c.tensor(2));
    let axis = c.axis(3, x.rank())?;
    let at = positions(c, 1, x.shape()[axis])?;
    let (from, step) = (base(x.shape(), source.shape(), axis), strides(x.shape())[axis]);
    let mut all: Vec<Scalar> = (0..x.len()).map(|i| x.get(i)).collect();
    for i in 0..source.len() {
        let slot = &mut all[from(i) + at[i] * step];
        *slot = match *slot {
            Scalar::Float(old) => Scalar::Float(float(old, source.get(i).f64())),
            old => Scalar::Int(int(old.int(), source.get(i).int())),
        };
    }
    Ok(vec![Tensor::build(x.dtype(), x.shape(), |i| all[i])])
}

/// The larger; NaN if either is.
fn larger(a: f64, b: f64) -> f64 {
    if a >= b || a.is_nan() { a } else { b }
}

/// The smaller; NaN if either is.
fn smaller(a: f64, b: f64) -> f64 {
    if a <= b || a.is_nan() { a } else { b }
}

/// Calls a C function that combines `source` with the input at `indices`.
fn combining_loops(c: &LoopCx<'_>, function: &str) -> Result<Vec<Expr>> {
    let (axis, wide) = (c.axis(3, c.rank(0))?, accumulator(c.out_dtype(0)));
    let (outer, size, inner) = sizes_around(&c.shape(0), axis);
    let result = c.temporary(wide, c.out_shape(0), |at| c.load(0, at).cast(wide));
    let (indices, source) = (c.stored(1, DType::I64), c.stored(2, wide));
    let buffers = [CallArgument::Out(result), CallArgument::In(indices), CallArgument::In(source)];
    let numbers = [outer, size, c.shape(2)[axis], inner].map(CallArgument::Int);
    c.call(format!("{function}_{}", wide.short()), [&buffers[..], &numbers[..]].concat(), 0);
    Ok(vec![c.output(0, |at| c.load(result, at).cast(c.out_dtype(0)))])
}

/// A call of `torch.scatter_reduce`; products of 16-bit floats are computed in float32.
fn torch_combining(s: &LoweringCx<'_>, reduce: &str) -> Option<String> {
    let axis = s.axis(3, s.ty(0)?.shape.rank()).ok()?;
    let at = counted_from_front(s, axis, DType::I64)?;
    let dtype = s.ty(0)?.dtype;
    let is_half = matches!(dtype, DType::F16 | DType::BF16);
    let (wide, narrow) =
        if is_half { (".float()", format!(".to({})", s.dtype(dtype))) } else { ("", String::new()) };
    let (x, source) = (s.arg(0), s.arg(2));
    Some(format!("torch.scatter_reduce({x}{wide}, {axis}, {at}, {source}{wide}, \"{reduce}\"){narrow}"))
}

/// The gradient for elements that are the extremum at their index, distributed equally among them.
fn shared<'a>(v: &crate::formula::GradCx<'a>) -> Vec<V<'a>> {
    let (x, indices, source, axis, zero) = (v.x[0], v.x[1], v.x[2], v.x[3], v.cx.lit(0.0));
    let at = |t: V<'a>| t.take_along_axis(indices, axis);
    let (is_x, is_source) = (x.equal(v.y), source.equal(at(v.y)));
    let dtype = v.g.dtype();
    let ties = is_x.cast(dtype).scatter_add(indices, is_source.cast(dtype), axis);
    let part = v.g / ties.maximum(1.0);
    vec![is_x.select(part, zero), v.none(), is_source.select(at(part), zero)]
}

/// `output[indices[i]] *= source[i]`
pub static SCATTER_PROD: OpDef = OpDef {
    name: "scatter_prod",
    doc: "The input with the element at the position along `axis` that `indices` gives multiplied by each element of \
         `source`. `indices` and `source` have the shape of the input apart from the axis.",
    layer: "ScatterProd",
    eval: Some(Eval::Tensors(|c| combine(c, |a, b| a * b, i128::wrapping_mul))),
    loops: Some(|c| combining_loops(c, "mithril_scatter_prod")),
    grad: Grad::Formula(|v| {
        let (x, indices, source, axis) = (v.x[0], v.x[1], v.x[2], v.x[3]);
        let (zero, one) = (v.cx.lit(0.0), v.cx.lit(1.0));
        let at = |t: V<'_>| v.cx.value(t.take_along_axis(indices, axis).id());
        let full = |n: f64| v.cx.full(x.shape().0.to_vec(), n, x.dtype());
        // The product of the other elements is that of those that are not 0, unless another one is 0.
        let is_zero = source.equal(zero);
        let filled = is_zero.select(one, source);
        let rest = at(full(1.0).op(&SCATTER_PROD, &[indices, filled, axis]));
        let zeros = at(full(0.0).scatter_add(indices, is_zero.cast(x.dtype()), axis));
        let is_alone = zeros.equal(is_zero.cast(x.dtype()));
        let others = is_alone.select(rest / filled, zero);
        let by_x = v.g * full(1.0).op(&SCATTER_PROD, &[indices, source, axis]);
        vec![by_x, v.none(), at(v.g * x) * others]
    }),
    lowering: Lowering {
        numpy: Template("_scatter_merged(np.multiply, {0}, {1}, {2}, {3})"),
        torch: Function(|s| torch_combining(s, "prod")),
        jax: Template("_scatter_merged(\"multiply\", {0}, {1}, {2}, {3})"),
        mlx: Template("_scatter_merged(\"multiply\", {0}, {1}, {2}, {3})"),
        onnx: Function(|s| super::onnx::scatter(s, 3, [1, 2], "mul")),
        ..Lowering::NONE
    },
    domain: (0.5, 2.0),
    ..COMBINING
};

/// `output[indices[i]] = max(output[indices[i]], source[i])`
pub static SCATTER_MAX: OpDef = OpDef {
    name: "scatter_max",
    doc: "The largest of the element of the input and those of `source` whose `indices` give its position along `axis`; \
         NaN if one is. `indices` and `source` have the shape of the input apart from the axis. Ties share \
         the gradient.",
    layer: "ScatterMax",
    eval: Some(Eval::Tensors(|c| combine(c, larger, i128::max))),
    loops: Some(|c| combining_loops(c, "mithril_scatter_max")),
    unsigned: Unsigned::Order,
    grad: Grad::Formula(shared),
    lowering: Lowering {
        numpy: Template("_scatter_merged(np.maximum, {0}, {1}, {2}, {3})"),
        torch: Function(|s| torch_combining(s, "amax")),
        jax: Template("_scatter_merged(\"max\", {0}, {1}, {2}, {3})"),
        mlx: Template("_scatter_merged(\"maximum\", {0}, {1}, {2}, {3})"),
        onnx: Function(|s| super::onnx::scatter(s, 3, [1, 2], "max")),
        ..Lowering::NONE
    },
    tolerance: Tolerance::Exact,
    ..COMBINING
};

/// `output[indices[i]] = min(output[indices[i]], source[i])`
pub static SCATTER_MIN: OpDef = OpDef {
    name: "scatter_min",
    doc: "The smallest of the element of the input and those of `source` whose `indices` give its position along `axis`; \
         NaN if one is. `indices` and `source` have the shape of the input apart from the axis. Ties share \
         the gradient.",
    layer: "ScatterMin",
    eval: Some(Eval::Tensors(|c| combine(c, smaller, i128::min))),
    loops: Some(|c| combining_loops(c, "mithril_scatter_min")),
    unsigned: Unsigned::Order,
    grad: Grad::Formula(shared),
    lowering: Lowering {
        numpy: Template("_scatter_merged(np.minimum, {0}, {1}, {2}, {3})"),
        torch: Function(|s| torch_combining(s, "amin")),
        jax: Template("_scatter_merged(\"min\", {0}, {1}, {2}, {3})"),
        mlx: Template("_scatter_merged(\"minimum\", {0}, {1}, {2}, {3})"),
        onnx: Function(|s| super::onnx::scatter(s, 3, [1, 2], "min")),
        ..Lowering::NONE
    },
    tolerance: Tolerance::Exact,
    ..COMBINING
};

// --- replaced, with torch's rules for shapes ---------------------------------------------------------------

const AXIS: Port = attr("axis", Attr::Int, DefaultLit::Required);

/// The indices may be smaller than the input, and the source larger than the indices.
fn scattered_shape(cx: &ShapeCx<'_>) -> Result<Vec<Shape>> {
    let (input, indices, source) = (cx.shape(0), cx.shape(2), cx.shape(3));
    cx.rank(2, &[input.rank()])?;
    cx.rank(3, &[0, input.rank()])?;
    let axis = cx.axis(1, input.rank())?;
    let too_many = |a: &Dim, b: &Dim| matches!((a.known(), b.known()), (Some(a), Some(b)) if a > b);
    for (i, n) in indices.iter().enumerate() {
        let of = |what: &str, size: &Dim| {
            let message =
                format!("`indices` of {} has {n} places along axis {i}, {what} {size}", cx.op().name);
            Error::new(Code::ShapeMismatch, message).help("use fewer indices, or a larger tensor")
        };
        if i != axis && too_many(n, &input[i]) {
            return Err(of("`input`", &input[i]));
        }
        if source.rank() > 0 && too_many(n, &source[i]) {
            return Err(of("`source`", &source[i]));
        }
    }
    Ok(vec![input.clone()])
}

/// Applies `f` to the part of the input that the indices can reach and the part of the source that they use.
fn scattered<'a>(c: &ExpandCx<'a>, f: impl FnOnce(V<'a>, V<'a>) -> V<'a>) -> Vec<V<'a>> {
    let (x, indices, source) = (c.x[0], c.x[2], c.x[3]);
    let (shape, used) = (x.shape(), indices.shape());
    let axis = c.get(|c| c.axis(1, shape.rank()));
    let lit = |dims: &[Dim]| c.cx.lit(Lit::tuple(dims.iter().cloned()));
    let none = vec![Dim::Const(0); shape.rank()];
    let source = match source.shape() {
        same if same == used => source,
        scalar if scalar.rank() == 0 => source.broadcast_to(lit(&used)),
        _ => source.slice(lit(&none), lit(&used)),
    };
    let mut part = used.clone();
    if let (Some(slot), Some(size)) = (part.0.get_mut(axis), shape.get(axis)) {
        *slot = size.clone();
    }
    if part == shape {
        return vec![f(x, source)];
    }
    let changed = f(x.slice(lit(&none), lit(&part)), source);
    vec![x.slice_update(changed, lit(&none), lit(&part))]
}

/// The source, which is the last tensor, is converted to the dtype of the input.
fn last_as_input(cx: &DTypeCx<'_>) -> Result<DTypes> {
    let to = cx.dtype(0).unwrap_or(cx.float);
    Ok(DTypes { cast: smallvec![None, None, None, Some(to)], out: smallvec![to] })
}

/// elements replaced at indices
pub static SCATTER: OpDef = OpDef {
    name: "scatter",
    doc: "Replaces the element at the index along `axis` given by `indices` by each element of `source`: \
          `output[indices[i, j], j] = source[i, j]` for axis 0. If several elements have the same index, the \
          last one along `axis` is kept, and only it gets a gradient. `indices` has at most as many places as the input along the other \
          axes, and as the source along all. `source` may be a number.",
    layer: "Scatter",
    ports: &[INPUT, AXIS, INDICES, tensor("source")],
    shape: ShapeRule::Fn(scattered_shape),
    dtype: DTypeRule::Fn(last_as_input),
    expand: Some(|c| scattered(c, |x, source| replaced(c, x, c.x[2], source))),
    loops: Some(|c| {
        let dtype = c.out_dtype(0);
        let axis = c.axis(1, c.rank(0))?;
        let (outer, size, inner) = sizes_around(&c.shape(0), axis);
        let mut plain = c.shape(0);
        plain[axis] = c.shape(2)[axis];
        if c.shape(2) != plain || c.shape(3) != plain {
            return Err(Error::internal("indices for a part of the input are written by other ops"));
        }
        let output = c.temporary(dtype, c.out_shape(0), |at| c.load(0, at));
        let (indices, source) = (c.stored(2, DType::I64), c.stored(3, dtype));
        let buffers = [CallArgument::Out(output), CallArgument::In(indices), CallArgument::In(source)];
        let numbers = [outer, size, plain[axis], inner, dtype.size() as i64].map(CallArgument::Int);
        c.call("mithril_scatter", [&buffers[..], &numbers[..]].concat(), 0);
        Ok(vec![c.whole(0, output)])
    }),
    indexed: None,
    lowering: Lowering {
        numpy: Function(|s| {
            let same = s.ty(3)?.shape == s.ty(2)?.shape;
            same.then(|| format!("_scatter({}, {}, {}, {})", s.arg(0), s.arg(2), s.arg(3), s.arg(1)))
        }),
        ..Lowering::NONE
    },
    cases: &[
        "[6,3] i64[4,3] [4,3] axis=0",
        "[2,6] i64[2,9] [2,9] axis=-1",
        "[6] i64[0]<5 [0] axis=0",
        "i64[6] i64[8] i64[8] axis=0",
        "[6,4,3] i64[2,3,2] [3,3,4] axis=0",
        "bool[6] i32[2] bool[3] axis=0",
        "[3,6] i64[2,2] source=1.5 axis=1",
    ],
    ..MOVE
};

/// `x` with the last element for each index.
fn replaced<'a>(c: &ExpandCx<'a>, x: V<'a>, indices: V<'a>, source: V<'a>) -> V<'a> {
    let axis = c.get(|c| c.axis(1, c.x[0].rank()));
    along(x, indices, source, axis)
}

/// The last element for each index is the one with the largest position in the source.
fn along<'a>(x: V<'a>, indices: V<'a>, source: V<'a>, axis: usize) -> V<'a> {
    let (cx, shape) = (x.cx(), x.shape());
    let at = cx.lit(axis);
    let tuple = |dims: &[Dim]| cx.lit(Lit::tuple(dims.iter().cloned()));
    let (count, size) = (indices.dim(axis as i64), x.dim(axis as i64));
    let line = |n: &Dim| {
        let mut ones = vec![Dim::ONE; shape.rank()];
        ones[axis] = n.clone();
        cx.arange(n.clone()).reshape(tuple(&ones))
    };
    let order = line(&count).broadcast_to(tuple(&indices.shape()));
    // The input follows the source, so that elements without a write are taken from it.
    let stays = (line(&size) - size.clone()).broadcast_to(tuple(&shape));
    let last = stays.op(&SCATTER_MAX, &[indices, order, at]);
    let is_new = cx.lit(-1).less(last);
    let zero = cx.lit(0);
    if count.known().is_some_and(|n| n > 0) {
        let values = source.take_along_axis(last.maximum(zero), at);
        return is_new.select(values, x);
    }
    // The source may be empty; the concatenation with the input never is.
    let both = cx.concat(at, &[source, x]);
    let from = is_new.select(last, last + (&count + &size));
    both.take_along_axis(from, at)
}

/// elements combined at indices
pub static SCATTER_REDUCE: OpDef = OpDef {
    name: "scatter_reduce",
    doc: "Reduces each element of `source` into the input at the index along `axis` given by `indices`: their `sum`, `prod`, `mean`, `amax` or `amin`.  \
          Without `include_self` the element of the input is excluded where there are others. `indices` has at most as many places as the input along the other axes, \
          and as the source along all. The mean of integers is rounded down. Ties share the gradient.",
    layer: "ScatterReduce",
    ports: &[
        tensor_of("input", Kinds::NUMBER),
        AXIS,
        INDICES,
        tensor_of("source", Kinds::NUMBER),
        attr("reduce", Attr::Choice(&["sum", "prod", "mean", "amax", "amin"]), DefaultLit::Required),
        attr("include_self", Attr::Bool, DefaultLit::Bool(true)),
    ],
    shape: ShapeRule::Fn(scattered_shape),
    dtype: DTypeRule::Fn(last_as_input),
    expand: Some(|c| scattered(c, |x, source| reduced(c, x, source))),
    domain: (0.5, 2.0),
    cases: &[
        "[6,3] i64[4,3] [4,3] axis=0 reduce=\"sum\"",
        "[2,6] i64[2,9] [2,9] axis=-1 reduce=\"mean\"",
        "[2,6] i64[2,9] [2,9] axis=1 reduce=\"mean\" include_self=false",
        "[6] i64[8] [8] axis=0 reduce=\"amax\" include_self=false",
        "[6,4] i64[2,3] [3,3] axis=0 reduce=\"amin\"",
        "[6] i64[8] [9] axis=0 reduce=\"prod\" include_self=false",
        "i64[6] i64[8] i64[8] axis=0 reduce=\"mean\"",
        "i64[6] i64[4] i64[4] axis=0 reduce=\"amin\" include_self=false",
        "[6] i64[0]<5 [0] axis=0 reduce=\"sum\" include_self=false",
    ],
    tolerance: Tolerance::Contraction,
    ..BLANK
};

fn reduced<'a>(c: &ExpandCx<'a>, x: V<'a>, source: V<'a>) -> V<'a> {
    let (indices, axis) = (c.x[2], c.x[1]);
    let (reduce, include_self) = (c.get(|c| c.text(4)), c.get(|c| c.bool(5)));
    let dtype = x.dtype();
    let full = |like: V<'a>, n: Lit, dtype: DType| c.cx.full(Lit::tuple(like.shape().0), n, dtype);
    let counts = || {
        let (none, ones) = (full(x, Lit::int(0), DType::I64), full(source, Lit::int(1), DType::I64));
        none.scatter_add(indices, ones, axis)
    };
    let (least, most) = match dtype.int_range() {
        Some((least, most)) => (least.into(), most.into()),
        None => (Lit::Float(f64::NEG_INFINITY), Lit::Float(f64::INFINITY)),
    };
    let (op, neutral): (&'static OpDef, Lit) = match reduce.as_str() {
        "prod" => (&SCATTER_PROD, Lit::int(1)),
        "amax" => (&SCATTER_MAX, least),
        "amin" => (&SCATTER_MIN, most),
        _ => (&SCATTER_ADD, Lit::int(0)),
    };
    let start = if include_self {
        x
    } else {
        let neutral = full(x, neutral, dtype);
        c.cx.lit(0).less(counts()).select(neutral, x)
    };
    let combined = start.op(op, &[indices, source, axis]);
    if reduce != "mean" {
        return combined;
    }
    let many = if include_self { counts() + 1 } else { counts().maximum(1) };
    if dtype.is_float() { combined / many.cast(dtype) } else { combined.floor_divide(many.cast(dtype)) }
}

// --- whole slices ------------------------------------------------------------------------------------------

/// slices filled with a number
pub static INDEX_FILL: OpDef = OpDef {
    name: "index_fill",
    doc: "The input with the slices at the positions `indices` (1-d) along `axis` filled with `value`, a number or a tensor \
          without axes.",
    layer: "IndexFill",
    ports: &[INPUT, AXIS, INDICES, tensor("value")],
    shape: ShapeRule::Fn(|cx| {
        cx.axis(1, cx.shape(0).rank())?;
        cx.rank(2, &[0, 1])?;
        cx.rank(3, &[0])?;
        Ok(vec![cx.shape(0).clone()])
    }),
    dtype: DTypeRule::Fn(last_as_input),
    expand: Some(|c| {
        let x = c.x[0];
        let axis = c.get(|c| c.axis(1, x.rank()));
        let (size, many) = (x.dim(axis as i64), c.x[2].shape().numel());
        let full = |n: &Dim, value: i64| c.cx.full([n.clone()], value, DType::I64);
        let indices = c.x[2].reshape([many.clone()]);
        let hits = full(&size, 0).index_add(indices, full(&many, 1), 0);
        let mut line = vec![Dim::ONE; x.rank()];
        line[axis] = size;
        let is_hit = c.cx.lit(0).less(hits).reshape(Lit::tuple(line));
        vec![is_hit.select(c.x[3], x)]
    }),
    cases: &[
        "[6,3] i64[4] axis=0 value=1.5",
        "[2,6] i64[3] [] axis=1",
        "i64[6] i64[0]<3 axis=0 value=2",
        "bool[6] i64[2] axis=-1 value=true",
    ],
    ..MOVE
};

/// `input[key] = values`
pub static INDEX_PUT: OpDef = OpDef {
    name: "index_put",
    doc: "The input with `values` in place of, or with `accumulate` added to, the elements `input[key]`. The key is that \
          of `getitem`: integers, slices, `...`, `none` (a new axis), tuples of integers and integer tensors,  \
          or strings that stand for the next of the tensors `indices`. `values` broadcast to the shape of `input[key]`. Elements \
          that occur several times add up, or the last value in row-major order stays.",
    layer: "IndexPut",
    ports: &[
        INPUT,
        attr("key", Attr::Any, DefaultLit::Required),
        tensor("values"),
        attr("accumulate", Attr::Bool, DefaultLit::Bool(false)),
        Port { name: "indices", kind: PortKind::Variadic(Kinds::INT), default: DefaultLit::Required },
    ],
    shape: ShapeRule::Fn(|cx| Ok(vec![cx.shape(0).clone()])),
    dtype: DTypeRule::Fn(|cx| {
        let to = cx.dtype(0).unwrap_or(cx.float);
        if to.kind() == Kind::Bool && cx.bool(3)? {
            let message = "`accumulate` of index_put adds up, but the input is bool";
            return Err(Error::new(Code::DTypeMismatch, message).help("convert the input with cast"));
        }
        Ok(DTypes { cast: smallvec![None, None, Some(to)], out: smallvec![to] })
    }),
    expand: Some(|c| {
        let (x, shape) = (c.x[0], c.x[0].shape());
        let tuple = |dims: &[Dim]| c.cx.lit(Lit::tuple(dims.iter().cloned()));
        // The row-major position of each element, indexed with the key.
        let numbers = c.cx.arange(shape.numel()).reshape(tuple(&shape));
        let args: Vec<V<'_>> = [numbers, c.x[1]].into_iter().chain(c.x.iter().skip(4).copied()).collect();
        let places = c.cx.call(&GETITEM, &args);
        let flat = [places.shape().numel()];
        let values = c.x[2].broadcast_to(tuple(&places.shape())).reshape(tuple(&flat));
        let (places, all) = (places.reshape(tuple(&flat)), x.reshape(tuple(&[shape.numel()])));
        let put = if c.get(|c| c.bool(3)) {
            all.index_add(places, values, 0)
        } else {
            all.scatter(0, places, values)
        };
        vec![put.reshape(tuple(&shape))]
    }),
    cases: &[
        "[6,5] [3,5] key=\"tensor\" i64[3]",
        "[6,6,2] [3,2,2] key=(\"tensor\",\"tensor\") i64[3,1] i64[2]",
        "[6,6] [3] key=(\"tensor\",\"tensor\") accumulate=true i64[3] i64[3]",
        "[4,6] [] key=(1:3:1,\"tensor\") i64[4]",
        "i64[6] i64[8] key=\"tensor\" accumulate=true i64[8]",
        "[4,5] [5] key=(-1,...)",
        "[6] [0] key=\"tensor\" i64[0]<3",
    ],
    tolerance: Tolerance::Contraction,
    ..BLANK
};

// --- masks -------------------------------------------------------------------------------------------------

const MASK: Port = tensor_of("mask", Kinds::BOOL);

/// a number where a mask holds
pub static MASKED_FILL: OpDef = OpDef {
    name: "masked_fill",
    doc: "`value`, a number or a tensor, where `mask` holds, the input elsewhere. All three broadcast; the dtype is that \
          of the input.",
    layer: "MaskedFill",
    ports: &[INPUT, MASK, tensor("value")],
    shape: ShapeRule::Broadcast,
    dtype: DTypeRule::Fn(|cx| Ok(source_as_input(cx))),
    expand: Some(|c| vec![c.x[1].select(c.x[2], c.x[0])]),
    lowering: Lowering {
        torch: Function(|s| {
            let same = s.ty(0)?.shape == s.out(0)?.shape;
            let number = s.ty(2).is_none() && s.ty(1).is_some();
            (same && number).then(|| format!("{}.masked_fill({}, {})", s.arg(0), s.arg(1), s.arg(2)))
        }),
        ..Lowering::NONE
    },
    cases: &[
        "[2,3] bool[2,3] value=-7.5",
        "[2,1] bool[3] []",
        "i64[4] bool[4] value=7",
        "[0,3] bool[3] value=0",
        "bool[2] bool[2] value=true",
    ],
    ..MOVE
};

/// consecutive elements where a mask holds
pub static MASKED_SCATTER: OpDef = OpDef {
    name: "masked_scatter",
    doc: "The input with the elements of `source`, in row-major order, where `mask` holds. The mask \
          broadcasts to the shape of the input. Fewer elements than true mask entries are an error.",
    layer: "MaskedScatter",
    ports: &[INPUT, MASK, tensor("source")],
    shape: ShapeRule::Fn(|cx| {
        let (input, mask) = (cx.shape(0), cx.shape(1));
        let common = cx.broadcast(&[input, mask])?;
        if common.iter().chain(input.iter()).all(|d| d.known().is_some()) && common != *input {
            let message = format!("`mask` of masked_scatter has shape {mask}, `input` {input}");
            return Err(Error::new(Code::ShapeMismatch, message)
                .help("the mask must broadcast to the shape of the input; broadcast the input first"));
        }
        Ok(vec![input.clone()])
    }),
    dtype: DTypeRule::Fn(|cx| Ok(source_as_input(cx))),
    expand: Some(|c| {
        let (x, source) = (c.x[0], c.x[2]);
        let tuple = |dims: &[Dim]| c.cx.lit(Lit::tuple(dims.iter().cloned()));
        let (shape, many) = (x.shape(), source.shape().numel());
        let mask = c.x[1].broadcast_to(tuple(&shape));
        if shape.numel().is(0) {
            return vec![x];
        }
        let flat = mask.reshape(tuple(&[shape.numel()]));
        let at = flat.cumsum(0, false, false) - 1;
        // An additional element follows the source, for elements that take none.
        let (first, one) = (x.reshape(tuple(&[shape.numel()])), [Dim::ONE]);
        let first = first.slice([0_i64], tuple(&one));
        let all =
            c.cx.call(&CONCAT, &[c.cx.lit(0), source.reshape(tuple(std::slice::from_ref(&many))), first]);
        // If there are too few elements, the index is out of range.
        let outside = c.cx.lit(&many + &Dim::ONE);
        let inside = at.less(many.clone());
        let at = flat.select(inside.select(at, outside), many);
        let values = all.take(at, 0).reshape(tuple(&shape));
        vec![mask.select(values, x)]
    }),
    cases: &["[2,3] bool[2,3] [6]", "[2,3] bool[3] [2,3]", "i64[4] bool[4] i64[2,2]", "[0,3] bool[3] [1]"],
    ..MOVE
};
