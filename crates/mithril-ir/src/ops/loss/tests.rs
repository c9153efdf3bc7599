//! Values computed by hand from the formulas in the documentation of PyTorch.

use super::*;
use crate::literal::Lit;
use crate::ops::reduce::tests::{check_gradient, close, f64s, gradients, run, values};
use crate::tensor::Tensor;

fn pair(input: &[f64], target: &[f64]) -> [(&'static str, Tensor); 2] {
    [("input", f64s(&[input.len()], input)), ("target", f64s(&[target.len()], target))]
}

fn none() -> (&'static str, Lit) {
    ("reduction", "none".into())
}

#[test]
fn reductions() {
    let p = pair(&[1.0, 2.0, 4.0], &[1.0, 0.0, 1.0]);
    close(&values(&MSE_LOSS, &p, &[]), &[13.0 / 3.0]);
    close(&values(&MSE_LOSS, &p, &[("reduction", "sum".into())]), &[13.0]);
    close(&values(&MSE_LOSS, &p, &[none()]), &[0.0, 4.0, 9.0]);
    close(&values(&L1_LOSS, &p, &[]), &[5.0 / 3.0]);
    close(&values(&SQUARED_ERROR, &p, &[]), &[0.0, 4.0, 9.0]);
    close(&values(&ABSOLUTE_ERROR, &p, &[]), &[0.0, 2.0, 3.0]);
}

#[test]
fn shapes_that_would_broadcast_are_refused() {
    let column = [("input", f64s(&[3, 1], &[0.0; 3])), ("target", f64s(&[3], &[0.0; 3]))];
    assert_eq!(run(&MSE_LOSS, &column, &[]).unwrap_err().code(), Code::RankMismatch);
    let unequal = pair(&[1.0, 2.0], &[1.0]);
    assert_eq!(run(&MSE_LOSS, &unequal, &[]).unwrap_err().code(), Code::ShapeMismatch);
    let number = [("input", f64s(&[2], &[1.0, 3.0])), ("target", f64s(&[], &[0.0]))];
    close(&values(&MSE_LOSS, &number, &[]), &[5.0]);
}

#[test]
fn robust_losses() {
    let p = pair(&[0.5, -3.0, 1.0], &[0.0, 0.0, 0.0]);
    close(&values(&HUBER_LOSS, &p, &[none()]), &[0.125, 2.5, 0.5]);
    close(&values(&HUBER_LOSS, &p, &[none(), ("delta", 2.0.into())]), &[0.125, 4.0, 0.5]);
    close(&values(&SMOOTH_L1_LOSS, &p, &[none(), ("beta", 2.0.into())]), &[0.0625, 2.0, 0.25]);
    close(&values(&SMOOTH_L1_LOSS, &p, &[none(), ("beta", 0.into())]), &[0.5, 3.0, 1.0]);
    assert_eq!(run(&HUBER_LOSS, &p, &[("delta", 0.into())]).unwrap_err().code(), Code::BadArgument);
    assert_eq!(run(&SMOOTH_L1_LOSS, &p, &[("beta", (-1).into())]).unwrap_err().code(), Code::BadArgument);
    let far = pair(&[1e200], &[0.0]);
    close(&values(&HUBER_LOSS, &far, &[]), &[1e200]);
}

#[test]
fn binary_cross_entropy_is_finite() {
    let p = pair(&[0.25, 0.5, 0.0, 1.0], &[1.0, 0.5, 1.0, 1.0]);
    close(&values(&BINARY_CROSS_ENTROPY, &p, &[none()]), &[4_f64.ln(), 2_f64.ln(), 100.0, 0.0]);
    let p = pair(&[0.3, 0.9, 0.6], &[1.0, 0.2, 0.0]);
    check_gradient(&BINARY_CROSS_ENTROPY, &p, &[]);
    let [input, target] = p;
    let weighted = [input, target, ("weight", f64s(&[3], &[2.0, 0.5, 1.0]))];
    check_gradient(&BINARY_CROSS_ENTROPY, &weighted, &[none()]);
    // (x - t) / 1e-12, as PyTorch
    let certain = pair(&[0.0], &[1.0]);
    close(&gradients(&BINARY_CROSS_ENTROPY, &certain, &[], &f64s(&[], &[1.0]))[0], &[-1e12]);
}

#[test]
fn logits_do_not_overflow() {
    let p = pair(&[1000.0, -1000.0, 0.0, 1000.0], &[0.0, 1.0, 0.5, 1.0]);
    close(&values(&BINARY_CROSS_ENTROPY_WITH_LOGITS, &p, &[none()]), &[1000.0, 1000.0, 2_f64.ln(), 0.0]);
    let [input, target] = pair(&[0.7, -1.1], &[1.0, 0.3]);
    let all = [input, target, ("weight", f64s(&[2], &[2.0, 3.0])), ("pos_weight", f64s(&[2], &[5.0, 4.0]))];
    let minus_log_sigmoid = |x: f64| (1.0 + (-x).exp()).ln();
    let expected = [
        2.0 * 5.0 * minus_log_sigmoid(0.7),
        3.0 * (4.0 * 0.3 * minus_log_sigmoid(-1.1) + 0.7 * minus_log_sigmoid(1.1)),
    ];
    close(&values(&BINARY_CROSS_ENTROPY_WITH_LOGITS, &all, &[none()]), &expected);
    close(&values(&BINARY_CROSS_ENTROPY_WITH_LOGITS, &all, &[]), &[f64::midpoint(expected[0], expected[1])]);
}

#[test]
fn divergence() {
    let half = 0.5_f64.ln();
    let p = [("input", f64s(&[2, 2], &[half; 4])), ("target", f64s(&[2, 2], &[1.0, 0.0, 0.5, 0.5]))];
    close(&values(&KL_DIV, &p, &[none()]), &[-half, 0.0, 0.0, 0.0]);
    close(&values(&KL_DIV, &p, &[]), &[-half / 4.0]);
    close(&values(&KL_DIV, &p, &[("reduction", "batchmean".into())]), &[-half / 2.0]);
    let logs = pair(&[half], &[0.25_f64.ln()]);
    close(&values(&KL_DIV, &logs, &[("log_target", true.into())]), &[0.25 * half]);
    let scalar = [("input", f64s(&[], &[0.5])), ("target", f64s(&[], &[0.5]))];
    assert!(run(&KL_DIV, &scalar, &[("reduction", "batchmean".into())]).is_err());
}

#[test]
fn hinges() {
    let p = pair(&[0.5, 2.0, -1.0], &[1.0, 1.0, 1.0]);
    close(&values(&HINGE_LOSS, &p, &[none()]), &[0.5, 0.0, 2.0]);
    close(&values(&QUAD_HINGE_LOSS, &p, &[none()]), &[0.25, 0.0, 4.0]);
}

/// `log Σ e^x` of the row 1, 2, 3.
fn lse() -> f64 {
    (1_f64.exp() + 2_f64.exp() + 3_f64.exp()).ln()
}

fn rows(target: Tensor) -> [(&'static str, Tensor); 2] {
    let input = f64s(&[2, 3], &[1.0, 2.0, 3.0, 1.0, 2.0, 3.0]);
    [("input", input), ("target", target)]
}

#[test]
fn classes_by_index() {
    let t = rows(Tensor::from_parts(&[2], vec![0_i64, 2]));
    let (a, b) = (lse() - 1.0, lse() - 3.0);
    close(&values(&CROSS_ENTROPY, &t, &[none()]), &[a, b]);
    close(&values(&CROSS_ENTROPY, &t, &[]), &[f64::midpoint(a, b)]);
    let [input, target] = t.clone();
    let weighted = [input, target, ("weight", f64s(&[3], &[1.0, 2.0, 3.0]))];
    close(&values(&CROSS_ENTROPY, &weighted, &[]), &[(a + 3.0 * b) / 4.0]);
    close(&values(&CROSS_ENTROPY, &weighted, &[("reduction", "sum".into())]), &[a + 3.0 * b]);
    let ignore = ("ignore_index", 0.into());
    close(&values(&CROSS_ENTROPY, &weighted, std::slice::from_ref(&ignore)), &[b]);
    close(&values(&CROSS_ENTROPY, &t, &[ignore, none()]), &[0.0, b]);
    let unsigned = rows(Tensor::from_parts(&[2], vec![0_u8, 2]));
    close(&values(&CROSS_ENTROPY, &unsigned, &[none()]), &[a, b]);
}

#[test]
fn smoothed_labels() {
    // With ε = 0.3 the target is 0.8, 0.1, 0.1 for class 0.
    let t = rows(Tensor::from_parts(&[2], vec![0_i64, 2]));
    let expected = [lse() - (0.8 + 0.2 + 0.3), lse() - (0.1 + 0.2 + 2.4)];
    let smoothing = ("label_smoothing", 0.3.into());
    close(&values(&CROSS_ENTROPY, &t, &[none(), smoothing.clone()]), &expected);
    // Uniform targets have the precision of the input, not of the default float.
    let actual = values(&CROSS_ENTROPY, &t, &[none(), smoothing.clone()]);
    assert!((actual[0] - expected[0]).abs() < 1e-13);
    let one = rows(f64s(&[2, 3], &[1.0, 0.0, 0.0, 0.0, 0.0, 1.0]));
    close(&values(&CROSS_ENTROPY, &one, &[none(), smoothing.clone()]), &expected);
    // The uniform part is weighted by each class, and the mean by the targets.
    let [input, target] = t;
    let weighted = [input, target, ("weight", f64s(&[3], &[1.0, 2.0, 3.0]))];
    let (a, b, c) = (lse() - 1.0, lse() - 2.0, lse() - 3.0);
    let even = a + 2.0 * b + 3.0 * c;
    let expected = (0.7 * (a + 3.0 * c) + 0.1 * 2.0 * even) / 4.0;
    close(&values(&CROSS_ENTROPY, &weighted, std::slice::from_ref(&smoothing)), &[expected]);
    let ignore = ("ignore_index", 0.into());
    let expected = (0.7 * 3.0 * c + 0.1 * even) / 3.0;
    close(&values(&CROSS_ENTROPY, &weighted, &[smoothing, ignore]), &[expected]);
    let error = run(&CROSS_ENTROPY, &weighted, &[("label_smoothing", 1.5.into())]).unwrap_err();
    assert_eq!(error.code(), Code::BadArgument);
}

#[test]
fn classes_by_probability() {
    let t = rows(f64s(&[2, 3], &[0.5, 0.5, 0.0, 0.2, 0.3, 0.5]));
    let expected = [lse() - 1.5, lse() - 2.3];
    close(&values(&CROSS_ENTROPY, &t, &[none()]), &expected);
    close(&values(&CROSS_ENTROPY, &t, &[]), &[f64::midpoint(expected[0], expected[1])]);
    let one_hot = rows(Tensor::from_parts(&[2, 3], vec![1_i64, 0, 0, 0, 0, 1]));
    close(&values(&CROSS_ENTROPY, &one_hot, &[none()]), &[lse() - 1.0, lse() - 3.0]);
}

#[test]
fn places_and_single_rows() {
    let row = f64s(&[3], &[1.0, 2.0, 3.0]);
    let single = [("input", row), ("target", Tensor::from_parts(&[], vec![1_i64]))];
    close(&values(&CROSS_ENTROPY, &single, &[]), &[lse() - 2.0]);
    let input = f64s(&[1, 3, 2], &[1.0, 3.0, 2.0, 2.0, 3.0, 1.0]);
    let places = [("input", input), ("target", Tensor::from_parts(&[1, 2], vec![0_i64, 0]))];
    let y = &run(&CROSS_ENTROPY, &places, &[none()]).unwrap()[0];
    assert_eq!(y.shape(), [1, 2]);
    close(&y.to_f64s(), &[lse() - 1.0, lse() - 3.0]);
    close(&values(&NLL_LOSS, &places, &[none()]), &[-1.0, -3.0]);
}

#[test]
fn nothing_to_count_is_nan() {
    let t = rows(Tensor::from_parts(&[2], vec![-100_i64, -100]));
    assert!(values(&CROSS_ENTROPY, &t, &[])[0].is_nan());
    close(&values(&CROSS_ENTROPY, &t, &[("reduction", "sum".into())]), &[0.0]);
}

#[test]
fn large_logits() {
    let input = f64s(&[1, 2], &[1e4, 0.0]);
    let t = [("input", input), ("target", Tensor::from_parts(&[1], vec![1_i64]))];
    close(&values(&CROSS_ENTROPY, &t, &[]), &[1e4]);
    let half = [
        ("input", Tensor::full(DType::F16, &[70_000, 2], 0.0)),
        ("target", Tensor::full(DType::I64, &[70_000], 0_i64)),
    ];
    let y = &run(&CROSS_ENTROPY, &half, &[]).unwrap()[0];
    assert_eq!(y.dtype(), DType::F16);
    assert!((y.get(0).f64() - 2_f64.ln()).abs() < 1e-3);
}

#[test]
fn class_indices_may_be_whole_floats() {
    let expected = &run(&CROSS_ENTROPY, &rows(Tensor::from_parts(&[2], vec![0_i64, 1])), &[]).unwrap()[0];
    let actual = &run(&CROSS_ENTROPY, &rows(f64s(&[2], &[0.0, 1.0])), &[]).unwrap()[0];
    assert!(actual.same_bits(expected));
    let half = &run(&CROSS_ENTROPY, &rows(f64s(&[2], &[0.5, 1.0])), &[]).unwrap()[0];
    assert!(half.get(0).f64().is_nan());
}

#[test]
fn targets_that_do_not_fit() {
    let cases = [
        Tensor::from_parts(&[3], vec![0_i64; 3]),
        Tensor::from_parts(&[2, 2], vec![0_i64; 4]),
        Tensor::from_parts(&[2, 3, 1], vec![0_i64; 6]),
    ];
    for target in cases {
        assert!(run(&CROSS_ENTROPY, &rows(target), &[]).is_err());
    }
    assert!(run(&CROSS_ENTROPY, &rows(Tensor::from_parts(&[2], vec![0_i64, 3])), &[]).is_err());
    assert!(run(&NLL_LOSS, &rows(f64s(&[2], &[0.0, 1.0])), &[]).is_err());
}
