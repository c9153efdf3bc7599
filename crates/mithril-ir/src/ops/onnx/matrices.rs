//! Linear systems and decompositions in ONNX, which has no such ops: the steps of the elimination are unrolled.

use std::fmt::Write as _;

use super::{list, sizes};
use crate::dim::Dim;
use crate::lowering::LoweringCx;

/// Largest matrix whose elimination is unrolled; a step has a dozen nodes.
const LARGEST: i64 = 64;

/// The number of rows, if it is known and not too large.
fn rows(s: &LoweringCx<'_>) -> Option<i64> {
    let n = s.ty(0)?.shape.last()?.known()?;
    (1..=LARGEST).contains(&n).then_some(n)
}

/// The row indices as a column.
fn numbers(n: i64) -> String {
    format!("$r = reshape({}, [{n}, 1]) | ", list(0..n))
}

/// Partial pivoting: moves the row with the largest element of column `k` to row `k`.
fn pivot(text: &mut String, n: i64, k: i64) {
    let next = k + 1;
    _ = write!(
        text,
        "$c = Slice($m, [{k}], [{next}], [-1]) \
         | $p = Add(ArgMax<axis=-2, keepdims=1>(Abs(Slice($c, [{k}], [{n}], [-2]))), [{k}]) \
         | $is = Equal($r, [{k}]) | $order = Where($is, $p, Where(Equal($r, $p), [{k}], $r)) \
         | $m = GatherElements<axis=-2>($m, Expand($order, Shape($m))) \
         | $row = Slice($m, [{k}], [{next}], [-2]) | $d = Slice($row, [{k}], [{next}], [-1]) | "
    );
}

/// Subtracts multiples of the pivot row, so that the rest of its column is zero.
fn eliminate(text: &mut String, k: i64, divisor: &str) {
    let next = k + 1;
    _ = write!(
        text,
        "$row = Div($row, {divisor}) | $c = Slice($m, [{k}], [{next}], [-1]) \
         | $m = Where($is, $row, Sub($m, Mul($c, $row))) | "
    );
}

/// The columns behind the matrix in `$m`, which has become the identity.
fn solved(mut text: String, n: i64) -> String {
    for k in 0..n {
        pivot(&mut text, n, k);
        eliminate(&mut text, k, "$d");
    }
    _ = write!(text, "$x = Slice($m, [{n}], [{}], [-1]) | reshape($x)", i64::MAX);
    text
}

pub(in crate::ops) fn inv(s: &LoweringCx<'_>) -> Option<String> {
    let n = rows(s)?;
    let identity = format!("like(Equal($r, reshape({}, [1, {n}])), {{0}})", list(0..n));
    let text = numbers(n) + &format!("$m = Concat<axis=-1>({{0}}, Expand({identity}, sizes())) | ");
    Some(solved(text, n))
}

pub(in crate::ops) fn solve(s: &LoweringCx<'_>) -> Option<String> {
    let (n, out) = (rows(s)?, &s.out(0)?.shape);
    let is_vector = s.ty(1)?.shape.rank() == 1;
    let batch = out.get(..out.rank().checked_sub(if is_vector { 1 } else { 2 })?)?;
    let columns = if is_vector { Dim::ONE } else { out.last()?.clone() };
    let rows = Dim::Const(n);
    let left = sizes(batch.iter().chain([&rows, &rows]));
    let right = sizes(batch.iter().chain([&rows, &columns]));
    let right_side = if is_vector { format!("reshape({{1}}, [{n}, 1])") } else { "{1}".into() };
    let text = numbers(n)
        + &format!("$m = Concat<axis=-1>(Expand({{0}}, {left}), Expand({right_side}, {right})) | ");
    Some(solved(text, n))
}

/// Computed from the pivots; a pivot of a singular matrix is 0.
pub(in crate::ops) fn slogdet(s: &LoweringCx<'_>) -> Option<String> {
    let n = rows(s)?;
    let mut text = numbers(n) + "$m = {0} | ";
    for k in 0..n {
        pivot(&mut text, n, k);
        let sign = format!("Mul(Where(Equal($p, [{k}]), like(1, $d), like(-1, $d)), Sign($d))");
        let log = "Log(Abs($d))";
        let joined = |op: &str, name: &str, new: &str| {
            if k == 0 { format!("${name} = {new} | ") } else { format!("${name} = {op}(${name}, {new}) | ") }
        };
        text += &joined("Mul", "sign", &sign);
        text += &joined("Add", "log", log);
        eliminate(&mut text, k, "Where(Equal($d, 0), 1, $d)");
    }
    Some(text + "reshape($sign); reshape($log)")
}

/// Cholesky factorization, column by column.
pub(in crate::ops) fn cholesky(s: &LoweringCx<'_>) -> Option<String> {
    let (n, rank) = (rows(s)?, s.ty(0)?.shape.rank() as i64);
    let turned = list((0..rank - 2).chain([rank - 1, rank - 2]));
    let mut text = numbers(n);
    _ = write!(text, "$m = Mul(Add({{0}}, Transpose<perm={turned}>({{0}})), 0.5) | ");
    for k in 0..n {
        let next = k + 1;
        _ = write!(
            text,
            "$c = Slice($m, [{k}], [{next}], [-1]) | $d = Sqrt(Slice($c, [{k}], [{next}], [-2])) \
             | $l{k} = Where(Less($r, [{k}]), 0, Div($c, $d)) \
             | $m = Sub($m, Mul($l{k}, Transpose<perm={turned}>($l{k}))) | "
        );
    }
    let columns: Vec<String> = (0..n).map(|k| format!("$l{k}")).collect();
    Some(format!("{text}Concat<axis=-1>({})", columns.join(", ")))
}
