//! Elementwise comparison, selection, logic and bits.

use crate::dtype::{DType, Kinds};
use crate::op::{
    BLANK, DTypeRule, Eval, Grad, OpDef, Port, ShapeRule, Spell, Text, Tolerance, binary, tensor, tensor_of,
    unary,
};
use crate::rules::DTypes;
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
    layer: "Equal",
    aliases: &["eq"],
    ..comparison("equal", "Whether two elements are equal; NaN equals nothing.", "{0} == {1}", by!(==))
};

/// `left != right`
pub static NOT_EQUAL: OpDef = OpDef {
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
    layer: "Less",
    aliases: &["lt", "less_than"],
    ..comparison("less", "Whether the left element is smaller; false if either is NaN.", "{0} < {1}", by!(<))
};

/// `left <= right`
pub static LESS_EQUAL: OpDef = OpDef {
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
    spell: Spell { c: Text::T("{0} ? {1} : {2}"), ..Spell::py("{xp}.where({0}, {1}, {2})") },
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
    f: fn(&[Scalar]) -> Scalar,
) -> OpDef {
    OpDef {
        dtype: DTypeRule::Logical,
        eval: Some(Eval::Scalar(f)),
        grad: Grad::Zero,
        spell: Spell { c: Text::T(c), ..Spell::py(py) },
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
        // Both are truth values here, and MLX has no `logical_xor`.
        "{0} != {1}",
        |x| Scalar::Bool(x[0].bool() != x[1].bool()),
    )
};

/// `¬ input`
pub static LOGICAL_NOT: OpDef = OpDef {
    dtype: DTypeRule::Logical,
    eval: Some(Eval::Scalar(|x| Scalar::Bool(!x[0].bool()))),
    grad: Grad::Zero,
    spell: Spell { c: Text::T("!{0}"), ..Spell::py("{xp}.logical_not({0})") },
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
    f: fn(i64, i64) -> i64,
) -> OpDef {
    OpDef {
        ports: BITS,
        dtype: DTypeRule::Promote,
        grad: Grad::Zero,
        spell: Spell::both(template),
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
        "Bits set in both integers; of truth values, whether both hold.",
        "{0} & {1}",
        |a, b| a & b,
    )
};

/// `left | right`
pub static BITWISE_OR: OpDef = OpDef {
    layer: "BitwiseOr",
    ..bits(
        "bitwise_or",
        "Bits set in either integer; of truth values, whether one holds.",
        "{0} | {1}",
        |a, b| a | b,
    )
};

/// `left ^ right`
pub static BITWISE_XOR: OpDef = OpDef {
    layer: "BitwiseXor",
    ..bits(
        "bitwise_xor",
        "Bits set in exactly one of two integers; of truth values, whether exactly one holds.",
        "{0} ^ {1}",
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
        c: Text::F(|cx| {
            let operator = if cx.out(0)?.dtype == DType::Bool { "!" } else { "~" };
            Some(format!("{operator}({})", cx.args.first()?))
        }),
        mlx: Text::T("mx.bitwise_invert({0})"),
        ..Spell::py("~{0}")
    },
    tolerance: Tolerance::Exact,
    cases: &["i64[2,3]<9", "bool[4]", "i64[0]<9"],
    layer: "BitwiseNot",
    aliases: &["bitwise_invert", "invert"],
    ..unary("bitwise_not", "Each bit of an integer flipped; the opposite of a truth value.", |x| x)
};

/// `left << right`
pub static LEFT_SHIFT: OpDef = OpDef {
    ports: SHIFT,
    cases: SHIFT_CASES,
    spell: Spell::numpy("{0} << {1}"),
    layer: "LeftShift",
    aliases: &["bitwise_left_shift"],
    ..bits(
        "left_shift",
        "Bits moved up by a number of places; what leaves the dtype is lost. A shift by its width or more, or by a \
         negative number, gives 0.",
        "",
        |a, b| if (0..64).contains(&b) { a << b } else { 0 },
    )
};

/// `left >> right`
pub static RIGHT_SHIFT: OpDef = OpDef {
    ports: SHIFT,
    cases: SHIFT_CASES,
    spell: Spell::numpy("{0} >> {1}"),
    layer: "RightShift",
    aliases: &["bitwise_right_shift"],
    ..bits(
        "right_shift",
        "Bits moved down by a number of places; the sign is kept. A shift by the width of the dtype or more, or by a \
         negative number, gives 0, or -1 for a negative integer.",
        "",
        |a, b| a >> if (0..64).contains(&b) { b } else { 63 },
    )
};

const fn test(name: &'static str, doc: &'static str, spell: Spell, f: fn(&[Scalar]) -> Scalar) -> OpDef {
    OpDef {
        dtype: DTypeRule::Fn(|_| Ok(DTypes::keep([DType::Bool]))),
        eval: Some(Eval::Scalar(f)),
        grad: Grad::Zero,
        spell,
        tolerance: Tolerance::Exact,
        ..unary(name, doc, |x| x)
    }
}

/// NaN or not
pub static ISNAN: OpDef = OpDef {
    layer: "IsNan",
    aliases: &["is_nan"],
    ..test(
        "isnan",
        "Whether each element is NaN.",
        Spell { c: Text::T("{0} != {0}"), ..Spell::py("{xp}.isnan({0})") },
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
        Spell { c: Text::T("isinf({0}) != 0"), ..Spell::py("{xp}.isinf({0})") },
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
        Spell { c: Text::T("isfinite({0}) != 0"), ..Spell::py("{xp}.isfinite({0})") },
        |x| Scalar::Bool(x[0].f64().is_finite()),
    )
};
