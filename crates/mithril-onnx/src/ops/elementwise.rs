//! Arithmetic, comparisons, logic and activations, element by element.

use mithril_ir::{DType, Kind, Lit, Result, Tensor, ValueId};

use super::{Table, one};
use crate::context::{Value, malformed};
use crate::narrow::Type;
use crate::node::{Use, op};

type Outputs = Result<Vec<Value>>;

pub static OPS: Table = &[
    ("Abs", |u| same(u, "abs")),
    ("Acos", |u| same(u, "acos")),
    ("Acosh", |u| same(u, "acosh")),
    ("Asin", |u| same(u, "asin")),
    ("Asinh", |u| same(u, "asinh")),
    ("Atan", |u| same(u, "atan")),
    ("Atanh", |u| same(u, "atanh")),
    ("Ceil", |u| same(u, "ceil")),
    ("Cos", |u| same(u, "cos")),
    ("Cosh", |u| same(u, "cosh")),
    ("Erf", |u| same(u, "erf")),
    ("Exp", |u| same(u, "exp")),
    ("Floor", |u| same(u, "floor")),
    ("Log", |u| same(u, "log")),
    ("Neg", |u| same(u, "negative")),
    ("Not", |u| same(u, "logical_not")),
    ("Reciprocal", |u| same(u, "reciprocal")),
    ("Round", |u| same(u, "round")),
    ("Sigmoid", |u| same(u, "sigmoid")),
    ("Sign", |u| same(u, "sign")),
    ("Sin", |u| same(u, "sin")),
    ("Sinh", |u| same(u, "sinh")),
    ("Softsign", |u| same(u, "softsign")),
    ("Sqrt", |u| same(u, "sqrt")),
    ("Tan", |u| same(u, "tan")),
    ("Tanh", |u| same(u, "tanh")),
    ("Relu", |u| same(u, "relu")),
    ("HardSwish", |u| same(u, "hard_swish")),
    ("IsNaN", |u| same(u, "isnan")),
    ("Mish", |u| same(u, "mish")),
    ("BitwiseNot", |u| same(u, "bitwise_not")),
    ("Add", |u| same(u, "add")),
    ("Sub", |u| same(u, "subtract")),
    ("Mul", |u| same(u, "multiply")),
    ("And", |u| same(u, "logical_and")),
    ("Or", |u| same(u, "logical_or")),
    ("Xor", |u| same(u, "logical_xor")),
    ("Equal", |u| same(u, "equal")),
    ("Greater", |u| same(u, "greater")),
    ("Less", |u| same(u, "less")),
    ("GreaterOrEqual", |u| same(u, "greater_equal")),
    ("LessOrEqual", |u| same(u, "less_equal")),
    ("BitwiseAnd", |u| same(u, "bitwise_and")),
    ("BitwiseOr", |u| same(u, "bitwise_or")),
    ("BitwiseXor", |u| same(u, "bitwise_xor")),
    ("Where", |u| same(u, "where")),
    ("PRelu", |u| same(u, "leaky_relu")),
    ("Det", |u| same(u, "det")),
    ("Identity", identity),
    ("Div", divide),
    ("Pow", power),
    ("Mod", remainder),
    ("BitShift", shift),
    ("Max", |u| folded(u, "maximum")),
    ("Min", |u| folded(u, "minimum")),
    ("Sum", |u| folded(u, "add")),
    ("Mean", mean),
    ("Cast", |u| {
        let to = u.type_of("to")?.ok_or_else(|| malformed("the attribute `to` is missing"))?;
        cast(u, to)
    }),
    ("CastLike", |u| {
        let (like, narrow) = u.any(1)?;
        let to = narrow.map_or(Type::Plain(u.dtype(like)), Type::Narrow);
        cast(u, to)
    }),
    ("BitCast", bit_cast),
    ("Clip", clip),
    ("IsInf", is_inf),
    ("Gelu", |u| {
        let (x, how) = (u.x(0)?, u.text("approximate", "none")?);
        one(op!(u, "gelu", x, &*how)?)
    }),
    ("Elu", |u| with_float(u, "elu", "alpha", 1.0)),
    ("Celu", |u| with_float(u, "celu", "alpha", 1.0)),
    ("LeakyRelu", |u| with_float(u, "leaky_relu", "alpha", 0.01)),
    ("Selu", selu),
    ("ThresholdedRelu", |u| {
        let (x, alpha) = (u.x(0)?, u.float("alpha", 1.0)?);
        let above = op!(u, "greater", x, alpha)?;
        one(op!(u, "where", above, x, 0.0)?)
    }),
    ("HardSigmoid", hard_sigmoid),
    ("Shrink", shrink),
    ("Softplus", softplus),
    ("Swish", swish),
    ("Softmax", |u| softmax(u, "softmax")),
    ("LogSoftmax", |u| softmax(u, "log_softmax")),
    ("Hardmax", hardmax),
    ("Dropout", dropout),
    ("CumSum", |u| running(u, "cumsum")),
    ("CumProd", |u| running(u, "cumprod")),
];

/// An op of ours with the same inputs. A number beside a tensor is written as a number.
fn same(u: &mut Use<'_>, name: &str) -> Outputs {
    let mut x = u.all()?;
    if x.len() > 1 {
        let beside = x.iter().copied().find(|&v| u.cx.b.graph.lit(v).is_none() && u.dtype(v) != DType::Bool);
        if let Some(beside) = beside {
            for v in &mut x {
                *v = plain(u, *v, beside);
            }
        }
    }
    one(u.op(name, &x)?)
}

/// A constant without axes as the number that it is, which takes the dtype of the tensor beside it.
fn plain(u: &mut Use<'_>, v: ValueId, beside: ValueId) -> ValueId {
    let lit = match u.cx.b.graph.lit(v) {
        Some(Lit::Tensor(t)) if t.rank() == 0 && t.dtype() == u.dtype(beside) => match t.dtype().kind() {
            Kind::Float => Lit::Float(t.get(0).f64()),
            Kind::Int => t.get(0).int().into(),
            Kind::Bool => return v,
        },
        _ => return v,
    };
    u.cx.lit(lit)
}

fn identity(u: &mut Use<'_>) -> Outputs {
    u.has(0);
    u.inputs.first().cloned().flatten().map(|v| vec![v]).ok_or_else(|| malformed("input 0 is missing"))
}

/// The quotient of integers rounds toward zero.
fn divide(u: &mut Use<'_>) -> Outputs {
    let (x, y) = (u.x(0)?, u.x(1)?);
    if u.dtype(x).is_float() {
        return same(u, "divide");
    }
    let quotient = op!(u, "floor_divide", x, y)?;
    if u.dtype(x).int_range().is_some_and(|(least, _)| least == 0) {
        return one(quotient);
    }
    // One more where rounding down went away from zero: a remainder with signs that differ.
    let rest = op!(u, "fmod", x, y)?;
    let (inexact, negative) = (op!(u, "not_equal", rest, 0_i64)?, op!(u, "bitwise_xor", x, y)?);
    let negative = op!(u, "less", negative, 0_i64)?;
    let above = op!(u, "logical_and", inexact, negative)?;
    let dtype = u.dtype(x);
    let above = u.cast(above, dtype)?;
    one(op!(u, "add", quotient, above)?)
}

/// The result has the dtype of the base.
fn power(u: &mut Use<'_>) -> Outputs {
    let (x, y) = (u.x(0)?, u.x(1)?);
    let dtype = u.dtype(x);
    if u.dtype(y) == dtype {
        return same(u, "power");
    }
    let y = op!(u, "power", x, y)?;
    one(u.cast(y, dtype)?)
}

fn remainder(u: &mut Use<'_>) -> Outputs {
    let truncates = u.flag("fmod", false)?;
    same(u, if truncates { "fmod" } else { "remainder" })
}

fn shift(u: &mut Use<'_>) -> Outputs {
    match u.text("direction", "")?.as_str() {
        "LEFT" => same(u, "left_shift"),
        "RIGHT" => same(u, "right_shift"),
        other => Err(malformed(format!("the direction is {other:?}"))),
    }
}

fn folded(u: &mut Use<'_>, name: &str) -> Outputs {
    let all = u.all()?;
    let (&first, rest) = all.split_first().ok_or_else(|| malformed("it has no input"))?;
    let mut total = first;
    for &x in rest {
        total = op!(u, name, total, x)?;
    }
    one(total)
}

fn mean(u: &mut Use<'_>) -> Outputs {
    let all = u.all()?;
    let (&first, rest) = all.split_first().ok_or_else(|| malformed("it has no input"))?;
    let mut total = first;
    for &x in rest {
        total = op!(u, "add", total, x)?;
    }
    one(op!(u, "divide", total, all.len() as f64)?)
}

/// What does not fit into an integer is not defined.
fn cast(u: &mut Use<'_>, to: Type) -> Outputs {
    let (x, _) = u.any(0)?;
    let (saturates, mode) = (u.flag("saturate", true)?, u.text("round_mode", "up")?);
    match to {
        Type::Plain(dtype) => one(u.cast(x, dtype)?),
        Type::Narrow(narrow) => Ok(vec![Value::Narrow(narrow.round(u, x, saturates, &mode)?, narrow)]),
    }
}

/// Integers of one width wrap around when they are converted, so that their bits stay.
fn bit_cast(u: &mut Use<'_>) -> Outputs {
    let x = u.x(0)?;
    let (from, to) =
        (u.dtype(x), u.dtype_of("to")?.ok_or_else(|| malformed("the attribute `to` is missing"))?);
    if from == to {
        return one(x);
    }
    if from.size() != to.size() || from.is_float() || to.is_float() || to == DType::Bool {
        return Err(Use::refuse(format!("the bits of {from} as {to} are not supported")));
    }
    one(u.cast(x, to)?)
}

fn clip(u: &mut Use<'_>) -> Outputs {
    let x = u.x(0)?;
    let is_float = u.dtype(x).is_float();
    if u.opset < 11 {
        let (least, most) = (u.optional_float("min")?, u.optional_float("max")?);
        return one(op!(u, "clip", x, Lit::from(least), Lit::from(most))?);
    }
    let bound = |u: &mut Use<'_>, i: usize| -> Result<Option<ValueId>> {
        if !u.has(i) {
            return Ok(None);
        }
        match u.constant(i) {
            Ok(t) if t.len() == 1 && is_float => Ok(Some(u.cx.lit(t.get(0).f64()))),
            Ok(t) if t.len() == 1 => Ok(Some(u.cx.lit(t.get(0).int()))),
            _ => u.x(i).map(Some),
        }
    };
    let (least, most) = (bound(u, 1)?, bound(u, 2)?);
    one(op!(u, "clip", x, least, most)?)
}

fn is_inf(u: &mut Use<'_>) -> Outputs {
    let x = u.x(0)?;
    let infinite = op!(u, "isinf", x)?;
    match (u.flag("detect_negative", true)?, u.flag("detect_positive", true)?) {
        (true, true) => one(infinite),
        (negative, positive) => {
            let sign = if positive { op!(u, "greater", x, 0.0)? } else { op!(u, "less", x, 0.0)? };
            let infinite = op!(u, "logical_and", infinite, sign)?;
            one(if negative || positive { infinite } else { op!(u, "zeros_like", infinite)? })
        }
    }
}

fn with_float(u: &mut Use<'_>, name: &str, attribute: &str, default: f64) -> Outputs {
    let (x, value) = (u.x(0)?, u.float(attribute, default)?);
    one(op!(u, name, x, value)?)
}

fn selu(u: &mut Use<'_>) -> Outputs {
    let x = u.x(0)?;
    let (alpha, gamma) = (u.float("alpha", 1.673_263_2)?, u.float("gamma", 1.050_701)?);
    if alpha as f32 == 1.673_263_2_f32 && gamma as f32 == 1.050_701_f32 {
        return one(op!(u, "selu", x)?);
    }
    let y = op!(u, "elu", x, alpha)?;
    one(op!(u, "multiply", y, gamma)?)
}

fn hard_sigmoid(u: &mut Use<'_>) -> Outputs {
    let (x, alpha, beta) = (u.x(0)?, u.float("alpha", 0.2)?, u.float("beta", 0.5)?);
    one(linear_sigmoid(u, x, alpha, beta)?)
}

/// `min(max(alpha * x + beta, 0), 1)`
pub(super) fn linear_sigmoid(u: &mut Use<'_>, x: ValueId, alpha: f64, beta: f64) -> Result<ValueId> {
    if alpha as f32 == (1.0_f64 / 6.0) as f32 && beta == 0.5 {
        return op!(u, "hard_sigmoid", x);
    }
    let y = op!(u, "multiply", x, alpha)?;
    let y = op!(u, "add", y, beta)?;
    op!(u, "clip", y, 0.0, 1.0)
}

fn shrink(u: &mut Use<'_>) -> Outputs {
    let (x, lambda, bias) = (u.x(0)?, u.float("lambd", 0.5)?, u.float("bias", 0.0)?);
    let dtype = u.dtype(x);
    let (low, high) = (op!(u, "less", x, -lambda)?, op!(u, "greater", x, lambda)?);
    let (raised, lowered) = (op!(u, "add", x, bias)?, op!(u, "subtract", x, bias)?);
    let inner = op!(u, "where", high, lowered, 0.0)?;
    let y = op!(u, "where", low, raised, inner)?;
    one(u.cast(y, dtype)?)
}

/// Ours is the identity above a threshold, which has to lie where rounding gives the same.
fn softplus(u: &mut Use<'_>) -> Outputs {
    let x = u.x(0)?;
    let threshold = if u.dtype(x) == DType::F64 { 40.0 } else { 20.0 };
    one(op!(u, "softplus", x, 1.0, threshold)?)
}

fn swish(u: &mut Use<'_>) -> Outputs {
    let (x, alpha) = (u.x(0)?, u.float("alpha", 1.0)?);
    if alpha == 1.0 {
        return one(op!(u, "silu", x)?);
    }
    let scaled = op!(u, "multiply", x, alpha)?;
    let gate = op!(u, "sigmoid", scaled)?;
    one(op!(u, "multiply", x, gate)?)
}

/// Before opset 13 all axes from `axis` on are one.
fn softmax(u: &mut Use<'_>, name: &str) -> Outputs {
    let x = u.x(0)?;
    let shape = u.shape(x);
    let rank = shape.rank();
    let axis = u.int("axis", if u.opset < 13 { 1 } else { -1 })?;
    if u.opset >= 13 {
        return one(op!(u, name, x, axis)?);
    }
    let first = if axis == rank as i64 { rank } else { Use::axis(axis, rank)? };
    if first + 1 == rank {
        return one(op!(u, name, x, -1_i64)?);
    }
    let mut joined: Vec<_> = shape[..first].to_vec();
    joined.push((-1_i64).into());
    let flat = op!(u, "reshape", x, joined)?;
    let index = op!(u, name, flat, -1_i64)?;
    one(op!(u, "reshape", index, shape.to_vec())?)
}

/// 1 at the first of the largest elements.
fn hardmax(u: &mut Use<'_>) -> Outputs {
    let mut x = u.x(0)?;
    let (shape, dtype) = (u.shape(x), u.dtype(x));
    let rank = shape.rank();
    let mut axis = Use::axis(u.int("axis", if u.opset < 13 { 1 } else { -1 })?, rank)?;
    if u.opset < 13 && axis + 1 < rank {
        let mut joined: Vec<_> = shape[..axis].to_vec();
        joined.push((-1_i64).into());
        x = op!(u, "reshape", x, joined)?;
    }
    axis = axis.min(u.rank(x) - 1);
    let size = u.shape(x)[axis].clone();
    let place = op!(u, "argmax", x, axis as i64)?;
    let hot = op!(u, "one_hot", place, size, dtype)?;
    let hot = op!(u, "moveaxis", hot, -1_i64, axis as i64)?;
    one(op!(u, "reshape", hot, shape.to_vec())?)
}

/// Nothing happens unless the model is trained, and what is exported is not.
fn dropout(u: &mut Use<'_>) -> Outputs {
    let x = u.x(0)?;
    u.ignore(&["ratio", "seed", "is_test"]);
    u.has(1);
    if u.has(2) && u.number(2)? != 0.0 && (!u.has(1) || u.number(1)? != 0.0) {
        return Err(Use::refuse("it is in training mode: export the model for inference"));
    }
    let mask = op!(u, "ones_like", x, DType::Bool)?;
    Ok(vec![Value::Graph(x), Value::Graph(mask)])
}

fn running(u: &mut Use<'_>, name: &str) -> Outputs {
    let x = u.x(0)?;
    let (dtype, axis) = (u.dtype(x), u.number(1)? as i64);
    let (exclusive, reverse) = (u.flag("exclusive", false)?, u.flag("reverse", false)?);
    let y = op!(u, name, x, axis, exclusive, reverse)?;
    one(u.cast(y, dtype)?)
}

/// A tensor of one number, for tables that are made here.
pub(super) fn vector(values: &[f64], dtype: DType) -> Tensor {
    Tensor::from_f64s(dtype, &[values.len()], values)
}
