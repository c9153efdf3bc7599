//! The tensor expression of [`super::CONV_GENERAL`].

use super::general as arguments;
use crate::dim::Dim;
use crate::error::Result;
use crate::literal::Lit;
use crate::loops::{Expr, Index, LoopCx, ReduceOp, Within};
use crate::lowering::LoweringCx;
use crate::ops::window;
use crate::shape::Shape;

/// `Σ_c Σ_k input'[n, c, p·stride + k·dilation] · weight[o, c, k]`
pub(super) fn general(c: &LoopCx<'_>) -> Result<Vec<Expr>> {
    let weight = c.shape(1);
    let n = weight.len() - 2;
    let a = arguments(c, n)?;
    let before = window::pads_before(c, 3, n)?;
    let input = with_zeros(c, &a.input_dilation);
    let sizes = c.shape(input);
    let (per_group, filters) = (weight[1], weight[0] / a.groups);
    Ok(vec![c.output(0, |at| {
        c.reduce(ReduceOp::Sum, &weight[1..], |taps| {
            // Outputs of group g read the channels of group g.
            let group = if a.groups == 1 { Index::default() } else { at[1].floor_div(filters.max(1)) };
            let mut from = vec![at[0].clone(), group * per_group + taps[0].clone()];
            let mut inside = Vec::new();
            for i in 0..n {
                let place = at[2 + i].clone() * a.stride[i] + taps[1 + i].clone() * a.dilation[i];
                let place = place - before[i].into();
                inside.push(Within::new(place.clone(), 0, sizes[2 + i]));
                from.push(place);
            }
            let element = c.load(input, from).within(inside, c.number(0.0, c.out_dtype(0)));
            element * c.load(1, [&at[1..2], taps].concat())
        })
    })])
}

/// The input with zeros between its elements: a dilated input becomes a plain one.
fn with_zeros(c: &LoopCx<'_>, by: &[i64]) -> usize {
    if by.iter().all(|&by| by == 1) {
        return 0;
    }
    let mut shape = c.shape(0);
    for (n, by) in shape[2..].iter_mut().zip(by) {
        *n = (*n - 1).max(0) * by + (*n).min(1);
    }
    c.temporary(c.dtype(0), &shape, |at| {
        let (mut from, mut inside) = (at[..2].to_vec(), Vec::new());
        for (place, by) in at[2..].iter().zip(by) {
            inside.push(Within::new(place.modulo(*by), 0, 1));
            from.push(place.floor_div(*by));
        }
        c.load(0, from).within(inside, c.number(0.0, c.dtype(0)))
    })
}

/// [`super::CONV_GENERAL`] on some rows of the input. Zeros between elements come before the padding.
pub(super) fn general_on_rows(
    whole: &LoopCx<'_>,
    part: &LoopCx<'_>,
    axis: usize,
    before: i64,
) -> Result<Vec<(usize, Lit)>> {
    let a = arguments(whole, whole.rank(0) - 2)?;
    let lo = window::before(whole, 3, &a.pads, axis)?;
    let i = axis - 2;
    let lo = lo - before * a.input_dilation[i];
    let rows = window::extent(part.shape(0)[axis], a.input_dilation[i]);
    let reach =
        (part.out_shape(0)[axis] - 1) * a.stride[i] + window::extent(part.shape(1)[axis], a.dilation[i]);
    Ok(vec![(3, window::with_pair(whole, 3, a.pads, axis, [lo, reach - rows - lo])?)])
}

/// A usual convolution on some rows of the input, which have all that the windows read.
pub(super) fn conv_on_rows(
    whole: &LoopCx<'_>,
    part: &LoopCx<'_>,
    axis: usize,
    before: i64,
) -> Result<Vec<(usize, Lit)>> {
    let shape = |i: usize| Shape::of(whole.shape(i));
    let pads = super::conv_pads(whole, &shape(0), &shape(1))?;
    let lo = window::before(whole, 4, &pads, axis)? - before;
    let i = axis - 2;
    let n = pads.len();
    let (stride, dilation) = (window::positive(whole, 3, n)?, window::positive(whole, 5, n)?);
    let reach = (part.out_shape(0)[axis] - 1) * stride[i] + window::extent(part.shape(1)[axis], dilation[i]);
    // Rows that no window reads may follow.
    let hi = (reach - part.shape(0)[axis] - lo).max(0);
    Ok(vec![(4, window::with_pair(whole, 4, pads, axis, [lo, hi])?)])
}

/// A transposed convolution on some rows of the input: the padding cuts off what the other rows add.
pub(super) fn transposed_on_rows(
    whole: &LoopCx<'_>,
    part: &LoopCx<'_>,
    axis: usize,
    before: i64,
) -> Result<Vec<(usize, Lit)>> {
    let kernel: Vec<Dim> = whole.shape(1)[2..].iter().map(|&size| Dim::Const(size)).collect();
    let n = kernel.len();
    let (stride, dilation) = (window::positive(whole, 3, n)?, window::positive(whole, 7, n)?);
    let more = window::bounded(whole, 5, n, 0)?;
    let pads = super::transposed_pads(whole, &kernel)?;
    // Of the general convolution to that of the convolution whose gradient this one is.
    let own = |(i, [lo, hi]): (usize, &[Dim; 2])| {
        let edge = &window::dilated(&kernel[i], dilation[i]) - &Dim::ONE;
        [&edge - lo, &(&edge + &Dim::Const(more[i])) - hi]
    };
    let pads: window::Pads = pads.iter().enumerate().map(own).collect();
    let lo = window::before(whole, 4, &pads, axis)? + before * stride[axis - 2];
    let i = axis - 2;
    let rows =
        window::extent(part.shape(0)[axis], stride[i]) + window::extent(part.shape(1)[axis], dilation[i]) - 1;
    let hi = rows + more[i] - part.out_shape(0)[axis] - lo;
    Ok(vec![(4, window::with_pair(whole, 4, pads, axis, [lo, hi])?)])
}

/// Lowering to ggml.
pub(super) fn general_ggml(s: &LoweringCx<'_>) -> Option<String> {
    let n = s.ty(0)?.shape.rank().checked_sub(2)?;
    let a = super::general(s, n).ok()?;
    crate::ops::ggml::convolution(s, [&a.stride, &a.dilation, &a.input_dilation], &a.pads, a.groups)
}
