//! Which rows of an operand an op reads: whether those of a part on an extended block ([`super::halo`]) are those of the
//! whole op, on every device and for every element. Where the indices are not the same by their form, that is tried out.

use mithril_ir::DType;
use mithril_ir::loops::{Expr, Index, IndexTerm, Var, Within};
use mithril_ir::tensor::Scalar;

use super::halo::Halo;

/// How many elements are tried at most.
const MOST: i64 = 1 << 24;

/// An element of a tensor that is read where tests pass, and the number that is taken elsewhere.
pub(super) struct Guarded<'e> {
    pub(super) tests: Vec<&'e Within>,
    pub(super) other: Option<(Scalar, DType)>,
    pub(super) from: usize,
    pub(super) at: &'e [Index],
    pub(super) stored: DType,
}

impl<'e> Guarded<'e> {
    pub(super) fn of(e: &'e Expr) -> Option<Self> {
        let (mut tests, mut other, mut e) = (Vec::new(), None, e);
        loop {
            match e {
                Expr::Select { when, yes, no } => {
                    let Expr::Number(number, dtype) = **no else { return None };
                    if other.is_some_and(|known| known != (number, dtype)) {
                        return None;
                    }
                    other = Some((number, dtype));
                    tests.extend(when);
                    e = yes;
                }
                Expr::Load { from, at, stored } => {
                    return Some(Self { tests, other, from: *from, at, stored: *stored });
                }
                _ => return None,
            }
        }
    }
    /// Tests of this row, and the others.
    fn split(&self, vars: &[Var]) -> (Vec<&'e Within>, Vec<&'e Within>) {
        let is_of_row = |test: &&Within| {
            let mut shares = false;
            test.index.each_var(&mut |var| shares |= vars.contains(&var));
            shares
        };
        self.tests.iter().partition::<Vec<&Within>, _>(|test| is_of_row(test))
    }
}

/// Whether both read the same rows, or none, for all values of the variables. `size` is how many rows there are.
pub(super) fn agree(whole: &Guarded<'_>, part: &Guarded<'_>, halo: &Halo, size: i64, device: Var) -> bool {
    let (row, own) = (&whole.at[halo.axis], &part.at[halo.axis]);
    let mut vars = vec![device];
    let add = |index: &Index, vars: &mut Vec<Var>| {
        index.each_var(&mut |var| {
            if !vars.contains(&var) {
                vars.push(var);
            }
        });
    };
    add(row, &mut vars);
    add(own, &mut vars);
    let ((tests, others), (own_tests, own_others)) = (whole.split(&vars), part.split(&vars));
    if others != own_others {
        return false;
    }
    // What is read outside of the tensor.
    let (fill, own_fill) = (whole.other.map(|other| other.0), part.other.map(|other| other.0));
    if fill.is_some() && (halo.fill != fill || own_fill.is_some_and(|own| Some(own) != fill)) {
        return false;
    }
    let (start, step) = halo.origin();
    let place = own.clone() + Index::number(start) + Index::var(device) * step;
    let is_inside = |index: &Index, size: i64| {
        let (low, high) = index.range();
        0 <= low && high < size
    };
    if own_tests.is_empty() && *row == place && is_inside(own, halo.count) {
        let is_tested =
            matches!(tests.as_slice(), [test] if test.index == *row && test.from == 0 && test.to == size);
        if is_tested || tests.is_empty() && is_inside(row, size) {
            return true;
        }
    }
    let mut indices = vec![row, own];
    indices.extend(tests.iter().chain(&own_tests).map(|test| &test.index));
    let mut agree = true;
    let is_tried = each_point(&vars, &indices, |value| {
        let passes =
            |tests: &[&Within]| tests.iter().all(|test| (test.from..test.to).contains(&value(&test.index)));
        let expected = passes(&tests).then(|| value(row));
        let actual = passes(&own_tests).then(|| value(own));
        agree &= actual.is_none_or(|row| (0..halo.count).contains(&row));
        let device = value(&Index::var(device));
        let actual = actual.map(|row| row + start + device * step).filter(|row| (0..size).contains(row));
        agree &= expected == actual;
        agree
    });
    is_tried && agree
}

/// The smallest and the largest value of an index where tests pass, as far as that can be tried.
pub(super) fn range(index: &Index, tests: &[Within]) -> (i64, i64) {
    let mut vars = Vec::new();
    index.each_var(&mut |var| vars.push(var));
    let tests: Vec<&Within> = tests
        .iter()
        .filter(|test| {
            let mut shares = false;
            test.index.each_var(&mut |var| shares |= vars.contains(&var));
            shares
        })
        .collect();
    let mut range: Option<(i64, i64)> = None;
    if tests.is_empty() {
        return index.range();
    }
    let mut indices = vec![index];
    indices.extend(tests.iter().map(|test| &test.index));
    let is_tried = each_point(&[], &indices, |value| {
        if tests.iter().all(|test| (test.from..test.to).contains(&value(&test.index))) {
            let at = value(index);
            range = Some(range.map_or((at, at), |(low, high)| (low.min(at), high.max(at))));
        }
        true
    });
    range.filter(|_| is_tried).unwrap_or_else(|| index.range())
}

/// Calls `f` with a function that evaluates indices, for all values of their variables, until it returns false; whether that
/// could be done.
fn each_point(first: &[Var], indices: &[&Index], mut f: impl FnMut(&dyn Fn(&Index) -> i64) -> bool) -> bool {
    let mut vars = first.to_vec();
    for index in indices {
        index.each_var(&mut |var| {
            if !vars.contains(&var) {
                vars.push(var);
            }
        });
    }
    let count = vars.iter().fold(1_i64, |n, var| n.saturating_mul(var.size));
    if count > MOST || indices.iter().any(|index| index.reads()) {
        return false;
    }
    let mut at = vec![0; vars.len()];
    while f(&|index| evaluate(index, &vars, &at)) {
        // The next values.
        let Some(next) = at.iter().zip(&vars).position(|(n, var)| n + 1 < var.size) else { break };
        at[next] += 1;
        at[..next].fill(0);
    }
    true
}

/// The number that an index is, without values that are read.
fn evaluate(index: &Index, vars: &[Var], at: &[i64]) -> i64 {
    let term = |term: &IndexTerm| match term {
        IndexTerm::Var(var) => vars.iter().position(|v| v == var).map_or(0, |i| at[i]),
        IndexTerm::Div(inner, by) => evaluate(inner, vars, at).div_euclid(*by),
        IndexTerm::Mod(inner, by) => evaluate(inner, vars, at).rem_euclid(*by),
        IndexTerm::Value { .. } => 0,
    };
    index.terms.iter().fold(index.constant, |sum, (own, factor)| sum + term(own) * factor)
}
