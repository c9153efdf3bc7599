//! Elementwise ops, reductions and scans in ONNX.

use std::fmt::Write as _;

use super::list;
use crate::dtype::{DType, Kind};
use crate::literal::Lit;
use crate::lowering::LoweringCx;
use crate::ops::reduce::{axes, is_half, keepdim};
use crate::rules::Attrs;

fn is_float(s: &LoweringCx<'_>) -> Option<bool> {
    Some(s.out(0)?.dtype.is_float())
}

/// One lowering for floats, another one for integers.
fn by_kind(s: &LoweringCx<'_>, float: &str, integer: &str) -> Option<String> {
    Some(if is_float(s)? { float } else { integer }.into())
}

/// Few implementations support `Where` on booleans.
pub(in crate::ops) fn choice(s: &LoweringCx<'_>) -> Option<String> {
    let logic = "Or(And({0}, bool({1})), And(Not({0}), bool({2})))";
    Some(if s.out(0)?.dtype == DType::Bool { logic } else { "Where({0}, {1}, {2})" }.into())
}

/// Rounding; integers are unchanged.
pub(in crate::ops) fn rounding(s: &LoweringCx<'_>, float: &str) -> Option<String> {
    by_kind(s, float, "{0}")
}

/// A property of floats that is constant for integers.
pub(in crate::ops) fn float_test(s: &LoweringCx<'_>, float: &str, integer: &str) -> Option<String> {
    Some(if s.ty(0)?.dtype.is_float() { float } else { integer }.into())
}

/// A function of bits, or of booleans.
pub(in crate::ops) fn bits(s: &LoweringCx<'_>, bits: &str, truth: &str) -> Option<String> {
    Some(if s.out(0)?.dtype == DType::Bool { truth } else { bits }.into())
}

/// In ONNX division by 0, and of the smallest integer by -1, is undefined; processors trap.
pub(in crate::ops) fn floor_divide(s: &LoweringCx<'_>) -> Option<String> {
    let float = "$m = Mod<fmod=1>({0}, {1}) \
         | $r = Where(And(Not(Equal($m, 0)), Xor(Less($m, 0), Less({1}, 0))), Add($m, {1}), $m) \
         | $d = Div({0}, {1}) \
         | Where(Or(Equal($d, 0), Or(Equal({1}, 0), IsInf($d))), $d, Round(Div(Sub({0}, $r), {1})))";
    let signed = "$odd = Or(Equal({1}, 0), Equal({1}, -1)) \
         | $by = Where($odd, 1, {1}) \
         | $q = Div({0}, $by) \
         | $down = And(Not(Equal(Mul($q, $by), {0})), Xor(Less({0}, 0), Less($by, 0))) \
         | Where(Equal({1}, 0), 0, Where($odd, Neg({0}), Sub($q, cast($down))))";
    let unsigned = "Where(Equal({1}, 0), 0, Div({0}, Where(Equal({1}, 0), 1, {1})))";
    let positive = "$q = Div({0}, {1}) | Sub($q, cast(And(Less({0}, 0), Not(Equal(Mod({0}, {1}), 0)))))";
    division(s, float, positive, signed, unsigned)
}

/// The lowering for the operands: floats, a positive divisor, signed integers, unsigned integers.
fn division(s: &LoweringCx<'_>, float: &str, positive: &str, signed: &str, unsigned: &str) -> Option<String> {
    let is_signed = s.out(0)?.dtype.int_range().is_some_and(|(least, _)| least < 0);
    let text = match (is_float(s)?, has_positive_divisor(s), is_signed) {
        (true, ..) => float,
        (false, true, _) => positive,
        (false, false, true) => signed,
        (false, false, false) => unsigned,
    };
    Some(text.into())
}

/// Whether the divisor is a positive number, for which division is well defined.
fn has_positive_divisor(s: &LoweringCx<'_>) -> bool {
    s.ty(1).is_none() && s.int(1).is_ok_and(|n| n > 0)
}

pub(in crate::ops) fn remainder(s: &LoweringCx<'_>) -> Option<String> {
    let float = "$m = Mod<fmod=1>({0}, {1}) \
         | Where(And(Not(Equal($m, 0)), Xor(Less($m, 0), Less({1}, 0))), Add($m, {1}), $m)";
    let signed = "Mod({0}, Where(Or(Equal({1}, 0), Equal({1}, -1)), 1, {1}))";
    let unsigned = "Mod({0}, Where(Equal({1}, 0), 1, {1}))";
    let positive = "Mod({0}, {1})";
    division(s, float, positive, signed, unsigned)
}

/// Powers of integers are products: ONNX computes them as floats.
pub(in crate::ops) fn power(s: &LoweringCx<'_>) -> Option<String> {
    if is_float(s)? {
        return Some("Pow({0}, {1})".into());
    }
    let mut rest = s.int(1).ok().filter(|n| (1..64).contains(n))?;
    let (mut text, mut square, mut number) = (String::new(), "{0}".to_owned(), 0);
    let mut product: Option<String> = None;
    while rest > 0 {
        if rest & 1 == 1 {
            product = Some(product.map_or(square.clone(), |p| format!("Mul({p}, {square})")));
        }
        rest >>= 1;
        if rest > 0 {
            _ = write!(text, "$p{number} = Mul({square}, {square}) | ");
            square = format!("$p{number}");
            number += 1;
        }
    }
    product.map(|p| text + &p)
}

pub(in crate::ops) fn sign(s: &LoweringCx<'_>) -> Option<String> {
    by_kind(s, "Where(IsNaN({0}), {0}, Sign({0}))", "Sign({0})")
}

/// Floats out of range are clamped, NaN becomes 0; both are undefined in ONNX.
pub(in crate::ops) fn cast(s: &LoweringCx<'_>) -> Option<String> {
    let (from, to) = (s.ty(0).map(|t| t.dtype), s.out(0)?.dtype);
    let Some(from) = from else { return Some("cast({0})".into()) };
    if !from.is_float() || to.kind() != Kind::Int {
        return Some("cast({0})".into());
    }
    let (least, most) = to.int_range()?;
    // The first float above the range, which is a power of two; in float16 it is infinity above 65504.
    let (low, high) = (least as f64, if to.size() == 8 { most as f64 } else { most as f64 + 1.0 });
    let is_short = from == DType::F16;
    let above = if is_short && high > 65504.0 {
        "Equal({0}, inf)".into()
    } else {
        format!("GreaterOrEqual({{0}}, {high:?})")
    };
    let below =
        if is_short && low < -65504.0 { "Equal({0}, -inf)".into() } else { format!("Less({{0}}, {low:?})") };
    Some(format!(
        "$above = {above} | $below = {below} | $out = Or(Or($above, $below), IsNaN({{0}})) \
         | $in = cast(Where($out, 0, {{0}})) \
         | Where($above, most(), Where($below, least(), $in))"
    ))
}

pub(in crate::ops) const EXPM1: &str = "$u = Exp({0}) | $v = Sub($u, 1) \
     | Where(Equal($u, 1), {0}, Where(Or(Equal($u, 0), IsInf($u)), $v, Mul($v, Div({0}, Log($u)))))";

pub(in crate::ops) const LOG1P: &str = "$u = Add({0}, 1) \
     | Where(Equal($u, 1), {0}, Where(Equal($u, inf), $u, Mul(Log($u), Div({0}, Sub($u, 1)))))";

/// The signs, including those of zeros, determine the quadrant.
pub(in crate::ops) const ATAN2: &str = "$a = Abs({0}) | $b = Abs({1}) \
     | $angle = Where(Equal($a, $b), Where(Equal($a, 0), 0, 0.7853981633974483), Atan(Div($a, $b))) \
     | $left = Or(Less({1}, 0), And(Equal({1}, 0), Less(Reciprocal({1}), 0))) \
     | $under = Or(Less({0}, 0), And(Equal({0}, 0), Less(Reciprocal({0}), 0))) \
     | $turned = Where($left, Sub(3.141592653589793, $angle), $angle) \
     | Where($under, Neg($turned), $turned)";

/// A table of `2^n` in int64; the last entry is the result of larger shifts.
fn powers(n: u32, last: i64) -> String {
    list((0..n).map(|i| 1_i64.wrapping_shl(i)).chain([last]))
}

pub(in crate::ops) fn left_shift(_: &LoweringCx<'_>) -> Option<String> {
    let table = powers(64, 0);
    Some(format!(
        "$n = i64({{1}}) | $at = Where(And(GreaterOrEqual($n, 0), Less($n, 64)), $n, 64) \
         | cast(Mul(i64({{0}}), Gather({table}, $at)))"
    ))
}

pub(in crate::ops) fn right_shift(_: &LoweringCx<'_>) -> Option<String> {
    let table = powers(63, 1);
    Some(format!(
        "$x = i64({{0}}) | $n = i64({{1}}) | $fits = And(GreaterOrEqual($n, 0), Less($n, 63)) \
         | $by = Gather({table}, Where($fits, $n, 63)) \
         | $q = Sub(Div($x, $by), like(And(Less($x, 0), Not(Equal(Mod($x, $by), 0))), $x)) \
         | cast(Where($fits, $q, Where(Less($x, 0), -1, 0)))"
    ))
}

// --- reductions and scans ----------------------------------------------------------------------------------------

/// A reduction; sums are computed in the dtype of the result.
pub(in crate::ops) fn reduction(s: &LoweringCx<'_>, op: &str) -> Option<String> {
    let dtype = s.out(0)?.dtype;
    let input = match dtype {
        d if is_half(d) && !matches!(op, "ReduceMax" | "ReduceMin") => "f32({0})",
        _ => "cast({0})",
    };
    let axes = axes(s, s.ty(0)?.shape.rank()).ok()?;
    if axes.is_empty() {
        return Some("cast({0})".into());
    }
    let keep = i64::from(keepdim(s).ok()?);
    let axes = list(axes.into_iter().map(|a| a as i64));
    Some(format!("cast({op}<keepdims={keep}>({input}, {axes}))"))
}

/// The first index of the largest or smallest element.
pub(in crate::ops) fn position(s: &LoweringCx<'_>, op: &str) -> Option<String> {
    let rank = s.ty(0)?.shape.rank();
    let keep = i64::from(keepdim(s).ok()?);
    if s.absent(1) || rank == 0 {
        return Some(format!("reshape({op}<axis=0, keepdims={keep}>(reshape({{0}}, [-1])))"));
    }
    let axis = s.axis(1, rank).ok()?;
    Some(format!("{op}<axis={axis}, keepdims={keep}>({{0}})"))
}

pub(in crate::ops) fn cumsum(s: &LoweringCx<'_>) -> Option<String> {
    let axis = s.axis(1, s.ty(0)?.shape.rank()).ok()?;
    let (exclusive, reverse) = (i64::from(s.bool(2).ok()?), i64::from(s.bool(3).ok()?));
    let input = if is_half(s.out(0)?.dtype) { "f32({0})" } else { "cast({0})" };
    let axis = format!("reshape([{axis}], [])");
    Some(format!("cast(CumSum<exclusive={exclusive}, reverse={reverse}>({input}, {axis}))"))
}

/// A cumulative product or extremum by recursive doubling: combines elements at distance 1, 2, 4 …
pub(in crate::ops) fn scan(
    s: &LoweringCx<'_>,
    op: &str,
    identity: &str,
    exclusive: bool,
    reverse: bool,
) -> Option<String> {
    let shape = &s.ty(0)?.shape;
    let axis = s.axis(1, shape.rank()).ok()?;
    let n = shape.get(axis)?.known()?;
    let wide = if is_half(s.out(0)?.dtype) { "f32({0})" } else { "cast({0})" };
    let mut text = format!("$y = {wide} | ");
    // Elements shifted in at one end, and out at the other.
    let shift = |by: i64| {
        let (mut pads, rank) = (vec![0; 2 * shape.rank()], shape.rank());
        if reverse {
            (pads[axis], pads[rank + axis]) = (-by, by);
        } else {
            (pads[axis], pads[rank + axis]) = (by, -by);
        }
        format!("Pad($y, {}, {identity})", list(pads))
    };
    if exclusive && n > 0 {
        _ = write!(text, "$y = {} | ", shift(1));
    }
    let mut step = 1;
    while step < n {
        _ = write!(text, "$y = {op}($y, {}) | ", shift(step));
        step *= 2;
    }
    Some(text + "cast($y)")
}

pub(in crate::ops) fn argsort(s: &LoweringCx<'_>) -> Option<String> {
    let rank = s.ty(0)?.shape.rank();
    let (axis, largest) = (s.axis(1, rank).ok()?, i64::from(s.bool(2).ok()?));
    Some(format!("TopK<axis={axis}, largest={largest}>({{0}}, size({{0}}, {axis}))#1"))
}

pub(in crate::ops) fn topk(s: &LoweringCx<'_>) -> Option<String> {
    let rank = s.ty(0)?.shape.rank();
    let (axis, largest) = (s.axis(2, rank).ok()?, i64::from(s.bool(3).ok()?));
    let call = format!("TopK<axis={axis}, largest={largest}>({{0}}, ints({{1}}))");
    Some(format!("{call}; {call}#1"))
}

/// Along one axis.
pub(in crate::ops) fn along(s: &LoweringCx<'_>, op: &str, port: usize) -> Option<String> {
    let rank = s.ty(0)?.shape.rank();
    let axis = s.axis(port, rank).ok()?;
    Some(format!("{op}<axis={axis}>({{0}})"))
}

/// Clamps to two numbers, if the lower one is not above the upper one.
pub(in crate::ops) fn clip(s: &LoweringCx<'_>) -> Option<String> {
    let number = |i: usize| s.f64(i).ok().filter(|_| s.ty(i).is_none() || matches!(s.lit(i), Lit::Tensor(_)));
    let scalar = |i: usize| s.ty(i).is_none_or(|t| t.shape.rank() == 0);
    let (low, high) = (number(1), number(2));
    let fits = match (s.absent(1) && s.ty(1).is_none(), s.absent(2) && s.ty(2).is_none()) {
        (false, false) => low? <= high? && scalar(1) && scalar(2),
        (true, false) => high.is_some() && scalar(2),
        (false, true) => low.is_some() && scalar(1),
        (true, true) => false,
    };
    let part = |i: usize| if s.absent(i) && s.ty(i).is_none() { "_".to_owned() } else { format!("{{{i}}}") };
    fits.then(|| format!("Clip({{0}}, {}, {})", part(1), part(2)))
}
