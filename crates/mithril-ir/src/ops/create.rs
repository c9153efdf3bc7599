//! Creation: tensors that come from sizes and numbers alone.

use crate::build::{Call, V};
use crate::error::Result;
use crate::literal::Lit;
use crate::op::{
    Attr, BLANK, DTypeRule, DefaultLit, Eval, Grad, OpDef, Port, ShapeRule, Spell, Text, Tolerance, attr,
    dtype_or,
};
use crate::rules::{Attrs, DTypeCx, DTypes, ShapeCx};
use crate::shape::Shape;
use crate::tensor::{Scalar, Tensor};

/// Rows of this file.
pub static OPS: &[&OpDef] = &[&FULL, &ZEROS, &ONES];

const CREATE: OpDef = OpDef { grad: Grad::Zero, tolerance: Tolerance::Exact, ..BLANK };

const SHAPE: Port = attr("shape", Attr::Shape, DefaultLit::Required);
const DTYPE: Port = attr("dtype", Attr::DType, DefaultLit::None);

/// The sizes given at port `i`.
pub(super) fn given_shape(cx: &ShapeCx<'_>, i: usize) -> Result<Shape> {
    let shape = Shape::of(cx.dims(i)?);
    if shape.iter().any(|d| d.known().is_some_and(|n| n < 0)) {
        return Err(cx.bad(i, &cx.lit(i), "a tuple of sizes, none of them negative"));
    }
    Ok(shape)
}

/// The dtype given at port `i`, or the default float.
pub(super) fn given_or_float(cx: &DTypeCx<'_>, i: usize) -> DTypes {
    DTypes::keep([dtype_or(&cx.lit(i), cx.float)])
}

/// The number at port `i`.
fn given_scalar(cx: &impl Attrs, i: usize) -> Result<Scalar> {
    match cx.lit(i) {
        Lit::Bool(b) => Ok(Scalar::Bool(b)),
        Lit::Int(_) => cx.int(i).map(Scalar::Int),
        _ => cx.f64(i).map(Scalar::Float),
    }
}

/// one number everywhere
pub static FULL: OpDef = OpDef {
    name: "full",
    doc: "A tensor filled with one number. Without `dtype` it is the default float, int64 or bool as the number \
          suggests.",
    ports: &[SHAPE, attr("value", Attr::Float, DefaultLit::Required), DTYPE],
    shape: ShapeRule::Fn(|cx| Ok(vec![given_shape(cx, 0)?])),
    dtype: DTypeRule::Fn(|cx| {
        let suggested = cx.lit(1).weak_dtype(cx.float).unwrap_or(cx.float);
        Ok(DTypes::keep([dtype_or(&cx.lit(2), suggested)]))
    }),
    eval: Some(Eval::Host(|c| Ok(vec![Tensor::full(c.dtype(), c.shape(), given_scalar(c, 1)?)]))),
    spell: Spell {
        torch: Text::T("torch.full({shape}, {1}, dtype={dtype})"),
        ..Spell::py("{xp}.full({shape}, {1}, {dtype})")
    },
    cases: &[
        "shape=(2,3) value=1.5",
        "shape=() value=7",
        "shape=(0,2) value=true",
        "shape=3 value=2 dtype=f16",
    ],
    ..CREATE
};

const fn filled(name: &'static str, doc: &'static str) -> OpDef {
    OpDef {
        name,
        doc,
        ports: &[SHAPE, DTYPE],
        shape: ShapeRule::Fn(|cx| Ok(vec![given_shape(cx, 0)?])),
        dtype: DTypeRule::Fn(|cx| Ok(given_or_float(cx, 1))),
        cases: &["shape=(2,3)", "shape=()", "shape=(0,)", "shape=4 dtype=i32", "shape=2 dtype=bool"],
        ..CREATE
    }
}

fn full_of<'a>(c: &Call<'a>, value: f64) -> Vec<V<'a>> {
    let dtype = dtype_or(&c.lit(1), c.cx.float());
    vec![c.cx.call(&FULL, &[c.x[0], c.cx.lit(value), c.cx.lit(dtype)])]
}

/// zeros
pub static ZEROS: OpDef = OpDef {
    expand: Some(|c| full_of(c, 0.0)),
    spell: Spell {
        torch: Text::T("torch.zeros({shape}, dtype={dtype})"),
        ..Spell::py("{xp}.zeros({shape}, {dtype})")
    },
    ..filled("zeros", "A tensor of zeros, of the default float unless `dtype` says otherwise.")
};

/// ones
pub static ONES: OpDef = OpDef {
    expand: Some(|c| full_of(c, 1.0)),
    spell: Spell {
        torch: Text::T("torch.ones({shape}, dtype={dtype})"),
        ..Spell::py("{xp}.ones({shape}, {dtype})")
    },
    ..filled("ones", "A tensor of ones, of the default float unless `dtype` says otherwise.")
};
