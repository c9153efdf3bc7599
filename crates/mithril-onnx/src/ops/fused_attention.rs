//! Attention in `com.microsoft`: with its projections, with caches, with shared heads.

use mithril_ir::{DType, Dim, Lit, Result, ValueId};

use super::Table;
use super::attention::{Offset, Rotary, Rules, attend, heads, joined, rotary};
use crate::context::{Value, malformed};
use crate::node::{Use, op};

type Outputs = Result<Vec<Value>>;

pub static OPS: Table = &[
    ("Attention", attention),
    ("MultiHeadAttention", multi_head),
    ("GroupQueryAttention", group_query),
    ("RotaryEmbedding", |u| {
        let (x, places, cos, sin) = (u.x(0)?, u.x(1)?, u.x(2)?, u.x(3)?);
        if u.flag("is_packed_batching", false)? || u.float("scale", 1.0)? != 1.0 {
            return Err(Use::refuse("packed batches and a scale are not supported"));
        }
        let (interleaved, width) = (u.flag("interleaved", false)?, u.int("rotary_embedding_dim", 0)?);
        let (mut count, size) = (u.int("num_heads", 0)?, u.shape(cos).get(1).and_then(Dim::known));
        if u.rank(x) == 3 && count == 0 {
            let all = u.shape(x)[2].known().zip(size);
            let all = all.filter(|&(_, n)| n > 0 && width == 0);
            count = all.map(|(all, n)| all / (2 * n)).ok_or_else(|| malformed("`num_heads` is missing"))?;
        }
        let places = spread(u, x, places)?;
        super::one(rotary(u, x, cos, sin, Some(places), Rotary { interleaved, width, heads: count })?)
    }),
];

/// Positions of each element: given, or counted from one number on.
fn spread(u: &mut Use<'_>, x: ValueId, places: ValueId) -> Result<ValueId> {
    if u.rank(places) != 1 {
        return Ok(places);
    }
    let shape = u.shape(x);
    let length = shape[if shape.rank() == 4 { 2 } else { 1 }].clone();
    let steps = op!(u, "arange", Lit::from(length.clone()), Lit::None, 1_i64, DType::I64)?;
    let all = op!(u, "add", steps, places)?;
    op!(u, "broadcast_to", all, vec![shape[0].clone(), length])
}

/// A mask of the examples as numbers that are added to scores: lengths, or 0 and 1 with 2, 3 or 4 axes.
fn filtered(u: &mut Use<'_>, mask: ValueId, keys: &Dim, dtype: DType) -> Result<ValueId> {
    let filter = u.float("mask_filter_value", -10_000.0)?;
    let shape = u.shape(mask);
    let open = match shape.rank() {
        1 => {
            let lengths = op!(u, "reshape", mask, vec![-1_i64, 1, 1, 1])?;
            let all = op!(u, "arange", Lit::from(keys.clone()), Lit::None, 1_i64, DType::I64)?;
            op!(u, "less", all, lengths)?
        }
        2 => {
            let mask = op!(u, "reshape", mask, vec![shape[0].clone(), Dim::ONE, Dim::ONE, shape[1].clone()])?;
            op!(u, "not_equal", mask, 0_i64)?
        }
        3 => {
            let mask = op!(u, "expand_dims", mask, 1_i64)?;
            op!(u, "not_equal", mask, 0_i64)?
        }
        _ => return Err(Use::refuse("a mask of 4 axes is not supported")),
    };
    let bias = op!(u, "where", open, 0.0, filter)?;
    u.cast(bias, dtype)
}

/// The sum of what is added to scores.
fn sum(u: &mut Use<'_>, a: Option<ValueId>, b: Option<ValueId>) -> Result<Option<ValueId>> {
    match (a, b) {
        (Some(a), Some(b)) => op!(u, "add", a, b).map(Some),
        (a, b) => Ok(a.or(b)),
    }
}

/// A part of the last axis.
fn part(u: &mut Use<'_>, x: ValueId, from: i64, to: i64) -> Result<ValueId> {
    let rank = u.rank(x);
    let bound = |n: i64| {
        let mut all = vec![Lit::None; rank];
        all[rank - 1] = n.into();
        all
    };
    op!(u, "slice", x, bound(from), bound(to))
}

fn scale(u: &Use<'_>) -> Result<Option<f64>> {
    Ok(u.optional_float("scale")?.filter(|&scale| scale != 0.0))
}

fn attention(u: &mut Use<'_>) -> Outputs {
    let (x, weight, bias) = (u.x(0)?, u.x(1)?, u.optional(2)?);
    let (mask, past, added) = (u.optional(3)?, u.optional(4)?, u.optional(5)?);
    if u.flag("do_rotary", false)? || u.flag("past_present_share_buffer", false)? || u.has(6) {
        return Err(Use::refuse("rotary embeddings and shared buffers are not supported"));
    }
    u.ignore(&["rotary_embedding_dim"]);
    let count = u.int("num_heads", 0)?;
    let all = u.shape(weight).get(1).and_then(Dim::known);
    let all = all.ok_or_else(|| Use::refuse("the size of its weight is a symbol"))?;
    let sizes = u.ints("qkv_hidden_sizes")?.unwrap_or_else(|| vec![all / 3; 3]);
    if sizes.len() != 3 || sizes.iter().any(|n| *n < 0 || *n > all) || sizes.iter().sum::<i64>() != all {
        return Err(malformed(format!("{sizes:?} are not the parts of {all}")));
    }
    let mut projected = op!(u, "matmul", x, weight)?;
    if let Some(bias) = bias {
        projected = op!(u, "add", projected, bias)?;
    }
    let mut parts = Vec::new();
    let mut from = 0;
    for size in sizes {
        let piece = part(u, projected, from, from + size)?;
        parts.push(heads(u, piece, count)?);
        from += size;
    }
    let (query, mut key, mut value) = (parts[0], parts[1], parts[2]);
    let mut rules = Rules { causal: u.flag("unidirectional", false)?, scale: scale(u)?, ..Rules::default() };
    if let Some(past) = past {
        let (k, v) = (op!(u, "take", past, 0_i64, 0_i64)?, op!(u, "take", past, 1_i64, 0_i64)?);
        rules.offset = Offset::Same(u.shape(k)[2].clone());
        (key, value) = (op!(u, "concat", 2_i64, k, key)?, op!(u, "concat", 2_i64, v, value)?);
    }
    let dtype = u.dtype(query);
    let keys = u.shape(key)[2].clone();
    let mask = mask.map(|m| filtered(u, m, &keys, dtype)).transpose()?;
    u.ignore(&["mask_filter_value"]);
    let mask = sum(u, mask, added)?;
    let (y, _) = attend(u, query, key, value, mask, &rules, None)?;
    let y = joined(u, y)?;
    let mut outputs = vec![Value::Graph(y)];
    if u.node.output.get(1).is_some_and(|name| !name.is_empty()) {
        let args = [u.cx.lit(0_i64), key, value];
        outputs.push(Value::Graph(u.op("stack", &args)?));
    }
    Ok(outputs)
}

fn multi_head(u: &mut Use<'_>) -> Outputs {
    let mut query = u.x(0)?;
    let (Some(mut key), Some(mut value)) = (u.optional(1)?, u.optional(2)?) else {
        return Err(Use::refuse("query, key and value in one tensor are not supported"));
    };
    let (bias, mask, added) = (u.optional(3)?, u.optional(4)?, u.optional(5)?);
    let count = u.int("num_heads", 0)?;
    if let Some(bias) = bias {
        let sizes: Option<Vec<i64>> =
            [query, key, value].iter().map(|&v| u.shape(v).last().and_then(Dim::known)).collect();
        let sizes = sizes.ok_or_else(|| Use::refuse("the size of its features is a symbol"))?;
        if u.rank(key) != 3 || u.rank(value) != 3 {
            return Err(Use::refuse("a bias of keys that are split into heads is not supported"));
        }
        let mut from = 0;
        for (v, size) in [&mut query, &mut key, &mut value].into_iter().zip(sizes) {
            let own = part(u, bias, from, from + size)?;
            *v = op!(u, "add", *v, own)?;
            from += size;
        }
    }
    let (query, mut key, mut value) =
        (heads(u, query, count)?, heads(u, key, count)?, heads(u, value, count)?);
    let mut rules = Rules { causal: u.flag("unidirectional", false)?, scale: scale(u)?, ..Rules::default() };
    if let Some(past) = u.optional(6)? {
        rules.offset = Offset::Same(u.shape(past)[2].clone());
        key = op!(u, "concat", 2_i64, past, key)?;
    }
    if let Some(past) = u.optional(7)? {
        value = op!(u, "concat", 2_i64, past, value)?;
    }
    let dtype = u.dtype(query);
    let keys = u.shape(key)[2].clone();
    let mask = mask.map(|m| filtered(u, m, &keys, dtype)).transpose()?;
    u.ignore(&["mask_filter_value"]);
    let mask = sum(u, mask, added)?;
    let (y, _) = attend(u, query, key, value, mask, &rules, None)?;
    let y = joined(u, y)?;
    Ok([y, key, value].map(Value::Graph).to_vec())
}

/// Causal attention with a cache, into which the new keys and values are written behind those of each example.
#[allow(clippy::too_many_lines, reason = "one formula, step by step")]
fn group_query(u: &mut Use<'_>) -> Outputs {
    let (count, shared) = (u.int("num_heads", 0)?, u.int("kv_num_heads", 0)?);
    let (mut query, key, value) = (u.x(0)?, u.optional(1)?, u.optional(2)?);
    if u.flag("smooth_softmax", false)? || u.has(11) {
        return Err(Use::refuse("smooth softmax and sinks are not supported"));
    }
    if count < 1 || shared < 1 || count % shared != 0 {
        return Err(malformed(format!("{count} heads of the query cannot share {shared}")));
    }
    let (mut key, mut value) = if let (Some(key), Some(value)) = (key, value) {
        (key, value)
    } else {
        let all = u.shape(query).last().and_then(Dim::known);
        let all = all.ok_or_else(|| Use::refuse("the size of its features is a symbol"))?;
        let size = all / (count + 2 * shared);
        let (a, b) = (count * size, (count + shared) * size);
        let pieces = (part(u, query, 0, a)?, part(u, query, a, b)?, part(u, query, b, all)?);
        query = pieces.0;
        (pieces.1, pieces.2)
    };
    query = heads(u, query, count)?;
    (key, value) = (heads(u, key, shared)?, heads(u, value, shared)?);
    let length = u.shape(query)[2].clone();
    // What is there of each example, the new elements included, and where these begin.
    let last = u.x(5)?;
    let last = u.cast(last, DType::I64)?;
    let last = op!(u, "reshape", last, vec![-1_i64, 1])?;
    let all = op!(u, "add", last, 1_i64)?;
    let first = op!(u, "subtract", all, length.clone())?;
    let first = op!(u, "maximum", first, 0_i64)?;
    let steps = op!(u, "arange", Lit::from(length.clone()), Lit::None, 1_i64, DType::I64)?;
    let places = op!(u, "add", first, steps)?;
    let interleaved = u.flag("rotary_interleaved", false)?;
    let (cos, sin, own) = (u.optional(7)?, u.optional(8)?, u.optional(9)?);
    if u.flag("do_rotary", false)? {
        let (Some(cos), Some(sin)) = (cos, sin) else { return Err(malformed("its angles are missing")) };
        let width = u.shape(cos).get(1).and_then(Dim::known).unwrap_or(0) * 2;
        let at = Some(own.unwrap_or(places));
        let how = |heads: i64| Rotary { interleaved, width, heads };
        query = rotary(u, query, cos, sin, at, how(count))?;
        key = rotary(u, key, cos, sin, at, how(shared))?;
    }
    let total = if u.has(6) { u.dims(6).ok().and_then(|d| d.first().and_then(Dim::known)) } else { None };
    for (v, i) in [(&mut key, 3), (&mut value, 4)] {
        let Some(past) = u.optional(i)? else { continue };
        let shape = u.shape(past);
        let room = shape.get(2).and_then(Dim::known);
        // A buffer with room for all is written into; another one grows.
        let has_room = total.zip(room).is_some_and(|(total, room)| total <= room);
        let buffer = if has_room {
            past
        } else {
            let pads = (0..4).map(|i| {
                let more = if i == 2 { length.clone() } else { Dim::Const(0) };
                Lit::tuple([Lit::int(0), Lit::from(more)])
            });
            op!(u, "pad", past, Lit::tuple(pads), "constant", 0.0)?
        };
        let sizes = u.shape(*v).to_vec();
        let at = op!(u, "reshape", places, vec![sizes[0].clone(), Dim::ONE, length.clone(), Dim::ONE])?;
        let at = op!(u, "broadcast_to", at, sizes)?;
        *v = op!(u, "scatter", buffer, 2_i64, at, *v)?;
    }
    let lengths = op!(u, "reshape", all, vec![-1_i64, 1, 1, 1])?;
    let offset = op!(u, "reshape", first, vec![-1_i64, 1, 1, 1])?;
    let window = u.int("local_window_size", -1)?;
    let rules = Rules {
        causal: true,
        // The place of the query itself is one of the window.
        left: if window > 0 { Some(window - 1) } else { None },
        offset: Offset::Each(offset),
        lengths: Some(lengths),
        scale: scale(u)?,
        softcap: u.optional_float("softcap")?.filter(|&limit| limit != 0.0),
        ..Rules::default()
    };
    let mask = u.optional(10)?;
    let (y, _) = attend(u, query, key, value, mask, &rules, None)?;
    let y = joined(u, y)?;
    Ok([y, key, value].map(Value::Graph).to_vec())
}
