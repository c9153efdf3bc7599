//! Reference evaluation of linear systems, in float64.

use crate::error::{Code, Error, Result};
use crate::interp::{EvalCx, broadcast_index, elements, from_f64s};
use crate::rules::Attrs;
use crate::tensor::Tensor;

#[cold]
pub fn singular(call: &EvalCx<'_>) -> Error {
    Error::new(Code::Numerics, format!("a matrix given to {} is singular", call.op().name))
        .help("its rows must be linearly independent; a small multiple of the identity added to it may help")
}

#[cold]
pub fn indefinite(call: &EvalCx<'_>) -> Error {
    Error::new(Code::Numerics, format!("a matrix given to {} is not positive definite", call.op().name))
        .help("a small multiple of the identity added to it may help")
}

/// Size of the square matrices in a tensor.
pub fn size(x: &Tensor) -> usize {
    x.shape().last().copied().unwrap_or(0)
}

/// Applies a function to each matrix.
pub fn each_matrix(call: &EvalCx<'_>, f: impl Fn(&[f64]) -> Result<Vec<f64>>) -> Result<Vec<Tensor>> {
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

pub fn slogdet_eval(call: &EvalCx<'_>) -> Result<Vec<Tensor>> {
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

/// LU factorization with row exchanges: `P·A = L·U`, both factors in one matrix.
pub struct Lu {
    n: usize,
    factors: Vec<f64>,
    /// For each row, the row of the input that it comes from.
    order: Vec<usize>,
    /// Sign of the permutation.
    pub sign: f64,
}

impl Lu {
    /// Gaussian elimination with partial pivoting; `None` if the matrix is singular.
    pub fn new(a: &[f64], n: usize) -> Option<Self> {
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

    pub fn diagonal(&self) -> impl Iterator<Item = f64> {
        (0..self.n).map(|i| self.factors[i * self.n + i])
    }

    /// Replaces `columns` right-hand sides with the solutions.
    pub fn solve(&self, b: &mut [f64], columns: usize) {
        let (n, a) = (self.n, &self.factors);
        let original = b.to_vec();
        for (i, &from) in self.order.iter().enumerate() {
            b[i * columns..][..columns].copy_from_slice(&original[from * columns..][..columns]);
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

/// A triangular matrix; the other triangle counts as zero.
pub struct Triangle {
    n: usize,
    a: Vec<f64>,
    lower: bool,
    /// Whether the diagonal counts as 1.
    unit: bool,
}

impl Triangle {
    /// `None` if there is a zero on the diagonal.
    pub fn new(a: &[f64], n: usize, lower: bool, transpose: bool, unit: bool) -> Option<Self> {
        if !unit && (0..n).any(|i| a[i * n + i] == 0.0) {
            return None;
        }
        let at = |i: usize| if transpose { i % n * n + i / n } else { i };
        Some(Self { n, a: (0..n * n).map(|i| a[at(i)]).collect(), lower: lower != transpose, unit })
    }

    pub fn solve(&self, b: &mut [f64], columns: usize) {
        let n = self.n;
        for c in 0..columns {
            for step in 0..n {
                let i = if self.lower { step } else { n - 1 - step };
                let known = if self.lower { 0..i } else { i + 1..n };
                let known: f64 = known.map(|j| self.a[i * n + j] * b[j * columns + c]).sum();
                let rest = b[i * columns + c] - known;
                b[i * columns + c] = if self.unit { rest } else { rest / self.a[i * n + i] };
            }
        }
    }
}

/// A factorized matrix.
pub enum Factor {
    Lu(Lu),
    Triangle(Triangle),
}

pub fn solve_eval(
    call: &EvalCx<'_>,
    factor: impl Fn(&[f64], usize) -> Option<Factor>,
) -> Result<Vec<Tensor>> {
    let (a, b) = (call.tensor(0), call.tensor(1));
    let n = size(a);
    let columns = if b.rank() == 1 { 1 } else { size(b) };
    let core_rank = if b.rank() == 1 { 1 } else { 2 };
    let batch = &call.shape()[..call.shape().len() - core_rank];
    let left = broadcast_index(&a.shape()[..a.rank() - 2], batch);
    let right = broadcast_index(&b.shape()[..b.rank() - core_rank], batch);
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
pub fn cholesky(a: &[f64], n: usize) -> Option<Vec<f64>> {
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
