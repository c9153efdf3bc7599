//! Images read at places that are data, windows laid back onto an image, and maxima at their places.

use mithril_ir::{DType, Dim, Lit, Result, ValueId};

use super::convolution::{Window, each, kernel, whole_pairs};
use super::{Table, one};
use crate::context::{Value, malformed};
use crate::node::{Use, op};

type Outputs = Result<Vec<Value>>;

pub static OPS: Table =
    &[("Col2Im", col2im), ("DeformConv", deform_conv), ("RoiAlign", roi_align), ("MaxUnpool", max_unpool)];

/// Columns of windows, added up where they overlap.
fn col2im(u: &mut Use<'_>) -> Outputs {
    let (x, image, block) = (u.x(0)?, u.numbers(1)?, u.numbers(2)?);
    let window = Window::read(u, block)?;
    let rank = window.kernel.len();
    let pads = window.pads(u, &u.shape(x))?;
    let shape = u.shape(x);
    let count: i64 = window.kernel.iter().try_fold(1_i64, |n, &k| n.checked_mul(k)).unwrap_or(0);
    let channels = shape.get(1).and_then(Dim::known).filter(|n| count > 0 && n % count == 0);
    let (3, Some(channels), true) = (shape.rank(), channels, image.len() == rank) else {
        return Err(malformed("the columns are not a multiple of the block"));
    };
    let mut sizes = vec![shape[0].clone(), (channels / count).into()];
    sizes.extend(window.kernel.iter().map(|&k| Dim::Const(k)));
    for i in 0..rank {
        let reach = window.dilation[i].saturating_mul(window.kernel[i] - 1).saturating_add(1);
        let room = image[i].saturating_add(pads[i]).saturating_add(pads[rank + i]).saturating_sub(reach);
        sizes.push((room.div_euclid(window.stride[i]) + 1).into());
    }
    let split = op!(u, "reshape", x, sizes)?;
    let n = rank as i64;
    let order: Vec<i64> = [0, 1].into_iter().chain(n + 2..2 * n + 2).chain(2..n + 2).collect();
    let turned = op!(u, "transpose", split, order)?;
    one(op!(
        u,
        "fold_windows",
        turned,
        image,
        each(&window.stride),
        whole_pairs(&pads),
        each(&window.dilation)
    )?)
}

/// A convolution whose kernel reads at places that are moved by an offset.
#[allow(clippy::too_many_lines, reason = "one formula, step by step")]
fn deform_conv(u: &mut Use<'_>) -> Outputs {
    let (x, weight, offset) = (u.x(0)?, u.x(1)?, u.x(2)?);
    let (bias, mask) = (u.optional(3)?, u.optional(4)?);
    let window = Window::read(u, kernel(u, weight)?)?;
    let pads = window.pads(u, &u.shape(x))?;
    let (groups, offset_groups) = (u.int("group", 1)?, u.int("offset_group", 1)?);
    let (shape, own) = (u.shape(x), u.shape(weight));
    let ([n, c, h, w], [all, ..], [kh, kw]) = (&shape[..], &own[..], &window.kernel[..]) else {
        return Err(Use::refuse("only images of two axes are supported"));
    };
    let known = (c.known(), h.known(), w.known(), all.known());
    let (Some(c), Some(h), Some(w), Some(all)) = known else {
        return Err(Use::refuse("it needs sizes that are known: give shapes"));
    };
    let fits = |n: i64, groups: i64| groups > 0 && n % groups == 0;
    if !fits(c, groups) || !fits(all, groups) || !fits(c, offset_groups) || h < 1 || w < 1 {
        return Err(malformed("channels are not a multiple of the groups"));
    }
    let places = u.shape(offset);
    let [_, _, rows, columns] = &places[..] else { return Err(malformed("the offsets have not 4 axes")) };
    let (rows, columns, count) = (rows.clone(), columns.clone(), kh * kw);
    let og = Dim::Const(offset_groups);
    // Offsets of y and x for each place of the kernel: [n, groups, places, 2, rows, columns].
    let sizes = vec![n.clone(), og.clone(), count.into(), 2.into(), rows.clone(), columns.clone()];
    let offset = u.cast(offset, DType::F32)?;
    let offset = op!(u, "reshape", offset, sizes)?;
    let mut grid = Vec::new();
    // The grid has x before y.
    for (axis, size) in [(1_usize, w), (0, h)] {
        let moved = op!(u, "take", offset, axis as i64, 3_i64)?;
        let line = |u: &mut Use<'_>, n: Dim, step: i64, sizes: Vec<i64>| {
            let all = op!(u, "arange", Lit::from(n), Lit::None, 1_i64, DType::F32)?;
            let all = op!(u, "multiply", all, step as f64)?;
            op!(u, "reshape", all, sizes)
        };
        let kernel = line(u, Dim::Const(window.kernel[axis]), window.dilation[axis], vec![-1])?;
        let repeated = if axis == 0 {
            op!(u, "repeat", kernel, *kw, 0_i64)?
        } else {
            op!(u, "tile", kernel, vec![*kh])?
        };
        let kernel = op!(u, "reshape", repeated, vec![-1_i64, 1, 1])?;
        let (size_of, form) =
            if axis == 0 { (rows.clone(), vec![-1_i64, 1]) } else { (columns.clone(), vec![1_i64, -1]) };
        let start = line(u, size_of, window.stride[axis], form)?;
        let start = op!(u, "subtract", start, pads[axis] as f64)?;
        let place = op!(u, "add", kernel, start)?;
        let place = op!(u, "add", place, moved)?;
        // Element i lies at (2i + 1) / size - 1.
        let scaled = op!(u, "multiply", place, 2.0 / size as f64)?;
        grid.push(op!(u, "add", scaled, 1.0 / size as f64 - 1.0)?);
    }
    let args = [u.cx.lit(-1_i64), grid[0], grid[1]];
    let grid = u.op("stack", &args)?;
    let each_n = n * &og;
    let grid =
        op!(u, "reshape", grid, vec![each_n.clone(), &rows * &count.into(), columns.clone(), 2.into()])?;
    let image = op!(u, "reshape", x, vec![each_n.clone(), (c / offset_groups).into(), h.into(), w.into()])?;
    let dtype = u.dtype(x);
    let grid = u.cast(grid, dtype)?;
    let mut read = op!(u, "grid_sample", image, grid, "bilinear", "zeros", false)?;
    if let Some(mask) = mask {
        let sizes = vec![each_n, Dim::ONE, &rows * &count.into(), columns.clone()];
        let mask = op!(u, "reshape", mask, sizes)?;
        read = op!(u, "multiply", read, mask)?;
    }
    let inner = c / groups * count;
    let read = op!(u, "reshape", read, vec![n.clone(), groups.into(), inner.into(), &rows * &columns])?;
    let weight = op!(u, "reshape", weight, vec![groups, all / groups, inner])?;
    let y = op!(u, "matmul", weight, read)?;
    let mut y = op!(u, "reshape", y, vec![n.clone(), all.into(), rows, columns])?;
    if let Some(bias) = bias {
        let bias = op!(u, "reshape", bias, vec![-1_i64, 1, 1])?;
        y = op!(u, "add", y, bias)?;
    }
    one(u.cast(y, dtype)?)
}

/// Regions of images, each read at a grid of places and pooled to one size.
#[allow(clippy::too_many_lines, reason = "one formula, step by step")]
fn roi_align(u: &mut Use<'_>) -> Outputs {
    let (x, rois, batch) = (u.x(0)?, u.x(1)?, u.x(2)?);
    let half = match u.text("coordinate_transformation_mode", "half_pixel")?.as_str() {
        _ if u.opset < 16 => 0.0,
        "half_pixel" => 0.5,
        "output_half_pixel" => 0.0,
        other => return Err(malformed(format!("coordinates are {other:?}"))),
    };
    let (height, width) = (u.int("output_height", 1)?, u.int("output_width", 1)?);
    let (samples, scale) = (u.int("sampling_ratio", 0)?, u.float("spatial_scale", 1.0)?);
    let takes_mean = match u.text("mode", "avg")?.as_str() {
        "avg" => true,
        "max" => false,
        other => return Err(malformed(format!("the mode is {other:?}"))),
    };
    if samples < 1 {
        return Err(Use::refuse(
            "sampling_ratio 0, as many places as a region has elements, depends on data",
        ));
    }
    let limit = 1_i64 << 20;
    if height < 1 || width < 1 || height.max(width).max(samples) > limit {
        return Err(malformed(format!("regions become {height} x {width}, with {samples} samples")));
    }
    let shape = u.shape(x);
    let [_, c, h, w] = &shape[..] else { return Err(malformed("its input has no 4 axes")) };
    let (Some(h), Some(w)) = (h.known(), w.known()) else {
        return Err(Use::refuse("it needs sizes that are known: give shapes"));
    };
    let dtype = u.dtype(x);
    let count = u.shape(rois)[0].clone();
    // Neighbors before and after each place along an axis, with the weight of the second: [regions, places].
    let mut lines = Vec::new();
    for (axis, out, size) in [(1_i64, height, h), (0, width, w)] {
        let edge = |u: &mut Use<'_>, i: i64| {
            let v = op!(u, "take", rois, i, 1_i64)?;
            let v = op!(u, "multiply", v, scale)?;
            let v = op!(u, "subtract", v, half)?;
            op!(u, "reshape", v, vec![-1_i64, 1])
        };
        let (start, end) = (edge(u, axis)?, edge(u, axis + 2)?);
        let mut length = op!(u, "subtract", end, start)?;
        if half == 0.0 {
            length = op!(u, "maximum", length, 1.0)?;
        }
        let steps = out * samples;
        let all = op!(u, "arange", steps, Lit::None, 1_i64, dtype)?;
        let all = op!(u, "add", all, 0.5)?;
        let all = op!(u, "multiply", all, 1.0 / steps as f64)?;
        let moved = op!(u, "multiply", length, all)?;
        let place = op!(u, "add", start, moved)?;
        let (low, high) = (op!(u, "greater_equal", place, -1.0)?, op!(u, "less_equal", place, size as f64)?);
        let inside = op!(u, "logical_and", low, high)?;
        let place = op!(u, "clip", place, 0.0, (size - 1) as f64)?;
        let floor = op!(u, "floor", place)?;
        let part = op!(u, "subtract", place, floor)?;
        let first = u.cast(floor, DType::I64)?;
        let second = op!(u, "add", first, 1_i64)?;
        let second = op!(u, "minimum", second, size - 1)?;
        lines.push((first, second, part, inside));
    }
    let steps = (height * samples, width * samples);
    let image = op!(u, "moveaxis", x, 1_i64, -1_i64)?;
    let batch = op!(u, "reshape", batch, vec![-1_i64, 1, 1])?;
    let across = |u: &mut Use<'_>, v: ValueId, rows: bool| {
        let sizes = if rows {
            vec![count.clone(), steps.0.into(), Dim::ONE]
        } else {
            vec![count.clone(), Dim::ONE, steps.1.into()]
        };
        op!(u, "reshape", v, sizes)
    };
    let mut corners = Vec::new();
    for corner in 0..4 {
        let pick = |u: &mut Use<'_>, line: (ValueId, ValueId, ValueId, ValueId), second: bool, rows: bool| {
            let (at, weight) =
                if second { (line.1, line.2) } else { (line.0, op!(u, "subtract", 1.0, line.2)?) };
            let weight = op!(u, "where", line.3, weight, 0.0)?;
            Ok::<_, mithril_ir::Error>((across(u, at, rows)?, across(u, weight, rows)?))
        };
        let (y, wy) = pick(u, lines[0], corner / 2 == 1, true)?;
        let (x, wx) = pick(u, lines[1], corner % 2 == 1, false)?;
        let key = u.cx.lit(Lit::tuple([Lit::text("tensor"), Lit::text("tensor"), Lit::text("tensor")]));
        let read = u.op("getitem", &[image, key, batch, y, x])?;
        let weight = op!(u, "multiply", wy, wx)?;
        let weight = op!(u, "expand_dims", weight, -1_i64)?;
        corners.push(op!(u, "multiply", read, weight)?);
    }
    let how = if takes_mean { "add" } else { "maximum" };
    let mut total = corners[0];
    for &corner in &corners[1..] {
        total = op!(u, how, total, corner)?;
    }
    let sizes: Vec<Dim> = vec![count, height.into(), samples.into(), width.into(), samples.into(), c.clone()];
    let split = op!(u, "reshape", total, sizes)?;
    let pooled = op!(u, if takes_mean { "mean" } else { "max" }, split, vec![2_i64, 4])?;
    let y = op!(u, "moveaxis", pooled, -1_i64, 1_i64)?;
    one(u.cast(y, dtype)?)
}

/// Elements at the places where a pool found them, zeros elsewhere.
fn max_unpool(u: &mut Use<'_>) -> Outputs {
    let (x, places) = (u.x(0)?, u.x(1)?);
    let kernel = u.ints("kernel_shape")?.ok_or_else(|| malformed("`kernel_shape` is missing"))?;
    let window = Window::read(u, kernel)?;
    let (shape, rank) = (u.shape(x), window.kernel.len());
    let pads = window.pads(u, &shape)?;
    if shape.rank() != rank + 2 {
        return Err(malformed(format!("`kernel_shape` has {rank} axes")));
    }
    let mut sizes = shape[..2].to_vec();
    for i in 0..rank {
        let size = &(&shape[i + 2] - &Dim::ONE) * &Dim::Const(window.stride[i]);
        sizes.push(
            &size + &Dim::Const(window.kernel[i].saturating_sub(pads[i]).saturating_sub(pads[rank + i])),
        );
    }
    let numel = sizes.iter().fold(Dim::ONE, |a, b| &a * b);
    let dtype = u.dtype(x);
    let empty = op!(u, "full", vec![numel], 0.0, dtype)?;
    let (places, flat) = (op!(u, "reshape", places, vec![-1_i64])?, op!(u, "reshape", x, vec![-1_i64])?);
    let filled = op!(u, "scatter", empty, 0_i64, places, flat)?;
    let mut y = op!(u, "reshape", filled, sizes.clone())?;
    if u.has(2) {
        let target = u.dims(2)?;
        if target.len() != sizes.len() {
            return Err(malformed("the shape of the output has another number of axes"));
        }
        let zero = Lit::int(0);
        let pads = target.iter().zip(&sizes).map(|(a, b)| Lit::tuple([zero.clone(), Lit::from(a - b)]));
        let value = u.like(0.0, y);
        y = op!(u, "pad", y, Lit::tuple(pads), "constant", value)?;
    }
    one(y)
}
