//! The tensor expressions of windows and pooling.

use super::{Padding, Pool, filling};
use crate::dim::Dim;
use crate::error::Result;
use crate::literal::Lit;
use crate::loops::{Expr, Index, LoopCx, ReduceOp, Within};
use crate::ops::window;
use crate::rules::Attrs;
use crate::shape::Shape;

/// The element at a window position and a window element, or the fill value.
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

/// The sum of the window elements that belong to an input element. Without dilation these are every `stride`-th element from
/// the remainder of its index on; with dilation all elements are tested.
pub(super) fn fold(c: &LoopCx<'_>) -> Result<Vec<Expr>> {
    let shape = c.shape(0);
    let n = shape.len() / 2 - 1;
    let (positions, window) = shape[2..].split_at(n);
    let (stride, dilation) = (window::positive(c, 2, n)?, window::positive(c, 4, n)?);
    let before = window::pads_before(c, 3, n)?;
    let steps: Vec<i64> = (0..n).map(|i| if dilation[i] == 1 { stride[i] } else { 1 }).collect();
    let tried: Vec<i64> = window.iter().zip(&steps).map(|(k, step)| (k + step - 1) / step).collect();
    Ok(vec![c.output(0, |at| {
        c.reduce(ReduceOp::Sum, &tried, |tried| {
            let (mut from, mut elements, mut inside) = (at[..2].to_vec(), Vec::new(), Vec::new());
            for i in 0..n {
                let place = at[2 + i].clone() + before[i].into();
                let element = tried[i].clone() * steps[i] + place.modulo(steps[i]);
                inside.push(Within::new(element.clone(), 0, window[i]));
                let start = if dilation[i] == 1 {
                    place.floor_div(stride[i]) - tried[i].clone()
                } else {
                    let distance = place - element.clone() * dilation[i];
                    inside.push(Within::new(distance.modulo(stride[i]), 0, 1));
                    distance.floor_div(stride[i])
                };
                inside.push(Within::new(start.clone(), 0, positions[i]));
                from.push(start);
                elements.push(element);
            }
            from.extend(elements);
            c.load(0, from).within(inside, c.number(0.0, c.out_dtype(0)))
        })
    })])
}

/// [`super::WINDOWS`] on some rows.
pub(super) fn windows_on_rows(
    whole: &LoopCx<'_>,
    part: &LoopCx<'_>,
    axis: usize,
    before: i64,
) -> Result<Vec<(usize, Lit)>> {
    let n = whole.rank(0) - 2;
    let pads = window::pads(whole, 3, n)?;
    let lo = window::before(whole, 3, &pads, axis)? - before;
    let [size, stride, dilation] = [1, 2, 4].map(|port| window::positive(whole, port, n));
    let i = axis - 2;
    let reach = (part.out_shape(0)[axis] - 1) * stride?[i] + window::extent(size?[i], dilation?[i]);
    let hi = reach - part.shape(0)[axis] - lo;
    Ok(vec![(3, window::with_pair(whole, 3, pads, axis, [lo, hi])?)])
}

/// [`super::FOLD_WINDOWS`] on the windows at some positions.
pub(super) fn fold_on_rows(
    whole: &LoopCx<'_>,
    part: &LoopCx<'_>,
    axis: usize,
    before: i64,
) -> Result<Vec<(usize, Lit)>> {
    let n = whole.rank(0) / 2 - 1;
    let pads = window::pads(whole, 3, n)?;
    let lo = window::before(whole, 3, &pads, axis)?;
    let (stride, dilation) = (window::positive(whole, 2, n)?, window::positive(whole, 4, n)?);
    let i = axis - 2;
    let lo = lo + before * stride[i];
    let (positions, sizes) = (part.shape(0), &part.out_shape(0)[2..]);
    let reach = (positions[axis] - 1) * stride[i] + window::extent(positions[axis + n], dilation[i]);
    let pads = window::with_pair(whole, 3, pads, axis, [lo, reach - sizes[i] - lo])?;
    Ok(vec![(1, Lit::tuple(sizes.iter().copied())), (3, pads)])
}

/// A pooling on some rows, which have all that the windows read.
pub(super) fn pool_on_rows(
    whole: &LoopCx<'_>,
    part: &LoopCx<'_>,
    axis: usize,
    before: i64,
) -> Result<Vec<(usize, Lit)>> {
    let windows = Windows::read(whole)?;
    let pads = match &windows.pool.padding {
        Padding::Explicit(pads) => pads,
        Padding::Same => &windows.pads,
    };
    let pads: window::Pads = pads.iter().map(|pair| pair.map(Dim::Const)).collect();
    let lo = window::before(whole, 3, &pads, axis)? - before;
    let i = axis - 2;
    let reach = (part.out_shape(0)[axis] - 1) * windows.pool.stride[i] + windows.pool.extent(i);
    // Rows that no window reads may follow.
    let hi = (reach - part.shape(0)[axis] - lo).max(0);
    Ok(vec![(3, window::with_pair(whole, 3, pads, axis, [lo, hi])?)])
}

/// A pooling whose sizes are numbers.
struct Windows {
    pool: Pool,
    /// Sizes of the spatial axes.
    sizes: Vec<i64>,
    /// Elements of padding before and after each axis, including those that `ceil_mode` adds.
    pads: Vec<[i64; 2]>,
}

impl Windows {
    fn read(c: &LoopCx<'_>) -> Result<Self> {
        let shape = c.shape(0);
        let pool = Pool::read(c, shape.len() - 2)?;
        let pads = pool.all_pads(c, &Shape::of(shape.iter().copied()))?;
        let known = |pair: [Dim; 2]| pair.map(|d| d.known().unwrap_or(0));
        Ok(Self { pool, sizes: shape[2..].to_vec(), pads: pads.into_iter().map(known).collect() })
    }
    /// The index in the input of a window position and a window element.
    fn places(&self, at: &[Index], element: &[Index]) -> Vec<Index> {
        let place = |i: usize| {
            let start = at[2 + i].clone() * self.pool.stride[i] - self.pads[i][0].into();
            start + element[i].clone() * self.pool.dilation[i]
        };
        (0..self.sizes.len()).map(place).collect()
    }
    /// The element of the input there, or `padding`.
    fn element(&self, c: &LoopCx<'_>, at: &[Index], element: &[Index], padding: Expr) -> Expr {
        let places = self.places(at, element);
        let inside = places.iter().zip(&self.sizes).map(|(place, &n)| Within::new(place.clone(), 0, n));
        let inside = inside.collect();
        c.load(0, [&at[..2], &places].concat()).within(inside, padding)
    }
}

/// The largest element of each window.
pub(super) fn max(c: &LoopCx<'_>) -> Result<Vec<Expr>> {
    let windows = Windows::read(c)?;
    let least = c.number(filling(c.out_dtype(0), f64::NEG_INFINITY), c.out_dtype(0));
    Ok(vec![
        c.output(0, |at| c.reduce(ReduceOp::Max, &windows.pool.kernel, |k| windows.element(c, at, k, least))),
    ])
}

/// The sum of each window, divided by the number of its elements that are counted.
pub(super) fn avg(c: &LoopCx<'_>) -> Result<Vec<Expr>> {
    let windows = Windows::read(c)?;
    let dtype = c.out_dtype(0);
    // Only this padding is counted.
    let counted: Vec<[i64; 2]> = match (&windows.pool.padding, c.bool(5)?) {
        (_, false) => vec![[0, 0]; windows.sizes.len()],
        (Padding::Explicit(pads), true) => pads.clone(),
        (Padding::Same, true) => windows.pads.clone(),
    };
    Ok(vec![c.output(0, |at| {
        let kernel = &windows.pool.kernel;
        let sum = c.reduce(ReduceOp::Sum, kernel, |k| windows.element(c, at, k, c.number(0.0, dtype)));
        if counted == windows.pads {
            return sum / c.number(kernel.iter().product::<i64>() as f64, dtype);
        }
        let count = c.reduce(ReduceOp::Sum, kernel, |k| {
            let places = windows.places(at, k).into_iter().enumerate();
            let counts =
                places.map(|(i, place)| Within::new(place, -counted[i][0], windows.sizes[i] + counted[i][1]));
            c.number(1.0, dtype).within(counts.collect(), c.number(0.0, dtype))
        });
        sum / count
    })])
}
