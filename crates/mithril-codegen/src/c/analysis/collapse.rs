//! Loop collapsing: two loops become one where every access goes straight through both.

use crate::c::analysis::split::divisions;
use crate::c::ir::expr::{Expr, Index, Var};

/// Makes one loop of two where every access goes straight through both.
pub fn collapse(vars: &mut Vec<Var>, at: &mut Index, value: &mut Expr, next: &mut u32) {
    let mut one = [(std::mem::take(at), std::mem::replace(value, Expr::Index(Box::default())))];
    collapse_all(vars, &mut one, next);
    [(*at, *value)] = one;
}

/// As [`collapse`], of the variables of several nests: where each stores, and what.
pub fn collapse_all(vars: &mut Vec<Var>, nests: &mut [(Index, Expr)], next: &mut u32) {
    let divided =
        |(at, value): &(Index, Expr)| divisions(value) + divisions(&Expr::Index(Box::new(at.clone())));
    let mut i = vars.len();
    while i >= 2 {
        i -= 1;
        let (a, b) = (vars[i - 1], vars[i]);
        let one = Var { id: *next, size: a.size * b.size };
        let index = |v: Var| match v {
            v if v == a => Index::var(one).floor_div(b.size),
            v if v == b => Index::var(one).modulo(b.size),
            v => Index::var(v),
        };
        let new: Vec<_> =
            nests.iter().map(|(at, value)| (at.substitute(&index), value.substitute(&index))).collect();
        if new.iter().zip(&*nests).all(|(new, old)| divided(new) <= divided(old)) {
            *next += 1;
            nests.clone_from_slice(&new);
            vars[i - 1] = one;
            vars.remove(i);
        }
    }
}
