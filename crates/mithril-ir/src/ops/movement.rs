//! Ops that move elements without changing them: shapes, axes, broadcasting.

use crate::dim::Dim;
use crate::dtype::Kinds;
use crate::error::{Code, Error, Result};
use crate::interp::{EvalCx, broadcast_index};
use crate::literal::Lit;
use crate::loops::{Index, flat, unflat};
use crate::lowering::LoweringRule::{Function, Template};
use crate::lowering::{Lowering, LoweringCx};
use crate::op::{
    Attr, BLANK, DTypeRule, DefaultLit, Eval, Grad, OpDef, Port, ShapeRule, Tolerance, Unsigned, attr,
    tensor_of,
};
use crate::rules::{Attrs, ShapeCx};
use crate::shape::{Shape, normalize_axis};
use crate::tensor::{Tensor, strides};

/// Ops of this file.
pub static OPS: &[&OpDef] =
    &[&RESHAPE, &TRANSPOSE, &SWAPAXES, &MOVEAXIS, &EXPAND_DIMS, &SQUEEZE, &BROADCAST_TO, &FLATTEN];

/// An op that moves elements of any dtype without changing them.
pub(super) const MOVE: OpDef =
    OpDef { dtype: DTypeRule::Same(0), unsigned: Unsigned::Bits, tolerance: Tolerance::Exact, ..BLANK };

pub(super) const INPUT: Port = tensor_of("input", Kinds::ANY);

/// A tensor of `shape` whose element at coordinates `c` is element `base + Σ c·steps` of `x`.
pub(super) fn strided(x: &Tensor, shape: &[usize], base: i64, steps: &[i64]) -> Tensor {
    let coordinate_strides = strides(shape);
    let at = |i: usize| {
        let offset: i64 =
            coordinate_strides.iter().zip(shape).zip(steps).map(|((s, n), t)| (i / s % n) as i64 * t).sum();
        (base + offset) as usize
    };
    x.select(shape, (0..shape.iter().product()).map(at))
}

/// Whether a size is still unknown to the solver.
pub(super) fn undecided<'a>(dims: impl IntoIterator<Item = &'a Dim>) -> bool {
    dims.into_iter().any(Dim::has_var)
}

// --- reshape -----------------------------------------------------------------------------------------------

/// another shape, same order of elements
pub static RESHAPE: OpDef = OpDef {
    name: "reshape",
    doc: "The same elements in the same (row-major) order in another shape. At most one size may be -1: it is \
          inferred from the others. Sizes may be symbolic; `[n, 4, 4]` to `(n, -1)` is `[n, 16]`, and to \
          `(-1, 16)` too.",
    aliases: &["view"],
    layer: "Reshape",
    ports: &[INPUT, attr("shape", Attr::Shape, DefaultLit::Required)],
    shape: ShapeRule::Fn(reshape_shape),
    eval: Some(Eval::Tensors(|c| {
        let x = c.tensor(0);
        let expected: usize = c.shape().iter().product();
        if expected != x.len() {
            return Err(unequal(&Shape::of(x.shape().iter().copied()), &c.lit(1)));
        }
        Ok(vec![x.reshaped(c.shape())])
    })),
    loops: Some(|c| {
        let position = |at: &[Index]| flat(at, c.out_shape(0));
        Ok(vec![c.output(0, |at| c.load(0, unflat(&position(at), &c.shape(0))))])
    }),
    grad: Grad::Formula(|v| vec![v.g.reshape(v.x[0].shape().0.to_vec())]),
    lowering: Lowering {
        py: Template("{xp}.reshape({0}, {shape})"),
        ggml: Function(|s| {
            Some(format!("reshape({{0}}, {})", super::ggml::list(&super::ggml::known(s.out(0))?)))
        }),
        onnx: Template("reshape({0})"),
        ..Lowering::NONE
    },
    cases: &[
        "[2,3] shape=(3,2)",
        "[4] shape=(2,-1)",
        "[] shape=(1,1)",
        "[0,3] shape=(-1,3)",
        "[2,3,4] shape=-1",
    ],
    ..MOVE
};

fn unequal(from: &Shape, to: &Lit) -> Error {
    let message = format!("a tensor of shape {from} cannot be reshaped to {to}");
    Error::new(Code::ShapeMismatch, message)
        .note(format!("it has {} elements", from.numel()))
        .help("the sizes must multiply to the same number of elements; one of them may be -1")
}

fn reshape_shape(cx: &ShapeCx<'_>) -> Result<Vec<Shape>> {
    let from = cx.shape(0);
    let mut to = Shape::of(cx.dims(1)?);
    let open: Vec<usize> = (0..to.rank()).filter(|&i| to[i].is(-1)).collect();
    if open.len() > 1 || to.iter().any(|d| d.known().is_some_and(|n| n < -1)) {
        return Err(cx.bad(1, &cx.lit(1), "a tuple of sizes, at most one of them -1"));
    }
    if undecided(from.iter().chain(to.iter())) {
        return if open.is_empty() { Ok(vec![to]) } else { Err(cx.unknown()) };
    }
    let have = from.numel();
    if let [open] = open[..] {
        to.0[open] = Dim::ONE;
        let rest = to.numel();
        if rest.is(0) {
            return Err(cx.bad(1, &cx.lit(1), "a tuple whose other sizes are not 0 where one is -1"));
        }
        to.0[open] = quotient(&have, &rest).ok_or_else(|| unequal(from, &cx.lit(1)))?;
    } else if have.known().is_some() && to.numel().known().is_some() && have != to.numel() {
        return Err(unequal(from, &cx.lit(1)));
    } else {
        cx.same(&have, &to.numel(), "numbers of elements")?;
    }
    Ok(vec![to])
}

fn quotient(have: &Dim, rest: &Dim) -> Option<Dim> {
    if have.is(0) { Some(Dim::Const(0)) } else { have.exact_div(rest) }
}

// --- axes --------------------------------------------------------------------------------------------------

/// The permutation of all axes at port `i`; `none` reverses them.
fn permutation(cx: &impl Attrs, i: usize, rank: usize) -> Result<Vec<usize>> {
    if cx.absent(i) {
        return Ok((0..rank).rev().collect());
    }
    let order = distinct_axes(cx, i, rank)?;
    if order.len() < rank {
        return Err(cx.bad(i, &cx.lit(i), &format!("a permutation of all {rank} axes")));
    }
    Ok(order)
}

/// Distinct axes counted from the front, in the order of the argument.
fn distinct_axes(cx: &impl Attrs, i: usize, rank: usize) -> Result<Vec<usize>> {
    let mut axes = Vec::new();
    for axis in cx.ints(i)? {
        let axis = normalize_axis(axis, rank).map_err(|e| cx.explain(e))?;
        if axes.contains(&axis) {
            return Err(cx.bad(i, &cx.lit(i), "axes that differ"));
        }
        axes.push(axis);
    }
    Ok(axes)
}

/// axes in another order
pub static TRANSPOSE: OpDef = OpDef {
    name: "transpose",
    doc: "The axes in another order: axis `i` of the output is axis `axes[i]` of the input. Without `axes` their \
          order is reversed.",
    aliases: &["permute", "permute_dims"],
    layer: "Transpose",
    ports: &[INPUT, attr("axes", Attr::OptInts, DefaultLit::None)],
    shape: ShapeRule::Fn(|cx| {
        let from = cx.shape(0);
        let order = permutation(cx, 1, from.rank())?;
        Ok(vec![order.iter().map(|&a| from[a].clone()).collect()])
    }),
    eval: Some(Eval::Tensors(|c| {
        let x = c.tensor(0);
        let strides = strides(x.shape());
        let steps: Vec<i64> = permutation(c, 1, x.rank())?.iter().map(|&a| strides[a] as i64).collect();
        Ok(vec![strided(x, c.shape(), 0, &steps)])
    })),
    loops: Some(|c| {
        let order = permutation(c, 1, c.rank(0))?;
        // Axis `order[i]` of the input is axis `i` of the output.
        Ok(vec![c.output(0, |at| {
            let mut from = at.to_vec();
            for (axis, index) in order.iter().zip(at) {
                from[*axis] = index.clone();
            }
            c.load(0, from)
        })])
    }),
    grad: Grad::Formula(|v| {
        let order = v.get(|c| permutation(c, 1, v.x[0].rank()));
        let mut inverse = vec![0; order.len()];
        for (i, &axis) in order.iter().enumerate() {
            inverse[axis] = i;
        }
        vec![v.g.transpose(inverse)]
    }),
    lowering: Lowering {
        py: Function(|s| Some(format!("{}.transpose({}, {})", s.xp, s.arg(0), order_text(s)?))),
        torch: Function(|s| Some(format!("torch.permute({}, {})", s.arg(0), order_text(s)?))),
        onnx: Function(super::onnx::transpose),
        ..Lowering::NONE
    },
    cases: &["[2,3]", "[2,3,4] axes=(1,2,0)", "[2,3,4] axes=(0,-1,-2)", "[]", "[0,3]", "[5] axes=(0,)"],
    ..MOVE
};

fn order_text(s: &LoweringCx<'_>) -> Option<String> {
    let order = permutation(s, 1, s.ty(0)?.shape.rank()).ok()?;
    Some(tuple_text(&order))
}

/// A tuple in Python's syntax.
pub(super) fn tuple_text(items: &[impl ToString]) -> String {
    let items: Vec<String> = items.iter().map(ToString::to_string).collect();
    if let [one] = items.as_slice() { format!("({one},)") } else { format!("({})", items.join(", ")) }
}

/// two axes exchanged
pub static SWAPAXES: OpDef = OpDef {
    name: "swapaxes",
    doc: "Exchanges two axes.",
    aliases: &["swap_axes"],
    layer: "SwapAxes",
    ports: &[
        INPUT,
        attr("axis1", Attr::Int, DefaultLit::Required),
        attr("axis2", Attr::Int, DefaultLit::Required),
    ],
    shape: ShapeRule::Expansion,
    expand: Some(|c| {
        let rank = c.x[0].rank();
        let (a, b) = (c.get(|c| c.axis(1, rank)), c.get(|c| c.axis(2, rank)));
        let mut order: Vec<usize> = (0..rank).collect();
        if rank > 0 {
            order.swap(a, b);
        }
        vec![c.x[0].transpose(order)]
    }),
    cases: &["[2,3,4] axis1=0 axis2=-1", "[2,3] axis1=1 axis2=1"],
    ..MOVE
};

/// axes moved to other places
pub static MOVEAXIS: OpDef = OpDef {
    name: "moveaxis",
    doc: "Moves the axes `source` to the positions `destination`; the others keep their order.",
    aliases: &["movedim"],
    layer: "MoveAxis",
    ports: &[
        INPUT,
        attr("source", Attr::Ints, DefaultLit::Required),
        attr("destination", Attr::Ints, DefaultLit::Required),
    ],
    shape: ShapeRule::Expansion,
    expand: Some(|c| {
        let order = c.get(|c| moved_order(c, c.x[0].rank()));
        vec![c.x[0].transpose(order)]
    }),
    cases: &["[2,3,4] source=0 destination=-1", "[2,3,4] source=(0,1) destination=(1,2)"],
    ..MOVE
};

fn moved_order(cx: &impl Attrs, rank: usize) -> Result<Vec<usize>> {
    let (source, destination) = (distinct_axes(cx, 1, rank)?, distinct_axes(cx, 2, rank)?);
    if source.len() != destination.len() {
        return Err(cx.bad(2, &cx.lit(2), "as many axes as `source`"));
    }
    let mut rest = (0..rank).filter(|axis| !source.contains(axis));
    let place = |i| destination.iter().position(|&d| d == i);
    Ok((0..rank).filter_map(|i| place(i).map_or_else(|| rest.next(), |at| Some(source[at]))).collect())
}

/// axes of size 1 inserted
pub static EXPAND_DIMS: OpDef = OpDef {
    name: "expand_dims",
    doc: "Inserts axes of size 1 at the positions `axis` of the output.",
    aliases: &["unsqueeze"],
    layer: "ExpandDims",
    ports: &[INPUT, attr("axis", Attr::Ints, DefaultLit::Required)],
    shape: ShapeRule::Fn(|cx| Ok(vec![expanded_shape(cx, cx.shape(0))?])),
    expand: Some(|c| {
        let shape = c.get(|c| expanded_shape(c, &c.x[0].shape()));
        vec![c.x[0].reshape(shape.0.to_vec())]
    }),
    grad: Grad::Formula(|v| vec![v.g.reshape(v.x[0].shape().0.to_vec())]),
    lowering: Lowering {
        numpy: Template("np.expand_dims({0}, {1})"),
        torch: Function(|s| {
            let axis = s.int(1).ok()?;
            Some(format!("torch.unsqueeze({}, {axis})", s.arg(0)))
        }),
        jax: Template("jnp.expand_dims({0}, {1})"),
        mlx: Template("mx.expand_dims({0}, {1})"),
        ggml: Function(|s| {
            Some(format!("reshape({{0}}, {})", super::ggml::list(&super::ggml::known(s.out(0))?)))
        }),
        onnx: Template("Unsqueeze({0}, ints({1}))"),
        ..Lowering::NONE
    },
    cases: &["[2,3] axis=0", "[2,3] axis=-1", "[2,3] axis=(0,2)", "[] axis=0", "[0] axis=1"],
    ..MOVE
};

fn expanded_shape(cx: &impl Attrs, from: &Shape) -> Result<Shape> {
    let rank = from.rank() + cx.ints(1)?.len();
    let new = distinct_axes(cx, 1, rank)?;
    let mut old = from.iter().cloned();
    let size = |i| if new.contains(&i) { Some(Dim::ONE) } else { old.next() };
    Ok((0..rank).filter_map(size).collect())
}

/// axes of size 1 removed
pub static SQUEEZE: OpDef = OpDef {
    name: "squeeze",
    doc: "Removes axes of size 1: those of `axis`, which must have size 1, or all that have.",
    layer: "Squeeze",
    ports: &[INPUT, attr("axis", Attr::OptInts, DefaultLit::None)],
    shape: ShapeRule::Fn(|cx| {
        let from = cx.shape(0);
        let gone = squeezed_axes(cx, from)?;
        if cx.absent(1) && undecided(from.iter()) {
            return Err(cx.unknown());
        }
        for &axis in &gone {
            cx.same(&from[axis], &Dim::ONE, "the size of a squeezed axis and 1")?;
        }
        Ok(vec![without(from, &gone)])
    }),
    expand: Some(|c| {
        let from = c.x[0].shape();
        let gone = c.get(|c| squeezed_axes(c, &from));
        vec![c.x[0].reshape(without(&from, &gone).0.to_vec())]
    }),
    grad: Grad::Formula(|v| vec![v.g.reshape(v.x[0].shape().0.to_vec())]),
    lowering: Lowering {
        py: Function(|s| {
            let axes = squeezed_axes(s, &s.ty(0)?.shape).ok()?;
            Some(format!("{}.squeeze({}, {})", s.xp, s.arg(0), tuple_text(&axes)))
        }),
        ggml: Function(|s| {
            Some(format!("reshape({{0}}, {})", super::ggml::list(&super::ggml::known(s.out(0))?)))
        }),
        onnx: Function(super::onnx::squeeze),
        ..Lowering::NONE
    },
    cases: &["[1,3,1]", "[1,3,1] axis=0", "[1,3,1] axis=-1", "[1,3,1] axis=(0,2)", "[2,3]", "[]"],
    ..MOVE
};

fn squeezed_axes(cx: &impl Attrs, from: &Shape) -> Result<Vec<usize>> {
    if cx.absent(1) {
        return Ok((0..from.rank()).filter(|&i| from[i].is(1)).collect());
    }
    cx.axes(1, from.rank())
}

fn without(shape: &Shape, gone: &[usize]) -> Shape {
    (0..shape.rank()).filter(|i| !gone.contains(i)).map(|i| shape[i].clone()).collect()
}

// --- broadcasting, flattening ------------------------------------------------------------------------------

/// broadcast to a shape
pub static BROADCAST_TO: OpDef = OpDef {
    name: "broadcast_to",
    doc: "Repeats axes of size 1 to match `shape`, and adds leading axes. A size of -1 keeps the input's.",
    aliases: &["expand"],
    layer: "BroadcastTo",
    ports: &[INPUT, attr("shape", Attr::Shape, DefaultLit::Required)],
    shape: ShapeRule::Fn(broadcast_shape),
    eval: Some(Eval::Tensors(eval_broadcast)),
    loops: Some(|c| Ok(vec![c.output(0, |at| c.broadcast(0, at))])),
    grad: Grad::Formula(|v| vec![v.g]),
    lowering: Lowering {
        py: Template("{xp}.broadcast_to({0}, {shape})"),
        onnx: Template("Expand({0}, sizes())"),
        ..Lowering::NONE
    },
    cases: &["[3] shape=(2,3)", "[2,1] shape=(-1,4)", "[] shape=(2,2)", "[1,3] shape=(0,3)", "[2] shape=2"],
    ..MOVE
};

fn broadcast_shape(cx: &ShapeCx<'_>) -> Result<Vec<Shape>> {
    let (from, mut to) = (cx.shape(0), Shape::of(cx.dims(1)?));
    let message = || format!("a tensor of shape {from} does not broadcast to {}", cx.lit(1));
    let Some(front) = to.rank().checked_sub(from.rank()) else {
        return Err(Error::new(Code::RankMismatch, message()).help("the new shape must keep every axis"));
    };
    for (i, size) in to.0.iter_mut().enumerate() {
        let old = i.checked_sub(front).map(|i| &from[i]);
        match (size.known(), old) {
            (Some(-1), Some(old)) => *size = old.clone(),
            (Some(n), _) if n < 0 => {
                return Err(cx.bad(1, &cx.lit(1), "sizes, with -1 only for axes that the input has"));
            }
            (_, None) => {}
            // An unknown size may become 1 or the new size; the result has the new one in both cases.
            (_, Some(old)) if old.is(1) || old.has_var() => {}
            (Some(n), Some(Dim::Const(m))) if n != *m => {
                return Err(Error::new(Code::ShapeMismatch, message())
                    .note(format!("axis {i} has size {m}; only size 1 can become {n}"))
                    .help("insert an axis of size 1 with expand_dims, or change the shape"));
            }
            (_, Some(old)) => cx.same(old, size, "old and new sizes")?,
        }
    }
    Ok(vec![to])
}

fn eval_broadcast(c: &EvalCx<'_>) -> Result<Vec<Tensor>> {
    let x = c.tensor(0);
    let at = broadcast_index(x.shape(), c.shape());
    Ok(vec![x.select(c.shape(), (0..c.shape().iter().product()).map(at))])
}

/// several axes as one
pub static FLATTEN: OpDef = OpDef {
    name: "flatten",
    doc: "Joins the axes from `start_axis` to `end_axis` (both included) into one. A 0-d tensor becomes `[1]`.",
    aliases: &["ravel"],
    ports: &[
        INPUT,
        attr("start_axis", Attr::Int, DefaultLit::Int(0)),
        attr("end_axis", Attr::Int, DefaultLit::Int(-1)),
    ],
    shape: ShapeRule::Fn(|cx| Ok(vec![flattened(cx, cx.shape(0))?])),
    expand: Some(|c| {
        let shape = c.get(|c| flattened(c, &c.x[0].shape()));
        vec![c.x[0].reshape(shape.0.to_vec())]
    }),
    lowering: Lowering {
        ggml: Function(|s| {
            Some(format!("reshape({{0}}, {})", super::ggml::list(&super::ggml::known(s.out(0))?)))
        }),
        ..Lowering::NONE
    },
    cases: &["[2,3,4]", "[2,3,4] start_axis=1", "[2,3,4] start_axis=0 end_axis=1", "[]", "[0,3]"],
    ..MOVE
};

fn flattened(cx: &impl Attrs, from: &Shape) -> Result<Shape> {
    if from.rank() == 0 {
        return Ok(Shape::of([1]));
    }
    let (start, end) = (cx.axis(1, from.rank())?, cx.axis(2, from.rank())?);
    if start > end {
        return Err(cx.bad(2, &cx.lit(2), "an axis that does not come before `start_axis`"));
    }
    let joined = Shape(from[start..=end].into()).numel();
    Ok(from[..start].iter().cloned().chain([joined]).chain(from[end + 1..].iter().cloned()).collect())
}
