//! Elementwise arithmetic, functions, comparison and logic.

use crate::dtype::{DType, Kinds};
use crate::op::{
    Attr, BLANK, DTypeRule, DefaultLit, Eval, Grad, OpDef, Port, ShapeRule, Spell, Text, Tolerance, attr,
    binary, dtype_or, tensor, tensor_of, unary,
};
use crate::rules::{Attrs, DTypes};
use crate::tensor::Scalar;

/// Rows of this file.
pub static OPS: &[&OpDef] =
    &[&ADD, &SUBTRACT, &MULTIPLY, &DIVIDE, &NEGATIVE, &EXP, &SQRT, &TANH, &EQUAL, &WHERE, &ISNAN, &CAST];

/// `left + right`
pub static ADD: OpDef = OpDef {
    grad: Grad::Formula(|v| vec![v.g, v.g]),
    spell: Spell::both("{0} + {1}"),
    layer: "Add",
    ..binary("add", "Sum of two tensors, elementwise.", |a, b| a + b, i64::wrapping_add)
};

/// `left - right`
pub static SUBTRACT: OpDef = OpDef {
    grad: Grad::Formula(|v| vec![v.g, -v.g]),
    spell: Spell::both("{0} - {1}"),
    layer: "Subtract",
    ..binary("subtract", "Difference of two tensors, elementwise.", |a, b| a - b, i64::wrapping_sub)
};

/// `left * right`
pub static MULTIPLY: OpDef = OpDef {
    grad: Grad::Formula(|v| vec![v.g * v.x[1], v.g * v.x[0]]),
    spell: Spell::both("{0} * {1}"),
    layer: "Multiply",
    ..binary("multiply", "Product of two tensors, elementwise.", |a, b| a * b, i64::wrapping_mul)
};

/// `left / right`
pub static DIVIDE: OpDef = OpDef {
    dtype: DTypeRule::Float,
    eval: Some(Eval::F2(|a, b| a / b, |_, _| 0)),
    grad: Grad::Formula(|v| vec![v.g / v.x[1], -(v.g * v.y) / v.x[1]]),
    spell: Spell::both("{0} / {1}"),
    domain: (0.5, 2.0),
    layer: "Divide",
    ..binary(
        "divide",
        "Quotient of two tensors, elementwise; integers become floats.",
        |a, b| a / b,
        |_, _| 0,
    )
};

/// `-input`
pub static NEGATIVE: OpDef = OpDef {
    dtype: DTypeRule::Arith,
    eval: Some(Eval::Scalar(|x| match x[0] {
        Scalar::Float(x) => Scalar::Float(-x),
        other => Scalar::Int(other.i64().wrapping_neg()),
    })),
    grad: Grad::Formula(|v| vec![-v.g]),
    spell: Spell::both("-{0}"),
    tolerance: Tolerance::Exact,
    layer: "Negative",
    ..unary("negative", "Each element with the opposite sign.", |x| -x)
};

/// `e^x`
pub static EXP: OpDef = OpDef {
    grad: Grad::Formula(|v| vec![v.g * v.y]),
    spell: Spell { c: Text::T("exp({0})"), ..Spell::py("{xp}.exp({0})") },
    layer: "Exp",
    ..unary("exp", "Exponential function.", f64::exp)
};

/// `√x`
pub static SQRT: OpDef = OpDef {
    grad: Grad::Formula(|v| vec![v.g / (2.0 * v.y)]),
    spell: Spell { c: Text::T("sqrt({0})"), ..Spell::py("{xp}.sqrt({0})") },
    tolerance: Tolerance::Rounded,
    domain: (0.1, 4.0),
    layer: "Sqrt",
    ..unary("sqrt", "Square root; NaN below zero.", f64::sqrt)
};

/// `tanh x`
pub static TANH: OpDef = OpDef {
    grad: Grad::Formula(|v| vec![v.g * (1.0 - v.y * v.y)]),
    spell: Spell { c: Text::T("tanh({0})"), ggml: Text::T("ggml_tanh({0})"), ..Spell::py("{xp}.tanh({0})") },
    layer: "Tanh",
    ..unary("tanh", "Hyperbolic tangent.", f64::tanh)
};

const fn comparison(name: &'static str, doc: &'static str, f: fn(&[Scalar]) -> Scalar) -> OpDef {
    OpDef {
        dtype: DTypeRule::Compare,
        eval: Some(Eval::Scalar(f)),
        grad: Grad::Zero,
        tolerance: Tolerance::Exact,
        ..binary(name, doc, |_, _| 0.0, |_, _| 0)
    }
}

/// `left == right`
pub static EQUAL: OpDef = OpDef {
    spell: Spell::both("{0} == {1}"),
    layer: "Equal",
    ..comparison("equal", "Whether two elements are equal; NaN equals nothing.", |x| match (x[0], x[1]) {
        (Scalar::Float(_), _) | (_, Scalar::Float(_)) => Scalar::Bool(x[0].f64() == x[1].f64()),
        (a, b) => Scalar::Bool(a.i64() == b.i64()),
    })
};

static WHERE_PORTS: &[Port] = &[tensor_of("condition", Kinds::BOOL), tensor("input"), tensor("other")];

/// `condition ? input : other`
pub static WHERE: OpDef = OpDef {
    name: "where",
    doc: "Elements of `input` where `condition` holds, of `other` elsewhere. All three broadcast.",
    ports: WHERE_PORTS,
    shape: ShapeRule::Broadcast,
    dtype: DTypeRule::Fn(|cx| {
        let [a, b] = [cx.dtype(1), cx.dtype(2)].map(|d| d.unwrap_or(cx.float));
        let to = match (cx.is_number(1), cx.is_number(2)) {
            (true, false) if a.kind() <= b.kind() => b,
            (false, true) if b.kind() <= a.kind() => a,
            _ => a.promote(b),
        };
        Ok(DTypes { cast: [None, Some(to), Some(to)].into_iter().collect(), out: [to].into_iter().collect() })
    }),
    eval: Some(Eval::Scalar(|x| if x[0].bool() { x[1] } else { x[2] })),
    grad: Grad::Formula(|v| {
        let c = v.x[0];
        vec![v.none(), c.op(&WHERE, &[v.g, v.cx.lit(0.0)]), c.op(&WHERE, &[v.cx.lit(0.0), v.g])]
    }),
    spell: Spell { c: Text::T("{0} ? {1} : {2}"), ..Spell::py("{xp}.where({0}, {1}, {2})") },
    tolerance: Tolerance::Exact,
    layer: "Where",
    ..BLANK
};

/// NaN or not
pub static ISNAN: OpDef = OpDef {
    dtype: DTypeRule::Fn(|_| Ok(DTypes::keep([DType::Bool]))),
    eval: Some(Eval::Scalar(|x| Scalar::Bool(x[0].f64().is_nan()))),
    grad: Grad::Zero,
    spell: Spell::py("{xp}.isnan({0})"),
    tolerance: Tolerance::Exact,
    layer: "IsNan",
    ..unary("isnan", "Whether each element is NaN.", |x| x)
};

static CAST_PORTS: &[Port] = &[tensor("input"), attr("dtype", Attr::DType, DefaultLit::Required)];

/// conversion
pub static CAST: OpDef = OpDef {
    name: "cast",
    doc: "Converts to another dtype. Floats to integers are cut towards zero and held inside the range, NaN \
          becomes 0; integers to narrower integers wrap; floats round to nearest even; anything but zero is true.",
    ports: CAST_PORTS,
    shape: ShapeRule::Same,
    dtype: DTypeRule::Fn(|cx| Ok(DTypes::keep([dtype_or(&cx.lit(1), cx.float)]))),
    eval: Some(Eval::Host(|c| Ok(vec![c.tensor(0).cast(c.dtype())]))),
    grad: Grad::Formula(|v| vec![v.g.cast(v.x[0].dtype())]),
    tolerance: Tolerance::Exact,
    layer: "Cast",
    ..BLANK
};
