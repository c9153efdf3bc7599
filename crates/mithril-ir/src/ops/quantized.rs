//! Products in 8-bit integers, which the `quantize` pass inserts for products with parameters.
//!
//! They are not listed in [`super::FAMILIES`]: models do not name them. Both are defined by their expansion; frameworks with
//! integer products use helpers that compute the same.

use crate::dtype::{DType, Kinds};
use crate::lowering::LoweringRule::Function;
use crate::lowering::{Lowering, LoweringCx};
use crate::op::{BLANK, DTypeRule, Grad, OpDef, Port, ShapeRule, Tolerance, tensor_of};
use crate::ops::reduce::{MAX, MIN};
use crate::rules::DTypes;
use crate::shape::Shape;

/// Ops of this file.
pub static OPS: &[&OpDef] = &[&DYNAMIC_QUANTIZE, &MATMUL_INTEGER];

static INPUT: &[Port] = &[tensor_of("input", Kinds::FLOAT)];

/// matrix rows in 8 bits, each with a scale and a zero point of its own
pub static DYNAMIC_QUANTIZE: OpDef = OpDef {
    name: "dynamic_quantize",
    doc: "Quantizes each row (the last axis) to int8: `quantized` with `input ≈ (quantized - zero) · scale`. The range \
          of a row includes 0. A row that is not finite gets the scale NaN.",
    ports: INPUT,
    outputs: &["quantized", "scale", "zero"],
    shape: ShapeRule::Fn(|cx| {
        let all = cx.shape(0).clone();
        let mut one = all.clone();
        let last = one.rank().saturating_sub(1);
        one.0[last] = 1.into();
        Ok(vec![all, one.clone(), one])
    }),
    dtype: DTypeRule::Fn(|cx| Ok(DTypes::keep([DType::I8, cx.dtype(0).unwrap_or(cx.float), DType::I32]))),
    expand: Some(|c| {
        let (x, zero) = (c.x[0], c.cx.lit(0.0));
        let along = [c.cx.lit(-1), c.cx.lit(true)];
        let low = x.op(&MIN, &along).minimum(zero);
        let range = x.op(&MAX, &along).maximum(zero) - low;
        let is_finite = range.less(f64::INFINITY);
        let is_range = is_finite.logical_and(range.greater(1e-30));
        let scale = is_finite.select(range / 255.0, f64::NAN);
        let divisor = is_range.select(range, 255.0);
        let inverse = is_range.select(255.0 / divisor, zero);
        let origin = (0.5 - is_finite.select(low, zero) * inverse).floor();
        let number = x * inverse + (origin + 0.5);
        // NaN is not greater than 0, so it becomes 0.
        let bounded = number.greater(zero).select(number.minimum(255.0), zero);
        let quantized = (bounded.floor() - 128.0).cast(DType::I8);
        vec![quantized, scale, (origin - 128.0).cast(DType::I32)]
    }),
    grad: Grad::Unsupported("quantized models are for inference"),
    lowering: Lowering {
        numpy: Function(rows),
        torch: Function(rows),
        jax: Function(rows),
        ..Lowering::NONE
    },
    tolerance: Tolerance::Contraction,
    ..BLANK
};

fn rows(s: &LoweringCx<'_>) -> Option<String> {
    (s.ty(0)?.dtype == DType::F32).then(|| format!("_dynamic_quantize({})", s.arg(0)))
}

static FACTORS: &[Port] = &[tensor_of("left", Kinds::INT), tensor_of("right", Kinds::INT)];

/// `left @ right` of int8, summed in int32
pub static MATMUL_INTEGER: OpDef = OpDef {
    name: "matmul_integer",
    doc: "`left @ right`, with sums in int32: `left` is `[..., k]`, `right` is the matrix `[k, n]`.",
    ports: FACTORS,
    shape: ShapeRule::Fn(|cx| {
        let (left, right) = (cx.shape(0), cx.shape(1));
        let mut out: Shape = left.clone();
        if let (Some(last), [inner, columns]) = (out.0.last_mut(), &right[..]) {
            cx.same(last, inner, "inner sizes")?;
            *last = columns.clone();
        }
        Ok(vec![out])
    }),
    dtype: DTypeRule::Fn(|_| Ok(DTypes::keep([DType::I32]))),
    expand: Some(|c| vec![c.x[0].cast(DType::I32).matmul(c.x[1].cast(DType::I32))]),
    grad: Grad::Unsupported("quantized models are for inference"),
    lowering: Lowering {
        numpy: Function(|s| of_bytes(s, "_matmul_integer({left}, {right})")),
        torch: Function(|s| of_bytes(s, "_matmul_integer({left}, {right})")),
        jax: Function(|s| of_bytes(s, "_matmul_integer({left}, {right})")),
        ..Lowering::NONE
    },
    tolerance: Tolerance::Exact,
    ..BLANK
};

fn of_bytes(s: &LoweringCx<'_>, text: &str) -> Option<String> {
    let is_small = [0, 1].iter().all(|&i| s.ty(i).is_some_and(|ty| ty.dtype == DType::I8));
    is_small.then(|| text.replace("{left}", s.arg(0)).replace("{right}", s.arg(1)))
}
