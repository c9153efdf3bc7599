//! Products of matrices and vectors.

use ndarray::linalg::general_mat_mul;
use ndarray::{ArrayView2, ArrayViewMut2};

use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::formula::{GradCx, V};
use crate::interp::{EvalCx, broadcast_index, elements, from_f64s};
use crate::literal::Lit;
use crate::loops::{Expr, Index, LoopCx, ReduceOp};
use crate::lowering::LoweringRule::{Function, Template};
use crate::lowering::{Lowering, LoweringCx};
use crate::op::{
    BLANK, DTypeRule, Eval, Grad, LowBit, OpDef, Port, Precision, ShapeRule, Tolerance, Unsigned, optional,
    tensor,
};
use crate::rules::{Attrs, ShapeCx};
use crate::shape::Shape;
use crate::tensor::{Scalar, Tensor};

/// Ops of this file.
pub static OPS: &[&OpDef] = &[&MATMUL, &LINEAR, &MATRIX_TRANSPOSE];

static LEFT_RIGHT: &[Port] = &[tensor("left"), tensor("right")];

/// `left @ right`
pub static MATMUL: OpDef = OpDef {
    name: "matmul",
    doc: "Matrix product over the last two axes; the axes before them broadcast.\n\n\
          `output[..., i, j] = Σ_k left[..., i, k] · right[..., k, j]`. A vector on the left is a row, one on the \
          right a column, and its axis of size 1 is removed from the result: the product of two vectors is 0-d. \
          Inner sizes must be equal (1 does not broadcast there); an empty sum is 0.",
    aliases: &["mm", "bmm", "matrix_multiply"],
    layer: "MatrixMultiply",
    ports: LEFT_RIGHT,
    shape: ShapeRule::Fn(matmul_shape),
    dtype: DTypeRule::Arith,
    eval: Some(Eval::Tensors(matmul_eval)),
    loops: Some(matmul_loops),
    unsigned: Unsigned::Bits,
    grad: Grad::Formula(matmul_grad),
    lowering: Lowering {
        py: Template("{0} @ {1}"),
        numpy: Function(|s| Some(numpy_product(s, format!("{} @ {}", s.arg(0), s.arg(1))))),
        torch: Function(|s| {
            (!s.out(0)?.dtype.is_float()).then(|| format!("_integer_matmul({}, {})", s.arg(0), s.arg(1)))
        }),
        mlx: Function(|s| {
            let (left, right, is_float) = (s.arg(0), s.arg(1), s.out(0)?.dtype.is_float());
            Some(if is_float {
                format!("{left} @ {right}")
            } else {
                format!("_integer_matmul({left}, {right})")
            })
        }),
        ggml: Function(super::ggml::matmul),
        onnx: Template("MatMul({0}, {1})"),
        ..Lowering::NONE
    },
    cases: &[
        "[3,4] [4,2]",
        "[2,3,4] [4,5]",
        "[5,1,3,4] [2,4,3]",
        "[4] [4]",
        "[3,4] [4]",
        "[2,3,4] [4]",
        "[4] [4,3]",
        "[4] [2,4,3]",
        "[0,4] [4,2]",
        "[3,0] [0,2]",
        "[0,3,4] [4,2]",
        "i32[3,4]<9 i32[4,2]<9",
    ],
    tolerance: Tolerance::Contraction,
    precision: Some(Precision::Low),
    low_bit: Some(LowBit { weight: 1, outputs: 1, is_product: true }),
    ..BLANK
};

/// `Σ_k left[..., i, k] · right[..., k, j]`
fn matmul_loops(c: &LoopCx<'_>) -> Result<Vec<Expr>> {
    let (left_rank, right_rank) = (c.rank(0), c.rank(1));
    let inner = c.shape(0)[left_rank - 1];
    // Axes of the output, counted from the end, for the rows and the columns of the product.
    let (row, column) = (usize::from(left_rank > 1), usize::from(right_rank > 1));
    Ok(vec![c.output(0, |at| {
        let batch = &at[..at.len() - row - column];
        c.reduce(ReduceOp::Sum, &[inner], |k| {
            let side = |i: usize, matrix: Vec<Index>| {
                let rank = c.rank(i);
                let shape = c.shape(i);
                let batch = &batch[batch.len() + matrix.len().min(rank) - rank..];
                let coordinates = batch
                    .iter()
                    .zip(&shape)
                    .map(|(at, &n)| if n == 1 { Index::default() } else { at.clone() });
                c.load(i, coordinates.chain(matrix).collect::<Vec<_>>())
            };
            let rows = at[batch.len()..batch.len() + row].iter().cloned();
            let columns = at[batch.len() + row..].iter().cloned();
            let left = side(0, rows.chain([k[0].clone()]).collect());
            let right = side(1, [k[0].clone()].into_iter().chain(columns).collect());
            left * right
        })
    })])
}

static LINEAR_PORTS: &[Port] = &[tensor("input"), tensor("weight"), optional("bias")];

/// `input @ weightᵀ + bias`
pub static LINEAR: OpDef = OpDef {
    name: "linear",
    doc: "Affine map of the last axis: `input @ weightᵀ + bias`.\n\n\
          `input` is `[..., k]`, `weight` `[n, k]`, `bias` `[n]` or absent; the result is `[..., n]`.",
    ports: LINEAR_PORTS,
    shape: ShapeRule::Pattern("*b k, n k, n -> *b n"),
    dtype: DTypeRule::Arith,
    eval: Some(Eval::Tensors(linear_eval)),
    expand: Some(|c| {
        let [x, weight, bias] = [c.x[0], c.x[1], c.x[2]];
        let y = x.matmul(transposed(weight));
        vec![if bias.is_some() { y + bias } else { y }]
    }),
    grad: Grad::Formula(|v| {
        let (x, weight) = (v.x[0], v.x[1]);
        let to_weight = transposed(rows(v.g)).matmul(rows(x));
        vec![v.g.matmul(weight), to_weight, if v.x[2].is_some() { v.g } else { v.none() }]
    }),
    lowering: Lowering {
        py: Function(|s| (s.xp != "mx" || s.out(0)?.dtype.is_float()).then(|| linear_text(s))),
        numpy: Function(|s| Some(numpy_product(s, linear_text(s)))),
        torch: Function(|s| {
            let args = s.args.iter().take(if s.ty(2).is_some() { 3 } else { 2 });
            let args = args.map(String::as_str).collect::<Vec<_>>().join(", ");
            Some(format!("F.linear({args})"))
        }),
        ggml: Function(super::ggml::linear),
        onnx: Function(super::onnx::linear),
        ..Lowering::NONE
    },
    cases: &[
        "[2,3] [4,3] [4]",
        "[3] [4,3] [4]",
        "[2,5,3] [4,3] [4]",
        "[2,5,3] [4,3]",
        "[0,3] [4,3] [4]",
        "[2,0] [4,0] [4]",
        "[1,3] [1,3] [1]",
    ],
    tolerance: Tolerance::Contraction,
    precision: Some(Precision::Low),
    low_bit: Some(LowBit { weight: 1, outputs: 0, is_product: true }),
    ..BLANK
};

/// Last two axes exchanged
pub static MATRIX_TRANSPOSE: OpDef = OpDef {
    name: "matrix_transpose",
    doc: "Exchanges the last two axes; the axes before them count matrices.",
    aliases: &["mT"],
    layer: "MatrixTranspose",
    ports: &[tensor("input")],
    shape: ShapeRule::Pattern("*b m n -> *b n m"),
    dtype: DTypeRule::Same(0),
    expand: Some(|c| {
        let rank = c.x[0].rank();
        let mut order: Vec<usize> = (0..rank).collect();
        if rank >= 2 {
            order.swap(rank - 1, rank - 2);
        }
        vec![c.x[0].transpose(order)]
    }),
    grad: Grad::Formula(|v| vec![v.g.matrix_transpose()]),
    lowering: Lowering {
        py: Function(|s| {
            let rank = s.ty(0)?.shape.rank();
            let stack = format!("{}.swapaxes({}, -1, -2)", s.xp, s.arg(0));
            Some(if rank == 2 { format!("{}.T", s.arg(0)) } else { stack })
        }),
        onnx: Function(super::onnx::matrix_transpose),
        ..Lowering::NONE
    },
    cases: &["[2,3]", "[4,2,3]", "[2,0,3]", "[1,1]"],
    tolerance: Tolerance::Exact,
    ..BLANK
};

fn linear_text(s: &LoweringCx<'_>) -> String {
    let product = format!("{} @ {}.T", s.arg(0), s.arg(1));
    if s.ty(2).is_some() { format!("{product} + {}", s.arg(2)) } else { product }
}

/// NumPy returns float32 for products of bfloat16.
fn numpy_product(s: &LoweringCx<'_>, product: String) -> String {
    let half = s.out(0).is_some_and(|t| t.dtype == DType::BF16);
    if half { format!("({product}).astype({})", s.dtype(DType::BF16)) } else { product }
}

fn matmul_shape(cx: &ShapeCx<'_>) -> Result<Vec<Shape>> {
    for i in 0..2 {
        if cx.shape(i).rank() == 0 {
            let port = cx.op().ports[i].name;
            let message = format!("`{port}` of {} is 0-d", cx.op().name);
            return Err(Error::new(Code::RankMismatch, message).help("use multiply to scale by a number"));
        }
    }
    let (a, b) = (cx.shape(0), cx.shape(1));
    let (a_batch, a_inner, rows) = match &a[..] {
        [k] => (Shape::scalar(), k, None),
        [batch @ .., m, k] => (Shape::of(batch.iter().cloned()), k, Some(m.clone())),
        [] => return Ok(vec![Shape::scalar()]),
    };
    let (b_batch, b_inner, columns) = match &b[..] {
        [k] => (Shape::scalar(), k, None),
        [batch @ .., k, n] => (Shape::of(batch.iter().cloned()), k, Some(n.clone())),
        [] => return Ok(vec![Shape::scalar()]),
    };
    cx.same(a_inner, b_inner, "inner sizes")?;
    let mut out = cx.broadcast(&[&a_batch, &b_batch])?;
    out.0.extend(rows);
    out.0.extend(columns);
    Ok(vec![out])
}

fn last_two(shape: &[usize]) -> [usize; 2] {
    match shape {
        [.., m, n] => [*m, *n],
        _ => [1, 1],
    }
}

/// Sizes and layout of a product of stacks of matrices.
struct StackedProduct {
    batch: Vec<usize>,
    left: Vec<usize>,
    right: Vec<usize>,
    m: usize,
    k: usize,
    n: usize,
}

impl StackedProduct {
    fn new(a: &[usize], b: &[usize], out: &[usize]) -> Self {
        let [m, k] = if a.len() == 1 { [1, a[0]] } else { last_two(a) };
        let [_, n] = if b.len() == 1 { [b[0], 1] } else { last_two(b) };
        let left = a[..a.len().saturating_sub(2)].to_vec();
        let right = b[..b.len().saturating_sub(2)].to_vec();
        let batch = out[..left.len().max(right.len())].to_vec();
        if right.iter().product::<usize>() == 1 && right.len() <= left.len() {
            // With one matrix on the right, the stack on the left is a single tall matrix.
            let m = m * left.iter().product::<usize>();
            return Self { batch: vec![], left: vec![], right: vec![], m, k, n };
        }
        Self { batch, left, right, m, k, n }
    }

    /// Calls `f` with the offsets of each pair of matrices and of their product.
    fn each(&self, mut f: impl FnMut(usize, usize, usize)) {
        let (left, right) =
            (broadcast_index(&self.left, &self.batch), broadcast_index(&self.right, &self.batch));
        for i in 0..self.batch.iter().product() {
            f(left(i) * self.m * self.k, right(i) * self.k * self.n, i * self.m * self.n);
        }
    }
}

fn matmul_eval(call: &EvalCx<'_>) -> Result<Vec<Tensor>> {
    let (a, b) = (call.tensor(0), call.tensor(1));
    let plan = StackedProduct::new(a.shape(), b.shape(), call.shape());
    let (m, k, n) = (plan.m, plan.k, plan.n);
    let len = call.shape().iter().product();
    if call.dtype().is_float() {
        let (a, b) = (elements::<f64>(a), elements::<f64>(b));
        let mut out = vec![0.0; len];
        plan.each(|i, j, o| {
            let (a, b) = (view(&a[i..i + m * k], m, k), view(&b[j..j + k * n], k, n));
            gemm(&a, &b, &mut out[o..o + m * n]);
        });
        return Ok(vec![from_f64s(call.dtype(), call.shape(), out)]);
    }
    let (a, b) = (a.to_ints(), b.to_ints());
    let mut out = vec![0_i128; len];
    plan.each(|i, j, o| {
        for row in 0..m {
            for p in 0..k {
                let x = a[i + row * k + p];
                for column in 0..n {
                    let slot = &mut out[o + row * n + column];
                    *slot = slot.wrapping_add(x.wrapping_mul(b[j + p * n + column]));
                }
            }
        }
    });
    Ok(vec![Tensor::build(call.dtype(), call.shape(), |i| Scalar::Int(out[i]))])
}

fn view(elements: &[f64], rows: usize, columns: usize) -> ArrayView2<'_, f64> {
    ArrayView2::from_shape((rows, columns), elements).expect("as many elements as the matrix has")
}

/// `out = a @ b`
fn gemm(a: &ArrayView2<'_, f64>, b: &ArrayView2<'_, f64>, out: &mut [f64]) {
    let mut out =
        ArrayViewMut2::from_shape((a.nrows(), b.ncols()), out).expect("as many elements as the product has");
    general_mat_mul(1.0, a, b, 0.0, &mut out);
}

fn linear_eval(call: &EvalCx<'_>) -> Result<Vec<Tensor>> {
    let (x, weight) = (call.tensor(0), call.tensor(1));
    let [n, k] = last_two(weight.shape());
    let m = call.shape().iter().rev().skip(1).product();
    let bias = call.get(2);
    if call.dtype().is_float() {
        let (x, weight) = (elements::<f64>(x), elements::<f64>(weight));
        let mut out = vec![0.0; m * n];
        gemm(&view(&x, m, k), &view(&weight, n, k).reversed_axes(), &mut out);
        if let Some(bias) = bias {
            let bias = elements::<f64>(bias);
            out.iter_mut().enumerate().for_each(|(i, y)| *y += bias[i % n]);
        }
        return Ok(vec![from_f64s(call.dtype(), call.shape(), out)]);
    }
    let (x, weight) = (x.to_ints(), weight.to_ints());
    let at = |i: usize| {
        let (row, column) = (i / n * k, i % n * k);
        let products = (0..k).map(|p| x[row + p].wrapping_mul(weight[column + p]));
        let start = bias.map_or(0, |b| b.get(i % n).int());
        Scalar::Int(products.fold(start, i128::wrapping_add))
    };
    Ok(vec![Tensor::build(call.dtype(), call.shape(), at)])
}

/// `x` in another shape; nothing if it has that shape.
pub(super) fn reshape(x: V<'_>, shape: impl IntoIterator<Item = Dim>) -> V<'_> {
    let shape: Shape = shape.into_iter().collect();
    if x.shape() == shape { x } else { x.reshape(Lit::tuple(shape.0)) }
}

/// The last two axes exchanged.
pub(super) fn transposed(x: V<'_>) -> V<'_> {
    x.matrix_transpose()
}

/// `[..., k]` as a matrix `[rows, k]`
pub(super) fn rows(x: V<'_>) -> V<'_> {
    let shape = x.shape();
    let Some((last, leading)) = shape.split_last() else { return x };
    if leading.len() == 1 {
        return x;
    }
    reshape(x, [Shape::of(leading.iter().cloned()).numel(), last.clone()])
}

/// `[..., n]` as `[..., n, 1]`
pub(super) fn as_column(x: V<'_>) -> V<'_> {
    reshape(x, x.shape().iter().cloned().chain([Dim::ONE]))
}

fn matmul_grad<'a>(v: &GradCx<'a>) -> Vec<V<'a>> {
    let (a, b, g) = (v.x[0], v.x[1], v.g);
    match (a.rank(), b.rank()) {
        (1, 1) => vec![g * b, g * a],
        (1, _) => {
            let by_column = b.matmul(as_column(g));
            let sizes = by_column.shape();
            let to_a = reshape(by_column, sizes.iter().take(sizes.rank() - 1).cloned());
            let shape = g.shape();
            let (n, batch) = shape.split_last().map_or((Dim::ONE, &[][..]), |(n, batch)| (n.clone(), batch));
            let row = reshape(g, batch.iter().cloned().chain([Dim::ONE, n]));
            vec![to_a, as_column(a) * row]
        }
        (_, 1) => {
            let flat = reshape(g, [g.shape().numel()]);
            vec![as_column(g) * b, flat.matmul(rows(a))]
        }
        // With one matrix on the right, its cotangent is one product instead of a sum over products.
        (_, 2) => vec![g.matmul(transposed(b)), transposed(rows(a)).matmul(rows(g))],
        _ => vec![g.matmul(transposed(b)), transposed(a).matmul(g)],
    }
}
