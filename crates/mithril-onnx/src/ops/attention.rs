//! Attention and rotary embeddings.

use mithril_ir::{DType, Dim, Lit, Result, ValueId};

use super::{Table, one};
use crate::context::{Value, malformed};
use crate::node::{Use, op};

type Outputs = Result<Vec<Value>>;

pub static OPS: Table = &[
    ("Attention", attention),
    ("RotaryEmbedding", |u| {
        let (x, cos, sin, places) = (u.x(0)?, u.x(1)?, u.x(2)?, u.optional(3)?);
        let (interleaved, width) = (u.flag("interleaved", false)?, u.int("rotary_embedding_dim", 0)?);
        let count = u.int("num_heads", 0)?;
        one(rotary(u, x, cos, sin, places, Rotary { interleaved, width, heads: count })?)
    }),
];

/// `[batch, length, heads * size]` as `[batch, heads, length, size]`; with 4 axes it is that already.
pub(super) fn heads(u: &mut Use<'_>, x: ValueId, count: i64) -> Result<ValueId> {
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

/// `[batch, heads, length, size]` as `[batch, length, heads * size]`.
pub(super) fn joined(u: &mut Use<'_>, x: ValueId) -> Result<ValueId> {
    let shape = u.shape(x);
    let turned = op!(u, "transpose", x, vec![0_i64, 2, 1, 3])?;
    op!(u, "reshape", turned, vec![shape[0].clone(), shape[2].clone(), &shape[1] * &shape[3]])
}

/// Which keys a query attends to beside what a mask says, and how scores become weights. Query `i` stands at the place
/// `i + offset` among the keys.
#[derive(Default)]
pub(super) struct Rules {
    pub causal: bool,
    /// How many keys to the left and to the right of its place a query attends to.
    pub left: Option<i64>,
    pub right: Option<i64>,
    /// Place of the first query.
    pub offset: Offset,
    /// Keys of each example that are there, `[batch, 1, 1, 1]`.
    pub lengths: Option<ValueId>,
    pub scale: Option<f64>,
    /// Scores are held inside `±softcap`, smoothly.
    pub softcap: Option<f64>,
    /// The dtype of the softmax, where it is wider than that of the inputs.
    pub precision: Option<DType>,
}

/// Where the queries stand among the keys.
#[derive(Default)]
pub(super) enum Offset {
    #[default]
    None,
    Same(Dim),
    /// For each example, `[batch, 1, 1, 1]`.
    Each(ValueId),
}

/// Which scores a node gives.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Scores {
    Raw,
    Capped,
    Masked,
    Weights,
}

fn attention(u: &mut Use<'_>) -> Outputs {
    let (q, k, v) = (u.x(0)?, u.x(1)?, u.x(2)?);
    let is_flat = u.rank(q) == 3;
    let (q_heads, kv_heads) = (u.int("q_num_heads", 0)?, u.int("kv_num_heads", 0)?);
    let (query, mut key, mut value) = (heads(u, q, q_heads)?, heads(u, k, kv_heads)?, heads(u, v, kv_heads)?);
    let mut rules = Rules { causal: u.flag("is_causal", false)?, ..Rules::default() };
    let bound = |n: i64| if n < 0 { None } else { Some(n) };
    rules.left = bound(u.int("left_window_size", -1)?);
    rules.right = bound(u.int("right_window_size", -1)?);
    rules.scale = u.optional_float("scale")?;
    rules.softcap = u.optional_float("softcap")?.filter(|&limit| limit != 0.0);
    rules.precision = u.dtype_of("softmax_precision")?;
    if let Some(past) = u.optional(4)? {
        rules.offset = Offset::Same(u.shape(past)[2].clone());
        key = op!(u, "concat", 2_i64, past, key)?;
    }
    if let Some(past) = u.optional(5)? {
        value = op!(u, "concat", 2_i64, past, value)?;
    }
    if let Some(lengths) = u.optional(6)? {
        let lengths = u.cast(lengths, DType::I64)?;
        let lengths = op!(u, "reshape", lengths, vec![-1_i64, 1, 1, 1])?;
        let count = u.shape(query)[2].clone();
        rules.lengths = Some(lengths);
        rules.offset = Offset::Each(op!(u, "subtract", lengths, count)?);
    }
    let mut mask = u.optional(3)?;
    if let Some(bias) = mask {
        // A mask that is shorter than the keys hides the rest of them.
        let (own, keys) = (u.shape(bias), u.shape(key)[2].clone());
        if own.last().is_some_and(|n| *n != keys && !n.is(1)) {
            let rest = &keys - &own[own.rank() - 1];
            let rank = own.rank();
            let zero = Lit::from(vec![0_i64, 0]);
            let pads = Lit::tuple((0..rank).map(|i| {
                if i + 1 == rank { Lit::tuple([Lit::int(0), Lit::from(rest.clone())]) } else { zero.clone() }
            }));
            let fill =
                if u.dtype(bias) == DType::Bool { Lit::from(false) } else { Lit::from(f64::NEG_INFINITY) };
            mask = Some(op!(u, "pad", bias, pads, "constant", fill)?);
        }
    }
    let mode = u.int("qk_matmul_output_mode", 0)?;
    let kind = u.node.output.get(3).is_some_and(|name| !name.is_empty()).then_some(match mode {
        0 => Scores::Raw,
        1 => Scores::Capped,
        2 => Scores::Masked,
        _ => Scores::Weights,
    });
    let (mut y, scores) = attend(u, query, key, value, mask, &rules, kind)?;
    if is_flat {
        y = joined(u, y)?;
    }
    Ok([y, key, value, scores.unwrap_or(y)].map(Value::Graph).to_vec())
}

/// The values that queries attend to, and the scores if a node gives them. All have four axes; key and value may have fewer
/// heads.
#[allow(clippy::too_many_lines, reason = "one formula, step by step")]
pub(super) fn attend(
    u: &mut Use<'_>,
    query: ValueId,
    key: ValueId,
    value: ValueId,
    mut mask: Option<ValueId>,
    rules: &Rules,
    kind: Option<Scores>,
) -> Result<(ValueId, Option<ValueId>)> {
    let dtype = u.dtype(query);
    let shares = u.shape(query)[1] != u.shape(key)[1];
    let plain = rules.left.is_none() && rules.right.is_none() && rules.lengths.is_none();
    let plain = plain && (!rules.causal || matches!(rules.offset, Offset::None));
    if !plain && let Some(allowed) = allowed(u, query, key, rules)? {
        mask = Some(match mask {
            None => allowed,
            Some(own) if u.dtype(own) == DType::Bool => op!(u, "logical_and", own, allowed)?,
            Some(own) => op!(u, "where", allowed, own, f64::NEG_INFINITY)?,
        });
    }
    let causal = plain && rules.causal;
    let is_wider = rules.precision == Some(DType::F64) && dtype != DType::F64;
    if rules.softcap.is_none() && kind.is_none() && !is_wider {
        let scale: Lit = rules.scale.map_or(Lit::None, Lit::from);
        let y = op!(u, "scaled_dot_product_attention", query, key, value, mask, causal, scale, shares)?;
        return Ok((u.cast(y, dtype)?, None));
    }
    let wide = if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype };
    let (mut k, mut v) = (key, value);
    if shares {
        let sizes = (u.shape(query)[1].known(), u.shape(key)[1].known());
        let (Some(all), Some(own)) = sizes else {
            return Err(Use::refuse("its number of heads is a symbol"));
        };
        if own == 0 || all % own != 0 {
            return Err(malformed(format!("{all} heads of the query cannot share {own}")));
        }
        k = op!(u, "repeat", k, all / own, 1_i64)?;
        v = op!(u, "repeat", v, all / own, 1_i64)?;
    }
    let (q, k, v) = (u.cast(query, wide)?, u.cast(k, wide)?, u.cast(v, wide)?);
    let scale = match (rules.scale, u.shape(query)[3].known()) {
        (Some(scale), _) => scale,
        (None, Some(n)) => 1.0 / (n as f64).sqrt(),
        (None, None) => return Err(Use::refuse("the size of its heads is a symbol")),
    };
    let turned = op!(u, "matrix_transpose", k)?;
    let product = op!(u, "matmul", q, turned)?;
    let raw = op!(u, "multiply", product, scale)?;
    let mut capped = raw;
    if let Some(limit) = rules.softcap {
        let part = op!(u, "divide", raw, limit)?;
        let part = op!(u, "tanh", part)?;
        capped = op!(u, "multiply", part, limit)?;
    }
    if causal {
        let below = Rules { causal: true, ..Rules::default() };
        let below = allowed(u, query, key, &below)?.ok_or_else(|| malformed("there is no mask"))?;
        mask = Some(match mask {
            None => below,
            Some(own) if u.dtype(own) == DType::Bool => op!(u, "logical_and", own, below)?,
            Some(own) => op!(u, "where", below, own, f64::NEG_INFINITY)?,
        });
    }
    let masked = match mask {
        None => capped,
        Some(own) if u.dtype(own) == DType::Bool => op!(u, "where", own, capped, f64::NEG_INFINITY)?,
        Some(own) => {
            let own = u.cast(own, wide)?;
            op!(u, "add", capped, own)?
        }
    };
    let logits = u.cast(masked, if is_wider { DType::F64 } else { wide })?;
    let mut weights = op!(u, "softmax", logits, -1_i64)?;
    if let Some(own) = mask {
        // A query that attends to nothing gives zeros.
        let open = if u.dtype(own) == DType::Bool { own } else { op!(u, "greater", own, f64::NEG_INFINITY)? };
        let any = op!(u, "any", open, -1_i64, true)?;
        weights = op!(u, "where", any, weights, 0.0)?;
    }
    let weights = u.cast(weights, wide)?;
    let y = op!(u, "matmul", weights, v)?;
    let scores = match kind {
        None => None,
        Some(Scores::Raw) => Some(raw),
        Some(Scores::Capped) => Some(capped),
        Some(Scores::Masked) => Some(masked),
        Some(Scores::Weights) => Some(weights),
    };
    let scores = scores.map(|s| u.cast(s, dtype)).transpose()?;
    Ok((u.cast(y, dtype)?, scores))
}

/// Which keys the queries attend to by the rules: true in what broadcasts to `[batch, heads, queries, keys]`.
fn allowed(u: &mut Use<'_>, query: ValueId, key: ValueId, rules: &Rules) -> Result<Option<ValueId>> {
    let (queries, keys) = (u.shape(query)[2].clone(), u.shape(key)[2].clone());
    let range = |u: &mut Use<'_>, n: Dim, sizes: Vec<i64>| {
        let all = op!(u, "arange", Lit::from(n), Lit::None, 1_i64, DType::I64)?;
        op!(u, "reshape", all, sizes)
    };
    let columns = range(u, keys, vec![1, -1])?;
    let mut rows = range(u, queries, vec![-1, 1])?;
    rows = match &rules.offset {
        Offset::None => rows,
        Offset::Same(n) => op!(u, "add", rows, n.clone())?,
        Offset::Each(v) => op!(u, "add", rows, *v)?,
    };
    let mut combined: Option<ValueId> = None;
    let mut and = |u: &mut Use<'_>, part: ValueId| -> Result<()> {
        combined = Some(match combined {
            None => part,
            Some(other) => op!(u, "logical_and", other, part)?,
        });
        Ok(())
    };
    if rules.causal {
        let part = op!(u, "less_equal", columns, rows)?;
        and(u, part)?;
    }
    if let Some(left) = rules.left {
        let first = op!(u, "subtract", rows, left)?;
        let part = op!(u, "greater_equal", columns, first)?;
        and(u, part)?;
    }
    if let Some(right) = rules.right {
        let last = op!(u, "add", rows, right)?;
        let part = op!(u, "less_equal", columns, last)?;
        and(u, part)?;
    }
    if let Some(lengths) = rules.lengths {
        let part = op!(u, "less", columns, lengths)?;
        and(u, part)?;
    }
    Ok(combined)
}

/// How features are rotated.
#[derive(Clone, Copy)]
pub(super) struct Rotary {
    pub interleaved: bool,
    /// Features of each head that are rotated; 0: all.
    pub width: i64,
    pub heads: i64,
}

/// Rotates the first features of each head by angles, looked up at positions or given for each place.
pub(super) fn rotary(
    u: &mut Use<'_>,
    x: ValueId,
    mut cos: ValueId,
    mut sin: ValueId,
    places: Option<ValueId>,
    how: Rotary,
) -> Result<ValueId> {
    let is_flat = u.rank(x) == 3;
    let four = heads(u, x, how.heads)?;
    if let Some(places) = places {
        cos = op!(u, "take", cos, places, 0_i64)?;
        sin = op!(u, "take", sin, places, 0_i64)?;
    }
    // [batch, length, half] beside [batch, heads, length, size]
    (cos, sin) = (op!(u, "expand_dims", cos, 1_i64)?, op!(u, "expand_dims", sin, 1_i64)?);
    let size = u.shape(four)[3].clone();
    let mut y = if how.width > 0 && size != Dim::Const(how.width) {
        let whole = vec![Lit::None; 4];
        let at = |i: i64| {
            let mut v = vec![Lit::None; 3];
            v.push(i.into());
            v
        };
        let first = op!(u, "slice", four, whole.clone(), at(how.width))?;
        let rest = op!(u, "slice", four, at(how.width), whole)?;
        let turned = op!(u, "rotate_pairs", first, cos, sin, how.interleaved)?;
        op!(u, "concat", -1_i64, turned, rest)?
    } else {
        op!(u, "rotate_pairs", four, cos, sin, how.interleaved)?
    };
    if is_flat {
        y = joined(u, y)?;
    }
    let dtype = u.dtype(x);
    u.cast(y, dtype)
}
