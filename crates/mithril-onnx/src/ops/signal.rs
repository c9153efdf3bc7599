//! Signals: Fourier transforms, windows and filters.

use mithril_ir::{DType, Dim, Lit, Result, Tensor, ValueId};

use super::{Table, one};
use crate::context::{Value, malformed};
use crate::node::{Use, op};

type Outputs = Result<Vec<Value>>;

pub static OPS: Table = &[
    ("DFT", dft),
    ("STFT", stft),
    ("HannWindow", |u| window(u, |turn| (turn / 2.0).sin().powi(2))),
    ("HammingWindow", |u| window(u, |turn| 25.0 / 46.0 - 21.0 / 46.0 * turn.cos())),
    ("BlackmanWindow", |u| window(u, |turn| 0.42 - 0.5 * turn.cos() + 0.08 * (2.0 * turn).cos())),
    ("MelWeightMatrix", mel),
];

/// Elements of a window or filter that is computed here.
const MAX_SIZE: f64 = 16_777_216.0;

/// A complex signal, whose real and imaginary parts lie side by side along the last axis; a real one has no other part.
fn parts(u: &mut Use<'_>, x: ValueId) -> Result<(ValueId, Option<ValueId>)> {
    let count = u.shape(x).last().and_then(Dim::known);
    let real = op!(u, "take", x, 0_i64, -1_i64)?;
    match count {
        Some(1) => Ok((real, None)),
        Some(2) => Ok((real, Some(op!(u, "take", x, 1_i64, -1_i64)?))),
        _ => Err(malformed("the last axis of a signal has neither 1 nor 2 elements")),
    }
}

/// A signal with exactly `size` elements along an axis: cut off, or followed by zeros.
fn resized(u: &mut Use<'_>, x: ValueId, axis: usize, size: &Dim) -> Result<ValueId> {
    let shape = u.shape(x);
    if shape[axis] == *size {
        return Ok(x);
    }
    let Some((own, size)) = shape[axis].known().zip(size.known()) else {
        return Err(Use::refuse("a signal whose length is a symbol is cut or padded: give shapes"));
    };
    if own > size {
        let (starts, mut ends) = (vec![Lit::None; axis + 1], vec![Lit::None; axis + 1]);
        ends[axis] = size.into();
        return op!(u, "slice", x, starts, ends);
    }
    let pads = (0..shape.rank()).map(|i| Lit::from(vec![0, if i == axis { size - own } else { 0 }]));
    op!(u, "pad", x, Lit::tuple(pads), "constant", 0.0)
}

fn dft(u: &mut Use<'_>) -> Outputs {
    let x = u.x(0)?;
    let (dtype, rank) = (u.dtype(x), u.rank(x));
    let axis = if u.opset < 20 {
        u.int("axis", 1)?
    } else if u.has(2) {
        u.number(2)? as i64
    } else {
        -2
    };
    let axis = Use::axis(axis, rank)?;
    if rank < 2 || axis + 1 == rank {
        return Err(malformed("the last axis holds real and imaginary parts and cannot be transformed"));
    }
    let size = if u.has(1) { u.dims(1)?.first().cloned() } else { None };
    if size.as_ref().and_then(Dim::known).is_some_and(|n| !(1..=1 << 32).contains(&n)) {
        return Err(malformed("the length is not a positive number"));
    }
    let (inverse, onesided) = (u.flag("inverse", false)?, u.flag("onesided", false)?);
    let x = if dtype == DType::F64 { x } else { u.cast(x, DType::F32)? };
    let (mut real, mut imag) = parts(u, x)?;
    // The inverse of one side reads one more than half of the frequencies.
    let length = if inverse && onesided {
        size.as_ref().map(|n| &n.floor_div(&Dim::Const(2)) + &Dim::ONE)
    } else {
        size.clone()
    };
    if let Some(n) = &length {
        real = resized(u, real, axis, n)?;
        imag = imag.map(|v| resized(u, v, axis, n)).transpose()?;
    }
    let at = axis as i64;
    if inverse && onesided {
        let imag = match imag {
            Some(v) => v,
            None => op!(u, "zeros_like", real)?,
        };
        let y = op!(u, "irfft", real, imag, Lit::from(size), at)?;
        let y = op!(u, "expand_dims", y, -1_i64)?;
        return one(u.cast(y, dtype)?);
    }
    one(transformed(u, real, imag, at, inverse, onesided, dtype)?)
}

fn transformed(
    u: &mut Use<'_>,
    real: ValueId,
    imag: Option<ValueId>,
    axis: i64,
    inverse: bool,
    onesided: bool,
    dtype: DType,
) -> Result<ValueId> {
    let args = [real, u.cx.lit(axis)];
    let mut parts = if onesided && imag.is_none() {
        u.outputs("rfft", &args)?
    } else {
        let none = u.cx.lit(Lit::None);
        let args = [real, imag.unwrap_or(none), args[1]];
        u.outputs(if inverse { "ifft" } else { "fft" }, &args)?
    };
    if onesided && imag.is_some() {
        let at = axis as usize;
        let size = u.shape(real)[at].clone();
        for v in &mut parts {
            let (starts, mut ends) = (vec![Lit::None; at + 1], vec![Lit::None; at + 1]);
            ends[at] = (&size.floor_div(&2.into()) + &1.into()).into();
            *v = op!(u, "slice", *v, starts, ends)?;
        }
    }
    let args = [u.cx.lit(-1_i64), parts[0], parts[1]];
    let y = u.op("stack", &args)?;
    u.cast(y, dtype)
}

/// Frames of the signal, each times the window, transformed: `[batch, frames, frequencies, 2]`.
fn stft(u: &mut Use<'_>) -> Outputs {
    let (x, step, window) = (u.x(0)?, u.number(1)? as i64, u.optional(2)?);
    let dtype = u.dtype(x);
    let length = match (u.has(3), window) {
        (true, _) => u.number(3)? as i64,
        (false, Some(w)) => u.shape(w).first().and_then(Dim::known).unwrap_or(0),
        (false, None) => u.shape(x).get(1).and_then(Dim::known).unwrap_or(0),
    };
    if step < 1 || length < 1 {
        return Err(malformed(format!("frames of {length} elements are {step} apart")));
    }
    if window.is_some_and(|w| *u.shape(w) != [length.into()]) {
        return Err(malformed("the window has another length than the frames"));
    }
    if !matches!(u.rank(x), 2 | 3) {
        return Err(malformed("a signal has the shape [batch, length, 1 or 2]"));
    }
    let onesided = u.flag("onesided", true)?;
    let mut x = if dtype == DType::F64 { x } else { u.cast(x, DType::F32)? };
    if u.rank(x) == 2 {
        x = op!(u, "expand_dims", x, -1_i64)?;
    }
    let (real, imag) = parts(u, x)?;
    let wide = u.dtype(real);
    let window = window.map(|w| u.cast(w, wide)).transpose()?;
    let framed = |u: &mut Use<'_>, v: ValueId| {
        let frames = op!(u, "unfold_axis", v, 1_i64, length, step)?;
        match window {
            Some(w) => op!(u, "multiply", frames, w),
            None => Ok(frames),
        }
    };
    let real = framed(u, real)?;
    let imag = imag.map(|v| framed(u, v)).transpose()?;
    one(transformed(u, real, imag, 2, false, onesided, dtype)?)
}

fn output_dtype(u: &Use<'_>) -> Result<DType> {
    Ok(u.dtype_of("output_datatype")?.unwrap_or(DType::F32))
}

/// A window by the angle of its elements, of which a whole turn is the size, or one less if it is symmetric.
fn window(u: &mut Use<'_>, shape: fn(f64) -> f64) -> Outputs {
    let (size, dtype) = (u.number(0)?, output_dtype(u)?);
    if !(0.0..=MAX_SIZE).contains(&size) {
        return Err(malformed(format!("a window has {size} elements")));
    }
    let turn = if u.flag("periodic", true)? { size } else { (size - 1.0).max(1.0) };
    let values: Vec<f64> =
        (0..size as usize).map(|i| shape(i as f64 * std::f64::consts::TAU / turn)).collect();
    one(u.cx.lit(Tensor::from_f64s(dtype, &[values.len()], &values)))
}

/// Triangles of equal width on the mel scale: `[frequencies, bins]`.
fn mel(u: &mut Use<'_>) -> Outputs {
    let (bins, length, rate) = (u.number(0)?, u.number(1)?, u.number(2)?);
    let (low, high, dtype) = (u.number(3)?, u.number(4)?, output_dtype(u)?);
    let rows = (length / 2.0).floor() + 1.0;
    if !(bins >= 0.0 && length >= 0.0 && rate > 0.0 && (bins + 2.0) * rows <= MAX_SIZE) {
        return Err(malformed(format!("a filter has {bins} bins for {length} samples at {rate}")));
    }
    let to_mel = |hertz: f64| 2595.0 * (hertz / 700.0).ln_1p() / std::f64::consts::LN_10;
    let to_hertz = |mel: f64| 700.0 * (mel / 2595.0 * std::f64::consts::LN_10).exp_m1();
    let (first, step) = (to_mel(low), (to_mel(high) - to_mel(low)) / (bins + 2.0));
    let edge = |i: f64| ((length + 1.0) * to_hertz(i * step + first) / rate).floor();
    let (rows, columns) = (rows as usize, bins as usize);
    let mut table = vec![0.0; rows * columns];
    for bin in 0..columns {
        let at = [0.0, 1.0, 2.0].map(|k| edge(bin as f64 + k));
        if at.iter().any(|e| !(0.0..=rows as f64).contains(e)) || at[1] >= rows as f64 {
            return Err(malformed("an edge of a filter lies beyond the frequencies"));
        }
        let [left, center, right] = at.map(|e| e as usize);
        let mut set = |row: usize, value: f64| table[row * columns + bin] = value;
        if left == center {
            set(center, 1.0);
        }
        (left..=center)
            .filter(|_| left < center)
            .for_each(|j| set(j, (j - left) as f64 / (center - left) as f64));
        (center..right).for_each(|j| set(j, (right - j) as f64 / (right - center) as f64));
    }
    one(u.cx.lit(Tensor::from_f64s(dtype, &[rows, columns], &table)))
}
