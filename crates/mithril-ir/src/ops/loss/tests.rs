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
    let wanted = [
        2.0 * 5.0 * minus_log_sigmoid(0.7),
        3.0 * (4.0 * 0.3 * minus_log_sigmoid(-1.1) + 0.7 * minus_log_sigmoid(1.1)),
    ];
    close(&values(&BINARY_CROSS_ENTROPY_WITH_LOGITS, &all, &[none()]), &wanted);
    close(&values(&BINARY_CROSS_ENTROPY_WITH_LOGITS, &all, &[]), &[(wanted[0] + wanted[1]) / 2.0]);
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
