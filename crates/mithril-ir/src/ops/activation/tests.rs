//! Values from closed forms and from the documentation of PyTorch, special values, and slopes.

use super::*;
use crate::dtype::DType;
use crate::error::Code;
use crate::literal::Lit;
use crate::ops::reduce::tests::{check_gradient, close, f64s, gradients, run, values};

const NAN: f64 = f64::NAN;
const INF: f64 = f64::INFINITY;

fn at(op: &'static OpDef, x: &[f64]) -> Vec<f64> {
    values(op, &[("input", f64s(&[x.len()], x))], &[])
}

fn slopes(op: &'static OpDef, x: &[f64]) -> Vec<f64> {
    let g = f64s(&[x.len()], &vec![1.0; x.len()]);
    gradients(op, &[("input", f64s(&[x.len()], x))], &[], &g).remove(0)
}

#[test]
fn rectifiers() {
    close(&at(&RELU, &[-2.0, 0.0, 3.0, INF, NAN]), &[0.0, 0.0, 3.0, INF, NAN]);
    assert_eq!(slopes(&RELU, &[-2.0, 0.0, 3.0]), [0.0, 0.0, 1.0]);
    let integers = run(&RELU, &[("input", Tensor::from_parts(&[2], vec![-3_i32, 3]))], &[]).unwrap();
    assert_eq!(integers[0].as_slice::<i32>().unwrap(), [0, 3]);
    close(&at(&RELU6, &[-1.0, 5.0, 7.0, NAN]), &[0.0, 5.0, 6.0, NAN]);
    assert_eq!(slopes(&RELU6, &[-1.0, 0.0, 5.0, 6.0, 7.0]), [0.0, 0.0, 1.0, 0.0, 0.0]);
    close(&at(&LEAKY_RELU, &[-2.0, 0.0, 3.0, NAN]), &[-0.02, 0.0, 3.0, NAN]);
    assert_eq!(slopes(&LEAKY_RELU, &[-2.0, 0.0, 3.0]), [0.01, 0.01, 1.0]);
}

#[test]
fn prelu_has_a_slope_per_channel() {
    let x = ("input", f64s(&[1, 2, 2], &[-1.0, 1.0, -1.0, -2.0]));
    let actual = values(&PRELU, &[x.clone(), ("weight", f64s(&[2], &[0.5, 0.25]))], &[]);
    assert_eq!(actual, [-0.5, 1.0, -0.25, -0.5]);
    let actual = values(&PRELU, &[x.clone(), ("weight", f64s(&[1], &[0.5]))], &[]);
    assert_eq!(actual, [-0.5, 1.0, -0.5, -1.0]);
    let error = run(&PRELU, &[x.clone(), ("weight", f64s(&[3], &[0.0; 3]))], &[]).unwrap_err();
    assert_eq!(error.code(), Code::ShapeMismatch);
    let error = run(&PRELU, &[x, ("weight", f64s(&[1, 2], &[0.0; 2]))], &[]).unwrap_err();
    assert_eq!(error.code(), Code::RankMismatch);
    let line = ("input", f64s(&[2], &[-1.0, 1.0]));
    let error = run(&PRELU, &[line, ("weight", f64s(&[2], &[0.0; 2]))], &[]).unwrap_err();
    assert_eq!(error.code(), Code::ShapeMismatch);
}

#[test]
fn exponential_units() {
    let below = (-1.0_f64).exp() - 1.0;
    close(&at(&ELU, &[-1.0, 0.0, 2.0, -INF, INF, NAN]), &[below, 0.0, 2.0, -1.0, INF, NAN]);
    close(&at(&SELU, &[-1.0, 1.0]), &[1.050_700_98 * 1.673_263_24 * below, 1.050_700_98]);
    let x = [("input", f64s(&[2], &[-1.0, 2.0]))];
    close(&values(&CELU, &x, &[("alpha", 2.0.into())]), &[2.0 * ((-0.5_f64).exp() - 1.0), 2.0]);
    close(&values(&ELU, &x, &[("alpha", 0.5.into())]), &[0.5 * below, 2.0]);
    // The branch that is not taken overflows; the slope must not become NaN.
    for op in [&ELU, &SELU, &CELU] {
        assert!(slopes(op, &[800.0]).iter().all(|d| d.is_finite()), "{}", op.name);
    }
}

/// Φ(1) and Φ(-2) from tables of the normal distribution.
#[test]
fn gelu_is_exact_unless_asked() {
    close(&at(&GELU, &[0.0, 1.0, -2.0]), &[0.0, 0.841_344_746_1, -2.0 * 0.022_750_131_9]);
    let x = [("input", f64s(&[2], &[1.0, -2.0]))];
    let tanh = |x: f64| {
        0.5 * x * (1.0 + (2.0 / std::f64::consts::PI).sqrt().mul_add(x + 0.044_715 * x.powi(3), 0.0).tanh())
    };
    let actual = values(&GELU, &x, &[("approximate", "tanh".into())]);
    close(&actual, &[tanh(1.0), tanh(-2.0)]);
    assert!((actual[0] - 0.841_344_746).abs() > 1e-4, "the approximation differs from the exact value");
    let error = run(&GELU, &x, &[("approximate", "erf".into())]).unwrap_err();
    assert_eq!(error.code(), Code::BadArgument);
    // In the tail 1 + erf and 1 + tanh consist of rounding errors: Φ(-9) = 1.1285884e-19.
    let tail = at(&GELU, &[-9.0])[0] / (-9.0 * 1.128_588_4e-19);
    assert!((tail - 1.0).abs() < 1e-7);
    let g = f64s(&[3], &[1.0; 3]);
    for kind in ["none", "tanh"] {
        let x = [("input", f64s(&[3], &[-1e200, 1e200, 40.0]))];
        close(&gradients(&GELU, &x, &[("approximate", kind.into())], &g)[0], &[0.0, 1.0, 1.0]);
    }
}

#[test]
fn logistic_family() {
    let s = |x: f64| 1.0 / (1.0 + (-x).exp());
    close(&at(&SIGMOID, &[0.0, 2.0, -2.0, INF, -INF, NAN]), &[0.5, s(2.0), s(-2.0), 1.0, 0.0, NAN]);
    close(&at(&SILU, &[2.0, -2.0, 800.0]), &[2.0 * s(2.0), -2.0 * s(-2.0), 800.0]);
    close(&at(&LOG_SIGMOID, &[0.0, 2.0, -800.0]), &[-(2.0_f64.ln()), s(2.0).ln(), -800.0]);
    close(
        &at(&SOFTPLUS, &[0.0, 2.0, -800.0, 800.0]),
        &[2.0_f64.ln(), (1.0 + 2.0_f64.exp()).ln(), 0.0, 800.0],
    );
    close(&at(&MISH, &[1.0, 800.0]), &[(1.0 + 1.0_f64.exp()).ln().tanh(), 800.0]);
    close(&at(&SOFTSIGN, &[-3.0, 1.0]), &[-0.75, 0.5]);
}

#[test]
fn softplus_is_linear_above_the_threshold() {
    let x = [("input", f64s(&[2], &[1.0, 3.0]))];
    let options = [("beta", Lit::Float(2.0)), ("threshold", Lit::Float(5.0))];
    close(&values(&SOFTPLUS, &x, &options), &[(1.0 + 2.0_f64.exp()).ln() / 2.0, 3.0]);
    let actual = gradients(&SOFTPLUS, &x, &options, &f64s(&[2], &[1.0, 1.0]));
    close(&actual[0], &[1.0 / (1.0 + (-2.0_f64).exp()), 1.0]);
}

#[test]
fn pieces() {
    close(&at(&HARD_SIGMOID, &[-4.0, 0.0, 1.5, 4.0, NAN]), &[0.0, 0.5, 0.75, 1.0, NAN]);
    assert_eq!(slopes(&HARD_SIGMOID, &[-3.0, 0.0, 3.0]), [0.0, 1.0 / 6.0, 0.0]);
    close(&at(&HARD_SWISH, &[-4.0, 0.0, 1.5, 4.0, NAN]), &[0.0, 0.0, 1.125, 4.0, NAN]);
    assert_eq!(slopes(&HARD_SWISH, &[-4.0, -3.0, 0.0, 3.0, 4.0]), [0.0, 0.0, 0.5, 1.0, 1.0]);
    close(&at(&HARD_TANH, &[-4.0, 0.5, 4.0, NAN]), &[-1.0, 0.5, 1.0, NAN]);
    assert_eq!(slopes(&HARD_TANH, &[-1.0, 0.5, 1.0]), [0.0, 1.0, 0.0]);
}

#[test]
fn slopes_agree_with_differences() {
    let x = [("input", f64s(&[6], &[-3.7, -1.2, -0.4, 0.3, 1.6, 4.1]))];
    for op in OPS.iter().filter(|op| op.name != "prelu" && op.name != "mish") {
        check_gradient(op, &x, &[]);
    }
    check_gradient(&GELU, &x, &[("approximate", "tanh".into())]);
    check_gradient(&ELU, &x, &[("alpha", 0.3.into())]);
    check_gradient(&CELU, &x, &[("alpha", 0.3.into())]);
    check_gradient(&LEAKY_RELU, &x, &[("slope", 0.3.into())]);
    let both = [("input", f64s(&[2], &[-2.0, 3.0])), ("slope", f64s(&[2], &[0.3, 0.3]))];
    let actual = gradients(&LEAKY_RELU, &both, &[], &f64s(&[2], &[1.0, 1.0]));
    assert_eq!(actual, [[0.3, 1.0], [-2.0, 0.0]]);
}

#[test]
fn softmax_is_stable() {
    let e = 1.0_f64.exp();
    let x = [("input", f64s(&[2, 2], &[1000.0, 1001.0, 3.0, 3.0]))];
    close(&values(&SOFTMAX, &x, &[]), &[1.0 / (1.0 + e), e / (1.0 + e), 0.5, 0.5]);
    close(&values(&SOFTMAX, &x, &[("axis", 0.into())]), &[1.0, 1.0, 0.0, 0.0]);
    let log = -(1.0 + e).ln();
    close(&values(&LOG_SOFTMAX, &x, &[]), &[log, 1.0 + log, -(2.0_f64.ln()), -(2.0_f64.ln())]);
    close(&values(&LOG_SOFTMAX, &x, &[("axis", 0.into())]), &[0.0, 0.0, -997.0, -998.0]);
    let special = [("input", f64s(&[3, 2], &[NAN, 1.0, 0.0, -INF, -INF, -INF]))];
    close(&values(&SOFTMAX, &special, &[]), &[NAN, NAN, 1.0, 0.0, NAN, NAN]);
}

#[test]
fn softmax_knows_its_axis() {
    let input = |shape: &[usize]| [("input", Tensor::full(DType::F32, shape, 0.0))];
    let error = run(&SOFTMAX, &input(&[2, 3]), &[("axis", 2.into())]).unwrap_err();
    assert_eq!(error.code(), Code::BadArgument);
    assert!(run(&SOFTMAX, &input(&[]), &[]).is_err());
    assert_eq!(run(&SOFTMAX, &input(&[2, 0]), &[]).unwrap()[0].shape(), [2, 0]);
    assert_eq!(run(&SOFTMAX, &input(&[0, 2]), &[]).unwrap()[0].shape(), [0, 2]);
    let x = [("input", f64s(&[2, 3], &[0.1, -0.4, 0.9, 1.2, 0.3, -0.2]))];
    for op in [&SOFTMAX, &LOG_SOFTMAX] {
        check_gradient(op, &x, &[]);
        check_gradient(op, &x, &[("axis", 0.into())]);
    }
}
