//! Elementwise arithmetic and conversion.
//!
//! Integers wrap around, and division by zero and overflow never panic. [`super::function`] and [`super::compare`] contain
//! the other elementwise ops; they are re-exported here.

pub use super::compare::*;
pub use super::function::*;
pub use super::gradient::{REPLACE_GRADIENT, STOP_GRADIENT};

use super::foreach;
use crate::dtype::DType;
use crate::lowering::LoweringRule::{Function, Template};
use crate::lowering::{Lowering, LoweringCx};
use crate::op::{
    Attr, BINARY, BLANK, DTypeRule, DefaultLit, Eval, Grad, OpDef, Port, Precision, ShapeRule, Tolerance,
    UNARY, Unsigned, attr, dtype_or, optional, tensor,
};
use crate::rules::{Attrs, DTypes};
use crate::tensor::Scalar;

/// Ops of this file.
pub static OPS: &[&OpDef] = &[
    &ADD,
    &SUBTRACT,
    &MULTIPLY,
    &DIVIDE,
    &FLOOR_DIVIDE,
    &REMAINDER,
    &POWER,
    &NEGATIVE,
    &ABS,
    &SIGN,
    &MAXIMUM,
    &MINIMUM,
    &CLIP,
    &CAST,
];

/// `left + right`
pub static ADD: OpDef = OpDef {
    name: "add",
    doc: "Sum of two tensors, elementwise. They broadcast and promote; booleans count as integers, \
         integers wrap around.",
    aliases: &["plus"],
    layer: "Add",
    eval: Some(Eval::F2(|a, b| a + b, i128::wrapping_add)),
    loops: Some(|c| Ok(c.arithmetic(|a, b| a + b))),
    unsigned: Unsigned::Bits,
    grad: Grad::Formula(|v| vec![v.g, v.g]),
    lowering: Lowering {
        py: Template("{0} + {1}"),
        torch_foreach: Function(|cx| foreach::commutative(cx, "add")),
        ggml: Function(super::ggml::add),
        onnx: Template("Add({0}, {1})"),
        ..Lowering::NONE
    },
    ..BINARY
};

/// `left - right`
pub static SUBTRACT: OpDef = OpDef {
    name: "subtract",
    doc: "Difference of two tensors, elementwise. They broadcast and promote; booleans count as integers, \
         integers wrap around.",
    aliases: &["sub", "minus"],
    layer: "Subtract",
    eval: Some(Eval::F2(|a, b| a - b, i128::wrapping_sub)),
    loops: Some(|c| Ok(c.arithmetic(|a, b| a - b))),
    unsigned: Unsigned::Bits,
    grad: Grad::Formula(|v| vec![v.g, -v.g]),
    lowering: Lowering {
        py: Template("{0} - {1}"),
        torch_foreach: Function(foreach::difference),
        ggml: Function(super::ggml::subtract),
        onnx: Template("Sub({0}, {1})"),
        ..Lowering::NONE
    },
    ..BINARY
};

/// `left * right`
pub static MULTIPLY: OpDef = OpDef {
    name: "multiply",
    doc: "Product of two tensors, elementwise. They broadcast and promote; booleans count as integers, \
         integers wrap around.",
    aliases: &["mul", "times"],
    layer: "Multiply",
    eval: Some(Eval::F2(|a, b| a * b, i128::wrapping_mul)),
    loops: Some(|c| Ok(c.arithmetic(|a, b| a * b))),
    unsigned: Unsigned::Bits,
    grad: Grad::Formula(|v| vec![v.g * v.x[1], v.g * v.x[0]]),
    lowering: Lowering {
        py: Template("{0} * {1}"),
        torch_foreach: Function(|cx| foreach::commutative(cx, "mul")),
        ggml: Function(super::ggml::multiply),
        onnx: Template("Mul({0}, {1})"),
        ..Lowering::NONE
    },
    ..BINARY
};

/// `left / right`
pub static DIVIDE: OpDef = OpDef {
    name: "divide",
    doc: "Quotient of two tensors, elementwise. Integers become the default float; `x / 0` is infinite with the \
         sign of `x`, `0 / 0` is NaN.",
    aliases: &["div", "true_divide"],
    layer: "Divide",
    dtype: DTypeRule::Float,
    // Integers have been converted to floats.
    eval: Some(Eval::F2(|a, b| a / b, |_, _| 0)),
    linear: &[0],
    grad: Grad::Formula(|v| vec![v.g / v.x[1], -(v.g * v.y) / v.x[1]]),
    lowering: Lowering {
        py: Template("{0} / {1}"),
        torch_foreach: Function(foreach::quotient),
        c: Template("{0} / {1}"),
        ggml: Function(super::ggml::divide),
        onnx: Template("Div({0}, {1})"),
        ..Lowering::NONE
    },
    domain: (0.5, 2.0),
    ..BINARY
};

/// `⌊left / right⌋`
pub static FLOOR_DIVIDE: OpDef = OpDef {
    name: "floor_divide",
    doc: "Quotient rounded towards minus infinity, like `//` in Python. `floor_divide(a, b) * b + remainder(a, b)` is \
         `a`. Floats: the floor of the exact quotient; a divisor of 0 behaves as in `divide`. Integers: a \
         divisor of 0 gives 0, and the smallest integer divided by -1 wraps around to itself.",
    aliases: &["floordiv", "integer_divide"],
    layer: "FloorDivide",
    eval: Some(Eval::F2(float_floor_divide, |a, b| {
        if b == 0 { 0 } else { a.wrapping_div(b) - i128::from(is_split(a, b)) }
    })),
    unsigned: Unsigned::Lowering,
    grad: Grad::Zero,
    lowering: Lowering {
        numpy: Template("{0} // {1}"),
        torch: Function(|cx| torch_division(cx, "_floor_divide")),
        jax: Template("_floor_divide({0}, {1})"),
        mlx: Function(|cx| {
            let helper = if cx.out(0)?.dtype.is_float() { "_floor_divide" } else { "_integer_floor_divide" };
            Some(format!("{helper}({}, {})", cx.mlx_array(0), cx.mlx_array(1)))
        }),
        c: Function(|cx| c_function(cx, "floor_divide")),
        onnx: Function(super::onnx::floor_divide),
        ..Lowering::NONE
    },
    domain: (0.5, 2.0),
    tolerance: Tolerance::Elementwise,
    ..BINARY
};

/// `left - ⌊left / right⌋ · right`
pub static REMAINDER: OpDef = OpDef {
    name: "remainder",
    doc: "Remainder of the floor division, with the sign of the divisor, like `%` in Python. Floats: a divisor of 0 \
         gives NaN. Integers: a divisor of 0 gives 0.",
    aliases: &["mod", "modulo"],
    layer: "Remainder",
    eval: Some(Eval::F2(float_remainder, |a, b| {
        if b == 0 { 0 } else { a.wrapping_rem(b) + if is_split(a, b) { b } else { 0 } }
    })),
    unsigned: Unsigned::Lowering,
    grad: Grad::Formula(|v| vec![v.g, -(v.g * v.x[0].floor_divide(v.x[1]))]),
    lowering: Lowering {
        numpy: Template("{0} % {1}"),
        torch: Function(|cx| torch_division(cx, "_remainder")),
        jax: Function(|cx| {
            let (left, right, is_float) = (cx.arg(0), cx.arg(1), cx.out(0)?.dtype.is_float());
            Some(if is_float {
                format!("{left} % {right}")
            } else {
                format!("_integer_remainder({left}, {right})")
            })
        }),
        mlx: Function(|cx| {
            let is_float = cx.out(0)?.dtype.is_float();
            let helper = || format!("_integer_remainder({}, {})", cx.mlx_array(0), cx.mlx_array(1));
            Some(if is_float { format!("{} % {}", cx.arg(0), cx.arg(1)) } else { helper() })
        }),
        c: Function(|cx| c_function(cx, "remainder")),
        onnx: Function(super::onnx::remainder),
        ..Lowering::NONE
    },
    domain: (0.5, 2.0),
    ..BINARY
};

/// In PyTorch dividing integers by 0 is an error, and floor divisions have no gradient.
pub(super) fn torch_division(cx: &LoweringCx<'_>, helper: &str) -> Option<String> {
    let (left, right, dtype) = (cx.arg(0), cx.arg(1), cx.out(0)?.dtype);
    Some(match dtype.is_float() {
        true if helper.ends_with("remainder") => format!("{left} % {right}"),
        true => format!("_floor_divide({left}, {right})"),
        false => {
            let kind = if dtype == DType::U64 { "unsigned" } else { "integer" };
            format!("_{kind}{helper}({}, {})", cx.torch_tensor(0, dtype), cx.torch_tensor(1, dtype))
        }
    })
}

/// Whether the floor of the quotient is below the truncated quotient: signs differ and the remainder is not 0.
fn is_split(a: i128, b: i128) -> bool {
    a.wrapping_rem(b) != 0 && (a < 0) != (b < 0)
}

fn float_remainder(a: f64, b: f64) -> f64 {
    let rest = libm::fmod(a, b);
    if rest == 0.0 {
        0.0_f64.copysign(b)
    } else if (rest < 0.0) != (b < 0.0) {
        rest + b
    } else {
        rest
    }
}

fn float_floor_divide(a: f64, b: f64) -> f64 {
    if b == 0.0 {
        return a / b;
    }
    // Not `floor(a / b)`: 1.0 / 0.1 rounds up to 10, but 1.0 contains the stored 0.1 only 9 times.
    let rest = libm::fmod(a, b);
    let below = rest != 0.0 && (rest < 0.0) != (b < 0.0);
    let quotient = ((a - rest) / b).round() - f64::from(u8::from(below));
    if quotient == 0.0 { 0.0_f64.copysign(a / b) } else { quotient }
}

/// `left ^ right`
pub static POWER: OpDef = OpDef {
    name: "power",
    doc: "The first tensor to the power of the second, elementwise. Floats follow IEEE 754: `0 ^ 0` is 1, a negative \
         base with a fractional exponent gives NaN. Integers wrap around; a negative exponent gives 0, except for the \
         bases 1 and -1.",
    aliases: &["pow"],
    layer: "Power",
    eval: Some(Eval::F2(libm::pow, integer_power)),
    unsigned: Unsigned::Lowering,
    grad: Grad::Formula(|v| {
        let (x, n) = (v.x[0], v.x[1]);
        if let Ok(n) = v.f64(1) {
            let slope = if n == 2.0 { x * 2.0 } else { x.power(n - 1.0) * n };
            return vec![if n == 0.0 { x * 0.0 } else { v.g * slope }];
        }
        let zero = v.cx.lit(0.0);
        let slope = n * x.power(n - 1.0);
        let by_x = n.equal(zero).select(zero, v.g * slope);
        // 0^n is 0 for all n > 0, so the slope is 0 although the logarithm of 0 is infinite.
        let is_flat = x.equal(zero).logical_and(n.greater_equal(zero));
        vec![by_x, is_flat.select(zero, v.g * v.y * x.log())]
    }),
    lowering: Lowering {
        py: Template("{0} ** {1}"),
        numpy: Function(power_text),
        torch: Function(|cx| {
            let (x, n, dtype) = (cx.arg(0), cx.arg(1), cx.out(0)?.dtype);
            // PyTorch accepts a negative power of integers only as a tensor.
            Some(match cx.f64(1) {
                _ if dtype == DType::U64 => return torch_division(cx, "_power"),
                Ok(..0.0) if !dtype.is_float() => format!("{x} ** {}", cx.torch_tensor(1, dtype)),
                _ => format!("{x} ** {n}"),
            })
        }),
        jax: Function(power_text),
        mlx: Function(|cx| {
            Some(match cx.f64(1) {
                Ok(2.0) => format!("mx.square({})", cx.arg(0)),
                Err(_) | Ok(..0.0) if !cx.out(0)?.dtype.is_float() => {
                    format!("_integer_power({}, {})", cx.mlx_array(0), cx.mlx_array(1))
                }
                _ => format!("{} ** {}", cx.arg(0), cx.arg(1)),
            })
        }),
        c: Function(c_power),
        ggml: Function(super::ggml::power),
        onnx: Function(super::onnx::power),
        ..Lowering::NONE
    },
    domain: (0.5, 2.0),
    tolerance: Tolerance::Elementwise,
    precision: Some(Precision::Wide),
    ..BINARY
};

fn power_text(cx: &LoweringCx<'_>) -> Option<String> {
    let (x, n, xp, dtype) = (cx.arg(0), cx.arg(1), cx.xp, cx.out(0)?.dtype);
    Some(match cx.f64(1) {
        Ok(2.0) => format!("{xp}.square({x})"),
        Err(_) | Ok(..0.0) if !dtype.is_float() => format!("_integer_power({x}, {n}, {})", cx.dtype(dtype)),
        // In Python the operator binds more tightly than the sign of a negative base.
        _ if cx.ty(0).is_none() => format!("{xp}.power({x}, {n})"),
        _ => format!("{x} ** {n}"),
    })
}

/// Small integer exponents become products.
fn c_power(cx: &LoweringCx<'_>) -> Option<String> {
    let function = |name: &str| Some(format!("mithril_{name}_{{t}}({{0}})"));
    match cx.f64(1) {
        Ok(-1.0) if cx.out(0)?.dtype.is_float() => Some("1 / {0}".into()),
        Ok(2.0) if cx.out(0)?.dtype.is_float() => function("square"),
        Ok(3.0) if cx.out(0)?.dtype.is_float() => function("cube"),
        _ => c_function(cx, "power"),
    }
}

fn integer_power(base: i128, exponent: i128) -> i128 {
    if exponent < 0 {
        return match base {
            1 => 1,
            -1 => 1 - 2 * (exponent & 1),
            _ => 0,
        };
    }
    let (mut result, mut square, mut rest) = (1_i128, base, exponent);
    while rest > 0 {
        if rest & 1 == 1 {
            result = result.wrapping_mul(square);
        }
        square = square.wrapping_mul(square);
        rest >>= 1;
    }
    result
}

/// Calls a function of the C prelude with all tensors. There is one for each float type, and one for int64, whose result is
/// truncated to the integer dtype; uint64 has its own.
pub(super) fn c_function(cx: &LoweringCx<'_>, name: &str) -> Option<String> {
    let dtype = cx.out(0)?.dtype;
    let integer = if dtype == DType::U64 { "u64" } else { "i64" };
    let kind = if dtype.is_float() { "{t}" } else { integer };
    let args: Vec<String> = (0..cx.node.inputs.len()).map(|i| format!("{{{i}}}")).collect();
    Some(format!("mithril_{name}_{kind}({})", args.join(", ")))
}

/// The expression, if the output is a float.
pub(super) fn float_only(cx: &LoweringCx<'_>, template: &str) -> Option<String> {
    cx.out(0)?.dtype.is_float().then(|| template.replace("{0}", cx.arg(0)).replace("{1}", cx.arg(1)))
}

/// The first expression, or the second one for uint64 in PyTorch.
fn torch_or_unsigned(cx: &LoweringCx<'_>, plain: &str, unsigned: &str) -> Option<String> {
    let is_unsigned = cx.xp == "torch" && cx.out(0)?.dtype == DType::U64;
    Some(if is_unsigned { unsigned } else { plain }.replace("{0}", cx.arg(0)))
}

/// An elementwise function of one input that keeps integers; booleans become integers.
pub(super) const NUMERIC: OpDef =
    OpDef { dtype: DTypeRule::Arith, unsigned: Unsigned::Bits, tolerance: Tolerance::Exact, ..UNARY };

/// `-input`
pub static NEGATIVE: OpDef = OpDef {
    name: "negative",
    doc: "Each element with the opposite sign. Integers wrap around.",
    aliases: &["neg"],
    layer: "Negative",
    eval: Some(Eval::Scalar(|x| match x[0] {
        Scalar::Float(x) => Scalar::Float(-x),
        other => Scalar::Int(other.int().wrapping_neg()),
    })),
    linear: &[0],
    grad: Grad::Formula(|v| vec![-v.g]),
    lowering: Lowering {
        py: Template("-{0}"),
        torch_foreach: Template("torch._foreach_neg({0})"),
        c: Function(|cx| float_only(cx, "-{0}").or_else(|| c_function(cx, "negative"))),
        ggml: Template("ggml_neg({0})"),
        onnx: Template("Neg({0})"),
        ..Lowering::NONE
    },
    ..NUMERIC
};

/// `|input|`
pub static ABS: OpDef = OpDef {
    name: "abs",
    doc: "Absolute value. The smallest integer of a dtype, which has none, is returned unchanged. The gradient at 0 is 0.",
    aliases: &["absolute", "fabs"],
    layer: "Abs",
    eval: Some(Eval::Scalar(|x| match x[0] {
        Scalar::Float(x) => Scalar::Float(x.abs()),
        other => Scalar::Int(other.int().wrapping_abs()),
    })),
    unsigned: Unsigned::Lowering,
    grad: Grad::Formula(|v| vec![v.g * v.x[0].sign()]),
    lowering: Lowering {
        py: Template("{xp}.abs({0})"),
        torch: Function(|cx| torch_or_unsigned(cx, "torch.abs({0})", "{0}.clone()")),
        torch_foreach: Template("torch._foreach_abs({0})"),
        jax: Function(|cx| float_only(cx, "_abs({0})")),
        c: Function(|cx| c_function(cx, "abs")),
        ggml: Template("ggml_abs({0})"),
        onnx: Template("Abs({0})"),
        ..Lowering::NONE
    },
    domain: (0.5, 2.0),
    ..NUMERIC
};

/// -1, 0 or 1
pub static SIGN: OpDef = OpDef {
    name: "sign",
    doc: "-1, 0 or 1, with the sign of each element; NaN stays NaN.",
    aliases: &["signum"],
    layer: "Sign",
    eval: Some(Eval::Scalar(|x| match x[0] {
        Scalar::Float(0.0) => Scalar::Float(0.0),
        Scalar::Float(x) if x.is_nan() => Scalar::Float(x),
        Scalar::Float(x) => Scalar::Float(x.signum()),
        other => Scalar::Int(other.int().signum()),
    })),
    unsigned: Unsigned::Lowering,
    grad: Grad::Zero,
    lowering: Lowering {
        py: Template("{xp}.sign({0})"),
        torch: Function(sign_with_nan),
        mlx: Function(sign_with_nan),
        c: Function(|cx| c_function(cx, "sign")),
        ggml: Template("mithril_sign({0})"),
        onnx: Function(super::onnx::sign),
        ..Lowering::NONE
    },
    domain: (0.5, 2.0),
    ..NUMERIC
};

/// In PyTorch and MLX the sign of NaN is 0.
fn sign_with_nan(cx: &LoweringCx<'_>) -> Option<String> {
    let (x, xp, is_float) = (cx.arg(0), cx.xp, cx.out(0)?.dtype.is_float());
    let plain = format!("{xp}.sign({{0}})");
    let sign = torch_or_unsigned(cx, &plain, "({0}.to(torch.int64) != 0).to(torch.uint64)")?;
    Some(if is_float { format!("{xp}.where({xp}.isnan({x}), {x}, {sign})") } else { sign })
}

/// The larger of two numbers; NaN if one is.
pub(super) fn larger(a: f64, b: f64) -> f64 {
    if a >= b || a.is_nan() { a } else { b }
}

/// The smaller of two numbers; NaN if one is.
pub(super) fn smaller(a: f64, b: f64) -> f64 {
    if a <= b || a.is_nan() { a } else { b }
}

/// `max(left, right)`
pub static MAXIMUM: OpDef = OpDef {
    name: "maximum",
    doc: "The larger of two elements; NaN if either is. Where both are equal, each gets half of the gradient.",
    layer: "Maximum",
    dtype: DTypeRule::Promote,
    eval: Some(Eval::F2(larger, |a, b| a.max(b))),
    unsigned: Unsigned::Order,
    grad: Grad::Formula(|v| {
        let (a, b, zero) = (v.x[0], v.x[1], v.cx.lit(0.0));
        let share = a.equal(b).select(v.g * 0.5, v.g);
        vec![a.less(b).select(zero, share), a.greater(b).select(zero, share)]
    }),
    lowering: Lowering {
        py: Template("{xp}.maximum({0}, {1})"),
        torch: Function(|cx| torch_extremum(cx, "maximum")),
        torch_foreach: Function(|cx| foreach::extremum(cx, "maximum")),
        mlx: Function(|cx| mlx_extremum(cx, "maximum")),
        c: Function(|cx| c_function(cx, "maximum")),
        ggml: Template("mithril_max({0}, {1})"),
        onnx: Template("Max({0}, {1})"),
        ..Lowering::NONE
    },
    tolerance: Tolerance::Exact,
    ..BINARY
};

/// `min(left, right)`
pub static MINIMUM: OpDef = OpDef {
    name: "minimum",
    doc: "The smaller of two elements; NaN if either is. Where both are equal, each gets half of the gradient.",
    layer: "Minimum",
    dtype: DTypeRule::Promote,
    eval: Some(Eval::F2(smaller, |a, b| a.min(b))),
    unsigned: Unsigned::Order,
    grad: Grad::Formula(|v| {
        let (a, b, zero) = (v.x[0], v.x[1], v.cx.lit(0.0));
        let share = a.equal(b).select(v.g * 0.5, v.g);
        vec![a.greater(b).select(zero, share), a.less(b).select(zero, share)]
    }),
    lowering: Lowering {
        py: Template("{xp}.minimum({0}, {1})"),
        torch: Function(|cx| torch_extremum(cx, "minimum")),
        torch_foreach: Function(|cx| foreach::extremum(cx, "minimum")),
        mlx: Function(|cx| mlx_extremum(cx, "minimum")),
        c: Function(|cx| c_function(cx, "minimum")),
        ggml: Template("mithril_min({0}, {1})"),
        onnx: Template("Min({0}, {1})"),
        ..Lowering::NONE
    },
    tolerance: Tolerance::Exact,
    ..BINARY
};

/// `torch.maximum` accepts only tensors. `clamp` would give the whole gradient to the input where both are equal.
fn torch_extremum(cx: &LoweringCx<'_>, name: &str) -> Option<String> {
    let dtype = cx.out(0)?.dtype;
    Some(format!("torch.{name}({}, {})", cx.torch_tensor(0, dtype), cx.torch_tensor(1, dtype)))
}

/// MLX gives the whole gradient of equal floats to the second operand.
fn mlx_extremum(cx: &LoweringCx<'_>, name: &str) -> Option<String> {
    Some(if cx.out(0)?.dtype.is_float() {
        format!("_{name}({}, {})", cx.mlx_array(0), cx.mlx_array(1))
    } else {
        format!("mx.{name}({}, {})", cx.arg(0), cx.arg(1))
    })
}

static CLIP_PORTS: &[Port] = &[tensor("input"), optional("min"), optional("max")];

/// `min(max(input, min), max)`
pub static CLIP: OpDef = OpDef {
    name: "clip",
    doc: "Clamps elements to the range from `min` to `max`, each of which is a number, a tensor that broadcasts, or absent. \
          `minimum(maximum(input, min), max)`: NaN propagates, and where `min > max` the result is `max`. The gradient \
          flows to `input` where it lies inside or on the bounds, otherwise to the active bound.",
    aliases: &["clamp"],
    layer: "Clip",
    ports: CLIP_PORTS,
    shape: ShapeRule::Broadcast,
    dtype: DTypeRule::Arith,
    expand: Some(|c| {
        let low = if c.x[1].is_some() { c.x[0].maximum(c.x[1]) } else { c.x[0] };
        vec![if c.x[2].is_some() { low.minimum(c.x[2]) } else { low }]
    }),
    grad: Grad::Formula(|v| {
        let (x, min, max, zero) = (v.x[0], v.x[1], v.x[2], v.cx.lit(0.0));
        let mut g = [v.g, v.none(), v.none()];
        if min.is_some() {
            g[0] = x.less(min).select(zero, g[0]);
            g[1] = x.less(min).select(v.g, zero);
        }
        if max.is_some() {
            g[0] = x.greater(max).select(zero, g[0]);
            g[2] = x.greater(max).select(v.g, zero);
        }
        if min.is_some() && max.is_some() {
            let is_crossed = min.greater(max);
            g[1] = is_crossed.select(zero, g[1]);
            g[2] = is_crossed.select(v.g, g[2]);
        }
        g.to_vec()
    }),
    lowering: Lowering {
        numpy: Function(|cx| {
            // `np.clip` does not support bfloat16 and returns float32.
            let is_known = cx.out(0)?.dtype != DType::BF16 && !(cx.absent(1) && cx.absent(2));
            is_known.then(|| format!("np.clip({}, {}, {})", cx.arg(0), cx.arg(1), cx.arg(2)))
        }),
        torch: Function(torch_clip),
        torch_foreach: Function(foreach::clip),
        jax: Function(|cx| float_only(cx, &format!("_clip({{0}}, {{1}}, {})", cx.arg(2)))),
        mlx: Template("_clip({0}, {1}, {2})"),
        ggml: Function(super::ggml::clip),
        onnx: Function(super::onnx::clip),
        ..Lowering::NONE
    },
    tolerance: Tolerance::Exact,
    ..BLANK
};

/// Not `torch.clamp`, which gives no gradient to elements that are equal to a bound.
fn torch_clip(cx: &LoweringCx<'_>) -> Option<String> {
    let is_bound = |i: usize| cx.ty(i).is_some() || !cx.absent(i);
    let x = cx.torch_tensor(0, cx.out(0)?.dtype);
    (is_bound(1) || is_bound(2)).then(|| format!("_clip({x}, {}, {})", cx.arg(1), cx.arg(2)))
}

static CAST_PORTS: &[Port] = &[tensor("input"), attr("dtype", Attr::DType, DefaultLit::Required)];

/// conversion
pub static CAST: OpDef = OpDef {
    name: "cast",
    doc: "Converts to another dtype. Floats become integers by truncation towards zero, clamped to the range \
          of the dtype, and NaN becomes 0; integers wrap around when converted to narrower integers; floats round to nearest even; anything but zero is true.",
    aliases: &["astype", "convert"],
    layer: "Cast",
    ports: CAST_PORTS,
    shape: ShapeRule::Same,
    dtype: DTypeRule::Fn(|cx| Ok(DTypes::keep([dtype_or(&cx.lit(1), cx.float)]))),
    eval: Some(Eval::Tensors(|c| Ok(vec![c.tensor(0).cast(c.dtype())]))),
    linear: &[0],
    grad: Grad::Formula(|v| vec![v.g.cast(v.x[0].dtype())]),
    lowering: Lowering {
        numpy: Function(|cx| conversion(cx, "astype")),
        torch: Function(|cx| conversion(cx, "to")),
        jax: Function(|cx| conversion(cx, "astype")),
        mlx: Function(|cx| conversion(cx, "astype")),
        c: Function(c_conversion),
        ggml: Function(super::ggml::cast),
        onnx: Function(super::onnx::cast),
        ..Lowering::NONE
    },
    cases: &["[2,3] dtype=f64", "[2,3] dtype=i32", "[2,3] dtype=bool", "i64[4]<9 dtype=f32", "[0] dtype=f16"],
    tolerance: Tolerance::Exact,
    ..BLANK
};

/// A method of the array where it converts as the reference does, else a helper.
fn conversion(cx: &LoweringCx<'_>, method: &str) -> Option<String> {
    let (from, to) = (cx.ty(0)?.dtype, cx.out(0)?.dtype);
    let (x, dtype) = (cx.arg(0), cx.dtype(to));
    Some(match to {
        _ if from.is_float() && to.int_range().is_some() => format!("_float_to_integer({x}, {dtype})"),
        // In MLX this conversion would let gradients through.
        DType::Bool if from.is_float() && cx.xp == "mx" => format!("{x} != 0"),
        // Frameworks round to float32 first; only the float16 of NumPy is rounded once.
        DType::BF16 if matches!(from, DType::F64 | DType::U32 | DType::U64 | DType::I32 | DType::I64) => {
            format!("_round_once({x}, {dtype})")
        }
        DType::F16 if from == DType::F64 && cx.xp != "np" => format!("_round_once({x}, {dtype})"),
        _ => format!("{x}.{method}({dtype})"),
    })
}

/// C converts the value to the type of the output; other conversions are explicit.
fn c_conversion(cx: &LoweringCx<'_>) -> Option<String> {
    let (from, to) = (cx.ty(0)?.dtype, cx.out(0)?.dtype);
    let half = |to: DType| match from {
        DType::F16 | DType::BF16 if from == to => "{0}".to_owned(),
        DType::F64 | DType::U32 | DType::U64 | DType::I32 | DType::I64 => {
            format!("mithril_round_{}(mithril_to_odd({{0}}))", to.short())
        }
        _ => format!("mithril_round_{}({{0}})", to.short()),
    };
    Some(match (to, to.int_range()) {
        (DType::Bool, _) => "{0} != 0".into(),
        (DType::F16 | DType::BF16, _) => half(to),
        (DType::U64, _) if from.is_float() => "mithril_to_u64({0})".into(),
        (_, Some(_)) if from.is_float() => {
            let bits = 8 * to.size();
            let (least, most) = match to {
                DType::U8 | DType::U16 | DType::U32 => ("0".into(), format!("UINT{bits}_MAX")),
                _ => (format!("INT{bits}_MIN"), format!("INT{bits}_MAX")),
            };
            format!("mithril_to_integer({{0}}, {least}, {most})")
        }
        _ => "({TO}){0}".into(),
    })
}

#[cfg(test)]
mod tests;
