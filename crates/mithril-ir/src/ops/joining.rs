//! Joining, padding and repeating.

use crate::dim::Dim;
use crate::error::{Code, Error, Result};
use crate::formula::{ExpandCx, V};
use crate::interp::EvalCx;
use crate::literal::Lit;
use crate::loops::{Expr, LoopCx, Within};
use crate::lowering::LoweringRule::{Function, Template};
use crate::lowering::{Lowering, LoweringCx};
use crate::op::{Attr, DTypeRule, DefaultLit, Eval, Grad, OpDef, Port, ShapeRule, attr, variadic};
use crate::ops::movement::{INPUT, MOVE, tuple_text};
use crate::ops::slicing::{cut, parts};
use crate::rules::{Attrs, DTypes, ShapeCx};
use crate::shape::Shape;
use crate::tensor::{Data, Tensor};

/// Ops of this file.
pub static OPS: &[&OpDef] = &[&CONCAT, &STACK, &PAD, &TILE, &REPEAT];

// --- concat, stack -----------------------------------------------------------------------------------------

/// tensors joined along an axis
pub static CONCAT: OpDef = OpDef {
    name: "concat",
    doc: "Tensors one after the other along `axis`; their other sizes are equal. Dtypes promote.",
    aliases: &["concatenate", "cat"],
    layer: "Concat",
    ports: &[attr("axis", Attr::Int, DefaultLit::Int(0)), variadic("inputs")],
    shape: ShapeRule::Fn(concat_shape),
    dtype: DTypeRule::Promote,
    eval: Some(Eval::Tensors(eval_concat)),
    loops: Some(concat_loops),
    grad: Grad::Formula(|v| {
        let axis = v.get(|c| c.axis(0, v.y.rank()));
        let sizes: Vec<Dim> = v.x[1..].iter().map(|x| x.dim(axis as i64)).collect();
        [v.none()].into_iter().chain(parts(v.g, axis, &sizes)).collect()
    }),
    lowering: Lowering {
        numpy: Function(|s| joined(s, "np.concatenate", "axis")),
        torch: Function(|s| joined(s, "torch.cat", "dim")),
        jax: Function(|s| joined(s, "jnp.concatenate", "axis")),
        jax_stacked: Function(|s| {
            let axis = s.axis(0, s.ty(1)?.shape.rank()).ok()?;
            Some(format!("_concatenated({}, {axis})", s.arg(1)))
        }),
        mlx: Function(|s| joined(s, "mx.concatenate", "axis")),
        ggml: Function(super::ggml::concat),
        onnx: Function(super::onnx::concat),
        ..Lowering::NONE
    },
    cases: &["axis=0 [2,3] [1,3]", "axis=-1 [2,3] [2,1] [2,2]", "axis=0 [0] [2]", "axis=1 [2,2]"],
    ..MOVE
};

fn stack_shape(cx: &ShapeCx<'_>) -> Result<Vec<Shape>> {
    let shapes = cx.shapes_from(1);
    let first = alike(cx, &shapes, None)?;
    let mut out = first.clone();
    out.0.insert(cx.axis(0, first.rank() + 1)?, Dim::Const(shapes.len() as i64));
    Ok(vec![out])
}

/// Checks that shapes are equal but for an axis; the first.
fn alike<'s>(cx: &ShapeCx<'_>, shapes: &[&'s Shape], but: Option<usize>) -> Result<&'s Shape> {
    let Some((first, rest)) = shapes.split_first() else {
        return Err(Error::new(Code::BadArgument, format!("{} is given no tensor", cx.op().name))
            .help("give at least one tensor"));
    };
    for shape in rest {
        if shape.rank() != first.rank() {
            let message = format!("shapes {first} and {shape} cannot be joined by {}", cx.op().name);
            return Err(Error::new(Code::RankMismatch, message).help("give all the same number of axes"));
        }
        for i in (0..first.rank()).filter(|i| Some(*i) != but) {
            cx.same(&first[i], &shape[i], &format!("sizes of axis {i}"))?;
        }
    }
    Ok(first)
}

fn joined(s: &LoweringCx<'_>, function: &str, axis: &str) -> Option<String> {
    let inputs: Vec<&str> = (1..s.args.len()).map(|i| s.arg(i)).collect();
    let at = s.axis(0, s.ty(1)?.shape.rank()).ok()?;
    Some(format!("{function}([{}], {axis}={at})", inputs.join(", ")))
}

fn concat_shape(cx: &ShapeCx<'_>) -> Result<Vec<Shape>> {
    let shapes = cx.shapes_from(1);
    let first = shapes.first().map_or(0, |shape| shape.rank());
    let axis = if shapes.is_empty() { 0 } else { cx.axis(0, first)? };
    let mut out = alike(cx, &shapes, Some(axis))?.clone();
    for shape in &shapes[1..] {
        out.0[axis] = &out[axis] + &shape[axis];
    }
    Ok(vec![out])
}

/// The element of the tensor whose range of the axis contains the position.
fn concat_loops(c: &LoopCx<'_>) -> Result<Vec<Expr>> {
    let axis = c.axis(0, c.out_shape(0).len())?;
    Ok(vec![c.output(0, |at| {
        let mut end = c.out_shape(0)[axis];
        let mut value: Option<Expr> = None;
        for i in (1..c.len()).rev() {
            let start = end - c.shape(i)[axis];
            let mut from = at.to_vec();
            from[axis] = at[axis].clone() - start.into();
            let element = c.load(i, from);
            value = Some(match value {
                Some(later) => element.within(vec![Within::new(at[axis].clone(), start, end)], later),
                None => element,
            });
            end = start;
        }
        value.unwrap_or_else(|| c.number(0_i64, c.out_dtype(0)))
    })])
}

fn eval_concat(c: &EvalCx<'_>) -> Result<Vec<Tensor>> {
    let tensors = c.tensors_from(1);
    let axis = c.axis(0, c.shape().len())?;
    let outer: usize = c.shape()[..axis].iter().product();
    let runs: Vec<usize> = tensors.iter().map(|t| t.shape()[axis..].iter().product()).collect();
    let mut places = Vec::with_capacity(c.shape().iter().product());
    for o in 0..outer {
        for (t, &run) in runs.iter().enumerate() {
            places.extend((o * run..(o + 1) * run).map(|i| (t, i)));
        }
    }
    let data = Data::build(c.dtype(), places.len(), |i| tensors[places[i].0].get(places[i].1));
    Ok(vec![Tensor::new(c.shape().to_vec(), data)?])
}

/// tensors joined along a new axis
pub static STACK: OpDef = OpDef {
    name: "stack",
    doc: "Tensors of one shape beside each other along a new axis, which stands at `axis` in the output.",
    layer: "Stack",
    ports: &[attr("axis", Attr::Int, DefaultLit::Int(0)), variadic("inputs")],
    shape: ShapeRule::Fn(stack_shape),
    dtype: DTypeRule::Promote,
    expand: Some(|c| {
        let inputs = c.x[1..].iter().map(|x| x.expand_dims(c.x[0]));
        let all: Vec<V<'_>> = [c.x[0]].into_iter().chain(inputs).collect();
        vec![c.cx.call(&CONCAT, &all)]
    }),
    lowering: Lowering {
        numpy: Function(|s| stacked(s, "axis")),
        torch: Function(|s| stacked(s, "dim")),
        jax: Function(|s| stacked(s, "axis")),
        jax_stacked: Function(|s| {
            let axis = s.axis(0, s.ty(1)?.shape.rank() + 1).ok()?;
            let items = s.arg(1);
            Some(if axis == 0 { items.into() } else { format!("jnp.moveaxis({items}, 0, {axis})") })
        }),
        mlx: Function(|s| stacked(s, "axis")),
        ..Lowering::NONE
    },
    cases: &["axis=0 [2,3] [2,3]", "axis=-1 [2] [2] [2]", "axis=0 [] []", "axis=1 [0,2]"],
    ..MOVE
};

fn stacked(s: &LoweringCx<'_>, axis: &str) -> Option<String> {
    let inputs: Vec<&str> = (1..s.args.len()).map(|i| s.arg(i)).collect();
    let at = s.axis(0, s.ty(1)?.shape.rank() + 1).ok()?;
    Some(format!("{}.stack([{}], {axis}={at})", s.xp, inputs.join(", ")))
}

// --- pad ---------------------------------------------------------------------------------------------------

const MODES: &[&str] = &["constant", "reflect", "symmetric", "edge", "replicate", "circular", "wrap"];

/// elements added at both ends
pub static PAD: OpDef = OpDef {
    name: "pad",
    doc: "Elements added before and after each axis. `pads` is `((before, after), ...)` for each axis, the same \
          numbers in one flat tuple, one pair for all axes, or one number. `mode` is `constant` (`value`; negative \
          numbers cut off; numbers that depend on sizes are 0 or more), `reflect` (mirrored at the outermost \
          element), `symmetric` (mirrored at the border), `edge` or `replicate` (the outermost element), `circular` \
          or `wrap` (from the other end).",
    layer: "Pad",
    ports: &[
        INPUT,
        attr("pads", Attr::Any, DefaultLit::Required),
        attr("mode", Attr::Choice(MODES), DefaultLit::Str("constant")),
        attr("value", Attr::Scalar, DefaultLit::Float(0.0)),
    ],
    shape: ShapeRule::Fn(|cx| {
        let from = cx.shape(0);
        let pads = open_pads(cx, from.rank())?;
        let mode = cx.text(2)?;
        for (size, [before, after]) in from.iter().zip(&pads) {
            match (before.known(), after.known()) {
                (Some(a), Some(b)) => check_pad(&mode, size, a, b)?,
                (a, _) if mode != "constant" => {
                    return Err(cx.symbolic(1, if a.is_none() { before } else { after }));
                }
                _ => {}
            }
        }
        Ok(vec![from.iter().zip(&pads).map(|(size, [a, b])| &(size + a) + b).collect()])
    }),
    dtype: DTypeRule::Fn(|cx| {
        let dtype = cx.dtype(0).unwrap_or(cx.float);
        cx.check_int(3, dtype)?;
        Ok(DTypes::keep([dtype]))
    }),
    expand: Some(padded),
    lowering: Lowering {
        numpy: Function(pad_text),
        torch: Function(|s| {
            // One flat tuple, from the last axis to the first; negative numbers crop.
            let pads = pads(s, s.ty(0)?.shape.rank()).ok()?;
            let flat: Vec<i64> = pads.iter().rev().flat_map(|&(a, b)| [a, b]).collect();
            // The value is a double.
            let is_exact = s.ty(0)?.dtype.is_float() || s.f64(3).is_ok_and(|x| x.abs() < 2.0_f64.powi(53));
            let constant = s.text(2).ok()? == "constant" && !flat.is_empty() && is_exact;
            let text = || format!("F.pad({}, {}, value={})", s.arg(0), tuple_text(&flat), s.arg(3));
            constant.then(text)
        }),
        jax: Function(pad_text),
        mlx: Function(|s| if s.text(2).ok()? == "constant" { pad_text(s) } else { None }),
        ggml: Function(|s| {
            let zeros = s.text(2).ok()? == "constant" && s.f64(3).ok()? == 0.0;
            if zeros { super::ggml::pad(s, &pads(s, s.ty(0)?.shape.rank()).ok()?) } else { None }
        }),
        onnx: Function(super::onnx::pad),
        ..Lowering::NONE
    },
    cases: &[
        "[2,3] pads=((1,0),(2,1))",
        "[3] pads=(1,2) value=1.5",
        "[2,3] pads=1",
        "[4] pads=(-1,2)",
        "[4,3] pads=((1,2),(0,2)) mode=\"reflect\"",
        "[4] pads=(4,1) mode=\"symmetric\"",
        "[2,3] pads=(3,0,0,1) mode=\"edge\"",
        "[4] pads=(2,4) mode=\"circular\"",
        "[0,2] pads=((1,1),(0,0))",
    ],
    ..MOVE
};

/// Numbers of elements before and after each axis, which must be known.
pub(super) fn pads(cx: &impl Attrs, rank: usize) -> Result<Vec<(i64, i64)>> {
    let known = |d: &Dim| d.known().ok_or_else(|| cx.symbolic(1, d));
    open_pads(cx, rank)?.iter().map(|[a, b]| Ok((known(a)?, known(b)?))).collect()
}

/// The same, where the numbers may be symbols.
fn open_pads(cx: &impl Attrs, rank: usize) -> Result<Vec<[Dim; 2]>> {
    let lit = cx.lit(1);
    let bad = || cx.bad(1, &lit, "a number, a pair, or a pair (before, after) for each axis");
    let number = |l: &Lit| match l {
        Lit::Int(d) if d.has_var() => Err(cx.symbolic(1, d)),
        Lit::Int(d) => Ok(d.clone()),
        _ => Err(bad()),
    };
    let pair = |l: &Lit| match l {
        Lit::Tuple(p) if p.len() == 2 => Ok([number(&p[0])?, number(&p[1])?]),
        _ => Err(bad()),
    };
    let pads = match &lit {
        Lit::Int(_) => vec![[number(&lit)?, number(&lit)?]],
        Lit::Tuple(items) if items.iter().all(|i| matches!(i, Lit::Tuple(_))) => {
            items.iter().map(pair).collect::<Result<Vec<_>>>()?
        }
        Lit::Tuple(items) => {
            let all = items.iter().map(number).collect::<Result<Vec<_>>>()?;
            if all.len() % 2 == 1 {
                return Err(bad());
            }
            all.chunks_exact(2).map(|p| [p[0].clone(), p[1].clone()]).collect()
        }
        _ => return Err(bad()),
    };
    match pads.as_slice() {
        [one] => Ok(vec![one.clone(); rank]),
        all if all.len() == rank => Ok(pads),
        _ => Err(bad()),
    }
}

fn check_pad(mode: &str, size: &Dim, before: i64, after: i64) -> Result<()> {
    let (least, most) = (before.min(after), before.max(after));
    let message = format!("an axis of size {size} cannot be padded by {before} and {after} in mode {mode}");
    let bad = |help: String| Err(Error::new(Code::BadArgument, message).help(help));
    if mode == "constant" {
        let cut_off = before.min(0).saturating_add(after.min(0));
        return match size.known() {
            Some(n) if n.saturating_add(cut_off) < 0 => bad(format!("at most {n} elements can be cut off")),
            _ => Ok(()),
        };
    }
    let limit = match (mode, size.known()) {
        ("reflect", Some(n)) => n - 1,
        (_, None) | ("edge" | "replicate", Some(1..)) => i64::MAX,
        (_, Some(n)) => n,
    };
    if least < 0 {
        return bad("only mode \"constant\" cuts off".to_owned());
    }
    if most > 0 && most > limit {
        return bad(format!("at most {limit} elements can be added at each end; pad twice for more"));
    }
    Ok(())
}

fn padded<'a>(c: &ExpandCx<'a>) -> Vec<V<'a>> {
    let x = c.x[0];
    let mode = c.get(|c| c.text(2));
    if mode == "constant" {
        return vec![constant_pad(x, &c.get(|c| open_pads(c, x.rank())), c.x[3])];
    }
    let pads = c.get(|c| pads(c, x.rank()));
    let out = pads.iter().enumerate().fold(x, |x, (axis, &(a, b))| pad_axis(x, axis, a, b, &mode));
    vec![out]
}

/// Crops by numbers known to be negative, then writes the rest into a larger tensor filled with `value`.
fn constant_pad<'a>(x: V<'a>, pads: &[[Dim; 2]], value: V<'a>) -> V<'a> {
    let cropped = |d: &Dim| d.known().map_or(0, |n| n.min(0));
    let added = |d: &Dim| if cropped(d) < 0 { Dim::Const(0) } else { d.clone() };
    let mut kept = x;
    if pads.iter().flatten().any(|d| cropped(d) < 0) {
        let starts = pads.iter().map(|[a, _]| Lit::int(cropped(a).saturating_neg()));
        let stops = pads.iter().map(|[_, b]| if cropped(b) < 0 { Lit::int(cropped(b)) } else { Lit::None });
        kept = x.slice(Lit::tuple(starts), Lit::tuple(stops));
    }
    if pads.iter().flatten().all(|d| added(d).is(0)) {
        return kept;
    }
    let starts: Vec<Dim> = pads.iter().map(|[a, _]| added(a)).collect();
    let stops: Vec<Dim> = kept.shape().iter().zip(&starts).map(|(size, a)| size + a).collect();
    let shape: Vec<Dim> = stops.iter().zip(pads).map(|(stop, [_, b])| stop + &added(b)).collect();
    x.cx().full(shape, value, x.dtype()).slice_update(kept, starts, stops)
}

/// Pads one axis with elements of the input.
fn pad_axis<'a>(x: V<'a>, axis: usize, before: i64, after: i64, mode: &str) -> V<'a> {
    let size = x.dim(axis as i64);
    let flipped = |x: V<'a>| x.flip(axis);
    let range = |from: i64, to: i64| cut(x, axis, Some(Dim::Const(from)), Some(Dim::Const(to)));
    let back =
        |from: i64, to: i64| cut(x, axis, Some(&size - &Dim::Const(from)), Some(&size - &Dim::Const(to)));
    let repeated = |x: V<'a>, n: i64| {
        let mut shape = x.shape().0.to_vec();
        shape[axis] = Dim::Const(n);
        x.broadcast_to(shape)
    };
    let mut all = vec![x.lit(axis)];
    if before > 0 {
        all.push(match mode {
            "reflect" => flipped(range(1, before + 1)),
            "symmetric" => flipped(range(0, before)),
            "edge" | "replicate" => repeated(range(0, 1), before),
            _ => back(before, 0),
        });
    }
    all.push(x);
    if after > 0 {
        all.push(match mode {
            "reflect" => flipped(back(after + 1, 1)),
            "symmetric" => flipped(back(after, 0)),
            "edge" | "replicate" => repeated(back(1, 0), after),
            _ => range(0, after),
        });
    }
    if all.len() == 2 { x } else { x.cx().call(&CONCAT, &all) }
}

fn pad_text(s: &LoweringCx<'_>) -> Option<String> {
    let pads = pads(s, s.ty(0)?.shape.rank()).ok()?;
    let mode = s.text(2).ok()?;
    let is_wide = matches!(s.lit(3), Lit::Tensor(_));
    if pads.is_empty() || is_wide || pads.iter().any(|&(a, b)| a < 0 || b < 0) {
        return None;
    }
    let pairs = pads.iter().map(|(a, b)| format!("({a}, {b})")).collect::<Vec<_>>().join(", ");
    let how = match &*mode {
        "constant" => format!("constant_values={}", s.arg(3)),
        "replicate" => "mode=\"edge\"".to_owned(),
        "circular" => "mode=\"wrap\"".to_owned(),
        other => format!("mode=\"{other}\""),
    };
    let comma = if pads.len() == 1 { "," } else { "" };
    Some(format!("{}.pad({}, ({pairs}{comma}), {how})", s.xp, s.arg(0)))
}

// --- tile, repeat ------------------------------------------------------------------------------------------

const REPS: Port = attr("reps", Attr::Ints, DefaultLit::Required);

/// the whole tensor repeated
pub static TILE: OpDef = OpDef {
    name: "tile",
    doc: "The whole tensor `reps[i]` times along axis `i`. The shorter of shape and `reps` is padded with \
          leading 1s.",
    layer: "Tile",
    ports: &[INPUT, REPS],
    shape: ShapeRule::Expansion,
    expand: Some(tiled),
    lowering: Lowering {
        // torch does not accept a single number.
        py: Function(|s| Some(format!("{}.tile({}, {})", s.xp, s.arg(0), s.dims(&Attrs::dims(s, 1).ok()?)))),
        ..Lowering::NONE
    },
    cases: &["[2,3] reps=(2,1)", "[2,3] reps=2", "[3] reps=(2,2)", "[] reps=(2,)", "[2] reps=0"],
    ..MOVE
};

fn tiled<'a>(c: &ExpandCx<'a>) -> Vec<V<'a>> {
    let x = c.x[0];
    let reps = c.get(|c| c.dims(1));
    if reps.iter().any(|d| d.known().is_some_and(|n| n < 0)) {
        c.cx.fail(c.bad(1, &c.lit(1), "numbers that are not negative"));
    }
    let rank = reps.len().max(x.rank());
    let fill = |dims: &[Dim]| [vec![Dim::ONE; rank - dims.len()], dims.to_vec()].concat();
    let (sizes, reps) = (fill(&x.shape()), fill(&reps));
    let pairs = |f: &dyn Fn(usize) -> [Dim; 2]| (0..rank).flat_map(f).collect::<Vec<_>>();
    let split = pairs(&|i| [Dim::ONE, sizes[i].clone()]);
    let wide = pairs(&|i| [reps[i].clone(), sizes[i].clone()]);
    let whole: Vec<Dim> = sizes.iter().zip(&reps).map(|(n, r)| n * r).collect();
    let split = x.reshape(split);
    vec![split.broadcast_to(wide).reshape(whole)]
}

/// each element repeated
pub static REPEAT: OpDef = OpDef {
    name: "repeat",
    doc: "Each element `repeats` times along `axis`; without an axis the elements in row-major order.",
    aliases: &["repeat_interleave"],
    layer: "Repeat",
    ports: &[
        INPUT,
        attr("repeats", Attr::Int, DefaultLit::Required),
        attr("axis", Attr::OptInt, DefaultLit::None),
    ],
    shape: ShapeRule::Expansion,
    expand: Some(|c| {
        let flat = c.absent(2);
        let x = if flat { c.x[0].reshape(-1) } else { c.x[0] };
        let axis = if flat { 0 } else { c.get(|c| c.axis(2, x.rank())) };
        let repeats = c.get(|c| c.dims(1)).pop().unwrap_or(Dim::ONE);
        if repeats.known().is_some_and(|n| n < 0) {
            c.cx.fail(c.bad(1, &c.lit(1), "a number that is not negative"));
        }
        let mut wide = x.shape().0.to_vec();
        let mut whole = wide.clone();
        if let Some(size) = whole.get_mut(axis) {
            *size = &*size * &repeats;
            wide.insert(axis + 1, repeats);
        }
        let split = x.expand_dims(axis + 1);
        vec![split.broadcast_to(wide).reshape(whole)]
    }),
    lowering: Lowering {
        py: Template("{xp}.repeat({0}, {1}, axis={2})"),
        torch: Template("torch.repeat_interleave({0}, {1}, dim={2})"),
        ..Lowering::NONE
    },
    cases: &[
        "[2,3] repeats=2",
        "[2,3] repeats=2 axis=0",
        "[2,3] repeats=3 axis=-1",
        "[] repeats=2",
        "[2] repeats=0",
    ],
    ..MOVE
};
