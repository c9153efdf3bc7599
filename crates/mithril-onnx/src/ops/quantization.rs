//! Integers that stand for floats: a scale and a zero point for each tensor, channel or block.

use mithril_ir::{DType, Dim, Result, ValueId};

use super::convolution::convolved;
use super::{Table, one};
use crate::context::{Value, malformed};
use crate::narrow::Type;
use crate::node::{Use, op};

type Outputs = Result<Vec<Value>>;

pub static OPS: Table = &[
    ("QuantizeLinear", quantize),
    ("DequantizeLinear", dequantize),
    ("DynamicQuantizeLinear", dynamic),
    ("MatMulInteger", |u| {
        let (a, b) = (centered(u, 0, 2, 0)?, centered(u, 1, 3, 1)?);
        let y = op!(u, "matmul", a, b)?;
        one(u.cast(y, DType::I32)?)
    }),
    ("ConvInteger", |u| {
        let (x, w) = (centered(u, 0, 2, 0)?, centered(u, 1, 3, 2)?);
        // Sums of products of bytes are exact in float64.
        let (x, w) = (u.cast(x, DType::F64)?, u.cast(w, DType::F64)?);
        let y = convolved(u, x, w, None)?;
        one(u.cast(y, DType::I32)?)
    }),
    ("QLinearMatMul", |u| {
        let inputs = u.all()?;
        let [a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero] = inputs[..] else {
            return Err(malformed(format!("it has {} inputs", inputs.len())));
        };
        let a = dequantized(u, a, a_scale, Some(a_zero), -2, 0)?;
        let b = dequantized(u, b, b_scale, Some(b_zero), -1, 0)?;
        let y = op!(u, "matmul", a, b)?;
        one(quantized(u, y, y_scale, Some(y_zero), None, -2, 0)?)
    }),
    ("QLinearConv", |u| {
        let (x, x_scale, x_zero) = (u.x(0)?, u.x(1)?, u.x(2)?);
        let (w, w_scale, w_zero) = (u.x(3)?, u.x(4)?, u.x(5)?);
        let (y_scale, y_zero) = (u.x(6)?, u.x(7)?);
        let bias = u.optional(8)?;
        let x = dequantized(u, x, x_scale, Some(x_zero), 1, 0)?;
        let w = dequantized(u, w, w_scale, Some(w_zero), 0, 0)?;
        let bias = match bias {
            Some(b) => {
                let scale = op!(u, "multiply", x_scale, w_scale)?;
                Some(dequantized(u, b, scale, None, 0, 0)?)
            }
            None => None,
        };
        let y = convolved(u, x, w, bias)?;
        one(quantized(u, y, y_scale, Some(y_zero), None, 1, 0)?)
    }),
];

/// A scale or zero point so that it broadcasts to the tensor: one number, one for each place of an axis, or one for each
/// block of `block` along it.
fn spread(u: &mut Use<'_>, v: ValueId, x: ValueId, axis: i64, block: i64) -> Result<ValueId> {
    let (shape, own) = (u.shape(x), u.shape(v));
    if own.rank() == 0 || (own.rank() == 1 && own[0].is(1) && block == 0) {
        return if own.rank() == 0 { Ok(v) } else { op!(u, "reshape", v, Vec::<i64>::new()) };
    }
    let at = Use::axis(axis, shape.rank())?;
    if block > 0 {
        let whole = op!(u, "repeat", v, block, at as i64)?;
        let size = u.shape(whole)[at].clone();
        if size == shape[at] {
            return Ok(whole);
        }
        let (starts, mut ends) = (vec![mithril_ir::Lit::None; at + 1], vec![mithril_ir::Lit::None; at + 1]);
        ends[at] = shape[at].clone().into();
        return op!(u, "slice", whole, starts, ends);
    }
    if own.rank() != 1 {
        return Ok(v);
    }
    let mut sizes = vec![Dim::ONE; shape.rank()];
    sizes[at] = own[0].clone();
    op!(u, "reshape", v, sizes)
}

/// `(x - zero) * scale`
pub(super) fn dequantized(
    u: &mut Use<'_>,
    x: ValueId,
    scale: ValueId,
    zero: Option<ValueId>,
    axis: i64,
    block: i64,
) -> Result<ValueId> {
    let dtype = u.dtype(scale);
    let scale = spread(u, scale, x, axis, block)?;
    // Differences of 16-bit integers and of those of 32 bits are not exact in a half.
    let wide = if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype };
    let mut y = u.cast(x, wide)?;
    if let Some(zero) = zero {
        let is_zero = u.cx.constant(zero).is_some_and(|t| (0..t.len()).all(|i| t.get(i).i64() == 0));
        if !is_zero {
            let zero = spread(u, zero, x, axis, block)?;
            let zero = u.cast(zero, wide)?;
            y = op!(u, "subtract", y, zero)?;
        }
    }
    let scale = u.cast(scale, wide)?;
    let y = op!(u, "multiply", y, scale)?;
    u.cast(y, dtype)
}

pub(super) fn dequantize(u: &mut Use<'_>) -> Outputs {
    let (x, _) = u.any(0)?;
    let scale = u.x(1)?;
    let zero = if u.has(2) { Some(u.any(2)?.0) } else { None };
    let (axis, block) = (u.int("axis", 1)?, u.int("block_size", 0)?);
    let y = dequantized(u, x, scale, zero, axis, block)?;
    let dtype = u.dtype_of("output_dtype")?.unwrap_or(u.dtype(scale));
    one(u.cast(y, dtype)?)
}

pub(super) fn quantize(u: &mut Use<'_>) -> Outputs {
    let (x, scale) = (u.x(0)?, u.x(1)?);
    let zero = if u.has(2) { Some(u.any(2)?) } else { None };
    let asked = u.type_of("output_dtype")?;
    let (axis, block) = (u.int("axis", 1)?, u.int("block_size", 0)?);
    let saturates = u.flag("saturate", true)?;
    let narrow = match (zero, asked) {
        (Some((_, narrow)), _) => narrow,
        (None, Some(Type::Narrow(narrow))) => Some(narrow),
        _ => None,
    };
    let zero = zero.map(|(z, _)| z);
    let Some(narrow) = narrow else {
        return one(quantized(u, x, scale, zero, asked.map(Type::dtype), axis, block)?);
    };
    let y = if let Some(range) = narrow.range() {
        in_range(u, x, scale, zero, range, axis, block)?
    } else {
        // The zero point of floats is 0.
        let y = scaled(u, x, scale, axis, block)?;
        narrow.round(u, y, saturates, "up")?
    };
    Ok(vec![Value::Narrow(u.cast(y, narrow.dtype())?, narrow)])
}

/// `round(x / scale) + zero`, held inside the range of the integers.
pub(super) fn quantized(
    u: &mut Use<'_>,
    x: ValueId,
    scale: ValueId,
    zero: Option<ValueId>,
    dtype: Option<DType>,
    axis: i64,
    block: i64,
) -> Result<ValueId> {
    let dtype = zero.map(|z| u.dtype(z)).or(dtype).unwrap_or(DType::U8);
    let Some(range) = dtype.int_range() else {
        return Err(Use::refuse(format!("it quantizes to {dtype}")));
    };
    let y = in_range(u, x, scale, zero, range, axis, block)?;
    u.cast(y, dtype)
}

/// `x / scale`, at least in float32.
fn scaled(u: &mut Use<'_>, x: ValueId, scale: ValueId, axis: i64, block: i64) -> Result<ValueId> {
    let wide = if u.dtype(x) == DType::F64 { DType::F64 } else { DType::F32 };
    let scale = spread(u, scale, x, axis, block)?;
    let (y, scale) = (u.cast(x, wide)?, u.cast(scale, wide)?);
    op!(u, "divide", y, scale)
}

/// The quantized number as a float.
fn in_range(
    u: &mut Use<'_>,
    x: ValueId,
    scale: ValueId,
    zero: Option<ValueId>,
    (least, most): (i128, i128),
    axis: i64,
    block: i64,
) -> Result<ValueId> {
    let y = scaled(u, x, scale, axis, block)?;
    let zero = zero.map(|z| spread(u, z, x, axis, block)).transpose()?;
    let mut y = op!(u, "round", y)?;
    if let Some(zero) = zero {
        let wide = u.dtype(y);
        let zero = u.cast(zero, wide)?;
        y = op!(u, "add", y, zero)?;
    }
    op!(u, "clip", y, least as f64, most as f64)
}

/// Scale and zero point of the range of the tensor itself.
fn dynamic(u: &mut Use<'_>) -> Outputs {
    let x = u.x(0)?;
    let (y, scale, zero) = ranged(u, x)?;
    Ok([y, scale, zero].map(Value::Graph).to_vec())
}

/// A tensor as bytes, with scale and zero point of its own range.
pub(super) fn ranged(u: &mut Use<'_>, x: ValueId) -> Result<(ValueId, ValueId, ValueId)> {
    let (least, most) = (op!(u, "min", x)?, op!(u, "max", x)?);
    let (least, most) = (op!(u, "minimum", least, 0.0)?, op!(u, "maximum", most, 0.0)?);
    let range = op!(u, "subtract", most, least)?;
    let scale = op!(u, "divide", range, 255.0)?;
    let zero = op!(u, "divide", least, scale)?;
    let zero = op!(u, "negative", zero)?;
    let zero = op!(u, "clip", zero, 0.0, 255.0)?;
    let zero = op!(u, "round", zero)?;
    let zero = u.cast(zero, DType::U8)?;
    let y = quantized(u, x, scale, Some(zero), None, 0, 0)?;
    Ok((y, scale, zero))
}

/// An integer input less its zero point, in int32. The zero points of the first matrix belong to its rows.
fn centered(u: &mut Use<'_>, i: usize, zero: usize, kind: usize) -> Result<ValueId> {
    let x = u.x(i)?;
    let wide = u.cast(x, DType::I32)?;
    let Some(zero) = u.optional(zero)? else { return Ok(wide) };
    let zero = u.cast(zero, DType::I32)?;
    let rank = u.rank(x) as i64;
    let axis = match kind {
        0 if rank > 1 => -2,
        2 => 0,
        _ => -1,
    };
    let zero = spread(u, zero, x, axis, 0)?;
    op!(u, "subtract", wide, zero)
}
