//! Images of another size.

use mithril_ir::{DType, Dim, Lit, Result, Tensor, ValueId};

use super::{Table, one};
use crate::context::{Value, malformed};
use crate::node::{Use, op};

type Outputs = Result<Vec<Value>>;

pub static OPS: Table = &[
    ("Resize", |u| {
        let x = u.x(0)?;
        let request = Request::of_resize(u, x)?;
        one(request.apply(u, x)?)
    }),
    ("Upsample", |u| {
        let x = u.x(0)?;
        let request = Request::of_upsample(u, x)?;
        one(request.apply(u, x)?)
    }),
    ("GridSample", grid_sample),
    ("AffineGrid", |u| {
        let (theta, size) = (u.x(0)?, u.dims(1)?);
        let align = u.flag("align_corners", false)?;
        one(op!(u, "affine_grid", theta, size, align)?)
    }),
];

/// Columns of weights up to which neighbors are taken one by one; more of them are a product with a matrix.
const MAX_TAKES: usize = 4;

/// What an axis becomes.
struct Axis {
    at: usize,
    /// How much larger it becomes; by sizes, where `None` is given.
    scale: Option<f64>,
    size: Option<Dim>,
    /// The part that is read, where 0 and 1 are the first and the last element.
    region: (f64, f64),
}

/// What a node asks for.
struct Request {
    mode: String,
    /// Where an element of the result lies in the input.
    place: String,
    rounding: String,
    cubic: f64,
    antialias: bool,
    /// Whether neighbors outside of the input have no weight, instead of being the element at the border.
    excludes: bool,
    /// What stands for places outside of the input, with a region.
    outside: f64,
    axes: Vec<Axis>,
}

/// Neighbors of an element of the result with their weights, or `None` where it lies outside.
type Mix = Option<Vec<(usize, f64)>>;

impl Request {
    fn of_upsample(u: &Use<'_>, x: ValueId) -> Result<Self> {
        let scales = if u.has(1) { u.constant(1)?.to_f64s() } else { u.floats("scales").unwrap_or_default() };
        if scales.len() != u.rank(x) {
            return Err(malformed(format!("{} scales are given for {} axes", scales.len(), u.rank(x))));
        }
        let axis = |(at, scale)| Axis { at, scale: Some(scale), size: None, region: (0.0, 1.0) };
        Ok(Self {
            mode: u.text("mode", "nearest")?,
            place: "asymmetric".into(),
            rounding: "floor".into(),
            cubic: -0.75,
            antialias: false,
            excludes: false,
            outside: 0.0,
            axes: scales.into_iter().enumerate().map(axis).collect(),
        })
    }

    fn of_resize(u: &Use<'_>, x: ValueId) -> Result<Self> {
        let rank = u.rank(x);
        let (scales_at, sizes_at) = if u.opset < 11 { (1, usize::MAX) } else { (2, 3) };
        let place = if u.opset < 11 { "asymmetric" } else { "half_pixel" };
        let rounding = if u.opset < 11 { "floor" } else { "round_prefer_floor" };
        let place = u.text("coordinate_transformation_mode", place)?;
        let axes = u.ints("axes")?.unwrap_or_else(|| (0..rank as i64).collect());
        let axes: Vec<usize> = axes.into_iter().map(|axis| Use::axis(axis, rank)).collect::<Result<_>>()?;
        let mut region = vec![0.0; axes.len()];
        region.resize(2 * axes.len(), 1.0);
        // The region of interest is an input that other coordinates do not read.
        let (has_region, has_values) = (u.opset >= 11 && u.has(1), place == "tf_crop_and_resize");
        let outside = u.float("extrapolation_value", 0.0)?;
        if has_values {
            region = if has_region { u.constant(1)?.to_f64s() } else { Vec::new() };
            if region.len() != 2 * axes.len() {
                return Err(malformed(format!(
                    "{} numbers are a region of {} axes",
                    region.len(),
                    axes.len()
                )));
            }
        }
        let is_present = |i: usize| u.has(i) && u.constant(i).map_or(true, |t| !t.is_empty());
        let policy = u.text("keep_aspect_ratio_policy", "stretch")?;
        let (scales, sizes): (Vec<Option<f64>>, Vec<Option<Dim>>);
        if is_present(scales_at) {
            scales = u.constant(scales_at)?.to_f64s().into_iter().map(Some).collect();
            sizes = vec![None; scales.len()];
        } else if sizes_at != usize::MAX && is_present(sizes_at) {
            let target = u.dims(sizes_at)?;
            (scales, sizes) = kept(u, x, &axes, target, &policy)?;
        } else {
            return Err(malformed("neither scales nor sizes are given"));
        }
        if scales.len() != axes.len() {
            return Err(malformed(format!(
                "{} scales or sizes are given for {} axes",
                scales.len(),
                axes.len()
            )));
        }
        let count = axes.len();
        let list = axes.into_iter().zip(scales).zip(sizes).enumerate();
        let list = list.map(|(i, ((at, scale), size))| Axis {
            at,
            scale,
            size,
            region: (region[i], region[count + i]),
        });
        Ok(Self {
            mode: u.text("mode", "nearest")?,
            rounding: u.text("nearest_mode", rounding)?,
            cubic: u.float("cubic_coeff_a", -0.75)?,
            antialias: u.flag("antialias", false)?,
            excludes: u.flag("exclude_outside", false)?,
            outside,
            axes: list.collect(),
            place,
        })
    }

    fn apply(&self, u: &mut Use<'_>, x: ValueId) -> Result<ValueId> {
        let dtype = u.dtype(x);
        for axis in &self.axes {
            if axis.scale.is_some_and(|s| !(s > 0.0 && s.is_finite())) {
                return Err(malformed("a scale is not a positive number"));
            }
        }
        if !matches!(self.mode.as_str(), "nearest" | "linear" | "cubic") {
            return Err(malformed(format!("the mode is {:?}", self.mode)));
        }
        if let Some((mode, align)) = self.interpolation(u, x) {
            let mut scales: Vec<Lit> = vec![1.0.into(); u.rank(x)];
            let mut sizes: Vec<Lit> = u.shape(x).iter().cloned().map(Lit::from).collect();
            let by_size = self.axes.iter().any(|a| a.scale.is_none());
            for axis in &self.axes {
                scales[axis.at] = axis.scale.unwrap_or(1.0).into();
                if let Some(size) = &axis.size {
                    sizes[axis.at] = size.clone().into();
                }
            }
            let (sizes, scales) = (Lit::tuple(sizes.split_off(2)), Lit::tuple(scales.split_off(2)));
            let (sizes, scales) = if by_size { (sizes, Lit::None) } else { (Lit::None, scales) };
            let y = op!(u, "interpolate", x, sizes, scales, mode, align)?;
            return self.finished(u, y, dtype);
        }
        let mut y = x;
        if self.mode != "nearest" {
            y = u.cast(x, if dtype == DType::F64 { DType::F64 } else { DType::F32 })?;
        }
        for axis in &self.axes {
            y = self.along(u, y, axis)?;
        }
        self.finished(u, y, dtype)
    }

    /// Integers are rounded, and held inside their range.
    fn finished(&self, u: &mut Use<'_>, y: ValueId, dtype: DType) -> Result<ValueId> {
        match dtype.int_range() {
            Some((least, most)) if self.mode != "nearest" => {
                let y = op!(u, "round", y)?;
                let y = op!(u, "clip", y, least as f64, most as f64)?;
                u.cast(y, dtype)
            }
            _ => u.cast(y, dtype),
        }
    }

    /// The mode of `interpolate` that computes the same, and whether corners are aligned.
    fn interpolation(&self, u: &Use<'_>, x: ValueId) -> Option<(&'static str, bool)> {
        let shape = u.shape(x);
        let rank = shape.rank();
        let moves = |a: &Axis| match (&a.scale, &a.size) {
            (Some(scale), _) => *scale != 1.0,
            (None, size) => size.as_ref() != shape.get(a.at),
        };
        let is_image = (3..=5).contains(&rank) && !self.axes.iter().any(|a| a.at < 2 && moves(a));
        if !is_image || self.antialias || self.excludes {
            return None;
        }
        // An axis that becomes one element has a rule of its own.
        let is_one = self.axes.iter().any(|a| match (a.scale, &a.size) {
            (Some(s), _) => a.at > 1 && shape[a.at].known().map_or(s <= 1.0, |n| s * (n as f64) < 2.0),
            (None, size) => a.at > 1 && size.as_ref().is_none_or(|n| n.is(1)),
        });
        let whole = self.axes.iter().all(|a| a.scale.is_some_and(|s| s.fract() == 0.0 && s >= 1.0));
        // Scales that give no whole sizes place corners elsewhere.
        let fits = self.axes.iter().all(|a| {
            a.scale.is_none_or(|s| {
                shape[a.at].known().is_some_and(|n| (s * n as f64).fract() == 0.0) || s == 1.0
            })
        });
        if self.axes.iter().any(|a| a.scale.is_some() && a.size.is_some()) {
            return None;
        }
        let linear = *["linear", "bilinear", "trilinear"].get(rank - 3)?;
        let cubic = self.cubic == -0.75 && rank == 4;
        Some(match (self.mode.as_str(), self.place.as_str(), self.rounding.as_str()) {
            ("nearest", "asymmetric", "floor") => ("nearest", false),
            ("nearest", "half_pixel", "round_prefer_ceil") => ("nearest-exact", false),
            // Between whole factors the halves do not matter.
            ("nearest", "half_pixel" | "pytorch_half_pixel", "round_prefer_floor") if whole => {
                ("nearest", false)
            }
            ("linear", "half_pixel", _) => (linear, false),
            ("linear", "pytorch_half_pixel", _) if !is_one => (linear, false),
            ("linear", "align_corners", _) if fits => (linear, true),
            ("cubic", "half_pixel", _) if cubic => ("bicubic", false),
            ("cubic", "pytorch_half_pixel", _) if cubic && !is_one => ("bicubic", false),
            ("cubic", "align_corners", _) if cubic && fits => ("bicubic", true),
            _ => return None,
        })
    }

    /// One axis after the other: neighbors with their weights, which are numbers of the graph.
    fn along(&self, u: &mut Use<'_>, x: ValueId, axis: &Axis) -> Result<ValueId> {
        let shape = u.shape(x);
        let is_same = axis.size.as_ref() == Some(&shape[axis.at]) || axis.scale == Some(1.0);
        if is_same && axis.region == (0.0, 1.0) {
            return Ok(x);
        }
        let known =
            |n: &Dim| n.known().ok_or_else(|| Use::refuse("it needs sizes that are known: give shapes"));
        let n = known(&shape[axis.at])?;
        let (scale, size) = match (axis.scale, &axis.size) {
            (Some(scale), None) => (scale, (scale * n as f64).floor() as i64),
            (Some(scale), Some(size)) => (scale, known(size)?),
            (None, Some(size)) => (known(size)? as f64 / n as f64, known(size)?),
            (None, None) => return Err(malformed("neither a scale nor a size is given")),
        };
        if n < 1 || !(0..=1 << 20).contains(&size) || size.saturating_mul(n) > 1 << 26 {
            return Err(malformed(format!("an axis of {n} elements becomes one of {size}")));
        }
        let mixes: Vec<Mix> = (0..size).map(|i| self.mix(i, n, size, scale, axis.region)).collect();
        let rest = u.rank(x) - axis.at - 1;
        let mut sizes = vec![size];
        sizes.resize(rest + 1, 1);
        let y = if self.mode == "nearest" {
            let places = mixes.iter().map(|m| m.as_ref().map_or(0, |m| m[0].0 as i64)).collect::<Vec<_>>();
            let places = u.cx.lit(Tensor::of(&[places.len()], places)?);
            op!(u, "take", x, places, axis.at as i64)?
        } else {
            mixed(u, x, axis.at, n as usize, &mixes)?
        };
        if mixes.iter().all(Option::is_some) {
            return Ok(y);
        }
        let inside: Vec<bool> = mixes.iter().map(Option::is_some).collect();
        let inside = u.cx.lit(Tensor::of(&[inside.len()], inside)?);
        let inside = op!(u, "reshape", inside, sizes)?;
        let value = u.like(self.outside, y);
        op!(u, "where", inside, y, value)
    }

    /// The neighbors of element `i`.
    fn mix(&self, i: i64, n: i64, size: i64, scale: f64, region: (f64, f64)) -> Mix {
        let (i, last, width) = (i as f64, n as f64 - 1.0, scale * n as f64);
        let at = match self.place.as_str() {
            "align_corners" if width == 1.0 => 0.0,
            "align_corners" => i * last / (width - 1.0),
            "asymmetric" => i / scale,
            "pytorch_half_pixel" if width == 1.0 => -0.5,
            "half_pixel_symmetric" => n as f64 / 2.0 * (1.0 - size as f64 / width) + (i + 0.5) / scale - 0.5,
            "tf_half_pixel_for_nn" => (i + 0.5) / scale,
            "tf_crop_and_resize" => {
                let (start, end) = region;
                let inner = if width == 1.0 {
                    (end - start) * last / 2.0
                } else {
                    i * (end - start) * last / (width - 1.0)
                };
                let at = inner + start * last;
                if !(0.0..=last).contains(&at) {
                    return None;
                }
                at
            }
            _ => (i + 0.5) / scale - 0.5,
        };
        let inside = |at: f64| at.clamp(0.0, last) as usize;
        if self.mode == "nearest" {
            let near = match self.rounding.as_str() {
                "floor" => at.floor(),
                "ceil" => at.ceil(),
                "round_prefer_ceil" => (at + 0.5).floor(),
                _ => (at - 0.5).ceil(),
            };
            return Some(vec![(inside(near), 1.0)]);
        }
        // With antialiasing a kernel reaches over as many elements of the input as become one.
        let shrink = if self.antialias { scale.min(1.0) } else { 1.0 };
        let reach = if self.mode == "linear" { 1.0 } else { 2.0 };
        let first = (at - reach / shrink).floor() as i64;
        let end = (at + reach / shrink).ceil() as i64;
        let mut taps: Vec<(usize, f64)> = Vec::new();
        let mut total = 0.0;
        for j in first..=end {
            let weight = self.kernel((j as f64 - at) * shrink);
            if weight == 0.0 || (self.excludes && !(0..n).contains(&j)) {
                continue;
            }
            total += weight;
            let j = inside(j as f64);
            match taps.last_mut() {
                Some((last, sum)) if *last == j => *sum += weight,
                _ => taps.push((j, weight)),
            }
        }
        if self.antialias || self.excludes {
            for (_, weight) in &mut taps {
                *weight /= total;
            }
        }
        Some(taps)
    }

    /// The weight of a neighbor at that distance.
    fn kernel(&self, distance: f64) -> f64 {
        let (d, a) = (distance.abs(), self.cubic);
        if self.mode == "linear" {
            return (1.0 - d).max(0.0);
        }
        if d <= 1.0 {
            ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0
        } else if d < 2.0 {
            ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a
        } else {
            0.0
        }
    }
}

/// Scales and sizes, where the proportions of the image may have to stay.
#[allow(clippy::type_complexity, reason = "two lists side by side")]
fn kept(
    u: &Use<'_>,
    x: ValueId,
    axes: &[usize],
    target: Vec<Dim>,
    policy: &str,
) -> Result<(Vec<Option<f64>>, Vec<Option<Dim>>)> {
    if policy == "stretch" {
        return Ok((vec![None; target.len()], target.into_iter().map(Some).collect()));
    }
    let shape = u.shape(x);
    let numbers = axes.iter().zip(&target).map(|(&at, size)| Some((shape[at].known()?, size.known()?)));
    let numbers: Option<Vec<(i64, i64)>> = numbers.collect();
    let numbers = numbers.ok_or_else(|| Use::refuse("it needs sizes that are known: give shapes"))?;
    let scales = numbers.iter().map(|&(n, size)| size as f64 / n as f64);
    let scale = match policy {
        "not_larger" => scales.fold(f64::INFINITY, f64::min),
        "not_smaller" => scales.fold(0.0, f64::max),
        other => return Err(malformed(format!("keep_aspect_ratio_policy is {other:?}"))),
    };
    let sizes = numbers.iter().map(|&(n, _)| Some(Dim::Const((scale * n as f64 + 0.5).floor() as i64)));
    Ok((vec![Some(scale); target.len()], sizes.collect()))
}

/// The sum of weighted neighbors along an axis of `n` elements.
fn mixed(u: &mut Use<'_>, x: ValueId, at: usize, n: usize, mixes: &[Mix]) -> Result<ValueId> {
    let (dtype, rank) = (u.dtype(x), u.rank(x));
    let count = mixes.iter().flatten().map(Vec::len).max().unwrap_or(1);
    if count > MAX_TAKES {
        let mut matrix = vec![0.0; n * mixes.len()];
        for (i, mix) in mixes.iter().enumerate() {
            mix.iter().flatten().for_each(|&(j, weight)| matrix[j * mixes.len() + i] += weight);
        }
        let matrix = u.cx.lit(Tensor::from_f64s(dtype, &[n, mixes.len()], &matrix));
        let turned = op!(u, "swapaxes", x, at as i64, -1_i64)?;
        let y = op!(u, "matmul", turned, matrix)?;
        return op!(u, "swapaxes", y, at as i64, -1_i64);
    }
    let mut sizes = vec![mixes.len() as i64];
    sizes.resize(rank - at, 1);
    let mut total: Option<ValueId> = None;
    for k in 0..count {
        let part = |mix: &Mix| mix.as_ref().and_then(|m| m.get(k)).copied().unwrap_or((0, 0.0));
        let places: Vec<i64> = mixes.iter().map(|m| part(m).0 as i64).collect();
        let weights: Vec<f64> = mixes.iter().map(|m| part(m).1).collect();
        let places = u.cx.lit(Tensor::of(&[places.len()], places)?);
        let weights = u.cx.lit(Tensor::from_f64s(dtype, &[weights.len()], &weights));
        let (taken, weights) =
            (op!(u, "take", x, places, at as i64)?, op!(u, "reshape", weights, sizes.clone())?);
        let y = op!(u, "multiply", taken, weights)?;
        total = Some(match total {
            Some(sum) => op!(u, "add", sum, y)?,
            None => y,
        });
    }
    total.ok_or_else(|| malformed("there is no neighbor"))
}

fn grid_sample(u: &mut Use<'_>) -> Outputs {
    let (x, grid) = (u.x(0)?, u.x(1)?);
    let mode = match u.text("mode", if u.opset < 20 { "bilinear" } else { "linear" })?.as_str() {
        "linear" | "bilinear" => "bilinear",
        "cubic" | "bicubic" => "bicubic",
        "nearest" => "nearest",
        other => return Err(malformed(format!("the mode is {other:?}"))),
    };
    let (padding, align) = (u.text("padding_mode", "zeros")?, u.flag("align_corners", false)?);
    one(op!(u, "grid_sample", x, grid, mode, &*padding, align)?)
}
