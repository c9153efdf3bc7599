//! Products of vectors and tensors against the examples of the NumPy documentation and explicit sums.

use mithril_ir::ops::products as p;
use mithril_ir::{Code, Lit, Tensor};

use super::run;

fn counting(shape: &[usize]) -> Tensor {
    Tensor::from_parts(shape, (0..shape.iter().product::<usize>()).map(|i| i as f64).collect::<Vec<_>>())
}

#[test]
fn vectors() {
    let (a, b) = (Tensor::from_parts(&[3], vec![1.0, 2.0, 3.0]), Tensor::from_parts(&[2], vec![10.0, 20.0]));
    let y = run(&p::OUTER, &[&a, &b], &[]).unwrap();
    assert_eq!((y[0].shape(), y[0].to_f64s()), (&[3, 2][..], vec![10.0, 20.0, 20.0, 40.0, 30.0, 60.0]));
    let y = run(&p::KRON, &[&b, &a], &[]).unwrap();
    assert_eq!(y[0].to_f64s(), [10.0, 20.0, 30.0, 20.0, 40.0, 60.0]);
    for op in [&p::VECDOT, &p::INNER, &p::DOT] {
        let y = run(op, &[&a, &a], &[]).unwrap();
        assert_eq!((y[0].shape(), y[0].to_f64s()), (&[][..], vec![14.0]), "{}", op.name);
    }
    let error = run(&p::VECDOT, &[&counting(&[2, 1]), &counting(&[2, 3])], &[]).unwrap_err();
    assert_eq!(error.code(), Code::ShapeMismatch);
}

#[test]
fn kron_of_matrices_is_blocks() {
    // np.kron(np.eye(2), np.ones((2, 2))) of the NumPy documentation.
    let eye = Tensor::from_parts(&[2, 2], vec![1.0, 0.0, 0.0, 1.0]);
    let y = run(&p::KRON, &[&eye, &Tensor::from_parts(&[2, 2], vec![1.0; 4])], &[]).unwrap();
    let expected: Vec<f64> = (0..16).map(|i| if (i / 4 < 2) == (i % 4 < 2) { 1.0 } else { 0.0 }).collect();
    assert_eq!(y[0].to_f64s(), expected);
}

#[test]
fn dot_combines_leading_axes() {
    // np.dot(a, b)[2, 3, 2, 1, 2, 2] == 499128 of the NumPy documentation.
    let a = counting(&[3, 4, 5, 6]);
    let b = Tensor::from_parts(&[5, 4, 6, 3], (0..360).rev().map(f64::from).collect::<Vec<f64>>());
    let y = run(&p::DOT, &[&a, &b], &[]).unwrap();
    assert_eq!(y[0].shape(), [3, 4, 5, 5, 4, 3]);
    assert_eq!(y[0].get(((((2 * 4 + 3) * 5 + 2) * 5 + 1) * 4 + 2) * 3 + 2).f64(), 499_128.0);
}

#[test]
fn inner_sums_over_both_last_axes() {
    // np.inner(np.arange(24).reshape((2,3,4)), np.arange(4)) of the NumPy documentation.
    let y = run(&p::INNER, &[&counting(&[2, 3, 4]), &counting(&[4])], &[]).unwrap();
    assert_eq!((y[0].shape(), y[0].to_f64s()), (&[2, 3][..], vec![14.0, 38.0, 62.0, 86.0, 110.0, 134.0]));
}

#[test]
fn tensordot_sums_over_pairs() {
    // The example of np.tensordot's documentation, axes=([1, 0], [0, 1]).
    let (a, b) = (counting(&[3, 4, 5]), counting(&[4, 3, 2]));
    let axes = Lit::tuple([Lit::from([1, 0]), Lit::from([0, 1])]);
    let y = run(&p::TENSORDOT, &[&a, &b], &[axes]).unwrap();
    assert_eq!(y[0].shape(), [5, 2]);
    let expected = [4400.0, 4730.0, 4532.0, 4874.0, 4664.0, 5018.0, 4796.0, 5162.0, 4928.0, 5306.0];
    assert_eq!(y[0].to_f64s(), expected);
    let code = |axes: Lit| run(&p::TENSORDOT, &[&a, &b], &[axes]).unwrap_err().code();
    assert_eq!(code(Lit::int(4)), Code::BadArgument);
    assert_eq!(code(Lit::int(-1)), Code::BadArgument);
    assert_eq!(code(Lit::int(2)), Code::ShapeMismatch);
    assert_eq!(code(Lit::from([5, 0])), Code::BadArgument);
    assert_eq!(code(Lit::tuple([Lit::from([1, 1]), Lit::from([0, 0])])), Code::BadArgument);
}

#[test]
fn cross_is_perpendicular() {
    // np.cross([1, 2, 3], [4, 5, 6]) of the NumPy documentation.
    let (a, b) =
        (Tensor::from_parts(&[3], vec![1.0, 2.0, 3.0]), Tensor::from_parts(&[3], vec![4.0, 5.0, 6.0]));
    assert_eq!(run(&p::CROSS, &[&a, &b], &[]).unwrap()[0].to_f64s(), [-3.0, 6.0, -3.0]);
    let columns = run(&p::CROSS, &[&a.reshaped(&[3, 1]), &b.reshaped(&[3, 1])], &[Lit::int(0)]).unwrap();
    assert_eq!(columns[0].to_f64s(), [-3.0, 6.0, -3.0]);
    let two = counting(&[2]);
    assert_eq!(run(&p::CROSS, &[&two, &two], &[]).unwrap_err().code(), Code::ShapeMismatch);
}
