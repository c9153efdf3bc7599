//! Ops that are defined by singular values: least squares, pseudoinverse, rank, norms and condition of matrices.

use crate::dim::Dim;
use crate::dtype::{DType, Kinds};
use crate::error::Result;
use crate::formula::{GradCx, V};
use crate::literal::Lit;
use crate::op::{Attr, DTypeRule, DefaultLit, Grad, OpDef, Port, ShapeRule, attr, tensor_of};
use crate::rules::{Attrs, DTypes};

use super::decompose::precise;
use super::factor::{FACTOR, THIN_SVD, as_row, matrices, singular_values};
use super::linalg::{as_column, reshape, transposed};
use super::reduce::{COUNT_NONZERO, MAX, MIN, SUM};
use super::slicing::cut;
use super::statistics::NORM;

/// Ops of this file.
pub static OPS: &[&OpDef] = &[&LSTSQ, &PINV, &MATRIX_RANK, &MATRIX_NORM, &COND];

const MATRICES: Port = tensor_of("input", Kinds::FLOAT);

/// Least-squares solution of `left · x = right`
pub static LSTSQ: OpDef = OpDef {
    name: "lstsq",
    doc: "The `x` for which `left @ x - right` is shortest, and of several such the shortest `x`.\n\n\
          `left` is `[..., m, n]`; `right` is `[..., m, k]`, one system per column, or a vector `[m]`; the leading axes \
          broadcast. Singular values of `left` up to `rcond` times the largest count as 0; `rcond` is `max(m, n)` \
          times the dtype's epsilon unless given. A matrix with an element that is not finite gives NaN. Rank and \
          singular values are what `matrix_rank` and `svdvals` give. The gradient (Golub and Pereyra, 1973) holds \
          where small changes do not change the rank. Lower precision than float32 is an error.",
    aliases: &["least_squares"],
    layer: "LeastSquares",
    ports: &[
        tensor_of("left", Kinds::FLOAT),
        tensor_of("right", Kinds::FLOAT),
        attr("rcond", Attr::OptFloat, DefaultLit::None),
    ],
    shape: ShapeRule::Fn(|cx| {
        let (left, m, n) = matrices(cx, 0)?;
        let right = cx.shape(1);
        if right.rank() == 1 {
            cx.same(&m, &right[0], "rows of the systems")?;
            return Ok(vec![left.iter().chain([&n]).cloned().collect()]);
        }
        let (batch, rows, columns) = matrices(cx, 1)?;
        cx.same(&m, &rows, "rows of the systems")?;
        let mut out = cx.broadcast(&[&left, &batch])?;
        out.0.extend([n, columns]);
        Ok(vec![out])
    }),
    expand: Some(|c| {
        let vector = c.x[1].rank() == 1;
        let right = if vector { as_column(c.x[1]) } else { c.x[1] };
        let svd = c.cx.apply(&THIN_SVD, &[c.x[0]]);
        let (u, s, vh) = (svd[0], svd[1.min(svd.len() - 1)], svd[svd.len() - 1]);
        let inverse = reciprocals(c.x[0], s, c.x[2], None);
        let x = product(transposed(vh), as_column(inverse) * product(transposed(u), right));
        vec![if vector { without_last(x) } else { x }]
    }),
    grad: Grad::Formula(lstsq_grad),
    cases: &[
        "[4,2] [4]",
        "[4,2] [4,3]",
        "[2,4] [2]",
        "[3,3] [3,2]",
        "[2,4,3] [2,4,1]",
        "[2,1,3,2] [4,3,2]",
        "[2,4,3] [4]",
        "[3,2] [3] rcond=0.001",
        "[0,2] [0]",
    ],
    ..FACTOR
};

/// Pseudoinverse
pub static PINV: OpDef = OpDef {
    name: "pinv",
    doc: "The pseudoinverses `[..., n, m]` of matrices `[..., m, n]`, by Moore and Penrose.\n\n\
          Singular values up to `rtol` times the largest, or up to `atol`, count as 0. Unless given, `atol` is 0, and \
          `rtol` is `max(m, n)` times the dtype's epsilon, or 0 with an `atol`. The gradient (Golub and Pereyra, 1973) \
          holds where small changes do not change the rank. To solve a system, `lstsq` is more exact.",
    layer: "PseudoInverse",
    ports: &[
        MATRICES,
        attr("rtol", Attr::OptFloat, DefaultLit::None),
        attr("atol", Attr::OptFloat, DefaultLit::None),
    ],
    shape: ShapeRule::Pattern("*b m n -> *b n m"),
    expand: Some(|c| {
        let svd = c.cx.apply(&THIN_SVD, &[c.x[0]]);
        let (u, s, vh) = (svd[0], svd[1.min(svd.len() - 1)], svd[svd.len() - 1]);
        let inverse = reciprocals(c.x[0], s, c.x[1], Some(c.x[2]));
        vec![product(transposed(vh) * as_row(inverse), transposed(u))]
    }),
    grad: Grad::Formula(|v| {
        let (x, y, g) = (v.x[0], v.y, transposed(v.g));
        let yt = transposed(y);
        let inside = product(product(yt, v.g), yt);
        let rank = x.op(&MATRIX_RANK, &[v.x[2], v.x[1]]);
        let rows = unless_full(x, -2, rank, g - product(x, product(y, g)));
        let columns = unless_full(x, -1, rank, g - product(product(g, y), x));
        vec![product(rows, product(y, yt)) + product(product(yt, y), columns) - inside]
    }),
    cases: &["[3,3]", "[4,2]", "[2,2,4]", "[3,2] rtol=0.001", "[3,2] atol=0.001", "[1,1]", "[0,3]"],
    ..FACTOR
};

/// Number of singular values that are not 0
pub static MATRIX_RANK: OpDef = OpDef {
    name: "matrix_rank",
    doc: "The ranks of matrices `[..., m, n]`, in int64: how many singular values are larger than `atol` and than \
          `rtol` times the largest one.\n\n\
          Unless given, `atol` is 0, and `rtol` is `max(m, n)` times the dtype's epsilon, or 0 with an `atol`. A matrix \
          with an element that is not finite has rank 0.",
    layer: "MatrixRank",
    ports: &[
        MATRICES,
        attr("atol", Attr::OptFloat, DefaultLit::None),
        attr("rtol", Attr::OptFloat, DefaultLit::None),
    ],
    shape: ShapeRule::Fn(|cx| matrices(cx, 0).map(|(batch, ..)| vec![batch])),
    dtype: DTypeRule::Fn(|cx| Ok(DTypes { out: [DType::I64].into_iter().collect(), ..precise(cx)? })),
    expand: Some(|c| {
        let s = singular_values(c.x[0]);
        let is_large = s.greater(cutoff(c.x[0], s, c.x[2], Some(c.x[1])));
        vec![is_large.op(&COUNT_NONZERO, &[c.cx.lit(-1)])]
    }),
    grad: Grad::Zero,
    cases: &["[3,3]", "[4,2]", "[2,2,4]", "[3,2] rtol=0.9", "[3,2] atol=0.5", "[0,3]", "[1,1] atol=9.0"],
    ..FACTOR
};

const ORDERS: &str = "\"fro\", \"nuc\", or one of inf, -inf, 1, -1, 2, -2";

/// Norm of matrices
pub static MATRIX_NORM: OpDef = OpDef {
    name: "matrix_norm",
    doc: "Norms of matrices `[..., m, n]`, by `ord`: `\"fro\"`, of Frobenius, the root of the sum of squares; `\"nuc\"`, \
          the nuclear norm, the sum of the singular values; 2, the spectral norm, the largest singular value; 1 the \
          largest sum of the absolute values in a column, `inf` in a row; -2, -1 and `-inf` the smallest instead.\n\n\
          With `keepdim` the last two axes stay, with size 1. The gradient of a largest or smallest one is shared \
          evenly among those that tie.",
    layer: "MatrixNorm",
    ports: &[
        MATRICES,
        attr("ord", Attr::Any, DefaultLit::Str("fro")),
        attr("keepdim", Attr::Bool, DefaultLit::Bool(false)),
    ],
    shape: ShapeRule::Fn(|cx| {
        order(cx, &[])?;
        let (mut batch, ..) = matrices(cx, 0)?;
        if cx.bool(2)? {
            batch.0.extend([Dim::ONE, Dim::ONE]);
        }
        Ok(vec![batch])
    }),
    expand: Some(|c| {
        let order = c.get(|c| order(c, &[]));
        let x = norm(c.x[0], order);
        vec![if c.get(|c| c.bool(2)) { x.expand_dims(vec![-2, -1]) } else { x }]
    }),
    cases: &[
        "[3,3]",
        "[2,4,3] ord=\"nuc\"",
        "[4,2] ord=2",
        "[2,4] ord=-2 keepdim=true",
        "[3,2] ord=1",
        "[2,3,2] ord=-1",
        "[3,2] ord=inf",
        "[2,3,2] ord=-inf keepdim=true",
        "[0,3]",
    ],
    ..FACTOR
};

/// Condition number
pub static COND: OpDef = OpDef {
    name: "cond",
    doc: "Condition numbers of matrices: by how much relative errors may grow when a system is solved.\n\n\
          Without `p`, or with 2, the largest singular value divided by the smallest, of matrices `[..., m, n]`; infinite \
          for a matrix without full rank. With -2 it is the reciprocal. With another order of `matrix_norm`, the norm of \
          square matrices times that of their inverses, where a singular matrix is an error.",
    layer: "ConditionNumber",
    ports: &[MATRICES, attr("p", Attr::Any, DefaultLit::None)],
    shape: ShapeRule::Fn(|cx| {
        let order = order(cx, &[Lit::None])?;
        let (batch, m, n) = matrices(cx, 0)?;
        if !matches!(order, Order::Number(x) if x.abs() == 2.0) {
            cx.same(&m, &n, "rows and columns of the matrix")?;
        }
        Ok(vec![batch])
    }),
    expand: Some(|c| {
        let x = c.x[0];
        vec![match c.get(|c| order(c, &[Lit::None])) {
            Order::Number(n) if n.abs() == 2.0 => {
                let s = singular_values(x);
                let last = [c.cx.lit(-1)];
                let (most, least) = (s.op(&MAX, &last), s.op(&MIN, &last));
                if n > 0.0 { most / least } else { least / most }
            }
            order => norm(x, order) * norm(x.inv(), order),
        }]
    }),
    cases: &[
        "[3,3]",
        "[2,4,3]",
        "spd[3,3] p=-2",
        "spd[2,3,3] p=1",
        "spd[3,3] p=\"fro\"",
        "spd[3,3] p=\"nuc\"",
        "spd[3,3] p=-inf",
    ],
    ..FACTOR
};

/// An order of a norm.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Order {
    #[default]
    Frobenius,
    Nuclear,
    Number(f64),
}

/// The order at argument 1; values in `default` mean 2.
fn order<A: Attrs + ?Sized>(cx: &A, default: &[Lit]) -> Result<Order> {
    let lit = cx.lit(1);
    if default.contains(&lit) {
        return Ok(Order::Number(2.0));
    }
    let number = cx.f64(1).ok().filter(|x| [1.0, 2.0, f64::INFINITY].contains(&x.abs()));
    match (&lit, number) {
        (Lit::Str(text), _) if &**text == "fro" => Ok(Order::Frobenius),
        (Lit::Str(text), _) if &**text == "nuc" => Ok(Order::Nuclear),
        (_, Some(x)) => Ok(Order::Number(x)),
        _ => Err(cx.bad(1, &lit, ORDERS)),
    }
}

fn norm<'a>(x: V<'a>, order: Order) -> V<'a> {
    let cx = x.cx();
    let last = [cx.lit(-1)];
    let largest = |sums: V<'a>, sign: f64| sums.op(if sign > 0.0 { &MAX } else { &MIN }, &last);
    match order {
        Order::Frobenius => x.op(&NORM, &[cx.lit(2.0), cx.lit(vec![-2, -1])]),
        Order::Nuclear => singular_values(x).op(&SUM, &last),
        Order::Number(n) if n.abs() == 2.0 => largest(singular_values(x), n),
        Order::Number(n) => {
            let axis = if n.is_infinite() { -1 } else { -2 };
            largest(x.abs().sum(axis, false), n)
        }
    }
}

fn product<'a>(a: V<'a>, b: V<'a>) -> V<'a> {
    a.matmul(b)
}

/// `[..., n, 1]` as `[..., n]`
fn without_last(x: V<'_>) -> V<'_> {
    let shape = x.shape();
    reshape(x, shape.iter().take(shape.rank().saturating_sub(1)).cloned())
}

/// The threshold below which singular values `s` of `x` count as 0, `[..., 1]`.
fn cutoff<'a>(x: V<'a>, s: V<'a>, rtol: V<'a>, atol: Option<V<'a>>) -> V<'a> {
    let largest = cut(s, s.rank().saturating_sub(1), None, Some(Dim::ONE));
    let atol = atol.filter(|atol| atol.is_some());
    let relative = if rtol.is_some() {
        largest * rtol
    } else if atol.is_some() {
        largest * 0.0
    } else {
        let size = &(&x.dim(-2) + &x.dim(-1)) - &s.dim(-1);
        match size.known() {
            Some(n) => largest * (n as f64 * x.dtype().epsilon()),
            None => largest * x.dtype().epsilon() * size,
        }
    };
    atol.map_or(relative, |atol| relative.maximum(atol))
}

/// Reciprocals of singular values, 0 for those that count as 0.
fn reciprocals<'a>(x: V<'a>, s: V<'a>, rtol: V<'a>, atol: Option<V<'a>>) -> V<'a> {
    let is_large = s.greater(cutoff(x, s, rtol, atol));
    let safe = is_large.select(s, 1.0);
    is_large.select(1.0 / safe, 0.0)
}

/// A remainder outside of the columns of `a`, or of its rows, which is 0 where these span everything: where the rank is
/// the number of rows, or of columns, at `axis`. Rounding errors in its place would grow by the square of the condition.
fn unless_full<'a>(a: V<'a>, axis: i64, rank: V<'a>, remainder: V<'a>) -> V<'a> {
    let (size, other) = (a.dim(axis), a.dim(-3 - axis));
    if size.known().zip(other.known()).is_some_and(|(size, other)| size > other) {
        return remainder;
    }
    let is_full = as_column(as_column(rank.equal(size)));
    is_full.select(0.0, remainder)
}

fn lstsq_grad<'a>(v: &GradCx<'a>) -> Vec<V<'a>> {
    let vector = v.x[1].rank() == 1;
    let column = |x: V<'a>| if vector { as_column(x) } else { x };
    let (a, b, x, g) = (v.x[0], column(v.x[1]), column(v.y), column(v.g));
    let inverse = a.op(&PINV, &[v.x[2]]);
    let to_b = product(transposed(inverse), g);
    // The parts of b outside of the column space of a, and of the cotangent outside of its row space.
    let rank = a.op(&MATRIX_RANK, &[a.cx().lit(Lit::None), v.x[2]]);
    let left = unless_full(a, -2, rank, b - product(a, x));
    let outside = unless_full(a, -1, rank, g - product(inverse, product(a, g)));
    let to_a = product(left, transposed(product(inverse, to_b)))
        + product(product(transposed(inverse), x), transposed(outside))
        - product(to_b, transposed(x));
    vec![to_a, if vector { without_last(to_b) } else { to_b }]
}
