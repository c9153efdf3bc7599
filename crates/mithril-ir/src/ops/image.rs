//! Resizing images: interpolation, pixel shuffle and its inverse.

use super::window;
use crate::dim::Dim;
use crate::dtype::{DType, Kinds};
use crate::error::{Code, Error, Result};
use crate::formula::{ExpandCx, V};
use crate::literal::Lit;
use crate::lowering::LoweringRule::Function;
use crate::lowering::{Lowering, LoweringCx};
use crate::op::{Attr, BLANK, DTypeRule, DefaultLit, OpDef, Port, ShapeRule, Tolerance, attr, tensor_of};
use crate::rules::{Attrs, DTypes, ShapeCx};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// Ops of this file.
pub static OPS: &[&OpDef] = &[&INTERPOLATE, &PIXEL_SHUFFLE, &PIXEL_UNSHUFFLE];

const INPUT: Port = tensor_of("input", Kinds::NUMBER);

// --- interpolation -----------------------------------------------------------------------------------------

const MODES: &[&str] = &["nearest", "nearest-exact", "linear", "bilinear", "trilinear", "bicubic"];

/// another resolution
pub static INTERPOLATE: OpDef = OpDef {
    name: "interpolate",
    doc: "Resizes the spatial axes of `[n, c, *s]` (1 to 3 of them) to `size`, or to `⌊scale_factor · s⌋`.\n\n\
          Output element `i` lies at `(i + 0.5)·s/size - 0.5` of the input (`s/size` is `1/scale_factor` if that is \
          given), or at `i·(s - 1)/(size - 1)` with `align_corners`. `linear` (`bilinear`, `trilinear`) mixes its two \
          neighbors along each axis, `bicubic` four, by the convolution kernel of Keys (1981) with a = -0.75; \
          beyond the border the last element is repeated. `nearest` takes element `⌊i·s/size⌋`, `nearest-exact` \
          `⌊(i + 0.5)·s/size⌋`; both keep the dtype, the others give floats. There is no antialiasing. As in torch.",
    aliases: &["resize", "upsample"],
    ports: &[
        INPUT,
        attr("size", Attr::Any, DefaultLit::None),
        attr("scale_factor", Attr::Any, DefaultLit::None),
        attr("mode", Attr::Choice(MODES), DefaultLit::Str("nearest")),
        attr("align_corners", Attr::Bool, DefaultLit::Bool(false)),
    ],
    shape: ShapeRule::Fn(|cx| {
        let n = cx.rank(0, &[3, 4, 5])? - 2;
        check_mode(cx, n)?;
        let input = cx.shape(0);
        let mut out = Shape::of(input[..2].iter().cloned());
        for i in 0..n {
            if input[i + 2].is(0) {
                let message = format!("spatial axis {i} of the input of interpolate has no elements");
                return Err(Error::new(Code::BadSize, message).help("there is nothing to interpolate"));
            }
            out.0.push(Resize::read(cx, i, n, &input[i + 2])?.out);
        }
        Ok(vec![out])
    }),
    dtype: DTypeRule::Fn(|cx| {
        let input = cx.dtype(0).unwrap_or(cx.float);
        let dtype = if input.is_float() || cx.text(3)?.starts_with("nearest") { input } else { cx.float };
        Ok(DTypes { cast: [Some(dtype)].into_iter().collect(), out: [dtype].into_iter().collect() })
    }),
    expand: Some(|c| {
        let n = c.x[0].rank().saturating_sub(2);
        let dtype = c.x[0].dtype();
        let mut x = c.x[0];
        for i in 0..n {
            match Resize::read(c, i, n, &x.dim(i as i64 + 2)).and_then(|r| r.apply(c, x, i + 2)) {
                Ok(resized) => x = resized,
                Err(error) => c.cx.fail(error),
            }
        }
        vec![x.cast(dtype)]
    }),
    lowering: Lowering { torch: Function(torch), ..Lowering::NONE },
    cases: &[
        "[1,2,3,4] scale_factor=2",
        "[1,2,5,4] size=(3,7)",
        "[2,1,5] size=8 mode=\"linear\"",
        "[1,2,3,4] size=(6,3) mode=\"bilinear\"",
        "[1,2,3,4] size=(5,6) mode=\"bilinear\" align_corners=true",
        "[1,1,4,5] scale_factor=(1.5,0.6) mode=\"bicubic\"",
        "[1,1,3,2] size=(1,5) mode=\"nearest-exact\"",
        "[1,1,2,3,2] size=4 mode=\"trilinear\"",
    ],
    tolerance: Tolerance::Contraction,
    ..BLANK
};

fn check_mode(cx: &ShapeCx<'_>, n: usize) -> Result<()> {
    let (mode, lit) = (cx.text(3)?, cx.lit(3));
    let expected = match mode.as_str() {
        "bilinear" | "bicubic" => 2,
        "trilinear" => 3,
        _ => n,
    };
    if n != expected {
        return Err(cx.bad(3, &lit, &format!("\"nearest\" or \"linear\" for {n} spatial axes")));
    }
    if mode.starts_with("nearest") && cx.bool(4)? {
        let message = format!("align_corners has no meaning for mode {lit} of interpolate");
        return Err(Error::new(Code::ConflictingOptions, message).help("leave it out, or use a linear mode"));
    }
    Ok(())
}

/// Resizing of one axis.
struct Resize {
    out: Dim,
    /// The scale factor, if one was passed.
    factor: Option<f64>,
}

impl Resize {
    /// For spatial axis `i` of `n`, of size `s`.
    fn read(cx: &(impl Attrs + ?Sized), i: usize, n: usize, s: &Dim) -> Result<Self> {
        if cx.absent(1) == cx.absent(2) {
            let message = "interpolate needs either `size` or `scale_factor`";
            return Err(Error::new(Code::ConflictingOptions, message).help("give one of the two"));
        }
        if cx.absent(2) {
            return Ok(Self { out: size(cx, i, n)?, factor: None });
        }
        let factor = factor(cx, i, n)?;
        let out = match s.known() {
            Some(s) => Dim::Const((s as f64 * factor).floor() as i64),
            None if factor.fract() == 0.0 => s * &Dim::Const(factor as i64),
            None => return Err(undecided(cx, s)),
        };
        if out.known().is_some_and(|o| o < 1) {
            let message = format!("interpolate leaves nothing of spatial axis {i} of size {s}");
            return Err(Error::new(Code::BadSize, message).help("use a larger scale_factor"));
        }
        Ok(Self { out, factor: Some(factor) })
    }

    fn apply<'a>(&self, c: &ExpandCx<'a>, x: V<'a>, axis: usize) -> Result<V<'a>> {
        let (mode, corners) = (c.text(3)?, c.bool(4)?);
        let size = x.dim(axis as i64);
        let Some((s, o)) = size.known().zip(self.out.known()) else {
            // The factor of a symbolic size is an integer.
            let times = self.factor.map_or(1, |f| f as i64);
            let is_repeated = self.factor.is_some() && mode.starts_with("nearest");
            return Ok(if is_repeated {
                repeated(x, axis, times)
            } else {
                self.open(x, axis, &mode, corners)
            });
        };
        if s.max(o) > window::MAX_TABLE {
            let message = format!("interpolate resizes an axis from {s} to {o} elements");
            return Err(
                Error::new(Code::BadSize, message).help(format!("the maximum is {}", window::MAX_TABLE))
            );
        }
        let taps = taps(&mode, corners, s, o, self.factor);
        let identity: Vec<i64> = (0..s).collect();
        if taps.iter().all(|(at, weights)| *at == identity || weights.iter().all(|w| *w == 0.0)) {
            return Ok(x);
        }
        let take = |at: &[i64]| x.take(Tensor::from_parts(&[at.len()], at.to_vec()), axis);
        if let [(at, _)] = taps.as_slice() {
            let even = o % s == 0 && at.iter().zip(0..).all(|(at, i)| *at == i / (o / s));
            return Ok(if even { repeated(x, axis, o / s) } else { take(at) });
        }
        let along = vec![Dim::ONE; x.rank() - axis - 1];
        let half = matches!(x.dtype(), DType::F16 | DType::BF16);
        let dtype = if half { DType::F32 } else { x.dtype() };
        let weighted = taps.iter().map(|(at, weights)| {
            let shape: Vec<Dim> = [self.out.clone()].into_iter().chain(along.iter().cloned()).collect();
            let weights = x.lit(Tensor::from_f64s(dtype, &[weights.len()], weights));
            take(at).cast(dtype) * weights.reshape(shape)
        });
        Ok(weighted.reduce(|a, b| a + b).unwrap_or(x))
    }

    /// The same where a size is a symbol: places and weights are computed when the model runs.
    fn open<'a>(&self, x: V<'a>, axis: usize, mode: &str, corners: bool) -> V<'a> {
        let float = if x.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        let number = |dim: &Dim| x.cx().full(Vec::<Dim>::new(), dim.clone(), float);
        let (size, one) = (x.dim(axis as i64), Dim::ONE);
        let ratio = match self.factor {
            // The last elements lie on each other; of a single one only the first place counts.
            _ if corners => number(&(&size - &one)) / number(&(&self.out - &one)).maximum(1.0),
            Some(factor) => x.lit(1.0 / factor),
            None => number(&size) / number(&self.out),
        };
        let i = x.cx().arange(self.out.clone()).cast(float);
        let last = number(&(&size - &one));
        let take = |at: V<'a>| x.take(at.maximum(0.0).minimum(last).cast(DType::I64), axis);
        if mode.starts_with("nearest") {
            let shift = if mode == "nearest" { 0.0 } else { 0.5 };
            return take(((i + shift) * ratio).floor());
        }
        let cubic = mode == "bicubic";
        let place = if corners { i * ratio } else { (i + 0.5) * ratio - 0.5 };
        let place = if cubic { place } else { place.maximum(0.0) };
        let low = place.floor();
        let rest = place - low;
        let behind = vec![Dim::ONE; x.rank() - axis - 1];
        let shape: Vec<Dim> = [self.out.clone()].into_iter().chain(behind).collect();
        let weighted = |tap: i64| {
            let weight = match (cubic, tap) {
                (true, -1) => far(rest + 1.0),
                (true, 0) => near(rest),
                (true, 1) => near(rest.lit(1.0) - rest),
                (true, _) => far(rest.lit(2.0) - rest),
                (false, 0) => rest.lit(1.0) - rest,
                (false, _) => rest,
            };
            take(low + tap as f64).cast(float) * weight.reshape(shape.clone())
        };
        let taps = if cubic { -1..3 } else { 0..2 };
        taps.map(weighted).reduce(|a, b| a + b).unwrap_or(x)
    }
}

/// The cubic kernel of [`keys`] for distances up to 1.
fn near(x: V<'_>) -> V<'_> {
    (x * (KEYS + 2.0) - (KEYS + 3.0)) * x * x + 1.0
}

/// The cubic kernel of [`keys`] for distances from 1 to 2.
fn far(x: V<'_>) -> V<'_> {
    ((x * KEYS - 5.0 * KEYS) * x + 8.0 * KEYS) * x - 4.0 * KEYS
}

/// The size that spatial axis `i` of `n` becomes.
fn size(cx: &(impl Attrs + ?Sized), i: usize, n: usize) -> Result<Dim> {
    let sizes = cx.dims(1)?;
    if sizes.iter().all(|size| size.known().is_some()) {
        return Ok(Dim::Const(window::positive(cx, 1, n)?[i]));
    }
    match sizes.get(if sizes.len() == 1 { 0 } else { i }) {
        Some(size) if size.has_var() => Err(undecided(cx, size)),
        Some(size) if [1, n].contains(&sizes.len()) && size.known().is_none_or(|n| n > 0) => Ok(size.clone()),
        _ => Err(cx.bad(1, &cx.lit(1), &format!("a size of at least 1, or {n} of them"))),
    }
}

/// The scale factor of spatial axis `i` of `n`.
fn factor(cx: &(impl Attrs + ?Sized), i: usize, n: usize) -> Result<f64> {
    let lit = cx.lit(2);
    let item = match &lit {
        Lit::Tuple(items) if items.len() == n => items.get(i),
        Lit::Tuple(items) if items.len() == 1 => items.first(),
        item => Some(item),
    };
    let value = match item {
        Some(Lit::Int(Dim::Const(f))) => *f as f64,
        Some(Lit::Float(f)) => *f,
        _ => f64::NAN,
    };
    if value > 0.0 && value <= f64::from(1_u32 << 31) {
        return Ok(value);
    }
    Err(cx.bad(2, &lit, &format!("a positive number, or {n} of them")))
}

fn undecided(cx: &(impl Attrs + ?Sized), s: &Dim) -> Error {
    if s.has_var() {
        let message = "the size of the input of interpolate is not known yet";
        return Error::new(Code::UnknownShape, message).help("declare the shape of the input");
    }
    cx.symbolic(0, s)
}

/// Each element repeated `times` times.
fn repeated(x: V<'_>, axis: usize, times: i64) -> V<'_> {
    if times == 1 {
        return x;
    }
    let mut shape = x.shape();
    shape.0.insert(axis + 1, Dim::Const(times));
    let mut merged = x.shape();
    merged.0[axis] = &merged[axis] * &Dim::Const(times);
    let many = x.expand_dims(axis + 1).broadcast_to(shape.0.to_vec());
    many.reshape(merged.0.to_vec())
}

/// Input elements and their weights: entry `i` of each list belongs to output element `i`.
fn taps(mode: &str, corners: bool, s: i64, o: i64, factor: Option<f64>) -> Vec<(Vec<i64>, Vec<f64>)> {
    let ratio = match factor {
        _ if corners => {
            if o > 1 {
                (s - 1) as f64 / (o - 1) as f64
            } else {
                0.0
            }
        }
        // Linear modes ignore the rest of a factor that does not change the size.
        Some(_) if s == o && mode.ends_with("linear") => 1.0,
        Some(factor) => 1.0 / factor,
        None => s as f64 / o as f64,
    };
    if mode.starts_with("nearest") {
        // Rounding decides which neighbor is nearest, so this is computed in single precision, as in torch.
        let (ratio, shift) = (ratio as f32, if mode == "nearest" { 0.0 } else { 0.5 });
        let at = (0..o).map(|i| (((i as f32 + shift) * ratio).floor() as i64).min(s - 1)).collect();
        return vec![(at, vec![1.0; o as usize])];
    }
    let place = |i: i64| if corners { i as f64 * ratio } else { (i as f64 + 0.5) * ratio - 0.5 };
    let cubic = mode == "bicubic";
    let reach = if cubic { -1..3 } else { 0..2 };
    let one = |tap: i64| {
        let each = |i: i64| {
            let at = if cubic { place(i) } else { place(i).max(0.0) };
            let distance = at - at.floor() - tap as f64;
            let weight = if cubic { keys(distance.abs()) } else { 1.0 - distance.abs() };
            ((at.floor() as i64 + tap).clamp(0, s - 1), weight)
        };
        (0..o).map(each).unzip()
    };
    reach.map(one).collect()
}

/// The parameter of the cubic kernel.
const KEYS: f64 = -0.75;

/// The cubic kernel of Keys.
fn keys(x: f64) -> f64 {
    if x <= 1.0 {
        ((KEYS + 2.0) * x - (KEYS + 3.0)) * x * x + 1.0
    } else {
        ((KEYS * x - 5.0 * KEYS) * x + 8.0 * KEYS) * x - 4.0 * KEYS
    }
}

/// PyTorch resizes only floats.
fn torch(s: &LoweringCx<'_>) -> Option<String> {
    s.ty(0).filter(|ty| ty.dtype.is_float())?;
    let n = s.ty(0)?.shape.rank().checked_sub(2)?;
    let mode = match s.text(3).ok()?.as_str() {
        "linear" => *["linear", "bilinear", "trilinear"].get(n.checked_sub(1)?)?,
        other => MODES.iter().find(|m| **m == other)?,
    };
    let size = if s.absent(1) { format!("scale_factor={}", s.arg(2)) } else { format!("size={}", s.arg(1)) };
    let corners = if s.bool(4).ok()? { ", align_corners=True" } else { "" };
    Some(format!("F.interpolate({}, {size}, mode=\"{mode}\"{corners})", s.arg(0)))
}

// --- channels and resolution -------------------------------------------------------------------------------

/// channels become pixels
pub static PIXEL_SHUFFLE: OpDef = OpDef {
    name: "pixel_shuffle",
    doc: "Channels become pixels: `[*b, c·r², h, w]` becomes `[*b, c, h·r, w·r]`, where `r` is `upscale_factor`. (Shi \
          et al. 2016)",
    ports: &[tensor_of("input", Kinds::ANY), attr("upscale_factor", Attr::Int, DefaultLit::Required)],
    shape: ShapeRule::Fn(|cx| {
        let (lead, [c, h, w], r) = shuffled(cx)?;
        check_divides(cx, "channels", c, r * r)?;
        let r = Dim::Const(r);
        let out = [c.floor_div(&(&r * &r)), h * &r, w * &r];
        Ok(vec![lead.iter().cloned().chain(out).collect()])
    }),
    dtype: DTypeRule::Same(0),
    expand: Some(|c| {
        let (x, r) = (c.x[0], Dim::Const(c.get(|c| window::count(c, 1)).max(1)));
        let (lead, [channels, h, w]) = lead(x);
        let each = channels.floor_div(&(&r * &r));
        let split = [each.clone(), r.clone(), r.clone(), h.clone(), w.clone()];
        vec![rearranged(x, &lead, &split, [0, 3, 1, 4, 2], &[each, &h * &r, &w * &r])]
    }),
    cases: &["[1,8,2,3] upscale_factor=2", "[9,2,1] upscale_factor=3"],
    tolerance: Tolerance::Exact,
    ..BLANK
};

/// pixels become channels
pub static PIXEL_UNSHUFFLE: OpDef = OpDef {
    name: "pixel_unshuffle",
    doc: "Pixels become channels, the inverse of `pixel_shuffle`: `[*b, c, h·r, w·r]` becomes `[*b, c·r², h, w]`, where \
          `r` is `downscale_factor`.",
    ports: &[tensor_of("input", Kinds::ANY), attr("downscale_factor", Attr::Int, DefaultLit::Required)],
    shape: ShapeRule::Fn(|cx| {
        let (lead, [c, h, w], r) = shuffled(cx)?;
        check_divides(cx, "rows", h, r)?;
        check_divides(cx, "columns", w, r)?;
        let r = Dim::Const(r);
        let out = [&(c * &r) * &r, h.floor_div(&r), w.floor_div(&r)];
        Ok(vec![lead.iter().cloned().chain(out).collect()])
    }),
    dtype: DTypeRule::Same(0),
    expand: Some(|c| {
        let (x, r) = (c.x[0], Dim::Const(c.get(|c| window::count(c, 1)).max(1)));
        let (lead, [channels, h, w]) = lead(x);
        let (h, w) = (h.floor_div(&r), w.floor_div(&r));
        let split = [channels.clone(), h.clone(), r.clone(), w.clone(), r.clone()];
        vec![rearranged(x, &lead, &split, [0, 2, 4, 1, 3], &[&(&channels * &r) * &r, h, w])]
    }),
    cases: &["[1,2,4,6] downscale_factor=2", "[1,3,6] downscale_factor=3"],
    tolerance: Tolerance::Exact,
    ..BLANK
};

fn shuffled<'a>(cx: &'a ShapeCx<'_>) -> Result<(&'a [Dim], [&'a Dim; 3], i64)> {
    let shape = cx.shape(0);
    let [lead @ .., c, h, w] = &shape[..] else {
        let message = format!("`input` of {} is {shape}", cx.op().name);
        return Err(Error::new(Code::RankMismatch, message).help("it is [..., channels, height, width]"));
    };
    let r = window::count(cx, 1)?;
    if r > 1 << 15 {
        return Err(cx.bad(1, &cx.lit(1), "at most 32768"));
    }
    Ok((lead, [c, h, w], r))
}

fn check_divides(cx: &ShapeCx<'_>, what: &str, size: &Dim, by: i64) -> Result<()> {
    match size.known() {
        Some(n) if n % by != 0 => {
            let message = format!("{n} {what} of {} do not divide by {by}", cx.op().name);
            Err(Error::new(Code::ShapeMismatch, message).help("choose a factor that fits, or pad the input"))
        }
        _ => Ok(()),
    }
}

fn lead(x: V<'_>) -> (Vec<Dim>, [Dim; 3]) {
    let shape = x.shape();
    let front = shape.iter().take(shape.rank().saturating_sub(3)).cloned().collect();
    (front, [-3, -2, -1].map(|axis| x.dim(axis)))
}

/// Splits the last axes, changes their order, and merges them.
fn rearranged<'a>(x: V<'a>, lead: &[Dim], split: &[Dim; 5], order: [usize; 5], out: &[Dim; 3]) -> V<'a> {
    let n = lead.len();
    let shape = |last: &[Dim]| x.lit(lead.iter().chain(last).cloned().collect::<Vec<Dim>>());
    let axes: Vec<usize> = (0..n).chain(order.map(|a| a + n)).collect();
    x.reshape(shape(split)).transpose(axes).reshape(shape(out))
}

#[cfg(test)]
mod tests;
