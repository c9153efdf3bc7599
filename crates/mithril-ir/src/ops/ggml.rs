//! Lowerings to ggml that are more than a template. `mithril-codegen` `ggml/` describes the grammar of the texts and the
//! movements in them.

use super::window;
use crate::dtype::DType;
use crate::graph::TensorType;
use crate::literal::Lit;
use crate::lowering::LoweringCx;
use crate::rules::Attrs;

/// The sizes of a tensor, if they are numbers.
pub(super) fn known(ty: Option<&TensorType>) -> Option<Vec<i64>> {
    ty?.shape.iter().map(crate::dim::Dim::known).collect()
}

/// Input `i` as a number: a literal, or a constant of one element.
pub(super) fn number(s: &LoweringCx<'_>, i: usize) -> Option<f64> {
    match s.lit(i) {
        Lit::Tensor(t) if t.rank() == 0 => Some(t.get(0).f64()),
        lit if lit.is_numeric() && !matches!(lit, Lit::Tensor(_)) => s.f64(i).ok(),
        _ => None,
    }
}

pub(super) fn list(items: &[i64]) -> String {
    format!("[{}]", items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
}

// --- arithmetic --------------------------------------------------------------------------------------------

pub(super) fn add(s: &LoweringCx<'_>) -> Option<String> {
    match (number(s, 0), number(s, 1)) {
        (None, Some(b)) => Some(format!("ggml_scale_bias({{0}}, 1, {b:?})")),
        (Some(a), None) => Some(format!("ggml_scale_bias({{1}}, 1, {a:?})")),
        (None, None) => Some("ggml_add({0}, {1})".into()),
        _ => None,
    }
}

pub(super) fn subtract(s: &LoweringCx<'_>) -> Option<String> {
    match (number(s, 0), number(s, 1)) {
        (None, Some(b)) => Some(format!("ggml_scale_bias({{0}}, 1, {:?})", -b)),
        (Some(a), None) => Some(format!("ggml_scale_bias({{1}}, -1, {a:?})")),
        (None, None) => Some("ggml_sub({0}, {1})".into()),
        _ => None,
    }
}

pub(super) fn multiply(s: &LoweringCx<'_>) -> Option<String> {
    match (number(s, 0), number(s, 1)) {
        (None, Some(b)) => Some(format!("ggml_scale({{0}}, {b:?})")),
        (Some(a), None) => Some(format!("ggml_scale({{1}}, {a:?})")),
        (None, None) => Some("ggml_mul({0}, {1})".into()),
        _ => None,
    }
}

pub(super) fn divide(s: &LoweringCx<'_>) -> Option<String> {
    // Multiplication by a power of two is exact.
    let exact = |b: f64| b.is_normal() && (1.0 / b).is_normal() && b.to_bits() << 12 == 0;
    match (number(s, 0), number(s, 1)) {
        (None, Some(b)) if exact(b) => Some(format!("ggml_scale({{0}}, {:?})", 1.0 / b)),
        (Some(_), Some(_)) => None,
        _ => Some("ggml_div({0}, {1})".into()),
    }
}

/// Powers that can be written as products and roots.
pub(super) fn power(s: &LoweringCx<'_>) -> Option<String> {
    let text = match number(s, 1)? {
        1.0 => "{0}",
        2.0 => "ggml_sqr({0})",
        3.0 => "ggml_mul(ggml_sqr({0}), {0})",
        4.0 => "ggml_sqr(ggml_sqr({0}))",
        -1.0 => "ggml_div(1, {0})",
        _ => return None,
    };
    s.ty(0).map(|_| text.into())
}

/// Clamps to two numbers, if the lower one is not above the upper one.
pub(super) fn clip(s: &LoweringCx<'_>) -> Option<String> {
    let bound =
        |i: usize, none: f64| if s.absent(i) && s.ty(i).is_none() { Some(none) } else { number(s, i) };
    let (low, high) = (bound(1, f64::NEG_INFINITY)?, bound(2, f64::INFINITY)?);
    (low <= high).then(|| format!("mithril_clamp({{0}}, {low:?}, {high:?})"))
}

/// 16-bit floats are represented as rounded float32, booleans as 0 or 1.
pub(super) fn cast(s: &LoweringCx<'_>) -> Option<String> {
    let (from, to) = (s.ty(0)?.dtype, s.out(0)?.dtype);
    Some(match to {
        _ if from == to || from == DType::Bool => "{0}".into(),
        DType::F32 => "{0}".into(),
        DType::F16 => "ggml_cast(ggml_cast({0}, f16), f32)".into(),
        DType::BF16 => "ggml_cast(ggml_cast({0}, bf16), f32)".into(),
        _ => return None,
    })
}

/// `alpha · (e^(x / alpha · inner) - 1)` below 0, times `outer` everywhere.
pub(super) fn elu(alpha: f64, inner: f64, outer: f64) -> String {
    let scaled = |text: String, by: f64| {
        #[allow(clippy::float_cmp, reason = "one times something is left out")]
        if by == 1.0 { text } else { format!("ggml_scale({text}, {by:?})") }
    };
    let below = scaled("mithril_clamp({0}, -inf, 0)".into(), inner);
    let below = scaled(format!("ggml_elu({below})"), alpha * outer);
    format!("ggml_add({}, {below})", scaled("mithril_clamp({0}, 0, inf)".into(), outer))
}

// --- functions along an axis --------------------------------------------------------------------------------

/// Applies `f` along an axis: moves the axis to the end and back.
pub(super) fn along(s: &LoweringCx<'_>, axis: usize, f: impl Fn(&str) -> String) -> Option<String> {
    let rank = s.ty(0)?.shape.rank();
    if axis + 1 == rank {
        return Some(f("{0}"));
    }
    let mut order: Vec<i64> = (0..rank as i64).collect();
    order.swap(axis, rank - 1);
    let order = list(&order);
    Some(format!("permute({}, {order})", f(&format!("permute({{0}}, {order})"))))
}

pub(super) fn softmax(s: &LoweringCx<'_>) -> Option<String> {
    let axis = s.axis(1, s.ty(0)?.shape.rank()).ok()?;
    along(s, axis, |x| format!("ggml_soft_max_ext({x}, NULL, 1, 0)"))
}

/// Subtracts the largest element along the axis first.
pub(super) fn log_softmax(s: &LoweringCx<'_>) -> Option<String> {
    let shape = known(s.ty(0))?;
    let axis = s.axis(1, shape.len()).ok()?;
    let n = shape[axis];
    if n == 0 {
        return None;
    }
    let mut moved = shape.clone();
    moved.swap(axis, shape.len() - 1);
    let rows = shape.iter().product::<i64>() / n;
    along(s, axis, |x| {
        let lines = format!("reshape({x}, {})", list(&[rows, n]));
        let rest = format!("ggml_sub({lines}, mithril_max_rows({lines}))");
        let sums = format!("ggml_log(ggml_sum_rows(ggml_exp({rest})))");
        format!("reshape(ggml_sub({rest}, {sums}), {})", list(&moved))
    })
}

/// A reduction over axes by a function that reduces rows. Axes at the end are reduced first; moving the other axes beside them
/// would copy the whole tensor.
pub(super) fn reduction(s: &LoweringCx<'_>, axes: &[usize], function: &str) -> Option<String> {
    let (shape, out) = (known(s.ty(0))?, known(s.out(0))?);
    let (mut text, mut shape, mut axes) = ("{0}".to_owned(), shape, axes.to_vec());
    let last = shape.iter().enumerate().rev().take_while(|(i, _)| axes.contains(i)).count();
    if last > 0 && last < axes.len() {
        let size = shape.iter().rev().take(last).product();
        shape.truncate(shape.len() - last);
        let rows: Vec<i64> = shape.iter().copied().chain([size]).collect();
        text = format!("reshape({function}(reshape({{0}}, {})), {})", list(&rows), list(&shape));
        axes.retain(|&i| i < shape.len());
    }
    let kept: Vec<i64> = (0..shape.len()).filter(|i| !axes.contains(i)).map(|i| i as i64).collect();
    let mut sizes: Vec<i64> = kept.iter().map(|&i| shape[i as usize]).collect();
    let order: Vec<i64> = kept.iter().copied().chain(axes.iter().map(|&i| i as i64)).collect();
    sizes.push(axes.iter().map(|&i| shape[i]).product());
    let (order, sizes, out) = (list(&order), list(&sizes), list(&out));
    Some(format!("reshape({function}(reshape(permute({text}, {order}), {sizes})), {out})"))
}

pub(super) fn cumsum(s: &LoweringCx<'_>) -> Option<String> {
    let axis = s.axis(1, s.ty(0)?.shape.rank()).ok()?;
    let plain = !s.bool(2).ok()? && !s.bool(3).ok()?;
    if plain { along(s, axis, |x| format!("ggml_cumsum({x})")) } else { None }
}

// --- norms -------------------------------------------------------------------------------------------------

/// `function(x, eps)` over the last `features` dimensions, times input 1, plus input 2 if the op has one.
pub(super) fn norm(
    s: &LoweringCx<'_>,
    function: &str,
    features: usize,
    eps: f64,
    bias: Option<usize>,
) -> Option<String> {
    let shape = known(s.ty(0))?;
    let mut text = if features == 1 {
        format!("{function}({{0}}, {eps:?})")
    } else {
        let (front, last) = shape.split_at(shape.len() - features);
        let mut lines = front.to_vec();
        lines.push(last.iter().product());
        format!("reshape({function}(reshape({{0}}, {}), {eps:?}), {})", list(&lines), list(&shape))
    };
    if s.ty(1).is_some() {
        text = format!("ggml_mul({text}, {{1}})");
    }
    if let Some(i) = bias.filter(|&i| s.ty(i).is_some()) {
        text = format!("ggml_add({text}, {{{i}}})");
    }
    Some(text)
}

/// Groups of channels of `[n, c, ...]`, with a weight and a bias per channel.
pub(super) fn grouped_norm(s: &LoweringCx<'_>, groups: i64, eps: f64) -> Option<String> {
    let shape = known(s.ty(0))?;
    let elements = shape.iter().skip(1).product::<i64>() / groups.max(1);
    let lines = list(&[shape[0], groups, elements]);
    let whole = list(&shape);
    let mut channels = vec![1; shape.len()];
    channels[1] = shape[1];
    let channels = list(&channels[1..]);
    let mut text = format!("reshape(ggml_norm(reshape({{0}}, {lines}), {eps:?}), {whole})");
    if s.ty(1).is_some() {
        text = format!("ggml_mul({text}, reshape({{1}}, {channels}))");
    }
    if s.ty(2).is_some() {
        text = format!("ggml_add({text}, reshape({{2}}, {channels}))");
    }
    Some(text)
}

/// Batch normalization with fixed statistics: one factor and one summand per channel.
pub(super) fn batch_norm(s: &LoweringCx<'_>) -> Option<String> {
    if s.bool(5).ok()? {
        return None;
    }
    let shape = known(s.ty(0))?;
    let mut channels = vec![1; shape.len() - 1];
    channels[0] = shape[1];
    let channels = list(&channels);
    let inverse = format!("ggml_div(1, ggml_sqrt(ggml_scale_bias({{4}}, 1, {:?})))", s.f64(7).ok()?);
    let factor = if s.ty(1).is_some() { format!("ggml_mul({inverse}, {{1}})") } else { inverse };
    let moved = format!("ggml_mul({{3}}, {factor})");
    let summand =
        if s.ty(2).is_some() { format!("ggml_sub({{2}}, {moved})") } else { format!("ggml_neg({moved})") };
    let output =
        format!("ggml_add(ggml_mul({{0}}, reshape({factor}, {channels})), reshape({summand}, {channels}))");
    Some(format!("outputs({output}, {{3}}, {{4}})"))
}

// --- products ----------------------------------------------------------------------------------------------

pub(super) fn matmul(s: &LoweringCx<'_>) -> Option<String> {
    let (left, right, out) = (known(s.ty(0))?, known(s.ty(1))?, known(s.out(0))?);
    let rank = right.len();
    let rows =
        if left.len() == 1 { format!("reshape({{0}}, {})", list(&[1, left[0]])) } else { "{0}".into() };
    let columns = if rank == 1 {
        format!("reshape({{1}}, {})", list(&[1, right[0]]))
    } else {
        let mut order: Vec<i64> = (0..rank as i64).collect();
        order.swap(rank - 1, rank - 2);
        format!("permute({{1}}, {})", list(&order))
    };
    let product = format!("ggml_mul_mat({columns}, {rows})");
    Some(if left.len() == 1 || rank == 1 { format!("reshape({product}, {})", list(&out)) } else { product })
}

/// One product with the weight as it is stored.
pub(super) fn linear(s: &LoweringCx<'_>) -> Option<String> {
    let (input, out) = (known(s.ty(0))?, known(s.out(0))?);
    let product = match input.as_slice() {
        [k] => format!("reshape(ggml_mul_mat({{1}}, reshape({{0}}, [1, {k}])), {})", list(&out)),
        _ => "ggml_mul_mat({1}, {0})".into(),
    };
    Some(if s.ty(2).is_some() { format!("ggml_add({product}, {{2}})") } else { product })
}

/// Rotation of pairs by angles. Angles that are stored twice are read once if the first elements of the pairs are adjacent.
pub(super) fn rotate_pairs(s: &LoweringCx<'_>) -> Option<String> {
    let shape = known(s.ty(0).filter(|ty| ty.dtype == DType::F32))?;
    let (&width, interleaved) = (shape.last()?, s.bool(3).ok()?);
    let angles = |i: usize| {
        let angles = known(s.ty(i))?;
        let is_twice = angles.last() == Some(&width);
        match (is_twice, interleaved) {
            (false, _) => Some(format!("{{{i}}}")),
            (true, false) => Some(format!("slice({{{i}}}, {}, 0, {})", angles.len() - 1, width / 2)),
            (true, true) => None,
        }
    };
    Some(format!("mithril_rotate_pairs({{0}}, {}, {}, {interleaved})", angles(1)?, angles(2)?))
}

/// From this many queries on, `ggml_flash_attn_ext` computes tiles that ignore NaN scores: NaN is added afterwards.
const TILE: i64 = 64;

/// From this many keys on, a single query is split among threads, and NaN scores of a part are lost.
const SPLIT: i64 = 512;

/// Attention in one call, without materialized scores. The mask is float16: 0 for keys that are visible, −inf for others. A
/// query that attends to no key gets zeros.
fn flash_attention(s: &LoweringCx<'_>, scale: f64) -> Option<String> {
    let [q, k, v] = [known(s.ty(0))?, known(s.ty(1))?, known(s.ty(2))?];
    let whole = |shape: &[i64]| {
        let ones = std::iter::repeat_n(1, 4_usize.saturating_sub(shape.len()));
        ones.chain(shape.iter().copied()).collect::<Vec<i64>>()
    };
    let (n, causal) = (q.len(), s.bool(4).ok()?);
    let (query, key, value) = (whole(&q), whole(&k), whole(&v));
    let repeats = key[1] == query[1] || key[1] == 1 || s.bool(6).ok()?;
    let is_same = query[0] == key[0] && key[..3] == value[..3] && query[1] % key[1].max(1) == 0;
    let (length, keys) = (query[2], key[2]);
    if n > 4 || k.len() != n || v.len() != n || !repeats || !is_same || (length == 1 && keys >= SPLIT) {
        return None;
    }
    let mask = match s.ty(3) {
        None if causal => format!("ggml_cast(causal({length}, {keys}), f16)"),
        None => "NULL".to_owned(),
        Some(ty) if ty.dtype == DType::Bool => {
            let mut shape = whole(&known(Some(ty))?);
            shape[2..].copy_from_slice(&[length, keys]);
            format!("ggml_cast(broadcast(ggml_scale_bias({{3}}, 1e30, -1e30), {}), f16)", list(&shape))
        }
        Some(_) => return None,
    };
    let operand = |i: usize, shape: &[i64]| {
        if n == 4 { format!("{{{i}}}") } else { format!("reshape({{{i}}}, {})", list(shape)) }
    };
    let rows = list(&[key[0], 1, 1, key[1] * keys]);
    let (query, key, value) = (operand(0, &query), operand(1, &key), operand(2, &value));
    let mut text = format!("ggml_flash_attn_ext({query}, {key}, {value}, {mask}, {scale:?}, 0, 0)");
    if length >= TILE {
        let queries = format!("permute(ggml_sum_rows({query}), [0, 2, 1, 3])");
        let keys = format!("ggml_sum_rows(reshape(ggml_sum_rows({key}), {rows}))");
        text = format!("ggml_add({text}, ggml_scale(ggml_add({queries}, {keys}), 0))");
    }
    let text = format!("permute({text}, [0, 2, 1, 3])");
    Some(if n == 4 { text } else { format!("reshape({text}, {})", list(&known(s.out(0))?)) })
}

/// Attention: in one call if it supports the mask, else with the mask in the softmax. There, a query that attends to no key
/// would divide by 0; for such masks a large negative number replaces −inf, and the result is multiplied by 0.
pub(super) fn attention(s: &LoweringCx<'_>) -> Option<String> {
    if !super::attention::is_aligned(s) {
        return None;
    }
    let (q, k, out) = (known(s.ty(0))?, known(s.ty(1))?, known(s.out(0))?);
    let n = q.len();
    let (length, keys) = (q[n - 2], k[n - 2]);
    let scale = if s.absent(5) { 1.0 / (q[n - 1].max(1) as f64).sqrt() } else { s.f64(5).ok()? };
    let causal = s.bool(4).ok()?;
    let is_masked = s.ty(3).is_some();
    if n > 4 || (causal && is_masked) || scale.is_nan() || scale <= 0.0 {
        return None;
    }
    if let Some(text) = flash_attention(s, scale) {
        return Some(text);
    }
    let is_grouped = n >= 3 && s.bool(6).ok()? && q[n - 3] != k[n - 3];
    // Query heads that share a key head are adjacent: they form a batch axis of their own.
    let split = |i: usize, shape: &[i64], each: i64| {
        let mut shape = shape.to_vec();
        shape.splice(n - 3..n - 2, [k[n - 3], each]);
        format!("reshape({{{i}}}, {})", list(&shape))
    };
    let value = known(s.ty(2))?;
    let (query, key, values) = if is_grouped {
        (split(0, &q, q[n - 3] / k[n - 3]), split(1, &k, 1), split(2, &value, 1))
    } else {
        ("{0}".to_owned(), "{1}".to_owned(), "{2}".to_owned())
    };
    let rank = n + usize::from(is_grouped);
    let mut order: Vec<i64> = (0..rank as i64).collect();
    order.swap(rank - 1, rank - 2);
    let values = format!("permute({values}, {})", list(&order));

    let mut scores = q.clone();
    scores[n - 1] = keys;
    let shaped = |text: String| {
        if is_grouped { format!("reshape({text}, {})", list(&scores)) } else { text }
    };
    let product = shaped(format!("ggml_mul_mat({key}, {query})"));
    let (mask, live) = if is_masked { mask(s, &scores)? } else { ("NULL".into(), None) };
    let mask = if causal { format!("causal({length}, {keys})") } else { mask };
    let shares = format!("ggml_soft_max_ext({product}, {mask}, {scale:?}, 0)");
    let shares = if is_grouped {
        let mut shape = scores.clone();
        shape.splice(n - 3..n - 2, [k[n - 3], q[n - 3] / k[n - 3]]);
        format!("reshape({shares}, {})", list(&shape))
    } else {
        shares
    };
    let result = format!("ggml_mul_mat({values}, {shares})");
    let result = if is_grouped { format!("reshape({result}, {})", list(&out)) } else { result };
    Some(live.map_or(result.clone(), |live| format!("ggml_mul({result}, {live})")))
}

/// The tensor that is added to scores, and for each query whether it attends to any key.
fn mask(s: &LoweringCx<'_>, scores: &[i64]) -> Option<(String, Option<String>)> {
    const LOWEST: f64 = -1e30;
    let shape = known(s.ty(3))?;
    let is_bool = s.ty(3)?.dtype == DType::Bool;
    let added = if is_bool {
        format!("ggml_scale_bias({{3}}, {:?}, {LOWEST:?})", -LOWEST)
    } else {
        format!("mithril_clamp({{3}}, {LOWEST:?}, inf)")
    };
    // ggml repeats a mask over heads, not over queries.
    let rank = scores.len();
    let mut whole: Vec<i64> =
        std::iter::repeat_n(1, rank - shape.len()).chain(shape.iter().copied()).collect();
    whole[rank - 2..].copy_from_slice(&scores[rank - 2..]);
    let open = if is_bool { "{3}".to_owned() } else { "ggml_step(ggml_scale_bias({3}, 1, inf))".to_owned() };
    let live = if shape.last() == Some(&scores[rank - 1]) {
        format!("ggml_step(ggml_sum_rows({open}))")
    } else {
        open
    };
    Some((format!("broadcast({added}, {})", list(&whole)), Some(live)))
}

// --- windows -----------------------------------------------------------------------------------------------

/// A convolution over one or two axes, with strides and dilations of kernel and input. Groups are computed one at a time, unless
/// each is a single channel.
pub(super) fn convolution(
    s: &LoweringCx<'_>,
    [stride, dilation, input_dilation]: [&[i64]; 3],
    pads: &window::Pads,
    groups: i64,
) -> Option<String> {
    let (input, weight, out) = (known(s.ty(0))?, known(s.ty(1))?, known(s.out(0))?);
    let n = input.len() - 2;
    if n > 2 || groups > 64 && !(weight[1] == 1 && weight[0] == groups) {
        return None;
    }
    // A sequence is an image with one row.
    let wide = |shape: &[i64]| {
        let mut shape = shape.to_vec();
        shape.splice(2..2, std::iter::repeat_n(1, 2 - n));
        shape
    };
    let front = |values: &[i64], one: i64| {
        std::iter::repeat_n(one, 2 - n).chain(values.iter().copied()).collect::<Vec<_>>()
    };
    let (mut image, kernel) = (wide(&input), wide(&weight));
    let mut pads: Vec<[i64; 2]> =
        pads.iter().map(|[a, b]| Some([a.known()?, b.known()?])).collect::<Option<_>>()?;
    pads.splice(..0, std::iter::repeat_n([0, 0], 2 - n));
    let x = dilate_input(&mut image, &front(input_dilation, 1), &mut pads);
    let x = without_edges(x, &image, &mut pads);
    let w = format!("reshape({{1}}, {})", list(&kernel));
    let even = pads.iter().all(|[a, b]| a == b);
    let x = if even {
        x
    } else {
        let [[top, bottom], [left, right]] = [pads[0], pads[1]];
        format!("ggml_pad_ext({x}, {left}, {right}, {top}, {bottom}, 0, 0, 0, 0)")
    };
    let pad = pads.iter().map(|p| if even { p[0] } else { 0 }).collect::<Vec<_>>();
    let (stride, dilation) = (front(stride, 1), front(dilation, 1));
    let numbers = [stride[1], stride[0], pad[1], pad[0], dilation[1], dilation[0]];
    let numbers = numbers.map(|n| n.to_string()).join(", ");
    let text = if groups == 1 {
        format!("ggml_conv_2d_direct({w}, {x}, {numbers})")
    } else if weight[1] == 1 && weight[0] == groups {
        format!("ggml_conv_2d_dw_direct({w}, {x}, {numbers})")
    } else {
        let (each, filters) = (weight[1], weight[0] / groups);
        let part = |g: i64| {
            let w = format!("slice({w}, 0, {}, {})", g * filters, (g + 1) * filters);
            let x = format!("slice({x}, 1, {}, {})", g * each, (g + 1) * each);
            format!("ggml_conv_2d_direct({w}, {x}, {numbers})")
        };
        (1..groups).fold(part(0), |all, g| format!("ggml_concat({all}, {}, 2)", part(g)))
    };
    Some(format!("reshape({text}, {})", list(&out)))
}

/// The image with zeros between its elements. Zeros behind the last element are subtracted from the padding.
fn dilate_input(image: &mut [i64], by: &[i64], pads: &mut [[i64; 2]]) -> String {
    let whole = |image: &[i64]| format!("reshape({{0}}, {})", list(image));
    if by == [1, 1] || image.contains(&0) {
        return whole(image);
    }
    // Zeros follow each element of a row, then rows of zeros follow each row.
    let elements = whole(&[image[0] * image[1] * image[2], 1, image[3], 1]);
    let dilated = format!("ggml_pad_ext({elements}, 0, {}, 0, 0, 0, {}, 0, 0)", by[1] - 1, by[0] - 1);
    for i in 0..2 {
        image[2 + i] *= by[i];
        pads[i][1] -= by[i] - 1;
    }
    format!("reshape({dilated}, {})", list(image))
}

/// The image, cropped by negative pads.
fn without_edges(x: String, image: &[i64], pads: &mut [[i64; 2]]) -> String {
    let mut x = x;
    for (axis, [before, after]) in (2..).zip(pads) {
        let (first, end) = ((-*before).max(0), image[axis] - (-*after).max(0));
        if (first, end) != (0, image[axis]) {
            x = format!("slice({x}, {axis}, {first}, {end})");
        }
        (*before, *after) = ((*before).max(0), (*after).max(0));
    }
    x
}

/// A slice with negative steps along some axes (with positive steps alone it is a view). Per axis: the first index, the step,
/// the count.
pub(super) fn backwards(s: &LoweringCx<'_>, lines: &[[i64; 3]]) -> Option<String> {
    let (shape, out) = (known(s.ty(0))?, known(s.out(0))?);
    if lines.iter().all(|[_, step, _]| *step > 0) || lines.iter().any(|[_, step, _]| step.abs() != 1) {
        return None;
    }
    let mut text = "{0}".to_owned();
    // Adjacent axes with the same direction are merged.
    let mut groups: Vec<(i64, bool)> = Vec::new();
    for (axis, &[start, step, count]) in lines.iter().enumerate() {
        let first = if step > 0 { start } else { start - (count - 1) };
        if count != shape[axis] {
            text = format!("slice({text}, {axis}, {first}, {})", first + count);
        }
        match groups.last_mut() {
            Some((size, back)) if *back == (step < 0) => *size *= count,
            _ if count == 1 => {}
            _ => groups.push((count, step < 0)),
        }
    }
    let sizes: Vec<i64> = groups.iter().map(|g| g.0).collect();
    let axes: i64 = groups.iter().rev().enumerate().map(|(i, g)| i64::from(g.1) << i).sum();
    let fits = sizes.len() <= 4;
    fits.then(|| {
        format!("reshape(mithril_reverse(reshape({text}, {}), {axes}), {})", list(&sizes), list(&out))
    })
}

/// Max or mean pooling over one or two axes.
pub(super) fn pooling(
    s: &LoweringCx<'_>,
    is_max: bool,
    kernel: &[i64],
    stride: &[i64],
    pads: &window::Pads,
) -> Option<String> {
    let (input, out) = (known(s.ty(0))?, known(s.out(0))?);
    let n = input.len() - 2;
    let pads: Vec<i64> = pads.iter().map(|[a, b]| a.known().filter(|p| b.is(*p))).collect::<Option<_>>()?;
    if n > 2 {
        return None;
    }
    let front = |values: &[i64], one: i64| {
        std::iter::repeat_n(one, 2 - n).chain(values.iter().copied()).collect::<Vec<_>>()
    };
    let mut image = input.clone();
    image.splice(2..2, std::iter::repeat_n(1, 2 - n));
    let (kernel, stride, pads) = (front(kernel, 1), front(stride, 1), front(&pads, 0));
    let function = if is_max { "mithril_max_pool(" } else { "ggml_pool_2d(" };
    let op = if is_max { "" } else { "1, " };
    let numbers = [kernel[1], kernel[0], stride[1], stride[0], pads[1], pads[0]];
    let numbers = numbers.map(|n| n.to_string()).join(", ");
    let whole = format!("reshape({{0}}, {})", list(&image));
    Some(format!("reshape({function}{whole}, {op}{numbers}), {})", list(&out)))
}

// --- indexing and joining ----------------------------------------------------------------------------------

/// Slices at indices along an axis.
pub(super) fn take(s: &LoweringCx<'_>) -> Option<String> {
    let (from, at, out) = (known(s.ty(0))?, known(s.ty(1))?, known(s.out(0))?);
    let count: i64 = at.iter().product();
    let rank = from.len();
    let (axis, table) = if s.absent(2) {
        let size: i64 = from.iter().product();
        (0, format!("reshape({{0}}, {})", list(&[size, 1])))
    } else {
        let axis = s.axis(2, rank).ok()?;
        let rest = from.iter().product::<i64>() / from[axis].max(1);
        let mut order: Vec<i64> = (0..rank as i64).collect();
        let first = order.remove(axis);
        order.insert(0, first);
        (axis, format!("reshape(permute({{0}}, {}), {})", list(&order), list(&[from[axis], rest])))
    };
    let size = if s.absent(2) { from.iter().product() } else { from[axis] };
    let rows = format!("ggml_get_rows({table}, reshape(positions({{1}}, {size}), [{count}]))");
    if axis == 0 {
        return Some(format!("reshape({rows}, {})", list(&out)));
    }
    // `[positions, before, after]` becomes `[before, positions, after]`.
    let (before, after) = (from[..axis].iter().product::<i64>(), from[axis + 1..].iter().product::<i64>());
    let slices = format!("permute(reshape({rows}, {}), [1, 0, 2])", list(&[count, before, after]));
    Some(format!("reshape({slices}, {})", list(&out)))
}

/// A copy of the input with slices at indices along an axis overwritten.
pub(super) fn index_copy(s: &LoweringCx<'_>) -> Option<String> {
    let (into, from) = (known(s.ty(0))?, known(s.ty(2))?);
    let rank = into.len();
    let axis = s.axis(3, rank).ok()?;
    let positions = format!("distinct({{1}}, {})", into[axis]);
    if axis + 2 == rank && rank <= 4 {
        return Some(format!("ggml_set_rows(ggml_cont({{0}}), {{2}}, {positions})"));
    }
    let lines = |shape: &[i64]| {
        let around = |part: &[i64]| part.iter().product::<i64>();
        list(&[around(&shape[..axis]), shape[axis], around(&shape[axis + 1..])])
    };
    let copy = format!("ggml_cont(reshape({{0}}, {}))", lines(&into));
    let rows = format!("reshape({{2}}, {})", lines(&from));
    Some(format!("reshape(ggml_set_rows({copy}, {rows}, {positions}), {})", list(&into)))
}

/// All inputs, joined along an axis.
pub(super) fn concat(s: &LoweringCx<'_>) -> Option<String> {
    let out = known(s.out(0))?;
    let axis = s.axis(0, out.len()).ok()?;
    let (before, after) = (out[..axis].iter().product::<i64>(), out[axis + 1..].iter().product::<i64>());
    let mut parts = Vec::new();
    for i in 1..s.args.len() {
        let size = known(s.ty(i))?[axis];
        // Empty inputs add nothing.
        if size > 0 {
            let flat = list(&[before, size, after]);
            parts.push(if out.len() > 4 { format!("reshape({{{i}}}, {flat})") } else { format!("{{{i}}}") });
        }
    }
    let at = if out.len() > 4 { 1 } else { out.len() - 1 - axis };
    let mut parts = parts.into_iter();
    let first = parts.next()?;
    let all = parts.fold(first, |all, part| format!("ggml_concat({all}, {part}, {at})"));
    Some(if out.len() > 4 { format!("reshape({all}, {})", list(&out)) } else { all })
}

/// Zeros before and after each axis.
pub(super) fn pad(s: &LoweringCx<'_>, pads: &[(i64, i64)]) -> Option<String> {
    let fits = pads.len() <= 4 && pads.iter().all(|&(a, b)| a >= 0 && b >= 0);
    let amounts: Vec<String> = pads.iter().rev().map(|(a, b)| format!(", {a}, {b}")).collect();
    let rest = ", 0, 0".repeat(4_usize.saturating_sub(pads.len()));
    s.ty(0).filter(|_| fits).map(|_| format!("ggml_pad_ext({{0}}{}{rest})", amounts.concat()))
}
