//! Partially known shapes.

use std::fmt;

use mithril_ir::{Dim, Shape};

use crate::why::WhyId;

/// An unknown run of dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Seq(pub(crate) u32);

/// A partially known shape: leading sizes, an unknown run, trailing sizes.
///
/// Without a run the rank is known and all sizes are in `prefix`; they may still be variables.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ShapeTerm {
    /// Leading sizes.
    pub prefix: Vec<Dim>,
    /// The unknown run between them.
    pub rest: Option<Seq>,
    /// Trailing sizes; empty without a run.
    pub suffix: Vec<Dim>,
}

impl ShapeTerm {
    /// A shape of known rank.
    pub fn known(shape: Shape) -> Self {
        Self { prefix: shape.0.into_vec(), ..Self::default() }
    }
    /// Number of dimensions, if known.
    pub fn rank(&self) -> Option<usize> {
        self.rest.is_none().then(|| self.prefix.len() + self.suffix.len())
    }
    /// The shape, if the rank is known; sizes may still be variables.
    pub fn to_shape(&self) -> Option<Shape> {
        self.rank()?;
        Some(self.prefix.iter().chain(&self.suffix).cloned().collect())
    }
    /// Whether every size is known, as a number or an expression of named symbols.
    pub fn is_decided(&self) -> bool {
        self.rest.is_none() && !self.prefix.iter().chain(&self.suffix).any(Dim::has_var)
    }
}

impl From<Shape> for ShapeTerm {
    fn from(shape: Shape) -> Self {
        Self::known(shape)
    }
}

impl fmt::Display for ShapeTerm {
    /// `[batch, ..., 64]`; `?` stands for an unknown size.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rest = self.rest.map(|_| "...".to_owned());
        let texts = self.prefix.iter().map(plain).chain(rest).chain(self.suffix.iter().map(plain));
        write!(f, "[{}]", texts.collect::<Vec<_>>().join(", "))
    }
}

/// A size and the reason for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub dim: Dim,
    pub why: WhyId,
}

/// A [`ShapeTerm`] with reasons.
#[derive(Clone, Debug)]
pub(crate) struct Term {
    pub prefix: Vec<Size>,
    pub rest: Option<Seq>,
    pub suffix: Vec<Size>,
    /// The reason for the rank.
    pub why: WhyId,
}

impl Term {
    pub fn run(seq: Seq) -> Self {
        Self { prefix: Vec::new(), rest: Some(seq), suffix: Vec::new(), why: WhyId::NONE }
    }
    pub fn known(dims: Vec<Size>, why: WhyId) -> Self {
        Self { prefix: dims, rest: None, suffix: Vec::new(), why }
    }
    /// From a shape, with the same reason for all of its parts.
    pub fn from_shape(shape: ShapeTerm, why: WhyId) -> Self {
        let size = |dim: Dim| Size { dim, why };
        let mut term = Self {
            prefix: shape.prefix.into_iter().map(size).collect(),
            rest: shape.rest,
            suffix: shape.suffix.into_iter().map(size).collect(),
            why,
        };
        if term.rest.is_none() {
            term.prefix.append(&mut term.suffix);
        }
        term
    }
    pub fn to_shape(&self) -> ShapeTerm {
        let dims = |sizes: &[Size]| sizes.iter().map(|s| s.dim.clone()).collect();
        ShapeTerm { prefix: dims(&self.prefix), rest: self.rest, suffix: dims(&self.suffix) }
    }
    pub fn min_rank(&self) -> usize {
        self.prefix.len() + self.suffix.len()
    }
    pub fn rank(&self) -> Option<usize> {
        self.rest.is_none().then(|| self.min_rank())
    }
    pub fn sizes(&self) -> impl Iterator<Item = &Size> {
        self.prefix.iter().chain(&self.suffix)
    }
    /// Sizes whose distance from the right end is known: all of them, or those after the run.
    pub fn right(&self) -> &[Size] {
        if self.rest.is_none() { &self.prefix } else { &self.suffix }
    }
    /// The size at distance `j` from the right end, if known.
    pub fn at_right(&self, j: usize) -> Option<&Size> {
        let right = self.right();
        right.len().checked_sub(j + 1).and_then(|i| right.get(i))
    }
    /// Equality, ignoring reasons.
    pub fn same(&self, other: &Self) -> bool {
        let equal =
            |a: &[Size], b: &[Size]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.dim == b.dim);
        self.rest == other.rest && equal(&self.prefix, &other.prefix) && equal(&self.suffix, &other.suffix)
    }
}

/// A dimension without the numbers of variables, which are meaningless to a user.
pub(crate) fn plain(dim: &Dim) -> String {
    let text = dim.to_string();
    let mut out = String::with_capacity(text.len());
    let mut in_variable = false;
    for c in text.chars() {
        in_variable = c == '?' || (in_variable && c.is_ascii_digit());
        if c == '?' || !in_variable {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_unknown_parts() {
        let double = &Dim::var(12) * &Dim::Const(2);
        let term = ShapeTerm {
            prefix: vec![Dim::symbol("batch"), Dim::var(3)],
            rest: Some(Seq(1)),
            suffix: vec![double, 64.into()],
        };
        assert_eq!(term.to_string(), "[batch, ?, ..., 2*?, 64]");
        assert_eq!(term.rank(), None);
        assert_eq!(ShapeTerm::known(Shape::of([2, 3])).to_shape(), Some(Shape::of([2, 3])));
    }
}
