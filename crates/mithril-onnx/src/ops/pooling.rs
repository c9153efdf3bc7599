//! Pools.

use mithril_ir::{Dim, Lit, Result, ValueId};

use super::convolution::{Window, each, pairs};
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
    // In which order positions are counted, which are refused.
    u.ignore(&["storage_order"]);
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
    if u.node.output.len() > 1 {
        return Err(Use::refuse("its second output, the positions of the elements, is not supported"));
    }
    let (window, pads) = window(u, x)?;
    if !fits(&window, &pads) {
        return Err(Use::refuse(format!("its pads {pads:?} are larger than its kernel")));
    }
    let name = format!("max_pool{}d", window.kernel.len());
    let ceil = u.flag("ceil_mode", false)?;
    let (kernel, stride, dilation) = (each(&window.kernel), each(&window.stride), each(&window.dilation));
    one(op!(u, &name, x, kernel, stride, pairs(&pads), dilation, ceil)?)
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
    let pads = if ceil { raised(u, x, &window, pads)? } else { pads };
    let total = sums(u, x, &window, &pads)?;
    if counts && !ceil {
        let count: i64 = window.kernel.iter().product();
        return one(op!(u, "divide", total, count as f64)?);
    }
    if counts {
        return Err(Use::refuse("dilations together with ceil_mode and count_include_pad are not supported"));
    }
    let ones = op!(u, "ones_like", x)?;
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
        pairs(pads),
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
