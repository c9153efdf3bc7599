//! Fourier transforms. There is no complex dtype: a complex tensor is a pair of real and imaginary part.

use std::f64::consts::TAU;

use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::formula::{ExpandCx, GradCx, V};
use crate::interp::{EvalCx, from_f64s};
use crate::loops::{CallArgument, Expr, LoopCx, accumulator, sizes_around};
use crate::lowering::LoweringRule::{Function, Template};
use crate::lowering::{Lowering, LoweringCx};
use crate::op::{
    Attr, BLANK, DTypeRule, DefaultLit, Eval, Grad, OpDef, Port, ShapeRule, Tolerance, attr, optional, tensor,
};
use crate::rules::{Attrs, ShapeCx};
use crate::shape::Shape;
use crate::tensor::Tensor;

use super::create::ARANGE;
use super::linalg::{as_column, reshape, transposed};

/// Ops of this file.
pub static OPS: &[&OpDef] = &[&FFT, &IFFT, &RFFT, &IRFFT];

const AXIS: Port = attr("axis", Attr::Int, DefaultLit::Int(-1));
const NORM: Port = attr("norm", Attr::Choice(&["backward", "ortho", "forward"]), DefaultLit::Str("backward"));

const TRANSFORM: OpDef = OpDef {
    ports: &[tensor("real"), optional("imag"), AXIS, NORM],
    outputs: &["output_real", "output_imag"],
    shape: ShapeRule::Fn(complex_shape),
    dtype: DTypeRule::Float,
    cases: &[
        "[8]",
        "[5] [5]",
        "[2,6,3] axis=1",
        "[2,3,4] [2,3,4] axis=0 norm=\"ortho\"",
        "[1] [1]",
        "[7] norm=\"forward\"",
    ],
    tolerance: Tolerance::Contraction,
    ..BLANK
};

/// Discrete Fourier transform
pub static FFT: OpDef = OpDef {
    name: "fft",
    doc: "Discrete Fourier transform along `axis` of `real + i·imag` (`imag` absent: 0); any size.\n\n\
          `output[k] = Σ_t input[t] · exp(-2πi·k·t/n)`, divided by `√n` with `norm=\"ortho\"` and by `n` with \
          `norm=\"forward\"`. The two outputs are the real and the imaginary part.",
    layer: "Fft",
    eval: Some(Eval::Tensors(|c| complex_eval(c, false))),
    expand: Some(|c| complex_expand(c, -1.0)),
    loops: Some(|c| {
        let by = scale(c, 3, axis_size(c, 2)? as f64, false)?;
        fft_loops(c, [0, 1], 2, -1.0, by)
    }),
    grad: Grad::Formula(|v| complex_grad(v, &IFFT)),
    lowering: Lowering {
        numpy: Template("_fft({0}, {1}, {2}, {3})"),
        torch: Function(|s| torch_complex(s, "fft")),
        jax: Template("_fft({0}, {1}, {2}, {3})"),
        mlx: Function(|s| mlx_complex(s, "fft")),
        ..Lowering::NONE
    },
    ..TRANSFORM
};

/// Inverse discrete Fourier transform
pub static IFFT: OpDef = OpDef {
    name: "ifft",
    doc: "Inverse discrete Fourier transform along `axis` of `real + i·imag` (`imag` absent: 0); any size.\n\n\
          `output[t] = 1/n · Σ_k input[k] · exp(2πi·k·t/n)`; the factor is `1/√n` with `norm=\"ortho\"` and 1 with \
          `norm=\"forward\"`. The two outputs are the real and the imaginary part.",
    layer: "InverseFft",
    eval: Some(Eval::Tensors(|c| complex_eval(c, true))),
    expand: Some(|c| complex_expand(c, 1.0)),
    loops: Some(|c| {
        let by = scale(c, 3, axis_size(c, 2)? as f64, true)?;
        fft_loops(c, [0, 1], 2, 1.0, by)
    }),
    grad: Grad::Formula(|v| complex_grad(v, &FFT)),
    lowering: Lowering {
        numpy: Template("_ifft({0}, {1}, {2}, {3})"),
        torch: Function(|s| torch_complex(s, "ifft")),
        jax: Template("_ifft({0}, {1}, {2}, {3})"),
        mlx: Function(|s| mlx_complex(s, "ifft")),
        ..Lowering::NONE
    },
    ..TRANSFORM
};

/// Discrete Fourier transform of a real signal
pub static RFFT: OpDef = OpDef {
    name: "rfft",
    doc: "Discrete Fourier transform of a real signal along `axis`: the frequencies 0 to n/2.\n\n\
          The other half of the spectrum is the complex conjugate of this one. `norm` is as in `fft`. The two \
          outputs are the real and the imaginary part, of size `n // 2 + 1`.",
    layer: "RealFft",
    ports: &[tensor("input"), AXIS, NORM],
    shape: ShapeRule::Fn(|cx| {
        let mut out = cx.shape(0).clone();
        let axis = cx.axis(1, out.rank())?;
        not_empty(cx, &out[axis])?;
        out.0[axis] = half(&out[axis]);
        Ok(vec![out.clone(), out])
    }),
    eval: Some(Eval::Tensors(rfft_eval)),
    expand: Some(rfft_expand),
    loops: Some(|c| {
        let by = scale(c, 2, axis_size(c, 1)? as f64, false)?;
        fft_loops(c, [0, usize::MAX], 1, -1.0, by)
    }),
    grad: Grad::Formula(|v| {
        let (axis, n) = axis_and_size(v, v.x[0], 1);
        let weights = weights(v, &n, axis, v.x[0]);
        let n = v.cx.lit(n);
        vec![(v.gs[0] / weights).op(&IRFFT, &[v.gs[1] / weights, n, v.x[1], dual(v, 2)])]
    }),
    lowering: Lowering {
        numpy: Template("_rfft({0}, {1}, {2})"),
        torch: Function(|s| {
            let call = format!("torch.fft.rfft({}, dim={}, norm={})", single(s, 0)?, s.arg(1), s.arg(2));
            Some(torch_parts(s, &call))
        }),
        jax: Template("_rfft({0}, {1}, {2})"),
        mlx: Function(|s| {
            let [x, axis, norm] = [0, 1, 2].map(|i| s.arg(i));
            single_mlx(s)?;
            Some(format!("_transform(mx.fft.rfft, {x}, None, {axis}, {norm})"))
        }),
        ..Lowering::NONE
    },
    cases: &["[8]", "[5]", "[2,6,3] axis=1", "[3,2] axis=0 norm=\"ortho\"", "[1]", "[2] norm=\"forward\""],
    ..TRANSFORM
};

/// Inverse of [`RFFT`]
pub static IRFFT: OpDef = OpDef {
    name: "irfft",
    doc: "The real signal of which `real + i·imag` are the frequencies 0 to n/2 along `axis`: the inverse of \
          `rfft`.\n\n\
          `n` is the size of the signal, `2·(m-1)` for `m` frequencies if not given; to get a signal of odd size, \
          give it. The imaginary part of frequency 0, and of frequency n/2 for even `n`, is not read. `norm` is as \
          in `ifft`.",
    layer: "InverseRealFft",
    ports: &[tensor("real"), tensor("imag"), attr("n", Attr::OptInt, DefaultLit::None), AXIS, NORM],
    outputs: &["output"],
    shape: ShapeRule::Fn(irfft_shape),
    eval: Some(Eval::Tensors(irfft_eval)),
    expand: Some(irfft_expand),
    loops: Some(|c| {
        let n = c.out_shape(0)[c.axis(3, c.rank(0))?];
        fft_loops(c, [0, 1], 3, 1.0, scale(c, 4, n as f64, true)?)
    }),
    grad: Grad::Formula(|v| {
        let (axis, n) = axis_and_size(v, v.y, 3);
        let weights = weights(v, &n, axis, v.x[0]);
        let back = v.cx.apply(&RFFT, &[v.g, v.x[3], dual(v, 4)]);
        back.into_iter().map(|part| part * weights).collect()
    }),
    lowering: Lowering {
        numpy: Template("_irfft({0}, {1}, {2}, {3}, {4})"),
        torch: Function(|s| {
            let n = s.dim(&s.out(0)?.shape[s.axis(3, s.ty(0)?.shape.rank()).ok()?]);
            let (axis, norm) = (s.arg(3), s.arg(4));
            let x = format!("torch.complex({}, {})", single(s, 0)?, single(s, 1)?);
            Some(format!("torch.fft.irfft({x}, n={n}, dim={axis}, norm={norm}){}", back(s)))
        }),
        jax: Template("_irfft({0}, {1}, {2}, {3}, {4})"),
        mlx: Function(|s| {
            let n = s.dim(&s.out(0)?.shape[s.axis(3, s.ty(0)?.shape.rank()).ok()?]);
            let [re, im, axis, norm] = [0, 1, 3, 4].map(|i| s.arg(i));
            single_mlx(s)?;
            Some(format!("_irfft({re}, {im}, {n}, {axis}, {norm})"))
        }),
        ..Lowering::NONE
    },
    cases: &[
        "[5] [5]",
        "[5] [5] n=9",
        "[2,4,3] [2,4,3] axis=1",
        "[2,3] [2,3] axis=0 n=2 norm=\"ortho\"",
        "[1] [1] n=1",
        "[3] [3] n=5 norm=\"forward\"",
    ],
    ..TRANSFORM
};

/// MLX has only complex numbers of float32.
fn single_mlx(s: &LoweringCx<'_>) -> Option<()> {
    (s.ty(0)?.dtype != DType::F64).then_some(())
}

fn mlx_complex(s: &LoweringCx<'_>, name: &str) -> Option<String> {
    single_mlx(s)?;
    let [re, im, axis, norm] = [0, 1, 2, 3].map(|i| s.arg(i));
    Some(format!("_transform(mx.fft.{name}, {re}, {im}, {axis}, {norm})"))
}

// --- shapes ------------------------------------------------------------------------------------------------

fn half(n: &Dim) -> Dim {
    &n.floor_div(&Dim::Const(2)) + &Dim::ONE
}

fn not_empty(cx: &ShapeCx<'_>, n: &Dim) -> Result<()> {
    if n.known().is_none_or(|n| n > 0) { Ok(()) } else { Err(empty(cx.op())) }
}

#[cold]
fn empty(op: &OpDef) -> Error {
    Error::new(Code::BadSize, format!("{} along an axis without elements", op.name))
        .help("a Fourier transform needs at least one element")
}

/// Checks that the two parts have one shape.
fn parts_fit<'s>(cx: &'s ShapeCx<'_>) -> Result<&'s Shape> {
    let (real, imag) = (cx.shape(0), cx.shape(1));
    if cx.has(1) {
        cx.rank(1, &[real.rank()])?;
        for (a, b) in real.iter().zip(imag.iter()) {
            cx.same(a, b, "sizes of the real and the imaginary part")?;
        }
    }
    Ok(real)
}

fn complex_shape(cx: &ShapeCx<'_>) -> Result<Vec<Shape>> {
    let shape = parts_fit(cx)?;
    not_empty(cx, &shape[cx.axis(2, shape.rank())?])?;
    Ok(vec![shape.clone(); 2])
}

fn irfft_shape(cx: &ShapeCx<'_>) -> Result<Vec<Shape>> {
    let mut out = parts_fit(cx)?.clone();
    let axis = cx.axis(3, out.rank())?;
    let frequencies = &out[axis];
    let n = if cx.absent(2) { &Dim::Const(2) * &(frequencies - &Dim::ONE) } else { cx.dim(2)? };
    if n.known().is_some_and(|n| n < 1) {
        let message = format!("irfft of {frequencies} frequencies to a signal of {n} elements");
        return Err(Error::new(Code::BadSize, message)
            .help("give the size of the signal as `n`, at least 1; a single frequency needs n=1"));
    }
    cx.same(frequencies, &half(&n), "number of frequencies and n // 2 + 1")?;
    out.0[axis] = n;
    Ok(vec![out])
}

// --- reference evaluation ----------------------------------------------------------------------------------

/// Real and imaginary part.
type Complex = (f64, f64);

/// The `n`-th roots of unity `exp(2πi·j/n)`, exact at multiples of π/2.
fn roots(n: usize) -> Vec<Complex> {
    let root = |j: usize| match 8 * j {
        0 => (1.0, 0.0),
        e if e == 2 * n => (0.0, 1.0),
        e if e == 4 * n => (-1.0, 0.0),
        e if e == 6 * n => (0.0, -1.0),
        _ => {
            let angle = TAU * j as f64 / n as f64;
            (angle.cos(), angle.sin())
        }
    };
    (0..n).map(root).collect()
}

/// `Σ_t x[t] · exp(sign·2πi·k·t/n)` for all `k`, by splitting off the smallest prime factor of `n` (Cooley and
/// Tukey 1965); `roots` are those of a multiple of `n`.
fn transform(x: &[Complex], roots: &[Complex], sign: f64) -> Vec<Complex> {
    let n = x.len();
    if n <= 1 {
        return x.to_vec();
    }
    let p = (2..n).find(|&p| n.is_multiple_of(p)).unwrap_or(n);
    let m = n / p;
    let parts: Vec<Vec<Complex>> = (0..p)
        .map(|r| transform(&x.iter().skip(r).step_by(p).copied().collect::<Vec<_>>(), roots, sign))
        .collect();
    let step = roots.len() / n;
    (0..n)
        .map(|k| {
            parts.iter().enumerate().fold((0.0, 0.0), |sum, (r, part)| {
                let (cos, sin) = roots[r * k % n * step];
                let ((re, im), sin) = (part[k % m], sign * sin);
                (sum.0 + re * cos - im * sin, sum.1 + re * sin + im * cos)
            })
        })
        .collect()
}

/// The factor of a transform of size `n`; `port` is that of `norm`.
fn scale(call: &impl Attrs, port: usize, n: f64, inverse: bool) -> Result<f64> {
    Ok(match (call.text(port)?.as_str(), inverse) {
        ("ortho", _) => 1.0 / n.sqrt(),
        ("backward", true) | ("forward", false) => 1.0 / n,
        _ => 1.0,
    })
}

/// Applies `f` to each line along `axis`, and collects the results in tensors of the output's types.
fn along(
    call: &EvalCx<'_>,
    axis: usize,
    read: impl Fn(usize) -> Complex,
    f: impl Fn(Vec<Complex>) -> Vec<Complex>,
) -> Vec<Tensor> {
    let (input, out) = (call.tensor(0).shape(), call.shape());
    let (n, m) = (input[axis], out[axis]);
    let inner: usize = out[axis + 1..].iter().product();
    let lines = out[..axis].iter().product::<usize>() * inner;
    let mut parts = [vec![0.0; lines * m], vec![0.0; lines * m]];
    for line in 0..lines {
        let (outer, rest) = (line / inner, line % inner);
        let y = f((0..n).map(|t| read((outer * n + t) * inner + rest)).collect());
        for (k, (re, im)) in y.into_iter().take(m).enumerate() {
            parts[0][(outer * m + k) * inner + rest] = re;
            parts[1][(outer * m + k) * inner + rest] = im;
        }
    }
    parts.into_iter().take(call.out.len()).map(|values| from_f64s(call.dtype(), out, values)).collect()
}

fn scaled(mut values: Vec<Complex>, by: f64) -> Vec<Complex> {
    for x in &mut values {
        *x = (x.0 * by, x.1 * by);
    }
    values
}

/// Size along an axis, which must be positive.
fn size(call: &EvalCx<'_>, shape: &[usize], axis: usize) -> Result<usize> {
    if shape[axis] == 0 { Err(empty(call.op())) } else { Ok(shape[axis]) }
}

fn complex_eval(call: &EvalCx<'_>, inverse: bool) -> Result<Vec<Tensor>> {
    let (real, imag) = (call.tensor(0), call.get(1));
    let axis = call.axis(2, real.rank())?;
    let n = size(call, real.shape(), axis)?;
    let (roots, by) = (roots(n), scale(call, 3, n as f64, inverse)?);
    let sign = if inverse { 1.0 } else { -1.0 };
    let read = |i: usize| (real.get(i).f64(), imag.map_or(0.0, |t| t.get(i).f64()));
    Ok(along(call, axis, read, |x| scaled(transform(&x, &roots, sign), by)))
}

fn rfft_eval(call: &EvalCx<'_>) -> Result<Vec<Tensor>> {
    let x = call.tensor(0);
    let axis = call.axis(1, x.rank())?;
    let n = size(call, x.shape(), axis)?;
    let (roots, by) = (roots(n), scale(call, 2, n as f64, false)?);
    Ok(along(call, axis, |i| (x.get(i).f64(), 0.0), |x| scaled(transform(&x, &roots, -1.0), by)))
}

fn irfft_eval(call: &EvalCx<'_>) -> Result<Vec<Tensor>> {
    let (real, imag) = (call.tensor(0), call.tensor(1));
    let axis = call.axis(3, real.rank())?;
    let n = size(call, call.shape(), axis)?;
    let (roots, by) = (roots(n), scale(call, 4, n as f64, true)?);
    let whole = |x: Vec<Complex>| {
        let at = |k: usize| match k {
            k if k == 0 || 2 * k == n => (x[k].0, 0.0),
            k if 2 * k < n => x[k],
            k => (x[n - k].0, -x[n - k].1),
        };
        let spectrum: Vec<Complex> = (0..n).map(at).collect();
        scaled(transform(&spectrum, &roots, 1.0), by)
    };
    Ok(along(call, axis, |i| (real.get(i).f64(), imag.get(i).f64()), whole))
}

// --- call of the C prelude ---------------------------------------------------------------------------------

/// Size of the input along the axis at a port.
fn axis_size(c: &LoopCx<'_>, port: usize) -> Result<i64> {
    Ok(c.shape(0)[c.axis(port, c.rank(0))?])
}

/// Approximate number of elements that are transformed at once: they fit into the second-level cache.
const FFT_ELEMENTS: i64 = 1 << 16;

/// The number of lines of `n` elements that `mithril_fft` transforms at once, and its scratch memory in bytes.
fn fft_work(lines: i64, n: i64) -> (i64, usize) {
    let mut rest = n;
    for p in 2..=61 {
        while rest % p == 0 {
            rest /= p;
        }
    }
    let lanes = (FFT_ELEMENTS / n).min(lines).clamp(1, 16);
    let (size, all) = (n as usize, 4 * lanes as usize);
    let whole = (2 * size - 1).next_power_of_two();
    (lanes, 8 * if rest == 1 { (2 + all) * size + 320 } else { 2 * size + (4 + all) * whole })
}

/// The transform of the parts at `ports` (the second may be absent). The spectrum of a real signal is its first half.
fn fft_loops(c: &LoopCx<'_>, ports: [usize; 2], axis: usize, sign: f64, by: f64) -> Result<Vec<Expr>> {
    let axis = c.axis(axis, c.rank(0))?;
    let (outer, available, inner) = sizes_around(&c.shape(0), axis);
    let kept = c.out_shape(0)[axis];
    let size = available.max(kept);
    let wide = accumulator(c.out_dtype(0));
    let null = || CallArgument::Int(0);
    let parts = ports.map(|i| if c.has(i) { CallArgument::In(c.stored(i, wide)) } else { null() });
    let outputs: Vec<usize> = (0..c.out_len()).map(|i| c.reserve(wide, c.out_shape(i))).collect();
    let (lanes, bytes) = fft_work(outer * inner, size);
    let mut args = parts.to_vec();
    args.extend((0..2).map(|i| outputs.get(i).map_or_else(null, |&output| CallArgument::Out(output))));
    args.extend([outer, available, size, kept, inner, lanes].map(CallArgument::Int));
    args.extend([sign, by].map(CallArgument::Float));
    c.call(format!("mithril_fft_{}", wide.short()), args, bytes);
    let rounded = |(i, output): (usize, usize)| c.output(i, |at| c.load(output, at).cast(c.out_dtype(i)));
    Ok(outputs.into_iter().enumerate().map(rounded).collect())
}

// --- expansion into products with matrices of cosines and sines ----------------------------------------------

/// The dtype in which a transform of `dtype` is computed.
fn working(dtype: DType) -> DType {
    if dtype.size() < DType::F32.size() { DType::F32 } else { dtype }
}

/// `0, 1, …, n-1`
fn counting<'a>(like: V<'a>, n: &Dim) -> V<'a> {
    like.lit(n.clone()).op(&ARANGE, &[])
}

/// `cos` and `sin` of `2π·k·t/n` for `k` below `rows` and `t` below `n`.
fn waves<'a>(like: V<'a>, rows: &Dim, n: &Dim) -> (V<'a>, V<'a>) {
    let cx = like.cx();
    let size = cx.lit(n.clone());
    // Reduced modulo n as an integer: a large angle would lose all accuracy as a float.
    let products = as_column(counting(like, rows)) * counting(like, n);
    let turns = products.remainder(size);
    let over = (turns * 2).greater(size);
    let turns = over.select(turns - size, turns);
    let angle = turns.cast(working(like.dtype())) * TAU / size;
    // The zeros are exact, as in `roots`.
    let zero_where = |factor: i64, wave: V<'a>| {
        let turns = turns.abs() * factor;
        turns.equal(size).select(0.0, wave)
    };
    (zero_where(4, angle.cos()), zero_where(2, angle.sin()))
}

/// The tensor with `axis` last, in the dtype of the computation.
fn lined_up<'a>(x: V<'a>, axis: V<'a>) -> V<'a> {
    swapped(x, axis).cast(working(x.dtype()))
}

fn swapped<'a>(x: V<'a>, axis: V<'a>) -> V<'a> {
    let rank = x.rank() as i64;
    let last = matches!(axis.literal(), Some(crate::literal::Lit::Int(d)) if d.is(-1) || d.is(rank - 1));
    if last { x } else { x.swapaxes(axis, -1) }
}

/// The result scaled by the factor of the transform: a number or, if `n` is a symbol, a value.
fn normed<'a>(c: &ExpandCx<'a>, port: usize, x: V<'a>, n: &Dim, inverse: bool) -> V<'a> {
    if let Some(n) = n.known() {
        let by = c.get(|c| scale(c, port, n as f64, inverse));
        return if by == 1.0 { x } else { x * by };
    }
    // The factor for two elements identifies the norm: 1, 1/2 or 1/√2.
    let by = c.get(|c| scale(c, port, 2.0, inverse));
    let n = c.cx.lit(n.clone());
    match by {
        1.0 => x,
        0.5 => x / n,
        _ => x / (x.lit(1.0).cast(x.dtype()) * n).sqrt(),
    }
}

fn complex_expand<'a>(c: &ExpandCx<'a>, sign: f64) -> Vec<V<'a>> {
    let (real, imag, axis) = (c.x[0], c.x[1], c.x[2]);
    let n = real.dim(c.get(|c| c.int(2)));
    let (cos, sin) = waves(real, &n, &n);
    let product = |x: V<'a>, wave: V<'a>| lined_up(x, axis).matmul(wave);
    let (mut re, mut im) = (product(real, cos), product(real, sin * sign));
    if imag.is_some() {
        re = re - product(imag, sin * sign);
        im = im + product(imag, cos);
    }
    let finish = |x: V<'a>| swapped(normed(c, 3, x, &n, sign > 0.0).cast(real.dtype()), axis);
    vec![finish(re), finish(im)]
}

fn rfft_expand<'a>(c: &ExpandCx<'a>) -> Vec<V<'a>> {
    let (x, axis) = (c.x[0], c.x[1]);
    let n = x.dim(c.get(|c| c.int(1)));
    let (cos, sin) = waves(x, &half(&n), &n);
    [cos, -sin]
        .into_iter()
        .map(|wave| {
            let y = lined_up(x, axis).matmul(transposed(wave));
            swapped(normed(c, 2, y, &n, false).cast(x.dtype()), axis)
        })
        .collect()
}

fn irfft_expand<'a>(c: &ExpandCx<'a>) -> Vec<V<'a>> {
    let (real, imag, axis) = (c.x[0], c.x[1], c.x[3]);
    let frequencies = real.dim(c.get(|c| c.int(3)));
    let declared = if c.absent(2) { None } else { Some(c.get(|c| c.dim(2).map(Some))) };
    let n = declared.flatten().unwrap_or_else(|| &Dim::Const(2) * &(&frequencies - &Dim::ONE));
    let (cos, sin) = waves(real, &frequencies, &n);
    let weights = half_weights(real, &frequencies, &n).cast(working(real.dtype()));
    let product = |x: V<'a>, wave: V<'a>| (lined_up(x, axis) * weights).matmul(wave);
    let y = product(real, cos) - product(imag, sin);
    vec![swapped(normed(c, 4, y, &n, true).cast(real.dtype()), axis)]
}

// --- gradients: a transform is linear, so its gradient is a transform ------------------------------------------

/// The number of times that each of the frequencies 0 to n/2 occurs in the full spectrum: 2, but 1 for 0 and n/2.
fn half_weights<'a>(like: V<'a>, frequencies: &Dim, n: &Dim) -> V<'a> {
    let k = counting(like, frequencies);
    let once = |same: V<'a>| same.cast(DType::I64);
    let zero = once(k.equal(0));
    let middle = once((k * k.lit(2)).equal(n.clone()));
    k.lit(2) - zero - middle
}

/// The same, as factors along `axis` of a spectrum.
fn weights<'a>(v: &GradCx<'a>, n: &Dim, axis: usize, x: V<'a>) -> V<'a> {
    let frequencies = half(n);
    let factors = half_weights(v.y, &frequencies, n).cast(working(x.dtype())).cast(x.dtype());
    reshape(factors, [frequencies].into_iter().chain(vec![Dim::ONE; x.rank() - 1 - axis]))
}

fn axis_and_size<'a>(v: &GradCx<'a>, x: V<'a>, port: usize) -> (usize, Dim) {
    let axis = v.get(|c| c.axis(port, x.rank()));
    (axis, x.dim(axis as i64))
}

/// The norm under which the opposite transform has the same factor.
fn dual<'a>(v: &GradCx<'a>, port: usize) -> V<'a> {
    let norm = v.get(|c| c.text(port));
    v.cx.lit(match norm.as_str() {
        "backward" => "forward",
        "forward" => "backward",
        other => other,
    })
}

fn complex_grad<'a>(v: &GradCx<'a>, opposite: &'static OpDef) -> Vec<V<'a>> {
    let back = v.cx.apply(opposite, &[v.gs[0], v.gs[1], v.x[2], dual(v, 3)]);
    vec![back[0], if v.x[1].is_some() { back[1] } else { v.none() }]
}

// --- lowerings ---------------------------------------------------------------------------------------------

/// Whether torch transforms in single precision: 16-bit floats.
fn is_half(s: &LoweringCx<'_>) -> bool {
    s.out(0).is_some_and(|ty| ty.dtype.size() < DType::F32.size())
}

/// Input `i`, in single precision at least.
fn single(s: &LoweringCx<'_>, i: usize) -> Option<String> {
    s.ty(i)?;
    Some(if is_half(s) { format!("{}.float()", s.arg(i)) } else { s.arg(i).to_owned() })
}

/// The conversion of a result that was computed in single precision.
fn back(s: &LoweringCx<'_>) -> String {
    match s.out(0) {
        Some(ty) if is_half(s) => format!(".to({})", s.dtype(ty.dtype)),
        _ => String::new(),
    }
}

/// Both parts of a complex array.
fn torch_parts(s: &LoweringCx<'_>, call: &str) -> String {
    format!("torch.view_as_real({call}.resolve_conj()){}.unbind(-1)", back(s))
}

fn torch_complex(s: &LoweringCx<'_>, function: &str) -> Option<String> {
    let x = match single(s, 1) {
        Some(imag) => format!("torch.complex({}, {imag})", single(s, 0)?),
        None => single(s, 0)?,
    };
    Some(torch_parts(s, &format!("torch.fft.{function}({x}, dim={}, norm={})", s.arg(2), s.arg(3))))
}
