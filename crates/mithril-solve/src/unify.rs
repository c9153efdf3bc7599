//! Unification of sizes and shapes: binding of symbols and runs, and linear equations.

use mithril_ir::dim::DimFactor;
use mithril_ir::{Dim, Error, Symbol};

use crate::report::{Clash, Step};
use crate::store::{Constraint, Store};
use crate::term::{Seq, Size, Term};

/// Equations with larger coefficients are not solved, since arithmetic on them may have saturated.
const LARGE: u64 = 1 << 60;

impl Store {
    /// Makes two sizes equal, as far as that can be decided; otherwise keeps the equation.
    pub fn unify_size(&mut self, a: &Size, b: &Size) -> Step {
        let (a, b) = (self.resolve_size(a), self.resolve_size(b));
        if a.dim == b.dim {
            return Ok(());
        }
        match (a.dim.as_symbol(), b.dim.as_symbol()) {
            (Some(x), Some(y)) => {
                let (x_id, y_id) = (self.symbol_id(x)?, self.symbol_id(y)?);
                if self.binds_first(x, x_id, y, y_id) {
                    self.bind_symbol(x_id, b)
                } else {
                    self.bind_symbol(y_id, a)
                }
            }
            (Some(x), None) if b.dim.known().is_some() => self.bind_symbol(self.symbol_id(x)?, b),
            (None, Some(y)) if a.dim.known().is_some() => self.bind_symbol(self.symbol_id(y)?, a),
            _ => self.solve(&a, &b),
        }
    }
    fn symbol_id(&self, symbol: &Symbol) -> Step<u32> {
        let foreign = || Clash::Error(Error::internal(format!("`{symbol}` is a variable of another solver")));
        self.index(symbol).ok_or_else(|| Box::new(foreign()))
    }
    /// Whether the first of two symbols is bound to the second: variables are bound to names, later names to earlier ones, and
    /// smaller classes to larger ones, so that chains have logarithmic length.
    fn binds_first(&self, x: &Symbol, x_id: u32, y: &Symbol, y_id: u32) -> bool {
        match (x, y) {
            (Symbol::Named(x), Symbol::Named(y)) => x > y,
            (Symbol::Var(_), Symbol::Named(_)) => true,
            (Symbol::Named(_), Symbol::Var(_)) => false,
            (Symbol::Var(_), Symbol::Var(_)) => {
                let weight = |id: u32| self.symbols[id as usize].members;
                (weight(x_id), y_id) < (weight(y_id), x_id)
            }
        }
    }
    /// Solves `a = b`, where at least one is an expression.
    fn solve(&mut self, a: &Size, b: &Size) -> Step {
        let clash = || Err(Box::new(Clash::Sizes(a.clone(), b.clone())));
        let difference = &a.dim - &b.dim;
        let (terms, constant) = difference.parts();
        if terms.iter().any(|(_, c)| c.unsigned_abs() > LARGE) || constant.unsigned_abs() > LARGE {
            self.add_equation(difference, a.clone(), b.clone());
            return Ok(());
        }
        let divisor = terms.iter().fold(0, |g, (_, c)| gcd(g, *c));
        // 12*b = 13*b holds only for b = 0, which is never intended.
        let degenerate = constant == 0 && terms.len() == 1 && !a.dim.is(0) && !b.dim.is(0);
        if divisor == 0 || degenerate || constant % divisor != 0 || cannot_vanish(&difference) {
            return clash();
        }
        let difference = difference.exact_div(&Dim::Const(divisor)).unwrap_or(difference);
        let difference = without_common_factor(difference);
        if difference.known().is_some_and(|n| n != 0) {
            return clash();
        }
        let Some((symbol, value)) = self.isolate(&difference) else {
            self.add_equation(difference, a.clone(), b.clone());
            return Ok(());
        };
        let why = if a.dim.known().is_some() { a.why } else { b.why };
        let value = Size { dim: value, why };
        // If the solution is a plain symbol, the smaller class is bound.
        match value.dim.as_symbol() {
            Some(_) => self.unify_size(&Size { dim: self.symbols[symbol as usize].dim.clone(), why }, &value),
            None => self.bind_symbol(symbol, value),
        }
    }
    /// A symbol with coefficient 1 or -1 that occurs once, and its value if the expression is 0. Variables are preferred to names,
    /// later symbols to earlier ones, so that the choice does not depend on the form of the equation.
    fn isolate(&self, difference: &Dim) -> Option<(u32, Dim)> {
        let (terms, _) = difference.parts();
        let mut best: Option<(&Symbol, i64)> = None;
        for (factors, coefficient) in terms {
            let ([DimFactor::Symbol(symbol)], 1 | -1) = (factors.as_slice(), *coefficient) else { continue };
            let rank = |s: &Symbol| matches!(s, Symbol::Var(_));
            let better = best.is_none_or(|(old, _)| (rank(symbol), symbol) > (rank(old), old));
            if better && self.index(symbol).is_some() && occurrences(difference, symbol) == 1 {
                best = Some((symbol, *coefficient));
            }
        }
        let (symbol, coefficient) = best?;
        let rest = difference - &(&Dim::of_symbol(symbol.clone()) * &Dim::Const(coefficient));
        Some((self.index(symbol)?, &rest * &Dim::Const(-coefficient)))
    }

    /// Makes two shapes equal, as far as that is decided; otherwise keeps the equation.
    pub fn unify_term(&mut self, a: &Term, b: &Term) -> Step {
        let (a, b) = (self.resolve_term(a), self.resolve_term(b));
        match (a.rest, b.rest) {
            (None, None) if a.prefix.len() == b.prefix.len() => self.unify_pairs(&a.prefix, &b.prefix),
            (None, None) => Err(Box::new(Clash::Ranks(a, b))),
            (None, Some(run)) => self.fit(&b, run, &a),
            (Some(run), None) => self.fit(&a, run, &b),
            (Some(x), Some(y)) => self.unify_runs(&a, x, &b, y),
        }
    }
    fn unify_pairs(&mut self, a: &[Size], b: &[Size]) -> Step {
        a.iter().zip(b).try_for_each(|(a, b)| self.unify_size(a, b))
    }
    /// `open` with the run `run` equals `known`, whose rank is known.
    fn fit(&mut self, open: &Term, run: Seq, known: &Term) -> Step {
        let (p, q, n) = (open.prefix.len(), open.suffix.len(), known.prefix.len());
        if p + q > n {
            return Err(Box::new(Clash::Ranks(open.clone(), known.clone())));
        }
        self.unify_pairs(&open.prefix, &known.prefix)?;
        self.unify_pairs(&open.suffix, &known.prefix[n - q..])?;
        self.bind_seq(run, Term::known(known.prefix[p..n - q].to_vec(), known.why))
    }
    fn unify_runs(&mut self, a: &Term, x: Seq, b: &Term, y: Seq) -> Step {
        let p = a.prefix.len().min(b.prefix.len());
        let q = a.suffix.len().min(b.suffix.len());
        self.unify_pairs(&a.prefix[..p], &b.prefix[..p])?;
        self.unify_pairs(&a.suffix[a.suffix.len() - q..], &b.suffix[b.suffix.len() - q..])?;
        let inner = |t: &Term| Term {
            prefix: t.prefix[p..].to_vec(),
            rest: t.rest,
            suffix: t.suffix[..t.suffix.len() - q].to_vec(),
            why: t.why,
        };
        let (left, right) = (inner(a), inner(b));
        match (left.min_rank(), right.min_rank()) {
            (0, 0) if x == y => Ok(()),
            (0, 0) => {
                let weight = |s: Seq| self.seqs[s.0 as usize].members;
                if (weight(x), y) < (weight(y), x) { self.bind_seq(x, right) } else { self.bind_seq(y, left) }
            }
            // A run that contains itself has no finite length.
            (n, m) if x == y && n != m => Err(Box::new(Clash::Ranks(a.clone(), b.clone()))),
            (0, _) => self.bind_seq(x, right),
            (_, 0) => self.bind_seq(y, left),
            // One side has both ends only if the other side has none, which the cases above handle.
            _ if left.suffix.is_empty() => self.overlap(left, right),
            _ => self.overlap(right, left),
        }
    }
    /// `P x = y Q`: the overlap of `P` and `Q` depends on the rank, so the equation has to wait. Of two such equations with one
    /// equal side, the other sides are equal too.
    fn overlap(&mut self, left: Term, right: Term) -> Step {
        let mut twin = None;
        for &id in &self.overlaps {
            let Constraint::Terms(l, r) = &*self.constraints[id as usize].what else { continue };
            if self.constraints[id as usize].done {
                continue;
            }
            let (l, r) = (self.resolve_term(l), self.resolve_term(r));
            match (l.same(&left), r.same(&right)) {
                (true, true) => return Ok(()),
                (true, false) => twin = Some((r, right.clone())),
                (false, true) => twin = Some((l, left.clone())),
                (false, false) => {}
            }
        }
        self.add_overlap(left, right);
        match twin {
            Some((a, b)) => self.unify_term(&a, &b),
            None => Ok(()),
        }
    }
}

/// Whether an expression is never 0: it is a sum of a constant and sizes with the same sign.
fn cannot_vanish(difference: &Dim) -> bool {
    let (terms, constant) = difference.parts();
    let sizes = |factors: &[DimFactor]| factors.iter().all(|f| matches!(f, DimFactor::Symbol(_)));
    constant != 0 && terms.iter().all(|(factors, c)| sizes(factors) && (*c > 0) == (constant > 0))
}

/// Divides by the symbols that all products have in common, assuming that they are not 0.
fn without_common_factor(mut difference: Dim) -> Dim {
    loop {
        let (terms, constant) = difference.parts();
        let [(first, _), others @ ..] = terms else { return difference };
        if constant != 0 || others.is_empty() {
            return difference;
        }
        let common = first.iter().find_map(|factor| match factor {
            DimFactor::Symbol(s) if others.iter().all(|(factors, _)| factors.contains(factor)) => {
                Some(s.clone())
            }
            _ => None,
        });
        match common.and_then(|s| difference.exact_div(&Dim::of_symbol(s))) {
            Some(smaller) => difference = smaller,
            None => return difference,
        }
    }
}

fn occurrences(dim: &Dim, symbol: &Symbol) -> usize {
    let mut count = 0;
    dim.each_symbol(&mut |s| count += usize::from(s == symbol));
    count
}

fn gcd(a: i64, b: i64) -> i64 {
    let (mut a, mut b) = (a.unsigned_abs(), b.unsigned_abs());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    i64::try_from(a).unwrap_or(1)
}
