//! The tensor expression of [`super::CONV_GENERAL`].

use super::general as arguments;
use crate::error::Result;
use crate::loops::{Expr, Fold, Index, LoopCx, Within};
use crate::ops::window;

/// `Σ_c Σ_k input'[n, c, p·stride + k·dilation] · weight[o, c, k]`
pub(super) fn general(c: &LoopCx<'_>) -> Result<Vec<Expr>> {
    let (input, weight) = (c.shape(0), c.shape(1));
    let n = input.len() - 2;
    let a = arguments(c, n)?;
    let before = window::pads_before(c, 3, n)?;
    let (per_group, filters) = (weight[1], weight[0] / a.groups);
    Ok(vec![c.output(0, |at| {
        c.fold(Fold::Sum, &weight[1..], |taps| {
            // Of the outputs of group g only the channels of group g are seen.
            let group = if a.groups == 1 { Index::default() } else { at[1].floor_div(filters.max(1)) };
            let mut from = vec![at[0].clone(), group * per_group + taps[0].clone()];
            let mut inside = Vec::new();
            for i in 0..n {
                let step = a.input_dilation[i];
                let place = at[2 + i].clone() * a.stride[i] + taps[1 + i].clone() * a.dilation[i];
                let place = place - before[i].into();
                inside.push(Within::new(place.clone(), 0, (input[2 + i] - 1) * step + 1));
                inside.push(Within::new(place.modulo(step), 0, 1));
                from.push(place.floor_div(step));
            }
            let element = c.load(0, from).within(inside, c.number(0.0, c.out_dtype(0)));
            element * c.load(1, [&at[1..2], taps].concat())
        })
    })])
}
