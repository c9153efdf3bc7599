//! Steps of programs of products: tensors large enough for kernels and parts, whose factors are made of other products by
//! joining, cutting, reshaping and turning them.

use mithril::ir::Shape;
use mithril::ir::graph::{Role, TensorType, ValueId, Values};
use mithril::ir::literal::Lit;

use super::{Make, Maker, binary, pick};

/// What programs are made of.
pub(super) static STEPS: &[Make] = &[
    product, element, layers, transpose, product, shuffle, layers, heads, join, product, softmax, cut,
    binary, norm, product, along, output,
];

/// Values larger than this feed no further step.
pub(super) const MAX_ELEMENTS: i64 = 1 << 14;

/// What is given. Most sizes fit to each other, and some divide others.
pub(super) const GIVEN: &[(&str, Role, &[i64])] = &[
    ("state", Role::State, &[24, 24]),
    ("weight", Role::Param, &[24, 48]),
    ("square", Role::Param, &[24, 24]),
    ("queries", Role::Data, &[2, 24, 16]),
    ("keys", Role::Data, &[2, 16, 24]),
    ("images", Role::Data, &[1, 24, 4, 6]),
    ("long", Role::Data, &[3, 40, 24]),
    ("x", Role::Data, &[24, 24]),
];

const ELEMENT: &[&str] = &["tanh", "relu", "sigmoid", "sin", "negative", "abs", "square"];

impl Maker {
    fn reshaped(&mut self, x: ValueId, shape: &[i64]) -> Option<ValueId> {
        Some(self.apply("reshape", x, [Lit::tuple(shape.iter().copied())])?[0])
    }
    fn with_axes(&mut self, x: ValueId, axes: &[i64]) -> Option<ValueId> {
        Some(self.apply("transpose", x, [Lit::tuple(axes.iter().copied())])?[0])
    }
    /// A value with two axes or more.
    fn matrix(&self, choice: u8) -> Option<ValueId> {
        self.find(choice, |t| t.shape.rank() > 1)
    }
    /// Turns the last two axes.
    fn transposed(&mut self, x: ValueId) -> Option<ValueId> {
        let rank = self.rank(x) as i64;
        let mut axes: Vec<i64> = (0..rank).collect();
        axes.swap(rank as usize - 1, rank as usize - 2);
        self.with_axes(x, &axes)
    }
}

/// A product with a value that fits, or with itself.
fn product(m: &mut Maker, [a, b, c]: [u8; 3]) -> Option<Values> {
    let x = m.matrix(b)?;
    let of = m.ty(x).shape.clone();
    let (rank, last) = (of.rank(), of.iter().last().cloned()?);
    let other = m.find(c, |t| {
        let n = t.shape.rank();
        let outer = |s: &Shape, rank: usize| Shape::of(s.iter().take(rank - 2).cloned());
        n > 1
            && t.shape[n - 2] == last
            && mithril::ir::shape::broadcast(&[&outer(&t.shape, n), &outer(&of, rank)]).is_ok()
    });
    let y = match other.filter(|_| a % 4 > 0) {
        Some(y) => y,
        None => m.transposed(x)?,
    };
    let product = m.push("matmul", &[x, y])?[0];
    // Tamed, so that products of products stay small.
    m.apply("multiply", product, [Lit::Float(0.125)])
}

/// Two products with something between them that nothing else reads; what it makes is either factor of the second one.
fn layers(m: &mut Maker, [a, b, c]: [u8; 3]) -> Option<Values> {
    let first = product(m, [1, b, c])?[0];
    let between: Make = match a % 5 {
        0 | 1 => softmax,
        2 => shuffle,
        3 => join,
        _ => element,
    };
    let pool = m.pool.len();
    m.pool.push(first);
    // The latest value is the first product.
    let joined = between(m, [a / 5, 0, c / 3]).map(|joined| joined[0]);
    m.pool.truncate(pool);
    let joined = m.push("tanh", &[joined?])?[0];
    let sizes = m.sizes(joined);
    let (rows, columns) = (*sizes.iter().nth_back(1)?, *sizes.last()?);
    let fits = |axis: usize, size: i64| {
        move |t: &TensorType| {
            let rank = t.shape.rank();
            rank == 2 && t.shape[axis].known() == Some(size)
        }
    };
    if a % 2 == 0 {
        let right = m.find(c, fits(0, columns))?;
        return m.push("matmul", &[joined, right]);
    }
    let left = m.find(c, fits(1, rows))?;
    m.push("matmul", &[left, joined])
}

fn element(m: &mut Maker, [a, b, _]: [u8; 3]) -> Option<Values> {
    let x = m.value(b);
    m.push(pick(ELEMENT, a), &[x])
}

fn transpose(m: &mut Maker, [a, b, _]: [u8; 3]) -> Option<Values> {
    let x = m.matrix(b)?;
    let rank = m.rank(x) as i64;
    let product = match a % 3 {
        0 | 1 => m.transposed(x)?,
        _ => m.with_axes(x, &(0..rank).map(|i| (i + 1) % rank).collect::<Vec<_>>())?,
    };
    Some(Values::from_slice(&[product]))
}

/// Elements of an axis change places, as channels do between the groups of a convolution.
fn shuffle(m: &mut Maker, [a, b, c]: [u8; 3]) -> Option<Values> {
    let x = m.matrix(b)?;
    let sizes = m.sizes(x);
    let axis = a as usize % sizes.len();
    let groups = pick(&[2, 3, 4], c);
    if sizes[axis] % groups != 0 || sizes.len() > 4 {
        return None;
    }
    let mut split = sizes.clone();
    split.splice(axis..=axis, [groups, sizes[axis] / groups]);
    let mut axes: Vec<i64> = (0..split.len() as i64).collect();
    axes.swap(axis, axis + 1);
    let parts = m.reshaped(x, &split)?;
    let transposed = m.with_axes(parts, &axes)?;
    Some(Values::from_slice(&[m.reshaped(transposed, &sizes)?]))
}

/// The last axis becomes heads in front of the rows, or heads and rows become columns.
fn heads(m: &mut Maker, [a, b, _]: [u8; 3]) -> Option<Values> {
    let x = m.matrix(b)?;
    let sizes = m.sizes(x);
    let product = match (sizes.as_slice(), a % 2) {
        (&[n, c], 0) if c % 2 == 0 => {
            let split = m.reshaped(x, &[n, 2, c / 2])?;
            m.with_axes(split, &[1, 0, 2])?
        }
        (&[s, n, c], 0) if c % 2 == 0 => {
            let split = m.reshaped(x, &[s, n, 2, c / 2])?;
            m.with_axes(split, &[0, 2, 1, 3])?
        }
        (&[s, h, n, d], _) => {
            let transposed = m.with_axes(x, &[0, 2, 1, 3])?;
            m.reshaped(transposed, &[s, n, h * d])?
        }
        (&[h, n, d], _) => {
            let transposed = m.with_axes(x, &[1, 0, 2])?;
            m.reshaped(transposed, &[n, h * d])?
        }
        _ => return None,
    };
    Some(Values::from_slice(&[product]))
}

/// Two values along an axis, or one with what was made of it.
fn join(m: &mut Maker, [a, b, c]: [u8; 3]) -> Option<Values> {
    let x = m.matrix(b)?;
    let rank = m.rank(x);
    let axis = if a % 2 == 0 { rank - 1 } else { rank - 2 };
    let dims = m.dims(x);
    let like =
        m.find(c, |t| t.shape.rank() == rank && (0..rank).all(|i| i == axis || t.shape[i] == dims[i]))?;
    let at = m.b.lit(axis as i64);
    m.push("concat", &[at, x, like])
}

/// One half of an axis.
fn cut(m: &mut Maker, [a, b, c]: [u8; 3]) -> Option<Values> {
    let x = m.matrix(b)?;
    let sizes = m.sizes(x);
    let axis = a as usize % sizes.len();
    let half = sizes[axis] / 2;
    let (mut starts, mut stops) = (vec![0; sizes.len()], sizes.clone());
    if half == 0 {
        return None;
    }
    let ends = if c % 2 == 0 { &mut stops } else { &mut starts };
    ends[axis] = half;
    let steps = vec![1; sizes.len()];
    m.apply("slice", x, [starts, stops, steps].map(Lit::tuple))
}

fn softmax(m: &mut Maker, [a, b, _]: [u8; 3]) -> Option<Values> {
    let x = m.matrix(b)?;
    m.apply("softmax", x, [Lit::int(if a % 4 == 0 { -2 } else { -1 })])
}

fn norm(m: &mut Maker, [_, b, _]: [u8; 3]) -> Option<Values> {
    let x = m.matrix(b)?;
    let [weight, bias, shape] = [(); 3].map(|()| m.b.lit(Lit::None));
    let eps = m.b.lit(0.5);
    m.push("layer_norm", &[x, weight, bias, shape, eps])
}

fn along(m: &mut Maker, [a, b, c]: [u8; 3]) -> Option<Values> {
    let x = m.matrix(b)?;
    let axis = Lit::int(if c % 2 == 0 { -1 } else { -2 });
    m.apply(pick(&["mean", "max"], a), x, [axis, Lit::Bool(true)])
}

fn output(m: &mut Maker, [_, b, _]: [u8; 3]) -> Option<Values> {
    let v = m.value(b);
    let name = format!("output{}", m.b.graph.outputs.len());
    m.b.graph.outputs.insert(name.into(), v);
    None
}
