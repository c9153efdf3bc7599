//! Linear systems, inverses, determinants and the Cholesky factor.

use crate::build::{Call, GradCall, V};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::interp::{HostCall, broadcast_index, elements, from_f64s};
use crate::literal::Lit;
use crate::loops::{Argument, Expr, LoopCx};
use crate::op::{
    Attr, BLANK, DTypeRule, DefaultLit, Eval, Grad, OpDef, Port, ShapeRule, Spell, Text, Tolerance, attr,
    tensor,
};
use crate::rules::{Attrs, DTypeCx, DTypes, ShapeCx};
use crate::shape::Shape;
use crate::spell::SpellCx;
use crate::tensor::Tensor;

use super::create::EYE;
use super::linalg::{MATMUL, as_column, reshape, transposed};
use super::movement::BROADCAST_TO;
use super::triangle::{TRIL, TRIU};

/// Rows of this file.
pub static OPS: &[&OpDef] = &[&SOLVE, &TRIANGULAR_SOLVE, &INV, &DET, &SLOGDET, &CHOLESKY, &MATRIX_POWER];

static INPUT: &[Port] = &[tensor("input")];

/// What the rows share.
const MATRIX: OpDef = OpDef {
    ports: INPUT,
    dtype: DTypeRule::Fn(precise),
    tolerance: Tolerance::Decomposition,
    // Positive and with room: random matrices that are close to singular test nothing but their condition.
    domain: (0.25, 2.0),
    ..BLANK
};

/// Solution of `left · x = right`
pub static SOLVE: OpDef = OpDef {
    name: "solve",
    doc: "The solution `x` of the linear systems `left @ x = right`.\n\n\
          `left` is `[..., n, n]`. `right` is `[..., n, k]`, one system a column, or a vector `[n]`; the leading \
          axes broadcast. A singular matrix is an error. Lower precision than float32 is refused.",
    ports: &[tensor("left"), tensor("right")],
    shape: ShapeRule::Fn(solve_shape),
    eval: Some(Eval::Host(|c| solve_eval(c, |a, n| Lu::new(a, n).map(Factor::Lu)))),
    grad: Grad::Formula(|v| {
        let to_right = solved(v, &SOLVE, transposed(v.x[0]), &[]);
        vec![-outer(v, to_right, v.y), to_right]
    }),
    spell: Spell {
        numpy: Text::T("np.linalg.solve({0}, {1})"),
        torch: Text::F(|s| Some(format!("torch.linalg.solve({}, {})", s.arg(0), aligned(s)?))),
        jax: Text::F(|s| Some(format!("jnp.linalg.solve({}, {})", s.arg(0), aligned(s)?))),
        mlx: Text::T("_solve({0}, {1})"),
        ..Spell::NONE
    },
    loops: Some(|c| solve_loops(c, "mithril_solve", &[])),
    cases: &[
        "spd[3,3] [3]",
        "spd[3,3] [3,2]",
        "spd[2,3,3] [2,3,1]",
        "spd[2,1,3,3] [4,3,2]",
        "spd[2,3,3] [3]",
        "spd[1,1] [1]",
    ],
    layer: "Solve",
    ..MATRIX
};

static TRIANGULAR_PORTS: &[Port] = &[
    tensor("left"),
    tensor("right"),
    attr("lower", Attr::Bool, DefaultLit::Bool(true)),
    attr("transpose", Attr::Bool, DefaultLit::Bool(false)),
];

/// Solution of `left · x = right` with a triangular `left`
pub static TRIANGULAR_SOLVE: OpDef = OpDef {
    name: "triangular_solve",
    doc: "The solution `x` of the linear systems `left @ x = right` with a triangular matrix.\n\n\
          Only the lower triangle of `left` is read, or the upper one with `lower=False`. With `transpose` the \
          systems are `leftᵀ @ x = right`. Shapes are as in `solve`; a zero on the diagonal is an error.",
    ports: TRIANGULAR_PORTS,
    shape: ShapeRule::Fn(solve_shape),
    eval: Some(Eval::Host(|c| {
        let (lower, transpose) = (c.bool(2)?, c.bool(3)?);
        solve_eval(c, |a, n| Triangle::new(a, n, lower, transpose).map(Factor::Triangle))
    })),
    grad: Grad::Formula(|v| {
        let (lower, transpose) = (v.get(|c| c.bool(2)), v.get(|c| c.bool(3)));
        let to_right = solved(v, &TRIANGULAR_SOLVE, v.x[0], &[v.x[2], v.cx.lit(!transpose)]);
        let full = if transpose { outer(v, v.y, to_right) } else { outer(v, to_right, v.y) };
        vec![-full.op(if lower { &TRIL } else { &TRIU }, &[]), to_right]
    }),
    expand: Some(|c| {
        let (lower, transpose) = (c.get(|c| c.bool(2)), c.get(|c| c.bool(3)));
        let triangle = c.x[0].op(if lower { &TRIL } else { &TRIU }, &[]);
        vec![if transpose { transposed(triangle) } else { triangle }.op(&SOLVE, &[c.x[1]])]
    }),
    spell: Spell {
        torch: Text::F(|s| {
            triangular_text(s, |a, b, upper| {
                format!("torch.linalg.solve_triangular({a}, {b}, upper={upper})")
            })
        }),
        ..Spell::NONE
    },
    loops: Some(|c| {
        let options = [c.bool(2)?, c.bool(3)?].map(|yes| Argument::Int(yes.into()));
        solve_loops(c, "mithril_triangular_solve", &options)
    }),
    cases: &[
        "spd[3,3] [3]",
        "spd[3,3] [3,2] lower=false",
        "spd[2,3,3] [2,3,1] transpose=true",
        "spd[2,1,3,3] [4,3,2] lower=false transpose=true",
    ],
    layer: "TriangularSolve",
    ..MATRIX
};

/// Inverse matrix
pub static INV: OpDef = OpDef {
    name: "inv",
    doc: "The inverses of square matrices `[..., n, n]`; a singular matrix is an error. To solve a linear system, \
          `solve` is faster and more exact.",
    shape: ShapeRule::Fn(|cx| {
        square(cx, 0)?;
        Ok(vec![cx.shape(0).clone()])
    }),
    eval: Some(Eval::Host(|c| {
        let n = size(c.tensor(0));
        let identity: Vec<f64> = (0..n * n).map(|i| f64::from(u8::from(i / n == i % n))).collect();
        each_matrix(c, |a| {
            let mut x = identity.clone();
            Lu::new(a, n).ok_or_else(|| singular(c))?.solve(&mut x, n);
            Ok(x)
        })
    })),
    grad: Grad::Formula(|v| {
        let y = transposed(v.y);
        vec![-y.op(&MATMUL, &[v.g]).op(&MATMUL, &[y])]
    }),
    spell: Spell { mlx: Text::T("_inv({0})"), ..Spell::py("{xp}.linalg.inv({0})") },
    loops: Some(|c| Ok(matrix_loops(c, "mithril_inverse", true))),
    cases: &["spd[3,3]", "spd[2,3,3]", "spd[1,1]", "spd[2,0,2,2]"],
    layer: "Inverse",
    aliases: &["inverse"],
    ..MATRIX
};

/// Determinant
pub static DET: OpDef = OpDef {
    name: "det",
    doc: "The determinants of square matrices `[..., n, n]`; that of an empty matrix is 1. The gradient needs a \
          matrix that is not singular.",
    shape: ShapeRule::Fn(|cx| square(cx, 0).map(|batch| vec![batch])),
    eval: Some(Eval::Host(|c| {
        let n = size(c.tensor(0));
        each_matrix(c, |a| Ok(vec![Lu::new(a, n).map_or(0.0, |lu| lu.diagonal().product::<f64>() * lu.sign)]))
    })),
    grad: Grad::Formula(|v| vec![scaled(v.g * v.y, inverse_transpose(v.x[0]))]),
    spell: Spell {
        mlx: Text::F(|s| {
            let ones = empty_batch(s).map(|(shape, dtype)| format!("mx.ones({shape}, {dtype})"));
            Some(ones.unwrap_or_else(|| format!("_det({})", s.arg(0))))
        }),
        jax: Text::F(|s| empty_batch(s).map(|(shape, dtype)| format!("jnp.ones({shape}, {dtype})"))),
        ..Spell::py("{xp}.linalg.det({0})")
    },
    loops: Some(|c| Ok(matrix_loops(c, "mithril_determinant", true))),
    cases: &["spd[3,3]", "spd[2,3,3]", "spd[1,1]", "spd[2,0,0]", "spd[4,4]"],
    layer: "Determinant",
    ..MATRIX
};

/// Sign and logarithm of the determinant
pub static SLOGDET: OpDef = OpDef {
    name: "slogdet",
    doc: "Sign and natural logarithm of the absolute value of the determinants of matrices `[..., n, n]`; of a \
          singular matrix 0 and -inf. It does not overflow where `det` does.",
    outputs: &["sign", "logabsdet"],
    shape: ShapeRule::Fn(|cx| square(cx, 0).map(|batch| vec![batch.clone(), batch])),
    eval: Some(Eval::Host(slogdet_eval)),
    grad: Grad::Formula(|v| vec![scaled(v.gs[1], inverse_transpose(v.x[0]))]),
    spell: Spell {
        mlx: Text::F(|s| {
            let both = |(shape, dtype)| format!("(mx.ones({shape}, {dtype}), mx.zeros({shape}, {dtype}))");
            let call = || format!("_slogdet({})", s.arg(0));
            Some(empty_batch(s).map_or_else(call, both))
        }),
        ..Spell::py("{xp}.linalg.slogdet({0})")
    },
    loops: Some(|c| Ok(matrix_loops(c, "mithril_log_determinant", true))),
    cases: &["spd[3,3]", "spd[2,3,3]", "spd[1,1]", "spd[2,5,5]"],
    layer: "SlogDeterminant",
    ..MATRIX
};

/// Lower Cholesky factor
pub static CHOLESKY: OpDef = OpDef {
    name: "cholesky",
    doc: "The lower triangular `L` with a positive diagonal and `L @ Lᵀ = input`, for symmetric positive definite \
          matrices `[..., n, n]`.\n\n\
          What is decomposed is the symmetric part `(input + inputᵀ) / 2`, so that rounding in `input` does not \
          matter and the gradient is symmetric. A matrix that is not positive definite is an error. Gradient: \
          Murray, Differentiation of the Cholesky decomposition (2016).",
    shape: ShapeRule::Fn(|cx| {
        square(cx, 0)?;
        Ok(vec![cx.shape(0).clone()])
    }),
    eval: Some(Eval::Host(|c| {
        let n = size(c.tensor(0));
        each_matrix(c, |a| cholesky(a, n).ok_or_else(|| indefinite(c)))
    })),
    grad: Grad::Formula(cholesky_grad),
    spell: Spell {
        numpy: Text::T("_cholesky({0})"),
        torch: Text::T("torch.linalg.cholesky(({0} + {0}.mT) / 2)"),
        jax: Text::T("jnp.linalg.cholesky({0})"),
        mlx: Text::T("_cholesky({0})"),
        ..Spell::NONE
    },
    loops: Some(|c| Ok(matrix_loops(c, "mithril_cholesky", false))),
    cases: &["spd[3,3]", "spd[2,3,3]", "spd[1,1]"],
    layer: "Cholesky",
    ..MATRIX
};

static POWER_PORTS: &[Port] = &[tensor("input"), attr("n", Attr::Int, DefaultLit::Required)];

/// Repeated matrix product
pub static MATRIX_POWER: OpDef = OpDef {
    name: "matrix_power",
    doc: "The product of `n` copies of square matrices `[..., m, m]`: the identity for `n = 0`, the power of the \
          inverse for negative `n`.",
    ports: POWER_PORTS,
    shape: ShapeRule::Fn(|cx| {
        square(cx, 0)?;
        Ok(vec![cx.shape(0).clone()])
    }),
    dtype: DTypeRule::Expansion,
    expand: Some(|c| vec![matrix_power(c)]),
    cases: &["spd[3,3] n=2", "spd[2,3,3] n=5", "spd[3,3] n=0", "spd[3,3] n=-2", "spd[2,2] n=1"],
    layer: "MatrixPower",
    ..MATRIX
};

fn matrix_power<'a>(c: &Call<'a>) -> V<'a> {
    let (x, n) = (c.x[0], c.get(|c| c.int(1)));
    if n == 0 {
        let shape = x.shape();
        let eye = x.dim(-1);
        let eye = x.lit(eye).op(&EYE, &[x.lit(Lit::None), x.lit(0), x.lit(x.dtype())]);
        return eye.op(&BROADCAST_TO, &[x.lit(shape.0.to_vec())]);
    }
    let mut square = if n < 0 { x.op(&INV, &[]) } else { x };
    let mut product = None;
    let mut left = n.unsigned_abs();
    loop {
        if left % 2 == 1 {
            product = Some(product.map_or(square, |p: V<'a>| p.op(&MATMUL, &[square])));
        }
        left /= 2;
        if left == 0 {
            return product.unwrap_or(square);
        }
        square = square.op(&MATMUL, &[square]);
    }
}

/// Floats of at least single precision; integers become the default float.
fn precise(cx: &DTypeCx<'_>) -> Result<DTypes> {
    let dtype = Some(cx.promoted()).filter(|d| d.is_float()).unwrap_or(cx.float);
    if dtype.size() < DType::F32.size() {
        let message = format!("{} of {} is not possible", cx.op().name, dtype.name());
        return Err(Error::new(Code::DTypeMismatch, message)
            .note("a decomposition in lower precision than float32 has no correct digit to speak of")
            .help("convert the input with cast to float32 and the result back"));
    }
    Ok(DTypes::all(cx, dtype, std::iter::repeat_n(dtype, cx.op().outputs.len())))
}

/// Checks that argument `i` holds square matrices; its leading axes.
fn square(cx: &ShapeCx<'_>, i: usize) -> Result<Shape> {
    let shape = cx.shape(i);
    let [batch @ .., rows, columns] = &shape[..] else {
        let port = cx.op().ports[i].name;
        let message = format!("`{port}` of {} has shape {shape}", cx.op().name);
        return Err(Error::new(Code::RankMismatch, message).help("it has to be square matrices [..., n, n]"));
    };
    cx.same(rows, columns, "rows and columns of the matrix")?;
    Ok(batch.iter().cloned().collect())
}

fn solve_shape(cx: &ShapeCx<'_>) -> Result<Vec<Shape>> {
    let left = square(cx, 0)?;
    let n = &cx.shape(0)[left.rank()];
    match &cx.shape(1)[..] {
        [] => {
            let message = format!("`{}` of {} is 0-d", cx.op().ports[1].name, cx.op().name);
            Err(Error::new(Code::RankMismatch, message)
                .help("it has to be a vector [n] or matrices [..., n, k]"))
        }
        [rows] => {
            cx.same(n, rows, "sizes of the systems")?;
            let mut out = left;
            out.0.push(n.clone());
            Ok(vec![out])
        }
        [batch @ .., rows, columns] => {
            cx.same(n, rows, "sizes of the systems")?;
            let mut out = cx.broadcast(&[&left, &batch.iter().cloned().collect()])?;
            out.0.extend([n.clone(), columns.clone()]);
            Ok(vec![out])
        }
    }
}

/// Shape and dtype of determinants of matrices without elements, of which MLX and JAX take no gradient.
fn empty_batch(s: &SpellCx<'_>) -> Option<(String, &'static str)> {
    let is_empty = s.ty(0)?.shape.iter().any(|d| d.is(0));
    let out = s.out(0)?;
    is_empty.then(|| (s.dims(&out.shape), s.dtype(out.dtype)))
}

// --- gradients -----------------------------------------------------------------------------------------------

/// The systems with the cotangents on the right; those of a vector are columns for matrices of any number.
fn solved<'a>(v: &GradCall<'a>, op: &'static OpDef, left: V<'a>, options: &[V<'a>]) -> V<'a> {
    let vector = v.x[1].rank() == 1;
    let right = if vector { as_column(v.g) } else { v.g };
    let x = left.op(op, &[&[right], options].concat());
    if vector { reshape(x, v.g.shape().0) } else { x }
}

/// `a · bᵀ` for solutions, which are vectors or columns of a matrix.
fn outer<'a>(v: &GradCall<'a>, a: V<'a>, b: V<'a>) -> V<'a> {
    if v.x[1].rank() == 1 {
        let shape = b.shape();
        let Some((n, batch)) = shape.split_last() else { return a };
        return as_column(a) * reshape(b, batch.iter().cloned().chain([Dim::ONE, n.clone()]));
    }
    a.op(&MATMUL, &[transposed(b)])
}

fn cholesky_grad<'a>(v: &GradCall<'a>) -> Vec<V<'a>> {
    let product = transposed(v.y).op(&MATMUL, &[v.g]);
    // Lower triangle with half the diagonal: the mean of the triangle with and without it.
    let strict = product.op(&TRIL, &[v.cx.lit(-1)]);
    let phi = (product.op(&TRIL, &[]) + strict) * 0.5;
    // L⁻ᵀ Φ L⁻¹, by two triangular systems.
    let (lower, transpose) = (v.cx.lit(true), v.cx.lit(true));
    let half = v.y.op(&TRIANGULAR_SOLVE, &[phi, lower, transpose]);
    let full = transposed(v.y.op(&TRIANGULAR_SOLVE, &[transposed(half), lower, transpose]));
    vec![(full + transposed(full)) * 0.5]
}

fn inverse_transpose(x: V<'_>) -> V<'_> {
    transposed(x.op(&INV, &[]))
}

/// Each matrix times its factor.
fn scaled<'a>(factors: V<'a>, matrices: V<'a>) -> V<'a> {
    as_column(as_column(factors)) * matrices
}

// --- spellings -----------------------------------------------------------------------------------------------

/// The right-hand side such that a framework which takes `[..., n]` for vectors does not take a matrix for them.
fn aligned(s: &SpellCx<'_>) -> Option<String> {
    let (left, right) = (s.ty(0)?.shape.rank(), s.ty(1)?.shape.rank());
    let ambiguous = right > 1 && right + 1 == left;
    Some(if ambiguous { format!("{}[None]", s.arg(1)) } else { s.arg(1).into() })
}

fn triangular_text(s: &SpellCx<'_>, call: fn(&str, &str, &str) -> String) -> Option<String> {
    let (lower, transpose) = (s.bool(2).ok()?, s.bool(3).ok()?);
    let vector = s.ty(1)?.shape.rank() == 1;
    let left = if transpose { format!("{}.mT", s.arg(0)) } else { s.arg(0).into() };
    let right = if vector { format!("{}[:, None]", s.arg(1)) } else { aligned(s)? };
    let text = call(&left, &right, if lower == transpose { "True" } else { "False" });
    Some(if vector { format!("{text}[..., 0]") } else { text })
}

// --- calls of the C prelude ----------------------------------------------------------------------------------

/// Bytes in which a factorised matrix and the order of its rows find room.
fn factor_bytes(n: i64) -> usize {
    (n * n + n).max(1) as usize * 8
}

/// A function of each matrix, computed in float64.
fn matrix_loops(c: &LoopCx<'_>, function: &str, factorises: bool) -> Vec<Expr> {
    let shape = c.shape(0);
    let (n, count) = (shape[shape.len() - 1], shape[..shape.len() - 2].iter().product());
    let outputs: Vec<usize> = (0..c.out_len()).map(|i| c.reserve(DType::F64, c.out_shape(i))).collect();
    let mut args = vec![Argument::In(c.stored(0, DType::F64))];
    args.extend(outputs.iter().map(|&output| Argument::Out(output)));
    args.extend([count, n].map(Argument::Int));
    c.call(function, args, if factorises { factor_bytes(n) } else { 0 });
    let rounded = |(i, output): (usize, usize)| c.output(i, |at| c.load(output, at).cast(c.out_dtype(i)));
    outputs.into_iter().enumerate().map(rounded).collect()
}

/// The solutions of systems, whose leading axes broadcast.
fn solve_loops(c: &LoopCx<'_>, function: &str, options: &[Argument]) -> Result<Vec<Expr>> {
    let (shape, is_vector) = (c.out_shape(0), c.rank(1) == 1);
    let n = c.shape(0)[c.rank(0) - 1];
    let batch = &shape[..shape.len() - if is_vector { 1 } else { 2 }];
    let columns = if is_vector { 1 } else { shape[shape.len() - 1] };
    let left = c.stored_as(0, DType::F64, &[batch, &[n, n]].concat());
    let right = c.stored_as(1, DType::F64, shape);
    let output = c.reserve(DType::F64, shape);
    let mut args = vec![Argument::In(left), Argument::In(right), Argument::Out(output)];
    args.extend([batch.iter().product(), n, columns].map(Argument::Int));
    args.extend(options.iter().cloned());
    c.call(function, args, if options.is_empty() { factor_bytes(n) } else { 0 });
    Ok(vec![c.output(0, |at| c.load(output, at).cast(c.out_dtype(0)))])
}

// --- reference evaluation ------------------------------------------------------------------------------------

#[cold]
fn singular(call: &HostCall<'_>) -> Error {
    Error::new(Code::Numerics, format!("a matrix given to {} is singular", call.op().name)).help(
        "its rows have to be linearly independent; a small multiple of the identity added to it may help",
    )
}

#[cold]
fn indefinite(call: &HostCall<'_>) -> Error {
    Error::new(Code::Numerics, format!("a matrix given to {} is not positive definite", call.op().name))
        .help("a small multiple of the identity added to it may help")
}

/// Size of the square matrices in a tensor.
fn size(x: &Tensor) -> usize {
    x.shape().last().copied().unwrap_or(0)
}

/// One output from a function of each matrix.
fn each_matrix(call: &HostCall<'_>, f: impl Fn(&[f64]) -> Result<Vec<f64>>) -> Result<Vec<Tensor>> {
    let x = call.tensor(0);
    let n = size(x);
    let values = elements::<f64>(x);
    let count = x.shape()[..x.rank() - 2].iter().product::<usize>();
    let mut out = Vec::with_capacity(call.shape().iter().product());
    for i in 0..count {
        out.extend(f(&values[i * n * n..(i + 1) * n * n])?);
    }
    Ok(vec![from_f64s(call.dtype(), call.shape(), out)])
}

fn slogdet_eval(call: &HostCall<'_>) -> Result<Vec<Tensor>> {
    let n = size(call.tensor(0));
    let pair = |a: &[f64]| match Lu::new(a, n) {
        None => (0.0, f64::NEG_INFINITY),
        Some(lu) => {
            let sign = lu.diagonal().fold(lu.sign, |s, d| s * d.signum());
            (sign, lu.diagonal().map(|d| d.abs().ln()).sum())
        }
    };
    let sign = each_matrix(call, |a| Ok(vec![pair(a).0]))?;
    let log = each_matrix(call, |a| Ok(vec![pair(a).1]))?;
    Ok([sign, log].concat())
}

/// Rows exchanged, `P·A = L·U` with both factors in one matrix.
struct Lu {
    n: usize,
    factors: Vec<f64>,
    /// Row of the input that stands in each place.
    order: Vec<usize>,
    /// Sign of the permutation.
    sign: f64,
}

impl Lu {
    /// By elimination with the largest pivot of each column; `None` if the matrix is singular.
    fn new(a: &[f64], n: usize) -> Option<Self> {
        let mut a = a.to_vec();
        let mut order: Vec<usize> = (0..n).collect();
        let mut sign = 1.0;
        for k in 0..n {
            let larger = |p: usize, i: usize| if a[i * n + k].abs() > a[p * n + k].abs() { i } else { p };
            let pivot = (k + 1..n).fold(k, larger);
            if pivot != k {
                (0..n).for_each(|j| a.swap(k * n + j, pivot * n + j));
                order.swap(k, pivot);
                sign = -sign;
            }
            if a[k * n + k] == 0.0 {
                return None;
            }
            for i in k + 1..n {
                let factor = a[i * n + k] / a[k * n + k];
                a[i * n + k] = factor;
                for j in k + 1..n {
                    a[i * n + j] -= factor * a[k * n + j];
                }
            }
        }
        Some(Self { n, factors: a, order, sign })
    }

    fn diagonal(&self) -> impl Iterator<Item = f64> {
        (0..self.n).map(|i| self.factors[i * self.n + i])
    }

    /// Replaces `columns` right-hand sides by the solutions.
    fn solve(&self, b: &mut [f64], columns: usize) {
        let (n, a) = (self.n, &self.factors);
        let given = b.to_vec();
        for (i, &from) in self.order.iter().enumerate() {
            b[i * columns..][..columns].copy_from_slice(&given[from * columns..][..columns]);
        }
        for c in 0..columns {
            for i in 0..n {
                let known: f64 = (0..i).map(|j| a[i * n + j] * b[j * columns + c]).sum();
                b[i * columns + c] -= known;
            }
            for i in (0..n).rev() {
                let known: f64 = (i + 1..n).map(|j| a[i * n + j] * b[j * columns + c]).sum();
                b[i * columns + c] = (b[i * columns + c] - known) / a[i * n + i];
            }
        }
    }
}

/// A triangular matrix; the triangle that is not read is zero.
struct Triangle {
    n: usize,
    a: Vec<f64>,
    lower: bool,
}

impl Triangle {
    /// `None` if there is a zero on the diagonal.
    fn new(a: &[f64], n: usize, lower: bool, transpose: bool) -> Option<Self> {
        if (0..n).any(|i| a[i * n + i] == 0.0) {
            return None;
        }
        let at = |i: usize| if transpose { i % n * n + i / n } else { i };
        Some(Self { n, a: (0..n * n).map(|i| a[at(i)]).collect(), lower: lower != transpose })
    }

    fn solve(&self, b: &mut [f64], columns: usize) {
        let n = self.n;
        for c in 0..columns {
            for step in 0..n {
                let i = if self.lower { step } else { n - 1 - step };
                let known = if self.lower { 0..i } else { i + 1..n };
                let known: f64 = known.map(|j| self.a[i * n + j] * b[j * columns + c]).sum();
                b[i * columns + c] = (b[i * columns + c] - known) / self.a[i * n + i];
            }
        }
    }
}

/// A matrix made ready for solving.
enum Factor {
    Lu(Lu),
    Triangle(Triangle),
}

fn solve_eval(call: &HostCall<'_>, factor: impl Fn(&[f64], usize) -> Option<Factor>) -> Result<Vec<Tensor>> {
    let (a, b) = (call.tensor(0), call.tensor(1));
    let n = size(a);
    let columns = if b.rank() == 1 { 1 } else { size(b) };
    let own = if b.rank() == 1 { 1 } else { 2 };
    let batch = &call.shape()[..call.shape().len() - own];
    let left = broadcast_index(&a.shape()[..a.rank() - 2], batch);
    let right = broadcast_index(&b.shape()[..b.rank() - own], batch);
    let (values, sides) = (elements::<f64>(a), elements::<f64>(b));
    let mut out = Vec::with_capacity(call.shape().iter().product());
    for i in 0..batch.iter().product() {
        let (matrix, side) = (left(i) * n * n, right(i) * n * columns);
        let factor = factor(&values[matrix..matrix + n * n], n).ok_or_else(|| singular(call))?;
        let mut x = sides[side..side + n * columns].to_vec();
        match factor {
            Factor::Lu(lu) => lu.solve(&mut x, columns),
            Factor::Triangle(triangle) => triangle.solve(&mut x, columns),
        }
        out.extend(x);
    }
    Ok(vec![from_f64s(call.dtype(), call.shape(), out)])
}

/// Lower factor of the symmetric part; `None` if it is not positive definite.
fn cholesky(a: &[f64], n: usize) -> Option<Vec<f64>> {
    let mut l = vec![0.0; n * n];
    for i in 0..n {
        for j in 0..=i {
            let known: f64 = (0..j).map(|k| l[i * n + k] * l[j * n + k]).sum();
            let rest = f64::midpoint(a[i * n + j], a[j * n + i]) - known;
            if i == j && rest <= 0.0 {
                return None;
            }
            l[i * n + j] = if i == j { rest.sqrt() } else { rest / l[j * n + j] };
        }
    }
    Some(l)
}
