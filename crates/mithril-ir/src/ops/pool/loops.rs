//! The tensor expressions of [`super::WINDOWS`] and [`super::FOLD_WINDOWS`].

use super::filling;
use crate::error::Result;
use crate::loops::{Expr, Fold, LoopCx, Within};
use crate::ops::window;
use crate::rules::Attrs;

/// The element under a position and a window element, or the filling.
pub(super) fn windows(c: &LoopCx<'_>) -> Result<Vec<Expr>> {
    let shape = c.shape(0);
    let n = shape.len() - 2;
    let (stride, dilation) = (window::positive(c, 2, n)?, window::positive(c, 4, n)?);
    let (before, value) = (window::pads_before(c, 3, n)?, filling(c.out_dtype(0), c.f64(5)?));
    Ok(vec![c.output(0, |at| {
        let (mut from, mut inside) = (at[..2].to_vec(), Vec::new());
        for i in 0..n {
            let (position, element) = (&at[2 + i], &at[2 + n + i]);
            let place = position.clone() * stride[i] + element.clone() * dilation[i] - before[i].into();
            inside.push(Within::new(place.clone(), 0, shape[2 + i]));
            from.push(place);
        }
        c.load(0, from).within(inside, c.number(value, c.out_dtype(0)))
    })])
}

/// The sum over window elements of what the window at the right distance holds, if there is one.
pub(super) fn fold(c: &LoopCx<'_>) -> Result<Vec<Expr>> {
    let shape = c.shape(0);
    let n = shape.len() / 2 - 1;
    let (stride, dilation) = (window::positive(c, 2, n)?, window::positive(c, 4, n)?);
    let before = window::pads_before(c, 3, n)?;
    let dtype = c.out_dtype(0);
    Ok(vec![c.output(0, |at| {
        c.fold(Fold::Sum, &shape[2 + n..], |elements| {
            let (mut from, mut inside) = (at[..2].to_vec(), Vec::new());
            for i in 0..n {
                let place = at[2 + i].clone() + before[i].into() - elements[i].clone() * dilation[i];
                inside.push(Within::new(place.clone(), 0, (shape[2 + i] - 1) * stride[i] + 1));
                inside.push(Within::new(place.modulo(stride[i]), 0, 1));
                from.push(place.floor_div(stride[i]));
            }
            from.extend(elements.iter().cloned());
            c.load(0, from).within(inside, c.number(0.0, dtype))
        })
    })])
}
