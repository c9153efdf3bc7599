//! Factors of matrices: orthogonal and triangular (QR), eigenvalues, singular values.
//!
//! Libraries choose the signs differently; here they are fixed, so that all backends return the same numbers.

mod evaluate;

pub use evaluate::qr;

use crate::dim::Dim;
use crate::dtype::{DType, Kinds};
use crate::error::{Code, Error, Result};
use crate::formula::{GradCx, V};
use crate::interp::{EvalCx, elements, from_f64s};
use crate::literal::Lit;
use crate::loops::{CallArgument, Expr, LoopCx};
use crate::lowering::Lowering;
use crate::lowering::LoweringRule::Template;
use crate::op::{Attr, DefaultLit, Eval, Grad, OpDef, Port, ShapeRule, attr, tensor_of};
use crate::rules::{Attrs, ShapeCx};
use crate::shape::Shape;
use crate::tensor::Tensor;

use super::create::EYE;
use super::decompose::{MATRIX, TRIANGULAR_SOLVE, square};
use super::linalg::{as_column, reshape, transposed};
use super::slicing::cut;

/// Ops of this file.
pub static OPS: &[&OpDef] = &[&QR, &EIGH, &EIGVALSH, &THIN_SVD, &SVD, &SVDVALS];

const MATRICES: Port = tensor_of("input", Kinds::FLOAT);

/// A factorization of matrices.
pub(super) const FACTOR: OpDef = OpDef { ports: &[MATRICES], domain: (-2.0, 2.0), ..MATRIX };

/// `input = q · r`
pub static QR: OpDef = OpDef {
    name: "qr",
    doc: "Orthonormal columns `q` and an upper triangular `r` with `q @ r = input`, for matrices `[..., m, n]`.\n\n\
          With `mode=\"reduced\"`, `q` has `min(m, n)` columns and `r` as many rows; with `\"complete\"`, `q` is \
          square, `[..., m, m]`, and `r` is `[..., m, n]`. The diagonal of `r` is not negative, which makes the \
          factors of a matrix of full rank unique; the columns that complete `q` are those of Householder's \
          reflections. A matrix with an element that is not finite gives NaN. The gradient (Walter and Lehmann, \
          2018) needs linearly independent columns (of the first `m`, where there are more columns than rows); the \
          columns that complete `q` have none. Lower precision than float32 is an error.",
    layer: "Qr",
    ports: &[MATRICES, attr("mode", Attr::Choice(&["reduced", "complete"]), DefaultLit::Str("reduced"))],
    outputs: &["q", "r"],
    shape: ShapeRule::Fn(qr_shape),
    eval: Some(Eval::Tensors(|c| {
        let is_complete = c.text(1)? == "complete";
        each(c, |a, [m, n]| qr(a, m, n, is_complete))
    })),
    loops: Some(|c| {
        let [m, n] = sizes(&c.shape(0));
        let columns = *c.out_shape(0).last().unwrap_or(&0);
        Ok(factor_loops(
            c,
            "mithril_qr",
            vec![m, n, columns].into_iter().map(CallArgument::Int),
            m * n + m + n,
        ))
    }),
    grad: Grad::Formula(qr_grad),
    lowering: Lowering {
        py: Template("_qr({0}, {1})"),
        mlx: Template("_orthogonal_factors({0}, {1})"),
        ..Lowering::NONE
    },
    cases: &[
        "[3,3]",
        "[4,2]",
        "[2,4]",
        "[2,5,3]",
        "[3,3] mode=\"complete\"",
        "[2,2,4] mode=\"complete\"",
        "[1,1]",
        "[0,3]",
        "[3,0]",
        "[2,0,2,3]",
    ],
    ..FACTOR
};

/// `input = vectors · diag(values) · vectorsᵀ`
pub static EIGH: OpDef = OpDef {
    name: "eigh",
    doc: "Eigenvalues, in ascending order, and orthonormal eigenvectors, as columns, of symmetric matrices \
          `[..., n, n]`.\n\n\
          Decomposes the symmetric part `(input + inputᵀ) / 2`, so that rounding in `input` does not \
          matter and the gradient is symmetric. Of each vector the first element that is not small (more than 0.63 / \
          √n in magnitude) is positive. Of an eigenvalue that occurs several times only the space of its vectors is \
          determined: which ones are found differs from backend to backend, and the gradient of the vectors is NaN, \
          since there is none. (`eigvalsh` has a gradient there.) A matrix with an element that is not finite gives \
          NaN.",
    layer: "Eigh",
    outputs: &["values", "vectors"],
    shape: ShapeRule::Fn(|cx| {
        let mut values = square(cx, 0)?;
        values.0.push(cx.shape(0)[values.rank()].clone());
        Ok(vec![values, cx.shape(0).clone()])
    }),
    eval: Some(Eval::Tensors(|c| each(c, |a, [n, _]| evaluate::eigh(a, n)))),
    loops: Some(|c| {
        let [n, _] = sizes(&c.shape(0));
        Ok(factor_loops(c, "mithril_eigh", [CallArgument::Int(n)].into_iter(), 2 * n * n + n))
    }),
    grad: Grad::Formula(eigh_grad),
    lowering: Lowering { py: Template("_eigh({0})"), mlx: Template("_eigenvectors({0})"), ..Lowering::NONE },
    cases: &["[4,4]", "[2,3,3]", "[1,1]", "[0,0]", "[0,2,2]"],
    ..FACTOR
};

/// Eigenvalues alone
pub static EIGVALSH: OpDef = OpDef {
    name: "eigvalsh",
    doc: "Eigenvalues of symmetric matrices `[..., n, n]`, in ascending order: the first output of `eigh`. The \
          gradient exists for eigenvalues that occur several times too: it is that of their sum, shared by the \
          vectors that were found.",
    layer: "Eigvalsh",
    shape: ShapeRule::Fn(|cx| {
        let mut values = square(cx, 0)?;
        values.0.push(cx.shape(0)[values.rank()].clone());
        Ok(vec![values])
    }),
    expand: Some(|c| vec![c.cx.apply(&EIGH, &[c.x[0]])[0]]),
    grad: Grad::Formula(|v| {
        let vectors = v.cx.apply(&EIGH, &[v.x[0]])[1];
        vec![(vectors * as_row(v.g)).matmul(transposed(vectors))]
    }),
    cases: &["spd[3,3]", "[2,4,4]", "[1,1]", "[0,0]"],
    ..FACTOR
};

/// The reduced singular value decomposition
pub static THIN_SVD: OpDef = OpDef {
    name: "thin_svd",
    doc: "Singular values `s`, in descending order, with `u @ diag(s) @ vh = input`, for matrices `[..., m, n]`; \
          `u` is `[..., m, k]` and `vh` `[..., k, n]` with `k = min(m, n)`. It is `svd` without full matrices; signs, \
          special values and gradient are as there.",
    layer: "ThinSvd",
    outputs: &["u", "s", "vh"],
    shape: ShapeRule::Fn(svd_shape),
    eval: Some(Eval::Tensors(|c| each(c, |a, [m, n]| evaluate::svd(a, m, n, c.dtype().epsilon())))),
    loops: Some(|c| {
        let [m, n] = sizes(&c.shape(0));
        let more =
            [CallArgument::Int(m), CallArgument::Int(n), CallArgument::Float(c.out_dtype(0).epsilon())];
        Ok(factor_loops(c, "mithril_svd", more.into_iter(), m * n + m.min(n) * (m.min(n) + 1)))
    }),
    grad: Grad::Formula(svd_grad),
    lowering: Lowering {
        py: Template("_svd({0})"),
        mlx: Template("_singular_vectors({0})"),
        ..Lowering::NONE
    },
    cases: &["[3,3]", "[4,2]", "[2,4]", "[2,5,3]", "[1,1]", "[1,3]", "[0,3]", "[3,0]", "[2,0,2,3]"],
    ..FACTOR
};

/// `input = u · diag(s) · vh`
pub static SVD: OpDef = OpDef {
    name: "svd",
    doc: "The singular value decomposition `u @ diag(s) @ vh = input` of matrices `[..., m, n]`, with the singular \
          values `s` in descending order and orthonormal columns of `u` and rows of `vh`.\n\n\
          With `full_matrices`, `u` is `[..., m, m]` and `vh` `[..., n, n]`; else they have `min(m, n)` columns and \
          rows. Of each column of `u` the first element that is not small (more than 0.63 / √m in magnitude) is \
          positive, which decides the sign of the row of `vh` too; where a singular value is 0 up to rounding, the \
          row of `vh` has its own sign, by the same rule. Of a singular value that occurs several times (0 too) only \
          the space of its vectors is determined: which ones are found differs from backend to backend, and the \
          gradient of the vectors is NaN, since there is none. (`svdvals` has a gradient there.) What completes full \
          matrices are the columns that `qr` completes `u` by; they have no gradient. A matrix with an element that \
          is not finite gives NaN. Gradient: Townsend, Differentiating the singular value decomposition (2016).",
    layer: "Svd",
    ports: &[MATRICES, attr("full_matrices", Attr::Bool, DefaultLit::Bool(true))],
    outputs: &["u", "s", "vh"],
    shape: ShapeRule::Fn(|cx| {
        if !cx.bool(1)? {
            return svd_shape(cx);
        }
        let (batch, m, n) = matrices(cx, 0)?;
        let k = smaller(&m, &n).ok_or_else(|| cx.unknown())?;
        Ok(vec![with(&batch, &[&m, &m]), with(&batch, &[&k]), with(&batch, &[&n, &n])])
    }),
    expand: Some(|c| {
        let svd = c.cx.apply(&THIN_SVD, &[c.x[0]]);
        let (u, s, vh) = (svd[0], svd[1], svd[svd.len() - 1]);
        if !c.get(|c| c.bool(1)) {
            return vec![u, s, vh];
        }
        vec![completed(u), s, transposed(completed(transposed(vh)))]
    }),
    cases: &["[3,3]", "[4,2] full_matrices=false", "[2,4] full_matrices=false", "[2,3,3]", "[0,0]"],
    ..FACTOR
};

/// Singular values alone
pub static SVDVALS: OpDef = OpDef {
    name: "svdvals",
    doc: "Singular values of matrices `[..., m, n]`, in descending order: the second output of `svd`. The gradient \
          exists for singular values that occur several times too: it is that of their sum, shared by the vectors \
          that were found.",
    layer: "SingularValues",
    shape: ShapeRule::Fn(|cx| Ok(vec![svd_shape(cx)?.swap_remove(1)])),
    expand: Some(|c| vec![singular_values(c.x[0])]),
    grad: Grad::Formula(|v| {
        let svd = v.cx.apply(&THIN_SVD, &[v.x[0]]);
        vec![(svd[0] * as_row(v.g)).matmul(svd[svd.len() - 1])]
    }),
    cases: &["[3,3]", "[4,2]", "[2,2,4]", "[1,1]", "[0,3]"],
    ..FACTOR
};

// --- shapes --------------------------------------------------------------------------------------------------

/// Leading axes, rows and columns of the matrices at argument `i`.
pub(super) fn matrices(cx: &ShapeCx<'_>, i: usize) -> Result<(Shape, Dim, Dim)> {
    let shape = cx.shape(i);
    let [batch @ .., rows, columns] = &shape[..] else {
        let port = cx.op().ports[i].name;
        let message = format!("`{port}` of {} has shape {shape}", cx.op().name);
        return Err(Error::new(Code::RankMismatch, message).help("it must be matrices [..., m, n]"));
    };
    Ok((batch.iter().cloned().collect(), rows.clone(), columns.clone()))
}

/// The smaller of two sizes; `None` if that is not known.
fn smaller(a: &Dim, b: &Dim) -> Option<Dim> {
    let difference = (a - b).known()?;
    Some(if difference <= 0 { a.clone() } else { b.clone() })
}

fn with(batch: &Shape, sizes: &[&Dim]) -> Shape {
    batch.iter().chain(sizes.iter().copied()).cloned().collect()
}

fn qr_shape(cx: &ShapeCx<'_>) -> Result<Vec<Shape>> {
    let (batch, m, n) = matrices(cx, 0)?;
    let least = smaller(&m, &n).ok_or_else(|| cx.unknown())?;
    let k = if cx.text(1)? == "complete" { m.clone() } else { least };
    Ok(vec![with(&batch, &[&m, &k]), with(&batch, &[&k, &n])])
}

fn svd_shape(cx: &ShapeCx<'_>) -> Result<Vec<Shape>> {
    let (batch, m, n) = matrices(cx, 0)?;
    let k = smaller(&m, &n).ok_or_else(|| cx.unknown())?;
    Ok(vec![with(&batch, &[&m, &k]), with(&batch, &[&k]), with(&batch, &[&k, &n])])
}

// --- formulas ------------------------------------------------------------------------------------------------

/// Singular values alone, where the vectors are not used.
pub(super) fn singular_values(x: V<'_>) -> V<'_> {
    let svd = x.cx().apply(&THIN_SVD, &[x]);
    svd[1.min(svd.len() - 1)]
}

/// `[..., n]` as `[..., 1, n]`
pub(super) fn as_row(x: V<'_>) -> V<'_> {
    let shape = x.shape();
    let Some((n, batch)) = shape.split_last() else { return x };
    reshape(x, batch.iter().cloned().chain([Dim::ONE, n.clone()]))
}

/// Columns (along the last axis) or rows (along the one before it), from `start` to `stop`.
fn part<'a>(x: V<'a>, from_end: usize, start: Option<&Dim>, stop: Option<&Dim>) -> V<'a> {
    cut(x, x.rank().saturating_sub(from_end), start.cloned(), stop.cloned())
}

/// The orthonormal columns of `q`, completed to a square orthogonal matrix.
fn completed(q: V<'_>) -> V<'_> {
    let (m, k) = (q.dim(-2), q.dim(-1));
    if m == k {
        return q;
    }
    let all = q.cx().apply(&QR, &[q, q.lit(Lit::text("complete"))])[0];
    let more = part(all, 1, Some(&k), None);
    q.cx().concat(-1, &[q, more])
}

fn product<'a>(a: V<'a>, b: V<'a>) -> V<'a> {
    a.matmul(b)
}

/// The lower triangle of a matrix, mirrored to the upper one.
fn mirrored(x: V<'_>) -> V<'_> {
    x.tril(0) + transposed(x.tril(-1))
}

fn qr_grad<'a>(v: &GradCx<'a>) -> Vec<V<'a>> {
    let (x, q, r) = (v.x[0], v.ys[0], v.ys[v.ys.len() - 1]);
    let (to_q, to_r) = (v.gs[0], v.gs[v.gs.len() - 1]);
    let (m, n) = (x.dim(-2), x.dim(-1));
    if q.dim(-1) != r.dim(-2) || smaller(&q.dim(-1), &n).is_none_or(|k| k != q.dim(-1)) {
        v.cx.fail(
            Error::new(
                Code::NoGradient,
                "what completes orthonormal columns to a square matrix has no gradient",
            )
            .note(format!("the matrices of {} are {m} by {n}", v.op.name))
            .help("use mode=\"reduced\" in qr, full_matrices=False in svd"),
        );
        return vec![v.none()];
    }
    // Columns after the m-th are qᵀ times those of the input.
    let is_wide = m == q.dim(-1) && m != n;
    let square = |t: V<'a>| if is_wide { part(t, 1, None, Some(&m)) } else { t };
    let rest = |t: V<'a>| part(t, 1, Some(&m), None);
    let to_q = if is_wide { to_q + product(rest(x), transposed(rest(to_r))) } else { to_q };
    let (triangle, to_triangle) = (square(r), square(to_r));
    let inner = product(triangle, transposed(to_triangle)) - product(transposed(to_q), q);
    let right = to_q + product(q, mirrored(inner));
    // right · r⁻ᵀ
    let solution = triangle.op(&TRIANGULAR_SOLVE, &[transposed(right), v.cx.lit(false)]);
    let solution = transposed(solution);
    if !is_wide {
        return vec![solution];
    }
    vec![v.cx.concat(-1, &[solution, product(q, rest(to_r))])]
}

/// Differences `x_j - x_i` of all pairs along the last axis, as divisors: 1 on the diagonal, and NaN for two values that are
/// equal up to rounding.
fn differences(x: V<'_>) -> V<'_> {
    let dtype = x.dtype();
    let all = as_row(x) - as_column(x);
    let total = x.abs().sum(-1, true);
    let limit = as_column(total) * dtype.epsilon();
    let is_close = all.abs().less_equal(limit);
    let distinct = is_close.select(f64::NAN, all);
    identity(x, DType::Bool).select(1.0, distinct)
}

/// The identity of the size of the last axis.
fn identity(x: V<'_>, dtype: DType) -> V<'_> {
    let cx = x.cx();
    cx.call(&EYE, &[cx.lit(x.dim(-1)), cx.lit(Lit::None), cx.lit(0), cx.lit(dtype)])
}

fn skew(x: V<'_>) -> V<'_> {
    x - transposed(x)
}

/// Diagonal matrices from their diagonals.
fn diagonal(x: V<'_>) -> V<'_> {
    as_row(x) * identity(x, x.dtype())
}

/// Whether a cotangent consists of the zeros for an output that is not used.
pub(super) fn is_zero(g: V<'_>) -> bool {
    let graph = g.cx().graph();
    let Some(node) = graph.producer(g.id()).map(|n| graph.node(n)) else { return false };
    node.op == &super::create::FULL && matches!(graph.lit(node.inputs[1]), Some(Lit::Float(0.0)))
}

fn eigh_grad<'a>(v: &GradCx<'a>) -> Vec<V<'a>> {
    let (values, vectors) = (v.ys[0], v.ys[v.ys.len() - 1]);
    let (to_values, to_vectors) = (v.gs[0], v.gs[v.gs.len() - 1]);
    let mut inner = diagonal(to_values);
    if !is_zero(to_vectors) {
        let mixing = skew(product(transposed(vectors), to_vectors));
        inner = inner + mixing * 0.5 / differences(values);
    }
    vec![product(product(vectors, inner), transposed(vectors))]
}

fn svd_grad<'a>(v: &GradCx<'a>) -> Vec<V<'a>> {
    let [u, s, vh] = [0, 1, 2].map(|i| v.ys[i.min(v.ys.len() - 1)]);
    let [to_u, to_s, to_vh] = [0, 1, 2].map(|i| v.gs[i.min(v.gs.len() - 1)]);
    let mut inner = diagonal(to_s);
    if is_zero(to_u) && is_zero(to_vh) {
        return vec![product(product(u, inner), vh)];
    }
    // s_j² - s_i² as a product of factors without cancellation.
    let squares = differences(s) * (as_row(s) + as_column(s));
    let squares = identity(s, DType::Bool).select(1.0, squares);
    let (ut, vt) = (transposed(u), transposed(vh));
    inner = inner + skew(product(ut, to_u)) / squares * as_row(s);
    inner = inner + as_column(s) * (skew(product(vh, transposed(to_vh))) / squares);
    let mut gradient = product(product(u, inner), vh);
    // The part outside of the span of the singular vectors, which is undefined if a singular value is 0.
    let total = s.abs().sum(-1, true);
    let is_lost = s.less_equal(total * s.dtype().epsilon());
    let size = is_lost.select(f64::NAN, s);
    if u.dim(-2) != s.dim(-1) {
        let outside = to_u - product(u, product(ut, to_u));
        gradient = gradient + product(outside / as_row(size), vh);
    }
    if vh.dim(-1) != s.dim(-1) {
        let outside = to_vh - product(product(to_vh, vt), vh);
        gradient = gradient + product(u, outside / as_column(size));
    }
    vec![gradient]
}

// --- evaluation ----------------------------------------------------------------------------------------------

fn sizes<T: Copy + Default>(shape: &[T]) -> [T; 2] {
    match shape {
        [.., m, n] => [*m, *n],
        _ => [T::default(); 2],
    }
}

/// Calls a C function that computes in float64: matrices, outputs, their number, and the arguments `more`.
fn factor_loops(
    c: &LoopCx<'_>,
    function: &str,
    more: impl Iterator<Item = CallArgument>,
    scratch: i64,
) -> Vec<Expr> {
    let shape = c.shape(0);
    let count = shape[..shape.len() - 2].iter().product();
    let outputs: Vec<usize> = (0..c.out_len()).map(|i| c.reserve(DType::F64, c.out_shape(i))).collect();
    let mut args = vec![CallArgument::In(c.stored(0, DType::F64))];
    args.extend(outputs.iter().map(|&output| CallArgument::Out(output)));
    args.push(CallArgument::Int(count));
    args.extend(more);
    c.call(function, args, scratch.max(1) as usize * 8);
    let rounded = |(i, output): (usize, usize)| c.output(i, |at| c.load(output, at).cast(c.out_dtype(i)));
    outputs.into_iter().enumerate().map(rounded).collect()
}

/// The outputs for each matrix; NaN for a matrix with an element that is not finite.
fn each(call: &EvalCx<'_>, f: impl Fn(&[f64], [usize; 2]) -> Option<Vec<Vec<f64>>>) -> Result<Vec<Tensor>> {
    let x = call.tensor(0);
    let [m, n] = sizes(x.shape());
    let count: usize = x.shape()[..x.rank() - 2].iter().product();
    let values = elements::<f64>(x);
    let mut out: Vec<Vec<f64>> =
        call.out.iter().map(|(_, shape)| Vec::with_capacity(shape.iter().product())).collect();
    for i in 0..count {
        let a = &values[i * m * n..(i + 1) * m * n];
        let outputs = if a.iter().all(|x| x.is_finite()) { f(a, [m, n]) } else { None };
        for (k, (part, (_, shape))) in out.iter_mut().zip(call.out).enumerate() {
            if let Some(outputs) = &outputs {
                part.extend(&outputs[k]);
            } else {
                let size: usize = shape.iter().product();
                part.resize(part.len() + size / count, f64::NAN);
            }
        }
    }
    let tensors = call.out.iter().zip(out);
    Ok(tensors.map(|((dtype, shape), values)| from_f64s(*dtype, shape, values)).collect())
}
