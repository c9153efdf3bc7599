//! Loop variables that are only divided become two: `x[k / 9, k % 9]` over `k` is `x[i, j]` over `i` and `j`. Reshapes
//! between a value and its reader leave such divisions.

use std::cell::Cell;

use crate::c::ir::expr::{Atom, Expr, Index, Var};

/// Splits the variables of the reductions in an expression. `next` is the next number of a variable.
pub fn split_reductions(e: &Expr, next: &Cell<u32>) -> Expr {
    let mut e = e.map(&Index::clone, &|child| split_reductions(child, next));
    if let Expr::Reduce { vars, body, .. } = &mut e {
        split(vars, body, next, &mut |_, _| {});
    }
    e
}

/// Splits `vars`, over which `body` is computed, as long as that leaves fewer divisions; `replaced` is told of each
/// variable and of what stands for it.
pub fn split(vars: &mut Vec<Var>, body: &mut Expr, next: &Cell<u32>, replaced: &mut dyn FnMut(Var, &Index)) {
    while let Some((at, outer, inner, new)) = candidate(vars, body, next.get()) {
        let var = vars[at];
        replaced(var, &digits(outer, inner));
        vars.splice(at..=at, [outer, inner]);
        *body = new;
        next.set(next.get() + 2);
    }
}

/// A variable by position, the two for it, and what the body becomes.
fn candidate(vars: &[Var], body: &Expr, next: u32) -> Option<(usize, Var, Var, Expr)> {
    let before = divisions(body);
    if before == 0 {
        return None;
    }
    vars.iter().enumerate().find_map(|(at, &var)| {
        divisors(body, var).into_iter().filter(|by| var.size % by == 0 && *by < var.size).find_map(|by| {
            let (outer, inner) = (Var { id: next, size: var.size / by }, Var { id: next + 1, size: by });
            let index = digits(outer, inner);
            let new = body.substitute(&|v| if v == var { index.clone() } else { Index::var(v) });
            (divisions(&new) < before).then_some((at, outer, inner, new))
        })
    })
}

fn digits(outer: Var, inner: Var) -> Index {
    Index::var(outer) * inner.size + Index::var(inner)
}

/// Number of divisions in the indices.
pub fn divisions(e: &Expr) -> usize {
    let mut n = 0;
    each_division(e, &mut |_, _| n += 1);
    n
}

/// By what sums with this variable are divided, as far as that says something about the variable alone.
pub fn divisors(e: &Expr, var: Var) -> Vec<i64> {
    let mut divisors = Vec::new();
    each_division(e, &mut |inner, by| {
        if let Some(factor) = inner.factor(var).filter(|f| *f > 0 && by % f == 0 && *f < by) {
            divisors.push(by / factor);
        }
    });
    divisors.sort_unstable();
    divisors.dedup();
    divisors
}

/// Calls `f` with each dividend and divisor.
fn each_division(e: &Expr, f: &mut dyn FnMut(&Index, i64)) {
    fn inside(index: &Index, f: &mut dyn FnMut(&Index, i64)) {
        for (atom, _) in &index.terms {
            if let Atom::Div(inner, by) | Atom::Mod(inner, by) = atom {
                f(inner, *by);
                inside(inner, f);
            }
        }
    }
    e.walk(&mut |e| e.indices().into_iter().for_each(|index| inside(index, f)));
}

#[cfg(test)]
mod tests {
    use mithril_ir::DType;

    use super::*;
    use crate::c::ir::expr::{BufferId, ReduceOp, flat, unflat};
    use crate::ids::Id as _;

    /// A sum over the elements of a window in one variable is one over its rows and columns.
    #[test]
    fn sums_over_reshaped_axes() {
        let var = Var { id: 0, size: 24 };
        let load = |at: Vec<Index>| Expr::Load { from: BufferId::new(0), at, stored: DType::F32 };
        let sum = |vars: Vec<Var>, body: Expr| Expr::Reduce { op: ReduceOp::Sum, vars, body: Box::new(body) };
        let whole = sum(vec![var], load(unflat(&Index::var(var), &[2, 3, 4])));
        let next = Cell::new(1);
        let result = split_reductions(&whole, &next);
        let Expr::Reduce { vars, body, .. } = &result else { panic!("{result}") };
        assert_eq!(vars.iter().map(|v| v.size).collect::<Vec<_>>(), [2, 3, 4]);
        assert_eq!(**body, load(vars.iter().map(|&v| Index::var(v)).collect()));
        assert!(vars.iter().all(|v| v.id < next.get()));
    }

    #[test]
    fn loops_over_joined_axes() {
        let mut vars = vec![Var { id: 0, size: 5 }, Var { id: 1, size: 6 }];
        let [i, j] = [0, 1].map(|k| Index::var(vars[k]));
        let mut at = flat(&[i.clone(), j.clone()], &[5, 6]);
        let mut body = Expr::Index(Box::new(j.modulo(3) * 10 + j.floor_div(3) * 5 + i));
        split(&mut vars, &mut body, &Cell::new(2), &mut |var, index| {
            at = at.substitute(&|v| if v == var { index.clone() } else { Index::var(v) });
        });
        let [i, a, b] = [0, 1, 2].map(|k| Index::var(vars[k]));
        assert_eq!(at, i.clone() * 6 + a.clone() * 3 + b.clone());
        assert_eq!(body, Expr::Index(Box::new(i + a * 5 + b * 10)));
    }
}
