//! Which iterations of a loop pass the tests of what it computes: a loop is written in parts, so that none is left in them.

use crate::c::analysis::split::divisors;
use crate::c::ir::expr::{Atom, Expr, Index, Var, Within};
use crate::c::ir::program::Nest;

/// Iterations at most of a loop that is unrolled, since each of them reads something else.
pub const MOST_CHOICES: i64 = 4;

/// Ops at most that parts of a loop repeat, all together.
const MOST_REPEATED: usize = 512;

/// Whether what is read is chosen by the iteration of a short loop, such as the phase of a pixel: with a choice in each, there
/// are no vectors.
pub fn is_choice(value: &Expr, var: Var) -> bool {
    let mut is_tested = false;
    value.walk(&mut |e| {
        if let Expr::Select { when, .. } = e {
            is_tested |= when.iter().any(|test| is_own(test, var));
        }
    });
    is_tested && var.size <= MOST_CHOICES && !value.reduces()
}

/// Whether a test depends on this variable alone.
fn is_own(test: &Within, var: Var) -> bool {
    matches!(test.index.terms.as_slice(), [(Atom::Var(v), _)] if *v == var)
}

/// The only choice by the iteration of a loop, and how many ops there are around it.
fn choice(value: &Expr, var: Var) -> Option<(&Expr, usize)> {
    let is_decided =
        |e: &Expr| matches!(e, Expr::Select { when, .. } if when.iter().all(|test| is_own(test, var)));
    let (mut at, mut ops) = (value, 0);
    while !is_decided(at) {
        if matches!(at, Expr::Select { .. } | Expr::Reduce { .. }) {
            return None;
        }
        let mut inner = None;
        for child in at.children() {
            let (mut size, mut chooses) = (0, false);
            child.walk(&mut |e| {
                size += 1;
                chooses |= is_decided(e);
            });
            if !chooses {
                ops += size;
            } else if inner.replace(child).is_some() {
                return None;
            }
        }
        at = inner?;
        ops += 1;
    }
    Some((at, ops))
}

/// Where the parts of a loop begin, and where the last one ends, if what it computes is, by the iteration, one of at least
/// three things, such as the parts of a tensor that was concatenated.
pub fn pieces(value: &Expr, var: Var) -> Option<Vec<i64>> {
    let (mut rest, repeated) = choice(value, var)?;
    let mut bounds = vec![0, var.size];
    let mut choices = 0;
    while let Expr::Select { when, no, .. } = rest
        && when.iter().all(|test| is_own(test, var))
    {
        for test in when {
            if test.index.factor(var) != Some(1) {
                return None;
            }
            // Where the test is passed for the first time, and no longer.
            let bound = |number: i64| number.saturating_sub(test.index.constant).clamp(0, var.size);
            bounds.extend([bound(test.from), bound(test.to)]);
        }
        choices += 1;
        rest = no;
    }
    bounds.sort_unstable();
    bounds.dedup();
    (choices >= 2 && bounds.len() > 2 && bounds.len() * repeated <= MOST_REPEATED).then_some(bounds)
}

/// Parts of a concatenation from which on each is a step of its own: compilers take long for functions of very many loops,
/// and equal parts share a function.
const MANY_PARTS: usize = 8;

/// The parts of a concatenation of many, each with the coordinates of what it fills.
pub fn parts(nest: &Nest, next_var: u32) -> Option<Vec<(Nest, Vec<Index>)>> {
    let (axis, bounds) = nest.vars.iter().enumerate().find_map(|(axis, &var)| {
        pieces(&nest.value, var).filter(|bounds| bounds.len() > MANY_PARTS).map(|bounds| (axis, bounds))
    })?;
    let var = nest.vars[axis];
    let part = |bounds: &[i64]| {
        let (from, to) = (bounds[0], bounds[1]);
        let part = Var { id: next_var, size: to - from };
        let coordinate = Index::var(part) + Index::number(from);
        let index = |v: Var| if v == var { coordinate.clone() } else { Index::var(v) };
        let value = of_iterations(&nest.value, var, from, to).substitute(&index);
        let at = nest.vars.iter().map(|&v| index(v)).collect();
        let vars = nest.vars.iter().map(|&v| if v == var { part } else { v }).collect();
        (Nest { to: nest.to, vars, value }, at)
    };
    Some(bounds.windows(2).map(part).collect())
}

/// What is chosen in these iterations of a loop, as far as all of them choose the same.
fn of_iterations(value: &Expr, var: Var, from: i64, to: i64) -> Expr {
    // Whether all of them pass a test, or none.
    let outcome = |test: &Within| {
        let at = |n: i64| test.index.factor(var).unwrap_or(0) * n + test.index.constant;
        let (low, high) = (at(from).min(at(to - 1)), at(from).max(at(to - 1)));
        if test.from <= low && high < test.to {
            Some(true)
        } else if high < test.from || test.to <= low {
            Some(false)
        } else {
            None
        }
    };
    let mut chosen = value;
    while let Expr::Select { when, yes, no } = chosen
        && when.iter().all(|test| is_own(test, var))
    {
        if when.iter().all(|test| outcome(test) == Some(true)) {
            chosen = yes;
        } else if when.iter().any(|test| outcome(test) == Some(false)) {
            chosen = no;
        } else {
            break;
        }
    }
    chosen.map(&Index::clone, &|child| of_iterations(child, var, from, to))
}

/// The number by which remainders of a variable choose what is read, where it does not divide the trip count of the loop.
pub fn uneven_divisor(value: &Expr, var: Var) -> Option<i64> {
    let mut found = None;
    value.walk(&mut |e| {
        let Expr::Select { when, .. } = e else { return };
        for test in when {
            if let [(Atom::Mod(inner, by), 1)] = test.index.terms.as_slice()
                && **inner == Index::var(var)
            {
                found = found.or(Some(*by));
            }
        }
    });
    found.filter(|&by| by <= MOST_CHOICES && var.size % by != 0 && var.size >= 2 * by && !value.reduces())
}

/// The number that a variable is divided by everywhere, if the loop unrolled by it needs no division by
/// it: what a sum over the windows of an image that slides by so many pixels needs.
pub fn common_divisor(value: &Expr, var: Var) -> Option<i64> {
    const LARGEST: i64 = 3;
    let fits = |by: &i64| {
        let part = Var { id: var.id, size: var.size / by };
        let divides = |remainder: i64| {
            let index = |v: Var| {
                if v == var { Index::var(part) * *by + Index::number(remainder) } else { Index::var(v) }
            };
            divisors(&value.substitute(&index), part).is_empty()
        };
        *by <= LARGEST && var.size % by == 0 && var.size > *by && (0..*by).all(divides)
    };
    divisors(value, var).into_iter().find(fits)
}

/// Where on the way of `var` all tests pass that depend on it, whatever the other variables are; `None` if that is
/// everywhere, or not on most of the way.
pub fn inside(value: &Expr, var: Var) -> Option<(i64, i64)> {
    let (mut from, mut to) = (0, var.size);
    value.walk(&mut |e| {
        let Expr::Select { when, .. } = e else { return };
        for test in when {
            let Some(factor) = test.index.factor(var).filter(|f| *f != 0) else { continue };
            let (low, high) = (test.index.clone() - Index::var(var) * factor).range();
            // from <= factor · v + low and factor · v + high < to
            let (least, most) = (test.from.saturating_sub(low), (test.to - 1).saturating_sub(high));
            let (first, last) = if factor > 0 {
                (-(-i128::from(least)).div_euclid(factor.into()), i128::from(most).div_euclid(factor.into()))
            } else {
                let by = i128::from(-factor);
                (-i128::from(most).div_euclid(by), (-i128::from(least)).div_euclid(by))
            };
            from = from.max(first.clamp(0, var.size.into()) as i64);
            to = to.min((last + 1).clamp(0, var.size.into()) as i64);
        }
    });
    ((from > 0 || to < var.size) && (to - from) * 2 >= var.size && var.size >= 8).then_some((from, to))
}
