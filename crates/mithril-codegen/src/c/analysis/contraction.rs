//! Contractions: sums of products, recognized by structure. Which variables move which operand decides, never the op that
//! they come from.

use mithril_ir::{DType, Scalar};

use crate::c::ir::expr::{Binary, BufferId, Expr, Index, ReduceOp, Var};
use crate::c::ir::program::Nest;
use crate::c::kernels::spec::strides::Stored;
use crate::c::target::Element;

/// Products below this many are left to the C compiler: a kernel would be more code than time.
pub const LEAST_WORK: i64 = 4096;

/// A sum of products and what is made of it.
pub struct Contraction<'a> {
    /// Its variables.
    pub vars: &'a [Var],
    /// The factors.
    pub factors: [&'a Expr; 2],
    /// What they are computed in.
    pub element: Element,
}

/// The sum of products that a nest is, if it is one.
pub fn contraction(nest: &Nest) -> Option<Contraction<'_>> {
    let (mut sums, mut is_checked) = (0, false);
    nest.value.walk(&mut |e| {
        sums += usize::from(matches!(e, Expr::Reduce { .. }));
        is_checked |= e.indices().iter().any(|index| index.reads());
    });
    let sum = the_sum(&nest.value).filter(|_| sums == 1)?;
    let Expr::Reduce { op: ReduceOp::Sum, vars, body } = sum else { return None };
    let Expr::Binary(Binary::Multiply, a, b) = &**body else { return None };
    let element = Element::of(body.dtype())?;
    let work = nest.vars.iter().chain(vars).fold(1_i64, |n, v| n.saturating_mul(v.size));
    (!is_checked && work >= LEAST_WORK).then_some(Contraction { vars, factors: [a, b], element })
}

/// The reduction in an expression that has one.
pub fn the_sum(e: &Expr) -> Option<&Expr> {
    match e {
        Expr::Reduce { .. } => Some(e),
        _ => e.children().into_iter().find_map(the_sum),
    }
}

/// The coordinates of an element of the given float, read as it is.
pub fn loaded(e: &Expr, element: Element) -> Option<(BufferId, &[Index])> {
    let dtype = if element == Element::F32 { DType::F32 } else { DType::F64 };
    match e {
        Expr::Load { from, at, stored } if *stored == dtype => Some((*from, at)),
        _ => None,
    }
}

/// As [`loaded`], of an element that may be stored as a half and is computed with as a float32; and how it is stored.
pub fn stored(e: &Expr, element: Element) -> Option<(BufferId, &[Index], Stored)> {
    let half = match e {
        Expr::Load { stored: DType::F16, .. } => Stored::F16,
        Expr::Load { stored: DType::BF16, .. } => Stored::BF16,
        _ => return loaded(e, element).map(|(from, at)| (from, at, Stored::Same)),
    };
    let Expr::Load { from, at, .. } = e else { return None };
    (element == Element::F32).then_some((*from, at, half))
}

/// Whether this is the number 0.
pub fn is_zero(e: &Expr) -> bool {
    matches!(e, Expr::Number(Scalar::Float(x), _) if *x == 0.0)
}

/// An expression with a part of it replaced.
pub fn replaced(e: &Expr, part: &Expr, by: &Expr) -> Expr {
    if e == part { by.clone() } else { e.map(&Index::clone, &|child| replaced(child, part, by)) }
}
