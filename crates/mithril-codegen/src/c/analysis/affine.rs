//! Affine accesses: positions that are sums of multiples of loop variables.

use crate::c::ir::expr::{Atom, Expr, Index, Var};
use crate::c::ir::program::{Buffers, Memory};

/// The factors of variables in a position that is a sum of multiples of them, none negative; and what is added.
pub fn affine(index: &Index, vars: &[Var]) -> Option<(Vec<usize>, usize)> {
    if index.terms.iter().any(|(atom, f)| *f < 0 || !matches!(atom, Atom::Var(v) if vars.contains(v))) {
        return None;
    }
    let factors = vars.iter().map(|&v| index.factor(v).unwrap_or(0) as usize).collect();
    Some((factors, usize::try_from(index.constant).ok()?))
}

/// The same expression, elements by flat positions.
pub fn flat_loads<M: Memory>(value: &Expr, buffers: &Buffers<M>) -> Expr {
    value.map_loads(&|from, at, stored| {
        let position = buffers[from].position(&at);
        Expr::Load { from, at: vec![position], stored }
    })
}
