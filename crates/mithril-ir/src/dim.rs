//! Symbolic dimensions: integers, symbols, and expressions of them.
//!
//! A [`Dim`] has a normal form (a sorted sum of products of symbols and floor divisions), so that equal expressions
//! compare, hash and print the same, however they were built: `2*(n+1) == 2*n+2`. Arithmetic saturates at the ends of
//! `i64`; checking a shape reports sizes that large ([`crate::shape::Shape::check`]), so that saturation never becomes a wrong
//! result.

use std::fmt;
use std::ops::{Add, Mul, Neg, Sub};
use std::sync::Arc;

/// A symbol in a dimension.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Symbol {
    /// Named by the user: `batch`.
    Named(Arc<str>),
    /// A variable of the solver, printed as `?3`; compiled graphs contain none.
    Var(u32),
}

impl fmt::Display for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(name) => f.write_str(name),
            Self::Var(n) => write!(f, "?{n}"),
        }
    }
}

/// A dimension: a number or an expression over symbols.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Dim {
    /// A known number.
    Const(i64),
    /// An expression with at least one symbol.
    Expr(Arc<DimExpr>),
}

/// Normal form of an expression: `constant + Σ coefficient · Π factors`, terms sorted by their factors.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DimExpr {
    terms: Vec<(Vec<DimFactor>, i64)>,
    constant: i64,
}

/// A factor of a product.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DimFactor {
    /// A symbol.
    Symbol(Symbol),
    /// A floor division that does not simplify.
    Div(Dim, Dim),
}

/// Steps after which a division by a sum counts as one with a remainder.
const MAX_DIVISION_STEPS: usize = 32;

impl DimFactor {
    /// A number that it is never below, if its symbols stand for 1 or more and it is not negative.
    fn least(&self) -> i64 {
        match self {
            Self::Symbol(_) => 1,
            Self::Div(of, Dim::Const(by @ 1..)) => {
                let (terms, constant) = of.parts();
                let least = |(factors, coefficient): &(Vec<Self>, i64)| {
                    (*coefficient > 0).then(|| coefficient.saturating_mul(Self::least_product(factors)))
                };
                let sum = terms.iter().try_fold(constant, |sum, term| Some(sum.saturating_add(least(term)?)));
                sum.map_or(0, |sum| sum.div_euclid(*by).max(0))
            }
            Self::Div(..) => 0,
        }
    }
    fn least_product(factors: &[Self]) -> i64 {
        factors.iter().fold(1, |product: i64, factor| product.saturating_mul(factor.least()))
    }
}

impl Dim {
    /// The dimension 1.
    pub const ONE: Self = Self::Const(1);

    /// A named symbol.
    pub fn symbol(name: &str) -> Self {
        Self::atom(DimFactor::Symbol(Symbol::Named(name.into())))
    }
    /// A variable of the solver.
    pub fn var(n: u32) -> Self {
        Self::atom(DimFactor::Symbol(Symbol::Var(n)))
    }
    /// Any symbol.
    pub fn of_symbol(symbol: Symbol) -> Self {
        Self::atom(DimFactor::Symbol(symbol))
    }
    fn atom(atom: DimFactor) -> Self {
        Self::Expr(Arc::new(DimExpr { terms: vec![(vec![atom], 1)], constant: 0 }))
    }
    /// The number, if it is one.
    pub fn known(&self) -> Option<i64> {
        match self {
            Self::Const(n) => Some(*n),
            Self::Expr(_) => None,
        }
    }
    /// Whether this is the number `n`.
    pub fn is(&self, n: i64) -> bool {
        self.known() == Some(n)
    }
    /// The symbol, if the dimension is a single symbol.
    pub fn as_symbol(&self) -> Option<&Symbol> {
        match self {
            Self::Expr(e) if e.constant == 0 && e.terms.len() == 1 && e.terms[0].1 == 1 => {
                match e.terms[0].0.as_slice() {
                    [DimFactor::Symbol(s)] => Some(s),
                    _ => None,
                }
            }
            _ => None,
        }
    }
    /// Terms and constant of the normal form.
    pub fn parts(&self) -> (&[(Vec<DimFactor>, i64)], i64) {
        match self {
            Self::Const(n) => (&[], *n),
            Self::Expr(e) => (&e.terms, e.constant),
        }
    }
    /// Whether it is 0 or less for all sizes of 1 or more that its symbols stand for, as far as its terms tell.
    ///
    /// Quotients count as 0 or more, unless what is divided is never positive: `-((-n)//2)` is positive.
    pub fn is_never_positive(&self) -> bool {
        let (terms, constant) = self.parts();
        let largest = |(factors, coefficient): &(Vec<DimFactor>, i64)| {
            let mut sign = coefficient.signum();
            for factor in factors {
                if let DimFactor::Div(of, _) = factor
                    && of.is_never_positive()
                {
                    sign = -sign;
                }
            }
            let is_plain = coefficient.signum() == sign;
            let most =
                if is_plain { coefficient.saturating_mul(DimFactor::least_product(factors)) } else { 0 };
            (sign < 0).then_some(most)
        };
        let sum = terms.iter().try_fold(constant, |sum, term| Some(sum.saturating_add(largest(term)?)));
        sum.is_some_and(|sum| sum <= 0)
    }
    fn from_parts(mut terms: Vec<(Vec<DimFactor>, i64)>, constant: i64) -> Self {
        terms.sort_by(|a, b| a.0.cmp(&b.0));
        let mut merged: Vec<(Vec<DimFactor>, i64)> = Vec::with_capacity(terms.len());
        for (factors, coefficient) in terms {
            match merged.last_mut() {
                Some(last) if last.0 == factors => last.1 = last.1.saturating_add(coefficient),
                _ => merged.push((factors, coefficient)),
            }
        }
        merged.retain(|t| t.1 != 0);
        if merged.is_empty() {
            Self::Const(constant)
        } else {
            Self::Expr(Arc::new(DimExpr { terms: merged, constant }))
        }
    }

    /// Floor division. A divisor of 0 gives 0; callers report it before, with the reason.
    #[must_use]
    pub fn floor_div(&self, by: &Self) -> Self {
        if let Self::Const(b) = by {
            return self.floor_div_const(*b);
        }
        if self == by {
            return Self::ONE;
        }
        if self.is(0) {
            return Self::Const(0);
        }
        self.exact_div(by).unwrap_or_else(|| Self::atom(DimFactor::Div(self.clone(), by.clone())))
    }
    fn floor_div_const(&self, b: i64) -> Self {
        if b == 0 {
            return Self::Const(0);
        }
        match self {
            Self::Const(a) => Self::Const(floor_div(*a, b)),
            Self::Expr(_) if b == 1 => self.clone(),
            Self::Expr(e) => {
                if let Some(flat) = e.floor_div_nested(b) {
                    return flat;
                }
                // (b·q + r) // b = q + r // b
                let (whole, rest): (Vec<_>, Vec<_>) =
                    e.terms.iter().cloned().partition(|(_, c)| c.wrapping_rem(b) == 0);
                let whole = whole.into_iter().map(|(f, c)| (f, c.saturating_div(b))).collect();
                let q = Self::from_parts(whole, floor_div(e.constant, b));
                if rest.is_empty() {
                    return q;
                }
                let rest = Self::from_parts(rest, e.constant - b.saturating_mul(floor_div(e.constant, b)));
                &q + &Self::atom(DimFactor::Div(rest, Self::Const(b)))
            }
        }
    }
    /// `self / by`, if there is no remainder whatever the sizes are.
    pub fn exact_div(&self, by: &Self) -> Option<Self> {
        let (terms, constant) = self.parts();
        let (by_terms, by_constant) = by.parts();
        if by_terms.is_empty() {
            let ok = by_constant != 0
                && constant.wrapping_rem(by_constant) == 0
                && terms.iter().all(|(_, c)| c.wrapping_rem(by_constant) == 0);
            return ok.then(|| self.floor_div_const(by_constant));
        }
        let [(factors, coefficient)] = by_terms else { return self.long_division(by) };
        if by_constant != 0 {
            return self.long_division(by);
        }
        if constant != 0 || terms.is_empty() {
            return None;
        }
        let mut sum = Self::Const(0);
        for (term, c) in terms {
            if c.wrapping_rem(*coefficient) != 0 {
                return None;
            }
            let mut left = term.clone();
            for f in factors {
                let at = left.iter().position(|x| x == f)?;
                left.remove(at);
            }
            let quotient = if left.is_empty() {
                Self::Const(c.saturating_div(*coefficient))
            } else {
                Self::from_parts(vec![(left, c.saturating_div(*coefficient))], 0)
            };
            sum = &sum + &quotient;
        }
        Some(sum)
    }
    /// Polynomial division by a sum: the leading terms divide, until nothing is left.
    fn long_division(&self, by: &Self) -> Option<Self> {
        let (mut rest, mut quotient) = (self.clone(), Self::Const(0));
        // Each step removes the leading term; sizes have few.
        for _ in 0..MAX_DIVISION_STEPS {
            if rest.is(0) {
                return Some(quotient);
            }
            let part = rest.leading().exact_div(&by.leading())?;
            rest = &rest - &(&part * by);
            quotient = &quotient + &part;
        }
        None
    }
    /// The term of the most factors, the last one in their order if several have as many.
    fn leading(&self) -> Self {
        let (terms, constant) = self.parts();
        match terms.iter().max_by(|a, b| (a.0.len(), &a.0).cmp(&(b.0.len(), &b.0))) {
            Some(term) => Self::from_parts(vec![term.clone()], 0),
            None => Self::Const(constant),
        }
    }
    /// Remainder of the floor division, with the sign of the divisor.
    #[must_use]
    pub fn remainder(&self, by: &Self) -> Self {
        self - &(&self.floor_div(by) * by)
    }
    /// Replaces symbols; those for which `with` returns `None` are kept.
    #[must_use]
    pub fn substitute(&self, with: &dyn Fn(&Symbol) -> Option<Dim>) -> Self {
        let Self::Expr(e) = self else { return self.clone() };
        let mut sum = Self::Const(e.constant);
        for (factors, coefficient) in &e.terms {
            let mut product = Self::Const(*coefficient);
            for factor in factors {
                let value = match factor {
                    DimFactor::Symbol(s) => with(s).unwrap_or_else(|| Self::atom(factor.clone())),
                    DimFactor::Div(a, b) => a.substitute(with).floor_div(&b.substitute(with)),
                };
                product = &product * &value;
            }
            sum = &sum + &product;
        }
        sum
    }
    /// Calls `f` for every symbol, including those in divisions.
    pub fn each_symbol(&self, f: &mut dyn FnMut(&Symbol)) {
        for (factors, _) in self.parts().0 {
            for factor in factors {
                match factor {
                    DimFactor::Symbol(s) => f(s),
                    DimFactor::Div(a, b) => {
                        a.each_symbol(f);
                        b.each_symbol(f);
                    }
                }
            }
        }
    }
    /// Whether a solver variable occurs.
    pub fn has_var(&self) -> bool {
        let mut has_var = false;
        self.each_symbol(&mut |s| has_var |= matches!(s, Symbol::Var(_)));
        has_var
    }
}

impl DimExpr {
    /// (x // a + c) // b = (x + a·c) // (a·b) for positive a and b: repeated halving stays one division.
    fn floor_div_nested(&self, b: i64) -> Option<Dim> {
        let [(factors, 1)] = self.terms.as_slice() else { return None };
        let [DimFactor::Div(x, Dim::Const(a))] = factors.as_slice() else { return None };
        let by = a.checked_mul(b).filter(|_| *a > 0 && b > 0)?;
        let shift = a.checked_mul(self.constant)?;
        Some((x + &Dim::Const(shift)).floor_div_const(by))
    }
}

fn floor_div(a: i64, b: i64) -> i64 {
    let q = a.saturating_div(b);
    if a.wrapping_rem(b) != 0 && (a < 0) != (b < 0) { q - 1 } else { q }
}

impl Add for &Dim {
    type Output = Dim;
    fn add(self, other: &Dim) -> Dim {
        let ((a, ca), (b, cb)) = (self.parts(), other.parts());
        if a.is_empty() && b.is_empty() {
            return Dim::Const(ca.saturating_add(cb));
        }
        Dim::from_parts(a.iter().chain(b).cloned().collect(), ca.saturating_add(cb))
    }
}

impl Neg for &Dim {
    type Output = Dim;
    fn neg(self) -> Dim {
        self * &Dim::Const(-1)
    }
}

impl Sub for &Dim {
    type Output = Dim;
    fn sub(self, other: &Dim) -> Dim {
        self + &-other
    }
}

impl Mul for &Dim {
    type Output = Dim;
    fn mul(self, other: &Dim) -> Dim {
        let ((a, ca), (b, cb)) = (self.parts(), other.parts());
        if a.is_empty() && b.is_empty() {
            return Dim::Const(ca.saturating_mul(cb));
        }
        let mut terms = Vec::new();
        for (fa, na) in a {
            for (fb, nb) in b {
                let mut factors = [fa.as_slice(), fb.as_slice()].concat();
                factors.sort();
                terms.push((factors, na.saturating_mul(*nb)));
            }
            terms.push((fa.clone(), na.saturating_mul(cb)));
        }
        terms.extend(b.iter().map(|(fb, nb)| (fb.clone(), nb.saturating_mul(ca))));
        Dim::from_parts(terms, ca.saturating_mul(cb))
    }
}

impl From<i64> for Dim {
    fn from(n: i64) -> Self {
        Self::Const(n)
    }
}
impl From<usize> for Dim {
    fn from(n: usize) -> Self {
        Self::Const(i64::try_from(n).unwrap_or(i64::MAX))
    }
}
impl From<i32> for Dim {
    fn from(n: i32) -> Self {
        Self::Const(n.into())
    }
}
impl From<&str> for Dim {
    fn from(name: &str) -> Self {
        Self::symbol(name)
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (terms, constant) = self.parts();
        if terms.is_empty() {
            return write!(f, "{constant}");
        }
        for (i, (factors, coefficient)) in terms.iter().enumerate() {
            match coefficient {
                -1 => f.write_str("-")?,
                1 if i == 0 => {}
                1 => f.write_str("+")?,
                c if *c < 0 || i == 0 => write!(f, "{c}*")?,
                c => write!(f, "+{c}*")?,
            }
            for (j, factor) in factors.iter().enumerate() {
                let star = if j > 0 { "*" } else { "" };
                match factor {
                    DimFactor::Symbol(s) => write!(f, "{star}{s}")?,
                    // A quotient in a product needs its own brackets: 2*(n//2).
                    DimFactor::Div(a, b) if factors.len() > 1 || *coefficient != 1 => {
                        write!(f, "{star}({}//{})", Bracketed(a), Bracketed(b))?;
                    }
                    DimFactor::Div(a, b) => write!(f, "{star}{}//{}", Bracketed(a), Bracketed(b))?,
                }
            }
        }
        match constant {
            0 => Ok(()),
            c => write!(f, "{c:+}"),
        }
    }
}

struct Bracketed<'a>(&'a Dim);

impl fmt::Display for Bracketed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            d if d.as_symbol().is_some() => write!(f, "{d}"),
            Dim::Const(n) if *n >= 0 => write!(f, "{n}"),
            d => write!(f, "({d})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_expressions_are_one() {
        let n = Dim::symbol("n");
        let two = Dim::Const(2);
        assert_eq!(&two * &(&n + &Dim::ONE), &(&two * &n) + &two);
        assert_eq!((&(&two * &n) + &Dim::Const(5)).floor_div(&two), &n + &two);
        assert_eq!((&n * &Dim::Const(64)).floor_div(&n), Dim::Const(64));
        assert_eq!(&n - &n, Dim::Const(0));
    }

    #[test]
    fn prints_as_written() {
        let n = Dim::symbol("n");
        let half = (&n + &Dim::ONE).floor_div(&Dim::Const(2));
        assert_eq!(half.to_string(), "(n+1)//2");
        assert_eq!((&half * &Dim::Const(2)).to_string(), "2*((n+1)//2)");
        assert_eq!((&(&n * &n) - &Dim::Const(3)).to_string(), "n*n-3");
    }

    #[test]
    fn sums_divide_products_with_them() {
        let (n, t, two) = (Dim::symbol("n"), Dim::symbol("t"), Dim::Const(2));
        let longer = &t + &two;
        for other in [n.clone(), &n * &Dim::Const(-3), &n - &t, &(&n * &t) + &Dim::ONE, longer.clone()] {
            let product = &other * &longer;
            assert_eq!(product.exact_div(&longer), Some(other.clone()), "{product}");
            assert_eq!(product.floor_div(&longer), other, "{product}");
            assert_eq!((&product + &Dim::ONE).exact_div(&longer), None);
        }
        assert_eq!(Dim::Const(5).exact_div(&longer), None);
        assert_eq!(t.exact_div(&longer), None);
    }

    #[test]
    fn signs_of_quotients_count() {
        let (n, two) = (Dim::symbol("n"), Dim::Const(2));
        let half = (-&n).floor_div(&two);
        for (dim, expected) in [
            (-&n, true),
            (half.clone(), true),
            (-&half, false),
            (-&n.floor_div(&two), true),
            (-&(&n - &Dim::ONE).floor_div(&two), true),
            (&Dim::ONE - &n, true),
            (-&(&Dim::ONE - &n).floor_div(&two), false),
            (&two - &n, false),
            (-&(&(-&n.floor_div(&two)).floor_div(&n) * &n), false),
            (Dim::Const(0), true),
            (Dim::ONE, false),
        ] {
            assert_eq!(dim.is_never_positive(), expected, "{dim}");
        }
    }

    #[test]
    fn nested_floor_division_is_one() {
        let n = Dim::symbol("n");
        let halve = |d: &Dim| (d + &Dim::ONE).floor_div(&Dim::Const(2));
        assert_eq!(halve(&halve(&n)).to_string(), "(n+3)//4");
        for (a, c, b) in [(2, 1, 2), (3, -2, 4), (2, 5, 3), (5, 0, 7)] {
            let nested = (&n.floor_div(&Dim::Const(a)) + &Dim::Const(c)).floor_div(&Dim::Const(b));
            for x in -20..60_i64 {
                let expected = (x.div_euclid(a) + c).div_euclid(b);
                assert_eq!(nested.substitute(&|_| Some(x.into())), Dim::Const(expected), "{nested} at {x}");
            }
        }
    }

    #[test]
    fn extreme_numbers_do_not_overflow() {
        let n = Dim::symbol("n");
        for k in [i64::MIN, i64::MIN + 1, i64::MAX, -1, 0, 2] {
            for m in [i64::MIN, -1, 0, 1, i64::MAX] {
                let e = &(&n * &Dim::Const(k)) + &Dim::Const(m);
                let _ = (e.floor_div(&Dim::Const(m)), Dim::Const(k).floor_div(&Dim::Const(m)));
                let _ = (e.exact_div(&Dim::Const(m)), e.exact_div(&(&n * &Dim::Const(m))), -&e);
            }
        }
    }

    #[test]
    fn floor_division_rounds_down() {
        for a in -7..8_i64 {
            for b in [-3, -2, -1, 1, 2, 3_i64] {
                assert_eq!(floor_div(a, b), (a as f64 / b as f64).floor() as i64, "{a}//{b}");
            }
        }
    }
}
