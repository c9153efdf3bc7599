//! Ops that carry a state from one piece of a sequence to the next: linear attention, causal convolution.

use mithril_ir::{DType, Dim, Lit, Result, ValueId};

use super::attention::{heads, joined};
use super::{Table, one};
use crate::context::{Value, malformed};
use crate::node::{Use, op};

type Outputs = Result<Vec<Value>>;

pub static OPS: Table = &[
    ("LinearAttention", linear_attention),
    ("CausalConvWithState", causal_conv),
    ("SwiGLU", |u| {
        let (a, b, alpha) = (u.x(0)?, u.x(1)?, u.float("alpha", 1.0)?);
        let gate = if alpha == 1.0 {
            op!(u, "silu", a)?
        } else {
            let scaled = op!(u, "multiply", a, alpha)?;
            let sigmoid = op!(u, "sigmoid", scaled)?;
            op!(u, "multiply", a, sigmoid)?
        };
        one(op!(u, "multiply", gate, b)?)
    }),
];

/// Steps that are written out.
const MAX_STEPS: i64 = 1024;

/// A convolution of each channel over what came before, whose last elements are the state.
fn causal_conv(u: &mut Use<'_>) -> Outputs {
    let (x, weight, bias, past) = (u.x(0)?, u.x(1)?, u.optional(2)?, u.optional(3)?);
    let shape = u.shape(x);
    let sizes = (shape.get(1).and_then(Dim::known), u.shape(weight).get(2).and_then(Dim::known));
    let (3, (Some(channels), Some(k))) = (shape.rank(), sizes) else {
        return Err(Use::refuse("its channels or the size of its kernel are not known"));
    };
    let padded = match past {
        Some(past) if k > 1 => op!(u, "concat", 2_i64, past, x)?,
        _ => {
            let pads = Lit::tuple([vec![0, 0], vec![0, 0], vec![k - 1, 0]].map(Lit::from));
            op!(u, "pad", x, pads, "constant", 0.0)?
        }
    };
    let mut y = op!(u, "conv1d", padded, weight, bias, 1_i64, 0_i64, 1_i64, channels)?;
    match u.text("activation", "none")?.as_str() {
        "none" => {}
        "silu" | "swish" => y = op!(u, "silu", y)?,
        other => return Err(malformed(format!("the activation is {other:?}"))),
    }
    let first = &u.shape(padded)[2] - &Dim::Const(k - 1);
    let whole = vec![Lit::None; 2];
    let starts: Vec<Lit> = whole.iter().cloned().chain([first.into()]).collect();
    let state = op!(u, "slice", padded, starts, vec![Lit::None; 3])?;
    Ok([y, state].map(Value::Graph).to_vec())
}

/// Attention without a softmax: a state of keys times values, which decays and is corrected step by step.
#[allow(clippy::too_many_lines, reason = "one formula, step by step")]
fn linear_attention(u: &mut Use<'_>) -> Outputs {
    let (q, k, v) = (u.x(0)?, u.x(1)?, u.x(2)?);
    let (past, decay, beta) = (u.optional(3)?, u.optional(4)?, u.optional(5)?);
    let rule = u.text("update_rule", "gated_delta")?;
    let (gated, corrects) = match rule.as_str() {
        "linear" => (false, false),
        "gated" => (true, false),
        "delta" => (false, true),
        "gated_delta" => (true, true),
        other => return Err(malformed(format!("the update rule is {other:?}"))),
    };
    if gated != decay.is_some() || corrects != beta.is_some() {
        return Err(malformed(format!("decay or beta do not fit the rule {rule:?}")));
    }
    let (q_heads, kv_heads) = (u.int("q_num_heads", 0)?, u.int("kv_num_heads", 0)?);
    if kv_heads < 1 || q_heads % kv_heads != 0 {
        return Err(malformed(format!("{q_heads} heads of the query cannot share {kv_heads}")));
    }
    // How many steps are computed together does not matter.
    u.ignore(&["chunk_size"]);
    let dtype = u.dtype(q);
    let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let steps = u.shape(q).get(1).and_then(Dim::known);
    let steps = steps.ok_or_else(|| Use::refuse("its number of steps is a symbol: give shapes"))?;
    if !(1..=MAX_STEPS).contains(&steps) {
        return Err(Use::refuse(format!("it has {steps} steps; 1 to {MAX_STEPS} are written out")));
    }
    let split = |u: &mut Use<'_>, x: ValueId, count: i64| {
        let x = u.cast(x, wide)?;
        heads(u, x, count)
    };
    let (q, k, v) = (split(u, q, q_heads)?, split(u, k, kv_heads)?, split(u, v, kv_heads)?);
    // One number for each head, or one for each feature of the keys.
    let decay = decay.map(|d| split(u, d, kv_heads)).transpose()?;
    let decay = decay.map(|d| op!(u, "exp", d)).transpose()?;
    let beta = match beta {
        Some(b) if u.shape(b).last().is_some_and(|n| n.is(1)) => Some(split(u, b, 1)?),
        Some(b) => Some(split(u, b, kv_heads)?),
        None => None,
    };
    let (batch, d_k, d_v) = (u.shape(q)[0].clone(), u.shape(k)[3].clone(), u.shape(v)[3].clone());
    let scale = match (u.optional_float("scale")?.filter(|&s| s != 0.0), d_k.known()) {
        (Some(scale), _) => scale,
        (None, Some(n)) => 1.0 / (n as f64).sqrt(),
        (None, None) => return Err(Use::refuse("the size of its heads is a symbol")),
    };
    let kept = past.map_or(dtype, |p| u.dtype(p));
    let mut state = match past {
        Some(past) => u.cast(past, wide)?,
        None => op!(u, "full", vec![batch, kv_heads.into(), d_k, d_v], 0.0, wide)?,
    };
    let mut outputs = vec![u.cx.lit(2_i64)];
    for t in 0..steps {
        // The step as a column, [batch, heads, size, 1], or a row.
        let at = |u: &mut Use<'_>, x: ValueId, axis: i64| {
            let now = op!(u, "take", x, t, 2_i64)?;
            op!(u, "expand_dims", now, axis)
        };
        if let Some(decay) = decay {
            let factor = at(u, decay, -1)?;
            state = op!(u, "multiply", state, factor)?;
        }
        let (column, mut row) = (at(u, k, -1)?, at(u, v, -2)?);
        if let Some(beta) = beta {
            let key = at(u, k, -2)?;
            let known = op!(u, "matmul", key, state)?;
            let error = op!(u, "subtract", row, known)?;
            let factor = at(u, beta, -2)?;
            row = op!(u, "multiply", factor, error)?;
        }
        let new = op!(u, "multiply", column, row)?;
        state = op!(u, "add", state, new)?;
        let query = at(u, q, -2)?;
        let shared =
            if q_heads == kv_heads { state } else { op!(u, "repeat", state, q_heads / kv_heads, 1_i64)? };
        let y = op!(u, "matmul", query, shared)?;
        let y = op!(u, "squeeze", y, -2_i64)?;
        outputs.push(op!(u, "multiply", y, scale)?);
    }
    let y = u.op("stack", &outputs)?;
    let y = joined(u, y)?;
    let (y, state) = (u.cast(y, dtype)?, u.cast(state, kept)?);
    Ok([y, state].map(Value::Graph).to_vec())
}
