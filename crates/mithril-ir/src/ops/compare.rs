//! Elementwise comparison, selection, logic and bits.

use crate::dtype::{DType, Kinds};
use crate::lowering::LoweringRule::{Function, Template};
use crate::lowering::{Lowering, LoweringCx};
use crate::op::{
    BINARY, BLANK, DTypeRule, Eval, Grad, OpDef, Port, ShapeRule, Tolerance, UNARY, Unsigned, tensor,
    tensor_of,
};
use crate::rules::{Attrs, DTypes};
use crate::tensor::Scalar;

/// Ops of this file.
pub static OPS: &[&OpDef] = &[
    &EQUAL,
    &NOT_EQUAL,
    &LESS,
    &LESS_EQUAL,
    &GREATER,
    &GREATER_EQUAL,
    &WHERE,
    &LOGICAL_AND,
    &LOGICAL_OR,
    &LOGICAL_XOR,
    &LOGICAL_NOT,
    &BITWISE_AND,
    &BITWISE_OR,
    &BITWISE_XOR,
    &BITWISE_NOT,
    &LEFT_SHIFT,
    &RIGHT_SHIFT,
    &ISNAN,
    &ISINF,
    &ISFINITE,
];

/// A comparison: the result is a boolean, so its gradient is zero.
const COMPARISON: OpDef = OpDef {
    dtype: DTypeRule::Compare,
    unsigned: Unsigned::Order,
    grad: Grad::Zero,
    tolerance: Tolerance::Exact,
    ..BINARY
};

/// Applies an operator: to floats as floats, to everything else as integers.
macro_rules! by {
    ($operator:tt) => {
        |x| match (x[0], x[1]) {
            (Scalar::Float(_), _) | (_, Scalar::Float(_)) => Scalar::Bool(x[0].f64() $operator x[1].f64()),
            (a, b) => Scalar::Bool(a.int() $operator b.int()),
        }
    };
}

/// `left == right`
pub static EQUAL: OpDef = OpDef {
    name: "equal",
    doc: "Whether two elements are equal; NaN equals nothing.",
    aliases: &["eq"],
    layer: "Equal",
    eval: Some(Eval::Scalar(by!(==))),
    unsigned: Unsigned::Bits,
    lowering: Lowering {
        py: Template("{0} == {1}"),
        c: Template("{0} == {1}"),
        ggml: Template("mithril_equal({0}, {1})"),
        onnx: Template("Equal({0}, {1})"),
        ..Lowering::NONE
    },
    ..COMPARISON
};

/// `left != right`
pub static NOT_EQUAL: OpDef = OpDef {
    name: "not_equal",
    doc: "Whether two elements differ; NaN differs from everything.",
    aliases: &["ne"],
    layer: "NotEqual",
    eval: Some(Eval::Scalar(by!(!=))),
    unsigned: Unsigned::Bits,
    lowering: Lowering {
        py: Template("{0} != {1}"),
        c: Template("{0} != {1}"),
        ggml: Template("ggml_scale_bias(mithril_equal({0}, {1}), -1, 1)"),
        onnx: Template("Not(Equal({0}, {1}))"),
        ..Lowering::NONE
    },
    ..COMPARISON
};

/// `left < right`
pub static LESS: OpDef = OpDef {
    name: "less",
    doc: "Whether the left element is smaller; false if either is NaN.",
    aliases: &["lt", "less_than"],
    layer: "Less",
    eval: Some(Eval::Scalar(by!(<))),
    lowering: Lowering {
        py: Template("{0} < {1}"),
        c: Template("{0} < {1}"),
        ggml: Template("mithril_less({0}, {1})"),
        onnx: Template("Less({0}, {1})"),
        ..Lowering::NONE
    },
    ..COMPARISON
};

/// `left <= right`
pub static LESS_EQUAL: OpDef = OpDef {
    name: "less_equal",
    doc: "Whether the left element is not larger; false if either is NaN.",
    aliases: &["le"],
    layer: "LessEqual",
    eval: Some(Eval::Scalar(by!(<=))),
    lowering: Lowering {
        py: Template("{0} <= {1}"),
        c: Template("{0} <= {1}"),
        ggml: Template("mithril_less_equal({0}, {1})"),
        onnx: Template("LessOrEqual({0}, {1})"),
        ..Lowering::NONE
    },
    ..COMPARISON
};

/// `left > right`
pub static GREATER: OpDef = OpDef {
    name: "greater",
    doc: "Whether the left element is larger; false if either is NaN.",
    aliases: &["gt", "greater_than"],
    layer: "Greater",
    eval: Some(Eval::Scalar(by!(>))),
    lowering: Lowering {
        py: Template("{0} > {1}"),
        c: Template("{0} > {1}"),
        ggml: Template("mithril_less({1}, {0})"),
        onnx: Template("Greater({0}, {1})"),
        ..Lowering::NONE
    },
    ..COMPARISON
};

/// `left >= right`
pub static GREATER_EQUAL: OpDef = OpDef {
    name: "greater_equal",
    doc: "Whether the left element is not smaller; false if either is NaN.",
    aliases: &["ge"],
    layer: "GreaterEqual",
    eval: Some(Eval::Scalar(by!(>=))),
    lowering: Lowering {
        py: Template("{0} >= {1}"),
        c: Template("{0} >= {1}"),
        ggml: Template("mithril_less_equal({1}, {0})"),
        onnx: Template("GreaterOrEqual({0}, {1})"),
        ..Lowering::NONE
    },
    ..COMPARISON
};

static WHERE_PORTS: &[Port] = &[tensor_of("condition", Kinds::BOOL), tensor("input"), tensor("other")];

/// `condition ? input : other`
pub static WHERE: OpDef = OpDef {
    name: "where",
    doc: "Elements of `input` where `condition` holds, of `other` elsewhere. All three broadcast; `input` and `other` \
          promote.",
    aliases: &["select"],
    layer: "Where",
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
    linear: &[1, 2],
    unsigned: Unsigned::Bits,
    grad: Grad::Formula(|v| {
        let (condition, zero) = (v.x[0], v.cx.lit(0.0));
        vec![v.none(), condition.select(v.g, zero), condition.select(zero, v.g)]
    }),
    lowering: Lowering {
        py: Template("{xp}.where({0}, {1}, {2})"),
        c: Template("{0} ? {1} : {2}"),
        ggml: Template("mithril_select({0}, {1}, {2})"),
        onnx: Function(super::onnx::choice),
        ..Lowering::NONE
    },
    cases: &[
        "bool[2,3] [2,3] [2,3]",
        "bool[3] [2,3] [2,1]",
        "bool[2,1] [] [3]",
        "bool[0] [0] [1]",
        "bool[2] i64[2]<9 i64[2]<9",
    ],
    tolerance: Tolerance::Exact,
    ..BLANK
};

/// A function of two booleans.
const LOGICAL: OpDef = OpDef {
    dtype: DTypeRule::Logical,
    unsigned: Unsigned::Bits,
    grad: Grad::Zero,
    tolerance: Tolerance::Exact,
    ..BINARY
};

/// `left ∧ right`
pub static LOGICAL_AND: OpDef = OpDef {
    name: "logical_and",
    doc: "Whether both elements are true. Anything but zero is true, NaN too.",
    layer: "LogicalAnd",
    eval: Some(Eval::Scalar(|x| Scalar::Bool(x[0].bool() && x[1].bool()))),
    lowering: Lowering {
        py: Template("{xp}.logical_and({0}, {1})"),
        // The functions of PyTorch do not accept a Python boolean.
        torch: Template("{0} & {1}"),
        c: Template("{0} && {1}"),
        ggml: Template("ggml_mul({0}, {1})"),
        onnx: Template("And({0}, {1})"),
        ..Lowering::NONE
    },
    ..LOGICAL
};

/// `left ∨ right`
pub static LOGICAL_OR: OpDef = OpDef {
    name: "logical_or",
    doc: "Whether either element is true. Anything but zero is true, NaN too.",
    layer: "LogicalOr",
    eval: Some(Eval::Scalar(|x| Scalar::Bool(x[0].bool() || x[1].bool()))),
    lowering: Lowering {
        py: Template("{xp}.logical_or({0}, {1})"),
        torch: Template("{0} | {1}"),
        c: Template("{0} || {1}"),
        ggml: Template("mithril_max({0}, {1})"),
        onnx: Template("Or({0}, {1})"),
        ..Lowering::NONE
    },
    ..LOGICAL
};

/// `left ⊻ right`
pub static LOGICAL_XOR: OpDef = OpDef {
    name: "logical_xor",
    doc: "Whether exactly one element is true. Anything but zero is true, NaN too.",
    layer: "LogicalXor",
    eval: Some(Eval::Scalar(|x| Scalar::Bool(x[0].bool() != x[1].bool()))),
    lowering: Lowering {
        // Both are booleans here, and MLX has no `logical_xor`.
        py: Template("{0} != {1}"),
        torch: Template("{0} != {1}"),
        c: Template("{0} != {1}"),
        ggml: Template("ggml_abs(ggml_sub({0}, {1}))"),
        onnx: Template("Xor({0}, {1})"),
        ..Lowering::NONE
    },
    ..LOGICAL
};

/// `¬ input`
pub static LOGICAL_NOT: OpDef = OpDef {
    name: "logical_not",
    doc: "Whether each element is false. Anything but zero is true, NaN too.",
    layer: "LogicalNot",
    dtype: DTypeRule::Logical,
    eval: Some(Eval::Scalar(|x| Scalar::Bool(!x[0].bool()))),
    unsigned: Unsigned::Bits,
    grad: Grad::Zero,
    lowering: Lowering {
        py: Template("{xp}.logical_not({0})"),
        c: Template("!{0}"),
        ggml: Template("ggml_scale_bias({0}, -1, 1)"),
        onnx: Template("Not({0})"),
        ..Lowering::NONE
    },
    tolerance: Tolerance::Exact,
    ..UNARY
};

static BITS: &[Port] = &[tensor_of("left", Kinds::DISCRETE), tensor_of("right", Kinds::DISCRETE)];
static BITS_OF_ONE: &[Port] = &[tensor_of("input", Kinds::DISCRETE)];
static SHIFT: &[Port] = &[tensor_of("left", Kinds::INT), tensor_of("right", Kinds::INT)];
const SHIFT_CASES: &[&str] = &["i64[2,3]<9 i64[2,3]<9", "i64[3]<9 i64[2,1]<99", "i64[0]<9 i64[1]<9"];
const BIT_CASES: &[&str] =
    &["i64[2,3]<9 i64[2,3]<9", "i64[3]<9 i64[2,1]<9", "bool[4] bool[4]", "i64[0]<9 i64[1]<9"];

/// The evaluation of a function of integers, which is not defined for floats.
const fn integers(f: fn(i128, i128) -> i128) -> Option<Eval> {
    Some(Eval::F2(|_, _| 0.0, f))
}

/// A function of the bits of two integers.
const BITWISE: OpDef = OpDef {
    ports: BITS,
    dtype: DTypeRule::Promote,
    unsigned: Unsigned::Bits,
    grad: Grad::Zero,
    cases: BIT_CASES,
    tolerance: Tolerance::Exact,
    ..BINARY
};

/// `left & right`
pub static BITWISE_AND: OpDef = OpDef {
    name: "bitwise_and",
    doc: "Bits set in both integers; of booleans, whether both hold.",
    layer: "BitwiseAnd",
    eval: integers(|a, b| a & b),
    lowering: Lowering {
        py: Template("{0} & {1}"),
        c: Template("{0} & {1}"),
        onnx: Function(|s| super::onnx::bits(s, "BitwiseAnd({0}, {1})", "And({0}, {1})")),
        ..Lowering::NONE
    },
    ..BITWISE
};

/// `left | right`
pub static BITWISE_OR: OpDef = OpDef {
    name: "bitwise_or",
    doc: "Bits set in either integer; of booleans, whether one holds.",
    layer: "BitwiseOr",
    eval: integers(|a, b| a | b),
    lowering: Lowering {
        py: Template("{0} | {1}"),
        c: Template("{0} | {1}"),
        onnx: Function(|s| super::onnx::bits(s, "BitwiseOr({0}, {1})", "Or({0}, {1})")),
        ..Lowering::NONE
    },
    ..BITWISE
};

/// `left ^ right`
pub static BITWISE_XOR: OpDef = OpDef {
    name: "bitwise_xor",
    doc: "Bits set in exactly one of two integers; of booleans, whether exactly one holds.",
    layer: "BitwiseXor",
    eval: integers(|a, b| a ^ b),
    lowering: Lowering {
        py: Template("{0} ^ {1}"),
        c: Template("{0} ^ {1}"),
        onnx: Function(|s| super::onnx::bits(s, "BitwiseXor({0}, {1})", "Xor({0}, {1})")),
        ..Lowering::NONE
    },
    ..BITWISE
};

/// `~input`
pub static BITWISE_NOT: OpDef = OpDef {
    name: "bitwise_not",
    doc: "Flips every bit of an integer; negates a boolean.",
    aliases: &["bitwise_invert", "invert"],
    layer: "BitwiseNot",
    ports: BITS_OF_ONE,
    dtype: DTypeRule::Promote,
    eval: Some(Eval::Scalar(|x| match x[0] {
        Scalar::Bool(b) => Scalar::Bool(!b),
        other => Scalar::Int(!other.int()),
    })),
    unsigned: Unsigned::Bits,
    grad: Grad::Zero,
    lowering: Lowering {
        py: Template("~{0}"),
        mlx: Template("mx.bitwise_invert({0})"),
        c: Function(|cx| Some(if cx.out(0)?.dtype == DType::Bool { "!{0}" } else { "~{0}" }.into())),
        onnx: Function(|s| super::onnx::bits(s, "BitwiseNot({0})", "Not({0})")),
        ..Lowering::NONE
    },
    cases: &["i64[2,3]<9", "bool[4]", "i64[0]<9"],
    tolerance: Tolerance::Exact,
    ..UNARY
};

/// `left << right`
pub static LEFT_SHIFT: OpDef = OpDef {
    name: "left_shift",
    doc: "Shifts bits left by a number of positions; bits shifted out are lost. A shift by its width or more, or by a \
         negative number, gives 0.",
    aliases: &["bitwise_left_shift"],
    layer: "LeftShift",
    ports: SHIFT,
    eval: integers(|a, b| if (0..64).contains(&b) { a << b } else { 0 }),
    lowering: Lowering {
        numpy: Template("{0} << {1}"),
        torch: Template("{0} << {1}"),
        jax: Template("{0} << {1}"),
        mlx: Function(|s| mlx_shift(s, "<<", "_left_shift")),
        c: Function(|cx| super::elementwise::c_function(cx, "left_shift")),
        onnx: Function(super::onnx::left_shift),
        ..Lowering::NONE
    },
    cases: SHIFT_CASES,
    ..BITWISE
};

/// The result of a shift by the width or more is undefined in MLX.
fn mlx_shift(s: &LoweringCx<'_>, operator: &str, helper: &str) -> Option<String> {
    let width = 8 * s.ty(0)?.dtype.size() as i64;
    let is_plain = s.int(1).is_ok_and(|n| (0..width).contains(&n));
    Some(if is_plain {
        format!("{} {operator} {}", s.arg(0), s.arg(1))
    } else {
        format!("{helper}({}, {})", s.mlx_array(0), s.mlx_array(1))
    })
}

/// `left >> right`
pub static RIGHT_SHIFT: OpDef = OpDef {
    name: "right_shift",
    doc: "Arithmetic shift right by a number of positions, which keeps the sign. A shift by the width of the dtype or more, or by a \
         negative number, gives 0, or -1 for a negative integer.",
    aliases: &["bitwise_right_shift"],
    layer: "RightShift",
    ports: SHIFT,
    eval: integers(|a, b| a >> if (0..64).contains(&b) { b } else { 127 }),
    unsigned: Unsigned::Lowering,
    lowering: Lowering {
        numpy: Template("{0} >> {1}"),
        torch: Function(|cx| {
            let is_unsigned = cx.out(0)?.dtype == DType::U64;
            let plain = || Some(format!("{} >> {}", cx.arg(0), cx.arg(1)));
            if is_unsigned { super::elementwise::torch_division(cx, "_right_shift") } else { plain() }
        }),
        jax: Template("{0} >> {1}"),
        mlx: Function(|s| mlx_shift(s, ">>", "_right_shift")),
        c: Function(|cx| super::elementwise::c_function(cx, "right_shift")),
        onnx: Function(super::onnx::right_shift),
        ..Lowering::NONE
    },
    cases: SHIFT_CASES,
    ..BITWISE
};

/// A property of each element.
const TEST: OpDef = OpDef {
    dtype: DTypeRule::Fn(|_| Ok(DTypes::keep([DType::Bool]))),
    unsigned: Unsigned::Bits,
    grad: Grad::Zero,
    tolerance: Tolerance::Exact,
    ..UNARY
};

/// A condition in C on a float; `integer` is its value for all integers.
fn float_test(cx: &LoweringCx<'_>, float: &str, integer: &str) -> Option<String> {
    Some(if cx.ty(0)?.dtype.is_float() { float } else { integer }.into())
}

/// NaN or not
pub static ISNAN: OpDef = OpDef {
    name: "isnan",
    doc: "Whether each element is NaN.",
    aliases: &["is_nan"],
    layer: "IsNan",
    eval: Some(Eval::Scalar(|x| Scalar::Bool(x[0].f64().is_nan()))),
    lowering: Lowering {
        py: Template("{xp}.isnan({0})"),
        c: Function(|cx| float_test(cx, "isnan({0}) != 0", "0")),
        onnx: Function(|s| super::onnx::float_test(s, "IsNaN({0})", "Not(Equal({0}, {0}))")),
        ..Lowering::NONE
    },
    ..TEST
};

/// infinite or not
pub static ISINF: OpDef = OpDef {
    name: "isinf",
    doc: "Whether each element is infinite, of either sign.",
    aliases: &["is_inf"],
    layer: "IsInf",
    eval: Some(Eval::Scalar(|x| Scalar::Bool(x[0].f64().is_infinite()))),
    lowering: Lowering {
        py: Template("{xp}.isinf({0})"),
        c: Function(|cx| float_test(cx, "isinf({0}) != 0", "0")),
        onnx: Function(|s| super::onnx::float_test(s, "IsInf({0})", "Not(Equal({0}, {0}))")),
        ..Lowering::NONE
    },
    ..TEST
};

/// finite or not
pub static ISFINITE: OpDef = OpDef {
    name: "isfinite",
    doc: "Whether each element is neither infinite nor NaN.",
    aliases: &["is_finite"],
    layer: "IsFinite",
    eval: Some(Eval::Scalar(|x| Scalar::Bool(x[0].f64().is_finite()))),
    lowering: Lowering {
        py: Template("{xp}.isfinite({0})"),
        c: Function(|cx| float_test(cx, "isfinite({0}) != 0", "1")),
        onnx: Function(|s| super::onnx::float_test(s, "Not(Or(IsNaN({0}), IsInf({0})))", "Equal({0}, {0})")),
        ..Lowering::NONE
    },
    ..TEST
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;
    use crate::ops::reduce::tests::run;
    use crate::tensor::{Element, Tensor};

    const NAN: f64 = f64::NAN;

    fn of<T: Element>(values: &[T]) -> Tensor {
        Tensor::from_parts(&[values.len()], values.to_vec())
    }

    fn both<T: Element, Out: Element>(op: &'static OpDef, left: &[T], right: &[T]) -> Vec<Out> {
        let out = run(op, &[("left", of(left)), ("right", of(right))], &[]).unwrap();
        out[0].as_slice::<Out>().unwrap().to_vec()
    }

    fn one<T: Element, Out: Element>(op: &'static OpDef, x: &[T]) -> Vec<Out> {
        let out = run(op, &[("input", of(x))], &[]).unwrap();
        out[0].as_slice::<Out>().unwrap().to_vec()
    }

    #[test]
    fn nan_compares_with_nothing() {
        let (a, b) = ([1.0, 2.0, 2.0, NAN, NAN], [2.0, 2.0, 1.0, 1.0, NAN]);
        let check = |op, expected: [u8; 5]| {
            assert_eq!(both::<f64, bool>(op, &a, &b), expected.map(|w| w == 1), "{}", op.name);
        };
        check(&EQUAL, [0, 1, 0, 0, 0]);
        check(&NOT_EQUAL, [1, 0, 1, 1, 1]);
        check(&LESS, [1, 0, 0, 0, 0]);
        check(&LESS_EQUAL, [1, 1, 0, 0, 0]);
        check(&GREATER, [0, 0, 1, 0, 0]);
        check(&GREATER_EQUAL, [0, 1, 1, 0, 0]);
    }

    #[test]
    fn large_integers_compare_exactly() {
        assert_eq!(both::<i64, bool>(&LESS, &[i64::MAX - 1], &[i64::MAX]), [true]);
        assert_eq!(both::<i64, bool>(&EQUAL, &[i64::MAX - 1], &[i64::MAX]), [false]);
    }

    #[test]
    fn everything_but_zero_is_true() {
        let (a, b) = ([0.0, -0.0, NAN, 2.0], [0.0, 1.0, 1.0, 0.0]);
        assert_eq!(both::<f64, bool>(&LOGICAL_AND, &a, &b), [false, false, true, false]);
        assert_eq!(both::<f64, bool>(&LOGICAL_OR, &a, &b), [false, true, true, true]);
        assert_eq!(both::<f64, bool>(&LOGICAL_XOR, &a, &b), [false, true, false, true]);
        assert_eq!(one::<f64, bool>(&LOGICAL_NOT, &a), [true, true, false, false]);
    }

    #[test]
    fn bits_of_integers_and_truth_values() {
        assert_eq!(both::<u8, u8>(&BITWISE_AND, &[0b1100], &[0b1010]), [0b1000]);
        assert_eq!(both::<u8, u8>(&BITWISE_OR, &[0b1100], &[0b1010]), [0b1110]);
        assert_eq!(both::<u8, u8>(&BITWISE_XOR, &[0b1100], &[0b1010]), [0b0110]);
        assert_eq!(one::<u8, u8>(&BITWISE_NOT, &[0b1100]), [0b1111_0011]);
        assert_eq!(one::<i32, i32>(&BITWISE_NOT, &[5]), [-6]);
        assert_eq!(both::<bool, bool>(&BITWISE_XOR, &[true, true], &[true, false]), [false, true]);
        assert_eq!(one::<bool, bool>(&BITWISE_NOT, &[true, false]), [false, true]);
        let error = run(&BITWISE_NOT, &[("input", of(&[1.0_f64]))], &[]).unwrap_err();
        assert_eq!(error.code(), Code::DTypeMismatch);
    }

    #[test]
    fn shifts_are_defined_for_any_number() {
        let by = [1, 7, 8, 63, 64, 100, -1];
        assert_eq!(both::<i8, i8>(&LEFT_SHIFT, &[3; 7], &by), [6, -128, 0, 0, 0, 0, 0]);
        assert_eq!(both::<i8, i8>(&RIGHT_SHIFT, &[100; 7], &by), [50, 0, 0, 0, 0, 0, 0]);
        assert_eq!(both::<i8, i8>(&RIGHT_SHIFT, &[-100; 7], &by), [-50, -1, -1, -1, -1, -1, -1]);
        assert_eq!(both::<u8, u8>(&RIGHT_SHIFT, &[200, 200], &[4, 8]), [12, 0]);
        assert_eq!(both::<i64, i64>(&LEFT_SHIFT, &[1, 1], &[63, 64]), [i64::MIN, 0]);
    }

    #[test]
    fn kinds_of_numbers() {
        let x = [1.0, NAN, f64::INFINITY, f64::NEG_INFINITY];
        assert_eq!(one::<f64, bool>(&ISNAN, &x), [false, true, false, false]);
        assert_eq!(one::<f64, bool>(&ISINF, &x), [false, false, true, true]);
        assert_eq!(one::<f64, bool>(&ISFINITE, &x), [true, false, false, false]);
        assert_eq!(one::<i64, bool>(&ISFINITE, &[1]), [true]);
        assert_eq!(one::<i64, bool>(&ISNAN, &[1]), [false]);
    }

    #[test]
    fn where_takes_no_value_from_the_other_side() {
        let parts = [
            ("condition", of(&[true, false])),
            ("input", of(&[1_i64, 2])),
            ("other", of(&[0.5_f32, f32::NAN])),
        ];
        let out = run(&WHERE, &parts, &[]).unwrap();
        assert_eq!(out[0].dtype(), DType::F32);
        assert_eq!(out[0].get(0), Scalar::Float(1.0));
        assert!(out[0].get(1).f64().is_nan());
        let out = run(&WHERE, &parts[..2], &[("other", 7.into())]).unwrap();
        assert_eq!(out[0].as_slice::<i64>().unwrap(), [1, 7]);
    }
}
