//! Elementwise functions of one float (and `atan2`): powers, exponentials, trigonometry, rounding.
//!
//! Reference evaluations call `libm`, not the platform's functions: constant folding gives the same bits everywhere.

use std::f64::consts::{FRAC_2_SQRT_PI, LN_2, LN_10, PI};

use super::arithmetic::HYPOT;
use super::elementwise::{NUMERIC, c_function};
use crate::dtype::DType;
use crate::lowering::LoweringRule::{Function, Template};
use crate::lowering::{Lowering, LoweringCx};
use crate::op::{BINARY, DTypeRule, Eval, Grad, OpDef, Precision, Tolerance, UNARY};
use crate::tensor::Scalar;

/// Ops of this file.
pub static OPS: &[&OpDef] = &[
    &SQRT,
    &RSQRT,
    &SQUARE,
    &RECIPROCAL,
    &EXP,
    &EXPM1,
    &LOG,
    &LOG1P,
    &LOG2,
    &LOG10,
    &SIN,
    &COS,
    &TAN,
    &ASIN,
    &ACOS,
    &ATAN,
    &ATAN2,
    &SINH,
    &COSH,
    &TANH,
    &ASINH,
    &ACOSH,
    &ATANH,
    &ERF,
    &ERFC,
    &ERFINV,
    &FLOOR,
    &CEIL,
    &ROUND,
    &TRUNC,
];

/// A function of MLX; for float64 there is a helper, since MLX computes or differentiates it in float32.
fn mlx_function(cx: &LoweringCx<'_>, name: &str) -> Option<String> {
    let prefix = if cx.out(0)?.dtype == DType::F64 { "_" } else { "mx." };
    Some(format!("{prefix}{name}({})", cx.arg(0)))
}

/// `√x`
pub static SQRT: OpDef = OpDef {
    name: "sqrt",
    doc: "Square root; NaN below zero.",
    layer: "Sqrt",
    eval: Some(Eval::F1(f64::sqrt)),
    grad: Grad::Formula(|v| vec![v.g / (v.y * 2.0)]),
    lowering: Lowering {
        py: Template("{xp}.sqrt({0})"),
        torch_foreach: Template("torch._foreach_sqrt({0})"),
        c: Template("sqrt{f}({0})"),
        ggml: Template("ggml_sqrt({0})"),
        onnx: Template("Sqrt({0})"),
        ..Lowering::NONE
    },
    domain: (0.1, 4.0),
    tolerance: Tolerance::Rounded,
    ..UNARY
};

/// `1 / √x`
pub static RSQRT: OpDef = OpDef {
    name: "rsqrt",
    doc: "Reciprocal of the square root; infinite at 0, NaN below.",
    aliases: &["reciprocal_sqrt"],
    layer: "Rsqrt",
    eval: Some(Eval::F1(|x| 1.0 / x.sqrt())),
    grad: Grad::Formula(|v| vec![v.g * v.y / v.x[0] * -0.5]),
    lowering: Lowering {
        py: Template("{xp}.rsqrt({0})"),
        // `1.0 / x` would promote bfloat16 to float32.
        numpy: Template("np.reciprocal(np.sqrt({0}))"),
        jax: Template("jax.lax.rsqrt({0})"),
        c: Template("1 / sqrt{f}({0})"),
        ggml: Template("ggml_div(1, ggml_sqrt({0}))"),
        onnx: Template("Reciprocal(Sqrt({0}))"),
        ..Lowering::NONE
    },
    domain: (0.1, 4.0),
    precision: Some(Precision::Wide),
    ..UNARY
};

/// A helper for JAX, whose own function is inaccurate in float32 and float64; 16-bit floats are rounded from float32.
fn exact(cx: &LoweringCx<'_>, helper: &str) -> Option<String> {
    (cx.out(0)?.dtype.size() >= DType::F32.size()).then(|| format!("{helper}({})", cx.arg(0)))
}

/// A helper for JAX, whose own function is inaccurate in float64.
fn exact_f64(cx: &LoweringCx<'_>, helper: &str) -> Option<String> {
    (cx.out(0)?.dtype == DType::F64).then(|| format!("{helper}({})", cx.arg(0)))
}

/// `x²`
pub static SQUARE: OpDef = OpDef {
    name: "square",
    doc: "Each element times itself. Integers stay integers and wrap around.",
    layer: "Square",
    dtype: DTypeRule::Arith,
    eval: Some(Eval::Scalar(|x| match x[0] {
        Scalar::Float(x) => Scalar::Float(x * x),
        other => Scalar::Int(other.int().wrapping_mul(other.int())),
    })),
    grad: Grad::Formula(|v| vec![v.g * v.x[0] * 2.0]),
    lowering: Lowering {
        py: Template("{xp}.square({0})"),
        c: Function(|cx| c_function(cx, "square")),
        ggml: Template("ggml_sqr({0})"),
        onnx: Template("Mul({0}, {0})"),
        ..Lowering::NONE
    },
    tolerance: Tolerance::Rounded,
    precision: Some(Precision::Wide),
    ..NUMERIC
};

/// `1 / x`
pub static RECIPROCAL: OpDef = OpDef {
    name: "reciprocal",
    doc: "One divided by each element; infinite at 0.",
    layer: "Reciprocal",
    eval: Some(Eval::F1(|x| 1.0 / x)),
    grad: Grad::Formula(|v| vec![-(v.g * v.y * v.y)]),
    lowering: Lowering {
        py: Template("1.0 / {0}"),
        numpy: Template("np.reciprocal({0})"),
        c: Template("1 / {0}"),
        ggml: Template("ggml_div(1, {0})"),
        onnx: Template("Reciprocal({0})"),
        ..Lowering::NONE
    },
    domain: (0.5, 2.0),
    tolerance: Tolerance::Rounded,
    precision: Some(Precision::Wide),
    ..UNARY
};

/// `e^x`
pub static EXP: OpDef = OpDef {
    name: "exp",
    doc: "Exponential function.",
    layer: "Exp",
    eval: Some(Eval::F1(libm::exp)),
    grad: Grad::Formula(|v| vec![v.g * v.y]),
    lowering: Lowering {
        py: Template("{xp}.exp({0})"),
        mlx: Function(|cx| mlx_function(cx, "exp")),
        c: Template("mithril_exp_{t}({0})"),
        ggml: Template("ggml_exp({0})"),
        onnx: Template("Exp({0})"),
        ..Lowering::NONE
    },
    precision: Some(Precision::Wide),
    ..UNARY
};

/// `e^x - 1`
pub static EXPM1: OpDef = OpDef {
    name: "expm1",
    doc: "Exponential function minus one, accurate near 0.",
    layer: "Expm1",
    eval: Some(Eval::F1(libm::expm1)),
    grad: Grad::Formula(|v| vec![v.g * v.x[0].exp()]),
    lowering: Lowering {
        py: Template("{xp}.expm1({0})"),
        c: Template("mithril_expm1_{t}({0})"),
        onnx: Template(super::onnx::EXPM1),
        ..Lowering::NONE
    },
    precision: Some(Precision::Wide),
    ..UNARY
};

/// `ln x`
pub static LOG: OpDef = OpDef {
    name: "log",
    doc: "Natural logarithm; minus infinity at 0, NaN below.",
    aliases: &["ln"],
    layer: "Log",
    eval: Some(Eval::F1(libm::log)),
    grad: Grad::Formula(|v| vec![v.g / v.x[0]]),
    lowering: Lowering {
        py: Template("{xp}.log({0})"),
        c: Template("mithril_log_{t}({0})"),
        ggml: Template("ggml_log({0})"),
        onnx: Template("Log({0})"),
        ..Lowering::NONE
    },
    domain: (0.1, 4.0),
    precision: Some(Precision::Wide),
    ..UNARY
};

/// `ln (1 + x)`
pub static LOG1P: OpDef = OpDef {
    name: "log1p",
    doc: "Natural logarithm of one plus x, accurate near 0.",
    layer: "Log1p",
    eval: Some(Eval::F1(libm::log1p)),
    grad: Grad::Formula(|v| vec![v.g / (v.x[0] + 1.0)]),
    lowering: Lowering {
        py: Template("{xp}.log1p({0})"),
        jax: Function(|cx| exact_f64(cx, "_log1p")),
        c: Template("mithril_log1p_{t}({0})"),
        onnx: Template(super::onnx::LOG1P),
        ..Lowering::NONE
    },
    domain: (-0.5, 4.0),
    precision: Some(Precision::Wide),
    ..UNARY
};

/// `log₂ x`
pub static LOG2: OpDef = OpDef {
    name: "log2",
    doc: "Logarithm to the base 2; minus infinity at 0, NaN below.",
    layer: "Log2",
    eval: Some(Eval::F1(libm::log2)),
    grad: Grad::Formula(|v| vec![v.g / (v.x[0] * LN_2)]),
    lowering: Lowering {
        py: Template("{xp}.log2({0})"),
        mlx: Function(|cx| mlx_function(cx, "log2")),
        c: Template("mithril_log2_{t}({0})"),
        ggml: Template("ggml_scale(ggml_log({0}), 1.4426950408889634)"),
        onnx: Template("Div(Log({0}), 0.6931471805599453)"),
        ..Lowering::NONE
    },
    domain: (0.1, 4.0),
    precision: Some(Precision::Wide),
    ..UNARY
};

/// `log₁₀ x`
pub static LOG10: OpDef = OpDef {
    name: "log10",
    doc: "Logarithm to the base 10; minus infinity at 0, NaN below.",
    layer: "Log10",
    eval: Some(Eval::F1(libm::log10)),
    grad: Grad::Formula(|v| vec![v.g / (v.x[0] * LN_10)]),
    lowering: Lowering {
        py: Template("{xp}.log10({0})"),
        mlx: Function(|cx| mlx_function(cx, "log10")),
        c: Template("mithril_log10_{t}({0})"),
        ggml: Template("ggml_scale(ggml_log({0}), 0.4342944819032518)"),
        onnx: Template("Div(Log({0}), 2.302585092994046)"),
        ..Lowering::NONE
    },
    domain: (0.1, 4.0),
    precision: Some(Precision::Wide),
    ..UNARY
};

/// `sin x`
pub static SIN: OpDef = OpDef {
    name: "sin",
    doc: "Sine of an angle in radians.",
    layer: "Sin",
    eval: Some(Eval::F1(libm::sin)),
    grad: Grad::Formula(|v| vec![v.g * v.x[0].cos()]),
    lowering: Lowering {
        py: Template("{xp}.sin({0})"),
        mlx: Function(|cx| mlx_function(cx, "sin")),
        c: Template("mithril_sin{fast}_{t}({slow}{0})"),
        ggml: Template("ggml_sin({0})"),
        onnx: Template("Sin({0})"),
        ..Lowering::NONE
    },
    ..UNARY
};

/// `cos x`
pub static COS: OpDef = OpDef {
    name: "cos",
    doc: "Cosine of an angle in radians.",
    layer: "Cos",
    eval: Some(Eval::F1(libm::cos)),
    grad: Grad::Formula(|v| vec![-(v.g * v.x[0].sin())]),
    lowering: Lowering {
        py: Template("{xp}.cos({0})"),
        mlx: Function(|cx| mlx_function(cx, "cos")),
        c: Template("mithril_cos{fast}_{t}({slow}{0})"),
        ggml: Template("ggml_cos({0})"),
        onnx: Template("Cos({0})"),
        ..Lowering::NONE
    },
    ..UNARY
};

/// `tan x`
pub static TAN: OpDef = OpDef {
    name: "tan",
    doc: "Tangent of an angle in radians.",
    layer: "Tan",
    eval: Some(Eval::F1(libm::tan)),
    grad: Grad::Formula(|v| vec![v.g * (v.y * v.y + 1.0)]),
    lowering: Lowering {
        py: Template("{xp}.tan({0})"),
        mlx: Function(|cx| mlx_function(cx, "tan")),
        c: Template("mithril_tan{fast}_{t}({slow}{0})"),
        ggml: Template("ggml_div(ggml_sin({0}), ggml_cos({0}))"),
        onnx: Template("Tan({0})"),
        ..Lowering::NONE
    },
    domain: (-1.2, 1.2),
    precision: Some(Precision::Wide),
    ..UNARY
};

/// `arcsin x`
pub static ASIN: OpDef = OpDef {
    name: "asin",
    doc: "Arc sine in radians; NaN outside of [-1, 1].",
    aliases: &["arcsin"],
    layer: "Asin",
    eval: Some(Eval::F1(libm::asin)),
    // (1 - x)(1 + x), since 1 - x² cancels near the ends.
    grad: Grad::Formula(|v| vec![v.g / ((1.0 - v.x[0]) * (1.0 + v.x[0])).sqrt()]),
    lowering: Lowering {
        py: Template("{xp}.arcsin({0})"),
        c: Template("mithril_asin_{t}({0})"),
        onnx: Template("Asin({0})"),
        ..Lowering::NONE
    },
    domain: (-0.9, 0.9),
    ..UNARY
};

/// `arccos x`
pub static ACOS: OpDef = OpDef {
    name: "acos",
    doc: "Arc cosine in radians; NaN outside of [-1, 1].",
    aliases: &["arccos"],
    layer: "Acos",
    eval: Some(Eval::F1(libm::acos)),
    grad: Grad::Formula(|v| vec![-(v.g / ((1.0 - v.x[0]) * (1.0 + v.x[0])).sqrt())]),
    lowering: Lowering {
        py: Template("{xp}.arccos({0})"),
        c: Template("mithril_acos_{t}({0})"),
        onnx: Template("Acos({0})"),
        ..Lowering::NONE
    },
    domain: (-0.9, 0.9),
    ..UNARY
};

/// `arctan x`
pub static ATAN: OpDef = OpDef {
    name: "atan",
    doc: "Arc tangent in radians.",
    aliases: &["arctan"],
    layer: "Atan",
    eval: Some(Eval::F1(libm::atan)),
    grad: Grad::Formula(|v| vec![v.g / (v.x[0] * v.x[0] + 1.0)]),
    lowering: Lowering {
        py: Template("{xp}.arctan({0})"),
        c: Template("mithril_atan_{t}({0})"),
        onnx: Template("Atan({0})"),
        ..Lowering::NONE
    },
    ..UNARY
};

/// angle of the point (right, left)
pub static ATAN2: OpDef = OpDef {
    name: "atan2",
    doc: "Angle in radians of the point with abscissa `right` and ordinate `left`, in [-π, π]. The gradient at the \
          origin is 0.",
    aliases: &["arctan2"],
    layer: "Atan2",
    dtype: DTypeRule::Float,
    eval: Some(Eval::F2(libm::atan2, |_, _| 0)),
    grad: Grad::Formula(|v| {
        // Divided twice by the distance, whose square could overflow, or be 0.
        let distance = v.x[0].op(&HYPOT, &[v.x[1]]);
        let safe = distance.equal(0.0).select(1.0, distance);
        vec![v.g * (v.x[1] / safe / safe), -(v.g * (v.x[0] / safe / safe))]
    }),
    lowering: Lowering {
        py: Template("{xp}.arctan2({0}, {1})"),
        torch: Function(|s| {
            let dtype = s.out(0)?.dtype;
            Some(format!("torch.atan2({}, {})", s.torch_tensor(0, dtype), s.torch_tensor(1, dtype)))
        }),
        c: Template("mithril_atan2_{t}({0}, {1})"),
        onnx: Template(super::onnx::ATAN2),
        ..Lowering::NONE
    },
    domain: (0.5, 2.0),
    tolerance: Tolerance::Elementwise,
    ..BINARY
};

/// `sinh x`
pub static SINH: OpDef = OpDef {
    name: "sinh",
    doc: "Hyperbolic sine.",
    layer: "Sinh",
    eval: Some(Eval::F1(libm::sinh)),
    grad: Grad::Formula(|v| vec![v.g * v.x[0].cosh()]),
    lowering: Lowering {
        py: Template("{xp}.sinh({0})"),
        jax: Function(|cx| exact(cx, "_sinh")),
        c: Template("mithril_sinh_{t}({0})"),
        onnx: Template("Sinh({0})"),
        ..Lowering::NONE
    },
    precision: Some(Precision::Wide),
    ..UNARY
};

/// `cosh x`
pub static COSH: OpDef = OpDef {
    name: "cosh",
    doc: "Hyperbolic cosine.",
    layer: "Cosh",
    eval: Some(Eval::F1(libm::cosh)),
    grad: Grad::Formula(|v| vec![v.g * v.x[0].sinh()]),
    lowering: Lowering {
        py: Template("{xp}.cosh({0})"),
        jax: Function(|cx| exact(cx, "_cosh")),
        c: Template("mithril_cosh_{t}({0})"),
        onnx: Template("Cosh({0})"),
        ..Lowering::NONE
    },
    precision: Some(Precision::Wide),
    ..UNARY
};

/// `tanh x`
pub static TANH: OpDef = OpDef {
    name: "tanh",
    doc: "Hyperbolic tangent.",
    layer: "Tanh",
    eval: Some(Eval::F1(libm::tanh)),
    grad: Grad::Formula(|v| vec![v.g * (1.0 - v.y * v.y)]),
    lowering: Lowering {
        py: Template("{xp}.tanh({0})"),
        c: Template("mithril_tanh_{t}({0})"),
        ggml: Template("ggml_tanh({0})"),
        onnx: Template("Tanh({0})"),
        ..Lowering::NONE
    },
    ..UNARY
};

/// `arsinh x`
pub static ASINH: OpDef = OpDef {
    name: "asinh",
    doc: "Inverse of the hyperbolic sine.",
    aliases: &["arcsinh"],
    layer: "Asinh",
    eval: Some(Eval::F1(libm::asinh)),
    grad: Grad::Formula(|v| vec![v.g / (v.x[0] * v.x[0] + 1.0).sqrt()]),
    lowering: Lowering {
        py: Template("{xp}.arcsinh({0})"),
        c: Template("mithril_asinh_{t}({0})"),
        onnx: Template("Asinh({0})"),
        ..Lowering::NONE
    },
    ..UNARY
};

/// `arcosh x`
pub static ACOSH: OpDef = OpDef {
    name: "acosh",
    doc: "Inverse of the hyperbolic cosine; NaN below 1.",
    aliases: &["arccosh"],
    layer: "Acosh",
    eval: Some(Eval::F1(|x| {
        // `libm::acosh(-32768)` is minus infinity rather than NaN.
        if x < 1.0 { f64::NAN } else { libm::acosh(x) }
    })),
    grad: Grad::Formula(|v| vec![v.g / ((v.x[0] - 1.0) * (v.x[0] + 1.0)).sqrt()]),
    lowering: Lowering {
        py: Template("{xp}.arccosh({0})"),
        c: Template("mithril_acosh_{t}({0})"),
        onnx: Template("Acosh({0})"),
        ..Lowering::NONE
    },
    domain: (1.5, 4.0),
    ..UNARY
};

/// `artanh x`
pub static ATANH: OpDef = OpDef {
    name: "atanh",
    doc: "Inverse of the hyperbolic tangent; infinite at -1 and 1, NaN outside.",
    aliases: &["arctanh"],
    layer: "Atanh",
    eval: Some(Eval::F1(libm::atanh)),
    grad: Grad::Formula(|v| vec![v.g / ((1.0 - v.x[0]) * (1.0 + v.x[0]))]),
    lowering: Lowering {
        py: Template("{xp}.arctanh({0})"),
        jax: Function(|cx| exact_f64(cx, "_atanh")),
        c: Template("mithril_atanh_{t}({0})"),
        onnx: Template("Atanh({0})"),
        ..Lowering::NONE
    },
    domain: (-0.9, 0.9),
    precision: Some(Precision::Wide),
    ..UNARY
};

/// `2/√π ∫₀ˣ exp(-t²) dt`
pub static ERF: OpDef = OpDef {
    name: "erf",
    doc: "Error function: `2/√π ∫ exp(-t²) dt` from 0 to x.",
    layer: "Erf",
    eval: Some(Eval::F1(libm::erf)),
    grad: Grad::Formula(|v| vec![v.g * (-(v.x[0] * v.x[0])).exp() * FRAC_2_SQRT_PI]),
    lowering: Lowering {
        py: Template("{xp}.erf({0})"),
        numpy: Template("_erf({0})"),
        // PyTorch returns 0 for 16-bit floats near 0.
        torch: Function(|s| {
            let (x, dtype) = (s.arg(0), s.out(0)?.dtype);
            let is_half = matches!(dtype, DType::F16 | DType::BF16);
            Some(if is_half {
                format!("torch.erf({x}.float()).to({})", s.dtype(dtype))
            } else {
                format!("torch.erf({x})")
            })
        }),
        jax: Template("jax.lax.erf({0})"),
        mlx: Template("_erf({0})"),
        c: Template("mithril_erf_{t}({0})"),
        onnx: Template("Erf({0})"),
        ..Lowering::NONE
    },
    ..UNARY
};

/// `1 - erf x`
pub static ERFC: OpDef = OpDef {
    name: "erfc",
    doc: "Complementary error function `1 - erf(x)`, accurate where that is small.",
    layer: "Erfc",
    eval: Some(Eval::F1(libm::erfc)),
    expand: Some(|c| vec![1.0 - c.x[0].erf()]),
    grad: Grad::Formula(|v| vec![v.g * (-(v.x[0] * v.x[0])).exp() * -FRAC_2_SQRT_PI]),
    lowering: Lowering {
        numpy: Template("_erfc({0})"),
        torch: Template("torch.erfc({0})"),
        jax: Function(|cx| exact(cx, "_erfc").or_else(|| Some(format!("jax.lax.erfc({})", cx.arg(0))))),
        mlx: Template("_erfc({0})"),
        c: Template("mithril_erfc_{t}({0})"),
        ..Lowering::NONE
    },
    ..UNARY
};

/// inverse of `erf`
pub static ERFINV: OpDef = OpDef {
    name: "erfinv",
    doc: "Inverse of the error function; infinite at -1 and 1, NaN outside. Evaluated by Halley's iteration from the \
         estimate of S. Winitzki, A handy approximation for the error function and its inverse (2008).",
    aliases: &["erf_inv"],
    layer: "Erfinv",
    eval: Some(Eval::F1(erfinv)),
    grad: Grad::Formula(|v| vec![v.g * (v.y * v.y).exp() * (PI.sqrt() / 2.0)]),
    lowering: Lowering {
        py: Template("{xp}.erfinv({0})"),
        numpy: Template("_erfinv({0})"),
        jax: Function(|cx| exact(cx, "_erfinv").or_else(|| Some(format!("jax.lax.erf_inv({})", cx.arg(0))))),
        mlx: Function(|cx| mlx_function(cx, "erfinv")),
        c: Template("mithril_erfinv_{t}({0})"),
        ..Lowering::NONE
    },
    domain: (-0.9, 0.9),
    precision: Some(Precision::Wide),
    ..UNARY
};

fn erfinv(x: f64) -> f64 {
    let goal = x.abs();
    if x.is_nan() || x == 0.0 || goal >= 1.0 {
        return if goal == 1.0 {
            x * f64::INFINITY
        } else if x == 0.0 {
            x
        } else {
            f64::NAN
        };
    }
    let log = libm::log((1.0 - goal) * (1.0 + goal));
    let half = 2.0 / (PI * 0.147) + 0.5 * log;
    let mut y = libm::sqrt(libm::sqrt(half * half - log / 0.147) - half);
    for _ in 0..3 {
        // In the tail through `erfc`, which does not cancel.
        let excess = if goal < 0.5 { libm::erf(y) - goal } else { (1.0 - goal) - libm::erfc(y) };
        let step = excess / (FRAC_2_SQRT_PI * libm::exp(-y * y));
        y -= step / (1.0 + y * step);
    }
    y.copysign(x)
}

/// A rounding function, which keeps integers.
const ROUNDING: OpDef = OpDef { grad: Grad::Zero, ..NUMERIC };

/// A function of the array module; integers are copied.
fn rounding_py(cx: &LoweringCx<'_>, name: &str) -> Option<String> {
    let function = if cx.out(0)?.dtype.is_float() { name } else { "positive" };
    Some(format!("{}.{function}({})", cx.xp, cx.arg(0)))
}

/// A function of C; integers are copied.
fn rounding_c(cx: &LoweringCx<'_>, template: &str) -> Option<String> {
    Some(if cx.out(0)?.dtype.is_float() { template } else { "{0}" }.into())
}

macro_rules! round_scalar {
    ($f:path) => {
        |x| match x[0] {
            Scalar::Float(x) => Scalar::Float($f(x)),
            other => Scalar::Int(other.int()),
        }
    };
}

/// `⌊x⌋`
pub static FLOOR: OpDef = OpDef {
    name: "floor",
    doc: "Largest integer not above each element.",
    layer: "Floor",
    eval: Some(Eval::Scalar(round_scalar!(libm::floor))),
    lowering: Lowering {
        py: Function(|cx| rounding_py(cx, "floor")),
        c: Function(|cx| rounding_c(cx, "floor{f}({0})")),
        ggml: Template("ggml_floor({0})"),
        onnx: Function(|s| super::onnx::rounding(s, "Floor({0})")),
        ..Lowering::NONE
    },
    ..ROUNDING
};

/// `⌈x⌉`
pub static CEIL: OpDef = OpDef {
    name: "ceil",
    doc: "Smallest integer not below each element.",
    layer: "Ceil",
    eval: Some(Eval::Scalar(round_scalar!(libm::ceil))),
    lowering: Lowering {
        py: Function(|cx| rounding_py(cx, "ceil")),
        c: Function(|cx| rounding_c(cx, "ceil{f}({0})")),
        ggml: Template("ggml_ceil({0})"),
        onnx: Function(|s| super::onnx::rounding(s, "Ceil({0})")),
        ..Lowering::NONE
    },
    ..ROUNDING
};

/// nearest integer
pub static ROUND: OpDef = OpDef {
    name: "round",
    doc: "Rounds to the nearest integer, ties to even.",
    aliases: &["rint"],
    layer: "Round",
    eval: Some(Eval::Scalar(round_scalar!(f64::round_ties_even))),
    lowering: Lowering {
        py: Function(|cx| rounding_py(cx, "round")),
        c: Function(|cx| rounding_c(cx, "rint{f}({0})")),
        onnx: Function(|s| super::onnx::rounding(s, "Round({0})")),
        ..Lowering::NONE
    },
    ..ROUNDING
};

/// whole part
pub static TRUNC: OpDef = OpDef {
    name: "trunc",
    doc: "Integer part of each element: rounds towards zero.",
    aliases: &["fix"],
    layer: "Trunc",
    eval: Some(Eval::Scalar(round_scalar!(libm::trunc))),
    lowering: Lowering {
        py: Function(|cx| rounding_py(cx, "trunc")),
        c: Function(|cx| rounding_c(cx, "trunc{f}({0})")),
        ggml: Template("ggml_trunc({0})"),
        onnx: Function(|s| super::onnx::rounding(s, "Mul(Sign({0}), Floor(Abs({0})))")),
        ..Lowering::NONE
    },
    ..ROUNDING
};

#[cfg(test)]
mod tests;
