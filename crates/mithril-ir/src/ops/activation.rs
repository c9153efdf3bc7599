//! Activation functions. Constants and defaults are those of the papers and of PyTorch.

mod prelu;

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, SQRT_2};

pub use self::prelu::PRELU;
pub use super::softmax::{LOG_SOFTMAX, SOFTMAX};
use crate::dtype::{DType, Kind, Kinds};
use crate::error::Result;
use crate::forms::{Form, form};
use crate::formula::{ExpandCx, GradCx, V};
use crate::interp::EvalCx;
use crate::lowering::Lowering;
use crate::lowering::LoweringRule::{Function, Template};
use crate::op::{
    Attr, DTypeRule, DefaultLit, Eval, Grad, OpDef, Port, PortKind, Precision, ShapeRule, Tolerance, UNARY,
    attr, tensor,
};
use crate::ops::elementwise::{c_function, float_only, larger, smaller};
use crate::rules::{Attrs, DTypes};
use crate::tensor::{Scalar, Tensor};

/// Ops of this file.
pub static OPS: &[&OpDef] = &[
    &RELU,
    &RELU6,
    &LEAKY_RELU,
    &PRELU,
    &ELU,
    &SELU,
    &CELU,
    &GELU,
    &SIGMOID,
    &SILU,
    &MISH,
    &LOG_SIGMOID,
    &SOFTPLUS,
    &SOFTSIGN,
    &HARD_SIGMOID,
    &HARD_SWISH,
    &HARD_TANH,
];

/// Evaluates a function of one float whose arguments were read from the call.
fn map(c: &EvalCx<'_>, f: impl Fn(f64) -> f64) -> Result<Vec<Tensor>> {
    let x = c.tensor(0);
    Ok(vec![Tensor::build(c.dtype(), c.shape(), |i| Scalar::Float(f(x.get(i).f64())))])
}

/// `x > 0 ? above : below`
fn positive<'a>(x: V<'a>, above: V<'a>, below: V<'a>) -> V<'a> {
    x.greater(0.0).select(above, below)
}

/// `x` where it is negative, else 0: the branch of a `select` that is not taken must not overflow, since its gradient
/// would be NaN.
fn negative_part(x: V<'_>) -> V<'_> {
    x.minimum(0.0)
}

/// `g` where `low < x < high`, else 0.
fn strictly_inside<'a>(x: V<'a>, low: f64, high: f64, g: V<'a>) -> V<'a> {
    let above = x.greater(low);
    above.logical_and(x.less(high)).select(g, 0.0)
}

/// `max(x, 0)`
pub static RELU: OpDef = OpDef {
    name: "relu",
    doc: "Rectified linear unit: `max(x, 0)`. NaN stays NaN; the gradient at 0 is 0; integers stay integers.",
    layer: "Relu",
    dtype: DTypeRule::Arith,
    eval: Some(Eval::Scalar(|x| match x[0] {
        Scalar::Float(x) => Scalar::Float(larger(x, 0.0)),
        other => Scalar::Int(other.int().max(0)),
    })),
    expand: Some(|c| vec![c.x[0].maximum(0)]),
    // Uses the result rather than the input, which then need not be kept for the gradient.
    grad: Grad::Formula(|v| vec![positive(v.y, v.g, v.cx.lit(0.0))]),
    lowering: Lowering {
        py: Template("{xp}.maximum({0}, 0)"),
        torch: Template("torch.relu({0})"),
        jax: Template("jax.nn.relu({0})"),
        c: Function(|cx| c_function(cx, "relu")),
        ggml: Template("mithril_clamp({0}, 0, inf)"),
        onnx: Function(super::onnx::relu),
        ..Lowering::NONE
    },
    tolerance: Tolerance::Exact,
    ..UNARY
};

/// `min(max(x, 0), 6)`
pub static RELU6: OpDef = OpDef {
    name: "relu6",
    doc: "Rectified linear unit with a maximum of 6: `min(max(x, 0), 6)`. The gradient at 0 and at 6 is 0; integers stay \
         integers.",
    layer: "Relu6",
    dtype: DTypeRule::Arith,
    eval: Some(Eval::Scalar(|x| match x[0] {
        Scalar::Float(x) => Scalar::Float(smaller(larger(x, 0.0), 6.0)),
        other => Scalar::Int(other.int().clamp(0, 6)),
    })),
    expand: Some(|c| vec![c.x[0].clip(0, 6)]),
    grad: Grad::Formula(|v| vec![strictly_inside(v.x[0], 0.0, 6.0, v.g)]),
    lowering: Lowering {
        torch: Function(|cx| float_only(cx, "F.relu6({0})")),
        jax: Function(|cx| float_only(cx, "_held({0}, 0, 6)")),
        mlx: Function(|cx| float_only(cx, "mx.clip({0}, 0, 6)")),
        c: Function(|cx| {
            let is_float = cx.out(0)?.dtype.is_float();
            is_float.then(|| "mithril_minimum_{t}(mithril_relu_{t}({0}), 6.0{f})".into())
        }),
        ggml: Template("mithril_clamp({0}, 0, 6)"),
        ..Lowering::NONE
    },
    domain: (-2.0, 8.0),
    tolerance: Tolerance::Exact,
    ..UNARY
};

static LEAKY_RELU_PORTS: &[Port] = &[
    tensor("input"),
    Port { name: "slope", kind: PortKind::Tensor(Kinds::ANY), default: DefaultLit::Float(0.01) },
];

/// `x > 0 ? x : slope * x`
pub static LEAKY_RELU: OpDef = OpDef {
    name: "leaky_relu",
    doc: "Leaky rectified linear unit: `x` above 0, `slope * x` below. The slope is a number or a tensor that \
         broadcasts, 0.01 if not given. The gradient at 0 is the slope. A. L. Maas et al., Rectifier nonlinearities \
         improve neural network acoustic models (2013).",
    layer: "LeakyRelu",
    ports: LEAKY_RELU_PORTS,
    shape: ShapeRule::Broadcast,
    eval: Some(Eval::F2(|x, slope| if x > 0.0 { x } else { slope * x }, |_, _| 0)),
    expand: Some(|c| vec![positive(c.x[0], c.x[0], c.x[0] * c.x[1])]),
    grad: Grad::Formula(|v| {
        let (x, slope) = (v.x[0], v.x[1]);
        vec![positive(x, v.g, v.g * slope), positive(x, v.cx.lit(0.0), v.g * x)]
    }),
    lowering: Lowering {
        torch: Function(|s| s.f64(1).ok().map(|_| format!("F.leaky_relu({}, {})", s.arg(0), s.arg(1)))),
        c: Template("mithril_leaky_relu_{t}({0}, {1})"),
        ggml: Function(|s| {
            super::ggml::number(s, 1).map(|slope| format!("ggml_leaky_relu({{0}}, {slope:?}, false)"))
        }),
        onnx: Function(|s| super::onnx::with_alpha(s, "LeakyRelu")),
        ..Lowering::NONE
    },
    cases: &["[2,3]", "[2,3] slope=0.2", "[2,3] [3]", "[]", "[0,3]"],
    tolerance: Tolerance::Rounded,
    ..UNARY
};

static ALPHA: &[Port] = &[tensor("input"), attr("alpha", Attr::Float, DefaultLit::Float(1.0))];
const ALPHA_CASES: &[&str] = &["[2,3]", "[2,3] alpha=0.5", "[]", "[0,3]"];

/// `x > 0 ? x : alpha (e^x - 1)`
pub static ELU: OpDef = OpDef {
    name: "elu",
    doc: "Exponential linear unit: `x` above 0, `alpha * (exp(x) - 1)` below. D.-A. Clevert et al., Fast and accurate \
         deep network learning by exponential linear units (2015).",
    layer: "Elu",
    ports: ALPHA,
    eval: Some(Eval::Tensors(|c| {
        let alpha = c.f64(1)?;
        map(c, |x| if x > 0.0 { x } else { alpha * libm::expm1(x) })
    })),
    expand: Some(|c| {
        let alpha = c.get(|a| a.f64(1));
        vec![positive(c.x[0], c.x[0], negative_part(c.x[0]).expm1() * alpha)]
    }),
    forms: &[
        form("where(greater(input, 0), input, alpha * expm1(where(greater(input, 0), 0, input)))"),
        form("where(greater(input, 0), input, alpha * expm1(input))"),
    ],
    grad: Grad::Formula(|v| {
        let alpha = v.get(|a| a.f64(1));
        vec![positive(v.x[0], v.g, v.g * negative_part(v.x[0]).exp() * alpha)]
    }),
    lowering: Lowering {
        torch: Template("F.elu({0}, {1})"),
        jax: Template("jax.nn.elu({0}, {1})"),
        mlx: Template("_elu({0}, {1})"),
        c: Template("mithril_elu_{t}({0}, {1})"),
        ggml: Function(|s| Some(super::ggml::elu(s.f64(1).ok()?, 1.0, 1.0))),
        onnx: Function(|s| super::onnx::with_alpha(s, "Elu")),
        ..Lowering::NONE
    },
    cases: ALPHA_CASES,
    ..UNARY
};

const SELU_SCALE: f64 = 1.050_700_987_355_480_5;
const SELU_ALPHA: f64 = 1.673_263_242_354_377_2;

/// `scale * elu(x, alpha)` with fixed constants
pub static SELU: OpDef = OpDef {
    name: "selu",
    doc: "Self-normalizing exponential linear unit: `scale * x` above 0, `scale * alpha * (exp(x) - 1)` below, with \
         `scale` 1.0507009873554805 and `alpha` 1.6732632423543772. G. Klambauer et al., Self-normalizing neural \
         networks (2017).",
    layer: "Selu",
    eval: Some(Eval::F1(|x| SELU_SCALE * if x > 0.0 { x } else { SELU_ALPHA * libm::expm1(x) })),
    expand: Some(|c| {
        let below = negative_part(c.x[0]).expm1() * (SELU_SCALE * SELU_ALPHA);
        vec![positive(c.x[0], c.x[0] * SELU_SCALE, below)]
    }),
    forms: &[form("1.0507009873554805 * elu(input, 1.6732632423543772)")],
    grad: Grad::Formula(|v| {
        let below = negative_part(v.x[0]).exp() * (SELU_SCALE * SELU_ALPHA);
        vec![positive(v.x[0], v.g * SELU_SCALE, v.g * below)]
    }),
    lowering: Lowering {
        torch: Template("torch.selu({0})"),
        jax: Template("jax.nn.selu({0})"),
        mlx: Template("1.0507009873554805 * _elu({0}, 1.6732632423543772)"),
        c: Template("mithril_selu_{t}({0})"),
        ggml: Function(|_| Some(super::ggml::elu(SELU_ALPHA, 1.0, SELU_SCALE))),
        onnx: Template("Selu<alpha=1.6732632423543772, gamma=1.0507009873554805>({0})"),
        ..Lowering::NONE
    },
    ..UNARY
};

/// `max(x, 0) + min(alpha (e^(x/alpha) - 1), 0)`
pub static CELU: OpDef = OpDef {
    name: "celu",
    doc: "Exponential linear unit with a continuous derivative: `x` above 0, `alpha * (exp(x / alpha) - 1)` below; \
         `alpha` above 0. J. T. Barron, Continuously differentiable exponential linear units (2017).",
    layer: "Celu",
    ports: ALPHA,
    eval: Some(Eval::Tensors(|c| {
        let alpha = c.f64(1)?;
        map(c, |x| if x > 0.0 { x } else { alpha * libm::expm1(x / alpha) })
    })),
    expand: Some(|c| {
        let alpha = c.get(|a| a.f64(1));
        vec![positive(c.x[0], c.x[0], (negative_part(c.x[0]) / alpha).expm1() * alpha)]
    }),
    grad: Grad::Formula(|v| {
        let alpha = v.get(|a| a.f64(1));
        vec![positive(v.x[0], v.g, v.g * (negative_part(v.x[0]) / alpha).exp())]
    }),
    lowering: Lowering {
        torch: Template("torch.celu({0}, {1})"),
        jax: Template("jax.nn.celu({0}, {1})"),
        mlx: Template("_celu({0}, {1})"),
        c: Template("mithril_celu_{t}({0}, {1})"),
        ggml: Function(|s| s.f64(1).ok().filter(|a| *a > 0.0).map(|a| super::ggml::elu(a, 1.0 / a, 1.0))),
        onnx: Function(|s| super::onnx::with_alpha(s, "Celu")),
        ..Lowering::NONE
    },
    cases: ALPHA_CASES,
    ..UNARY
};

static GELU_PORTS: &[Port] =
    &[tensor("input"), attr("approximate", Attr::Choice(&["none", "tanh"]), DefaultLit::Str("none"))];

/// `√(2/π)`
const GELU_BETA: f64 = SQRT_2 * FRAC_2_SQRT_PI / 2.0;
const GELU_KAPPA: f64 = 0.044_715;

const fn tanh_form(formula: &'static str) -> Form {
    Form { formula, with: &[("approximate", DefaultLit::Str("tanh"))] }
}

fn is_tanh(cx: &impl Attrs) -> Result<bool> {
    Ok(cx.text(1)? == "tanh")
}

/// `x Φ(x)`
pub static GELU: OpDef = OpDef {
    name: "gelu",
    doc: "Gaussian error linear unit: `x` times the normal distribution function, `x * (1 + erf(x / √2)) / 2`. With \
         `approximate=\"tanh\"` the approximation `x * (1 + tanh(√(2/π) * (x + 0.044715 * x³))) / 2`. D. Hendrycks and \
         K. Gimpel, Gaussian error linear units (2016).",
    layer: "Gelu",
    ports: GELU_PORTS,
    eval: Some(Eval::Tensors(|c| map(c, if is_tanh(c)? { gelu_tanh } else { gelu }))),
    expand: Some(|c| {
        let x = c.x[0];
        // Through `erfc` and `sigmoid`, since 1 + erf and 1 + tanh cancel for negative x.
        let share = if c.get(is_tanh) { gelu_inner(x).sigmoid() } else { (x * -FRAC_1_SQRT_2).erfc() * 0.5 };
        vec![x * share]
    }),
    forms: &[
        form("input * 0.5 * (1 + erf(input / sqrt(2)))"),
        form("input * 0.5 * erfc(-input / sqrt(2))"),
        tanh_form("input * 0.5 * (1 + tanh(sqrt(2 / pi) * (input + 0.044715 * input ** 3)))"),
        tanh_form("input * 0.5 * (1 + tanh(sqrt(2 / pi) * input * (1 + 0.044715 * input ** 2)))"),
        tanh_form("input * sigmoid(2 * sqrt(2 / pi) * (input + 0.044715 * input ** 3))"),
    ],
    grad: Grad::Formula(gelu_grad),
    lowering: Lowering {
        numpy: Function(|cx| {
            let helper = if is_tanh(cx).ok()? { "_gelu_tanh" } else { "_gelu" };
            Some(format!("{helper}({})", cx.arg(0)))
        }),
        torch: Template("F.gelu({0}, approximate={1})"),
        jax: Function(|cx| {
            let approximate = if is_tanh(cx).ok()? { "True" } else { "False" };
            Some(format!("jax.nn.gelu({}, approximate={approximate})", cx.arg(0)))
        }),
        mlx: Function(|cx| {
            let function = if is_tanh(cx).ok()? { "_gelu_tanh" } else { "_gelu" };
            (cx.out(0)?.dtype != DType::F64).then(|| format!("{function}({})", cx.arg(0)))
        }),
        c: Function(|cx| {
            let function = if is_tanh(cx).ok()? { "gelu_tanh" } else { "gelu" };
            Some(format!("mithril_{function}_{{t}}({{0}})"))
        }),
        ggml: Function(|cx| {
            // `ggml_gelu` looks the tanh up in a table of float16.
            let function = if is_tanh(cx).ok()? { "mithril_gelu_tanh" } else { "ggml_gelu_erf" };
            Some(format!("{function}({{0}})"))
        }),
        onnx: Function(super::onnx::gelu),
        ..Lowering::NONE
    },
    cases: &["[2,3]", "[2,3] approximate=\"tanh\"", "[]", "[0,3]"],
    ..UNARY
};

fn gelu(x: f64) -> f64 {
    0.5 * x * libm::erfc(-x * FRAC_1_SQRT_2)
}

fn gelu_tanh(x: f64) -> f64 {
    x * sigmoid(2.0 * GELU_BETA * (x + GELU_KAPPA * x * x * x))
}

/// Twice the argument of the hyperbolic tangent: `(1 + tanh(u)) / 2 = sigmoid(2u)`.
fn gelu_inner(x: V<'_>) -> V<'_> {
    x * (x * x * (2.0 * GELU_BETA * GELU_KAPPA) + 2.0 * GELU_BETA)
}

fn gelu_grad<'a>(v: &GradCx<'a>) -> Vec<V<'a>> {
    let x = v.x[0];
    let slope = if v.get(is_tanh) {
        let share = gelu_inner(x).sigmoid();
        // Beyond 10 the share is 0 or 1 in every dtype; a product of that 0 with an infinite x² would be NaN.
        let x = x.clip(-10.0, 10.0);
        let inner = x * x * (6.0 * GELU_BETA * GELU_KAPPA) + 2.0 * GELU_BETA;
        share + x * share * (1.0 - share) * inner
    } else {
        let share = (x * -FRAC_1_SQRT_2).erfc() * 0.5;
        let density = (x * x * -0.5).exp() * (0.5 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2);
        share + x * density
    };
    vec![v.g * slope]
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + libm::exp(-x))
}

/// `1 / (1 + e^-x)`
pub static SIGMOID: OpDef = OpDef {
    name: "sigmoid",
    doc: "Logistic function: `1 / (1 + exp(-x))`.",
    aliases: &["logistic", "expit"],
    layer: "Sigmoid",
    eval: Some(Eval::F1(sigmoid)),
    expand: Some(|c| {
        // The exponential of `-|x|` cannot overflow.
        let small = (-c.x[0].abs()).exp();
        vec![positive(c.x[0], c.cx.lit(1.0), small) / (small + 1.0)]
    }),
    forms: &[form("1 / (1 + exp(-input))")],
    grad: Grad::Formula(|v| vec![v.g * v.y * (1.0 - v.y)]),
    lowering: Lowering {
        py: Template("{xp}.sigmoid({0})"),
        numpy: Template("_sigmoid({0})"),
        jax: Template("jax.nn.sigmoid({0})"),
        mlx: Function(|cx| {
            let function = if cx.out(0)?.dtype == DType::F64 { "_sigmoid" } else { "mx.sigmoid" };
            Some(format!("{function}({})", cx.arg(0)))
        }),
        c: Template("mithril_sigmoid_{t}({0})"),
        ggml: Template("ggml_sigmoid({0})"),
        onnx: Template("Sigmoid({0})"),
        ..Lowering::NONE
    },
    ..UNARY
};

/// `x sigmoid(x)`
pub static SILU: OpDef = OpDef {
    name: "silu",
    doc: "Sigmoid linear unit, also called swish: `x * sigmoid(x)`. S. Elfwing et al., Sigmoid-weighted linear units \
         (2017).",
    aliases: &["swish"],
    layer: "Silu",
    eval: Some(Eval::F1(|x| x / (1.0 + libm::exp(-x)))),
    expand: Some(|c| vec![c.x[0] * c.x[0].sigmoid()]),
    forms: &[form("input * sigmoid(input)"), form("input / (1 + exp(-input))")],
    grad: Grad::Formula(|v| {
        let share = v.x[0].sigmoid();
        vec![v.g * (share + v.y * (1.0 - share))]
    }),
    lowering: Lowering {
        numpy: Template("_silu({0})"),
        torch: Template("F.silu({0})"),
        jax: Template("jax.nn.silu({0})"),
        c: Template("mithril_silu_{t}({0})"),
        ggml: Template("ggml_silu({0})"),
        onnx: Template("Mul({0}, Sigmoid({0}))"),
        ..Lowering::NONE
    },
    ..UNARY
};

/// `ln (1 + e^x)` without overflow or cancellation.
fn softplus(x: f64) -> f64 {
    larger(x, 0.0) + libm::log1p(libm::exp(-x.abs()))
}

/// `x tanh(softplus(x))`
pub static MISH: OpDef = OpDef {
    name: "mish",
    doc: "`x * tanh(softplus(x))`. D. Misra, Mish: a self regularized non-monotonic activation function (2019).",
    layer: "Mish",
    eval: Some(Eval::F1(|x| x * libm::tanh(softplus(x)))),
    expand: Some(|c| vec![c.x[0] * c.x[0].op(&SOFTPLUS, &[]).tanh()]),
    forms: &[form("input * tanh(softplus(input, 1, 20))"), form("input * tanh(softplus(input, 1, inf))")],
    lowering: Lowering {
        numpy: Template("_mish({0})"),
        torch: Template("F.mish({0})"),
        jax: Template("jax.nn.mish({0})"),
        c: Template("mithril_mish_{t}({0})"),
        onnx: Template("Mish({0})"),
        ..Lowering::NONE
    },
    ..UNARY
};

/// `ln sigmoid(x)`
pub static LOG_SIGMOID: OpDef = OpDef {
    name: "log_sigmoid",
    doc: "Logarithm of the logistic function: `-log(1 + exp(-x))`, for any x.",
    aliases: &["logsigmoid"],
    layer: "LogSigmoid",
    eval: Some(Eval::F1(|x| -softplus(-x))),
    expand: Some(|c| {
        let small = (-c.x[0].abs()).exp().log1p();
        vec![negative_part(c.x[0]) - small]
    }),
    forms: &[form("-softplus(-input, 1, inf)")],
    grad: Grad::Formula(|v| vec![v.g * (-v.x[0]).sigmoid()]),
    lowering: Lowering {
        numpy: Template("_log_sigmoid({0})"),
        torch: Template("F.logsigmoid({0})"),
        jax: Template("jax.nn.log_sigmoid({0})"),
        c: Template("mithril_log_sigmoid_{t}({0})"),
        ..Lowering::NONE
    },
    precision: Some(Precision::Wide),
    ..UNARY
};

static SOFTPLUS_PORTS: &[Port] = &[
    tensor("input"),
    attr("beta", Attr::Float, DefaultLit::Float(1.0)),
    attr("threshold", Attr::Float, DefaultLit::Float(20.0)),
];

/// `ln (1 + e^(beta x)) / beta`
pub static SOFTPLUS: OpDef = OpDef {
    name: "softplus",
    doc: "Smooth rectifier: `log(1 + exp(beta * x)) / beta`, and `x` itself where `beta * x` is above `threshold`.",
    layer: "Softplus",
    ports: SOFTPLUS_PORTS,
    eval: Some(Eval::Tensors(|c| {
        let (beta, threshold) = (c.f64(1)?, c.f64(2)?);
        map(c, |x| if x * beta > threshold { x } else { softplus(x * beta) / beta })
    })),
    expand: Some(|c| {
        let (scaled, is_linear) = softplus_parts(c);
        let small = (-scaled.abs()).exp().log1p();
        let soft = scaled.maximum(0.0) + small;
        vec![is_linear.select(c.x[0], soft / c.get(|a| a.f64(1)))]
    }),
    forms: &[
        form("where(greater(input, threshold), input, log1p(exp(input)))"),
        always_soft("maximum(input, 0) + log1p(exp(-abs(input)))"),
        always_soft("where(not_equal(input, input), input + 0, maximum(input, 0) + log1p(exp(-abs(input))))"),
        always_soft("where(not_equal(input, input), input, maximum(input, 0) + log1p(exp(-abs(input))))"),
    ],
    grad: Grad::Formula(|v| {
        let (scaled, is_linear) = softplus_parts(v);
        vec![is_linear.select(v.g, v.g * scaled.sigmoid())]
    }),
    lowering: Lowering {
        numpy: Template("_softplus({0}, {1}, {2})"),
        torch: Template("F.softplus({0}, {1}, {2})"),
        c: Template("mithril_softplus_{t}({0}, {1}, {2})"),
        ..Lowering::NONE
    },
    cases: &["[2,3]", "[2,3] beta=2.0", "[2,3] beta=0.5 threshold=0.25", "[]", "[0,3]"],
    precision: Some(Precision::Wide),
    ..UNARY
};

const fn always_soft(formula: &'static str) -> Form {
    Form { formula, with: &[("threshold", DefaultLit::Float(f64::INFINITY))] }
}

/// `beta * x`, and the condition that it is above the threshold.
fn softplus_parts<'a>(c: &ExpandCx<'a>) -> (V<'a>, V<'a>) {
    let scaled = c.x[0] * c.get(|a| a.f64(1));
    (scaled, scaled.greater(c.get(|a| a.f64(2))))
}

/// `x / (1 + |x|)`
pub static SOFTSIGN: OpDef = OpDef {
    name: "softsign",
    doc: "`x / (1 + |x|)`.",
    layer: "Softsign",
    eval: Some(Eval::F1(|x| x / (1.0 + x.abs()))),
    expand: Some(|c| vec![c.x[0] / (c.x[0].abs() + 1.0)]),
    grad: Grad::Formula(|v| {
        let below = v.x[0].abs() + 1.0;
        // Divided twice: the square could overflow.
        vec![v.g / below / below]
    }),
    lowering: Lowering {
        torch: Template("F.softsign({0})"),
        c: Template("mithril_softsign_{t}({0})"),
        ggml: Template("ggml_div({0}, ggml_scale_bias(ggml_abs({0}), 1, 1))"),
        onnx: Template("Softsign({0})"),
        ..Lowering::NONE
    },
    ..UNARY
};

/// `min(max(x + 3, 0), 6) / 6`
pub static HARD_SIGMOID: OpDef = OpDef {
    name: "hard_sigmoid",
    doc: "Piecewise linear logistic function: `min(max(x + 3, 0), 6) / 6`. The gradient at -3 and at 3 is 0.",
    aliases: &["hardsigmoid"],
    layer: "HardSigmoid",
    eval: Some(Eval::F1(|x| smaller(larger(x + 3.0, 0.0), 6.0) / 6.0)),
    expand: Some(|c| vec![(c.x[0] + 3.0).clip(0.0, 6.0) / 6.0]),
    forms: &[form("clip(input + 3, 0, 6) / 6")],
    grad: Grad::Formula(|v| vec![strictly_inside(v.x[0], -3.0, 3.0, v.g / 6.0)]),
    lowering: Lowering {
        // Not `F.hardsigmoid`: its gradient is 1/6 in single precision, and cannot be differentiated again.
        torch: Template("F.relu6({0} + 3) / 6"),
        jax: Template("_held({0} + 3, 0, 6) / 6"),
        mlx: Template("mx.clip({0} + 3, 0, 6) / 6"),
        c: Template("mithril_hard_sigmoid_{t}({0})"),
        ggml: Template("ggml_div(mithril_clamp(ggml_scale_bias({0}, 1, 3), 0, 6), 6)"),
        onnx: Template("HardSigmoid<alpha=0.16666666666666666, beta=0.5>({0})"),
        ..Lowering::NONE
    },
    ..UNARY
};

/// `x hard_sigmoid(x)`
pub static HARD_SWISH: OpDef = OpDef {
    name: "hard_swish",
    doc: "Piecewise linear swish: `x * min(max(x + 3, 0), 6) / 6`. The gradient at -3 is 0, at 3 it is 1. A. Howard \
         et al., Searching for MobileNetV3 (2019).",
    aliases: &["hardswish", "hard_silu"],
    layer: "HardSwish",
    eval: Some(Eval::F1(|x| x * smaller(larger(x + 3.0, 0.0), 6.0) / 6.0)),
    expand: Some(|c| vec![c.x[0] * c.x[0].op(&HARD_SIGMOID, &[])]),
    forms: &[form("input * hard_sigmoid(input)"), form("input * clip(input + 3, 0, 6) / 6")],
    grad: Grad::Formula(|v| {
        let x = v.x[0];
        let inside = strictly_inside(x, -3.0, 3.0, v.g * (x / 3.0 + 0.5));
        let above = x.less(3.0).select(inside, v.g);
        vec![above]
    }),
    lowering: Lowering {
        torch: Function(|c| {
            // On CUDA, `F.hardswish` multiplies doubles by 1/6 in single precision.
            let is_double = c.out(0)?.dtype == DType::F64;
            let function = if is_double { "_hard_swish" } else { "F.hardswish" };
            Some(format!("{function}({})", c.arg(0)))
        }),
        c: Template("mithril_hard_swish_{t}({0})"),
        ggml: Template("ggml_hardswish({0})"),
        onnx: Template("HardSwish({0})"),
        ..Lowering::NONE
    },
    ..UNARY
};

static HARD_TANH_PORTS: &[Port] = &[
    tensor("input"),
    attr("min", Attr::Float, DefaultLit::Float(-1.0)),
    attr("max", Attr::Float, DefaultLit::Float(1.0)),
];

/// `min(max(x, min), max)`
pub static HARD_TANH: OpDef = OpDef {
    name: "hard_tanh",
    doc: "Piecewise linear hyperbolic tangent: `min(max(x, min), max)`. The gradient on the bounds is 0. \
         Integers stay integers if both bounds are whole.",
    aliases: &["hardtanh"],
    layer: "HardTanh",
    ports: HARD_TANH_PORTS,
    dtype: DTypeRule::Fn(|cx| {
        let input = cx.dtype(0).unwrap_or(cx.float);
        let to = match input.kind() {
            Kind::Float => input,
            _ if integer_bounds(cx, input)?.is_none() => cx.float,
            Kind::Bool => DType::I64,
            Kind::Int => input,
        };
        Ok(DTypes::all(cx, to, [to]))
    }),
    eval: Some(Eval::Tensors(|c| {
        let (min, max) = (c.f64(1)?, c.f64(2)?);
        let Some((least, most)) = integer_bounds(c, c.dtype())? else {
            return map(c, |x| smaller(larger(x, min), max));
        };
        let x = c.tensor(0);
        let clamped = |i| Scalar::Int(x.get(i).int().max(least).min(most));
        Ok(vec![Tensor::build(c.dtype(), c.shape(), clamped)])
    })),
    expand: Some(|c| {
        let x = c.x[0];
        let bounds = c.get(|a| integer_bounds(a, x.dtype()));
        vec![match bounds {
            Some((min, max)) => x.clip(min, max),
            None => x.clip(c.x[1], c.x[2]),
        }]
    }),
    grad: Grad::Formula(|v| {
        let (min, max) = (v.get(|a| a.f64(1)), v.get(|a| a.f64(2)));
        vec![strictly_inside(v.x[0], min, max, v.g)]
    }),
    lowering: Lowering {
        torch: Function(|cx| float_only(cx, &format!("F.hardtanh({{0}}, {{1}}, {})", cx.arg(2)))),
        jax: Function(|cx| float_only(cx, &format!("_held({{0}}, {{1}}, {})", cx.arg(2)))),
        mlx: Function(|cx| float_only(cx, &format!("mx.clip({{0}}, {{1}}, {})", cx.arg(2)))),
        c: Function(|cx| {
            let is_float = cx.out(0)?.dtype.is_float();
            is_float.then(|| "mithril_minimum_{t}(mithril_maximum_{t}({0}, {1}), {2})".into())
        }),
        ggml: Function(super::ggml::clip),
        ..Lowering::NONE
    },
    cases: &[
        "[2,3]",
        "[2,3] min=-0.5 max=0.75",
        "[]",
        "[0,3]",
        "i32[2,3] min=-2 max=3",
        "u8[4] min=-1.0 max=inf",
        "i64[4] max=0.5",
    ],
    tolerance: Tolerance::Exact,
    ..UNARY
};

/// The bounds of integers, clamped to the range of the dtype; `None` for floats, or if a bound is not an integer.
fn integer_bounds(cx: &(impl Attrs + ?Sized), dtype: DType) -> Result<Option<(i128, i128)>> {
    let (min, max) = (cx.f64(1)?, cx.f64(2)?);
    let is_whole = |bound: f64| bound.is_infinite() || bound.fract() == 0.0;
    if dtype.is_float() || !is_whole(min) || !is_whole(max) {
        return Ok(None);
    }
    let (least, most) = dtype.int_range().unwrap_or((i64::MIN.into(), i64::MAX.into()));
    let clamped = |bound: f64| (bound as i128).clamp(least, most);
    Ok(Some((clamped(min), clamped(max))))
}

#[cfg(test)]
mod tests;
