//! Factors of one matrix, row-major in float64, computed by faer, with the signs that the documentation of the ops promises.
//! `None` if the iteration does not converge.

use faer::{Mat, MatRef, Side};

/// `q` and `r`, whose diagonal is not negative.
pub fn qr(a: &[f64], m: usize, n: usize, is_complete: bool) -> Option<Vec<Vec<f64>>> {
    let k = if is_complete { m } else { m.min(n) };
    if n == 0 {
        return Some(vec![rows(Mat::<f64>::identity(m, k).as_ref()), Vec::new()]);
    }
    let (scaled, scale) = scaled(a);
    let factors = MatRef::from_row_major_slice(&scaled, m, n).qr();
    let mut q = if is_complete { factors.compute_Q() } else { factors.compute_thin_Q() };
    let triangle = factors.R();
    let mut r =
        Mat::from_fn(k, n, |i, j| if i <= j && i < m.min(n) { triangle[(i, j)] * scale } else { 0.0 });
    for i in (0..m.min(n)).filter(|&i| triangle[(i, i)] < 0.0) {
        (0..m).for_each(|row| q[(row, i)] = -q[(row, i)]);
        (i..n).for_each(|column| r[(i, column)] = -r[(i, column)]);
    }
    Some(vec![rows(q.as_ref()), rows(r.as_ref())])
}

/// Eigenvalues in ascending order and eigenvectors of the symmetric part.
pub fn eigh(a: &[f64], n: usize) -> Option<Vec<Vec<f64>>> {
    if n == 0 {
        return Some(vec![Vec::new(); 2]);
    }
    let (scaled, scale) = scaled(a);
    let symmetric = Mat::from_fn(n, n, |i, j| f64::midpoint(scaled[i * n + j], scaled[j * n + i]));
    let decomposition = symmetric.self_adjoint_eigen(Side::Lower).ok()?;
    let values = (0..n).map(|i| decomposition.S().column_vector()[i] * scale).collect();
    let mut vectors = decomposition.U().to_owned();
    for (column, sign) in signs(vectors.as_ref()).into_iter().enumerate() {
        (0..n).for_each(|row| vectors[(row, column)] *= sign);
    }
    Some(vec![values, rows(vectors.as_ref())])
}

/// `u`, `s` and `vh` of the reduced decomposition; `epsilon` is that of the dtype of the matrix.
pub fn svd(a: &[f64], m: usize, n: usize, epsilon: f64) -> Option<Vec<Vec<f64>>> {
    if m == 0 || n == 0 {
        return Some(vec![Vec::new(); 3]);
    }
    let (scaled, scale) = scaled(a);
    let decomposition = MatRef::from_row_major_slice(&scaled, m, n).thin_svd().ok()?;
    let s: Vec<f64> = (0..m.min(n)).map(|i| decomposition.S().column_vector()[i]).collect();
    let (mut u, mut v) = (decomposition.U().to_owned(), decomposition.V().to_owned());
    let least = epsilon * m.max(n) as f64 * s.first().copied().unwrap_or(0.0);
    let (of_u, of_v) = (signs(u.as_ref()), signs(v.as_ref()));
    for (column, sign) in of_u.into_iter().enumerate() {
        (0..m).for_each(|row| u[(row, column)] *= sign);
        let sign = if s[column] <= least { of_v[column] } else { sign };
        (0..n).for_each(|row| v[(row, column)] *= sign);
    }
    let s = s.into_iter().map(|s| s * scale).collect();
    Some(vec![rows(u.as_ref()), s, rows(v.as_ref().transpose())])
}

/// The matrix scaled by a power of two to elements of at most about 1, so that squares do not overflow, and the factor.
fn scaled(a: &[f64]) -> (Vec<f64>, f64) {
    let largest = a.iter().fold(0.0_f64, |most, x| most.max(x.abs()));
    // For smaller elements the reciprocal would overflow.
    let scale = if largest < f64::MIN_POSITIVE * 4.0 { 1.0 } else { largest.log2().floor().exp2() };
    (a.iter().map(|x| x / scale).collect(), scale)
}

/// For each column, the sign of its first element that is not small.
fn signs(x: MatRef<'_, f64>) -> Vec<f64> {
    let least = 0.63 / (x.nrows().max(1) as f64).sqrt();
    let sign = |column: usize| {
        let first = (0..x.nrows()).map(|row| x[(row, column)]).find(|x| x.abs() > least);
        first.map_or(1.0, f64::signum)
    };
    (0..x.ncols()).map(sign).collect()
}

fn rows(x: MatRef<'_, f64>) -> Vec<f64> {
    (0..x.nrows() * x.ncols()).map(|i| x[(i / x.ncols(), i % x.ncols())]).collect()
}
