//! Products of vectors and tensors, defined by `matmul`, `multiply` and `sum`.

use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::Result;
use crate::formula::V;
use crate::literal::Lit;
use crate::lowering::LoweringRule::{Function, Template};
use crate::lowering::{Lowering, LoweringCx};
use crate::op::{
    Attr, BLANK, DTypeRule, DefaultLit, OpDef, Port, Precision, ShapeRule, Tolerance, attr, tensor,
};
use crate::rules::{Attrs, ShapeCx};
use crate::shape::{Shape, normalize_axis};

use super::linalg::{as_column, reshape};
use super::slicing::ROLL;

/// Ops of this file.
pub static OPS: &[&OpDef] = &[&OUTER, &VECDOT, &INNER, &DOT, &TENSORDOT, &KRON, &CROSS];

static LEFT_RIGHT: &[Port] = &[tensor("left"), tensor("right")];

const PRODUCT: OpDef =
    OpDef { ports: LEFT_RIGHT, dtype: DTypeRule::Arith, tolerance: Tolerance::Contraction, ..BLANK };

/// All products of two vectors
pub static OUTER: OpDef = OpDef {
    name: "outer",
    doc: "The matrix of all products of the elements of two vectors: `output[i, j] = left[i] · right[j]`.",
    layer: "Outer",
    shape: ShapeRule::Pattern("m, n -> m n"),
    expand: Some(|c| vec![as_column(c.x[0]) * c.x[1]]),
    lowering: Lowering::py("{xp}.outer({0}, {1})"),
    cases: &["[3] [4]", "[0] [4]", "[1] [1]", "i32[3] i32[2]"],
    tolerance: Tolerance::Rounded,
    ..PRODUCT
};

static VECDOT_PORTS: &[Port] =
    &[tensor("left"), tensor("right"), attr("axis", Attr::Int, DefaultLit::Int(-1))];

/// dot products along an axis
pub static VECDOT: OpDef = OpDef {
    name: "vecdot",
    doc: "Scalar products of the vectors along `axis`, `Σ_i left[i] · right[i]`. The other axes broadcast; `axis` \
          counts in the broadcast shape and has one size in both.",
    layer: "VectorDot",
    ports: VECDOT_PORTS,
    shape: ShapeRule::Fn(|cx| {
        let (mut out, axis) = vectors(cx)?;
        out.0.remove(axis);
        Ok(vec![out])
    }),
    expand: Some(|c| {
        let product = c.x[0] * c.x[1];
        vec![product.sum(c.x[2], false).cast(product.dtype())]
    }),
    cases: &[
        "[3] [3]",
        "[2,3] [2,3]",
        "[2,3] [2,3] axis=0",
        "[4,1,3] [2,3]",
        "[2,0] [2,0]",
        "i32[3]<9 i32[3]<9",
    ],
    precision: Some(Precision::Low),
    ..PRODUCT
};

/// Sum of products over the last axes
pub static INNER: OpDef = OpDef {
    name: "inner",
    doc: "Sums of products over the last axis of both: `output[i.., j..] = Σ_k left[i.., k] · right[j.., k]`. A 0-d \
          operand multiplies.",
    layer: "Inner",
    shape: ShapeRule::Fn(|cx| contracted(cx, &inner_axes(cx.shape(0), cx.shape(1)))),
    expand: Some(|c| vec![contract(c.x[0], c.x[1], &inner_axes(&c.x[0].shape(), &c.x[1].shape()))]),
    lowering: Lowering {
        numpy: Function(|s| not_brain_float(s, format!("np.inner({}, {})", s.arg(0), s.arg(1)))),
        ..Lowering::NONE
    },
    cases: &["[3] [3]", "[2,3] [4,3]", "[2,3] [3]", "[2,2,3] [2,3]", "[] [2,3]"],
    precision: Some(Precision::Low),
    ..PRODUCT
};

/// NumPy's `dot`
pub static DOT: OpDef = OpDef {
    name: "dot",
    doc: "Sums of products over the last axis of `left` and the last but one of `right` (the only one of a \
          vector): `output[i.., j.., l] = Σ_k left[i.., k] · right[j.., k, l]`. A 0-d operand multiplies. Unlike \
          `matmul`, leading axes are not matched but combined.",
    layer: "Dot",
    shape: ShapeRule::Fn(|cx| contracted(cx, &dot_axes(cx.shape(0), cx.shape(1)))),
    expand: Some(|c| vec![contract(c.x[0], c.x[1], &dot_axes(&c.x[0].shape(), &c.x[1].shape()))]),
    lowering: Lowering {
        numpy: Function(|s| not_brain_float(s, format!("np.dot({}, {})", s.arg(0), s.arg(1)))),
        ..Lowering::NONE
    },
    cases: &["[3] [3]", "[2,3] [3,4]", "[2,3] [3]", "[2,2,3] [2,3,2]", "[2,3] []"],
    precision: Some(Precision::Low),
    ..PRODUCT
};

static TENSORDOT_PORTS: &[Port] =
    &[tensor("left"), tensor("right"), attr("axes", Attr::Any, DefaultLit::Int(2))];

/// Sum of products over pairs of axes
pub static TENSORDOT: OpDef = OpDef {
    name: "tensordot",
    doc: "Sums of products over pairs of axes. `axes=n`: the last `n` axes of `left` with the first `n` of `right`; \
          `axes=((i, j), (k, l))`: axis `i` of `left` with `k` of `right`, `j` with `l`. The output has the other \
          axes of `left`, then those of `right`.",
    layer: "Tensordot",
    ports: TENSORDOT_PORTS,
    shape: ShapeRule::Fn(|cx| contracted(cx, &pairs(cx, cx.shape(0).rank(), cx.shape(1).rank())?)),
    expand: Some(|c| vec![contract(c.x[0], c.x[1], &c.get(|c| pairs(c, c.x[0].rank(), c.x[1].rank())))]),
    lowering: Lowering {
        numpy: Function(|s| {
            not_brain_float(s, format!("np.tensordot({}, {}, {})", s.arg(0), s.arg(1), s.arg(2)))
        }),
        ..Lowering::NONE
    },
    cases: &[
        "[2,3,4] [3,4,5]",
        "[2,3] [3,4] axes=1",
        "[2] [3] axes=0",
        "[2,3,4] [4,2,5] axes=((0,2),(1,0))",
        "[2,3] [2,4] axes=(0,-2)",
    ],
    precision: Some(Precision::Low),
    ..PRODUCT
};

/// Kronecker product
pub static KRON: OpDef = OpDef {
    name: "kron",
    doc: "Kronecker product: every element of `left` times the whole of `right`, as one tensor whose sizes are the \
          products of the sizes. Missing leading axes have size 1.",
    layer: "Kron",
    shape: ShapeRule::Fn(|cx| {
        let rank = cx.shape(0).rank().max(cx.shape(1).rank());
        let [a, b] = [cx.shape(0), cx.shape(1)].map(|s| padded(s, rank));
        Ok(vec![a.iter().zip(&b).map(|(a, b)| a * b).collect()])
    }),
    expand: Some(|c| {
        let rank = c.x[0].rank().max(c.x[1].rank());
        let [a, b] = [c.x[0], c.x[1]].map(|x| padded(&x.shape(), rank));
        let left = reshape(c.x[0], a.iter().flat_map(|d| [d.clone(), Dim::ONE]));
        let right = reshape(c.x[1], b.iter().flat_map(|d| [Dim::ONE, d.clone()]));
        vec![reshape(left * right, a.iter().zip(&b).map(|(a, b)| a * b))]
    }),
    lowering: Lowering {
        numpy: Template("np.kron({0}, {1})"),
        torch: Template("torch.kron({0}, {1})"),
        jax: Template("jnp.kron({0}, {1})"),
        mlx: Function(|s| {
            let is_empty = s.out(0)?.shape.iter().any(|d| d.is(0));
            (!is_empty).then(|| format!("mx.kron({}, {})", s.arg(0), s.arg(1)))
        }),
        ..Lowering::NONE
    },
    cases: &["[2,3] [4,2]", "[3] [2]", "[2,3] [2]", "[] [3]", "[2,0] [3,2]"],
    tolerance: Tolerance::Rounded,
    ..PRODUCT
};

/// cross product of 3-d vectors
pub static CROSS: OpDef = OpDef {
    name: "cross",
    doc: "Vector products of the vectors of three elements along `axis`: \
          `output[i] = left[i+1] · right[i+2] - left[i+2] · right[i+1]`, indices modulo 3. The other axes \
          broadcast; `axis` counts in the broadcast shape.",
    layer: "Cross",
    ports: VECDOT_PORTS,
    shape: ShapeRule::Fn(|cx| {
        let (out, axis) = vectors(cx)?;
        cx.same(&out[axis], &Dim::Const(3), "lengths of the vectors and 3")?;
        Ok(vec![out])
    }),
    expand: Some(|c| {
        let rank = c.x[0].rank().max(c.x[1].rank());
        let axis = c.get(|c| c.axis(2, rank)) as i64 - rank as i64;
        // Element i + k of each vector.
        let next = |i: usize, k: i64| c.x[i].op(&ROLL, &[c.cx.lit(-k), c.cx.lit(axis)]);
        vec![next(0, 1) * next(1, 2) - next(0, 2) * next(1, 1)]
    }),
    cases: &["[3] [3]", "[2,3] [2,3]", "[3,2] [3,2] axis=0", "[4,1,3] [2,3]", "i32[3] i32[3]"],
    ..PRODUCT
};

/// The broadcast shape of two stacks of vectors and the axis of the vectors in it.
fn vectors(cx: &ShapeCx<'_>) -> Result<(Shape, usize)> {
    let (a, b) = (cx.shape(0), cx.shape(1));
    let out = cx.broadcast(&[a, b])?;
    let axis = cx.axis(2, out.rank())?;
    let from_end = axis as i64 - out.rank() as i64;
    let (i, j) = (a.axis(from_end)?, b.axis(from_end)?);
    cx.same(&a[i], &b[j], "lengths of the vectors")?;
    Ok((out, axis))
}

/// NumPy returns float32 for products of bfloat16, so the op is expanded.
fn not_brain_float(s: &LoweringCx<'_>, text: String) -> Option<String> {
    s.out(0).filter(|t| t.dtype != DType::BF16).map(|_| text)
}

fn padded(shape: &Shape, rank: usize) -> Vec<Dim> {
    let ones = std::iter::repeat_n(Dim::ONE, rank - shape.rank());
    ones.chain(shape.iter().cloned()).collect()
}

/// Axes that are summed, in pairs.
type Pairs = Vec<(usize, usize)>;

fn inner_axes(a: &Shape, b: &Shape) -> Pairs {
    if a.rank() == 0 || b.rank() == 0 { vec![] } else { vec![(a.rank() - 1, b.rank() - 1)] }
}

fn dot_axes(a: &Shape, b: &Shape) -> Pairs {
    if a.rank() == 0 || b.rank() == 0 { vec![] } else { vec![(a.rank() - 1, b.rank().saturating_sub(2))] }
}

/// Reads `axes` of a tensor product of tensors of these ranks.
fn pairs(cx: &impl Attrs, left: usize, right: usize) -> Result<Pairs> {
    const WANTED: &str = "a number of axes, or two tuples of equally many different axes";
    let lit = cx.lit(2);
    let bad = || cx.bad(2, &lit, WANTED);
    let pairs: Pairs = match &lit {
        Lit::Int(n) => {
            let n = n.known().and_then(|n| usize::try_from(n).ok()).ok_or_else(bad)?;
            if n > left.min(right) {
                return Err(bad());
            }
            (0..n).map(|i| (left - n + i, i)).collect()
        }
        Lit::Tuple(two) if two.len() == 2 => {
            let read = |lit: &Lit, rank: usize| -> Result<Vec<usize>> {
                let one = std::slice::from_ref(lit);
                let items: &[Lit] = if let Lit::Tuple(items) = lit { items } else { one };
                let axis = |lit: &Lit| match lit {
                    Lit::Int(Dim::Const(n)) => normalize_axis(*n, rank).map_err(|e| cx.explain(e)),
                    _ => Err(bad()),
                };
                items.iter().map(axis).collect()
            };
            let (i, j) = (read(&two[0], left)?, read(&two[1], right)?);
            if i.len() != j.len() {
                return Err(bad());
            }
            i.into_iter().zip(j).collect()
        }
        _ => return Err(bad()),
    };
    let repeats = |k: usize| pairs[..k].iter().any(|p| p.0 == pairs[k].0 || p.1 == pairs[k].1);
    if (0..pairs.len()).any(repeats) { Err(bad()) } else { Ok(pairs) }
}

fn contracted(cx: &ShapeCx<'_>, pairs: &[(usize, usize)]) -> Result<Vec<Shape>> {
    let (a, b) = (cx.shape(0), cx.shape(1));
    for &(i, j) in pairs {
        cx.same(&a[i], &b[j], "sizes of the summed axes")?;
    }
    let (left, right) = free(pairs, a.rank(), b.rank());
    Ok(vec![left.iter().map(|&i| a[i].clone()).chain(right.iter().map(|&j| b[j].clone())).collect()])
}

/// Axes of both sides that are not summed.
fn free(pairs: &[(usize, usize)], left: usize, right: usize) -> (Vec<usize>, Vec<usize>) {
    let left = (0..left).filter(|i| pairs.iter().all(|p| p.0 != *i)).collect();
    let right = (0..right).filter(|j| pairs.iter().all(|p| p.1 != *j)).collect();
    (left, right)
}

fn contract<'a>(a: V<'a>, b: V<'a>, pairs: &[(usize, usize)]) -> V<'a> {
    if a.rank() == 0 || b.rank() == 0 {
        return a * b;
    }
    let (left, right) = free(pairs, a.rank(), b.rank());
    let (i, j): (Vec<usize>, Vec<usize>) = pairs.iter().copied().unzip();
    let sizes = |x: V<'a>, axes: &[usize]| -> Shape {
        let shape = x.shape();
        axes.iter().map(|&i| shape[i].clone()).collect()
    };
    let (rows, columns, inner) = (sizes(a, &left), sizes(b, &right), sizes(a, &i).numel());
    let a = reshape(permuted(a, &[left, i].concat()), [rows.numel(), inner.clone()]);
    let b = reshape(permuted(b, &[j, right].concat()), [inner, columns.numel()]);
    reshape(a.matmul(b), rows.0.into_iter().chain(columns.0))
}

fn permuted<'a>(x: V<'a>, order: &[usize]) -> V<'a> {
    if order.iter().copied().eq(0..order.len()) { x } else { x.transpose(order.to_vec()) }
}
