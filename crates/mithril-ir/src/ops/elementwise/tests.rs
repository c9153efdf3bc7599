//! Corner cases of arithmetic, by hand and from the documentation of Python and NumPy.

use super::*;
use crate::dim::Dim;
use crate::error::Result;
use crate::literal::Lit;
use crate::ops::reduce::tests::{check_gradient, close, f64s, gradients, run, values};
use crate::tensor::{Element, Tensor};

const NAN: f64 = f64::NAN;
const INF: f64 = f64::INFINITY;

fn of<T: Element>(values: &[T]) -> Tensor {
    Tensor::from_parts(&[values.len()], values.to_vec())
}

/// Applies the op to two vectors of one dtype, which the result has too.
fn both<T: Element>(op: &'static OpDef, left: &[T], right: &[T]) -> Vec<T> {
    let out = run(op, &[("left", of(left)), ("right", of(right))], &[]).unwrap();
    out[0].as_slice::<T>().unwrap().to_vec()
}

fn one<T: Element>(op: &'static OpDef, x: &[T]) -> Vec<T> {
    let out = run(op, &[("input", of(x))], &[]).unwrap();
    out[0].as_slice::<T>().unwrap().to_vec()
}

fn slopes(op: &'static OpDef, left: &[f64], right: &[f64]) -> Vec<Vec<f64>> {
    let ones = vec![1.0; left.len()];
    gradients(op, &[("left", of(left)), ("right", of(right))], &[], &of(&ones))
}

#[test]
fn integers_wrap_around() {
    assert_eq!(both::<u8>(&ADD, &[250, 1], &[10, 2]), [4, 3]);
    assert_eq!(both::<u8>(&SUBTRACT, &[1], &[2]), [255]);
    assert_eq!(both::<i32>(&MULTIPLY, &[i32::MAX], &[2]), [-2]);
    assert_eq!(one::<i8>(&NEGATIVE, &[-128, 5]), [-128, -5]);
    assert_eq!(one::<i64>(&ABS, &[i64::MIN, -5, 5]), [i64::MIN, 5, 5]);
    assert_eq!(one::<i16>(&SIGN, &[-300, 0, 300]), [-1, 0, 1]);
    assert_eq!(both::<i64>(&ADD, &[i64::MAX], &[1]), [i64::MIN]);
}

#[test]
fn truth_values_count_as_integers() {
    let sum = run(&ADD, &[("left", of(&[true, true])), ("right", of(&[true, false]))], &[]).unwrap();
    assert_eq!(sum[0].as_slice::<i64>().unwrap(), [2, 1]);
    assert_eq!(both::<bool>(&MAXIMUM, &[true, false], &[false, false]), [true, false]);
}

#[test]
fn division_of_integers_is_of_floats() {
    let quotient =
        run(&DIVIDE, &[("left", of(&[1_i64, -1, 0])), ("right", of(&[2_i64, 0, 0]))], &[]).unwrap();
    assert_eq!(quotient[0].dtype(), DType::F32);
    close(&quotient[0].to_f64s(), &[0.5, -INF, NAN]);
}

/// Values of Python's `divmod`, and cases where it raises an error.
#[test]
fn floor_division_follows_the_sign_of_the_divisor() {
    let (a, b) = ([7, -7, 7, -7, 5, i32::MIN, i32::MIN, 0], [2, 2, -2, -2, 0, -1, 0, 3]);
    assert_eq!(both::<i32>(&FLOOR_DIVIDE, &a, &b), [3, -4, -4, 3, 0, i32::MIN, 0, 0]);
    assert_eq!(both::<i32>(&REMAINDER, &a, &b), [1, 1, -1, -1, 0, 0, 0, 0]);
    assert_eq!(both::<i64>(&FLOOR_DIVIDE, &[i64::MIN], &[-1]), [i64::MIN]);
    assert_eq!(both::<i64>(&REMAINDER, &[i64::MIN], &[-1]), [0]);
    assert_eq!(both::<u8>(&FLOOR_DIVIDE, &[200, 200], &[7, 0]), [28, 0]);
    let (a, b) = ([7.5, -7.5, 7.5, 1.0, 1.0, -1.0, -1.0, INF], [2.0, 2.0, -2.0, 0.1, 0.0, 0.0, INF, 1.0]);
    close(&both::<f64>(&FLOOR_DIVIDE, &a, &b), &[3.0, -4.0, -4.0, 9.0, INF, -INF, -1.0, NAN]);
    close(&both::<f64>(&REMAINDER, &a, &b), &[1.5, 0.5, -0.5, 1.0 % 0.1, NAN, NAN, INF, NAN]);
}

#[test]
fn powers() {
    let (x, n) = ([2, 2, 0, 1, -1, -1, 3, -2], [10, -1, -1, -7, -7, -8, 0, 3]);
    assert_eq!(both::<i64>(&POWER, &x, &n), [1024, 0, 0, 1, -1, 1, 1, -8]);
    assert_eq!(both::<i32>(&POWER, &[3, 2], &[40, 32]), [3_i128.pow(40) as i32, 0]);
    assert_eq!(both::<i64>(&POWER, &[2, -1], &[i64::MAX, i64::MIN]), [0, 1]);
    close(&both::<f64>(&POWER, &[0.0, -8.0, 4.0, NAN], &[0.0, 1.0 / 3.0, -0.5, 0.0]), &[1.0, NAN, 0.5, 1.0]);
}

#[test]
fn slopes_of_powers_at_zero_are_finite() {
    let actual = slopes(&POWER, &[0.0, 0.0, 0.0, 2.0], &[0.0, 1.0, 2.0, 3.0]);
    close(&actual[0], &[0.0, 1.0, 0.0, 12.0]);
    close(&actual[1], &[0.0, 0.0, 0.0, 8.0 * 2.0_f64.ln()]);
    let g = of(&[1.0, 1.0]);
    for (n, expected) in [(0.0, [0.0, 0.0]), (1.0, [1.0, 1.0]), (2.0, [0.0, 6.0]), (3.0, [0.0, 27.0])] {
        let actual = gradients(&POWER, &[("left", of(&[0.0, 3.0]))], &[("right", n.into())], &g);
        close(&actual[0], &expected);
    }
}

#[test]
fn extremes_pass_nan_and_share_ties() {
    let (a, b) = ([1.0, NAN, 1.0, 2.0], [2.0, 1.0, NAN, 2.0]);
    close(&both::<f64>(&MAXIMUM, &a, &b), &[2.0, NAN, NAN, 2.0]);
    close(&both::<f64>(&MINIMUM, &a, &b), &[1.0, NAN, NAN, 2.0]);
    assert_eq!(both::<i64>(&MAXIMUM, &[i64::MAX - 1], &[i64::MAX]), [i64::MAX]);
    assert_eq!(slopes(&MAXIMUM, &[1.0, 2.0, 3.0], &[2.0, 2.0, 2.0]), [[0.0, 0.5, 1.0], [1.0, 0.5, 0.0]]);
    assert_eq!(slopes(&MINIMUM, &[1.0, 2.0, 3.0], &[2.0, 2.0, 2.0]), [[1.0, 0.5, 0.0], [0.0, 0.5, 1.0]]);
}

#[test]
fn signs() {
    close(&one::<f64>(&SIGN, &[-2.5, -0.0, 0.0, INF, NAN]), &[-1.0, 0.0, 0.0, 1.0, NAN]);
    close(&one::<f64>(&ABS, &[-2.5, -0.0, -INF, NAN]), &[2.5, 0.0, INF, NAN]);
    let g = of(&[1.0; 3]);
    close(&gradients(&ABS, &[("input", of(&[-2.0, 0.0, 2.0]))], &[], &g)[0], &[-1.0, 0.0, 1.0]);
}

#[test]
fn clip_takes_numbers_tensors_or_nothing() {
    let x = [("input", of(&[-2.0, 0.5, 2.0, NAN]))];
    let bounds = |min: Lit, max: Lit| [("min", min), ("max", max)];
    let number = |x: f64| Lit::Float(x);
    close(&values(&CLIP, &x, &bounds(number(-1.0), number(1.0))), &[-1.0, 0.5, 1.0, NAN]);
    close(&values(&CLIP, &x, &bounds(Lit::None, number(1.0))), &[-2.0, 0.5, 1.0, NAN]);
    close(&values(&CLIP, &x, &bounds(number(0.0), Lit::None)), &[0.0, 0.5, 2.0, NAN]);
    close(&values(&CLIP, &x, &bounds(Lit::None, Lit::None)), &[-2.0, 0.5, 2.0, NAN]);
    // If the bounds are crossed, the result is the upper one.
    close(&values(&CLIP, &x[..], &bounds(number(1.0), number(-1.0)))[..3], &[-1.0, -1.0, -1.0]);
    let all = [("input", f64s(&[2, 1], &[-2.0, 2.0])), ("max", of(&[0.0, 1.0, 3.0]))];
    close(&values(&CLIP, &all, &[]), &[-2.0, -2.0, -2.0, 0.0, 1.0, 2.0]);
    let integers = run(&CLIP, &[("input", of(&[-5_i32, 5]))], &bounds(Lit::int(0), Lit::int(3))).unwrap();
    assert_eq!(integers[0].as_slice::<i32>().unwrap(), [0, 3]);
}

#[test]
fn the_slope_of_clip_goes_to_what_counts() {
    let g = of(&[1.0; 5]);
    let x = ("input", of(&[-2.0, -1.0, 0.0, 1.0, 2.0]));
    let numbers = [("min", Lit::Float(-1.0)), ("max", Lit::Float(1.0))];
    close(&gradients(&CLIP, std::slice::from_ref(&x), &numbers, &g)[0], &[0.0, 1.0, 1.0, 1.0, 0.0]);
    let tensors = [x, ("min", of(&[-1.0; 5])), ("max", of(&[1.0, 1.0, -3.0, 1.0, 1.0]))];
    let actual = gradients(&CLIP, &tensors, &[], &g);
    close(&actual[0], &[0.0, 1.0, 0.0, 1.0, 0.0]);
    close(&actual[1], &[1.0, 0.0, 0.0, 0.0, 0.0]);
    close(&actual[2], &[0.0, 0.0, 1.0, 0.0, 1.0]);
}

#[test]
fn slopes_agree_with_differences() {
    let (a, b) = (f64s(&[4], &[0.7, 1.3, 1.9, -0.8]), f64s(&[4], &[1.1, 0.6, -1.7, 1.6]));
    for op in [&ADD, &SUBTRACT, &MULTIPLY, &DIVIDE, &REMAINDER, &MAXIMUM, &MINIMUM, &ATAN2] {
        check_gradient(op, &[("left", a.clone()), ("right", b.clone())], &[]);
        let right = Dim::Const(2);
        check_gradient(op, &[("left", a.clone())], &[("right", right.into())]);
    }
    let positive = f64s(&[3], &[0.7, 1.3, 1.9]);
    for n in [-1.5, 0.0, 1.0, 2.0, 2.5] {
        check_gradient(&POWER, &[("left", positive.clone())], &[("right", n.into())]);
    }
}

/// The slope in the right operand, by exchanging the two.
#[test]
fn slopes_in_the_right_operand() {
    let (a, b) = ([0.7, 1.3, 2.9], [1.1, 0.6, 1.7]);
    let check = |op: &'static OpDef, f: fn(f64, f64) -> f64| {
        let expected: Vec<f64> =
            a.iter().zip(b).map(|(&a, b)| (f(a, b + 1e-6) - f(a, b - 1e-6)) / 2e-6).collect();
        close(&slopes(op, &a, &b)[1], &expected);
    };
    check(&SUBTRACT, |a, b| a - b);
    check(&MULTIPLY, |a, b| a * b);
    check(&DIVIDE, |a, b| a / b);
    check(&POWER, f64::powf);
    check(&ATAN2, f64::atan2);
    check(&REMAINDER, f64::rem_euclid);
}

#[test]
fn casts_have_the_dtype_asked_for() -> Result<()> {
    let x = [("input", of(&[2.7_f32, -2.7, f32::NAN, 1e20]))];
    let cast = |dtype: DType| run(&CAST, &x, &[("dtype", dtype.into())]);
    assert_eq!(cast(DType::I32)?[0].as_slice::<i32>().unwrap(), [2, -2, 0, i32::MAX]);
    assert_eq!(cast(DType::U8)?[0].as_slice::<u8>().unwrap(), [2, 0, 0, 255]);
    assert_eq!(cast(DType::Bool)?[0].as_slice::<bool>().unwrap(), [true; 4]);
    assert_eq!(cast(DType::F16)?[0].to_f64s()[3], INF);
    let narrow = run(&CAST, &[("input", of(&[300_i64, -1]))], &[("dtype", DType::I8.into())])?;
    assert_eq!(narrow[0].as_slice::<i8>().unwrap(), [44, -1]);
    Ok(())
}
