//! Convolution, pooling and windows in ONNX.

use super::{list, size, sizes};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::lowering::LoweringCx;
use crate::ops::pool::{Pool, pool_of};
use crate::ops::window::{self, Padding, Pads};
use crate::rules::Attrs;

/// Pads in the order of the ONNX attribute, if they are known and not negative.
fn pads_attribute(pads: &Pads) -> Option<String> {
    let side = |i: usize| pads.iter().map(move |p| p[i].known().filter(|n| *n >= 0));
    side(0).chain(side(1)).collect::<Option<Vec<i64>>>().map(list)
}

/// The tensor with these pads around its spatial axes.
fn padded(x: &str, pads: &Pads, value: &str) -> String {
    if pads.iter().flatten().all(|d| d.is(0)) {
        return x.to_owned();
    }
    let none = [Dim::Const(0), Dim::Const(0)];
    let side = |i: usize| none.iter().chain(pads.iter().map(move |p| &p[i]));
    format!("Pad({x}, {}, {value})", sizes(side(0).chain(side(1))))
}

/// Inserts zeros between elements: axes of size 1 behind the spatial ones are padded and merged with them.
fn dilated(x: &str, shape: &[Dim], by: &[i64]) -> String {
    let mut text = x.to_owned();
    let mut now = shape.to_vec();
    for (i, &d) in by.iter().enumerate().filter(|(_, d)| **d > 1) {
        let axis = i + 2;
        let mut pads = vec![0; 2 * (now.len() + 1)];
        pads[now.len() + 1 + axis + 1] = d - 1;
        let pads = list(pads);
        let whole = &now[axis] * &Dim::Const(d);
        now[axis] = whole;
        let joined = sizes(&now);
        now[axis] = &now[axis] - &Dim::Const(d - 1);
        let (stop, at) = (size(&now[axis]), axis as i64);
        text = format!(
            "Slice(reshape(Pad(Unsqueeze({text}, [{}]), {pads}), {joined}), [0], {stop}, [{at}])",
            axis + 1
        );
    }
    text
}

pub(in crate::ops) fn conv_general(s: &LoweringCx<'_>) -> Option<String> {
    let shape = s.ty(0)?.shape.clone();
    let n = shape.rank().checked_sub(2)?;
    let (stride, dilation) = (window::positive(s, 2, n).ok()?, window::positive(s, 4, n).ok()?);
    let (between, groups) = (window::positive(s, 5, n).ok()?, window::count(s, 6).ok()?);
    let pads = window::pads(s, 3, n).ok()?;
    let kernel: Option<Vec<i64>> = s.ty(1)?.shape.iter().skip(2).map(Dim::known).collect();
    let input = dilated("{0}", &shape, &between);
    let (input, pads) = match pads_attribute(&pads) {
        Some(attribute) => (input, format!(", pads={attribute}")),
        None => (padded(&input, &pads, "like(0, {0})"), String::new()),
    };
    let kernel = kernel.map(|k| format!(", kernel_shape={}", list(k))).unwrap_or_default();
    let (stride, dilation) = (list(stride), list(dilation));
    Some(format!(
        "Conv<strides={stride}, dilations={dilation}, group={groups}{pads}{kernel}>({input}, {{1}})"
    ))
}

fn bias(s: &LoweringCx<'_>) -> Option<&'static str> {
    let dtype = s.out(0)?.dtype;
    let fits = s.ty(0)?.dtype == dtype && s.ty(1)?.dtype == dtype;
    match s.ty(2) {
        _ if !fits || !dtype.is_float() => None,
        None => Some(""),
        Some(t) => (t.dtype == dtype).then_some(", {2}"),
    }
}

pub(in crate::ops) fn conv(s: &LoweringCx<'_>) -> Option<String> {
    let n = s.ty(0)?.shape.rank().checked_sub(2)?;
    let (stride, dilation) = (window::positive(s, 3, n).ok()?, window::positive(s, 5, n).ok()?);
    let groups = window::count(s, 6).ok()?;
    let kernel: Vec<i64> = s.ty(1)?.shape.iter().skip(2).map(Dim::known).collect::<Option<_>>()?;
    let pads = match window::padding(s, 4, n).ok()? {
        Padding::Explicit(pads) => list(pads.iter().map(|p| p[0]).chain(pads.iter().map(|p| p[1]))),
        Padding::Same => {
            let shape = &s.ty(0)?.shape;
            let one = |i: usize| {
                let extent = (kernel[i] - 1) * dilation[i] + 1;
                window::same_pads(s, 4, &shape[i + 2], extent, stride[i]).ok()
            };
            let pads: Pads = (0..n).map(one).collect::<Option<_>>()?;
            pads_attribute(&pads)?
        }
    };
    let (stride, dilation, kernel) = (list(stride), list(dilation), list(kernel));
    let bias = bias(s)?;
    Some(format!(
        "Conv<kernel_shape={kernel}, strides={stride}, pads={pads}, dilations={dilation}, group={groups}>({{0}}, {{1}}{bias})"
    ))
}

pub(in crate::ops) fn conv_transpose(s: &LoweringCx<'_>) -> Option<String> {
    let n = s.ty(0)?.shape.rank().checked_sub(2)?;
    let (stride, dilation) = (window::positive(s, 3, n).ok()?, window::positive(s, 7, n).ok()?);
    let (more, groups) = (window::bounded(s, 5, n, 0).ok()?, window::count(s, 6).ok()?);
    let kernel: Vec<i64> = s.ty(1)?.shape.iter().skip(2).map(Dim::known).collect::<Option<_>>()?;
    let Padding::Explicit(pads) = window::padding(s, 4, n).ok()? else { return None };
    // Cropping must not exceed the output.
    let fits = |i: usize| more[i] < stride[i] && pads[i].iter().all(|p| *p <= (kernel[i] - 1) * dilation[i]);
    if !(0..n).all(fits) || s.ty(0)?.shape.iter().any(|d| d.is(0)) {
        return None;
    }
    let pads = list(pads.iter().map(|p| p[0]).chain(pads.iter().map(|p| p[1])));
    let (stride, dilation, kernel, more) = (list(stride), list(dilation), list(kernel), list(more));
    let bias = bias(s)?;
    Some(format!(
        "ConvTranspose<kernel_shape={kernel}, strides={stride}, pads={pads}, dilations={dilation}, \
         output_padding={more}, group={groups}>({{0}}, {{1}}{bias})"
    ))
}

pub(in crate::ops) fn max_pool(s: &LoweringCx<'_>) -> Option<String> {
    let (pool, pads) = pool_of(s)?;
    pooling(s, "MaxPool", &pool, &pads, "")
}

pub(in crate::ops) fn avg_pool(s: &LoweringCx<'_>) -> Option<String> {
    let (pool, pads) = pool_of(s)?;
    // Elements beyond the padding are never counted.
    let is_plain = !pool.ceil && pool.padding != Padding::Same || pads.iter().flatten().all(|p| p.is(0));
    match s.bool(5).ok()? {
        true if is_plain => pooling(s, "AveragePool", &pool, &pads, ", count_include_pad=1"),
        true => None,
        false => pooling(s, "AveragePool", &pool, &pads, ""),
    }
}

fn pooling(s: &LoweringCx<'_>, op: &str, pool: &Pool, pads: &Pads, more: &str) -> Option<String> {
    let shape = &s.ty(0)?.shape;
    let fits = |(p, k): (&[Dim; 2], &i64)| p.iter().all(|d| d.known().is_some_and(|d| (0..*k).contains(&d)));
    if !s.ty(0)?.dtype.is_float() || !pads.iter().zip(&pool.kernel).all(fits) || shape.iter().any(|d| d.is(0))
    {
        return None;
    }
    let is_dense = pool.dilation.iter().all(|&d| d == 1);
    let dilation =
        if is_dense { String::new() } else { format!(", dilations={}", list(pool.dilation.clone())) };
    let (kernel, stride) = (list(pool.kernel.clone()), list(pool.stride.clone()));
    let pads = pads_attribute(pads)?;
    Some(format!("{op}<kernel_shape={kernel}, strides={stride}, pads={pads}{dilation}{more}>({{0}})"))
}

/// All windows of `x`, whose spatial axes start at `from`: axes of positions, then axes of window elements.
fn windows_of(x: &str, positions: &[Dim], window: &[i64], stride: &[i64], dilation: &[i64]) -> String {
    let n = window.len();
    let mut text = x.to_owned();
    for i in 0..n {
        let axis = 2 + 2 * i;
        let places = format!("Range(i64(0), reshape({}, []), i64(1))", size(&positions[i]));
        let starts = format!("Mul(Unsqueeze({places}, [1]), [{}])", stride[i]);
        let inside = list((0..window[i]).map(|k| k * dilation[i]));
        text = format!("Gather<axis={axis}>({text}, Add({starts}, {inside}))");
    }
    if n == 1 {
        return text;
    }
    let order = [0, 1].into_iter().chain((0..n).map(|i| 2 + 2 * i)).chain((0..n).map(|i| 3 + 2 * i));
    format!("Transpose<perm={}>({text})", list(order.map(|a| a as i64)))
}

pub(in crate::ops) fn windows(s: &LoweringCx<'_>) -> Option<String> {
    let shape = &s.ty(0)?.shape;
    let n = shape.rank().checked_sub(2)?;
    let (window, stride) = (window::positive(s, 1, n).ok()?, window::positive(s, 2, n).ok()?);
    let (pads, dilation) = (window::pads(s, 3, n).ok()?, window::positive(s, 4, n).ok()?);
    let value = s.f64(5).ok()?;
    let value = match (s.ty(0)?.dtype.int_range(), value) {
        (Some(_), f64::NEG_INFINITY) => "least()".to_owned(),
        (Some(_), f64::INFINITY) => "most()".to_owned(),
        (None, x) if x.is_nan() => return None,
        _ => "like({value}, {0})".to_owned(),
    };
    let input = padded("{0}", &pads, &value);
    let positions = &s.out(0)?.shape[2..2 + n];
    Some(windows_of(&input, positions, &window, &stride, &dilation))
}

/// Sums window elements of the same input element; the windows of the tensor of all indices tell which.
pub(in crate::ops) fn fold_windows(s: &LoweringCx<'_>) -> Option<String> {
    let shape = s.ty(0)?.shape.clone();
    let n = (shape.rank() / 2).checked_sub(1)?;
    let (stride, dilation) = (window::positive(s, 2, n).ok()?, window::positive(s, 4, n).ok()?);
    let (pads, out) = (window::pads(s, 3, n).ok()?, s.out(0)?.shape.clone());
    let window: Vec<i64> = shape[2 + n..].iter().map(Dim::known).collect::<Option<_>>()?;
    let whole: Vec<Dim> = (0..n).map(|i| &(&out[i + 2] + &pads[i][0]) + &pads[i][1]).collect();
    let plane = whole.iter().fold(Dim::ONE, |all, d| &all * d);
    let mut image = vec![Dim::ONE, Dim::ONE];
    image.extend(whole.iter().cloned());
    let places = format!("reshape(Range(i64(0), reshape({}, []), i64(1)), {})", size(&plane), sizes(&image));
    let at = windows_of(&places, &shape[2..2 + n], &window, &stride, &dilation);
    let front = [out[0].clone(), out[1].clone()];
    let flat = sizes(front.iter().chain([&plane]));
    let inner = shape[2..].iter().fold(Dim::ONE, |all, d| &all * d);
    let lines = sizes(front.iter().chain([&inner]));
    image.splice(0..2, front);
    let wide = if matches!(s.out(0)?.dtype, DType::F16 | DType::BF16) {
        "f32"
    } else if s.out(0)?.dtype.is_float() || s.out(0)?.dtype.size() == 8 {
        "cast"
    } else {
        "i64"
    };
    let back: Pads = pads.iter().map(|[lo, hi]| [-lo, -hi]).collect();
    let sums = format!(
        "reshape(ScatterElements<axis=2, reduction=\"add\">(Expand(like(0, $x), {flat}), $at, reshape($x, {lines})), {})",
        sizes(&image)
    );
    let cut = padded(&sums, &back, "like(0, $x)");
    Some(format!("$x = {wide}({{0}}) | $at = reshape(Expand({at}, sizes({{0}})), {lines}) | cast({cut})"))
}
