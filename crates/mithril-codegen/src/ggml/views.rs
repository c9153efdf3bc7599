//! Some of the elements of a tensor in some order: what movements make, without copying anything.

use super::plan::PlanValueId;

/// Elements of a value that lies in memory without gaps.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct View {
    /// The value.
    pub value: PlanValueId,
    /// Sizes, the last moves fastest.
    pub shape: Vec<i64>,
    /// Elements between neighbors along each dimension; 0 where one element is seen again and again.
    pub strides: Vec<i64>,
    /// The first element.
    pub offset: i64,
}

impl View {
    /// All elements of a value.
    pub fn whole(value: PlanValueId, shape: &[i64]) -> Self {
        Self { value, strides: natural(shape), shape: shape.to_vec(), offset: 0 }
    }
    /// How many elements are seen.
    pub fn elements(&self) -> i64 {
        self.shape.iter().product()
    }
    /// Whether the elements lie behind each other.
    pub fn is_contiguous(&self) -> bool {
        let natural = natural(&self.shape);
        (0..self.shape.len()).all(|i| self.shape[i] == 1 || self.strides[i] == natural[i])
    }
    /// With dimension `axes[i]` in place `i`.
    pub fn permuted(&self, axes: &[i64]) -> Option<Self> {
        let mut seen: Vec<i64> = axes.to_vec();
        seen.sort_unstable();
        if !seen.iter().copied().eq(0..self.shape.len() as i64) {
            return None;
        }
        let pick = |from: &[i64]| axes.iter().map(|&a| from[a as usize]).collect();
        Some(Self { shape: pick(&self.shape), strides: pick(&self.strides), ..self.clone() })
    }
    /// Repeated to a shape, as operands of an elementwise op are.
    pub fn broadcast(&self, shape: &[i64]) -> Option<Self> {
        let new = shape.len().checked_sub(self.shape.len())?;
        let mut strides = vec![0; new];
        for (i, &size) in self.shape.iter().enumerate() {
            match (size, shape[new + i]) {
                (a, b) if a == b => strides.push(self.strides[i]),
                (1, _) => strides.push(0),
                _ => return None,
            }
        }
        Some(Self { shape: shape.to_vec(), strides, ..self.clone() })
    }
    /// Part of an axis.
    pub fn sliced(&self, axis: usize, from: i64, to: i64) -> Option<Self> {
        let size = *self.shape.get(axis)?;
        if !(0 <= from && from < to && to <= size) {
            return None;
        }
        let mut out = self.clone();
        out.shape[axis] = to - from;
        out.offset += from * self.strides[axis];
        Some(out)
    }
    /// Without the repetitions: sizes of 1 where one element is seen again and again.
    pub fn once(&self) -> Self {
        let mut out = self.clone();
        for (size, stride) in out.shape.iter_mut().zip(&self.strides) {
            if *stride == 0 {
                *size = 1;
            }
        }
        out
    }
    /// With neighboring dimensions that lie behind each other in memory as one, and without those of one element.
    pub fn coalesced(&self) -> Self {
        let dims = self.shape.iter().zip(&self.strides).filter(|(n, _)| **n != 1);
        let mut groups: Vec<(i64, i64)> = Vec::new();
        for (&size, &stride) in dims {
            match groups.last_mut() {
                Some(last) if last.1 == size * stride => *last = (last.0 * size, stride),
                _ => groups.push((size, stride)),
            }
        }
        let (shape, strides) = groups.into_iter().unzip();
        Self { shape, strides, ..self.clone() }
    }
    /// The same elements in another shape, if that needs no copy.
    pub fn reshaped(&self, shape: &[i64]) -> Option<Self> {
        if shape.iter().product::<i64>() != self.elements() {
            return None;
        }
        let old = self.shape.iter().zip(&self.strides).filter(|(n, _)| **n != 1);
        let old: Vec<(i64, i64)> = old.map(|(&n, &s)| (n, s)).collect();
        let mut strides = vec![0; shape.len()];
        let (mut from, mut to) = (0, 0);
        while to < shape.len() {
            if shape[to] == 1 {
                to += 1;
                continue;
            }
            // As few dimensions of both as have one product.
            let (first, start) = (from, to);
            let (mut have, mut want) = (old[from].0, shape[to]);
            while have != want {
                if have < want {
                    from += 1;
                    have *= old[from].0;
                } else {
                    to += 1;
                    want *= shape[to];
                }
            }
            let group = &old[first..=from];
            if group.windows(2).any(|pair| pair[0].1 != pair[1].0 * pair[1].1) {
                return None;
            }
            let mut stride = old[from].1;
            for i in (start..=to).rev() {
                strides[i] = stride;
                stride *= shape[i];
            }
            (from, to) = (from + 1, to + 1);
        }
        // Dimensions of one element are as far apart as they would be without gaps.
        for i in (0..shape.len()).rev().filter(|&i| shape[i] == 1) {
            strides[i] = if i + 1 < shape.len() { strides[i + 1] * shape[i + 1] } else { 1 };
        }
        Some(Self { shape: shape.to_vec(), strides, ..self.clone() })
    }
}

/// Strides without gaps.
pub fn natural(shape: &[i64]) -> Vec<i64> {
    let mut strides = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i] * shape[i];
    }
    strides
}

/// The shape that shapes broadcast to.
pub fn common(shapes: &[&[i64]]) -> Option<Vec<i64>> {
    let rank = shapes.iter().map(|s| s.len()).max()?;
    let mut out = vec![1; rank];
    for shape in shapes {
        for (to, &size) in out[rank - shape.len()..].iter_mut().zip(*shape) {
            match (*to, size) {
                (a, b) if a == b || b == 1 => {}
                (1, b) => *to = b,
                _ => return None,
            }
        }
    }
    Some(out)
}

/// Shapes of one rank that broadcast, with neighboring dimensions put together until there are at most `limit`;
/// none if that does not go.
pub fn joined(shapes: &[&[i64]], limit: usize) -> Option<Vec<Vec<i64>>> {
    let rank = shapes.first()?.len();
    let mut groups: Vec<Vec<i64>> = (0..rank).map(|i| shapes.iter().map(|s| s[i]).collect()).collect();
    while groups.len() > limit {
        let whole = |sizes: &[i64]| sizes.iter().copied().max().unwrap_or(1);
        // Two go together where each shape has both or repeats both.
        let fits = |a: &[i64], b: &[i64]| {
            let (m, n) = (whole(a), whole(b));
            m == 1 || n == 1 || a.iter().zip(b).all(|(&x, &y)| (x == m && y == n) || (x == 1 && y == 1))
        };
        let at = (1..groups.len()).find(|&i| fits(&groups[i - 1], &groups[i]))?;
        let second = groups.remove(at);
        for (size, other) in groups[at - 1].iter_mut().zip(second) {
            *size *= other;
        }
    }
    Some((0..shapes.len()).map(|s| groups.iter().map(|g| g[s]).collect()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Id as _;

    #[test]
    fn movements_without_copies() {
        let x = View::whole(PlanValueId::new(0), &[2, 5, 12]);
        let heads = x.reshaped(&[2, 5, 3, 4]).unwrap().permuted(&[0, 2, 1, 3]).unwrap();
        assert_eq!(
            (heads.shape.as_slice(), heads.strides.as_slice()),
            (&[2, 3, 5, 4][..], &[60, 4, 12, 1][..])
        );
        assert!(!heads.is_contiguous());
        assert_eq!(heads.reshaped(&[6, 5, 4]), None);
        assert_eq!(heads.permuted(&[0, 2, 1, 3]).unwrap().reshaped(&[2, 5, 12]), Some(x.clone()));
        let column = x.sliced(2, 4, 8).unwrap();
        assert_eq!((column.offset, column.strides[1]), (4, 12));
        assert_eq!(x.reshaped(&[10, 1, 12, 1]).unwrap().strides, [12, 12, 1, 1]);
        let wide = View::whole(PlanValueId::new(0), &[3, 1]).broadcast(&[2, 3, 4]).unwrap();
        assert_eq!((wide.strides.as_slice(), wide.once().shape.as_slice()), (&[0, 1, 0][..], &[1, 3, 1][..]));
    }

    #[test]
    fn dimensions_go_together() {
        assert_eq!(common(&[&[3, 1], &[2, 1, 4]]), Some(vec![2, 3, 4]));
        let dimensions = joined(&[&[2, 3, 4, 5, 6], &[1, 1, 4, 1, 6]], 4).unwrap();
        assert_eq!(dimensions, [vec![6, 4, 5, 6], vec![1, 4, 1, 6]]);
        assert_eq!(joined(&[&[2, 3, 4, 5, 6], &[1, 3, 1, 5, 1]], 4), None);
    }
}
