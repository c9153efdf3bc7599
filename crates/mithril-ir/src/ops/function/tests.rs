//! Values, edge cases and slopes of elementwise functions.

use super::*;
use crate::ops::reduce::tests::{check_gradient, close, f64s, run, values};
use crate::tensor::Tensor;

const NAN: f64 = f64::NAN;
const INF: f64 = f64::INFINITY;

fn at(op: &'static OpDef, x: &[f64]) -> Vec<f64> {
    values(op, &[("input", f64s(&[x.len()], x))], &[])
}

#[test]
fn poles_and_what_lies_beyond() {
    close(&at(&SQRT, &[4.0, 0.0, -1.0]), &[2.0, 0.0, NAN]);
    close(&at(&RSQRT, &[4.0, 0.0, -1.0, INF]), &[0.5, INF, NAN, 0.0]);
    close(&at(&RECIPROCAL, &[4.0, 0.0, -INF]), &[0.25, INF, 0.0]);
    close(&at(&LOG, &[1.0, 0.0, -1.0]), &[0.0, -INF, NAN]);
    close(&at(&LOG2, &[8.0, 0.25, 0.0]), &[3.0, -2.0, -INF]);
    close(&at(&LOG10, &[1000.0, 0.0]), &[3.0, -INF]);
    close(&at(&LOG1P, &[0.0, -1.0, -2.0]), &[0.0, -INF, NAN]);
    close(&at(&EXP, &[0.0, 1000.0, -1000.0]), &[1.0, INF, 0.0]);
    close(&at(&ASIN, &[1.0, 2.0]), &[PI / 2.0, NAN]);
    close(&at(&ACOS, &[-1.0, 2.0]), &[PI, NAN]);
    close(&at(&ACOSH, &[1.0, 0.5, -32_768.0]), &[0.0, NAN, NAN]);
    close(&at(&ATANH, &[1.0, -1.0, 2.0]), &[INF, -INF, NAN]);
}

#[test]
fn small_values_keep_their_digits() {
    assert_eq!(at(&EXPM1, &[1e-20]), [1e-20]);
    assert_eq!(at(&LOG1P, &[1e-20]), [1e-20]);
}

/// Abramowitz and Stegun, table 7.1; erfc(6) to 15 digits.
#[test]
fn error_functions() {
    let expected = [0.0, 0.520_499_877_8, 0.842_700_792_9, -0.995_322_265_0, 1.0];
    close(&at(&ERF, &[0.0, 0.5, 1.0, -2.0, INF]), &expected);
    let ratio = at(&ERFC, &[6.0])[0] / 2.151_973_671_249_891e-17;
    assert!((ratio - 1.0).abs() < 1e-14);
    close(&at(&ERFINV, &[1.0, -1.0, 1.5, NAN, 0.0]), &[INF, -INF, NAN, NAN, 0.0]);
    for x in [1e-300, 1e-5, 0.1, 0.4, 0.499_999, 0.500_001, 0.9, 0.999_999, 1.0 - 1e-15] {
        let back = libm::erf(at(&ERFINV, &[x])[0]) / x;
        assert!((back - 1.0).abs() < 4.0 * f64::EPSILON, "{x}");
    }
    let tail = 2.0_f64.powi(-50);
    let back = libm::erfc(at(&ERFINV, &[1.0 - tail])[0]) / tail;
    assert!((back - 1.0).abs() < 1e-13);
}

#[test]
fn halves_round_to_even() {
    close(
        &at(&ROUND, &[0.5, 1.5, 2.5, -0.5, -1.5, 2.4, NAN, INF]),
        &[0.0, 2.0, 2.0, 0.0, -2.0, 2.0, NAN, INF],
    );
    close(&at(&FLOOR, &[1.5, -1.5, -0.0]), &[1.0, -2.0, 0.0]);
    close(&at(&CEIL, &[1.5, -1.5]), &[2.0, -1.0]);
    close(&at(&TRUNC, &[1.5, -1.5]), &[1.0, -1.0]);
    for op in [&ROUND, &FLOOR, &CEIL, &TRUNC, &SQUARE] {
        let out = run(op, &[("input", Tensor::from_parts(&[2], vec![1_i32, 0]))], &[]).unwrap();
        assert_eq!(out[0].as_slice::<i32>().unwrap(), [1, 0], "{}", op.name);
    }
}

#[test]
fn integers_become_floats_where_values_are_not_whole() {
    let out = run(&SQRT, &[("input", Tensor::from_parts(&[1], vec![9_i64]))], &[]).unwrap();
    assert_eq!(out[0].as_slice::<f32>().unwrap(), [3.0]);
}

#[test]
fn slopes_agree_with_differences() {
    for op in OPS.iter().filter(|op| matches!(op.grad, Grad::Formula(_)) && op.ports.len() == 1) {
        let (low, high) = op.domain;
        let x: Vec<f64> = (1..6).map(|i| low + (high - low) * f64::from(i) / 6.0).collect();
        check_gradient(op, &[("input", f64s(&[5], &x))], &[]);
    }
}
