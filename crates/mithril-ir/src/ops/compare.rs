//! Elementwise comparison, selection, logic and bits.

use crate::dtype::{DType, Kinds};
use crate::op::{
    BLANK, DTypeRule, Eval, Grad, OpDef, Port, ShapeRule, Spell, Text, Tolerance, binary, tensor, tensor_of,
    unary,
};
use crate::rules::{Attrs, DTypes};
use crate::spell::SpellCx;
use crate::tensor::Scalar;

/// Rows of this file.
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

const fn comparison(
    name: &'static str,
    doc: &'static str,
    template: &'static str,
    f: fn(&[Scalar]) -> Scalar,
) -> OpDef {
    OpDef {
        dtype: DTypeRule::Compare,
        eval: Some(Eval::Scalar(f)),
        grad: Grad::Zero,
        spell: Spell::both(template),
        tolerance: Tolerance::Exact,
        ..binary(name, doc, |_, _| 0.0, |_, _| 0)
    }
}

/// Compares by an operator: floats as floats, everything else as integers.
macro_rules! by {
    ($operator:tt) => {
        |x| match (x[0], x[1]) {
            (Scalar::Float(_), _) | (_, Scalar::Float(_)) => Scalar::Bool(x[0].f64() $operator x[1].f64()),
            (a, b) => Scalar::Bool(a.i64() $operator b.i64()),
        }
    };
}

/// `left == right`
pub static EQUAL: OpDef = OpDef {
    spell: Spell {
        onnx: Text::T("Equal({0}, {1})"),
        ggml: Text::T("mithril_equal({0}, {1})"),
        ..Spell::both("{0} == {1}")
    },
    layer: "Equal",
    aliases: &["eq"],
    ..comparison("equal", "Whether two elements are equal; NaN equals nothing.", "{0} == {1}", by!(==))
};

/// `left != right`
pub static NOT_EQUAL: OpDef = OpDef {
    spell: Spell {
        onnx: Text::T("Not(Equal({0}, {1}))"),
        ggml: Text::T("ggml_scale_bias(mithril_equal({0}, {1}), -1, 1)"),
        ..Spell::both("{0} != {1}")
    },
    layer: "NotEqual",
    aliases: &["ne"],
    ..comparison(
        "not_equal",
        "Whether two elements differ; NaN differs from everything.",
        "{0} != {1}",
        by!(!=),
    )
};

/// `left < right`
pub static LESS: OpDef = OpDef {
    spell: Spell {
        onnx: Text::T("Less({0}, {1})"),
        ggml: Text::T("mithril_less({0}, {1})"),
        ..Spell::both("{0} < {1}")
    },
    layer: "Less",
    aliases: &["lt", "less_than"],
    ..comparison("less", "Whether the left element is smaller; false if either is NaN.", "{0} < {1}", by!(<))
};

/// `left <= right`
pub static LESS_EQUAL: OpDef = OpDef {
    spell: Spell {
        onnx: Text::T("LessOrEqual({0}, {1})"),
        ggml: Text::T("mithril_less_equal({0}, {1})"),
        ..Spell::both("{0} <= {1}")
    },
    layer: "LessEqual",
    aliases: &["le"],
    ..comparison(
        "less_equal",
        "Whether the left element is not larger; false if either is NaN.",
        "{0} <= {1}",
        by!(<=),
    )
};

/// `left > right`
pub static GREATER: OpDef = OpDef {
    spell: Spell {
        onnx: Text::T("Greater({0}, {1})"),
        ggml: Text::T("mithril_less({1}, {0})"),
        ..Spell::both("{0} > {1}")
    },
    layer: "Greater",
    aliases: &["gt", "greater_than"],
    ..comparison(
        "greater",
        "Whether the left element is larger; false if either is NaN.",
        "{0} > {1}",
        by!(>),
    )
};

/// `left >= right`
pub static GREATER_EQUAL: OpDef = OpDef {
    spell: Spell {
        onnx: Text::T("GreaterOrEqual({0}, {1})"),
        ggml: Text::T("mithril_less_equal({1}, {0})"),
        ..Spell::both("{0} >= {1}")
    },
    layer: "GreaterEqual",
    aliases: &["ge"],
    ..comparison(
        "greater_equal",
        "Whether the left element is not smaller; false if either is NaN.",
        "{0} >= {1}",
        by!(>=),
    )
};

static WHERE_PORTS: &[Port] = &[tensor_of("condition", Kinds::BOOL), tensor("input"), tensor("other")];

/// `condition ? input : other`
pub static WHERE: OpDef = OpDef {
    name: "where",
    doc: "Elements of `input` where `condition` holds, of `other` elsewhere. All three broadcast; `input` and `other` \
          promote.",
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
        let (condition, zero) = (v.x[0], v.cx.lit(0.0));
        vec![v.none(), condition.op(&WHERE, &[v.g, zero]), condition.op(&WHERE, &[zero, v.g])]
    }),
    spell: Spell {
        onnx: Text::F(super::onnx::choice),
        c: Text::T("{0} ? {1} : {2}"),
        ggml: Text::T("mithril_select({0}, {1}, {2})"),
        ..Spell::py("{xp}.where({0}, {1}, {2})")
    },
    tolerance: Tolerance::Exact,
    cases: &[
        "bool[2,3] [2,3] [2,3]",
        "bool[3] [2,3] [2,1]",
        "bool[2,1] [] [3]",
        "bool[0] [0] [1]",
        "bool[2] i64[2]<9 i64[2]<9",
    ],
    layer: "Where",
    aliases: &["select"],
    ..BLANK
};

const fn logic(
    name: &'static str,
    doc: &'static str,
    c: &'static str,
    py: &'static str,
    torch: &'static str,
    [ggml, onnx]: [&'static str; 2],
    f: fn(&[Scalar]) -> Scalar,
) -> OpDef {
    OpDef {
        dtype: DTypeRule::Logical,
        eval: Some(Eval::Scalar(f)),
        grad: Grad::Zero,
        spell: Spell {
            c: Text::T(c),
            torch: Text::T(torch),
            ggml: Text::T(ggml),
            onnx: Text::T(onnx),
            ..Spell::py(py)
        },
        tolerance: Tolerance::Exact,
        ..binary(name, doc, |_, _| 0.0, |_, _| 0)
    }
}

/// `left ∧ right`
pub static LOGICAL_AND: OpDef = OpDef {
    layer: "LogicalAnd",
    ..logic(
        "logical_and",
        "Whether both elements are true. Anything but zero is true, NaN too.",
        "{0} && {1}",
        "{xp}.logical_and({0}, {1})",
        // The functions of PyTorch refuse a plain boolean.
        "{0} & {1}",
        ["ggml_mul({0}, {1})", "And({0}, {1})"],
        |x| Scalar::Bool(x[0].bool() && x[1].bool()),
    )
};

/// `left ∨ right`
pub static LOGICAL_OR: OpDef = OpDef {
    layer: "LogicalOr",
    ..logic(
        "logical_or",
        "Whether either element is true. Anything but zero is true, NaN too.",
        "{0} || {1}",
        "{xp}.logical_or({0}, {1})",
        "{0} | {1}",
        ["mithril_max({0}, {1})", "Or({0}, {1})"],
        |x| Scalar::Bool(x[0].bool() || x[1].bool()),
    )
};

/// `left ⊻ right`
pub static LOGICAL_XOR: OpDef = OpDef {
    layer: "LogicalXor",
    ..logic(
        "logical_xor",
        "Whether exactly one element is true. Anything but zero is true, NaN too.",
        "{0} != {1}",
        // Both are booleans here, and MLX has no `logical_xor`.
        "{0} != {1}",
        "{0} != {1}",
        ["ggml_abs(ggml_sub({0}, {1}))", "Xor({0}, {1})"],
        |x| Scalar::Bool(x[0].bool() != x[1].bool()),
    )
};

/// `¬ input`
pub static LOGICAL_NOT: OpDef = OpDef {
    dtype: DTypeRule::Logical,
    eval: Some(Eval::Scalar(|x| Scalar::Bool(!x[0].bool()))),
    grad: Grad::Zero,
    spell: Spell {
        onnx: Text::T("Not({0})"),
        ggml: Text::T("ggml_scale_bias({0}, -1, 1)"),
        c: Text::T("!{0}"),
        ..Spell::py("{xp}.logical_not({0})")
    },
    tolerance: Tolerance::Exact,
    layer: "LogicalNot",
    ..unary("logical_not", "Whether each element is false. Anything but zero is true, NaN too.", |x| x)
};

static BITS: &[Port] = &[tensor_of("left", Kinds::DISCRETE), tensor_of("right", Kinds::DISCRETE)];
static BITS_OF_ONE: &[Port] = &[tensor_of("input", Kinds::DISCRETE)];
static SHIFT: &[Port] = &[tensor_of("left", Kinds::INT), tensor_of("right", Kinds::INT)];
const SHIFT_CASES: &[&str] = &["i64[2,3]<9 i64[2,3]<9", "i64[3]<9 i64[2,1]<99", "i64[0]<9 i64[1]<9"];
const BIT_CASES: &[&str] =
    &["i64[2,3]<9 i64[2,3]<9", "i64[3]<9 i64[2,1]<9", "bool[4] bool[4]", "i64[0]<9 i64[1]<9"];

const fn bits(
    name: &'static str,
    doc: &'static str,
    template: &'static str,
    onnx: Text,
    f: fn(i64, i64) -> i64,
) -> OpDef {
    OpDef {
        ports: BITS,
        dtype: DTypeRule::Promote,
        grad: Grad::Zero,
        spell: Spell { onnx, ..Spell::both(template) },
        tolerance: Tolerance::Exact,
        cases: BIT_CASES,
        ..binary(name, doc, |_, _| 0.0, f)
    }
}

/// `left & right`
pub static BITWISE_AND: OpDef = OpDef {
    layer: "BitwiseAnd",
    ..bits(
        "bitwise_and",
        "Bits set in both integers; of booleans, whether both hold.",
        "{0} & {1}",
        Text::F(|s| super::onnx::bits(s, "BitwiseAnd({0}, {1})", "And({0}, {1})")),
        |a, b| a & b,
    )
};

/// `left | right`
pub static BITWISE_OR: OpDef = OpDef {
    layer: "BitwiseOr",
    ..bits(
        "bitwise_or",
        "Bits set in either integer; of booleans, whether one holds.",
        "{0} | {1}",
        Text::F(|s| super::onnx::bits(s, "BitwiseOr({0}, {1})", "Or({0}, {1})")),
        |a, b| a | b,
    )
};

/// `left ^ right`
pub static BITWISE_XOR: OpDef = OpDef {
    layer: "BitwiseXor",
    ..bits(
        "bitwise_xor",
        "Bits set in exactly one of two integers; of booleans, whether exactly one holds.",
        "{0} ^ {1}",
        Text::F(|s| super::onnx::bits(s, "BitwiseXor({0}, {1})", "Xor({0}, {1})")),
        |a, b| a ^ b,
    )
};

/// `~input`
pub static BITWISE_NOT: OpDef = OpDef {
    ports: BITS_OF_ONE,
    dtype: DTypeRule::Promote,
    eval: Some(Eval::Scalar(|x| match x[0] {
        Scalar::Bool(b) => Scalar::Bool(!b),
        other => Scalar::Int(!other.i64()),
    })),
    grad: Grad::Zero,
    spell: Spell {
        onnx: Text::F(|s| super::onnx::bits(s, "BitwiseNot({0})", "Not({0})")),
        c: Text::F(|cx| Some(if cx.out(0)?.dtype == DType::Bool { "!{0}" } else { "~{0}" }.into())),
        mlx: Text::T("mx.bitwise_invert({0})"),
        ..Spell::py("~{0}")
    },
    tolerance: Tolerance::Exact,
    cases: &["i64[2,3]<9", "bool[4]", "i64[0]<9"],
    layer: "BitwiseNot",
    aliases: &["bitwise_invert", "invert"],
    ..unary("bitwise_not", "Flips every bit of an integer; negates a boolean.", |x| x)
};

/// `left << right`
pub static LEFT_SHIFT: OpDef = OpDef {
    ports: SHIFT,
    cases: SHIFT_CASES,
    spell: Spell {
        onnx: Text::F(super::onnx::left_shift),
        c: Text::T("mithril_left_shift_i64({0}, {1})"),
        torch: Text::T("{0} << {1}"),
        jax: Text::T("{0} << {1}"),
        mlx: Text::F(|s| mlx_shift(s, "<<", "_left_shift")),
        ..Spell::numpy("{0} << {1}")
    },
    layer: "LeftShift",
    aliases: &["bitwise_left_shift"],
    ..bits(
        "left_shift",
        "Shifts bits left by a number of positions; bits shifted out are lost. A shift by its width or more, or by a \
         negative number, gives 0.",
        "",
        Text::No,
        |a, b| if (0..64).contains(&b) { a << b } else { 0 },
    )
};

/// MLX leaves open what a shift by the width or more gives.
fn mlx_shift(s: &SpellCx<'_>, operator: &str, helper: &str) -> Option<String> {
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
    ports: SHIFT,
    cases: SHIFT_CASES,
    spell: Spell {
        onnx: Text::F(super::onnx::right_shift),
        c: Text::T("mithril_right_shift_i64({0}, {1})"),
        torch: Text::T("{0} >> {1}"),
        jax: Text::T("{0} >> {1}"),
        mlx: Text::F(|s| mlx_shift(s, ">>", "_right_shift")),
        ..Spell::numpy("{0} >> {1}")
    },
    layer: "RightShift",
    aliases: &["bitwise_right_shift"],
    ..bits(
        "right_shift",
        "Arithmetic shift right by a number of positions, which keeps the sign. A shift by the width of the dtype or more, or by a \
         negative number, gives 0, or -1 for a negative integer.",
        "",
        Text::No,
        |a, b| a >> if (0..64).contains(&b) { b } else { 63 },
    )
};

const fn test(name: &'static str, doc: &'static str, spell: &Spell, f: fn(&[Scalar]) -> Scalar) -> OpDef {
    OpDef {
        dtype: DTypeRule::Fn(|_| Ok(DTypes::keep([DType::Bool]))),
        eval: Some(Eval::Scalar(f)),
        grad: Grad::Zero,
        spell: *spell,
        tolerance: Tolerance::Exact,
        ..unary(name, doc, |x| x)
    }
}

/// A test of C on a float, or what it gives for any integer.
fn float_test(cx: &SpellCx<'_>, float: &str, integer: &str) -> Option<String> {
    Some(if cx.ty(0)?.dtype.is_float() { float } else { integer }.into())
}

/// NaN or not
pub static ISNAN: OpDef = OpDef {
    layer: "IsNan",
    aliases: &["is_nan"],
    ..test(
        "isnan",
        "Whether each element is NaN.",
        &Spell {
            c: Text::F(|cx| float_test(cx, "isnan({0}) != 0", "0")),
            onnx: Text::F(|s| super::onnx::float_test(s, "IsNaN({0})", "Not(Equal({0}, {0}))")),
            ..Spell::py("{xp}.isnan({0})")
        },
        |x| Scalar::Bool(x[0].f64().is_nan()),
    )
};

/// infinite or not
pub static ISINF: OpDef = OpDef {
    layer: "IsInf",
    aliases: &["is_inf"],
    ..test(
        "isinf",
        "Whether each element is infinite, of either sign.",
        &Spell {
            c: Text::F(|cx| float_test(cx, "isinf({0}) != 0", "0")),
            onnx: Text::F(|s| super::onnx::float_test(s, "IsInf({0})", "Not(Equal({0}, {0}))")),
            ..Spell::py("{xp}.isinf({0})")
        },
        |x| Scalar::Bool(x[0].f64().is_infinite()),
    )
};

/// finite or not
pub static ISFINITE: OpDef = OpDef {
    layer: "IsFinite",
    aliases: &["is_finite"],
    ..test(
        "isfinite",
        "Whether each element is neither infinite nor NaN.",
        &Spell {
            c: Text::F(|cx| float_test(cx, "isfinite({0}) != 0", "1")),
            onnx: Text::F(|s| {
                super::onnx::float_test(s, "Not(Or(IsNaN({0}), IsInf({0})))", "Equal({0}, {0})")
            }),
            ..Spell::py("{xp}.isfinite({0})")
        },
        |x| Scalar::Bool(x[0].f64().is_finite()),
    )
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
        let check = |op, wanted: [u8; 5]| {
            assert_eq!(both::<f64, bool>(op, &a, &b), wanted.map(|w| w == 1), "{}", op.name);
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
