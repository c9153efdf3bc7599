//! Reductions: sums, extremes, statistics and norms over axes.

use crate::build::{Call, GradCall, V};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::Result;
use crate::interp::HostCall;
use crate::literal::Lit;
use crate::op::{
    Attr, BLANK, DTypeRule, DefaultLit, Eval, Grad, OpDef, Port, ShapeRule, Spell, Text, Tolerance, attr,
    tensor,
};
use crate::rules::{Attrs, DTypeCx, DTypes, ShapeCx};
use crate::shape::Shape;
use crate::spell::SpellCx;
use crate::tensor::{Scalar, Tensor, strides};

/// Rows of this file.
pub static OPS: &[&OpDef] = &[&SUM];

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

/// The row that reductions over `axis` start from.
const fn reduction(name: &'static str, doc: &'static str) -> OpDef {
    OpDef {
        name,
        doc,
        ports: PORTS,
        shape: ShapeRule::Fn(reduced),
        tolerance: Tolerance::Contraction,
        cases: CASES,
        ..BLANK
    }
}

/// Position of a port that the row is known to have.
fn port(cx: &impl Attrs, name: &str) -> usize {
    cx.op().port(name).unwrap_or(usize::MAX)
}

fn axes(cx: &impl Attrs, rank: usize) -> Result<Vec<usize>> {
    cx.axes(port(cx, "axis"), rank)
}

fn keepdim(cx: &impl Attrs) -> Result<bool> {
    cx.bool(port(cx, "keepdim"))
}

/// The shape without the reduced axes, or with 1 in their place.
fn reduced(cx: &ShapeCx<'_>) -> Result<Vec<Shape>> {
    let input = cx.shape(0);
    let (axes, keep) = (axes(cx, input.rank())?, keepdim(cx)?);
    let dims = input.iter().enumerate().filter_map(|(i, d)| match axes.contains(&i) {
        true => keep.then_some(Dim::ONE),
        false => Some(d.clone()),
    });
    Ok(vec![Shape(dims.collect())])
}

/// Integers and truth values add up in `i64`.
fn accumulated(cx: &DTypeCx<'_>) -> Result<DTypes> {
    let dtype = cx.dtype(0).unwrap_or(cx.float);
    Ok(DTypes::keep([if dtype.is_float() { dtype } else { DType::I64 }]))
}

/// Offsets of all positions in a box of sizes and strides, row-major.
fn offsets(sizes: impl Iterator<Item = (usize, usize)>) -> Vec<usize> {
    sizes.fold(vec![0], |all, (n, stride)| {
        all.iter().flat_map(|&base| (0..n).map(move |i| base + i * stride)).collect()
    })
}

/// Computes each element of the output from those of the input that fall on it.
fn fold(c: &HostCall<'_>, mut f: impl FnMut(&[Scalar]) -> Scalar) -> Result<Vec<Tensor>> {
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

/// A sum in `f64` with the rounding errors carried along (Neumaier 1974), so that it is an oracle for sums in `f64`.
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
        _ => Scalar::Int(values.iter().fold(0, |sum, x| sum.wrapping_add(x.i64()))),
    }
}

/// The output's shape with 1 in place of the reduced axes.
fn kept_shape(call: &Call<'_>) -> Lit {
    let shape = call.x[0].shape();
    let axes = call.get(|c| axes(c, shape.rank()));
    let dims = shape.iter().enumerate().map(|(i, d)| if axes.contains(&i) { Dim::ONE } else { d.clone() });
    Lit::tuple(dims)
}

/// A tensor of the output's shape with the reduced axes back as size 1.
fn keep<'a>(v: &GradCall<'a>, t: V<'a>) -> V<'a> {
    if v.get(keepdim) { t } else { t.op(movement("reshape"), &[v.cx.lit(kept_shape(v))]) }
}

/// A tensor of the output's shape repeated over the reduced axes.
fn spread<'a>(v: &GradCall<'a>, t: V<'a>) -> V<'a> {
    let shape = Lit::tuple(v.x[0].shape().iter().cloned());
    keep(v, t).op(movement("broadcast_to"), &[v.cx.lit(shape)])
}

fn movement(name: &str) -> &'static OpDef {
    crate::ops::find(name).unwrap_or(&SUM)
}

/// A call of a reduction of an array module, e.g. `np.max(x, axis=1, keepdims=True)`; defaults are left out.
fn call_text(c: &SpellCx<'_>, function: &str, axis_word: &str, keep_word: &str, more: &str) -> String {
    let mut text = format!("{function}{}", c.arg(0));
    if !c.absent(port(c, "axis")) {
        text += &format!(", {axis_word}={}", c.arg(port(c, "axis")));
    }
    if keepdim(c).unwrap_or(false) {
        text += &format!(", {keep_word}=True");
    }
    text + more + ")"
}

/// A NumPy sum or product: integers in int64, halves in float32.
fn numpy_accumulated(c: &SpellCx<'_>, function: &str) -> String {
    match c.ty(0).map(|t| t.dtype) {
        Some(DType::F16 | DType::BF16) => {
            call_text(c, &format!("_wide({}, ", function.trim_end_matches('(')), "axis", "keepdims", "")
        }
        Some(d) if !d.is_float() && d != DType::I64 => {
            call_text(c, function, "axis", "keepdims", ", dtype=np.int64")
        }
        _ => call_text(c, function, "axis", "keepdims", ""),
    }
}

/// `Σ input`
pub static SUM: OpDef = OpDef {
    dtype: DTypeRule::Fn(accumulated),
    eval: Some(Eval::Host(|c| fold(c, sum_of))),
    grad: Grad::Formula(|v| vec![spread(v, v.g)]),
    spell: Spell { numpy: Text::F(|c| Some(numpy_accumulated(c, "np.sum("))), ..Spell::NONE },
    layer: "Sum",
    aliases: &["reduce_sum"],
    ..reduction(
        "sum",
        "Sum over `axis` (all axes if none is given). Integers and truth values add up in int64; the sum of \
         nothing is 0. `keepdim` leaves the reduced axes in place with size 1.",
    )
};
