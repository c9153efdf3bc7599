//! Shapes of tensors: a list of dimensions, and the limits that keep sizes representable.

use std::fmt;
use std::ops::Deref;

use smallvec::SmallVec;

use crate::dim::Dim;
use crate::error::{Code, Error, Result};

/// Largest rank that any op accepts.
pub const MAX_RANK: usize = 64;

/// Largest number of elements of a tensor; byte offsets then fit into `isize`.
pub const MAX_ELEMENTS: i64 = 1 << 58;

/// Shape of a tensor, outermost dimension first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Shape(pub SmallVec<[Dim; 4]>);

impl Shape {
    /// Shape of a 0-d tensor.
    pub fn scalar() -> Self {
        Self::default()
    }
    /// From dimensions, numbers or symbol names.
    pub fn of<D: Into<Dim>>(dims: impl IntoIterator<Item = D>) -> Self {
        Self(dims.into_iter().map(Into::into).collect())
    }
    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.0.len()
    }
    /// Product of all dimensions.
    pub fn numel(&self) -> Dim {
        self.iter().fold(Dim::ONE, |n, d| &n * d)
    }
    /// The sizes, if all of them are known.
    pub fn known(&self) -> Option<Vec<usize>> {
        self.iter().map(|d| d.known().and_then(|n| usize::try_from(n).ok())).collect()
    }
    /// Checks that no size is negative and that the tensor is not too large to address.
    pub fn check(&self) -> Result<()> {
        if self.rank() > MAX_RANK {
            return Err(Error::new(Code::BadSize, format!("a tensor has {} dimensions", self.rank()))
                .help(format!("the maximum is {MAX_RANK}")));
        }
        let mut elements: i64 = 1;
        for n in self.iter().filter_map(Dim::known) {
            if n < 0 {
                let error = Error::new(Code::BadSize, format!("shape {self} has a negative size"));
                return Err(error.help("use sizes of 0 or more, or a name for a size that is not known yet"));
            }
            elements = elements.saturating_mul(n.max(1));
        }
        if elements > MAX_ELEMENTS {
            return Err(Error::new(Code::BadSize, format!("a tensor of shape {self} is too large"))
                .help("check the sizes that lead here; no machine can hold this tensor"));
        }
        Ok(())
    }
    /// An axis counted from either end, as an index from the front.
    pub fn axis(&self, axis: i64) -> Result<usize> {
        normalize_axis(axis, self.rank())
    }
}

/// An axis counted from either end of `rank` dimensions, as an index from the front.
pub fn normalize_axis(axis: i64, rank: usize) -> Result<usize> {
    let n = rank as i64;
    if axis < -n || axis >= n {
        return Err(Error::new(
            Code::BadArgument,
            format!("axis {axis} does not exist in {rank} dimensions"),
        )
        .help(if n == 0 {
            "a 0-d tensor has no axis".into()
        } else {
            format!("use {} to {}", -n, n - 1)
        }));
    }
    Ok(if axis < 0 { axis + n } else { axis } as usize)
}

/// The common shape of `shapes` under broadcasting: aligned at the right, equal or 1.
pub fn broadcast(shapes: &[&Shape]) -> Result<Shape> {
    let rank = shapes.iter().map(|s| s.rank()).max().unwrap_or(0);
    let mut out = Shape(SmallVec::from_elem(Dim::ONE, rank));
    for shape in shapes {
        for (i, dim) in shape.iter().enumerate() {
            let at = rank - shape.rank() + i;
            let old = &out.0[at];
            if old == dim || dim.is(1) {
                continue;
            }
            if !old.is(1) {
                let from_end = rank - at;
                return Err(mismatch(shapes, from_end, old, dim));
            }
            out.0[at] = dim.clone();
        }
    }
    Ok(out)
}

#[cold]
fn mismatch(shapes: &[&Shape], from_end: usize, a: &Dim, b: &Dim) -> Error {
    let list = shapes.iter().map(|s| s.to_string()).collect::<Vec<_>>().join(" and ");
    let e = Error::new(Code::ShapeMismatch, format!("shapes {list} do not broadcast"));
    let e =
        e.note(format!("sizes {a} and {b} meet at axis -{from_end}; they must be equal, or one of them 1"));
    if a.known().is_none() || b.known().is_none() {
        e.help("give both the same symbol or a number if they are equal, or insert an axis of size 1")
    } else {
        e.help("check the two sources, or insert an axis of size 1 with expand_dims")
    }
}

impl Deref for Shape {
    type Target = [Dim];
    fn deref(&self) -> &[Dim] {
        &self.0
    }
}

impl<D: Into<Dim>> FromIterator<D> for Shape {
    fn from_iter<I: IntoIterator<Item = D>>(dims: I) -> Self {
        Self::of(dims)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, dim) in self.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{dim}")?;
        }
        f.write_str("]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broadcasting_aligns_right() {
        let a = Shape::of([2, 1, 4]);
        let b = Shape::of([3, 1]);
        assert_eq!(broadcast(&[&a, &b]).unwrap(), Shape::of([2, 3, 4]));
        assert!(broadcast(&[&Shape::of([2]), &Shape::of([3])]).is_err());
        assert_eq!(broadcast(&[&Shape::of([0]), &Shape::of([1])]).unwrap(), Shape::of([0]));
    }

    #[test]
    fn absurd_sizes_are_refused() {
        assert!(Shape::of([i64::MAX, 2]).check().is_err());
        assert!(Shape::of([-1]).check().is_err());
        assert!(Shape::of([1_i64 << 40, 1 << 40, 0]).check().is_err());
        assert!(Shape::of([0, 5]).check().is_ok());
    }
}
