//! Index expressions: sums of multiples of loop variables, with floor division, remainder and values read from tensors.
//! They have a normal form, so that equal expressions are equal values.

use std::fmt;
use std::ops::{Add, Mul, Sub};

use super::{Expr, TensorRef};

/// A loop variable, which counts from 0 to `size - 1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Var {
    /// Its number, unique in the expressions of a program.
    pub id: u32,
    /// The trip count.
    pub size: i64,
}

/// A term of an index expression.
#[derive(Clone, Debug, PartialEq)]
pub enum IndexTerm<T = usize> {
    /// A loop variable.
    Var(Var),
    /// The floor of a quotient by a positive number.
    Div(Box<Index<T>>, i64),
    /// The remainder of that division, never negative.
    Mod(Box<Index<T>>, i64),
    /// A number read from a tensor of integers, checked at run time to lie in `0..size`; with `wraps`, numbers from `-size` on
    /// count from the end.
    Value {
        /// The number.
        value: Box<Expr<T>>,
        /// Size of the axis that it indexes.
        size: i64,
        /// Whether negative numbers count from the end.
        wraps: bool,
    },
}

/// An index on an axis: `constant + Σ factor · term`.
#[derive(Clone, Debug, PartialEq)]
pub struct Index<T = usize> {
    /// The terms with their factors, which are not 0; variables first, by number.
    pub terms: Vec<(IndexTerm<T>, i64)>,
    /// The constant.
    pub constant: i64,
}

impl<T> Default for Index<T> {
    fn default() -> Self {
        Self { terms: Vec::new(), constant: 0 }
    }
}

impl<T: TensorRef> Index<T> {
    /// A number.
    pub fn number(n: i64) -> Self {
        Self { terms: Vec::new(), constant: n }
    }
    /// A loop variable.
    pub fn var(var: Var) -> Self {
        // A variable with a single value is that value.
        if var.size == 1 { Self::number(0) } else { Self::atom(IndexTerm::Var(var)) }
    }
    /// A checked number that is read from a tensor; see [`IndexTerm::Value`].
    pub fn value(value: Expr<T>, size: i64, wraps: bool) -> Self {
        Self::atom(IndexTerm::Value { value: Box::new(value), size, wraps })
    }
    fn atom(atom: IndexTerm<T>) -> Self {
        Self { terms: vec![(atom, 1)], constant: 0 }
    }
    /// The number, if it is one.
    pub fn known(&self) -> Option<i64> {
        self.terms.is_empty().then_some(self.constant)
    }
    /// Its smallest and largest possible value.
    pub fn range(&self) -> (i64, i64) {
        self.terms.iter().fold((self.constant, self.constant), |(low, high), (atom, factor)| {
            let (a, b) = atom.range();
            let (a, b) = (a.saturating_mul(*factor), b.saturating_mul(*factor));
            (low.saturating_add(a.min(b)), high.saturating_add(a.max(b)))
        })
    }
    /// The floor of the quotient by a positive number.
    ///
    /// # Panics
    /// If `by` is not positive.
    #[must_use]
    pub fn floor_div(&self, by: i64) -> Self {
        assert!(by > 0, "division of an index by {by}");
        let (whole, rest) = self.split(by);
        let (low, high) = rest.range();
        if low.div_euclid(by) == high.div_euclid(by) {
            return whole + Self::number(low.div_euclid(by));
        }
        match rest.terms.as_slice() {
            [(IndexTerm::Div(inner, first), 1)] if rest.constant == 0 => whole + inner.floor_div(first * by),
            _ => match rest.split_at_unit(by) {
                Some((unit, high, _)) => whole + high.floor_div(by / unit),
                None => whole + Self::atom(IndexTerm::Div(Box::new(rest), by)),
            },
        }
    }
    /// The remainder of the division by a positive number.
    ///
    /// # Panics
    /// If `by` is not positive.
    #[must_use]
    pub fn modulo(&self, by: i64) -> Self {
        assert!(by > 0, "remainder of an index by {by}");
        let (_, rest) = self.split(by);
        let (low, high) = rest.range();
        if low.div_euclid(by) == high.div_euclid(by) {
            return rest - Self::number(low.div_euclid(by) * by);
        }
        match rest.terms.as_slice() {
            [(IndexTerm::Mod(inner, first), 1)] if rest.constant == 0 && first % by == 0 => inner.modulo(by),
            _ => match rest.split_at_unit(by) {
                Some((unit, high, low)) => high.modulo(by / unit) * unit + low,
                None => Self::atom(IndexTerm::Mod(Box::new(rest), by)),
            },
        }
    }
    /// `(unit, high, low)` with `unit · high + low` this index, `low` at least 0 and below `unit`, which divides `by`.
    fn split_at_unit(&self, by: i64) -> Option<(i64, Self, Self)> {
        let mut units: Vec<i64> = self.terms.iter().map(|(_, factor)| common_divisor(*factor, by)).collect();
        units.sort_unstable();
        units.into_iter().rev().filter(|unit| *unit > 1).find_map(|unit| {
            let (high, low) = self.split(unit);
            let (least, most) = low.range();
            (least >= 0 && most < unit).then_some((unit, high, low))
        })
    }
    /// Splits into `by · first + second`, with as much as possible in the first.
    fn split(&self, by: i64) -> (Self, Self) {
        let (whole, rest): (Vec<_>, Vec<_>) = self.terms.iter().cloned().partition(|(_, f)| f % by == 0);
        let whole = whole.into_iter().map(|(atom, f)| (atom, f / by)).collect();
        let quotient = self.constant.div_euclid(by);
        (
            Self { terms: whole, constant: quotient },
            Self { terms: rest, constant: self.constant - quotient * by },
        )
    }
    /// Replaces every variable by `f` of it.
    #[must_use]
    pub fn substitute(&self, f: &dyn Fn(Var) -> Self) -> Self {
        self.terms.iter().fold(Self::number(self.constant), |sum, (atom, factor)| {
            let new = match atom {
                IndexTerm::Var(var) => f(*var),
                IndexTerm::Div(inner, by) => inner.substitute(f).floor_div(*by),
                IndexTerm::Mod(inner, by) => inner.substitute(f).modulo(*by),
                IndexTerm::Value { value, size, wraps } => {
                    Self::value(value.map_indices(&|at| at.substitute(f)), *size, *wraps)
                }
            };
            sum + new * *factor
        })
    }
    /// Replaces the references to tensors that values are read from.
    #[must_use]
    pub fn with_tensors<U: TensorRef>(&self, f: &dyn Fn(T) -> U) -> Index<U> {
        let atom = |atom: &IndexTerm<T>| match atom {
            IndexTerm::Var(var) => IndexTerm::Var(*var),
            IndexTerm::Div(inner, by) => IndexTerm::Div(Box::new(inner.with_tensors(f)), *by),
            IndexTerm::Mod(inner, by) => IndexTerm::Mod(Box::new(inner.with_tensors(f)), *by),
            IndexTerm::Value { value, size, wraps } => {
                IndexTerm::Value { value: Box::new(value.with_tensors(f)), size: *size, wraps: *wraps }
            }
        };
        Index { terms: self.terms.iter().map(|(a, n)| (atom(a), *n)).collect(), constant: self.constant }
    }
    /// Calls `f` with every variable in it, including those inside of values that are read.
    pub fn each_var(&self, f: &mut dyn FnMut(Var)) {
        for (atom, _) in &self.terms {
            match atom {
                IndexTerm::Var(var) => f(*var),
                IndexTerm::Div(inner, _) | IndexTerm::Mod(inner, _) => inner.each_var(f),
                IndexTerm::Value { value, .. } => value.each_free_var(f),
            }
        }
    }
    /// Whether it contains a value that is read from a tensor.
    pub fn reads(&self) -> bool {
        self.terms.iter().any(|(atom, _)| match atom {
            IndexTerm::Var(_) => false,
            IndexTerm::Div(inner, _) | IndexTerm::Mod(inner, _) => inner.reads(),
            IndexTerm::Value { .. } => true,
        })
    }
    /// The factor of a variable; `None` if the variable also occurs inside of a division or a value that is read.
    pub fn factor(&self, var: Var) -> Option<i64> {
        let mut factor = 0;
        for (atom, f) in &self.terms {
            match atom {
                IndexTerm::Var(v) if *v == var => factor += f,
                IndexTerm::Var(_) => {}
                other => {
                    let mut is_inside = false;
                    Self::atom(other.clone()).each_var(&mut |v| is_inside |= v == var);
                    if is_inside {
                        return None;
                    }
                }
            }
        }
        Some(factor)
    }
    fn push(&mut self, atom: IndexTerm<T>, factor: i64) {
        if let Some(i) = self.terms.iter().position(|(a, _)| *a == atom) {
            self.terms[i].1 += factor;
            if self.terms[i].1 == 0 {
                self.terms.remove(i);
            }
        } else {
            let at = match &atom {
                IndexTerm::Var(v) => self
                    .terms
                    .iter()
                    .position(|(a, _)| !matches!(a, IndexTerm::Var(w) if w.id < v.id))
                    .unwrap_or(self.terms.len()),
                _ => self.terms.len(),
            };
            self.terms.insert(at, (atom, factor));
        }
    }
    /// Simplifies `by · (x / by) + x % by` to `x`.
    fn merge_division(mut self) -> Self {
        for i in 0..self.terms.len() {
            let (IndexTerm::Mod(inner, by), factor) = &self.terms[i] else { continue };
            let quotient = inner.floor_div(*by);
            let [(atom, 1)] = quotient.terms.as_slice() else { continue };
            if quotient.constant != 0 {
                continue;
            }
            let Some(j) = self.terms.iter().position(|(a, f)| a == atom && *f == by * factor) else {
                continue;
            };
            let (inner, factor) = ((**inner).clone(), *factor);
            self.terms.remove(i.max(j));
            self.terms.remove(i.min(j));
            return self + inner * factor;
        }
        self
    }
}

fn common_divisor(a: i64, b: i64) -> i64 {
    let (mut a, mut b) = (a.abs(), b.abs());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

impl<T: TensorRef> IndexTerm<T> {
    fn range(&self) -> (i64, i64) {
        match self {
            Self::Var(var) => (0, (var.size - 1).max(0)),
            Self::Div(inner, by) => {
                let (low, high) = inner.range();
                (low.div_euclid(*by), high.div_euclid(*by))
            }
            Self::Mod(_, by) => (0, by - 1),
            Self::Value { size, .. } => (0, (size - 1).max(0)),
        }
    }
}

impl<T: TensorRef> From<i64> for Index<T> {
    fn from(n: i64) -> Self {
        Self::number(n)
    }
}

impl<T: TensorRef> Add for Index<T> {
    type Output = Self;
    fn add(mut self, other: Self) -> Self {
        self.constant += other.constant;
        for (atom, factor) in other.terms {
            self.push(atom, factor);
        }
        self.merge_division()
    }
}

impl<T: TensorRef> Sub for Index<T> {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        self + other * -1
    }
}

impl<T: TensorRef> Mul<i64> for Index<T> {
    type Output = Self;
    fn mul(mut self, factor: i64) -> Self {
        if factor == 0 {
            return Self::number(0);
        }
        self.constant *= factor;
        for term in &mut self.terms {
            term.1 *= factor;
        }
        self
    }
}

impl<T: TensorRef> fmt::Display for IndexTerm<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Var(var) => write!(f, "i{}", var.id),
            Self::Div(inner, by) => write!(f, "({inner}) / {by}"),
            Self::Mod(inner, by) => write!(f, "({inner}) % {by}"),
            Self::Value { value, size, .. } => write!(f, "[{value} < {size}]"),
        }
    }
}

impl<T: TensorRef> fmt::Display for Index<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (atom, factor)) in self.terms.iter().enumerate() {
            f.write_str(if i > 0 { " + " } else { "" })?;
            match (factor, atom) {
                (1, IndexTerm::Var(_) | IndexTerm::Value { .. }) => write!(f, "{atom}")?,
                (1, _) => write!(f, "({atom})")?,
                (_, IndexTerm::Var(_) | IndexTerm::Value { .. }) => write!(f, "{factor}*{atom}")?,
                _ => write!(f, "{factor}*({atom})")?,
            }
        }
        match (self.terms.is_empty(), self.constant) {
            (true, n) => write!(f, "{n}"),
            (false, 0) => Ok(()),
            (false, n) if n < 0 => write!(f, " - {}", n.unsigned_abs()),
            (false, n) => write!(f, " + {n}"),
        }
    }
}

/// The row-major offset of coordinates in a tensor of these sizes.
pub fn flat<T: TensorRef>(at: &[Index<T>], sizes: &[i64]) -> Index<T> {
    let mut sum = Index::default();
    for (index, size) in at.iter().zip(sizes) {
        sum = sum * *size + index.clone();
    }
    sum
}

/// The coordinates of a row-major offset in a tensor of these sizes.
pub fn unflat<T: TensorRef>(position: &Index<T>, sizes: &[i64]) -> Vec<Index<T>> {
    let mut rest: i64 = 1;
    let mut at: Vec<Index<T>> = sizes
        .iter()
        .rev()
        .map(|&size| {
            let index = position.floor_div(rest.max(1)).modulo(size.max(1));
            rest *= size;
            index
        })
        .collect();
    at.reverse();
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vars() -> [Index; 2] {
        [Var { id: 0, size: 6 }, Var { id: 1, size: 4 }].map(Index::var)
    }

    #[test]
    fn reshapes_cancel() {
        let [i, j] = vars();
        let position = flat(&[i.clone(), j.clone()], &[6, 4]);
        assert_eq!(unflat(&position, &[6, 4]), [i.clone(), j.clone()]);
        // Another shape and back.
        let other = unflat(&position, &[3, 8]);
        assert_eq!(flat(&other, &[3, 8]), position, "{}", flat(&other, &[3, 8]));
        assert_eq!(unflat(&flat(&other, &[3, 8]), &[6, 4]), [i, j]);
    }

    #[test]
    fn splits_cancel() {
        let [i, j] = vars();
        let place = i.clone() * 4 + j.clone();
        assert_eq!(place.floor_div(12), i.floor_div(3));
        assert_eq!(place.modulo(12), i.modulo(3) * 4 + j);
    }

    #[test]
    fn division_agrees_with_numbers() {
        let [i, j] = vars();
        for (factor, add, by) in
            [(1, 0, 3), (2, 1, 4), (-3, 2, 5), (8, -7, 4), (6, 5, 3), (8, 0, 24), (16, 9, 48), (-8, 3, 16)]
        {
            let x = i.clone() * factor + j.clone() * 2 + Index::number(add);
            for a in 0..6 {
                for b in 0..4 {
                    let at = |v: Var| Index::number(if v.id == 0 { a } else { b });
                    let number = a * factor + b * 2 + add;
                    assert_eq!(x.floor_div(by).substitute(&at).known(), Some(number.div_euclid(by)));
                    assert_eq!(x.modulo(by).substitute(&at).known(), Some(number.rem_euclid(by)));
                }
            }
        }
    }
}
