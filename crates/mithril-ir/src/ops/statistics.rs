//! Statistics and norms over axes.

use crate::dim::Dim;
use crate::dtype::DType;
use crate::formula::{ExpandCx, GradCx, V};
use crate::literal::Lit;
use crate::lowering::LoweringRule::Function;
use crate::lowering::{Lowering, LoweringCx};
use crate::op::{Attr, DTypeRule, DefaultLit, Grad, OpDef, Port, attr, tensor};
use crate::ops::reduce::{
    ARRAY, COUNT_NONZERO, MAX, MIN, REDUCTION, SUM, all_axes, axes, call_text, count, float_of, float_result,
    floating, input_dtype, keep, keepdim, statistic, torch_float,
};
use crate::rules::Attrs;

/// Ops of this file.
pub static OPS: &[&OpDef] = &[&VAR, &STD, &NORM, &LOGSUMEXP];

static VARIANCE_PORTS: &[Port] = &[
    tensor("input"),
    attr("axis", Attr::OptInts, DefaultLit::None),
    attr("keepdim", Attr::Bool, DefaultLit::Bool(false)),
    attr("correction", Attr::Float, DefaultLit::Float(1.0)),
];

const VARIANCE: OpDef = OpDef {
    ports: VARIANCE_PORTS,
    dtype: DTypeRule::Fn(float_result),
    cases: &[
        "[2,3]",
        "[2,3] axis=1 keepdim=true",
        "[2,3,4] axis=(0,-1) correction=0",
        "[4,5] axis=0 correction=2",
    ],
    ..REDUCTION
};

/// Difference of each element from the mean, and the divisor of the sum of squares.
fn centered<'a>(c: &ExpandCx<'a>) -> (V<'a>, V<'a>) {
    let x = floating(c.x[0]);
    let correction = c.get(|c| c.f64(3));
    let freedom = match count(c) {
        Dim::Const(n) => c.cx.lit((n as f64 - correction).max(0.0)),
        n @ Dim::Expr(_) if correction.fract() == 0.0 => c.cx.lit(&n - &Dim::Const(correction as i64)),
        n @ Dim::Expr(_) => (c.cx.lit(n) - correction).cast(x.dtype()),
    };
    (x - x.mean(c.x[1], true), freedom)
}

/// The correction, as an integer if it is one, since MLX accepts only integers.
fn correction_text(c: &LoweringCx<'_>) -> Option<String> {
    c.f64(3).ok().map(|x| x.to_string())
}

/// The correction for libraries that call it `ddof`; MLX accepts only integers.
fn degrees(c: &LoweringCx<'_>) -> Option<String> {
    let is_whole = c.f64(3).ok()?.fract() == 0.0;
    correction_text(c).filter(|_| is_whole || c.xp != "mx")
}

/// `Σ (input - mean)² / (n - correction)`
pub static VAR: OpDef = OpDef {
    name: "var",
    doc: "Variance over `axis` (all axes if none is given): `Σ (x - mean)² / max(0, n - correction)`. The \
         correction is 1 unless given (Bessel's), 0 is the variance of a whole population. Integers become the \
         default float; half precision is computed in float32.",
    aliases: &["variance"],
    layer: "Var",
    expand: Some(|c| {
        let (difference, freedom) = centered(c);
        let sum = (difference * difference).op(&SUM, &c.x[1..3]);
        vec![(sum / freedom).cast(float_of(c.x[0]))]
    }),
    grad: Grad::Formula(|v| {
        let (difference, freedom) = centered(v);
        vec![keep(v, v.g) * (2.0 * difference / freedom)]
    }),
    lowering: Lowering {
        py: Function(|c| statistic(c, "var", &format!(", ddof={}", degrees(c)?))),
        torch: Function(|c| torch_float(c, "torch.var(", &format!(", correction={}", correction_text(c)?))),
        ..Lowering::NONE
    },
    ..VARIANCE
};

/// `√var`
pub static STD: OpDef = OpDef {
    name: "std",
    doc: "Standard deviation over `axis` (all axes if none is given), the square root of `var`. The correction is \
         1 unless given. The gradient at identical values is 0.",
    aliases: &["standard_deviation"],
    layer: "Std",
    expand: Some(|c| vec![floating(c.x[0]).op(&VAR, &c.x[1..]).sqrt().cast(float_of(c.x[0]))]),
    grad: Grad::Formula(|v| {
        let (difference, freedom) = centered(v);
        let y = keep(v, v.y);
        vec![keep(v, v.g) * (difference / (freedom * unless_zero(y)))]
    }),
    lowering: Lowering {
        py: Function(|c| statistic(c, "std", &format!(", ddof={}", degrees(c)?))),
        torch: Function(|c| torch_float(c, "torch.std(", &format!(", correction={}", correction_text(c)?))),
        jax: Function(deviation),
        mlx: Function(deviation),
        ..Lowering::NONE
    },
    ..VARIANCE
};

/// `y`, or 1 where it is 0: a divisor for a dividend that is 0 there.
fn unless_zero(y: V<'_>) -> V<'_> {
    y.equal(0.0).select(1.0, y)
}

static NORM_PORTS: &[Port] = &[
    tensor("input"),
    attr("p", Attr::Float, DefaultLit::Float(2.0)),
    attr("axis", Attr::OptInts, DefaultLit::None),
    attr("keepdim", Attr::Bool, DefaultLit::Bool(false)),
];

/// `(Σ |input|^p)^(1/p)`
pub static NORM: OpDef = OpDef {
    name: "norm",
    doc: "Vector norm `(Σ |x|^p)^(1/p)` over `axis` (all axes if none is given). `p` is 2 unless given; infinity is \
         the largest absolute value, minus infinity the smallest, 0 the number of elements that are not 0. The \
         gradient is 0 where an element or the norm is 0. Half precision is computed in float32.",
    aliases: &["vector_norm"],
    layer: "Norm",
    ports: NORM_PORTS,
    dtype: DTypeRule::Fn(float_result),
    expand: Some(norm),
    grad: Grad::Formula(norm_grad),
    lowering: Lowering {
        torch: Function(|c| {
            let p = format!(", ord={}", c.arg(1));
            torch_float(c, "torch.linalg.vector_norm(", &p)
        }),
        jax: Function(euclidean),
        mlx: Function(euclidean),
        ..Lowering::NONE
    },
    cases: &[
        "[2,3]",
        "[2,3] p=1 axis=1 keepdim=true",
        "[2,3,4] p=3.5 axis=(0,-1)",
        "[2,3] p=inf axis=0",
        "[2,3] p=-inf axis=0",
        "[2,3] p=0",
        "[3] p=0.5",
    ],
    ..REDUCTION
};

fn norm<'a>(c: &ExpandCx<'a>) -> Vec<V<'a>> {
    let x = floating(c.x[0]);
    let over = &c.x[2..];
    let size = || x.abs();
    let y = match c.get(|c| c.f64(1)) {
        2.0 => (x * x).op(&SUM, over).sqrt(),
        1.0 => size().op(&SUM, over),
        0.0 => x.op(&COUNT_NONZERO, over),
        f64::INFINITY => size().op(&MAX, over),
        f64::NEG_INFINITY => size().op(&MIN, over),
        p => {
            let sum = size().power(p).op(&SUM, over);
            sum.power(1.0 / p)
        }
    };
    vec![y.cast(float_of(c.x[0]))]
}

fn norm_grad<'a>(v: &GradCx<'a>) -> Vec<V<'a>> {
    let x = floating(v.x[0]);
    let (g, y) = (keep(v, v.g), keep(v, v.y).cast(x.dtype()));
    let (sign, size) = (x.sign(), x.abs());
    vec![match v.get(|c| c.f64(1)) {
        2.0 => g * (x / unless_zero(y)),
        1.0 => g * sign,
        0.0 => v.none(),
        p if p.is_infinite() => {
            let is_extreme = size.equal(y);
            let ties = is_extreme.cast(x.dtype()).sum(v.x[2], true);
            is_extreme.select(g / ties * sign, 0.0)
        }
        p => {
            let ratio = unless_zero(size) / unless_zero(y);
            g * sign * ratio.power(p - 1.0)
        }
    }]
}

/// A helper for the standard deviation of floats.
fn deviation(c: &LoweringCx<'_>) -> Option<String> {
    let ddof = degrees(c).filter(|_| input_dtype(c).is_some_and(DType::is_float))?;
    Some(call_text(c, "_std(", ARRAY, &format!(", ddof={ddof}")))
}

/// A helper for the Euclidean norm of floats.
fn euclidean(c: &LoweringCx<'_>) -> Option<String> {
    let fits = c.f64(1).ok()? == 2.0 && input_dtype(c)?.is_float();
    fits.then(|| call_text(c, "_norm(", ARRAY, ""))
}

/// `log Σ e^input`
pub static LOGSUMEXP: OpDef = OpDef {
    name: "logsumexp",
    doc: "`log Σ exp(x)` over `axis` (all axes if none is given), computed as `max + log Σ exp(x - max)`, which \
         does not overflow. Minus infinity where all elements are. Half precision is computed in float32.",
    aliases: &["log_sum_exp", "reduce_logsumexp"],
    layer: "LogSumExp",
    dtype: DTypeRule::Fn(float_result),
    expand: Some(|c| {
        let x = floating(c.x[0]);
        let max = x.max(c.x[1], true);
        // An infinite maximum would turn the difference into NaN.
        let max = max.is_finite().select(max, 0.0);
        let y = (x - max).exp().sum(c.x[1], true).log() + max;
        let y = if c.get(keepdim) { y } else { y.reshape(bare_shape(c)) };
        vec![y.cast(float_of(c.x[0]))]
    }),
    grad: Grad::Formula(|v| {
        let y = keep(v, v.y);
        let y = y.equal(f64::NEG_INFINITY).select(0.0, y);
        vec![keep(v, v.g) * (v.x[0] - y).exp()]
    }),
    lowering: Lowering {
        torch: Function(|c| {
            let axis = if c.absent(1) { all_axes(c) } else { c.arg(1).to_owned() };
            let keep = if keepdim(c).ok()? { ", keepdim=True" } else { "" };
            let fits = input_dtype(c)?.is_float() && axis != "()";
            fits.then(|| format!("torch.logsumexp({}, dim={axis}{keep})", c.arg(0)))
        }),
        jax: Function(|c| {
            let fits = input_dtype(c)?.is_float();
            fits.then(|| call_text(c, "jax.nn.logsumexp(", ARRAY, ""))
        }),
        mlx: Function(|c| {
            let (dtype, is_empty) = (input_dtype(c)?, c.ty(0)?.shape.iter().any(|d| d.is(0)));
            let head = if dtype == DType::F64 { "_logsumexp(" } else { "mx.logsumexp(" };
            (dtype.is_float() && !is_empty).then(|| call_text(c, head, ARRAY, ""))
        }),
        ..Lowering::NONE
    },
    ..REDUCTION
};

/// The shape without the reduced axes.
fn bare_shape(call: &ExpandCx<'_>) -> Lit {
    let shape = call.x[0].shape();
    let axes = call.get(|c| axes(c, shape.rank()));
    Lit::tuple(shape.iter().enumerate().filter(|(i, _)| !axes.contains(i)).map(|(_, d)| d.clone()))
}
