//! Pooling against values worked out by hand and, for gradients, differences.

use super::*;
use crate::literal::Lit;
use crate::ops::adaptive::{
    ADAPTIVE_AVG_POOL1D, ADAPTIVE_AVG_POOL2D, ADAPTIVE_MAX_POOL1D, ADAPTIVE_MAX_POOL2D,
};
use crate::ops::trial::{check_gradient, close, first, gradients, infer, noise, refusal};

fn line(values: &[f64]) -> Lit {
    Tensor::from_parts(&[1, 1, values.len()], values.to_vec()).into()
}

fn image(n: usize, f: impl Fn(usize) -> f64) -> Lit {
    Tensor::from_parts(&[1, 1, n, n], (0..n * n).map(f).collect::<Vec<f64>>()).into()
}

#[test]
fn maximum_by_hand() {
    let ramp = image(4, |i| i as f64);
    assert_eq!(first(&MAX_POOL2D, &[ramp.clone(), 2.into()]).to_f64s(), [5.0, 7.0, 13.0, 15.0]);
    assert_eq!(first(&MAX_POOL2D, &[ramp, 3.into(), 1.into()]).to_f64s(), [10.0, 11.0, 14.0, 15.0]);
    // Padding is never the maximum.
    let low = first(&MAX_POOL2D, &[image(2, |_| -1.0), 3.into(), 2.into(), 1.into()]);
    assert_eq!(low.to_f64s(), [-1.0]);
    let integers = Tensor::from_parts(&[1, 1, 3], vec![-5_i8, -7, -6]);
    let pooled = first(&MAX_POOL1D, &[integers.into(), 3.into(), 2.into(), 1.into()]);
    assert_eq!((pooled.dtype(), pooled.to_i64s()), (DType::I8, vec![-5, -6]));
    let nan = first(&MAX_POOL1D, &[line(&[1.0, f64::NAN, 3.0, 4.0]), 2.into()]).to_f64s();
    assert!(nan[0].is_nan() && nan[1] == 4.0);
}

#[test]
fn ceil_mode_by_hand() {
    let pool = |x: &[f64], kernel: i64, stride: i64, padding: i64| {
        let args = [line(x), kernel.into(), stride.into(), padding.into(), 1.into(), true.into()];
        first(&MAX_POOL1D, &args).to_f64s()
    };
    assert_eq!(pool(&[1.0, 2.0, 3.0, 4.0, 5.0], 2, 2, 0), [2.0, 4.0, 5.0]);
    // A window that would start behind the input is dropped.
    assert_eq!(pool(&[1.0, 2.0, 3.0], 1, 3, 0), [1.0]);
    assert_eq!(pool(&[1.0, 2.0], 3, 2, 0), [2.0]);
}

#[test]
fn the_first_maximum_gets_the_gradient() {
    let g = Tensor::from_parts(&[1, 1, 1, 1], vec![3.0]);
    let dx = gradients(&MAX_POOL2D, &[image(2, |_| 1.0), 2.into()], &g, &[0]);
    assert_eq!(dx[0].to_f64s(), [3.0, 0.0, 0.0, 0.0]);
}

#[test]
fn mean_by_hand() {
    let pool = |padding: i64, ceil: bool, include: bool| {
        let args = [line(&[1.0, 2.0, 3.0]), 3.into(), 1.into(), padding.into(), ceil.into(), include.into()];
        first(&AVG_POOL1D, &args).to_f64s()
    };
    assert_eq!(pool(0, false, true), [2.0]);
    close(&pool(1, false, true), &[1.0, 2.0, 5.0 / 3.0]);
    close(&pool(1, false, false), &[1.5, 2.0, 2.5]);
    // The part of the last window beyond the padding is not counted: 5 / 1, not 5 / 2.
    let args = [line(&[1.0, 2.0, 3.0, 4.0, 5.0]), 2.into(), 2.into(), 0.into(), true.into()];
    assert_eq!(first(&AVG_POOL1D, &args).to_f64s(), [1.5, 3.5, 5.0]);
}

#[test]
fn adaptive_by_hand() {
    // Windows [0, 3), [2, 5), [4, 7).
    let x = line(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
    close(&first(&ADAPTIVE_AVG_POOL1D, &[x.clone(), 3.into()]).to_f64s(), &[2.0, 4.0, 6.0]);
    assert_eq!(first(&ADAPTIVE_MAX_POOL1D, &[x.clone(), 3.into()]).to_f64s(), [3.0, 5.0, 7.0]);
    assert_eq!(first(&ADAPTIVE_AVG_POOL1D, &[x]).to_f64s(), [4.0]);
    let kept = first(&ADAPTIVE_AVG_POOL2D, &[image(4, |i| i as f64), Lit::tuple([Lit::None, 1.into()])]);
    assert_eq!(kept.to_f64s(), [1.5, 5.5, 9.5, 13.5]);
}

#[test]
fn gradient() {
    let x = || Lit::from(noise(&[2, 2, 5, 6], 1));
    let pads = Lit::tuple([Lit::tuple([1, -1]), Lit::tuple([0, 2])]);
    let geometry = [Lit::tuple([2, 1]), pads, Lit::tuple([1, 2])];
    let [stride, pads, dilation] = geometry.clone();
    check_gradient(&WINDOWS, &[x(), Lit::tuple([2, 3]), stride, pads, dilation, 7.5.into()], &[0]);
    let windows = noise(&[2, 1, 2, 4, 2, 3], 2).into();
    let [stride, pads, dilation] = geometry;
    check_gradient(&FOLD_WINDOWS, &[windows, Lit::tuple([5, 6]), stride, pads, dilation], &[0]);
    check_gradient(&MAX_POOL2D, &[x(), 3.into(), 2.into(), 1.into(), Lit::tuple([1, 2]), true.into()], &[0]);
}

#[test]
fn folding_is_the_adjoint() {
    let (x, y) = (noise(&[1, 2, 7], 1), noise(&[1, 2, 4, 3], 2));
    let geometry = || [Lit::int(2), Lit::tuple([Lit::tuple([1, 1])]), Lit::int(1)];
    let [stride, pads, dilation] = geometry();
    let windows = first(&WINDOWS, &[x.clone().into(), 3.into(), stride, pads, dilation]);
    let [stride, pads, dilation] = geometry();
    let folded = first(&FOLD_WINDOWS, &[y.clone().into(), 7.into(), stride, pads, dilation]);
    let dot = |a: &Tensor, b: &Tensor| a.to_f64s().iter().zip(b.to_f64s()).map(|(a, b)| a * b).sum::<f64>();
    close(&[dot(&windows, &y)], &[dot(&x, &folded)]);
}

#[test]
fn symbolic_sizes() {
    let shape = [Shape::of([Dim::from("n"), 3.into(), "h".into(), "w".into()])];
    let ty = |op, more: &[Lit]| infer(op, &shape, more).map(|ty| ty.shape.to_string());
    assert_eq!(ty(&MAX_POOL2D, &[2.into()]).unwrap(), "[n, 3, h//2, w//2]");
    let padded = [3.into(), 2.into(), 1.into(), true.into(), false.into()];
    assert_eq!(ty(&AVG_POOL2D, &padded[..3]).unwrap(), "[n, 3, (h+1)//2, (w+1)//2]");
    assert_eq!(ty(&ADAPTIVE_AVG_POOL2D, &[1.into()]).unwrap(), "[n, 3, 1, 1]");
    assert_eq!(ty(&ADAPTIVE_MAX_POOL2D, &[1.into()]).unwrap(), "[n, 3, 1, 1]");
    let kept = Lit::tuple([Lit::None, 1.into()]);
    assert_eq!(ty(&ADAPTIVE_AVG_POOL2D, &[kept]).unwrap(), "[n, 3, h, 1]");
    let error = ty(&ADAPTIVE_AVG_POOL2D, &[7.into()]).unwrap_err();
    assert_eq!(error.code(), Code::UnknownShape);
}

#[test]
fn mistakes_are_explained() {
    let x = || Lit::from(noise(&[1, 1, 4, 4], 1));
    assert!(refusal(&MAX_POOL2D, &[x(), 5.into()]).contains("spans 5 elements"));
    assert!(refusal(&MAX_POOL2D, &[x(), 2.into(), 0.into()]).contains("`stride`"));
    assert!(refusal(&MAX_POOL2D, &[x(), 2.into(), 1.into(), 2.into()]).contains("not less than the kernel"));
    assert!(refusal(&MAX_POOL2D, &[noise(&[1, 4, 4], 1).into(), 2.into()]).contains("3 dimensions"));
    assert!(refusal(&AVG_POOL2D, &[x(), Lit::tuple([1, 2, 3])]).contains("kernel_size"));
    assert!(refusal(&ADAPTIVE_AVG_POOL2D, &[x(), 0.into()]).contains("output_size"));
    assert!(
        refusal(&ADAPTIVE_MAX_POOL2D, &[noise(&[1, 1, 0, 4], 1).into(), 2.into()]).contains("no elements")
    );
    assert!(
        refusal(&ADAPTIVE_AVG_POOL1D, &[line(&[1.0, 2.0, 3.0]), (1_i64 << 23).into()])
            .contains("windows of uneven size")
    );
    assert!(refusal(&MAX_POOL2D, &[x(), (1_i64 << 30).into()]).contains("at most"));
}
