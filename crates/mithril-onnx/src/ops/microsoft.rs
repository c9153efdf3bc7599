//! Ops of `com.microsoft`, as the optimizer of ONNX Runtime and exporters write them; attention is in a file of its own.

use mithril_ir::{DType, Dim, Lit, Result, ValueId};

use super::convolution::convolved;
use super::normalization::{layer_norm, rms_norm};
use super::quantization::{dequantize, dequantized, quantize, quantized};
use super::{Table, one};
use crate::context::{Value, malformed};
use crate::node::{Use, op};

type Outputs = Result<Vec<Value>>;

pub static OPS: Table = &[
    ("Gelu", |u| gelu(u, "none")),
    ("BiasGelu", |u| gelu(u, "none")),
    ("FastGelu", |u| gelu(u, "tanh")),
    ("QuickGelu", |u| {
        let (x, alpha) = (u.x(0)?, u.float("alpha", 1.702)?);
        let scaled = op!(u, "multiply", x, alpha)?;
        let gate = op!(u, "sigmoid", scaled)?;
        one(op!(u, "multiply", x, gate)?)
    }),
    ("LayerNormalization", layer_norm),
    ("SimplifiedLayerNormalization", rms_norm),
    ("SkipLayerNormalization", |u| skip_norm(u, true)),
    ("SkipSimplifiedLayerNormalization", |u| skip_norm(u, false)),
    ("EmbedLayerNormalization", embed_norm),
    ("FusedMatMul", fused_matmul),
    ("FusedConv", |u| {
        let (x, weight, bias, more) = (u.x(0)?, u.x(1)?, u.optional(2)?, u.optional(3)?);
        let mut y = convolved(u, x, weight, bias)?;
        if let Some(more) = more {
            y = op!(u, "add", y, more)?;
        }
        one(activated(u, y)?)
    }),
    ("FusedGemm", |u| {
        u.ignore(&["activation_alpha", "activation_beta", "activation_gamma"]);
        let y = super::linear::product(u)?;
        one(activated(u, y)?)
    }),
    ("MatMulNBits", matmul_bits),
    ("QuantizeLinear", quantize),
    ("DequantizeLinear", dequantize),
    ("QLinearAdd", |u| of_bytes(u, "add")),
    ("QLinearMul", |u| of_bytes(u, "multiply")),
    ("QLinearSigmoid", |u| changed_bytes(u, |u, x| op!(u, "sigmoid", x))),
    ("QLinearLeakyRelu", |u| {
        changed_bytes(u, |u, x| {
            let alpha = u.float("alpha", 0.01)?;
            op!(u, "leaky_relu", x, alpha)
        })
    }),
    ("DynamicQuantizeMatMul", |u| {
        let x = u.x(0)?;
        let (bytes, scale, zero) = super::quantization::ranged(u, x)?;
        let x = dequantized(u, bytes, scale, Some(zero), 0, 0)?;
        byte_matmul(u, x, 1, 2, 3, 4)
    }),
    ("MatMulIntegerToFloat", |u| {
        let (x, scale, zero) = (u.x(0)?, u.x(2)?, u.optional(4)?);
        let x = dequantized(u, x, scale, zero, -2, 0)?;
        byte_matmul(u, x, 1, 3, 5, 6)
    }),
];

/// The second input is a bias that is added before.
fn gelu(u: &mut Use<'_>, how: &str) -> Outputs {
    let mut x = u.x(0)?;
    if let Some(bias) = u.optional(1)? {
        x = op!(u, "add", x, bias)?;
    }
    one(op!(u, "gelu", x, how)?)
}

/// The norm of a sum, which is the fourth output. A root mean square norm has no bias of its own.
fn skip_norm(u: &mut Use<'_>, centers: bool) -> Outputs {
    let (x, skip, weight) = (u.x(0)?, u.x(1)?, u.x(2)?);
    let shift = if centers { u.optional(3)? } else { None };
    let bias = u.optional(if centers { 4 } else { 3 })?;
    let eps = u.float("epsilon", 1e-12)?;
    if u.node.output.iter().skip(1).take(2).any(|name| !name.is_empty()) {
        return Err(Use::refuse("its second and third outputs, mean and deviation, are not supported"));
    }
    let mut sum = op!(u, "add", x, skip)?;
    if let Some(bias) = bias {
        sum = op!(u, "add", sum, bias)?;
    }
    let sizes = vec![u.shape(sum)[u.rank(sum) - 1].clone()];
    let y = if centers {
        op!(u, "layer_norm", sum, weight, shift, sizes, eps)?
    } else {
        op!(u, "rms_norm", sum, weight, sizes, eps)?
    };
    Ok([y, y, y, sum].map(Value::Graph).to_vec())
}

/// The norm of the sum of embeddings of words, positions and segments; how many words there are; the sum.
fn embed_norm(u: &mut Use<'_>) -> Outputs {
    let (ids, segments) = (u.x(0)?, u.optional(1)?);
    let (words, positions, kinds) = (u.x(2)?, u.x(3)?, u.optional(4)?);
    let (weight, shift, mask, places) = (u.x(5)?, u.x(6)?, u.optional(7)?, u.optional(8)?);
    let eps = u.float("epsilon", 1e-12)?;
    u.ignore(&["mask_index_type"]);
    let mut sum = op!(u, "take", words, ids, 0_i64)?;
    let length = u.shape(ids).get(1).cloned().ok_or_else(|| malformed("the ids have not 2 axes"))?;
    let places = match places {
        Some(places) => places,
        None => op!(u, "arange", Lit::from(length), Lit::None, 1_i64, DType::I64)?,
    };
    let part = op!(u, "take", positions, places, 0_i64)?;
    sum = op!(u, "add", sum, part)?;
    if let (Some(kinds), Some(segments)) = (kinds, segments) {
        let part = op!(u, "take", kinds, segments, 0_i64)?;
        sum = op!(u, "add", sum, part)?;
    }
    let sizes = vec![u.shape(sum)[2].clone()];
    let y = op!(u, "layer_norm", sum, weight, shift, sizes, eps)?;
    let batch = u.shape(ids)[0].clone();
    let count = match mask {
        Some(mask) => {
            let count = op!(u, "sum", mask, 1_i64)?;
            u.cast(count, DType::I32)?
        }
        None => op!(u, "full", vec![batch], 0_i64, DType::I32)?,
    };
    Ok([y, count, sum].map(Value::Graph).to_vec())
}

/// `alpha · A · B`, either factor with its last two axes swapped.
fn fused_matmul(u: &mut Use<'_>) -> Outputs {
    let (mut a, mut b) = (u.x(0)?, u.x(1)?);
    if u.flag("transBatchA", false)? || u.flag("transBatchB", false)? {
        return Err(Use::refuse("batch axes behind the rows are not supported"));
    }
    let alpha = u.float("alpha", 1.0)?;
    if u.flag("transA", false)? {
        a = op!(u, "matrix_transpose", a)?;
    }
    if u.flag("transB", false)? {
        b = op!(u, "matrix_transpose", b)?;
    }
    let y = op!(u, "matmul", a, b)?;
    one(if alpha == 1.0 { y } else { op!(u, "multiply", y, alpha)? })
}

/// The function that a fused op applies at last.
fn activated(u: &mut Use<'_>, y: ValueId) -> Result<ValueId> {
    let numbers = u.floats("activation_params").unwrap_or_default();
    let number = |i: usize, default: f64| numbers.get(i).copied().unwrap_or(default);
    match u.text("activation", "")?.as_str() {
        "" => Ok(y),
        "Relu" => op!(u, "relu", y),
        "Tanh" => op!(u, "tanh", y),
        "Sigmoid" => op!(u, "sigmoid", y),
        "LeakyRelu" if !numbers.is_empty() => op!(u, "leaky_relu", y, number(0, 0.01)),
        "Clip" if numbers.len() == 2 => op!(u, "clip", y, number(0, 0.0), number(1, 0.0)),
        "HardSigmoid" if numbers.len() == 2 => {
            super::elementwise::linear_sigmoid(u, y, number(0, 0.2), number(1, 0.5))
        }
        other => Err(Use::refuse(format!("the activation {other:?} is not supported"))),
    }
}

/// A product with a matrix of 2, 4 or 8 bits, whose rows have a scale and a zero point for each block.
fn matmul_bits(u: &mut Use<'_>) -> Outputs {
    let (x, packed, scales) = (u.x(0)?, u.x(1)?, u.x(2)?);
    let (zeros, bias) = (u.optional(3)?, u.optional(5)?);
    if u.has(4) {
        return Err(Use::refuse("rows in another order (g_idx) are not supported"));
    }
    // How exactly products are accumulated: exactly.
    u.ignore(&["accuracy_level"]);
    let (k, n, bits) = (u.int("K", 0)?, u.int("N", 0)?, u.int("bits", 4)?);
    let block = u.int("block_size", 32)?;
    if !matches!(bits, 2 | 4 | 8) {
        return Err(Use::refuse(format!("a matrix of {bits} bits is not supported")));
    }
    if k < 1 || n < 1 || block < 1 || k > 1 << 40 || n > 1 << 40 || block > 1 << 20 {
        return Err(malformed(format!("a matrix has {n} rows of {k} elements in blocks of {block}")));
    }
    let blocks = (k + block - 1) / block;
    let dtype = u.dtype(x);
    let weights = unpacked(u, packed, bits, n)?;
    let weights = op!(u, "reshape", weights, vec![n, blocks, block])?;
    let zero = match zeros {
        None => None,
        Some(z) if u.dtype(z).is_float() => Some(op!(u, "reshape", z, vec![n, blocks, 1])?),
        Some(z) => {
            let all = unpacked(u, z, bits, n)?;
            let own = op!(u, "slice", all, vec![Lit::None, Lit::None], vec![Lit::None, Lit::from(blocks)])?;
            Some(op!(u, "reshape", own, vec![n, blocks, 1])?)
        }
    };
    let weights = u.cast(weights, dtype)?;
    let centered = match zero {
        Some(zero) => {
            let zero = u.cast(zero, dtype)?;
            op!(u, "subtract", weights, zero)?
        }
        None => op!(u, "subtract", weights, (1_i64 << (bits - 1)) as f64)?,
    };
    let scales = op!(u, "reshape", scales, vec![n, blocks, 1])?;
    let scales = u.cast(scales, dtype)?;
    let weights = op!(u, "multiply", centered, scales)?;
    let weights = op!(u, "reshape", weights, vec![n, blocks * block])?;
    let weights = if blocks * block == k {
        weights
    } else {
        op!(u, "slice", weights, vec![Lit::None, Lit::None], vec![Lit::None, Lit::from(k)])?
    };
    one(op!(u, "linear", x, weights, bias)?)
}

/// Bytes as rows of the numbers that are packed in them, the lowest bits first.
fn unpacked(u: &mut Use<'_>, packed: ValueId, bits: i64, rows: i64) -> Result<ValueId> {
    let bytes = u.cast(packed, DType::U8)?;
    let bytes = op!(u, "reshape", bytes, vec![rows, -1])?;
    if bits == 8 {
        return Ok(bytes);
    }
    let mut parts = vec![u.cx.lit(-1_i64)];
    for i in 0..8 / bits {
        let moved = if i == 0 { bytes } else { op!(u, "right_shift", bytes, i * bits)? };
        parts.push(op!(u, "bitwise_and", moved, (1_i64 << bits) - 1)?);
    }
    let all = u.op("stack", &parts)?;
    op!(u, "reshape", all, vec![Dim::Const(rows), Dim::Const(-1)])
}

/// An op of two quantized tensors, each with scale and zero point, and those of the result.
fn of_bytes(u: &mut Use<'_>, name: &str) -> Outputs {
    let mut args = Vec::new();
    for i in [0, 3] {
        let (x, scale, zero) = (u.x(i)?, u.x(i + 1)?, u.optional(i + 2)?);
        args.push(dequantized(u, x, scale, zero, 0, 0)?);
    }
    let y = op!(u, name, args[0], args[1])?;
    let (scale, zero) = (u.x(6)?, u.optional(7)?);
    let first = u.x(0)?;
    let dtype = u.dtype(first);
    one(quantized(u, y, scale, zero, Some(dtype), 0, 0)?)
}

/// A function of a quantized tensor.
fn changed_bytes(u: &mut Use<'_>, f: fn(&mut Use<'_>, ValueId) -> Result<ValueId>) -> Outputs {
    let (x, scale, zero) = (u.x(0)?, u.x(1)?, u.optional(2)?);
    let dtype = u.dtype(x);
    let x = dequantized(u, x, scale, zero, 0, 0)?;
    let y = f(u, x)?;
    let (scale, zero) = (u.x(3)?, u.optional(4)?);
    one(quantized(u, y, scale, zero, Some(dtype), 0, 0)?)
}

/// The product of a float with a quantized matrix; numbers are places of inputs.
fn byte_matmul(u: &mut Use<'_>, x: ValueId, b: usize, scale: usize, zero: usize, bias: usize) -> Outputs {
    let (b, scale, zero, bias) = (u.x(b)?, u.x(scale)?, u.optional(zero)?, u.optional(bias)?);
    let b = dequantized(u, b, scale, zero, -1, 0)?;
    let y = op!(u, "matmul", x, b)?;
    one(match bias {
        Some(bias) => op!(u, "add", y, bias)?,
        None => y,
    })
}
