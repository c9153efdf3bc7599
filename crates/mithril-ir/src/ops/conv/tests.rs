//! Convolution against loops written from the definition, and values worked out by hand.

use super::*;
use crate::dtype::DType;
use crate::ops::trial::{check_gradient, close, first, infer, noise, refusal};

fn pairs(pads: &[[i64; 2]]) -> Lit {
    Lit::tuple(pads.iter().map(|p| Lit::tuple(*p)))
}

/// Seven nested loops: batch, output channel, two positions, input channel, two kernel elements.
fn naive(
    x: &Tensor,
    w: &Tensor,
    stride: [i64; 2],
    pads: [[i64; 2]; 2],
    dilation: [i64; 2],
    groups: usize,
) -> Vec<f64> {
    let (xs, ws) = (x.shape(), w.shape());
    let size = |i: usize| {
        let extent = (ws[i + 2] as i64 - 1) * dilation[i] + 1;
        (xs[i + 2] as i64 + pads[i][0] + pads[i][1] - extent) / stride[i] + 1
    };
    let mut out = Vec::new();
    for n in 0..xs[0] {
        for o in 0..ws[0] {
            let group = o / (ws[0] / groups);
            for p in 0..size(0) {
                for q in 0..size(1) {
                    let mut sum = 0.0;
                    for c in 0..ws[1] {
                        for k in 0..ws[2] {
                            for l in 0..ws[3] {
                                let i = p * stride[0] + k as i64 * dilation[0] - pads[0][0];
                                let j = q * stride[1] + l as i64 * dilation[1] - pads[1][0];
                                if i < 0 || j < 0 || i >= xs[2] as i64 || j >= xs[3] as i64 {
                                    continue;
                                }
                                let channel = group * ws[1] + c;
                                let at = ((n * xs[1] + channel) * xs[2] + i as usize) * xs[3] + j as usize;
                                sum +=
                                    x.get(at).f64() * w.get(((o * ws[1] + c) * ws[2] + k) * ws[3] + l).f64();
                            }
                        }
                    }
                    out.push(sum);
                }
            }
        }
    }
    out
}

#[test]
fn agrees_with_loops() {
    let cases = [
        ([2, 3, 6, 5], [4, 3, 3, 3], [1, 1], [[0, 0], [0, 0]], [1, 1], 1),
        ([1, 4, 7, 6], [6, 2, 3, 2], [2, 1], [[1, 0], [2, 1]], [1, 2], 2),
        ([2, 3, 5, 5], [3, 1, 2, 2], [3, 2], [[1, 1], [1, 1]], [2, 1], 3),
        ([1, 2, 6, 6], [2, 2, 3, 3], [1, 1], [[-1, 2], [0, -1]], [1, 1], 1),
    ];
    for (x, w, stride, pads, dilation, groups) in cases {
        let (x, w) = (noise(&x, 1), noise(&w, 2));
        let expected = naive(&x, &w, stride, pads, dilation, groups);
        let args = [
            x.into(),
            w.into(),
            stride.into(),
            pairs(&pads),
            dilation.into(),
            Lit::int(1),
            Lit::from(groups),
        ];
        close(&first(&CONV_GENERAL, &args).to_f64s(), &expected);
    }
}

#[test]
fn bias_and_same_padding_by_hand() {
    let x = Tensor::from_parts(&[1, 1, 4], vec![1.0, 2.0, 3.0, 4.0]);
    let w = Tensor::from_parts(&[1, 1, 2], vec![10.0, 1.0]);
    let bias = Tensor::from_parts(&[1], vec![0.5]);
    let conv = |padding: Lit, stride: i64| {
        first(&CONV1D, &[x.clone().into(), w.clone().into(), bias.clone().into(), stride.into(), padding])
            .to_f64s()
    };
    assert_eq!(conv("valid".into(), 1), [12.5, 23.5, 34.5]);
    // The odd element goes to the end.
    assert_eq!(conv("SAME".into(), 1), [12.5, 23.5, 34.5, 40.5]);
    assert_eq!(conv("same".into(), 3), [12.5, 40.5]);
    assert_eq!(conv(1.into(), 1), [1.5, 12.5, 23.5, 34.5, 40.5]);
    assert_eq!(conv(pairs(&[[1, 0]]), 1), [1.5, 12.5, 23.5, 34.5]);
}

#[test]
fn three_axes_are_two_when_one_is_trivial() {
    let (x, w) = (noise(&[2, 3, 5, 4], 3), noise(&[2, 3, 2, 3], 4));
    let flat = first(&CONV2D, &[x.clone().into(), w.clone().into()]);
    let deep = first(&CONV3D, &[x.reshaped(&[2, 3, 5, 1, 4]).into(), w.reshaped(&[2, 3, 2, 1, 3]).into()]);
    assert_eq!(deep.shape(), [2, 2, 4, 1, 2]);
    close(&deep.to_f64s(), &flat.to_f64s());
}

#[test]
fn transposed_by_hand() {
    // Every input element puts its multiple of the kernel at distance `stride`.
    let x = Tensor::from_parts(&[1, 1, 3], vec![1.0, 2.0, 3.0]);
    let w = Tensor::from_parts(&[1, 1, 3], vec![1.0, 10.0, 100.0]);
    let run = |more: &[i64]| {
        let mut args: Vec<Lit> = vec![x.clone().into(), w.clone().into(), Lit::None];
        args.extend(more.iter().map(|&n| Lit::int(n)));
        first(&CONV_TRANSPOSE1D, &args).to_f64s()
    };
    assert_eq!(run(&[1]), [1.0, 12.0, 123.0, 230.0, 300.0]);
    assert_eq!(run(&[2]), [1.0, 10.0, 102.0, 20.0, 203.0, 30.0, 300.0]);
    assert_eq!(run(&[2, 1, 1]), [10.0, 102.0, 20.0, 203.0, 30.0, 300.0]);
}

#[test]
fn transposed_is_the_adjoint() {
    // <conv(x), y> = <x, conv_transpose(y)>, with groups, strides and dilations.
    let (x, y, w) = (noise(&[2, 4, 7, 6], 5), noise(&[2, 6, 4, 5], 6), noise(&[6, 2, 3, 2], 7));
    let (stride, padding) = (Lit::tuple([2, 1]), Lit::tuple([1, 0]));
    let forward = first(
        &CONV2D,
        &[x.clone().into(), w.clone().into(), Lit::None, stride.clone(), padding.clone(), 1.into(), 2.into()],
    );
    let back = first(
        &CONV_TRANSPOSE2D,
        &[y.clone().into(), w.into(), Lit::None, stride, padding, 0.into(), 2.into()],
    );
    assert_eq!((forward.shape(), back.shape()), (y.shape(), x.shape()));
    let dot = |a: &Tensor, b: &Tensor| a.to_f64s().iter().zip(b.to_f64s()).map(|(a, b)| a * b).sum::<f64>();
    close(&[dot(&forward, &y)], &[dot(&x, &back)]);
}

#[test]
fn gradient() {
    let args = |x: &[usize], w: &[usize], more: &[Lit]| {
        let mut args: Vec<Lit> = vec![noise(x, 8).into(), noise(w, 9).into()];
        args.extend_from_slice(more);
        args
    };
    check_gradient(&CONV_GENERAL, &args(&[2, 3, 5], &[2, 3, 3], &[]), &[0, 1]);
    let more = [Lit::int(2), pairs(&[[2, 1]]), Lit::int(2), Lit::int(3), Lit::int(2)];
    check_gradient(&CONV_GENERAL, &args(&[2, 4, 5], &[6, 2, 3], &more), &[0, 1]);
    let more = [Lit::tuple([3, 1]), pairs(&[[-1, 1], [2, -2]]), Lit::tuple([1, 2])];
    check_gradient(&CONV_GENERAL, &args(&[1, 2, 7, 6], &[3, 2, 2, 2], &more), &[0, 1]);
}

#[test]
fn symbolic_sizes() {
    let shapes = [Shape::of([Dim::from("n"), 3.into(), "h".into(), "w".into()]), Shape::of([8, 3, 3, 3])];
    let ty = |more: &[Lit]| infer(&CONV2D, &shapes, more).unwrap().shape.to_string();
    assert_eq!(ty(&[]), "[n, 8, h-2, w-2]");
    assert_eq!(ty(&[Lit::None, 1.into(), "same".into()]), "[n, 8, h, w]");
    assert_eq!(ty(&[Lit::None, 2.into(), 1.into()]), "[n, 8, (h+1)//2, (w+1)//2]");
    assert_eq!(ty(&[Lit::None, 2.into(), "same".into()]), "[n, 8, (h+1)//2, (w+1)//2]");
}

#[test]
fn halves_are_rounded_once() {
    let x = Tensor::from_parts(&[1, 1, 4097], vec![1.0_f64; 4097]).cast(DType::F16);
    let y = first(&CONV1D, &[x.clone().into(), x.into()]);
    assert_eq!((y.dtype(), y.to_f64s()), (DType::F16, vec![4096.0]));
}

#[test]
fn mistakes_are_explained() {
    let x = || Lit::from(noise(&[1, 3, 5, 5], 1));
    let w = |shape: &[usize]| Lit::from(noise(shape, 2));
    let none = Lit::None;
    let error = refusal(&CONV2D, &[x(), w(&[2, 4, 3, 3])]);
    assert!(error.contains("`input` of conv2d has 3 channels, `weight` expects 4 × groups 1"), "{error}");
    assert!(refusal(&CONV2D, &[x(), w(&[2, 3, 6, 3])]).contains("spans 6 elements, but spatial axis 0"));
    let error =
        refusal(&CONV2D, &[x(), w(&[4, 1, 3, 3]), none.clone(), 1.into(), 0.into(), 1.into(), 3.into()]);
    assert!(error.contains("4 output channels of conv2d do not divide into 3 groups"), "{error}");
    assert!(
        refusal(&CONV2D, &[x(), w(&[2, 3, 3, 3]), none.clone(), 0.into()])
            .contains("`stride` of conv2d is 0")
    );
    assert!(
        refusal(&CONV2D, &[x(), w(&[2, 3, 3, 3]), none.clone(), 1.into(), (-1).into()])
            .contains("at least 0")
    );
    assert!(
        refusal(&CONV2D, &[x(), w(&[2, 3, 3, 3]), none.clone(), 1.into(), "full".into()])
            .contains("\"same\"")
    );
    let bias = noise(&[3], 1).into();
    assert!(refusal(&CONV2D, &[x(), w(&[2, 3, 3, 3]), bias]).contains("bias"));
    assert!(refusal(&CONV2D, &[noise(&[3, 5, 5], 1).into(), w(&[2, 3, 3, 3])]).contains("3 dimensions"));
    assert!(refusal(&CONV2D, &[x(), w(&[2, 3, 0, 3])]).contains("size 0"));
    let big = [x(), w(&[2, 3, 3, 3]), none, i64::MAX.into()];
    assert!(refusal(&CONV2D, &big).contains("stride"));
}
