//! Lookups by index tensors, the additions that are their adjoints, and replacement.
//!
//! Everywhere negative indices count from the end, and an index outside the axis is an error.

use smallvec::smallvec;

use crate::dim::Dim;
use crate::dtype::{DType, Kinds};
use crate::error::{Code, Error, Result};
use crate::formula::V;
use crate::interp::{EvalCx, broadcast_index};
use crate::loops::{Binary, CallArgument, Expr, Index, LoopCx, accumulator, sizes_around, unflat};
use crate::lowering::LoweringRule::{Function, Template};
use crate::lowering::{Lowering, LoweringCx};
use crate::op::{
    Attr, BLANK, DTypeRule, DefaultLit, Effect, Eval, Grad, Indexed, OpDef, Port, ShapeRule, Tolerance,
    Unsigned, attr, dtype_or, tensor, tensor_of,
};
use crate::ops::getitem::GETITEM;
use crate::ops::movement::{INPUT, MOVE};
use crate::ops::scatter::SCATTER_MAX;
use crate::ops::slicing::zeros;
use crate::rules::{Attrs, DTypeCx, DTypes, ShapeCx};
use crate::shape::Shape;
use crate::tensor::{Scalar, Tensor, strides};

/// Ops of this file.
pub static OPS: &[&OpDef] =
    &[&GETITEM, &TAKE, &TAKE_ALONG_AXIS, &SCATTER_ADD, &INDEX_ADD, &INDEX_COPY, &ONE_HOT];

pub(super) const INDICES: Port = tensor_of("indices", Kinds::INT);

/// An index, possibly negative, as a position from the front.
pub(super) fn position(index: i64, size: usize) -> Result<usize> {
    let n = size as i64;
    if index < -n || index >= n {
        return Err(Error::new(
            Code::IndexOutOfRange,
            format!("index {index} lies outside an axis of size {n}"),
        )
        .help(if n == 0 { "the axis is empty".into() } else { format!("use {} to {}", -n, n - 1) }));
    }
    Ok(if index < 0 { index + n } else { index } as usize)
}

/// Indices as int64; those of uint64 that it cannot hold stay outside of every axis.
pub(super) fn as_positions(indices: V<'_>) -> V<'_> {
    let all = if indices.dtype() == DType::U64 { indices.minimum(i64::MAX) } else { indices };
    all.cast(DType::I64)
}

pub(super) fn positions(c: &EvalCx<'_>, i: usize, size: usize) -> Result<Vec<usize>> {
    let all = c.tensor(i).to_ints();
    // What int64 cannot hold lies outside of every axis.
    let all = all.into_iter().map(|index| i64::try_from(index).unwrap_or(i64::MAX));
    all.map(|index| position(index, size).map_err(|e| c.explain(e))).collect()
}

// --- take --------------------------------------------------------------------------------------------------

/// elements at positions along an axis
pub static TAKE: OpDef = OpDef {
    name: "take",
    doc: "The slices at `indices` along `axis`; the axes of `indices` (any number) replace `axis`. Without an \
          axis the elements are indexed in row-major order.",
    aliases: &["index_select"],
    layer: "Take",
    ports: &[INPUT, INDICES, attr("axis", Attr::OptInt, DefaultLit::None)],
    shape: ShapeRule::Fn(|cx| {
        let (from, indices) = (cx.shape(0), cx.shape(1));
        if cx.absent(2) {
            return Ok(vec![indices.clone()]);
        }
        let axis = cx.axis(2, from.rank())?;
        Ok(vec![from[..axis].iter().chain(indices.iter()).chain(&from[axis + 1..]).cloned().collect()])
    }),
    eval: Some(Eval::Tensors(|c| {
        let x = c.tensor(0);
        let (outer, size, inner) = around(c, x.shape(), 2)?;
        let at = positions(c, 1, size)?;
        let index =
            |i: usize| i % inner + at[i / inner % at.len()] * inner + i / inner / at.len() * size * inner;
        Ok(vec![x.select(c.shape(), (0..outer * at.len() * inner).map(index))])
    })),
    loops: Some(|c| {
        let shape = c.shape(0);
        if c.absent(2) {
            let size = shape.iter().product();
            return Ok(vec![
                c.output(0, |at| c.load(0, unflat(&c.value(c.load(1, at), size, true), &shape))),
            ]);
        }
        let axis = c.axis(2, shape.len())?;
        let after = axis + c.rank(1);
        Ok(vec![c.output(0, |at| {
            let index = c.value(c.load(1, &at[axis..after]), shape[axis], true);
            c.load(0, [&at[..axis], &[index], &at[after..]].concat())
        })])
    }),
    indexed: Some(Indexed { table: 0, indices: 1, axis: Some(2), effect: Effect::Read }),
    grad: Grad::Formula(take_gradient),
    lowering: Lowering {
        py: Template("{xp}.take({0}, {1}, axis={2})"),
        torch: Function(|s| {
            let (x, indices) = (s.arg(0), torch_indices(s, 1, DType::I32)?);
            let rank = s.ty(1)?.shape.rank();
            let (flat, axis) =
                if s.absent(2) { (true, 0) } else { (false, s.axis(2, s.ty(0)?.shape.rank()).ok()?) };
            let x = if flat { format!("torch.reshape({x}, (-1,))") } else { x.to_owned() };
            let before = ":, ".repeat(axis);
            // torch would convert a 0-d index to a Python number, and wait for the device.
            Some(match rank {
                0 => format!("{x}[{before}{indices}[None]].squeeze({axis})"),
                _ => format!("{x}[{before}{indices}]"),
            })
        }),
        mlx: Function(|s| {
            let text = format!("mx.take({}, {}, axis={})", s.arg(0), s.arg(1), s.arg(2));
            Some(lookup_mlx(s, 0, text))
        }),
        ggml: Function(super::ggml::take),
        onnx: Function(super::onnx::take),
        ..Lowering::NONE
    },
    cases: &[
        "[6,3] i64[4] axis=0",
        "[2,6] i64[2,3] axis=-1",
        "[2,6,2] i64[] axis=1",
        "[2,3] i64[4]",
        "[5,3] i32[0]<5 axis=0",
        "[0,3] i64[2]<3 axis=1",
        "bool[6] i64[3] axis=0",
    ],
    ..MOVE
};

/// Numbers of elements before, along and after the axis at port `i`; without an axis the tensor is flattened.
fn around(c: &EvalCx<'_>, shape: &[usize], i: usize) -> Result<(usize, usize, usize)> {
    if c.absent(i) {
        return Ok((1, shape.iter().product(), 1));
    }
    let axis = c.axis(i, shape.len())?;
    Ok((shape[..axis].iter().product(), shape[axis], shape[axis + 1..].iter().product()))
}

/// `:, :, indices`: the index expression for the axis at port `i`.
fn at_axis(s: &LoweringCx<'_>, i: usize) -> Option<String> {
    let axis = s.axis(i, s.ty(0)?.shape.rank()).ok()?;
    Some(format!("{}{}", ":, ".repeat(axis), s.arg(1)))
}

/// The gradient of MLX divides by the number of elements; a helper is used if that may be 0.
pub(super) fn lookup_mlx(s: &LoweringCx<'_>, table: usize, text: String) -> String {
    let is_sure = s.ty(table).is_some_and(|t| t.shape.iter().all(|d| d.known().is_some_and(|n| n > 0)));
    if is_sure { text } else { format!("_looked_up({}, {text})", s.arg(table)) }
}

fn take_gradient<'a>(v: &crate::formula::GradCx<'a>) -> Vec<V<'a>> {
    let (x, indices) = (v.x[0], v.x[1]);
    let reshape = |x: V<'a>, dims: Vec<Dim>| x.reshape(dims);
    let many = indices.shape().numel();
    let flat = reshape(indices, vec![many.clone()]);
    if v.absent(2) {
        let all = v.cx.zeros([x.shape().numel()], x.dtype());
        let sum = all.index_add(flat, reshape(v.g, vec![many]), 0);
        return vec![reshape(sum, x.shape().0.to_vec())];
    }
    let axis = v.get(|c| c.axis(2, x.rank()));
    let mut dims = x.shape().0.to_vec();
    if let Some(size) = dims.get_mut(axis) {
        *size = many;
    }
    vec![zeros(x).index_add(flat, reshape(v.g, dims), axis)]
}

// --- along an axis -----------------------------------------------------------------------------------------

/// The shape of `a` and `b` broadcast together, apart from the axis.
fn along(cx: &ShapeCx<'_>, a: &Shape, b: &Shape, axis: usize) -> Result<Shape> {
    let one = |s: &Shape| {
        let mut s = s.clone();
        s.0[axis] = Dim::ONE;
        s
    };
    cx.broadcast(&[&one(a), &one(b)])
}

fn equal_ranks(cx: &ShapeCx<'_>) -> Result<()> {
    let (input, indices) = (cx.shape(0), cx.shape(1));
    if input.rank() == indices.rank() {
        return Ok(());
    }
    let name = cx.op().name;
    let message = format!("`indices` of {name} has shape {indices}, `input` {input}");
    Err(Error::new(Code::RankMismatch, message).help("both must have the same number of axes; see also take"))
}

/// for each output element its own index
pub static TAKE_ALONG_AXIS: OpDef = OpDef {
    name: "take_along_axis",
    doc: "Gathers elements along `axis`: \
          `output[i, j] = input[indices[i, j], j]` for axis 0. The other sizes broadcast.",
    aliases: &["gather"],
    layer: "TakeAlongAxis",
    ports: &[INPUT, INDICES, attr("axis", Attr::Int, DefaultLit::Int(-1))],
    shape: ShapeRule::Fn(|cx| {
        equal_ranks(cx)?;
        let axis = cx.axis(2, cx.shape(0).rank())?;
        let mut out = along(cx, cx.shape(0), cx.shape(1), axis)?;
        out.0[axis] = cx.shape(1)[axis].clone();
        Ok(vec![out])
    }),
    eval: Some(Eval::Tensors(|c| {
        let (x, indices) = (c.tensor(0), c.tensor(1));
        let axis = c.axis(2, x.rank())?;
        let at = positions(c, 1, x.shape()[axis])?;
        let step = strides(x.shape())[axis];
        let from = base(x.shape(), c.shape(), axis);
        let which = broadcast_index(indices.shape(), c.shape());
        let places = (0..c.shape().iter().product()).map(|i| from(i) + at[which(i)] * step);
        Ok(vec![x.select(c.shape(), places)])
    })),
    loops: Some(|c| {
        let axis = c.axis(2, c.rank(0))?;
        Ok(vec![c.output(0, |at| {
            let shape = c.shape(0);
            let coordinate = |(i, n): (&Index, &i64)| if *n == 1 { Index::default() } else { i.clone() };
            let mut from: Vec<Index> = at.iter().zip(&shape).map(coordinate).collect();
            from[axis] = c.value(c.broadcast(1, at), shape[axis], true);
            c.load(0, from)
        })])
    }),
    indexed: Some(Indexed { table: 0, indices: 1, axis: Some(2), effect: Effect::Read }),
    grad: Grad::Formula(|v| {
        let (x, axis) = (v.x[0], v.get(|c| c.axis(2, v.x[0].rank())));
        let mut dims = v.y.shape().0.to_vec();
        let indices = v.x[1].broadcast_to(dims.clone());
        if let Some(size) = dims.get_mut(axis) {
            *size = x.dim(axis as i64);
        }
        let zeros = v.cx.zeros(dims, x.dtype());
        vec![zeros.scatter_add(indices, v.g, v.x[2])]
    }),
    lowering: Lowering {
        py: Template("{xp}.take_along_axis({0}, {1}, axis={2})"),
        torch: Function(|s| {
            let (x, indices, out) = (&s.ty(0)?.shape, &s.ty(1)?.shape, &s.out(0)?.shape);
            let axis = s.axis(2, x.rank()).ok()?;
            let mut table = out.clone();
            table.0[axis] = x[axis].clone();
            let broadcast = |text: String, from: &Shape, to: &Shape| {
                if from == to { text } else { format!("torch.broadcast_to({text}, {})", s.dims(to)) }
            };
            let at = broadcast(counted_from_front(s, axis, DType::I64)?, indices, out);
            // `torch.take_along_dim` broadcasts, but does not check indices.
            Some(format!("torch.gather({}, {axis}, {at})", broadcast(s.arg(0).to_owned(), x, &table)))
        }),
        onnx: Function(super::onnx::take_along_axis),
        ..Lowering::NONE
    },
    cases: &[
        "[6,3] i64[2,3] axis=0",
        "[2,6] i64[2,4] axis=-1",
        "[2,6,3] i64[2,1,1] axis=1",
        "[1,6] i64[3,2] axis=1",
        "[5] i64[0]<5 axis=0",
    ],
    ..MOVE
};

/// For each element of `out` the offset in a tensor of `shape` that broadcasts to it, at index 0 of the axis.
pub(super) fn base(shape: &[usize], out: &[usize], axis: usize) -> impl Fn(usize) -> usize + use<> {
    let (strides_in, strides_out) = (strides(shape), strides(out));
    let steps: Vec<(usize, usize, usize)> = (0..shape.len())
        .map(|i| (strides_out[i], out[i], if i == axis || shape[i] == 1 { 0 } else { strides_in[i] }))
        .collect();
    move |i| steps.iter().map(|&(s, n, step)| i / s % n * step).sum()
}

/// Indices in a dtype that torch accepts: int64, or int32 if `least` allows it.
pub(super) fn torch_indices(s: &LoweringCx<'_>, i: usize, least: DType) -> Option<String> {
    let dtype = s.ty(i)?.dtype;
    let is_known = dtype == DType::I64 || dtype == least;
    Some(if is_known { s.arg(i).to_owned() } else { format!("{}.long()", s.arg(i)) })
}

/// Negative indices converted to positive ones, which these functions of torch require.
pub(super) fn counted_from_front(s: &LoweringCx<'_>, axis: usize, least: DType) -> Option<String> {
    let (size, i) = (s.dim(&s.ty(0)?.shape[axis]), torch_indices(s, 1, least)?);
    Some(format!("torch.where({i} < 0, {i} + {size}, {i})"))
}

// --- additions ---------------------------------------------------------------------------------------------

/// Dtypes of additions: the source is converted to the dtype of the input.
pub(super) fn source_as_input(cx: &DTypeCx<'_>) -> DTypes {
    let to = cx.dtype(0).unwrap_or(cx.float);
    DTypes { cast: smallvec![None, None, Some(to)], out: smallvec![to] }
}

/// Addition at indices.
pub(super) const ADDITION: OpDef = OpDef {
    ports: &[
        tensor_of("input", Kinds::NUMBER),
        INDICES,
        tensor_of("source", Kinds::NUMBER),
        attr("axis", Attr::Int, DefaultLit::Int(0)),
    ],
    dtype: DTypeRule::Fn(|cx| Ok(source_as_input(cx))),
    indexed: Some(Indexed { table: 0, indices: 1, axis: Some(3), effect: Effect::Add(2) }),
    unsigned: Unsigned::Bits,
    tolerance: Tolerance::Contraction,
    ..BLANK
};

/// adjoint of take_along_axis
pub static SCATTER_ADD: OpDef = OpDef {
    name: "scatter_add",
    doc: "Adds each element of `source` to the input at the index along `axis` given by `indices`: \
          `output[indices[i, j], j] += source[i, j]` for axis 0. Repeated indices accumulate. \
          `indices` and `source` have the shape of the input apart from the axis.",
    layer: "ScatterAdd",
    shape: ShapeRule::Fn(|cx| {
        equal_ranks(cx)?;
        let (input, indices, source) = (cx.shape(0), cx.shape(1), cx.shape(2));
        let axis = cx.axis(3, input.rank())?;
        cx.rank(2, &[input.rank()])?;
        for i in 0..input.rank() {
            cx.same(&indices[i], &source[i], "sizes of the indices and of the source")?;
            if i != axis {
                cx.same(&input[i], &source[i], "sizes of the input and of the source")?;
            }
        }
        Ok(vec![input.clone()])
    }),
    eval: Some(Eval::Tensors(|c| {
        let (x, source) = (c.tensor(0), c.tensor(2));
        let axis = c.axis(3, x.rank())?;
        let at = positions(c, 1, x.shape()[axis])?;
        let (from, step) = (base(x.shape(), source.shape(), axis), strides(x.shape())[axis]);
        Ok(vec![added(x, source, |i| from(i) + at[i] * step)])
    })),
    loops: Some(|c| addition_loops(c, "mithril_scatter_add")),
    grad: Grad::Formula(|v| vec![v.g, v.none(), v.g.take_along_axis(v.x[1], v.x[3])]),
    lowering: Lowering {
        py: Template("_scatter_add({0}, {1}, {2}, {3})"),
        torch: Function(|s| {
            let axis = s.axis(3, s.ty(0)?.shape.rank()).ok()?;
            let at = counted_from_front(s, axis, DType::I32)?;
            Some(format!("torch.scatter_add({}, {axis}, {at}, {})", s.arg(0), s.arg(2)))
        }),
        onnx: Function(|s| super::onnx::scatter(s, 3, [1, 2], "add")),
        ..Lowering::NONE
    },
    cases: &[
        "[6,3] i64[4,3] [4,3] axis=0",
        "[2,6] i64[2,9] [2,9] axis=-1",
        "[6] i64[0]<5 [0]",
        "i64[6] i64[8] i64[8]",
    ],
    ..ADDITION
};

/// adjoint of take
pub static INDEX_ADD: OpDef = OpDef {
    name: "index_add",
    doc: "The input with the slices of `source` added at the positions `indices` (1-d) along `axis`. Repeated \
          indices accumulate.",
    layer: "IndexAdd",
    shape: ShapeRule::Fn(slices_shape),
    eval: Some(Eval::Tensors(|c| {
        let at = slice_places(c)?;
        Ok(vec![added(c.tensor(0), c.tensor(2), |i| at[i])])
    })),
    loops: Some(|c| addition_loops(c, "mithril_index_add")),
    grad: Grad::Formula(|v| vec![v.g, v.none(), v.g.take(v.x[1], v.x[3])]),
    lowering: Lowering {
        numpy: Template("_index_add({0}, {1}, {2}, {3})"),
        torch: Function(|s| {
            let axis = s.axis(3, s.ty(0)?.shape.rank()).ok()?;
            let at = counted_from_front(s, axis, DType::I32)?;
            Some(format!("torch.index_add({}, {axis}, {at}, {})", s.arg(0), s.arg(2)))
        }),
        jax: Function(|s| Some(format!("{}.at[{}].add({})", s.arg(0), at_axis(s, 3)?, s.arg(2)))),
        mlx: Function(|s| {
            // MLX cannot add to an empty tensor.
            let empty = s.ty(0)?.shape.iter().any(|d| d.is(0));
            let sum = || Some(format!("{}.at[{}].add({})", s.arg(0), at_axis(s, 3)?, s.arg(2)));
            if empty { Some(s.arg(0).to_owned()) } else { sum() }
        }),
        onnx: Function(|s| super::onnx::scatter_slices(s, "add")),
        ..Lowering::NONE
    },
    cases: &[
        "[6,3] i64[4] [4,3]",
        "[2,6] i64[9] [2,9] axis=1",
        "[2,6,2] i64[1] [2,1,2] axis=-2",
        "[6,2] i64[0]<5 [0,2]",
        "i64[6] i64[8] i64[8]",
    ],
    ..ADDITION
};

/// The shape of the result if `source` holds slices for 1-d indices.
fn slices_shape(cx: &ShapeCx<'_>) -> Result<Vec<Shape>> {
    let (input, indices, source) = (cx.shape(0), cx.shape(1), cx.shape(2));
    cx.rank(1, &[1])?;
    cx.rank(2, &[input.rank()])?;
    let axis = cx.axis(3, input.rank())?;
    for i in 0..input.rank() {
        let expected = if i == axis { &indices[0] } else { &input[i] };
        cx.same(expected, &source[i], &format!("sizes of axis {i}"))?;
    }
    Ok(vec![input.clone()])
}

/// Calls a C function that adds `source` to the input at `indices`.
fn addition_loops(c: &LoopCx<'_>, function: &str) -> Result<Vec<Expr>> {
    let (axis, wide) = (c.axis(3, c.rank(0))?, accumulator(c.out_dtype(0)));
    let (outer, size, inner) = sizes_around(&c.shape(0), axis);
    let sum = c.temporary(wide, c.out_shape(0), |at| c.load(0, at).cast(wide));
    let (indices, source) = (c.stored(1, DType::I64), c.stored(2, wide));
    let buffers = [CallArgument::Out(sum), CallArgument::In(indices), CallArgument::In(source)];
    let numbers = [outer, size, c.shape(2)[axis], inner].map(CallArgument::Int);
    c.call(format!("{function}_{}", wide.short()), [&buffers[..], &numbers[..]].concat(), 0);
    Ok(vec![c.output(0, |at| c.load(sum, at).cast(c.out_dtype(0)))])
}

/// For each element of the slices in `source` its offset in the input.
fn slice_places(c: &EvalCx<'_>) -> Result<Vec<usize>> {
    let (_, size, inner) = around(c, c.tensor(0).shape(), 3)?;
    let at = positions(c, 1, size)?;
    let place = |i: usize| i % inner + (at[i / inner % at.len()] + i / inner / at.len() * size) * inner;
    Ok((0..c.tensor(2).len()).map(place).collect())
}

/// `x` with element `i` of `source` added at `place(i)`, rounded once.
fn added(x: &Tensor, source: &Tensor, place: impl Fn(usize) -> usize) -> Tensor {
    if x.dtype().is_float() {
        let mut sum = x.to_f64s();
        for i in 0..source.len() {
            sum[place(i)] += source.get(i).f64();
        }
        return Tensor::from_f64s(x.dtype(), x.shape(), &sum);
    }
    let mut sum = x.to_ints();
    for i in 0..source.len() {
        let slot = &mut sum[place(i)];
        *slot = slot.wrapping_add(source.get(i).int());
    }
    Tensor::build(x.dtype(), x.shape(), |i| Scalar::Int(sum[i]))
}

/// slices of a tensor replaced
pub static INDEX_COPY: OpDef = OpDef {
    name: "index_copy",
    doc: "The input with the slices at the positions `indices` (1-d) along `axis` replaced by those of `source`.  \
          If an index is repeated, the last slice stays, and only it gets a gradient; GGML, which writes slices in \
          any order, refuses repeated indices.",
    layer: "IndexCopy",
    ports: &[INPUT, INDICES, tensor("source"), attr("axis", Attr::Int, DefaultLit::Int(0))],
    shape: ShapeRule::Fn(slices_shape),
    dtype: DTypeRule::Fn(|cx| Ok(source_as_input(cx))),
    eval: Some(Eval::Tensors(|c| {
        let (x, source) = (c.tensor(0), c.tensor(2));
        let mut from = vec![None; x.len()];
        for (i, place) in slice_places(c)?.into_iter().enumerate() {
            from[place] = Some(i);
        }
        let element = |i: usize| from[i].map_or_else(|| x.get(i), |j| source.get(j));
        Ok(vec![Tensor::build(x.dtype(), x.shape(), element)])
    })),
    loops: Some(|c| {
        let dtype = c.out_dtype(0);
        let (outer, size, inner) = sizes_around(&c.shape(0), c.axis(3, c.rank(0))?);
        let output = c.temporary(dtype, c.out_shape(0), |at| c.load(0, at));
        let (indices, source) = (c.stored(1, DType::I64), c.stored(2, dtype));
        let buffers = [CallArgument::Out(output), CallArgument::In(indices), CallArgument::In(source)];
        let numbers = [outer, size, c.shape(1)[0], inner * dtype.size() as i64].map(CallArgument::Int);
        c.call("mithril_index_copy", [&buffers[..], &numbers[..]].concat(), 0);
        Ok(vec![c.whole(0, output)])
    }),
    indexed: Some(Indexed { table: 0, indices: 1, axis: Some(3), effect: Effect::Change(2) }),
    grad: Grad::Formula(|v| {
        let (indices, source, axis) = (v.x[1], v.x[2], v.x[3]);
        let slices = v.g.take(indices, axis);
        let slices = kept_slices(slices, v.x[0], indices, v.get(|c| c.axis(3, v.x[0].rank())));
        vec![v.g.op(&INDEX_COPY, &[indices, zeros(source), axis]), v.none(), slices]
    }),
    lowering: Lowering {
        numpy: Template("_index_copy({0}, {1}, {2}, {3})"),
        numpy_in_place: Template("_index_copy_into({0}, {1}, {2}, {3})"),
        torch: Function(|s| torch_index_copy(s, "_index_copy")),
        torch_in_place: Function(|s| torch_index_copy(s, "_index_copy_into")),
        jax: Function(|s| {
            let axis = s.axis(3, s.ty(0)?.shape.rank()).ok()?;
            Some(format!("_index_copy({}, {}, {}, {axis})", s.arg(0), s.arg(1), s.arg(2)))
        }),
        mlx: Template("_index_copy({0}, {1}, {2}, {3})"),
        ggml: Function(super::ggml::index_copy),
        onnx: Function(|s| super::onnx::scatter_slices(s, "none")),
        ..Lowering::NONE
    },
    cases: &[
        "[6,3] i64[1] [1,3]",
        "[2,6] i32[1] [2,1] axis=1",
        "[2,6,2] i64[1] [2,1,2] axis=-2",
        "[6,2] i64[0]<5 [0,2]",
        "i64[6] i64[1] i64[1]",
        "bool[6] i64[1] bool[1]",
    ],
    ..MOVE
};

/// Slices, with zeros for those that a later slice for the same position replaces.
fn kept_slices<'a>(slices: V<'a>, x: V<'a>, indices: V<'a>, axis: usize) -> V<'a> {
    let cx = x.cx();
    let (count, size, first) = (indices.dim(0), x.dim(axis as i64), cx.lit(0));
    if count.known().is_some_and(|n| n <= 1) {
        return slices;
    }
    let order = cx.arange(count.clone());
    let none = cx.zeros(vec![size], DType::I64);
    let last = none.op(&SCATTER_MAX, &[indices, order, first]).take(indices, first);
    let mut line = vec![Dim::ONE; x.rank()];
    line[axis] = count;
    let is_kept = last.equal(order).reshape(line);
    is_kept.select(slices, 0.0)
}

fn torch_index_copy(s: &LoweringCx<'_>, helper: &str) -> Option<String> {
    let axis = s.axis(3, s.ty(0)?.shape.rank()).ok()?;
    Some(format!("{helper}({}, {}, {}, {axis})", s.arg(0), torch_indices(s, 1, DType::I32)?, s.arg(2)))
}

/// a 1 at each index
pub static ONE_HOT: OpDef = OpDef {
    name: "one_hot",
    doc: "For each index a row of `depth` zeros with a 1 at the index, along a new last axis. The dtype is the \
          default float unless given.",
    layer: "OneHot",
    ports: &[
        INDICES,
        attr("depth", Attr::Int, DefaultLit::Required),
        attr("dtype", Attr::DType, DefaultLit::None),
    ],
    shape: ShapeRule::Fn(|cx| {
        let depth = cx.dim(1)?;
        if depth.known().is_some_and(|n| n < 0) {
            return Err(cx.bad(1, &cx.lit(1), "a size that is not negative"));
        }
        Ok(vec![cx.shape(0).iter().cloned().chain([depth]).collect()])
    }),
    dtype: DTypeRule::Fn(|cx| Ok(DTypes::keep([dtype_or(&cx.lit(2), cx.float)]))),
    expand: Some(|c| {
        let indices = c.x[0];
        let dtype = dtype_or(&c.lit(2), c.cx.float());
        // Booleans are summed as numbers and cast at the end.
        let wide = if dtype == DType::Bool { DType::U8 } else { dtype };
        let mut dims = indices.shape().0.to_vec();
        dims.push(Dim::ONE);
        let ones = c.cx.ones(dims.clone(), wide);
        dims.pop();
        dims.push(c.get(|c| c.dims(1)).pop().unwrap_or(Dim::ONE));
        let zeros = c.cx.zeros(dims, wide);
        let at = indices.expand_dims(-1);
        vec![zeros.scatter_add(at, ones, -1).cast(dtype)]
    }),
    loops: Some(|c| {
        let depth = c.dim(1)?.known().unwrap_or(0);
        Ok(vec![c.output(0, |at| {
            let (column, place) = (&at[at.len() - 1], &at[..at.len() - 1]);
            let index = c.value(c.load(0, place), depth, true);
            let number = |at: &Index| Expr::Index(Box::new(at.clone()));
            number(&index).binary(Binary::Equal, number(column)).cast(c.out_dtype(0))
        })])
    }),
    grad: Grad::Zero,
    cases: &[
        "i64[3]<4 depth=4",
        "i64[2,3]<4 depth=5 dtype=i32",
        "i64[] depth=6",
        "i64[2]<3 depth=3 dtype=bool",
    ],
    ..MOVE
};
