//! Interpolation against values worked out by hand.

use super::*;
use crate::ops::trial::{close, first, infer, noise, refusal};

fn line(values: &[f64]) -> Lit {
    Tensor::from_parts(&[1, 1, values.len()], values.to_vec()).into()
}

fn resize(x: &[f64], size: i64, mode: &str, corners: bool) -> Vec<f64> {
    first(&INTERPOLATE, &[line(x), size.into(), Lit::None, mode.into(), corners.into()]).to_f64s()
}

#[test]
fn lines_by_hand() {
    assert_eq!(resize(&[1.0, 2.0], 4, "nearest", false), [1.0, 1.0, 2.0, 2.0]);
    assert_eq!(resize(&[1.0, 2.0, 3.0], 2, "nearest", false), [1.0, 2.0]);
    assert_eq!(resize(&[1.0, 2.0, 3.0, 4.0, 5.0], 2, "nearest-exact", false), [2.0, 4.0]);
    close(&resize(&[0.0, 1.0], 4, "linear", false), &[0.0, 0.25, 0.75, 1.0]);
    close(&resize(&[0.0, 1.0], 4, "linear", true), &[0.0, 1.0 / 3.0, 2.0 / 3.0, 1.0]);
    close(&resize(&[0.0, 1.0, 2.0, 3.0], 2, "linear", false), &[0.5, 2.5]);
    assert_eq!(resize(&[7.0, 1.0], 1, "linear", true), [7.0]);
}

#[test]
fn factors_scale_as_given() {
    // 1.5 · 3 is truncated to 4 elements, but the step remains 1 / 1.5.
    let y = first(&INTERPOLATE, &[line(&[0.0, 3.0, 6.0]), Lit::None, 1.5.into(), "linear".into()]);
    close(&y.to_f64s(), &[0.0, 1.5, 3.5, 5.5]);
    // A linear mode does not change an axis that keeps its size.
    let y = first(&INTERPOLATE, &[line(&[0.0, 3.0, 6.0]), Lit::None, 1.3.into(), "linear".into()]);
    assert_eq!(y.to_f64s(), [0.0, 3.0, 6.0]);
}

#[test]
fn cubic_kernel() {
    // It is 1 at 0, 0 at 1 and 2, and its weights add up to 1.
    assert_eq!([keys(0.0), keys(1.0), keys(2.0)], [1.0, 0.0, 0.0]);
    for t in [0.1, 0.25, 0.5, 0.9] {
        close(&[keys(1.0 + t) + keys(t) + keys(1.0 - t) + keys(2.0 - t)], &[1.0]);
    }
    // Half way: -0.09375, 0.59375, 0.59375, -0.09375.
    let x = Tensor::from_parts(&[1, 1, 1, 4], vec![0.0, 1.0, 0.0, 0.0]);
    let y = first(&INTERPOLATE, &[x.into(), Lit::tuple([1, 2]), Lit::None, "bicubic".into()]);
    close(&y.to_f64s(), &[0.59375, -0.09375]);
}

#[test]
fn dtypes() {
    let x = Tensor::from_parts(&[1, 1, 2], vec![1_u8, 2]);
    let y = first(&INTERPOLATE, &[x.clone().into(), 4.into()]);
    assert_eq!((y.dtype(), y.to_i64s()), (DType::U8, vec![1, 1, 2, 2]));
    let y = first(&INTERPOLATE, &[x.into(), 4.into(), Lit::None, "linear".into()]);
    assert_eq!(y.dtype(), DType::F32);
}

#[test]
fn symbolic_sizes() {
    let shape = [Shape::of([Dim::from("n"), 3.into(), "h".into(), "w".into()])];
    let doubled = infer(&INTERPOLATE, &shape, &[Lit::None, 2.into()]).unwrap();
    assert_eq!(doubled.shape.to_string(), "[n, 3, 2*h, 2*w]");
    let error = infer(&INTERPOLATE, &shape, &[Lit::None, 1.5.into()]).unwrap_err();
    assert_eq!(error.code(), Code::UnknownShape);
    let shape = [Shape::of([Dim::from("n"), 12.into(), "h".into(), "w".into()])];
    assert_eq!(infer(&PIXEL_SHUFFLE, &shape, &[2.into()]).unwrap().shape.to_string(), "[n, 3, 2*h, 2*w]");
}

#[test]
fn shuffling() {
    let x = Tensor::from_parts(&[1, 4, 1, 2], vec![0.0, 1.0, 10.0, 11.0, 20.0, 21.0, 30.0, 31.0]);
    let y = first(&PIXEL_SHUFFLE, &[x.clone().into(), 2.into()]);
    assert_eq!(y.shape(), [1, 1, 2, 4]);
    assert_eq!(y.to_f64s(), [0.0, 10.0, 1.0, 11.0, 20.0, 30.0, 21.0, 31.0]);
    let back = first(&PIXEL_UNSHUFFLE, &[y.into(), 2.into()]);
    assert!(back.same_bits(&x));
}

#[test]
fn mistakes_are_explained() {
    let x = || Lit::from(noise(&[1, 3, 4, 4], 1));
    assert!(refusal(&INTERPOLATE, &[x()]).contains("either `size` or `scale_factor`"));
    assert!(refusal(&INTERPOLATE, &[x(), 0.into()]).contains("`size`"));
    assert!(refusal(&INTERPOLATE, &[x(), Lit::None, (-1.0).into()]).contains("positive"));
    assert!(refusal(&INTERPOLATE, &[x(), Lit::None, 0.1.into()]).contains("leaves nothing"));
    assert!(refusal(&INTERPOLATE, &[x(), 2.into(), Lit::None, "trilinear".into()]).contains("mode"));
    assert!(refusal(&INTERPOLATE, &[x(), 2.into(), Lit::None, "cubic".into()]).contains("bicubic"));
    assert!(
        refusal(&INTERPOLATE, &[x(), 2.into(), Lit::None, "nearest".into(), true.into()])
            .contains("align_corners")
    );
    assert!(refusal(&PIXEL_SHUFFLE, &[x(), 2.into()]).contains("3 channels"));
    assert!(refusal(&INTERPOLATE, &[line(&[1.0, 2.0, 3.0]), (1_i64 << 30).into()]).contains("maximum"));
}
