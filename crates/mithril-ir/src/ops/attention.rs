//! Embedding, attention and rotary positions.

use super::index::{lookup_mlx, torch_indices};
use super::joining::{CONCAT, STACK};
use super::reduce::at_least_f32;
use super::slicing::zeros;
use super::window;
use crate::dim::Dim;
use crate::dtype::{DType, Kind, Kinds};
use crate::error::{Code, Error, Result};
use crate::formula::{ExpandCx, V};
use crate::literal::Lit;
use crate::lowering::LoweringRule::{Function, Template};
use crate::lowering::{Lowering, LoweringCx};
use crate::op::{
    Attr, BLANK, DTypeRule, DefaultLit, Effect, Grad, Indexed, OpDef, Port, PortKind, Precision, ShapeRule,
    Tolerance, attr, optional, tensor_of,
};
use crate::rules::{Attrs, DTypeCx, DTypes, ShapeCx};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// Ops of this file.
pub static OPS: &[&OpDef] = &[&EMBEDDING, &SCALED_DOT_PRODUCT_ATTENTION, &ROTATE_PAIRS, &ROPE];

const fn maybe(name: &'static str, kinds: Kinds) -> Port {
    Port { name, kind: PortKind::Optional(kinds), default: DefaultLit::None }
}

// --- embedding ---------------------------------------------------------------------------------------------

/// rows of a table
pub static EMBEDDING: OpDef = OpDef {
    name: "embedding",
    doc: "Rows of `weight` `[v, d]` at `indices`, of any shape: `[...]` becomes `[..., d]`.\n\n\
          `indices` are integers. The row `padding_idx`, counted from either end, is looked up like any other, but \
          gets no gradient.",
    ports: &[
        tensor_of("indices", Kinds::INT),
        tensor_of("weight", Kinds::NUMBER),
        attr("padding_idx", Attr::OptInt, DefaultLit::None),
    ],
    shape: ShapeRule::Fn(|cx| {
        cx.rank(1, &[2])?;
        let weight = cx.shape(1);
        if let Some((i, v)) = padding_index(cx, weight)?.zip(weight[0].known())
            && !(0..v).contains(&i)
        {
            return Err(cx.bad(2, &cx.lit(2), &format!("a row of the weight: {} to {}", -v, v - 1)));
        }
        Ok(vec![cx.shape(0).iter().cloned().chain([weight[1].clone()]).collect()])
    }),
    dtype: DTypeRule::Same(1),
    expand: Some(|c| vec![c.x[1].take(c.x[0], 0)]),
    indexed: Some(Indexed { table: 1, indices: 0, axis: None, effect: Effect::Read }),
    grad: Grad::Formula(|v| {
        let (indices, weight) = (v.x[0], v.x[1]);
        let padding = v.get(|c| padding_index(c, &c.x[1].shape()));
        let g = padding.map_or(v.g, |padding| {
            let differ = |index: Dim| indices.not_equal(index);
            let padding = Dim::Const(padding);
            let others = differ(&padding - &weight.dim(0)).logical_and(differ(padding));
            others.expand_dims(-1).select(v.g, 0.0)
        });
        let many = indices.shape().numel();
        let flat = indices.reshape([many.clone()]);
        let g = g.reshape([many, weight.dim(1)]);
        vec![v.none(), zeros(weight).index_add(flat, g, 0)]
    }),
    lowering: Lowering {
        py: Template("{1}[{0}]"),
        torch: Function(embedding_torch),
        jax: Function(|s| {
            let padding = padding_index(s, &s.ty(1)?.shape).ok()?;
            padding.map(|padding| format!("_embedding({}, {}, {padding})", s.arg(1), s.arg(0)))
        }),
        mlx: Function(|s| {
            let (indices, weight) = (s.arg(0), s.arg(1));
            Some(match padding_index(s, &s.ty(1)?.shape).ok()? {
                None => lookup_mlx(s, 1, format!("{weight}[{indices}]")),
                Some(padding) => lookup_mlx(s, 1, format!("_embedding({weight}, {indices}, {padding})")),
            })
        }),
        ..Lowering::NONE
    },
    cases: &["i64[2,3]<5 [5,4]", "i32[]<5 [5,4]", "i64[4]<4 [5,2] padding_idx=-1", "i64[0]<5 [5,4]"],
    tolerance: Tolerance::Exact,
    ..BLANK
};

/// Index of the row without gradient, counted from the front.
fn padding_index(cx: &(impl Attrs + ?Sized), weight: &Shape) -> Result<Option<i64>> {
    if cx.absent(2) {
        return Ok(None);
    }
    let i = cx.int(2)?;
    match weight.first().and_then(Dim::known) {
        Some(v) if i < 0 => Ok(Some(i + v)),
        None if i < 0 => Err(cx.symbolic(1, &weight[0])),
        _ => Ok(Some(i)),
    }
}

fn embedding_torch(s: &LoweringCx<'_>) -> Option<String> {
    let padding = if s.absent(2) { String::new() } else { format!(", padding_idx={}", s.arg(2)) };
    let indices = torch_indices(s, 0, DType::I32)?;
    Some(format!("F.embedding({indices}, {}{padding})", s.arg(1)))
}

// --- attention ---------------------------------------------------------------------------------------------

static ATTENTION_PORTS: &[Port] = &[
    tensor_of("query", Kinds::NUMBER),
    tensor_of("key", Kinds::NUMBER),
    tensor_of("value", Kinds::NUMBER),
    optional("mask"),
    attr("is_causal", Attr::Bool, DefaultLit::Bool(false)),
    attr("scale", Attr::OptFloat, DefaultLit::None),
    attr("enable_gqa", Attr::Bool, DefaultLit::Bool(false)),
];

/// `softmax(query · keyᵀ · scale + mask) · value`
pub static SCALED_DOT_PRODUCT_ATTENTION: OpDef = OpDef {
    name: "scaled_dot_product_attention",
    doc: "Attention: `softmax(query · keyᵀ · scale + mask) · value`.\n\nShapes: query `[*b, l, d]`, key `[*b, s, d]`, \
          value `[*b, s, e]`, output `[*b, l, e]`; with heads `*b` ends in them. The axes `*b` broadcast. `scale` is `1 / √d` if not given. \
          `mask` broadcasts to `[*b, l, s]`: true where a query may attend, or numbers that are added. With \
          `is_causal` query `i` attends to keys up to `i`, both counted from the start; it may be combined \
          with a mask. A query that may attend to nothing gives zeros. With `enable_gqa` the heads (axis -3) of key and value \
          divide those of the query, and each is shared by a group of neighboring query heads. 16-bit floats \
          are computed in float32. (Vaswani et al. 2017)",
    aliases: &["attention", "sdpa"],
    ports: ATTENTION_PORTS,
    shape: ShapeRule::Fn(attention_shape),
    dtype: DTypeRule::Fn(attention_dtype),
    expand: Some(attention),
    lowering: Lowering {
        torch: Function(attention_torch),
        mlx: Function(attention_mlx),
        ggml: Function(super::ggml::attention),
        ..Lowering::NONE
    },
    cases: &[
        "[2,3,4] [2,5,4] [2,5,6]",
        "[2,2,3,4] [2,2,3,4] [2,2,3,4] is_causal=true",
        "[1,2,3,4] [1,2,5,4] [1,2,5,4] bool[3,5] scale=0.7",
        "[1,2,3,4] [1,2,5,4] [1,2,5,4] [1,1,3,5]",
        "[1,4,3,4] [1,2,5,4] [1,2,5,4] enable_gqa=true",
        "[3,4] [5,4] [5,2]",
        "[2,2,3,4] [1,2,5,4] [2,1,5,3]",
        "[2,3,3,4] [5,4] [3,5,3] bool[2,1,3,5] is_causal=true",
        "[2,4,3,4] [1,2,5,4] [2,2,5,4] [4,1,5] enable_gqa=true",
    ],
    tolerance: Tolerance::Contraction,
    precision: Some(Precision::Low),
    ..BLANK
};

fn attention_dtype(cx: &DTypeCx<'_>) -> Result<DTypes> {
    let mut to = (0..3).filter_map(|i| cx.dtype(i)).fold(DType::Bool, DType::promote);
    if !to.is_float() {
        to = cx.float;
    }
    // Only the dtype of a mask that is added matters.
    let mask = cx.dtype(3).filter(|d| d.kind() != Kind::Bool).map(|_| to);
    Ok(DTypes {
        cast: [Some(to), Some(to), Some(to), mask].into_iter().collect(),
        out: [to].into_iter().collect(),
    })
}

fn attention_shape(cx: &ShapeCx<'_>) -> Result<Vec<Shape>> {
    let [q, k, v] = [0, 1, 2].map(|i| cx.shape(i));
    for (i, shape) in [q, k, v].into_iter().enumerate() {
        if shape.rank() < 2 {
            let message = format!("`{}` of {} is {shape}", cx.op().ports[i].name, cx.op().name);
            return Err(Error::new(Code::RankMismatch, message)
                .help("query, key and value have at least 2 axes: [..., length, features]"));
        }
    }
    let at = |shape: &Shape, from_end: usize| shape[shape.rank() - from_end].clone();
    cx.same(&at(q, 1), &at(k, 1), "feature sizes of query and key")?;
    cx.same(&at(k, 2), &at(v, 2), "lengths of key and value")?;
    let grouped = cx.bool(6)? && is_grouped(q, k) && v.rank() >= 3;
    let inner = if grouped { 3 } else { 2 };
    let batch = |shape: &Shape| Shape::of(shape.iter().take(shape.rank() - inner).cloned());
    let mut out = cx.broadcast(&[&batch(q), &batch(k), &batch(v)]).map_err(|e| {
        let heads_differ = !grouped && is_grouped(q, k) && q[q.rank() - 3] != k[k.rank() - 3];
        if heads_differ && e.code() != Code::UnknownShape {
            e.help("if the heads of the query share those of the key, set enable_gqa=True")
        } else {
            e
        }
    })?;
    if grouped {
        let (many, few) = (at(q, 3), at(k, 3));
        cx.same(&few, &at(v, 3), "heads of key and value")?;
        if let (Some(many), Some(few)) = (many.known(), few.known())
            && (few < 1 || many % few != 0)
        {
            let message = format!("{many} query heads do not divide by {few} key heads");
            return Err(
                Error::new(Code::ShapeMismatch, message).help("the query has a multiple of the key's heads")
            );
        }
        out.0.push(many);
    }
    out.0.extend([at(q, 2), at(k, 2)]);
    if cx.has(3) {
        check_mask(cx, &out)?;
    }
    out.0.pop();
    out.0.push(at(v, 1));
    Ok(vec![out])
}

/// Whether query and key have an axis for heads.
fn is_grouped(q: &Shape, k: &Shape) -> bool {
    q.rank() >= 3 && k.rank() >= 3
}

/// Whether query, key and value have the same batch axes, apart from the heads of grouped attention. The fused functions of
/// frameworks require it.
pub(super) fn is_aligned(s: &LoweringCx<'_>) -> bool {
    let [Some(q), Some(k), Some(v)] = [0, 1, 2].map(|i| s.ty(i).map(|ty| &ty.shape)) else { return false };
    let n = q.rank();
    let grouped = s.bool(6).unwrap_or(false) && n >= 3;
    let outer = if grouped { n - 3 } else { n - 2 };
    k.rank() == n && v.rank() == n && k[..n - 2] == v[..n - 2] && q[..outer] == k[..outer]
}

fn check_mask(cx: &ShapeCx<'_>, scores: &Shape) -> Result<()> {
    let mask = cx.shape(3);
    let Some(front) = scores.rank().checked_sub(mask.rank()) else {
        let message = format!("`mask` of {} is {mask}, the scores are {scores}", cx.op().name);
        return Err(Error::new(Code::RankMismatch, message).help("a mask broadcasts to [..., queries, keys]"));
    };
    // A size that the solver does not know yet may still become 1.
    for (m, s) in mask.iter().zip(&scores[front..]).filter(|(m, _)| !m.is(1) && !m.has_var()) {
        cx.same(m, s, "sizes of `mask` and of the scores [..., queries, keys]")?;
    }
    Ok(())
}

fn attention<'a>(c: &ExpandCx<'a>) -> Vec<V<'a>> {
    let [q, k, v] = [0, 1, 2].map(|i| at_least_f32(c.x[i]));
    let (shape, keys) = (c.x[0].shape(), c.x[1].shape());
    let grouped = c.get(|c| c.bool(6)) && is_grouped(&shape, &keys) && c.x[0].dim(-3) != c.x[1].dim(-3);
    let group = |x: V<'a>, split: bool| {
        if grouped { split_heads(x, &c.x[1].dim(-3), split) } else { x }
    };
    let (q, k, v) = (group(q, true), group(k, false), group(v, false));
    let mask = if c.x[3].is_some() && grouped { mask_heads(c.x[3], &c.x[1].dim(-3)) } else { c.x[3] };

    let scaled = if c.absent(5) { q * inverse_root(q, &c.x[0].dim(-1)) } else { q * c.x[5] };
    let mut scores = scaled.matmul(k.matrix_transpose());
    let lowest = c.cx.lit(f64::NEG_INFINITY);
    let mut allowed = None;
    if mask.is_some() && mask.dtype() == DType::Bool {
        allowed = Some(mask);
    } else if mask.is_some() {
        let finite = mask.greater(lowest);
        scores = scores + finite.select(mask, 0.0).cast(scores.dtype());
        allowed = Some(finite);
    }
    if c.get(|c| c.bool(4)) {
        let causal = causal(scores);
        allowed = Some(allowed.map_or(causal, |a| a.logical_and(causal)));
    }
    let y = match allowed {
        None => scores.softmax(-1).matmul(v),
        // Every query sees at least the first key.
        Some(allowed) if mask.is_none() => allowed.select(scores, lowest).softmax(-1).matmul(v),
        Some(allowed) => {
            // A query without any key attends to all of them, so that its gradient is not NaN.
            let live = allowed.any(-1, true);
            let open = allowed.logical_or(live.logical_not());
            let y = open.select(scores, lowest).softmax(-1).matmul(v);
            live.select(y, 0.0)
        }
    };
    let y = if grouped { joined_heads(y) } else { y };
    vec![y.cast(c.x[0].dtype())]
}

/// `1 / √d`
fn inverse_root<'a>(x: V<'a>, d: &Dim) -> V<'a> {
    match d.known() {
        Some(d) => x.lit(1.0 / (d.max(1) as f64).sqrt()),
        None => x.lit(d.clone()).cast(x.dtype()).rsqrt(),
    }
}

/// `[*b, h, ...]` as `[*b, few, h / few, ...]`, or as `[*b, few, 1, ...]` if it is not split.
fn split_heads<'a>(x: V<'a>, few: &Dim, split: bool) -> V<'a> {
    let mut shape = x.shape();
    let at = shape.rank() - 3;
    let each = if split { shape[at].floor_div(few) } else { Dim::ONE };
    shape.0[at] = few.clone();
    shape.0.insert(at + 1, each);
    x.reshape(shape.0.to_vec())
}

/// `[*b, few, each, l, d]` as `[*b, few · each, l, d]`.
fn joined_heads(y: V<'_>) -> V<'_> {
    let mut shape = y.shape();
    let at = shape.rank() - 4;
    let each = shape.0.remove(at + 1);
    shape.0[at] = &shape[at] * &each;
    y.reshape(shape.0.to_vec())
}

/// The mask in the shape of grouped scores.
fn mask_heads<'a>(mask: V<'a>, few: &Dim) -> V<'a> {
    match mask.rank() {
        0..=2 => mask,
        _ if mask.dim(-3).is(1) => mask.expand_dims(-3),
        _ => split_heads(mask, few, true),
    }
}

/// `[l, s]`: whether key `j` is not after query `i`.
fn causal(scores: V<'_>) -> V<'_> {
    let count = |axis: i64| scores.cx().arange(scores.dim(axis));
    count(-2).expand_dims(-1).greater_equal(count(-1))
}

/// The function of MLX, whose causal mask is aligned with the last query and key.
fn attention_mlx(s: &LoweringCx<'_>) -> Option<String> {
    let (q, k) = (s.ty(0)?, s.ty(1)?);
    let causal = s.bool(4).ok()?;
    let n = q.shape.rank();
    let is_empty = [0, 1, 2].iter().any(|&i| s.ty(i).is_some_and(|t| t.shape.iter().any(|d| d.is(0))));
    let refused = n != 4 || !is_aligned(s) || s.ty(3).is_some() || q.dtype == DType::F64 || is_empty;
    if refused || (causal && q.shape[n - 2] != k.shape[n - 2]) {
        return None;
    }
    let scale = match q.shape[n - 1].known() {
        _ if !s.absent(5) => s.arg(5).to_owned(),
        Some(d) => format!("{:?}", 1.0 / (d as f64).sqrt()),
        None => return None,
    };
    let mask = if causal { ", mask=\"causal\"" } else { "" };
    let inputs = [0, 1, 2].map(|i| s.arg(i)).join(", ");
    Some(format!("mx.fast.scaled_dot_product_attention({inputs}, scale={scale}{mask})"))
}

/// Whether the mask broadcasts along the keys, which PyTorch's kernels for GPUs refuse.
fn has_one_value_for_all_keys(s: &LoweringCx<'_>) -> bool {
    let last = |i: usize, back: usize| s.ty(i).and_then(|t| t.shape.iter().nth_back(back));
    last(3, 0).is_some_and(|d| d.is(1)) && last(1, 1).is_some_and(|d| !d.is(1))
}

fn attention_torch(s: &LoweringCx<'_>) -> Option<String> {
    let causal = s.bool(4).ok()?;
    if (causal && s.ty(3).is_some()) || !is_aligned(s) || has_one_value_for_all_keys(s) {
        return None;
    }
    let option = |name: &str, i: usize| format!(", {name}={}", s.arg(i));
    let options = [
        // On GPUs, PyTorch takes no mask that is a transposed view.
        s.ty(3).map(|_| option("attn_mask", 3) + ".contiguous()"),
        causal.then(|| option("is_causal", 4)),
        (!s.absent(5)).then(|| option("scale", 5)),
        s.bool(6).ok()?.then(|| option("enable_gqa", 6)),
    ];
    let inputs = [0, 1, 2].map(|i| s.arg(i)).join(", ");
    let options: String = options.into_iter().flatten().collect();
    Some(format!("F.scaled_dot_product_attention({inputs}{options})"))
}

// --- rotary positions --------------------------------------------------------------------------------------

const INTERLEAVED: Port = attr("interleaved", Attr::Bool, DefaultLit::Bool(false));

/// pairs of features rotated by given angles
pub static ROTATE_PAIRS: OpDef = OpDef {
    name: "rotate_pairs",
    doc: "Rotates pairs of features by angles given as cosine and sine: `(a, b)` becomes `(a·cos - b·sin, b·cos + \
          a·sin)`.\n\n`input` is `[..., d]` with even `d`; `cos` and `sin` broadcast to `[..., d/2]`, or to `[..., d]` \
          with each value twice, as some libraries keep them. Pairs are feature `i` with `i + d/2` (as in Llama), or \
          `2i` with `2i + 1` when `interleaved`.",
    aliases: &["apply_rotary_embedding"],
    ports: &[
        tensor_of("input", Kinds::NUMBER),
        tensor_of("cos", Kinds::FLOAT),
        tensor_of("sin", Kinds::FLOAT),
        INTERLEAVED,
    ],
    shape: ShapeRule::Fn(|cx| {
        check_even(cx)?;
        let input = cx.shape(0);
        let last = input.rank() - 1;
        let half = input[last].floor_div(&Dim::Const(2));
        for i in 1..3 {
            let angles = cx.shape(i);
            let mut like = input.clone();
            let whole = angles.last().is_some_and(|d| *d == input[last]);
            like.0[last] = if whole { input[last].clone() } else { half.clone() };
            if cx.broadcast(&[&like, angles])? != like {
                let message =
                    format!("`{}` of rotate_pairs is {angles}, the input {input}", cx.op().ports[i].name);
                return Err(Error::new(Code::ShapeMismatch, message)
                    .help("it has one value for each pair of features and broadcasts to the other axes"));
            }
        }
        Ok(vec![input.clone()])
    }),
    dtype: DTypeRule::Fn(|cx| {
        let dtype = cx.dtype(0).filter(|d| d.is_float()).unwrap_or(cx.float);
        Ok(DTypes { cast: [Some(dtype)].into_iter().collect(), out: [dtype].into_iter().collect() })
    }),
    expand: Some(|c| {
        let d = c.x[0].dim(-1);
        let interleaved = c.get(|c| c.bool(3));
        let x = at_least_f32(c.x[0]);
        let angles = |i: usize| {
            let v = c.x[i].cast(x.dtype());
            if v.dim(-1) == d { part(v, interleaved, 0) } else { v }
        };
        vec![rotated(x, angles(1), angles(2), interleaved).cast(c.x[0].dtype())]
    }),
    lowering: Lowering { ggml: Function(super::ggml::rotate_pairs), ..Lowering::NONE },
    cases: &["[2,3,4] [3,2] [3,2]", "[2,3,4] [3,2] [3,2] interleaved=true", "[2,3,4] [3,4] [3,4]"],
    tolerance: Tolerance::Contraction,
    precision: Some(Precision::Follow),
    ..BLANK
};

fn check_even(cx: &ShapeCx<'_>) -> Result<()> {
    let Some(d) = cx.shape(0).last() else {
        let message = format!("`input` of {} is 0-d", cx.op().name);
        return Err(Error::new(Code::RankMismatch, message).help("its last axis are the features"));
    };
    if d.known().is_some_and(|d| d % 2 != 0) {
        let message = format!("`input` of {} has {d} features: {}", cx.op().name, cx.shape(0));
        return Err(Error::new(Code::ShapeMismatch, message)
            .help("features are rotated in pairs; use an even number"));
    }
    Ok(())
}

/// The first or second of each pair of features.
fn part(x: V<'_>, interleaved: bool, which: i64) -> V<'_> {
    let rank = x.rank();
    let half = x.dim(-1).floor_div(&Dim::Const(2));
    let last = |value: Lit| {
        let front = std::iter::repeat_n(Lit::None, rank - 1);
        x.lit(Lit::tuple(front.chain([value])))
    };
    if interleaved {
        let steps: Vec<i64> = std::iter::repeat_n(1, rank - 1).chain([2]).collect();
        return x.strided_slice(last(which.into()), last(Lit::None), steps);
    }
    let [start, stop] = if which == 0 { [Dim::Const(0), half] } else { [half, x.dim(-1)] };
    x.slice(last(start.into()), last(stop.into()))
}

fn rotated<'a>(x: V<'a>, cos: V<'a>, sin: V<'a>, interleaved: bool) -> V<'a> {
    let (a, b) = (part(x, interleaved, 0), part(x, interleaved, 1));
    let both = [x.lit(-1), a * cos - b * sin, b * cos + a * sin];
    if interleaved {
        return x.cx().call(&STACK, &both).reshape(x.shape().0.to_vec());
    }
    x.cx().call(&CONCAT, &both)
}

/// rotary position embedding
pub static ROPE: OpDef = OpDef {
    name: "rope",
    doc: "Rotary position embedding: rotates pair `i` of the features of `input` `[*b, l, d]` by `position · \
          base^(-2i/d)`.\n\n`positions` are `[l]` or `[*b, l]` (axes between, such as heads, may be missing); without \
          them they are 0 to l-1. Pairs as in `rotate_pairs`. Angles and sums are computed in float32 at least. (Su et \
          al. 2021)",
    aliases: &["rotary_embedding"],
    ports: &[
        tensor_of("input", Kinds::NUMBER),
        maybe("positions", Kinds::NUMBER),
        attr("base", Attr::Float, DefaultLit::Float(10_000.0)),
        INTERLEAVED,
    ],
    shape: ShapeRule::Fn(|cx| {
        check_even(cx)?;
        let input = cx.shape(0);
        if input.rank() < 2 {
            let message = format!("`input` of rope has 1 dimension: {input}");
            return Err(Error::new(Code::RankMismatch, message).help("it is [..., length, features]"));
        }
        let base = cx.f64(2)?;
        if !(base > 0.0 && base.is_finite()) {
            return Err(cx.bad(2, &cx.lit(2), "a positive number"));
        }
        if cx.has(1) {
            check_positions(cx)?;
        }
        Ok(vec![input.clone()])
    }),
    dtype: DTypeRule::Fn(|cx| {
        let dtype = cx.dtype(0).filter(|d| d.is_float()).unwrap_or(cx.float);
        Ok(DTypes { cast: [Some(dtype)].into_iter().collect(), out: [dtype].into_iter().collect() })
    }),
    expand: Some(rope),
    lowering: Lowering {
        mlx: Function(|s| {
            let x = s.ty(0)?;
            let d = x.shape.last()?.known()?;
            let is_empty = x.shape.iter().any(|d| d.is(0));
            let fits = s.ty(1).is_none() && x.dtype != DType::F64 && x.shape.rank() > 2 && !is_empty;
            fits.then(|| {
                let (base, interleaved) = (s.arg(2), s.arg(3));
                let options = format!("traditional={interleaved}, base={base}, scale=1.0, offset=0");
                format!("mx.fast.rope({}, {d}, {options})", s.arg(0))
            })
        }),
        ..Lowering::NONE
    },
    cases: &["[2,3,4]", "[2,5,3,4] i64[3]<9 interleaved=true", "[2,5,3,4] i64[2,3]<9 base=100.0"],
    tolerance: Tolerance::Contraction,
    precision: Some(Precision::Follow),
    ..BLANK
};

fn check_positions(cx: &ShapeCx<'_>) -> Result<()> {
    let (input, positions) = (cx.shape(0), cx.shape(1));
    let n = input.rank();
    if positions.rank() == 0 || positions.rank() >= n {
        let message = format!("`positions` of rope is {positions}, the input {input}");
        return Err(Error::new(Code::RankMismatch, message).help("positions are [length] or [batch, length]"));
    }
    let (leading, length) = positions.split_at(positions.rank() - 1);
    for (p, x) in leading.iter().zip(input.iter()).filter(|(p, _)| !p.is(1) && !p.has_var()) {
        cx.same(p, x, "leading sizes of `positions` and the input")?;
    }
    if !length[0].is(1) && !length[0].has_var() {
        cx.same(&length[0], &input[n - 2], "lengths of `positions` and the input")?;
    }
    Ok(())
}

fn rope<'a>(c: &ExpandCx<'a>) -> Vec<V<'a>> {
    let x = c.x[0];
    let d = x.dim(-1);
    let Some(pairs) = d.known().map(|d| d / 2) else {
        c.cx.fail(c.symbolic(0, &d));
        return vec![x];
    };
    if pairs > window::MAX_TABLE {
        let message = format!("rope rotates {d} features");
        c.cx.fail(Error::new(Code::BadSize, message).help(format!("the maximum is {}", window::MAX_TABLE)));
        return vec![x];
    }
    let base = c.get(|c| c.f64(2));
    let dtype = if x.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
    let speeds: Vec<f64> = (0..pairs).map(|i| base.powf(-(2 * i) as f64 / (2 * pairs) as f64)).collect();
    let speeds = c.cx.lit(Tensor::from_f64s(dtype, &[speeds.len()], &speeds));
    let positions = if c.x[1].is_some() { c.x[1] } else { c.cx.arange(x.dim(-2)) };
    let mut angles = positions.cast(dtype).expand_dims(-1) * speeds;
    while angles.rank() > 2 && angles.rank() < x.rank() {
        angles = angles.expand_dims(-3);
    }
    let (cos, sin) = (angles.cos(), angles.sin());
    vec![x.op(&ROTATE_PAIRS, &[cos, sin, c.x[3]])]
}

#[cfg(test)]
mod tests;
