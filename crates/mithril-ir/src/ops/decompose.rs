//! Linear systems, inverses, determinants and the Cholesky factor.

mod evaluate;

use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::formula::{ExpandCx, GradCx, V};
use crate::literal::Lit;
use crate::loops::{CallArgument, Expr, LoopCx};
use crate::lowering::LoweringRule::{Function, Template};
use crate::lowering::{Lowering, LoweringCx};
use crate::op::{
    Attr, BLANK, DTypeRule, DefaultLit, Eval, Grad, OpDef, Port, ShapeRule, Tolerance, attr, tensor,
};
use crate::rules::{Attrs, DTypeCx, DTypes, ShapeCx};
use crate::shape::Shape;

use super::create::EYE;
use super::linalg::{as_column, reshape, transposed};
use super::triangle::{TRIL, TRIU};
use evaluate::{
    Factor, Lu, Triangle, cholesky, each_matrix, indefinite, singular, size, slogdet_eval, solve_eval,
};

/// Ops of this file.
pub static OPS: &[&OpDef] = &[
    &SOLVE,
    &TRIANGULAR_SOLVE,
    &SOLVE_TRIANGULAR,
    &INV,
    &DET,
    &SLOGDET,
    &CHOLESKY,
    &CHOLESKY_SOLVE,
    &CHOLESKY_INVERSE,
    &MATRIX_POWER,
];

static INPUT: &[Port] = &[tensor("input")];

/// An op on matrices.
pub(super) const MATRIX: OpDef = OpDef {
    ports: INPUT,
    dtype: DTypeRule::Fn(precise),
    // Away from 0: random matrices that are nearly singular would only test their condition.
    domain: (0.25, 2.0),
    tolerance: Tolerance::Decomposition,
    ..BLANK
};

/// solution of `left · x = right`
pub static SOLVE: OpDef = OpDef {
    name: "solve",
    doc: "The solution `x` of the linear systems `left @ x = right`.\n\n\
          `left` is `[..., n, n]`. `right` is `[..., n, k]`, one system per column, or a vector `[n]`; the leading \
          axes broadcast. A singular matrix is an error. Lower precision than float32 is an error.",
    layer: "Solve",
    ports: &[tensor("left"), tensor("right")],
    shape: ShapeRule::Fn(solve_shape),
    eval: Some(Eval::Tensors(|c| solve_eval(c, |a, n| Lu::new(a, n).map(Factor::Lu)))),
    loops: Some(|c| solve_loops(c, "mithril_solve", &[])),
    grad: Grad::Formula(|v| {
        let to_right = solved(v, &SOLVE, transposed(v.x[0]), &[]);
        vec![-outer(v, to_right, v.y), to_right]
    }),
    lowering: Lowering {
        numpy: Template("np.linalg.solve({0}, {1})"),
        torch: Function(|s| Some(format!("torch.linalg.solve({}, {})", s.arg(0), aligned(s)?))),
        jax: Function(|s| Some(format!("jnp.linalg.solve({}, {})", s.arg(0), aligned(s)?))),
        mlx: Template("_solve({0}, {1})"),
        onnx: Function(super::onnx::solve),
        ..Lowering::NONE
    },
    cases: &[
        "spd[3,3] [3]",
        "spd[3,3] [3,2]",
        "spd[2,3,3] [2,3,1]",
        "spd[2,1,3,3] [4,3,2]",
        "spd[2,3,3] [3]",
        "spd[1,1] [1]",
    ],
    ..MATRIX
};

const TRANSPOSE: Port = attr("transpose", Attr::Bool, DefaultLit::Bool(false));
const UNIT_DIAGONAL: Port = attr("unit_diagonal", Attr::Bool, DefaultLit::Bool(false));

/// Solution of `left · x = right` with a triangular `left`
pub static TRIANGULAR_SOLVE: OpDef = OpDef {
    name: "triangular_solve",
    doc: "The solution `x` of the linear systems `left @ x = right` with a triangular matrix.\n\n\
          Only the lower triangle of `left` is read, or the upper one with `lower=False`. With `transpose` the \
          systems are `leftᵀ @ x = right`. With `unit_diagonal` the diagonal is 1 and not read. Shapes are as in \
          `solve`; a zero on the diagonal is an error.",
    layer: "TriangularSolve",
    ports: &[
        tensor("left"),
        tensor("right"),
        attr("lower", Attr::Bool, DefaultLit::Bool(true)),
        TRANSPOSE,
        UNIT_DIAGONAL,
    ],
    shape: ShapeRule::Fn(solve_shape),
    eval: Some(Eval::Tensors(|c| {
        let [lower, transpose, unit] = triangle_options(c)?;
        solve_eval(c, |a, n| Triangle::new(a, n, lower, transpose, unit).map(Factor::Triangle))
    })),
    expand: Some(|c| {
        let [lower, transpose, unit] = c.get(triangle_options);
        let left = c.x[0];
        let kept = triangle(left, lower, unit);
        let kept = if unit { kept + identity(left) } else { kept };
        vec![if transpose { transposed(kept) } else { kept }.op(&SOLVE, &[c.x[1]])]
    }),
    loops: Some(|c| {
        let options = triangle_options(c)?.map(|yes| CallArgument::Int(yes.into()));
        solve_loops(c, "mithril_triangular_solve", &options)
    }),
    grad: Grad::Formula(|v| {
        let [lower, transpose, unit] = v.get(triangle_options);
        let to_right = solved(v, &TRIANGULAR_SOLVE, v.x[0], &[v.x[2], v.cx.lit(!transpose), v.x[4]]);
        let full = if transpose { outer(v, v.y, to_right) } else { outer(v, to_right, v.y) };
        vec![-triangle(full, lower, unit), to_right]
    }),
    lowering: Lowering { torch: Function(triangular_text), ..Lowering::NONE },
    cases: &[
        "spd[3,3] [3]",
        "spd[3,3] [3,2] lower=false",
        "spd[2,3,3] [2,3,1] transpose=true",
        "spd[2,1,3,3] [4,3,2] lower=false transpose=true",
        "spd[3,3] [3,2] unit_diagonal=true",
        "[2,2] [2] lower=false transpose=true unit_diagonal=true",
    ],
    ..MATRIX
};

/// `triangular_solve` in PyTorch
pub static SOLVE_TRIANGULAR: OpDef = OpDef {
    name: "solve_triangular",
    doc: "As `triangular_solve`, with PyTorch's convention for the triangle: `upper` is required.",
    layer: "SolveTriangular",
    ports: &[
        tensor("left"),
        tensor("right"),
        attr("upper", Attr::Bool, DefaultLit::Required),
        TRANSPOSE,
        UNIT_DIAGONAL,
    ],
    shape: ShapeRule::Fn(solve_shape),
    expand: Some(|c| {
        let lower = !c.get(|c| c.bool(2));
        vec![c.x[0].op(&TRIANGULAR_SOLVE, &[c.x[1], c.cx.lit(lower), c.x[3], c.x[4]])]
    }),
    cases: &[
        "spd[3,3] [3,2] upper=true",
        "spd[2,3,3] [3] upper=false transpose=true",
        "[2,2] [2,3] upper=true unit_diagonal=true",
    ],
    ..MATRIX
};

/// Three flags: the lower triangle is read, it is transposed, its diagonal is 1.
fn triangle_options<A: Attrs + ?Sized>(cx: &A) -> Result<[bool; 3]> {
    Ok([cx.bool(2)?, cx.bool(3)?, cx.bool(4)?])
}

/// A triangle of matrices, with or without their diagonal.
fn triangle(x: V<'_>, lower: bool, strict: bool) -> V<'_> {
    let k = if lower { -1 } else { 1 };
    x.op(if lower { &TRIL } else { &TRIU }, &[x.lit(if strict { k } else { 0 })])
}

/// The identity matrix of the size of the square matrices `x`.
fn identity(x: V<'_>) -> V<'_> {
    let n = x.dim(-1);
    x.lit(n).op(&EYE, &[x.lit(Lit::None), x.lit(0), x.lit(x.dtype())])
}

/// Inverse matrix
pub static INV: OpDef = OpDef {
    name: "inv",
    doc: "The inverses of square matrices `[..., n, n]`; a singular matrix is an error. To solve a linear system, \
          `solve` is faster and more accurate.",
    aliases: &["inverse"],
    layer: "Inverse",
    shape: ShapeRule::Fn(|cx| {
        square(cx, 0)?;
        Ok(vec![cx.shape(0).clone()])
    }),
    eval: Some(Eval::Tensors(|c| {
        let n = size(c.tensor(0));
        let identity: Vec<f64> = (0..n * n).map(|i| f64::from(u8::from(i / n == i % n))).collect();
        each_matrix(c, |a| {
            let mut x = identity.clone();
            Lu::new(a, n).ok_or_else(|| singular(c))?.solve(&mut x, n);
            Ok(x)
        })
    })),
    loops: Some(|c| Ok(matrix_loops(c, "mithril_inverse", true))),
    grad: Grad::Formula(|v| {
        let y = transposed(v.y);
        vec![-y.matmul(v.g).matmul(y)]
    }),
    lowering: Lowering {
        py: Template("{xp}.linalg.inv({0})"),
        mlx: Template("_inv({0})"),
        onnx: Function(super::onnx::inv),
        ..Lowering::NONE
    },
    cases: &["spd[3,3]", "spd[2,3,3]", "spd[1,1]", "spd[2,0,2,2]"],
    ..MATRIX
};

/// Determinant
pub static DET: OpDef = OpDef {
    name: "det",
    doc: "The determinants of square matrices `[..., n, n]`; that of an empty matrix is 1. The gradient needs a \
          matrix that is nonsingular.",
    layer: "Determinant",
    shape: ShapeRule::Fn(|cx| square(cx, 0).map(|batch| vec![batch])),
    eval: Some(Eval::Tensors(|c| {
        let n = size(c.tensor(0));
        each_matrix(c, |a| Ok(vec![Lu::new(a, n).map_or(0.0, |lu| lu.diagonal().product::<f64>() * lu.sign)]))
    })),
    loops: Some(|c| Ok(matrix_loops(c, "mithril_determinant", true))),
    grad: Grad::Formula(|v| vec![scaled(v.g * v.y, inverse_transpose(v.x[0]))]),
    lowering: Lowering {
        py: Template("{xp}.linalg.det({0})"),
        jax: Function(|s| empty_batch(s).map(|(shape, dtype)| format!("jnp.ones({shape}, {dtype})"))),
        mlx: Function(|s| {
            let ones = empty_batch(s).map(|(shape, dtype)| format!("mx.ones({shape}, {dtype})"));
            Some(ones.unwrap_or_else(|| format!("_det({})", s.arg(0))))
        }),
        onnx: Template("Det({0})"),
        ..Lowering::NONE
    },
    cases: &["spd[3,3]", "spd[2,3,3]", "spd[1,1]", "spd[2,0,0]", "spd[4,4]"],
    ..MATRIX
};

/// Sign and logarithm of the determinant
pub static SLOGDET: OpDef = OpDef {
    name: "slogdet",
    doc: "Sign and natural logarithm of the absolute value of the determinants of matrices `[..., n, n]`; of a \
          singular matrix 0 and -inf. It does not overflow where `det` does.",
    layer: "SlogDeterminant",
    outputs: &["sign", "logabsdet"],
    shape: ShapeRule::Fn(|cx| square(cx, 0).map(|batch| vec![batch.clone(), batch])),
    eval: Some(Eval::Tensors(slogdet_eval)),
    loops: Some(|c| Ok(matrix_loops(c, "mithril_log_determinant", true))),
    grad: Grad::Formula(|v| vec![scaled(v.gs[1], inverse_transpose(v.x[0]))]),
    lowering: Lowering {
        py: Template("{xp}.linalg.slogdet({0})"),
        mlx: Function(|s| {
            let both = |(shape, dtype)| format!("(mx.ones({shape}, {dtype}), mx.zeros({shape}, {dtype}))");
            let call = || format!("_slogdet({})", s.arg(0));
            Some(empty_batch(s).map_or_else(call, both))
        }),
        onnx: Function(super::onnx::slogdet),
        ..Lowering::NONE
    },
    cases: &["spd[3,3]", "spd[2,3,3]", "spd[1,1]", "spd[2,5,5]"],
    ..MATRIX
};

/// Lower Cholesky factor
pub static CHOLESKY: OpDef = OpDef {
    name: "cholesky",
    doc: "The lower triangular `L` with a positive diagonal and `L @ Lᵀ = input`, for symmetric positive definite \
          matrices `[..., n, n]`.\n\n\
          Decomposes the symmetric part `(input + inputᵀ) / 2`, so that rounding in `input` does not \
          matter and the gradient is symmetric. A matrix that is not positive definite is an error. Gradient: \
          Murray, Differentiation of the Cholesky decomposition (2016).",
    layer: "Cholesky",
    shape: ShapeRule::Fn(|cx| {
        square(cx, 0)?;
        Ok(vec![cx.shape(0).clone()])
    }),
    eval: Some(Eval::Tensors(|c| {
        let n = size(c.tensor(0));
        each_matrix(c, |a| cholesky(a, n).ok_or_else(|| indefinite(c)))
    })),
    loops: Some(|c| Ok(matrix_loops(c, "mithril_cholesky", false))),
    grad: Grad::Formula(cholesky_grad),
    lowering: Lowering {
        numpy: Template("_cholesky({0})"),
        torch: Template("torch.linalg.cholesky(({0} + {0}.mT) / 2)"),
        jax: Template("jnp.linalg.cholesky({0})"),
        mlx: Template("_cholesky({0})"),
        onnx: Function(super::onnx::cholesky),
        ..Lowering::NONE
    },
    cases: &["spd[3,3]", "spd[2,3,3]", "spd[1,1]"],
    ..MATRIX
};

const UPPER: Port = attr("upper", Attr::Bool, DefaultLit::Bool(false));

/// Solution of `input · x = right` from the Cholesky factor of `input`
pub static CHOLESKY_SOLVE: OpDef = OpDef {
    name: "cholesky_solve",
    doc: "The solution `x` of the linear systems `a @ x = right`, given the Cholesky factor of `a`: the lower one, \
          `a = factor @ factorᵀ`, or with `upper` the upper one, `a = factorᵀ @ factor`. `right` is `[..., n, k]`, or a \
          vector `[n]`; the leading axes broadcast. The other triangle of `factor` is not read. The order of the \
          arguments is PyTorch's.",
    layer: "CholeskySolve",
    ports: &[tensor("right"), tensor("factor"), UPPER],
    shape: ShapeRule::Fn(|cx| system_shape(cx, 1, 0)),
    expand: Some(|c| {
        let (right, factor, upper) = (c.x[0], c.x[1], c.get(|c| c.bool(2)));
        let options = |transpose: bool| [c.cx.lit(!upper), c.cx.lit(transpose)];
        let half = factor.op(&TRIANGULAR_SOLVE, &[&[right], &options(upper)[..]].concat());
        // For one vector and several matrices, the intermediate solutions are columns.
        let is_stack = right.rank() == 1 && factor.rank() > 2;
        let half = if is_stack { as_column(half) } else { half };
        let solution = factor.op(&TRIANGULAR_SOLVE, &[&[half], &options(!upper)[..]].concat());
        let shape = solution.shape();
        vec![if is_stack {
            reshape(solution, shape.iter().take(shape.rank() - 1).cloned())
        } else {
            solution
        }]
    }),
    cases: &[
        "[3] spd[3,3]",
        "[3,2] spd[3,3] upper=true",
        "[2,3,1] spd[2,3,3]",
        "[3] spd[2,3,3]",
        "[4,3,2] spd[2,1,3,3]",
    ],
    ..MATRIX
};

/// Inverse matrix from the Cholesky factor
pub static CHOLESKY_INVERSE: OpDef = OpDef {
    name: "cholesky_inverse",
    doc: "The inverses of symmetric positive definite matrices `a`, given their Cholesky factors `[..., n, n]`: the \
          lower ones, `a = factor @ factorᵀ`, or with `upper` the upper ones, `a = factorᵀ @ factor`.",
    layer: "CholeskyInverse",
    ports: &[tensor("factor"), UPPER],
    shape: ShapeRule::Fn(|cx| {
        square(cx, 0)?;
        Ok(vec![cx.shape(0).clone()])
    }),
    expand: Some(|c| vec![identity(c.x[0]).op(&CHOLESKY_SOLVE, &[c.x[0], c.x[1]])]),
    cases: &["spd[3,3]", "spd[2,3,3] upper=true", "spd[1,1]"],
    ..MATRIX
};

static POWER_PORTS: &[Port] = &[tensor("input"), attr("n", Attr::Int, DefaultLit::Required)];

/// Repeated matrix product
pub static MATRIX_POWER: OpDef = OpDef {
    name: "matrix_power",
    doc: "The product of `n` copies of square matrices `[..., m, m]`: the identity for `n = 0`, the power of the \
          inverse for negative `n`.",
    layer: "MatrixPower",
    ports: POWER_PORTS,
    shape: ShapeRule::Fn(|cx| {
        square(cx, 0)?;
        Ok(vec![cx.shape(0).clone()])
    }),
    dtype: DTypeRule::Expansion,
    expand: Some(|c| vec![matrix_power(c)]),
    cases: &["spd[3,3] n=2", "spd[2,3,3] n=5", "spd[3,3] n=0", "spd[3,3] n=-2", "spd[2,2] n=1"],
    ..MATRIX
};

fn matrix_power<'a>(c: &ExpandCx<'a>) -> V<'a> {
    let (x, n) = (c.x[0], c.get(|c| c.int(1)));
    if n == 0 {
        let shape = x.shape();
        return identity(x).broadcast_to(shape.0.to_vec());
    }
    let mut square = if n < 0 { x.inv() } else { x };
    let mut product = None;
    let mut left = n.unsigned_abs();
    loop {
        if left % 2 == 1 {
            product = Some(product.map_or(square, |p: V<'a>| p.matmul(square)));
        }
        left /= 2;
        if left == 0 {
            return product.unwrap_or(square);
        }
        square = square.matmul(square);
    }
}

/// Floats of at least single precision; integers become the default float.
pub(super) fn precise(cx: &DTypeCx<'_>) -> Result<DTypes> {
    let dtype = Some(cx.promoted()).filter(|d| d.is_float()).unwrap_or(cx.float);
    if dtype.size() < DType::F32.size() {
        let message = format!("{} of {} is not possible", cx.op().name, dtype.name());
        return Err(Error::new(Code::DTypeMismatch, message)
            .note("a decomposition in lower precision than float32 has hardly any correct digits")
            .help("convert the input with cast to float32 and the result back"));
    }
    Ok(DTypes::all(cx, dtype, std::iter::repeat_n(dtype, cx.op().outputs.len())))
}

/// Checks that argument `i` holds square matrices; its leading axes.
pub(super) fn square(cx: &ShapeCx<'_>, i: usize) -> Result<Shape> {
    let shape = cx.shape(i);
    let [batch @ .., rows, columns] = &shape[..] else {
        let port = cx.op().ports[i].name;
        let message = format!("`{port}` of {} has shape {shape}", cx.op().name);
        return Err(Error::new(Code::RankMismatch, message).help("it must be square matrices [..., n, n]"));
    };
    cx.same(rows, columns, "rows and columns of the matrix")?;
    Ok(batch.iter().cloned().collect())
}

fn solve_shape(cx: &ShapeCx<'_>) -> Result<Vec<Shape>> {
    system_shape(cx, 0, 1)
}

/// Shape of the solutions of systems with matrices and right-hand sides at those arguments.
fn system_shape(cx: &ShapeCx<'_>, matrix: usize, side: usize) -> Result<Vec<Shape>> {
    let left = square(cx, matrix)?;
    let n = &cx.shape(matrix)[left.rank()];
    match &cx.shape(side)[..] {
        [] => {
            let message = format!("`{}` of {} is 0-d", cx.op().ports[side].name, cx.op().name);
            Err(Error::new(Code::RankMismatch, message)
                .help("it must be a vector [n] or matrices [..., n, k]"))
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

/// Shape and dtype of determinants of matrices without elements, which MLX and JAX cannot differentiate.
fn empty_batch(s: &LoweringCx<'_>) -> Option<(String, &'static str)> {
    let is_empty = s.ty(0)?.shape.iter().any(|d| d.is(0));
    let out = s.out(0)?;
    is_empty.then(|| (s.dims(&out.shape), s.dtype(out.dtype)))
}

// --- gradients -----------------------------------------------------------------------------------------------

/// Solves the systems for the cotangents. If there are several matrices for one vector, its cotangents are columns.
fn solved<'a>(v: &GradCx<'a>, op: &'static OpDef, left: V<'a>, options: &[V<'a>]) -> V<'a> {
    let vector = v.x[1].rank() == 1;
    let right = if vector { as_column(v.g) } else { v.g };
    let x = left.op(op, &[&[right], options].concat());
    if vector { reshape(x, v.g.shape().0) } else { x }
}

/// `a · bᵀ` for solutions, which are vectors or the columns of a matrix.
fn outer<'a>(v: &GradCx<'a>, a: V<'a>, b: V<'a>) -> V<'a> {
    if v.x[1].rank() == 1 {
        let shape = b.shape();
        let Some((n, batch)) = shape.split_last() else { return a };
        return as_column(a) * reshape(b, batch.iter().cloned().chain([Dim::ONE, n.clone()]));
    }
    a.matmul(transposed(b))
}

fn cholesky_grad<'a>(v: &GradCx<'a>) -> Vec<V<'a>> {
    let product = transposed(v.y).matmul(v.g);
    // The lower triangle with half the diagonal is the mean of the triangles with and without the diagonal.
    let strict = product.tril(-1);
    let phi = (product.tril(0) + strict) * 0.5;
    // L⁻ᵀ Φ L⁻¹ by solving two triangular systems.
    let (lower, transpose) = (v.cx.lit(true), v.cx.lit(true));
    let half = v.y.op(&TRIANGULAR_SOLVE, &[phi, lower, transpose]);
    let full = transposed(v.y.op(&TRIANGULAR_SOLVE, &[transposed(half), lower, transpose]));
    vec![(full + transposed(full)) * 0.5]
}

fn inverse_transpose(x: V<'_>) -> V<'_> {
    transposed(x.inv())
}

/// Each matrix times its scalar factor.
fn scaled<'a>(factors: V<'a>, matrices: V<'a>) -> V<'a> {
    as_column(as_column(factors)) * matrices
}

// --- lowerings -----------------------------------------------------------------------------------------------

/// The right-hand side, reshaped where a framework would read the matrix `[..., n]` as a stack of vectors.
fn aligned(s: &LoweringCx<'_>) -> Option<String> {
    let (left, right) = (s.ty(0)?.shape.rank(), s.ty(1)?.shape.rank());
    let ambiguous = right > 1 && right + 1 == left;
    Some(if ambiguous { format!("{}[None]", s.arg(1)) } else { s.arg(1).into() })
}

fn triangular_text(s: &LoweringCx<'_>) -> Option<String> {
    let [lower, transpose, unit] = triangle_options(s).ok()?;
    let vector = s.ty(1)?.shape.rank() == 1;
    let left = if transpose { format!("{}.mT", s.arg(0)) } else { s.arg(0).into() };
    let right = if vector { format!("{}[:, None]", s.arg(1)) } else { aligned(s)? };
    let upper = if lower == transpose { "True" } else { "False" };
    let unit = if unit { ", unitriangular=True" } else { "" };
    let text = format!("torch.linalg.solve_triangular({left}, {right}, upper={upper}{unit})");
    Some(if vector { format!("{text}[..., 0]") } else { text })
}

// --- calls of the C prelude ----------------------------------------------------------------------------------

/// Bytes of a factorized matrix and the order of its rows.
fn factor_bytes(n: i64) -> usize {
    (n * n + n).max(1) as usize * 8
}

/// A function of each matrix, computed in float64.
fn matrix_loops(c: &LoopCx<'_>, function: &str, factorizes: bool) -> Vec<Expr> {
    let shape = c.shape(0);
    let (n, count) = (shape[shape.len() - 1], shape[..shape.len() - 2].iter().product());
    let outputs: Vec<usize> = (0..c.out_len()).map(|i| c.reserve(DType::F64, c.out_shape(i))).collect();
    let mut args = vec![CallArgument::In(c.stored(0, DType::F64))];
    args.extend(outputs.iter().map(|&output| CallArgument::Out(output)));
    args.extend([count, n].map(CallArgument::Int));
    c.call(function, args, if factorizes { factor_bytes(n) } else { 0 });
    let rounded = |(i, output): (usize, usize)| c.output(i, |at| c.load(output, at).cast(c.out_dtype(i)));
    outputs.into_iter().enumerate().map(rounded).collect()
}

/// Solutions of linear systems, whose leading axes broadcast.
fn solve_loops(c: &LoopCx<'_>, function: &str, options: &[CallArgument]) -> Result<Vec<Expr>> {
    let (shape, is_vector) = (c.out_shape(0), c.rank(1) == 1);
    let n = c.shape(0)[c.rank(0) - 1];
    let batch = &shape[..shape.len() - if is_vector { 1 } else { 2 }];
    let columns = if is_vector { 1 } else { shape[shape.len() - 1] };
    let left = c.stored_as(0, DType::F64, &[batch, &[n, n]].concat());
    let right = c.stored_as(1, DType::F64, shape);
    let output = c.reserve(DType::F64, shape);
    let mut args = vec![CallArgument::In(left), CallArgument::In(right), CallArgument::Out(output)];
    args.extend([batch.iter().product(), n, columns].map(CallArgument::Int));
    args.extend(options.iter().cloned());
    c.call(function, args, if options.is_empty() { factor_bytes(n) } else { 0 });
    Ok(vec![c.output(0, |at| c.load(output, at).cast(c.out_dtype(0)))])
}
