//! Normalization against values worked out by hand.

use super::*;
use crate::ops::trial::{close, first, infer, noise, refusal, run};
use crate::tensor::Tensor;

fn values(shape: &[usize], values: &[f64]) -> Lit {
    Tensor::from_parts(shape, values.to_vec()).into()
}

#[test]
fn layer_by_hand() {
    // Mean 2, variance 2/3.
    let x = values(&[3], &[1.0, 2.0, 3.0]);
    let root = 1.5_f64.sqrt();
    let y = first(&LAYER_NORM, &[x.clone(), Lit::None, Lit::None, Lit::None, 0.0.into()]);
    close(&y.to_f64s(), &[-root, 0.0, root]);
    let (weight, bias) = (values(&[3], &[2.0, 3.0, 4.0]), values(&[3], &[0.5, 0.25, 0.125]));
    let y = first(&LAYER_NORM, &[x, weight, bias, Lit::None, 0.0.into()]);
    close(&y.to_f64s(), &[0.5 - 2.0 * root, 0.25, 0.125 + 4.0 * root]);
}

#[test]
fn layer_over_several_axes_is_layer_over_one() {
    let x = noise(&[2, 3, 4], 1);
    let two = first(&LAYER_NORM, &[x.clone().into(), Lit::None, Lit::None, Lit::tuple([3, 4])]);
    let one = first(&LAYER_NORM, &[x.reshaped(&[2, 12]).into()]);
    close(&two.to_f64s(), &one.to_f64s());
}

#[test]
fn batch_by_hand() {
    // Mean 2, variance 1, unbiased 2.
    let args = |training: bool| {
        let one = |x: f64| values(&[1], &[x]);
        let x = values(&[2, 1], &[1.0, 3.0]);
        [x, one(10.0), one(0.5), one(0.0), one(1.0), training.into(), 0.1.into(), 0.0.into()]
    };
    let trained = run(&BATCH_NORM, &args(true)).unwrap();
    close(&trained[0].to_f64s(), &[-9.5, 10.5]);
    close(&trained[1].to_f64s(), &[0.2]);
    close(&trained[2].to_f64s(), &[1.1]);
    let inferred = run(&BATCH_NORM, &args(false)).unwrap();
    close(&inferred[0].to_f64s(), &[10.5, 30.5]);
    assert_eq!((inferred[1].to_f64s(), inferred[2].to_f64s()), (vec![0.0], vec![1.0]));
}

#[test]
fn groups_of_a_batch_have_their_own_statistics() {
    // Means 2 and 6, variances 1 and 4, unbiased 2 and 8.
    let one = |x: f64| values(&[1], &[x]);
    let x = values(&[4, 1], &[1.0, 3.0, 4.0, 8.0]);
    let args = |training: bool| -> Vec<Lit> {
        let statistics = [one(0.0), one(1.0)];
        let [mean, variance] = statistics;
        let [more, least, groups] = [0.1.into(), 0.0.into(), 2.into()];
        vec![x.clone(), one(10.0), one(0.5), mean, variance, training.into(), more, least, groups]
    };
    let trained = run(&BATCH_NORM, &args(true)).unwrap();
    close(&trained[0].to_f64s(), &[-9.5, 10.5, -9.5, 10.5]);
    close(&trained[1].to_f64s(), &[0.4]);
    close(&trained[2].to_f64s(), &[1.4]);
    let inferred = run(&BATCH_NORM, &args(false)).unwrap();
    close(&inferred[0].to_f64s(), &[10.5, 30.5, 40.5, 80.5]);
    assert_eq!((inferred[1].to_f64s(), inferred[2].to_f64s()), (vec![0.0], vec![1.0]));
    let mut odd = args(true);
    odd[8] = 3.into();
    assert!(refusal(&BATCH_NORM, &odd).contains("4 examples of batch_norm do not divide into 3 groups"));
    odd[8] = 4.into();
    assert!(refusal(&BATCH_NORM, &odd).contains("one value per channel of each of 4 groups"));
}

#[test]
fn batch_is_over_all_but_the_channels() {
    // Channels first, the rest as one batch.
    let x = noise(&[2, 3, 2, 2], 1);
    let running = || [values(&[3], &[0.0; 3]), values(&[3], &[1.0; 3])];
    let [mean, variance] = running();
    let y = first(&BATCH_NORM, &[x.clone().into(), Lit::None, Lit::None, mean, variance, true.into()]);
    for c in 0..3 {
        let of =
            |t: &Tensor| -> Vec<f64> { (0..24).filter(|i| i / 4 % 3 == c).map(|i| t.get(i).f64()).collect() };
        let line = Tensor::from_parts(&[8], of(&x));
        close(&of(&y), &first(&LAYER_NORM, &[line.into()]).to_f64s());
    }
}

#[test]
fn groups_of_channels() {
    let x = noise(&[2, 4, 3], 1);
    let group = |n: i64| first(&GROUP_NORM, &[x.clone().into(), Lit::None, Lit::None, n.into()]).to_f64s();
    let layer = |shape: &[usize]| first(&LAYER_NORM, &[x.reshaped(shape).into()]).to_f64s();
    close(&group(1), &layer(&[2, 12]));
    close(&group(2), &layer(&[4, 6]));
    close(&group(4), &first(&INSTANCE_NORM, &[x.clone().into()]).to_f64s());
    let weight = values(&[4], &[1.0, 10.0, 100.0, 1000.0]);
    let weighted = first(&GROUP_NORM, &[x.clone().into(), weight, Lit::None, 2.into()]).to_f64s();
    let factor = |i: usize| [1.0, 10.0, 100.0, 1000.0][i / 3 % 4];
    close(&weighted, &group(2).iter().enumerate().map(|(i, y)| y * factor(i)).collect::<Vec<_>>());
}

#[test]
fn lengths_by_hand() {
    let x = || values(&[2], &[3.0, 4.0]);
    let y = first(&RMS_NORM, &[x(), Lit::None, Lit::None, 0.0.into()]);
    close(&y.to_f64s(), &[3.0 / 12.5_f64.sqrt(), 4.0 / 12.5_f64.sqrt()]);
    close(&first(&NORMALIZE, &[x()]).to_f64s(), &[0.6, 0.8]);
    assert_eq!(first(&NORMALIZE, &[values(&[2], &[0.0, 0.0])]).to_f64s(), [0.0, 0.0]);
}

#[test]
fn halves_do_not_overflow() {
    // The squares are beyond the range of float16.
    let x = Tensor::from_parts(&[2], vec![-600.0, 600.0]).cast(DType::F16);
    let y = first(&LAYER_NORM, &[x.clone().into()]);
    assert_eq!((y.dtype(), y.to_f64s()), (DType::F16, vec![-1.0, 1.0]));
    assert_eq!(first(&RMS_NORM, &[x.into()]).to_f64s(), [-1.0, 1.0]);
}

#[test]
fn symbolic_sizes() {
    let shapes = [Shape::of([Dim::from("n"), 4.into(), "h".into()]), Shape::of([4]), Shape::of([4])];
    let statistics = [Shape::of([4]), Shape::of([4])];
    let all: Vec<Shape> = shapes.iter().chain(&statistics).cloned().collect();
    assert_eq!(infer(&BATCH_NORM, &all, &[true.into()]).unwrap().shape, shapes[0]);
    assert_eq!(infer(&GROUP_NORM, &shapes, &[2.into()]).unwrap().shape, shapes[0]);
    let last = Shape::of([Dim::from("n"), "t".into(), 4.into()]);
    assert_eq!(infer(&LAYER_NORM, &[last.clone(), Shape::of([4])], &[]).unwrap().shape, last);
}

#[test]
fn mistakes_are_explained() {
    let x = || Lit::from(noise(&[2, 3, 4], 1));
    let some = |n: usize| Lit::from(noise(&[n], 2));
    assert!(refusal(&LAYER_NORM, &[x(), some(3)]).contains("differ"));
    assert!(
        refusal(&LAYER_NORM, &[x(), Lit::None, Lit::None, Lit::tuple([1, 2, 3, 4])])
            .contains("4 of the input's 3")
    );
    assert!(refusal(&BATCH_NORM, &[x(), some(4), some(4), some(4), some(4)]).contains("channels"));
    let lonely = noise(&[1, 3], 1).into();
    let args = [lonely, Lit::None, Lit::None, some(3), some(3), true.into()];
    assert!(refusal(&BATCH_NORM, &args).contains("one value per channel"));
    assert!(
        refusal(&GROUP_NORM, &[x(), Lit::None, Lit::None, 2.into()]).contains("do not divide into 2 groups")
    );
    assert!(refusal(&INSTANCE_NORM, &[noise(&[2, 3], 1).into()]).contains("2 dimensions"));
}
