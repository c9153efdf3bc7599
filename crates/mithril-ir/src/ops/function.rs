//! Elementwise functions of one float (and `atan2`): powers, exponentials, trigonometry, rounding.
//!
//! The reference evaluations call `libm`, not the platform's mathematics, so that constants fold to the same bits
//! everywhere.

use std::f64::consts::{FRAC_2_SQRT_PI, LN_2, LN_10, PI};

use super::elementwise::{c_function, number_map};
use crate::dtype::DType;
use crate::op::{DTypeRule, Grad, OpDef, Precision, Spell, Text, Tolerance, binary, unary};
use crate::spell::SpellCx;
use crate::tensor::Scalar;

/// Rows of this file.
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

/// The spelling of a function that Python's array modules call `py` and C calls `c`.
const fn call(py: &'static str, c: &'static str) -> Spell {
    Spell { c: Text::T(c), ..Spell::py(py) }
}

/// A function of MLX; those that it computes or differentiates in float32 have a helper for doubles.
fn mlx_function(cx: &SpellCx<'_>, name: &str) -> Option<String> {
    let prefix = if cx.out(0)?.dtype == DType::F64 { "_" } else { "mx." };
    Some(format!("{prefix}{name}({})", cx.arg(0)))
}

/// `√x`
pub static SQRT: OpDef = OpDef {
    grad: Grad::Formula(|v| vec![v.g / (v.y * 2.0)]),
    spell: Spell {
        onnx: Text::T("Sqrt({0})"),
        ggml: Text::T("ggml_sqrt({0})"),
        ..call("{xp}.sqrt({0})", "sqrt{f}({0})")
    },
    tolerance: Tolerance::Rounded,
    domain: (0.1, 4.0),
    layer: "Sqrt",
    ..unary("sqrt", "Square root; NaN below zero.", f64::sqrt)
};

/// `1 / √x`
pub static RSQRT: OpDef = OpDef {
    grad: Grad::Formula(|v| vec![v.g * v.y / v.x[0] * -0.5]),
    spell: Spell {
        onnx: Text::T("Reciprocal(Sqrt({0}))"),
        ggml: Text::T("ggml_div(1, ggml_sqrt({0}))"),
        // A plain 1.0 would make float32 of bfloat16.
        numpy: Text::T("np.reciprocal(np.sqrt({0}))"),
        jax: Text::T("jax.lax.rsqrt({0})"),
        ..call("{xp}.rsqrt({0})", "1 / sqrt{f}({0})")
    },
    domain: (0.1, 4.0),
    layer: "Rsqrt",
    aliases: &["reciprocal_sqrt"],
    precision: Some(Precision::Wide),
    ..unary("rsqrt", "Reciprocal of the square root; infinite at 0, NaN below.", |x| 1.0 / x.sqrt())
};

/// A helper for JAX, whose own function is off in float32 and float64; halves are rounded from float32.
fn exact(cx: &SpellCx<'_>, helper: &str) -> Option<String> {
    (cx.out(0)?.dtype.size() >= DType::F32.size()).then(|| format!("{helper}({})", cx.arg(0)))
}

/// A helper for JAX, whose own function is off in float64.
fn exact_f64(cx: &SpellCx<'_>, helper: &str) -> Option<String> {
    (cx.out(0)?.dtype == DType::F64).then(|| format!("{helper}({})", cx.arg(0)))
}

/// `x²`
pub static SQUARE: OpDef = OpDef {
    dtype: DTypeRule::Arith,
    grad: Grad::Formula(|v| vec![v.g * v.x[0] * 2.0]),
    spell: Spell {
        onnx: Text::T("Mul({0}, {0})"),
        ggml: Text::T("ggml_sqr({0})"),
        c: Text::F(|cx| c_function(cx, "square")),
        ..Spell::py("{xp}.square({0})")
    },
    tolerance: Tolerance::Rounded,
    layer: "Square",
    precision: Some(Precision::Wide),
    ..number_map("square", "Each element times itself. Integers stay integers and wrap around.", |x| match x
        [0]
    {
        Scalar::Float(x) => Scalar::Float(x * x),
        other => Scalar::Int(other.i64().wrapping_mul(other.i64())),
    })
};

/// `1 / x`
pub static RECIPROCAL: OpDef = OpDef {
    grad: Grad::Formula(|v| vec![-(v.g * v.y * v.y)]),
    spell: Spell {
        onnx: Text::T("Reciprocal({0})"),
        ggml: Text::T("ggml_div(1, {0})"),
        numpy: Text::T("np.reciprocal({0})"),
        ..call("1.0 / {0}", "1 / {0}")
    },
    tolerance: Tolerance::Rounded,
    domain: (0.5, 2.0),
    layer: "Reciprocal",
    precision: Some(Precision::Wide),
    ..unary("reciprocal", "One divided by each element; infinite at 0.", |x| 1.0 / x)
};

/// `e^x`
pub static EXP: OpDef = OpDef {
    grad: Grad::Formula(|v| vec![v.g * v.y]),
    spell: Spell {
        onnx: Text::T("Exp({0})"),
        ggml: Text::T("ggml_exp({0})"),
        mlx: Text::F(|cx| mlx_function(cx, "exp")),
        ..call("{xp}.exp({0})", "mithril_exp_{t}({0})")
    },
    layer: "Exp",
    precision: Some(Precision::Wide),
    ..unary("exp", "Exponential function.", libm::exp)
};

/// `e^x - 1`
pub static EXPM1: OpDef = OpDef {
    grad: Grad::Formula(|v| vec![v.g * v.x[0].op(&EXP, &[])]),
    spell: Spell { onnx: Text::T(super::onnx::EXPM1), ..call("{xp}.expm1({0})", "mithril_expm1_{t}({0})") },
    layer: "Expm1",
    precision: Some(Precision::Wide),
    ..unary("expm1", "Exponential function minus one, accurate near 0.", libm::expm1)
};

/// `ln x`
pub static LOG: OpDef = OpDef {
    grad: Grad::Formula(|v| vec![v.g / v.x[0]]),
    spell: Spell {
        onnx: Text::T("Log({0})"),
        ggml: Text::T("ggml_log({0})"),
        ..call("{xp}.log({0})", "mithril_log_{t}({0})")
    },
    domain: (0.1, 4.0),
    layer: "Log",
    aliases: &["ln"],
    precision: Some(Precision::Wide),
    ..unary("log", "Natural logarithm; minus infinity at 0, NaN below.", libm::log)
};

/// `ln (1 + x)`
pub static LOG1P: OpDef = OpDef {
    grad: Grad::Formula(|v| vec![v.g / (v.x[0] + 1.0)]),
    spell: Spell {
        onnx: Text::T(super::onnx::LOG1P),
        jax: Text::F(|cx| exact_f64(cx, "_log1p")),
        ..call("{xp}.log1p({0})", "mithril_log1p_{t}({0})")
    },
    domain: (-0.5, 4.0),
    layer: "Log1p",
    precision: Some(Precision::Wide),
    ..unary("log1p", "Natural logarithm of one plus x, accurate near 0.", libm::log1p)
};

/// `log₂ x`
pub static LOG2: OpDef = OpDef {
    grad: Grad::Formula(|v| vec![v.g / (v.x[0] * LN_2)]),
    spell: Spell {
        onnx: Text::T("Div(Log({0}), 0.6931471805599453)"),
        ggml: Text::T("ggml_scale(ggml_log({0}), 1.4426950408889634)"),
        mlx: Text::F(|cx| mlx_function(cx, "log2")),
        ..call("{xp}.log2({0})", "mithril_log2_{t}({0})")
    },
    domain: (0.1, 4.0),
    layer: "Log2",
    precision: Some(Precision::Wide),
    ..unary("log2", "Logarithm to the base 2; minus infinity at 0, NaN below.", libm::log2)
};

/// `log₁₀ x`
pub static LOG10: OpDef = OpDef {
    grad: Grad::Formula(|v| vec![v.g / (v.x[0] * LN_10)]),
    spell: Spell {
        onnx: Text::T("Div(Log({0}), 2.302585092994046)"),
        ggml: Text::T("ggml_scale(ggml_log({0}), 0.4342944819032518)"),
        mlx: Text::F(|cx| mlx_function(cx, "log10")),
        ..call("{xp}.log10({0})", "mithril_log10_{t}({0})")
    },
    domain: (0.1, 4.0),
    layer: "Log10",
    precision: Some(Precision::Wide),
    ..unary("log10", "Logarithm to the base 10; minus infinity at 0, NaN below.", libm::log10)
};

/// `sin x`
pub static SIN: OpDef = OpDef {
    grad: Grad::Formula(|v| vec![v.g * v.x[0].op(&COS, &[])]),
    spell: Spell {
        onnx: Text::T("Sin({0})"),
        ggml: Text::T("ggml_sin({0})"),
        mlx: Text::F(|cx| mlx_function(cx, "sin")),
        ..call("{xp}.sin({0})", "mithril_sin{if_near}_{t}({far}{0})")
    },
    layer: "Sin",
    ..unary("sin", "Sine of an angle in radians.", libm::sin)
};

/// `cos x`
pub static COS: OpDef = OpDef {
    grad: Grad::Formula(|v| vec![-(v.g * v.x[0].op(&SIN, &[]))]),
    spell: Spell {
        onnx: Text::T("Cos({0})"),
        ggml: Text::T("ggml_cos({0})"),
        mlx: Text::F(|cx| mlx_function(cx, "cos")),
        ..call("{xp}.cos({0})", "mithril_cos{if_near}_{t}({far}{0})")
    },
    layer: "Cos",
    ..unary("cos", "Cosine of an angle in radians.", libm::cos)
};

/// `tan x`
pub static TAN: OpDef = OpDef {
    grad: Grad::Formula(|v| vec![v.g * (v.y * v.y + 1.0)]),
    spell: Spell {
        onnx: Text::T("Tan({0})"),
        ggml: Text::T("ggml_div(ggml_sin({0}), ggml_cos({0}))"),
        mlx: Text::F(|cx| mlx_function(cx, "tan")),
        ..call("{xp}.tan({0})", "mithril_tan{if_near}_{t}({far}{0})")
    },
    domain: (-1.2, 1.2),
    layer: "Tan",
    precision: Some(Precision::Wide),
    ..unary("tan", "Tangent of an angle in radians.", libm::tan)
};

/// `arcsin x`
pub static ASIN: OpDef = OpDef {
    // (1 - x)(1 + x), since 1 - x² cancels near the ends.
    grad: Grad::Formula(|v| vec![v.g / ((1.0 - v.x[0]) * (1.0 + v.x[0])).op(&SQRT, &[])]),
    spell: Spell { onnx: Text::T("Asin({0})"), ..call("{xp}.arcsin({0})", "mithril_asin_{t}({0})") },
    domain: (-0.9, 0.9),
    layer: "Asin",
    aliases: &["arcsin"],
    ..unary("asin", "Arc sine in radians; NaN outside of [-1, 1].", libm::asin)
};

/// `arccos x`
pub static ACOS: OpDef = OpDef {
    grad: Grad::Formula(|v| vec![-(v.g / ((1.0 - v.x[0]) * (1.0 + v.x[0])).op(&SQRT, &[]))]),
    spell: Spell { onnx: Text::T("Acos({0})"), ..call("{xp}.arccos({0})", "mithril_acos_{t}({0})") },
    domain: (-0.9, 0.9),
    layer: "Acos",
    aliases: &["arccos"],
    ..unary("acos", "Arc cosine in radians; NaN outside of [-1, 1].", libm::acos)
};

/// `arctan x`
pub static ATAN: OpDef = OpDef {
    grad: Grad::Formula(|v| vec![v.g / (v.x[0] * v.x[0] + 1.0)]),
    spell: Spell { onnx: Text::T("Atan({0})"), ..call("{xp}.arctan({0})", "mithril_atan_{t}({0})") },
    layer: "Atan",
    aliases: &["arctan"],
    ..unary("atan", "Arc tangent in radians.", libm::atan)
};

/// angle of the point (right, left)
pub static ATAN2: OpDef = OpDef {
    dtype: DTypeRule::Float,
    grad: Grad::Formula(|v| {
        let (y, x) = (v.x[0], v.x[1]);
        let square = x * x + y * y;
        vec![v.g * x / square, -(v.g * y / square)]
    }),
    spell: Spell {
        onnx: Text::T(super::onnx::ATAN2),
        torch: Text::F(|s| {
            let dtype = s.out(0)?.dtype;
            Some(format!("torch.atan2({}, {})", s.torch_tensor(0, dtype), s.torch_tensor(1, dtype)))
        }),
        ..call("{xp}.arctan2({0}, {1})", "mithril_atan2_{t}({0}, {1})")
    },
    tolerance: Tolerance::Elementwise,
    domain: (0.5, 2.0),
    layer: "Atan2",
    aliases: &["arctan2"],
    ..binary(
        "atan2",
        "Angle in radians of the point with abscissa `right` and ordinate `left`, in [-π, π].",
        libm::atan2,
        |_, _| 0,
    )
};

/// `sinh x`
pub static SINH: OpDef = OpDef {
    grad: Grad::Formula(|v| vec![v.g * v.x[0].op(&COSH, &[])]),
    spell: Spell {
        onnx: Text::T("Sinh({0})"),
        jax: Text::F(|cx| exact(cx, "_sinh")),
        ..call("{xp}.sinh({0})", "mithril_sinh_{t}({0})")
    },
    layer: "Sinh",
    precision: Some(Precision::Wide),
    ..unary("sinh", "Hyperbolic sine.", libm::sinh)
};

/// `cosh x`
pub static COSH: OpDef = OpDef {
    grad: Grad::Formula(|v| vec![v.g * v.x[0].op(&SINH, &[])]),
    spell: Spell {
        onnx: Text::T("Cosh({0})"),
        jax: Text::F(|cx| exact(cx, "_cosh")),
        ..call("{xp}.cosh({0})", "mithril_cosh_{t}({0})")
    },
    layer: "Cosh",
    precision: Some(Precision::Wide),
    ..unary("cosh", "Hyperbolic cosine.", libm::cosh)
};

/// `tanh x`
pub static TANH: OpDef = OpDef {
    grad: Grad::Formula(|v| vec![v.g * (1.0 - v.y * v.y)]),
    spell: Spell {
        onnx: Text::T("Tanh({0})"),
        ggml: Text::T("ggml_tanh({0})"),
        ..call("{xp}.tanh({0})", "mithril_tanh_{t}({0})")
    },
    layer: "Tanh",
    ..unary("tanh", "Hyperbolic tangent.", libm::tanh)
};

/// `arsinh x`
pub static ASINH: OpDef = OpDef {
    grad: Grad::Formula(|v| vec![v.g / (v.x[0] * v.x[0] + 1.0).op(&SQRT, &[])]),
    spell: Spell { onnx: Text::T("Asinh({0})"), ..call("{xp}.arcsinh({0})", "mithril_asinh_{t}({0})") },
    layer: "Asinh",
    aliases: &["arcsinh"],
    ..unary("asinh", "Inverse of the hyperbolic sine.", libm::asinh)
};

/// `arcosh x`
pub static ACOSH: OpDef = OpDef {
    grad: Grad::Formula(|v| vec![v.g / ((v.x[0] - 1.0) * (v.x[0] + 1.0)).op(&SQRT, &[])]),
    spell: Spell { onnx: Text::T("Acosh({0})"), ..call("{xp}.arccosh({0})", "mithril_acosh_{t}({0})") },
    domain: (1.5, 4.0),
    layer: "Acosh",
    aliases: &["arccosh"],
    ..unary("acosh", "Inverse of the hyperbolic cosine; NaN below 1.", |x| {
        // `libm` is not to be asked: of -32768 it makes minus infinity.
        if x < 1.0 { f64::NAN } else { libm::acosh(x) }
    })
};

/// `artanh x`
pub static ATANH: OpDef = OpDef {
    grad: Grad::Formula(|v| vec![v.g / ((1.0 - v.x[0]) * (1.0 + v.x[0]))]),
    spell: Spell {
        onnx: Text::T("Atanh({0})"),
        jax: Text::F(|cx| exact_f64(cx, "_atanh")),
        ..call("{xp}.arctanh({0})", "mithril_atanh_{t}({0})")
    },
    domain: (-0.9, 0.9),
    layer: "Atanh",
    aliases: &["arctanh"],
    precision: Some(Precision::Wide),
    ..unary("atanh", "Inverse of the hyperbolic tangent; infinite at -1 and 1, NaN outside.", libm::atanh)
};

/// `2/√π ∫₀ˣ exp(-t²) dt`
pub static ERF: OpDef = OpDef {
    grad: Grad::Formula(|v| vec![v.g * (-(v.x[0] * v.x[0])).op(&EXP, &[]) * FRAC_2_SQRT_PI]),
    spell: Spell {
        onnx: Text::T("Erf({0})"),
        numpy: Text::T("_erf({0})"),
        // Of halves near 0 PyTorch gives 0.
        torch: Text::F(|s| {
            let (x, dtype) = (s.arg(0), s.out(0)?.dtype);
            let is_half = matches!(dtype, DType::F16 | DType::BF16);
            Some(if is_half {
                format!("torch.erf({x}.float()).to({})", s.dtype(dtype))
            } else {
                format!("torch.erf({x})")
            })
        }),
        jax: Text::T("jax.lax.erf({0})"),
        mlx: Text::T("_erf({0})"),
        ..call("{xp}.erf({0})", "mithril_erf_{t}({0})")
    },
    layer: "Erf",
    ..unary("erf", "Error function: `2/√π ∫ exp(-t²) dt` from 0 to x.", libm::erf)
};

/// `1 - erf x`
pub static ERFC: OpDef = OpDef {
    expand: Some(|c| vec![1.0 - c.x[0].op(&ERF, &[])]),
    grad: Grad::Formula(|v| vec![v.g * (-(v.x[0] * v.x[0])).op(&EXP, &[]) * -FRAC_2_SQRT_PI]),
    spell: Spell {
        numpy: Text::T("_erfc({0})"),
        torch: Text::T("torch.erfc({0})"),
        jax: Text::F(|cx| exact(cx, "_erfc").or_else(|| Some(format!("jax.lax.erfc({})", cx.arg(0))))),
        mlx: Text::T("_erfc({0})"),
        c: Text::T("mithril_erfc_{t}({0})"),
        ..Spell::NONE
    },
    layer: "Erfc",
    ..unary("erfc", "Complementary error function `1 - erf(x)`, accurate where that is small.", libm::erfc)
};

/// inverse of `erf`
pub static ERFINV: OpDef = OpDef {
    grad: Grad::Formula(|v| vec![v.g * (v.y * v.y).op(&EXP, &[]) * (PI.sqrt() / 2.0)]),
    spell: Spell {
        numpy: Text::T("_erfinv({0})"),
        jax: Text::F(|cx| exact(cx, "_erfinv").or_else(|| Some(format!("jax.lax.erf_inv({})", cx.arg(0))))),
        mlx: Text::F(|cx| mlx_function(cx, "erfinv")),
        c: Text::T("mithril_erfinv_{t}({0})"),
        ..Spell::py("{xp}.erfinv({0})")
    },
    domain: (-0.9, 0.9),
    layer: "Erfinv",
    aliases: &["erf_inv"],
    precision: Some(Precision::Wide),
    ..unary(
        "erfinv",
        "Inverse of the error function; infinite at -1 and 1, NaN outside. Evaluated by Halley's iteration from the \
         estimate of S. Winitzki, A handy approximation for the error function and its inverse (2008).",
        erfinv,
    )
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
        // In the tail from the other end, where nothing cancels.
        let excess = if goal < 0.5 { libm::erf(y) - goal } else { (1.0 - goal) - libm::erfc(y) };
        let step = excess / (FRAC_2_SQRT_PI * libm::exp(-y * y));
        y -= step / (1.0 + y * step);
    }
    y.copysign(x)
}

/// Rounding: integers are whole already.
const fn rounding(name: &'static str, doc: &'static str, f: fn(&[Scalar]) -> Scalar) -> OpDef {
    OpDef { grad: Grad::Zero, ..number_map(name, doc, f) }
}

macro_rules! round_spell {
    ($py:literal, $c:literal, $ggml:expr) => {
        Spell {
            py: Text::F(|cx| {
                let function = if cx.out(0)?.dtype.is_float() { $py } else { "positive" };
                Some(format!("{}.{function}({})", cx.xp, cx.arg(0)))
            }),
            c: Text::F(|cx| Some(if cx.out(0)?.dtype.is_float() { $c } else { "{0}" }.into())),
            ggml: $ggml,
            ..Spell::NONE
        }
    };
}

macro_rules! round_scalar {
    ($f:path) => {
        |x| match x[0] {
            Scalar::Float(x) => Scalar::Float($f(x)),
            other => Scalar::Int(other.i64()),
        }
    };
}

/// `⌊x⌋`
pub static FLOOR: OpDef = OpDef {
    spell: Spell {
        onnx: Text::F(|s| super::onnx::rounding(s, "Floor({0})")),
        ..round_spell!("floor", "floor{f}({0})", Text::T("ggml_floor({0})"))
    },
    layer: "Floor",
    ..rounding("floor", "Largest integer not above each element.", round_scalar!(libm::floor))
};

/// `⌈x⌉`
pub static CEIL: OpDef = OpDef {
    spell: Spell {
        onnx: Text::F(|s| super::onnx::rounding(s, "Ceil({0})")),
        ..round_spell!("ceil", "ceil{f}({0})", Text::T("ggml_ceil({0})"))
    },
    layer: "Ceil",
    ..rounding("ceil", "Smallest integer not below each element.", round_scalar!(libm::ceil))
};

/// nearest integer
pub static ROUND: OpDef = OpDef {
    spell: Spell {
        onnx: Text::F(|s| super::onnx::rounding(s, "Round({0})")),
        ..round_spell!("round", "rint{f}({0})", Text::No)
    },
    layer: "Round",
    aliases: &["rint"],
    ..rounding("round", "Rounds to the nearest integer, ties to even.", round_scalar!(f64::round_ties_even))
};

/// whole part
pub static TRUNC: OpDef = OpDef {
    spell: Spell {
        onnx: Text::F(|s| super::onnx::rounding(s, "Mul(Sign({0}), Floor(Abs({0})))")),
        ..round_spell!("trunc", "trunc{f}({0})", Text::T("ggml_trunc({0})"))
    },
    layer: "Trunc",
    aliases: &["fix"],
    ..rounding("trunc", "Integer part of each element: rounds towards zero.", round_scalar!(libm::trunc))
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::reduce::tests::{check_gradient, close, f64s, run, values};
    use crate::tensor::Tensor;

    const NAN: f64 = f64::NAN;
    const INF: f64 = f64::INFINITY;

    fn at(op: &'static OpDef, x: &[f64]) -> Vec<f64> {
        values(op, &[("input", f64s(&[x.len()], x))], &[])
    }

    #[test]
    fn poles_and_what_lies_beyond() {
        close(&at(&SQRT, &[4.0, 0.0, -1.0]), &[2.0, 0.0, NAN]);
        close(&at(&RSQRT, &[4.0, 0.0, -1.0, INF]), &[0.5, INF, NAN, 0.0]);
        close(&at(&RECIPROCAL, &[4.0, 0.0, -INF]), &[0.25, INF, 0.0]);
        close(&at(&LOG, &[1.0, 0.0, -1.0]), &[0.0, -INF, NAN]);
        close(&at(&LOG2, &[8.0, 0.25, 0.0]), &[3.0, -2.0, -INF]);
        close(&at(&LOG10, &[1000.0, 0.0]), &[3.0, -INF]);
        close(&at(&LOG1P, &[0.0, -1.0, -2.0]), &[0.0, -INF, NAN]);
        close(&at(&EXP, &[0.0, 1000.0, -1000.0]), &[1.0, INF, 0.0]);
        close(&at(&ASIN, &[1.0, 2.0]), &[PI / 2.0, NAN]);
        close(&at(&ACOS, &[-1.0, 2.0]), &[PI, NAN]);
        close(&at(&ACOSH, &[1.0, 0.5, -32_768.0]), &[0.0, NAN, NAN]);
        close(&at(&ATANH, &[1.0, -1.0, 2.0]), &[INF, -INF, NAN]);
    }

    #[test]
    fn small_values_keep_their_digits() {
        assert_eq!(at(&EXPM1, &[1e-20]), [1e-20]);
        assert_eq!(at(&LOG1P, &[1e-20]), [1e-20]);
    }

    /// Abramowitz and Stegun, table 7.1; erfc(6) to 15 digits.
    #[test]
    fn error_functions() {
        let wanted = [0.0, 0.520_499_877_8, 0.842_700_792_9, -0.995_322_265_0, 1.0];
        close(&at(&ERF, &[0.0, 0.5, 1.0, -2.0, INF]), &wanted);
        let ratio = at(&ERFC, &[6.0])[0] / 2.151_973_671_249_891e-17;
        assert!((ratio - 1.0).abs() < 1e-14);
        close(&at(&ERFINV, &[1.0, -1.0, 1.5, NAN, 0.0]), &[INF, -INF, NAN, NAN, 0.0]);
        for x in [1e-300, 1e-5, 0.1, 0.4, 0.499_999, 0.500_001, 0.9, 0.999_999, 1.0 - 1e-15] {
            let back = libm::erf(at(&ERFINV, &[x])[0]) / x;
            assert!((back - 1.0).abs() < 4.0 * f64::EPSILON, "{x}");
        }
        let tail = 2.0_f64.powi(-50);
        let back = libm::erfc(at(&ERFINV, &[1.0 - tail])[0]) / tail;
        assert!((back - 1.0).abs() < 1e-13);
    }

    #[test]
    fn halves_round_to_even() {
        close(
            &at(&ROUND, &[0.5, 1.5, 2.5, -0.5, -1.5, 2.4, NAN, INF]),
            &[0.0, 2.0, 2.0, 0.0, -2.0, 2.0, NAN, INF],
        );
        close(&at(&FLOOR, &[1.5, -1.5, -0.0]), &[1.0, -2.0, 0.0]);
        close(&at(&CEIL, &[1.5, -1.5]), &[2.0, -1.0]);
        close(&at(&TRUNC, &[1.5, -1.5]), &[1.0, -1.0]);
        for op in [&ROUND, &FLOOR, &CEIL, &TRUNC, &SQUARE] {
            let out = run(op, &[("input", Tensor::from_parts(&[2], vec![1_i32, 0]))], &[]).unwrap();
            assert_eq!(out[0].as_slice::<i32>().unwrap(), [1, 0], "{}", op.name);
        }
    }

    #[test]
    fn integers_become_floats_where_values_are_not_whole() {
        let out = run(&SQRT, &[("input", Tensor::from_parts(&[1], vec![9_i64]))], &[]).unwrap();
        assert_eq!(out[0].as_slice::<f32>().unwrap(), [3.0]);
    }

    #[test]
    fn slopes_agree_with_differences() {
        for op in OPS.iter().filter(|op| matches!(op.grad, Grad::Formula(_)) && op.ports.len() == 1) {
            let (low, high) = op.domain;
            let x: Vec<f64> = (1..6).map(|i| low + (high - low) * f64::from(i) / 6.0).collect();
            check_gradient(op, &[("input", f64s(&[5], &x))], &[]);
        }
    }
}
