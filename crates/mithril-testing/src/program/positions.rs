//! Steps that look up, add, replace and order by positions which are data.

use mithril::ir::dtype::{DType, Kind};
use mithril::ir::graph::{ValueId, Values};
use mithril::ir::literal::Lit;
use mithril::ir::tensor::Tensor;
use mithril::ir::{Dim, Shape};

use super::{Maker, pick};

/// Of which a sequence of positions is made; some of them are equal.
const FROM: &[i64] = &[1, 0, 2, 5, 2, 7, 3, 0, 4, 6, 1, 9];

/// The dtypes of positions that may be negative, and those of others.
const SIGNED: &[DType] = &[DType::I64, DType::I32, DType::I64, DType::I8];
const COUNTED: &[DType] = &[DType::I64, DType::I32, DType::U8, DType::U16, DType::U32];

impl Maker {
    /// Integers become positions in an axis, counted from either end. Some few are left as they are, where all that is
    /// made may fail.
    fn inside(&mut self, integers: ValueId, size: &Dim, choice: u8) -> Option<ValueId> {
        if choice % 32 == 31 && !self.smooth() {
            return Some(integers);
        }
        let (dtypes, span) = match choice % 2 {
            0 => (COUNTED, size.clone()),
            _ => (SIGNED, size * &Dim::Const(2)),
        };
        let cast = self.apply("cast", integers, [Lit::DType(pick(dtypes, choice / 2))])?[0];
        let at = self.apply("remainder", cast, [Lit::Int(span)])?[0];
        if choice.is_multiple_of(2) {
            return Some(at);
        }
        Some(self.apply("subtract", at, [Lit::Int(size.clone())])?[0])
    }
    fn sequence(&mut self, shape: &[usize], choice: u8) -> ValueId {
        let numbers = FROM.iter().cycle().skip(usize::from(choice) % FROM.len());
        let all = numbers.take(shape.iter().product()).copied().collect::<Vec<i64>>();
        self.b.lit(Tensor::from_parts(shape, all))
    }
    /// Positions in an axis: constants, or integers that were computed.
    fn positions(&mut self, size: &Dim, choice: u8) -> Option<ValueId> {
        let computed = self.find(choice / 4, |t| t.dtype.kind() == Kind::Int && t.shape.rank() < 3);
        let integers = match (computed, choice % 4) {
            (Some(positions), 0 | 1) => positions,
            (_, 2) => self.sequence(&[], choice / 4),
            (_, 3) => self.sequence(&[2, 2], choice / 4),
            _ => self.sequence(&[3], choice / 4),
        };
        self.inside(integers, size, choice / 2)
    }
    /// One position for each element of a value.
    fn positions_like(&mut self, x: ValueId, size: &Dim, choice: u8) -> Option<ValueId> {
        let dims = self.dims(x);
        let integers = if !self.smooth() && choice.is_multiple_of(4) {
            // Of NaN and of what is too large, too.
            self.apply("cast", x, [Lit::DType(DType::I32)])?[0]
        } else {
            let last = dims.last().and_then(Dim::known).unwrap_or(1);
            let line = self.sequence(&[last as usize], choice / 8);
            self.apply("broadcast_to", line, [dims.into()])?[0]
        };
        self.inside(integers, size, choice / 4)
    }
    /// A value with an axis, which is chosen too.
    fn with_axis(&self, choice: u8, axis: u8) -> Option<(ValueId, usize)> {
        let x = self.find(choice, |t| t.shape.rank() > 0)?;
        Some((x, axis as usize % self.rank(x)))
    }
    /// What has the sizes of a value but along an axis, where `fits` decides.
    fn along(&self, x: ValueId, axis: usize, choice: u8, fits: impl Fn(&Dim) -> bool) -> Option<ValueId> {
        let own: &Shape = &self.ty(x).shape;
        let same = |other: &Shape| (0..own.rank()).all(|i| i == axis || other[i] == own[i]);
        self.find(choice, |t| t.shape.rank() == own.rank() && same(&t.shape) && fits(&t.shape[axis]))
    }
}

pub(super) fn take(m: &mut Maker, [a, b, c]: [u8; 3]) -> Option<Values> {
    let (x, axis) = m.with_axis(b, a)?;
    let from_end = axis as i64 - m.rank(x) as i64;
    let (size, axis) = match a / 4 % 3 {
        0 => (m.ty(x).shape.numel(), Lit::None),
        1 => (m.dims(x)[axis].clone(), Lit::int(axis as i64)),
        _ => (m.dims(x)[axis].clone(), Lit::int(from_end)),
    };
    let at = m.positions(&size, c)?;
    let axis = m.b.lit(axis);
    m.push("take", &[x, at, axis])
}

/// Rows of a table, or elements by two positions each.
pub(super) fn rows(m: &mut Maker, [a, b, c]: [u8; 3]) -> Option<Values> {
    let table = m.find(b, |t| t.shape.rank() == 2)?;
    let dims = m.dims(table);
    let at = m.positions(&dims[0], c)?;
    if a % 2 == 0 {
        // Differences see a slope of the row that is to get no gradient.
        let padding = m.b.lit(if a % 4 == 0 || m.smooth() { Lit::None } else { Lit::int(0) });
        return m.push("embedding", &[at, table, padding]);
    }
    let column = m.sequence(&[1], a / 2);
    let column = m.inside(column, &dims[1], a / 8)?;
    let key = m.b.lit(Lit::Tuple([Lit::Str("tensor".into()), Lit::Str("tensor".into())].into()));
    m.push("getitem", &[table, key, at, column])
}

pub(super) fn take_along(m: &mut Maker, [a, b, c]: [u8; 3]) -> Option<Values> {
    let (x, axis) = m.with_axis(b, a)?;
    let size = m.dims(x)[axis].clone();
    let like = m.along(x, axis, c, |_| true)?;
    let at = m.positions_like(like, &size, c)?;
    let axis = m.b.lit(axis as i64);
    m.push("take_along_axis", &[x, at, axis])
}

/// Sums of what goes to one place, slices that replace others.
pub(super) fn put(m: &mut Maker, [a, b, c]: [u8; 3]) -> Option<Values> {
    let (x, axis) = m.with_axis(b, a / 4)?;
    let size = m.dims(x)[axis].clone();
    let at_axis = m.b.lit(if a % 8 < 4 { axis as i64 } else { axis as i64 - m.rank(x) as i64 });
    if a % 4 == 0 {
        let source = m.along(x, axis, c, |_| true)?;
        let at = m.positions_like(source, &size, c)?;
        return m.push("scatter_add", &[x, at, source, at_axis]);
    }
    let source = m.along(x, axis, c, |count| count.known().is_some())?;
    let count = m.dims(source)[axis].known()?;
    if a % 4 < 3 {
        let at = m.sequence(&[count as usize], c / 2);
        let at = m.inside(at, &size, c)?;
        return m.push("index_add", &[x, at, source, at_axis]);
    }
    // Which of two slices for one position stays is not said: here all positions differ. Every second is negative.
    let size = size.known().filter(|&n| n >= count);
    let back = i64::from(c / 8) % 3;
    let places = match size {
        Some(n) => {
            (0..count).map(|i| (i + back) % n - if (i + i64::from(c)) % 2 == 0 { n } else { 0 }).collect()
        }
        None if count == 1 => vec![i64::from(c % 2) - 1],
        None => return None,
    };
    let at = m.b.lit(Tensor::from_parts(&[count as usize], places));
    let at = m.apply("cast", at, [Lit::DType(pick(SIGNED, c / 2))])?[0];
    m.push("index_copy", &[x, at, source, at_axis])
}

pub(super) fn one_hot(m: &mut Maker, [a, b, c]: [u8; 3]) -> Option<Values> {
    let depth = i64::from(b % 4);
    let at = m.positions(&Dim::Const(depth), c)?;
    let (depth, dtype) = (m.b.lit(depth), m.b.lit(Lit::DType(pick(super::DTYPES, a))));
    m.push("one_hot", &[at, depth, dtype])
}

/// Sorted elements, their positions, the first of them.
pub(super) fn sort(m: &mut Maker, [a, b, c]: [u8; 3]) -> Option<Values> {
    let (x, axis) = m.with_axis(b, c / 2)?;
    // Slopes jump where two elements become equal: a ramp keeps them apart.
    let x = if m.smooth() { apart(m, x, axis)? } else { x };
    let (at_axis, down) = (Lit::int(axis as i64), Lit::Bool(c % 2 == 1));
    match a % 3 {
        0 => m.apply("sort", x, [at_axis, down]),
        1 if !m.smooth() => m.apply("argsort", x, [at_axis, down]),
        _ => {
            let k = m.dims(x)[axis].known()?.min(i64::from(a / 3) % 4);
            let outputs = m.apply("topk", x, [Lit::int(k), at_axis, down, Lit::Bool(true)])?;
            // Positions have no slope.
            Some(if m.smooth() { Values::from_slice(&outputs[..1]) } else { outputs })
        }
    }
}

/// Between -1 and 1, on a ramp that goes up and down.
fn apart(m: &mut Maker, x: ValueId, axis: usize) -> Option<ValueId> {
    let size = m.dims(x)[axis].known()? as usize;
    let mut shape = vec![1; m.rank(x) - axis];
    shape[0] = size;
    let heights: Vec<f64> = (0..size).map(|i| 3.0 * i as f64 * if i % 2 == 0 { 1.0 } else { -1.0 }).collect();
    let ramp = m.b.lit(Tensor::from_f64s(m.b.float, &shape, &heights));
    let small = m.push("tanh", &[x])?[0];
    Some(m.push("add", &[small, ramp])?[0])
}
