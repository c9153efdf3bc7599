//! Pools.

use mithril_ir::{DType, Dim, Lit, Result, ValueId};

use super::convolution::{Window, each, pairs, whole_pairs};
use super::{Table, one};
use crate::context::{Value, malformed};
use crate::node::{Use, op};

type Outputs = Result<Vec<Value>>;

pub static OPS: Table = &[
    ("MaxPool", max_pool),
    ("AveragePool", average_pool),
    ("LpPool", lp_pool),
    ("GlobalAveragePool", |u| global(u, "mean")),
    ("GlobalMaxPool", |u| global(u, "max")),
    ("GlobalLpPool", |u| {
        let (x, p) = (u.x(0)?, u.int("p", 2)?);
        let axes: Vec<i64> = (2..u.rank(x) as i64).collect();
        one(op!(u, "norm", x, p as f64, axes, true)?)
    }),
];

fn window(u: &Use<'_>, x: ValueId) -> Result<(Window, Vec<i64>)> {
    let kernel = u.ints("kernel_shape")?.ok_or_else(|| malformed("`kernel_shape` is missing"))?;
    let window = Window::read(u, kernel)?;
    if window.kernel.len() + 2 != u.rank(x) {
        return Err(malformed(format!("`kernel_shape` has {} axes", window.kernel.len())));
    }
    if window.kernel.len() > 3 {
        return Err(Use::refuse(format!(
            "it has {} spatial axes; at most 3 are supported",
            window.kernel.len()
        )));
    }
    let pads = window.pads(u, &u.shape(x))?;
    Ok((window, pads))
}

/// Whether our pools can take the padding themselves: less than a window on each side.
fn fits(window: &Window, pads: &[i64]) -> bool {
    let rank = window.kernel.len();
    (0..rank).all(|i| pads[i] >= 0 && pads[rank + i] >= 0 && pads[i].max(pads[rank + i]) < window.kernel[i])
}

fn max_pool(u: &mut Use<'_>) -> Outputs {
    let x = u.x(0)?;
    let by_columns = u.flag("storage_order", false)?;
    let (window, pads) = window(u, x)?;
    if u.node.output.get(1).is_some_and(|name| !name.is_empty()) {
        return max_at(u, x, &window, pads, by_columns);
    }
    if !fits(&window, &pads) {
        return Err(Use::refuse(format!("its pads {pads:?} are larger than its kernel")));
    }
    let name = format!("max_pool{}d", window.kernel.len());
    let ceil = u.flag("ceil_mode", false)?;
    let (kernel, stride, dilation) = (each(&window.kernel), each(&window.stride), each(&window.dilation));
    one(op!(u, &name, x, kernel, stride, pairs(&pads), dilation, ceil)?)
}

/// Maxima and the places of their elements in the whole input, counted row by row or column by column.
fn max_at(u: &mut Use<'_>, x: ValueId, window: &Window, pads: Vec<i64>, by_columns: bool) -> Outputs {
    let pads = if u.flag("ceil_mode", false)? { raised(u, x, window, pads)? } else { pads };
    let (shape, rank) = (u.shape(x), window.kernel.len());
    let mut sizes = shape.to_vec();
    if by_columns {
        sizes[2..].reverse();
    }
    let all = op!(u, "arange", Lit::from(shape.numel()), Lit::None, 1_i64, DType::I64)?;
    let mut places = op!(u, "reshape", all, sizes)?;
    if by_columns {
        let axes: Vec<i64> = [0, 1].into_iter().chain((2..rank as i64 + 2).rev()).collect();
        places = op!(u, "transpose", places, axes)?;
    }
    let cut = |u: &mut Use<'_>, v: ValueId, value: f64| {
        let (stride, dilation) = (each(&window.stride), each(&window.dilation));
        let all = op!(u, "windows", v, window.kernel.clone(), stride, whole_pairs(&pads), dilation, value)?;
        let mut sizes = u.shape(all)[..rank + 2].to_vec();
        sizes.push((-1_i64).into());
        op!(u, "reshape", all, sizes)
    };
    let (values, places) = (cut(u, x, f64::NEG_INFINITY)?, cut(u, places, 0.0)?);
    let first = op!(u, "argmax", values, -1_i64, true)?;
    let mut outputs = Vec::new();
    for v in [values, places] {
        let v = op!(u, "take_along_axis", v, first, -1_i64)?;
        outputs.push(Value::Graph(op!(u, "squeeze", v, -1_i64)?));
    }
    Ok(outputs)
}

fn average_pool(u: &mut Use<'_>) -> Outputs {
    let x = u.x(0)?;
    let (window, pads) = window(u, x)?;
    let (ceil, counts) = (u.flag("ceil_mode", false)?, u.flag("count_include_pad", false)?);
    if window.dilation.iter().all(|&d| d == 1) && fits(&window, &pads) {
        let name = format!("avg_pool{}d", window.kernel.len());
        let (kernel, stride) = (each(&window.kernel), each(&window.stride));
        return one(op!(u, &name, x, kernel, stride, pairs(&pads), ceil, counts)?);
    }
    let own = pads.clone();
    let pads = if ceil { raised(u, x, &window, pads)? } else { pads };
    let total = sums(u, x, &window, &pads)?;
    if counts && !ceil {
        let count: i64 = window.kernel.iter().product();
        return one(op!(u, "divide", total, count as f64)?);
    }
    let mut ones = op!(u, "ones_like", x)?;
    let mut pads = pads;
    if counts {
        // The padding of the node counts, what ceil_mode adds does not.
        let rank = window.kernel.len();
        let both = (0..rank + 2).map(|i| match i.checked_sub(2) {
            Some(i) => Lit::from(vec![own[i], own[rank + i]]),
            None => Lit::from(vec![0_i64, 0]),
        });
        ones = op!(u, "pad", ones, Lit::tuple(both), "constant", 1.0)?;
        pads.iter_mut().zip(&own).for_each(|(all, own)| *all -= own);
    }
    let count = sums(u, ones, &window, &pads)?;
    one(op!(u, "divide", total, count)?)
}

/// Pads at the end that let the last window, which starts inside, be whole.
fn raised(u: &Use<'_>, x: ValueId, window: &Window, mut pads: Vec<i64>) -> Result<Vec<i64>> {
    let (shape, rank) = (u.shape(x), window.kernel.len());
    for i in 0..rank {
        let size = shape.get(i + 2).and_then(Dim::known);
        let size = size.ok_or_else(|| Use::refuse("ceil_mode needs sizes that are known: give shapes"))?;
        let stride = window.stride[i];
        let room = size + pads[i] + pads[rank + i] - window.dilation[i] * (window.kernel[i] - 1) - 1;
        let mut last = (room + stride - 1) / stride * stride;
        if last >= size + pads[i] {
            last -= stride;
        }
        pads[rank + i] += (last - room).max(0);
    }
    Ok(pads)
}

fn sums(u: &mut Use<'_>, x: ValueId, window: &Window, pads: &[i64]) -> Result<ValueId> {
    let rank = window.kernel.len() as i64;
    let all = op!(
        u,
        "windows",
        x,
        window.kernel.clone(),
        each(&window.stride),
        whole_pairs(pads),
        each(&window.dilation),
        0.0
    )?;
    let axes: Vec<i64> = (-rank..0).collect();
    op!(u, "sum", all, axes)
}

fn lp_pool(u: &mut Use<'_>) -> Outputs {
    let x = u.x(0)?;
    let p = u.int("p", 2)? as f64;
    let (window, pads) = window(u, x)?;
    let pads = if u.flag("ceil_mode", false)? { raised(u, x, &window, pads)? } else { pads };
    let size = op!(u, "abs", x)?;
    let raised = op!(u, "power", size, p)?;
    let total = sums(u, raised, &window, &pads)?;
    one(op!(u, "power", total, 1.0 / p)?)
}

fn global(u: &mut Use<'_>, name: &str) -> Outputs {
    let x = u.x(0)?;
    let axes: Vec<i64> = (2..u.rank(x) as i64).collect();
    one(op!(u, name, x, Lit::from(axes), true)?)
}
