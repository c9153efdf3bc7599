//! Elementwise arithmetic composed of other ops: interpolation, sums of powers, replacement of NaN, sums of products.

use std::f64::consts::LN_2;

use super::foreach;
use crate::dtype::DType;
use crate::formula::{ExpandCx, V};
use crate::literal::Lit;
use crate::lowering::LoweringRule::{Function, Template};
use crate::lowering::{Lowering, LoweringCx};
use crate::op::{
    Attr, BINARY, BLANK, DTypeRule, DefaultLit, Eval, Grad, OpDef, Port, Precision, ShapeRule, Tolerance,
    attr, tensor,
};
use crate::rules::Attrs;

/// Ops of this file.
pub static OPS: &[&OpDef] = &[&FMOD, &LERP, &HYPOT, &LOGADDEXP, &LOGADDEXP2, &NAN_TO_NUM, &ADDCMUL];

/// A function of `{xp}` that all frameworks have for 32-bit and 64-bit floats only.
fn plain_floats(s: &LoweringCx<'_>, text: &str) -> Option<String> {
    let dtype = s.out(0)?.dtype;
    let is_plain = matches!(dtype, DType::F32 | DType::F64) && s.ty(0).is_some() && s.ty(1).is_some();
    is_plain.then(|| text.replace("{0}", s.arg(0)).replace("{1}", s.arg(1)))
}

/// Remainder of the truncated quotient
pub static FMOD: OpDef = OpDef {
    name: "fmod",
    doc: "Remainder of the division rounded towards 0, with the sign of the dividend, like `fmod` in C. Floats: a divisor \
         of 0 gives NaN. Integers: a divisor of 0 gives 0. See `remainder` for the one with the sign of the divisor.",
    layer: "Fmod",
    eval: Some(Eval::F2(libm::fmod, |a, b| if b == 0 { 0 } else { a.wrapping_rem(b) })),
    expand: Some(|c| {
        let (left, right, zero) = (c.x[0], c.x[1], c.cx.lit(0));
        if left.dtype().is_float() || right.dtype().is_float() {
            // Both kinds of remainder are the same for positive numbers, and exact.
            let rest = left.abs().remainder(right.abs());
            return vec![left.less(0.0).select(-rest, rest)];
        }
        // Not through absolute values: the smallest integer has none.
        let rest = left.remainder(right);
        let is_other = rest.sign().equal(-left.sign());
        let is_other = is_other.logical_and(rest.equal(zero).equal(false));
        vec![is_other.select(rest - right, rest)]
    }),
    grad: Grad::Formula(|v| {
        let (left, right) = (v.x[0], v.x[1]);
        let times = left.abs().floor_divide(right.abs());
        vec![v.g, -(v.g * (times * left.sign() * right.sign()))]
    }),
    lowering: Lowering {
        numpy: Function(|s| plain_floats(s, "np.fmod({0}, {1})")),
        torch: Function(|s| plain_floats(s, "torch.fmod({0}, {1})")),
        jax: Function(|s| plain_floats(s, "jnp.fmod({0}, {1})")),
        c: Function(|s| s.out(0)?.dtype.is_float().then(|| "fmod{f}({0}, {1})".into())),
        ..Lowering::NONE
    },
    domain: (0.5, 2.0),
    ..BINARY
};

/// The number at port `i`, unless it is a tensor.
fn plain_number(cx: &impl Attrs, i: usize) -> Option<f64> {
    match cx.lit(i) {
        Lit::Float(_) | Lit::Int(_) => cx.f64(i).ok(),
        _ => None,
    }
}

static LERP_PORTS: &[Port] = &[tensor("input"), tensor("end"), tensor("weight")];

/// `input + weight · (end - input)`
pub static LERP: OpDef = OpDef {
    name: "lerp",
    doc: "Linear interpolation: `input + weight * (end - input)`, elementwise. From a weight of 1/2 on it is computed \
          as `end - (end - input) * (1 - weight)`, so that the weights 0 and 1 give both ends exactly. The weight is a \
          number or a tensor that broadcasts, and may lie outside of 0 to 1.",
    layer: "Lerp",
    ports: LERP_PORTS,
    shape: ShapeRule::Broadcast,
    dtype: DTypeRule::Float,
    expand: Some(|c| {
        let (start, end, weight) = (c.x[0], c.x[1], c.x[2]);
        let way = end - start;
        let (from_start, from_end) = (|| start + weight * way, || end - way * (1.0 - weight));
        vec![match plain_number(c, 2) {
            Some(w) if w.abs() < 0.5 => from_start(),
            Some(w) => end - way * (1.0 - w),
            None => weight.abs().less(0.5).select(from_start(), from_end()),
        }]
    }),
    grad: Grad::Formula(|v| {
        let weight = v.x[2];
        match plain_number(&**v, 2) {
            Some(w) => vec![v.g * (1.0 - w), v.g * w],
            None => vec![v.g * (1.0 - weight), v.g * weight, v.g * (v.x[1] - v.x[0])],
        }
    }),
    lowering: Lowering {
        torch: Function(|s| {
            let is_plain = s.ty(0).is_some() && s.ty(1).is_some();
            is_plain.then(|| format!("torch.lerp({}, {}, {})", s.arg(0), s.arg(1), s.arg(2)))
        }),
        ..Lowering::NONE
    },
    cases: &[
        "[2,3] [2,3] [2,3]",
        "[2,1] [3] []",
        "[2,3] [2,3] weight=0.25",
        "[2,3] [3] weight=0.75",
        "[0,3] [1] [3]",
    ],
    tolerance: Tolerance::Contraction,
    ..BLANK
};

/// `√(left² + right²)`
pub static HYPOT: OpDef = OpDef {
    name: "hypot",
    doc: "`√(left² + right²)` without overflow, the absolute value of a complex number. Infinite if either is, \
         even if the other is NaN. The gradient at 0 is 0.",
    layer: "Hypot",
    dtype: DTypeRule::Float,
    eval: Some(Eval::F2(libm::hypot, |_, _| 0)),
    expand: Some(|c| {
        // Divided by the larger one, neither square overflows. Where the larger one is 0 or infinite it is the result.
        let (a, b) = (c.x[0].abs(), c.x[1].abs());
        let (large, zero) = (a.maximum(b), c.cx.lit(0.0));
        let small = a.minimum(b);
        let is_edge = large.equal(zero);
        let is_infinite = a.is_inf().logical_or(b.is_inf());
        let ratio = small / is_edge.select(1.0, large);
        let root = large * (ratio * ratio + 1.0).sqrt();
        vec![is_infinite.select(f64::INFINITY, root)]
    }),
    grad: Grad::Formula(|v| {
        let safe = v.y.equal(0.0).select(1.0, v.y);
        vec![v.g * (v.x[0] / safe), v.g * (v.x[1] / safe)]
    }),
    lowering: Lowering {
        numpy: Function(|s| plain_floats(s, "np.hypot({0}, {1})")),
        c: Template("hypot{f}({0}, {1})"),
        ..Lowering::NONE
    },
    domain: (0.5, 2.0),
    tolerance: Tolerance::Elementwise,
    ..BINARY
};

/// `left - right`, and 0 where both are the same infinity.
fn distance<'a>(c: &ExpandCx<'a>) -> V<'a> {
    let (left, right) = (c.x[0], c.x[1]);
    let is_same = left.equal(right).logical_and(left.is_inf());
    let zero = c.cx.lit(0.0);
    is_same.select(zero, left) - is_same.select(zero, right)
}

/// The larger operand plus the contribution of the smaller one: the logarithm of 1 plus `power` of minus their distance.
fn sum_of_powers<'a>(c: &ExpandCx<'a>, power: impl FnOnce(V<'a>) -> V<'a>) -> (V<'a>, V<'a>) {
    let below = -distance(c).abs();
    (c.x[0].maximum(c.x[1]), power(below).log1p())
}

/// `log(e^left + e^right)`
pub static LOGADDEXP: OpDef = OpDef {
    name: "logaddexp",
    doc: "`log(exp(left) + exp(right))` without overflow. The result is minus infinity where both are.",
    layer: "LogAddExp",
    dtype: DTypeRule::Float,
    eval: None,
    expand: Some(|c| {
        let (most, more) = sum_of_powers(c, |x| x.exp());
        vec![most + more]
    }),
    grad: Grad::Formula(|v| {
        let way = distance(v);
        vec![v.g * way.sigmoid(), v.g * (-way).sigmoid()]
    }),
    lowering: Lowering { numpy: Function(|s| plain_floats(s, "np.logaddexp({0}, {1})")), ..Lowering::NONE },
    tolerance: Tolerance::Contraction,
    ..BINARY
};

/// `log₂(2^left + 2^right)`
pub static LOGADDEXP2: OpDef = OpDef {
    name: "logaddexp2",
    doc: "`log2(2^left + 2^right)` without overflow. The result is minus infinity where both are.",
    layer: "LogAddExp2",
    dtype: DTypeRule::Float,
    eval: None,
    expand: Some(|c| {
        let (most, more) = sum_of_powers(c, |x| x.lit(2.0).power(x));
        // Exactly 1 where both are equal, even if a compiler multiplies by the reciprocal.
        let is_same = c.x[0].equal(c.x[1]);
        vec![most + is_same.select(1.0, more / LN_2)]
    }),
    grad: Grad::Formula(|v| {
        let way = distance(v) * LN_2;
        vec![v.g * way.sigmoid(), v.g * (-way).sigmoid()]
    }),
    tolerance: Tolerance::Contraction,
    ..BINARY
};

static NAN_TO_NUM_PORTS: &[Port] = &[
    tensor("input"),
    attr("nan", Attr::Float, DefaultLit::Float(0.0)),
    attr("posinf", Attr::OptFloat, DefaultLit::None),
    attr("neginf", Attr::OptFloat, DefaultLit::None),
];

/// Numbers in place of NaN and infinities
pub static NAN_TO_NUM: OpDef = OpDef {
    name: "nan_to_num",
    doc: "The input with `nan` in place of NaN, `posinf` in place of infinity and `neginf` in place of minus infinity; \
          the largest and the smallest finite number of the dtype if not given. The gradient is 0 where an element was \
          replaced. Integers stay as they are.",
    layer: "NanToNum",
    ports: NAN_TO_NUM_PORTS,
    shape: ShapeRule::Same,
    dtype: DTypeRule::Same(0),
    expand: Some(|c| {
        let x = c.x[0];
        let Some(most) = x.dtype().float_max() else { return vec![x] };
        let number =
            |i: usize, default: f64| c.cx.lit(if c.absent(i) { default } else { c.get(|c| c.f64(i)) });
        let is = |limit: f64| x.equal(limit);
        let y = is(f64::NEG_INFINITY).select(number(3, -most), x);
        let y = is(f64::INFINITY).select(number(2, most), y);
        vec![x.is_nan().select(number(1, 0.0), y)]
    }),
    lowering: Lowering {
        torch: Function(|s| {
            let is_float = s.ty(0)?.dtype.is_float();
            let words = format!("nan={}, posinf={}, neginf={}", s.arg(1), s.arg(2), s.arg(3));
            is_float.then(|| format!("torch.nan_to_num({}, {words})", s.arg(0)))
        }),
        jax: Function(|s| {
            let is_float = s.ty(0)?.dtype.is_float();
            let words = format!("nan={}, posinf={}, neginf={}", s.arg(1), s.arg(2), s.arg(3));
            is_float.then(|| format!("jnp.nan_to_num({}, {words})", s.arg(0)))
        }),
        ..Lowering::NONE
    },
    cases: &["[2,3]", "[]", "[0,3]", "i64[4]", "[3] nan=1.5 posinf=2.0 neginf=-3", "bool[2]"],
    tolerance: Tolerance::Exact,
    ..BLANK
};

static ADDCMUL_PORTS: &[Port] =
    &[tensor("input"), tensor("left"), tensor("right"), attr("value", Attr::Float, DefaultLit::Float(1.0))];

/// `input + value * left * right`
pub static ADDCMUL: OpDef = OpDef {
    name: "addcmul",
    doc: "`input + value * left * right`, elementwise, as used in optimizer steps. The operands broadcast.",
    ports: ADDCMUL_PORTS,
    shape: ShapeRule::Broadcast,
    dtype: DTypeRule::Float,
    expand: Some(|c| {
        let product = c.x[1] * c.x[2];
        let is_one = matches!(c.lit(3), Lit::Float(1.0));
        vec![c.x[0] + if is_one { product } else { product * c.x[3] }]
    }),
    lowering: Lowering {
        torch: Function(torch_addcmul),
        torch_foreach: Function(foreach::addcmul),
        ..Lowering::NONE
    },
    cases: &["[2,3] [2,3] [2,3]", "[2,3] [3] [] value=-0.5", "[] [2,1] [3]", "[0,2] [2] [0,2]"],
    tolerance: Tolerance::Contraction,
    precision: Some(Precision::Follow),
    ..BLANK
};

/// One pass over memory, in dtypes in which PyTorch rounds as the reference does. Only the last operand may be a number.
fn torch_addcmul(cx: &LoweringCx<'_>) -> Option<String> {
    if !matches!(cx.out(0)?.dtype, DType::F32 | DType::F64) || cx.ty(0).is_none() || cx.ty(1).is_none() {
        return None;
    }
    let value = cx.f64(3).ok().filter(|x| x.is_finite())?;
    if cx.ty(2).is_some() {
        return Some(format!("torch.addcmul({}, {}, {}, value={value:?})", cx.arg(0), cx.arg(1), cx.arg(2)));
    }
    let factor = cx.f64(2).ok().map(|x| x * value).filter(|x| x.is_finite())?;
    Some(format!("torch.add({}, {}, alpha={factor:?})", cx.arg(0), cx.arg(1)))
}
