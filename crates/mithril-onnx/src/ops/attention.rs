//! Attention and rotary embeddings.

use mithril_ir::{DType, Dim, Lit, Result, ValueId};

use super::{Table, one};
use crate::context::{Value, malformed};
use crate::node::{Use, op};

type Outputs = Result<Vec<Value>>;

pub static OPS: Table = &[("Attention", attention), ("RotaryEmbedding", rotary)];

/// `[batch, length, heads * size]` as `[batch, heads, length, size]`; with 4 axes it is that already.
fn heads(u: &mut Use<'_>, x: ValueId, count: i64) -> Result<ValueId> {
    if u.rank(x) == 4 {
        return Ok(x);
    }
    let [b, l, _] = &u.shape(x)[..] else { return Err(malformed("an input has neither 3 nor 4 axes")) };
    if count < 1 {
        return Err(malformed("the number of heads is missing"));
    }
    let sizes = vec![b.clone(), l.clone(), count.into(), (-1_i64).into()];
    let split = op!(u, "reshape", x, sizes)?;
    op!(u, "transpose", split, vec![0_i64, 2, 1, 3])
}

fn attention(u: &mut Use<'_>) -> Outputs {
    let (q, k, v) = (u.x(0)?, u.x(1)?, u.x(2)?);
    let is_flat = u.rank(q) == 3;
    let (q_heads, kv_heads) = (u.int("q_num_heads", 0)?, u.int("kv_num_heads", 0)?);
    let (query, mut key, mut value) = (heads(u, q, q_heads)?, heads(u, k, kv_heads)?, heads(u, v, kv_heads)?);
    if u.has(6) {
        return Err(Use::refuse("lengths of the keys of each example (nonpad_kv_seqlen) are not supported"));
    }
    if u.float("softcap", 0.0)? != 0.0 {
        return Err(Use::refuse("softcap is not supported"));
    }
    if u.node.output.len() > 3 && !u.node.output[3].is_empty() {
        return Err(Use::refuse("its fourth output, the scores, is not supported"));
    }
    if u.int("is_causal", 0)? == 1 && u.has(4) {
        return Err(Use::refuse("a causal mask together with past keys is not supported"));
    }
    if let Some(past) = u.optional(4)? {
        key = op!(u, "concat", 2_i64, past, key)?;
    }
    if let Some(past) = u.optional(5)? {
        value = op!(u, "concat", 2_i64, past, value)?;
    }
    let mut mask = u.optional(3)?;
    if let Some(given) = mask {
        // A mask that is shorter than the keys hides the rest of them.
        let (own, wanted) = (u.shape(given), u.shape(key)[2].clone());
        if own.last().is_some_and(|n| *n != wanted && !n.is(1)) {
            let rest = &wanted - &own[own.rank() - 1];
            let rank = own.rank();
            let zero = Lit::from(vec![0_i64, 0]);
            let pads = Lit::tuple((0..rank).map(|i| {
                if i + 1 == rank { Lit::tuple([Lit::int(0), Lit::from(rest.clone())]) } else { zero.clone() }
            }));
            let fill =
                if u.dtype(given) == DType::Bool { Lit::from(false) } else { Lit::from(f64::NEG_INFINITY) };
            mask = Some(op!(u, "pad", given, pads, "constant", fill)?);
        }
    }
    let scale: Lit = u.optional_float("scale")?.map_or(Lit::None, Lit::from);
    let causal = u.flag("is_causal", false)?;
    let shares = u.shape(query)[1] != u.shape(key)[1];
    let found = op!(u, "scaled_dot_product_attention", query, key, value, mask, causal, scale, shares)?;
    let dtype = u.dtype(q);
    let mut y = u.cast(found, dtype)?;
    if is_flat {
        let shape = u.shape(y);
        let turned = op!(u, "transpose", y, vec![0_i64, 2, 1, 3])?;
        y = op!(u, "reshape", turned, vec![shape[0].clone(), shape[2].clone(), &shape[1] * &shape[3]])?;
    }
    Ok(vec![Value::Graph(y), Value::Graph(key), Value::Graph(value)])
}

/// Rotates the first features of each head by angles, looked up at positions or given for each place.
fn rotary(u: &mut Use<'_>) -> Outputs {
    let (x, mut cos, mut sin) = (u.x(0)?, u.x(1)?, u.x(2)?);
    let is_flat = u.rank(x) == 3;
    let (interleaved, width) = (u.flag("interleaved", false)?, u.int("rotary_embedding_dim", 0)?);
    let count = u.int("num_heads", 0)?;
    let four = heads(u, x, count)?;
    if let Some(places) = u.optional(3)? {
        cos = op!(u, "take", cos, places, 0_i64)?;
        sin = op!(u, "take", sin, places, 0_i64)?;
    }
    // [batch, length, half] beside [batch, heads, length, size]
    (cos, sin) = (op!(u, "expand_dims", cos, 1_i64)?, op!(u, "expand_dims", sin, 1_i64)?);
    let size = u.shape(four)[3].clone();
    let mut y = if width > 0 && size != Dim::Const(width) {
        let whole = vec![Lit::None; 4];
        let at = |i: i64| {
            let mut v = vec![Lit::None; 3];
            v.push(i.into());
            v
        };
        let first = op!(u, "slice", four, whole.clone(), at(width))?;
        let rest = op!(u, "slice", four, at(width), whole)?;
        let turned = op!(u, "rotate_pairs", first, cos, sin, interleaved)?;
        op!(u, "concat", -1_i64, turned, rest)?
    } else {
        op!(u, "rotate_pairs", four, cos, sin, interleaved)?
    };
    if is_flat {
        let shape = u.shape(x).to_vec();
        let turned = op!(u, "transpose", y, vec![0_i64, 2, 1, 3])?;
        y = op!(u, "reshape", turned, shape)?;
    }
    let dtype = u.dtype(x);
    one(u.cast(y, dtype)?)
}
