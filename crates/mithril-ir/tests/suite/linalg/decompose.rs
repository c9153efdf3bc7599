//! Decompositions against the identities that define them and values known by hand.

use mithril_ir::ops::decompose as d;
use mithril_ir::ops::linalg::{MATMUL, MATRIX_TRANSPOSE};
use mithril_ir::{Code, DType, Lit, Tensor};

use super::{assert_near, check_gradient, random, run};

fn product(a: &Tensor, b: &Tensor) -> Tensor {
    (*run(&MATMUL, &[a, b], &[]).unwrap()[0]).clone()
}

fn transposed(a: &Tensor) -> Tensor {
    (*run(&MATRIX_TRANSPOSE, &[a], &[]).unwrap()[0]).clone()
}

/// Random matrices far from singular: the diagonal dominates.
fn regular(seed: &mut u64, shape: &[usize]) -> Tensor {
    let x = random(seed, shape);
    let n = shape[shape.len() - 1];
    let diagonal = |i: usize| if i / n % n == i % n { 2.0 + n as f64 } else { 0.0 };
    Tensor::from_parts(shape, (0..x.len()).map(|i| x.get(i).f64() + diagonal(i)).collect::<Vec<f64>>())
}

fn definite(seed: &mut u64, shape: &[usize]) -> Tensor {
    let x = regular(seed, shape);
    product(&x, &transposed(&x))
}

#[test]
fn solutions_solve() {
    let mut seed = 2;
    for (a, b) in [(&[3, 3][..], &[3, 2][..]), (&[2, 3, 3], &[2, 3, 1]), (&[2, 1, 4, 4], &[3, 4, 2])] {
        let (a, b) = (random(&mut seed, a), random(&mut seed, b));
        let x = run(&d::SOLVE, &[&a, &b], &[]).unwrap();
        let back = product(&a, &x[0]);
        let at = mithril_ir::interp::broadcast_index(b.shape(), back.shape());
        let expected: Vec<f64> = (0..back.len()).map(|i| b.get(at(i)).f64()).collect();
        assert_near(&back.to_f64s(), &expected);
    }
    // 2x + y = 5, x + 3y = 10
    let a = Tensor::from_parts(&[2, 2], vec![2.0, 1.0, 1.0, 3.0]);
    let x = run(&d::SOLVE, &[&a, &Tensor::from_parts(&[2], vec![5.0, 10.0])], &[]).unwrap();
    assert_eq!(x[0].shape(), [2]);
    assert_near(&x[0].to_f64s(), &[1.0, 3.0]);
    // A zero in the corner needs an exchange of rows.
    let a = Tensor::from_parts(&[2, 2], vec![0.0, 1.0, 1.0, 0.0]);
    let x = run(&d::SOLVE, &[&a, &Tensor::from_parts(&[2], vec![5.0, 10.0])], &[]).unwrap();
    assert_near(&x[0].to_f64s(), &[10.0, 5.0]);
}

#[test]
fn triangles_solve() {
    let mut seed = 8;
    let a = regular(&mut seed, &[3, 3]);
    let b = random(&mut seed, &[3, 2]);
    for lower in [true, false] {
        for transpose in [true, false] {
            let keep = |i: usize| (i / 3 == i % 3) || ((i / 3 > i % 3) == lower);
            let t = Tensor::from_parts(
                &[3, 3],
                (0..9).map(|i| if keep(i) { a.get(i).f64() } else { 0.0 }).collect::<Vec<f64>>(),
            );
            let t = if transpose { transposed(&t) } else { t };
            let x = run(&d::TRIANGULAR_SOLVE, &[&a, &b], &[lower.into(), transpose.into()]).unwrap();
            assert_near(&product(&t, &x[0]).to_f64s(), &b.to_f64s());
        }
    }
}

#[test]
fn an_inverse_times_its_matrix_is_the_identity() {
    let mut seed = 3;
    let a = random(&mut seed, &[2, 4, 4]);
    let inverse = run(&d::INV, &[&a], &[]).unwrap();
    let identity: Vec<f64> = (0..32).map(|i| if i / 4 % 4 == i % 4 { 1.0 } else { 0.0 }).collect();
    assert_near(&product(&a, &inverse[0]).to_f64s(), &identity);
    assert_eq!(
        run(&d::INV, &[&Tensor::from_parts(&[0, 0], Vec::<f64>::new())], &[]).unwrap()[0].shape(),
        [0, 0]
    );
}

#[test]
fn determinants_by_hand() {
    let det = |n: usize, values: &[f64]| {
        let a = Tensor::from_parts(&[n, n], values.to_vec());
        let log = run(&d::SLOGDET, &[&a], &[]).unwrap();
        (run(&d::DET, &[&a], &[]).unwrap()[0].get(0).f64(), log[0].get(0).f64(), log[1].get(0).f64())
    };
    // By Sarrus: 1·(5·10 - 6·8) - 2·(4·10 - 6·7) + 3·(4·8 - 5·7) = -3
    let (value, sign, log) = det(3, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 10.0]);
    assert_near(&[value, sign, log], &[-3.0, -1.0, 3.0_f64.ln()]);
    assert_eq!(det(2, &[0.0, 1.0, 1.0, 0.0]).0, -1.0);
    assert_eq!(det(2, &[1.0, 2.0, 2.0, 4.0]), (0.0, 0.0, f64::NEG_INFINITY));
    assert_eq!(det(0, &[]), (1.0, 1.0, 0.0));
}

#[test]
fn the_factor_times_its_transpose_is_the_matrix() {
    let mut seed = 6;
    let a = definite(&mut seed, &[2, 4, 4]);
    let l = run(&d::CHOLESKY, &[&a], &[]).unwrap();
    assert_near(&product(&l[0], &transposed(&l[0])).to_f64s(), &a.to_f64s());
    // The example of numpy's and Wikipedia's pages: L = [[2, 0, 0], [6, 1, 0], [-8, 5, 3]].
    let a = Tensor::from_parts(&[3, 3], vec![4.0, 12.0, -16.0, 12.0, 37.0, -43.0, -16.0, -43.0, 98.0]);
    let l = run(&d::CHOLESKY, &[&a], &[]).unwrap();
    assert_near(&l[0].to_f64s(), &[2.0, 0.0, 0.0, 6.0, 1.0, 0.0, -8.0, 5.0, 3.0]);
}

#[test]
fn what_has_no_solution_is_an_error() {
    let zero = Tensor::from_parts(&[2, 2], vec![1.0, 2.0, 2.0, 4.0]);
    let b = Tensor::from_parts(&[2], vec![1.0, 1.0]);
    assert_eq!(run(&d::SOLVE, &[&zero, &b], &[]).unwrap_err().code(), Code::Numerics);
    assert_eq!(run(&d::INV, &[&zero], &[]).unwrap_err().code(), Code::Numerics);
    let indefinite = Tensor::from_parts(&[2, 2], vec![1.0, 2.0, 2.0, 1.0]);
    assert_eq!(run(&d::CHOLESKY, &[&indefinite], &[]).unwrap_err().code(), Code::Numerics);
    assert_eq!(
        run(&d::INV, &[&Tensor::from_parts(&[2, 3], vec![1.0; 6])], &[]).unwrap_err().code(),
        Code::ShapeMismatch
    );
    assert_eq!(run(&d::INV, &[&b], &[]).unwrap_err().code(), Code::RankMismatch);
    let half = zero.cast(DType::F16);
    let error = run(&d::INV, &[&half], &[]).unwrap_err();
    assert_eq!(error.code(), Code::DTypeMismatch);
    assert!(error.hint().unwrap().contains("cast"));
}

#[test]
fn gradients_agree_with_differences() {
    let mut seed = 17;
    for (a, b) in
        [(&[3, 3][..], &[3][..]), (&[3, 3], &[3, 2]), (&[2, 3, 3], &[3]), (&[2, 1, 3, 3], &[2, 3, 2])]
    {
        let (a, b) = (regular(&mut seed, a), random(&mut seed, b));
        check_gradient(&d::SOLVE, &[&a, &b], &[]);
        for lower in [true, false] {
            for transpose in [true, false] {
                let lits: [Lit; 2] = [lower.into(), transpose.into()];
                check_gradient(&d::TRIANGULAR_SOLVE, &[&a, &b], &lits);
            }
        }
    }
    let a = regular(&mut seed, &[2, 3, 3]);
    for op in [&d::INV, &d::DET, &d::SLOGDET] {
        check_gradient(op, &[&a], &[]);
    }
    check_gradient(&d::CHOLESKY, &[&definite(&mut seed, &[2, 3, 3])], &[]);
}

#[test]
fn powers_of_a_rotation() {
    // The imaginary unit as a matrix, as in the NumPy documentation of matrix_power.
    let i = Tensor::from_parts(&[2, 2], vec![0.0, 1.0, -1.0, 0.0]);
    let power = |n: i64| run(&d::MATRIX_POWER, &[&i], &[Lit::int(n)]).unwrap()[0].to_f64s();
    assert_eq!(power(3), [0.0, -1.0, 1.0, 0.0]);
    assert_eq!(power(0), [1.0, 0.0, 0.0, 1.0]);
    assert_eq!(power(-3), [0.0, 1.0, -1.0, 0.0]);
    let ones = Tensor::from_parts(&[2, 2], vec![1_i32, 1, 1, 0]);
    let fibonacci = run(&d::MATRIX_POWER, &[&ones], &[Lit::int(10)]).unwrap();
    assert_eq!((fibonacci[0].dtype(), fibonacci[0].to_i64s()), (DType::I32, vec![89, 55, 55, 34]));
}
