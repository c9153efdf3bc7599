//! Random numbers: the published words come through, and distributions have the moments they should.

use mithril_ir::random::{unit_f32, unit_f64, words};
use mithril_ir::{Code, DType, Lit};

use super::{args, ints, is, is_refused, lit, range, run};

fn key() -> mithril_ir::Tensor {
    ints(&[2], &[42, 7])
}

#[test]
fn bits_are_the_published_words() {
    let y = run("random_bits", args![ints(&[2], &[0, 0]), lit([2, 2])]);
    is(&y, &[2, 2], &[0x6627_E8D5, 0xE169_C58D, 0xBC57_AC4C, 0x9B00_DBD8]);
}

#[test]
fn uniform_numbers_are_the_high_bits() {
    let y = run("uniform", args![key(), lit([5])]);
    let expected: Vec<f32> = words([42, 7]).map(unit_f32).take(5).collect();
    assert_eq!(y.as_slice::<f32>().unwrap(), expected);
    let y = run("uniform", args![key(), lit([3]), lit(0.0), lit(1.0), lit(DType::F64)]);
    let all: Vec<u32> = words([42, 7]).take(6).collect();
    let expected: Vec<f64> = all.chunks(2).map(|w| unit_f64([w[0], w[1]])).collect();
    assert_eq!(y.as_slice::<f64>().unwrap(), expected);
    let y = run("uniform", args![key(), lit([1000]), lit(-3.0), lit(-1.0)]).to_f64s();
    assert!(y.iter().all(|x| (-3.0..=-1.0).contains(x)));
    let mean = y.iter().sum::<f64>() / 1000.0;
    assert!((mean + 2.0).abs() < 5.0 * (4.0_f64 / 12.0 / 1000.0).sqrt(), "{mean}");
}

#[test]
fn normal_numbers_have_mean_and_deviation() {
    let n = 4001;
    let y = run("normal", args![key(), lit([n]), lit(3.0), lit(2.0)]).to_f64s();
    let mean = y.iter().sum::<f64>() / n as f64;
    let variance = y.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n as f64;
    assert!((mean - 3.0).abs() < 5.0 * 2.0 / (n as f64).sqrt(), "{mean}");
    assert!((variance - 4.0).abs() < 5.0 * 4.0 * (2.0 / n as f64).sqrt(), "{variance}");
}

#[test]
fn integers_truth_values_and_orders() {
    let y = run("randint", args![key(), lit([600]), lit(-1), lit(2)]).to_i64s();
    for expected in -1..2 {
        let count = y.iter().filter(|&&x| x == expected).count();
        assert!((140..260).contains(&count), "{count} times {expected}");
    }
    assert_eq!(y.len(), 600);
    let y = run("bernoulli", args![key(), lit(0.25), lit([1000])]);
    assert_eq!(y.dtype(), DType::Bool);
    let count: i64 = y.to_i64s().iter().sum();
    assert!((180..320).contains(&count), "{count}");
    let mut y = run("randperm", args![key(), lit(50)]).to_i64s();
    assert_ne!(y, (0..50).collect::<Vec<_>>());
    y.sort_unstable();
    assert_eq!(y, (0..50).collect::<Vec<_>>());
}

#[test]
fn dropout_drops_in_training_only() {
    let ones = || run("ones", args![lit([1000])]);
    let y = run("dropout", args![ones(), key(), lit(0.2), lit(true)]).to_f64s();
    let kept = y.iter().filter(|&&x| x != 0.0).count();
    assert!((730..870).contains(&kept), "{kept}");
    assert!(y.iter().all(|&x| x == 0.0 || x == 1.25));
    assert!(run("dropout", args![ones(), key(), lit(0.2), lit(false)]).same_bits(&ones()));
    assert!(run("dropout", args![ones(), Lit::None, lit(0.2), lit(false)]).same_bits(&ones()));
    assert_eq!(run("dropout", args![ones(), key(), lit(1), lit(true)]).to_f64s(), vec![0.0; 1000]);
}

#[test]
fn senseless_arguments_are_refused() {
    is_refused("uniform", args![ints(&[3], &[1, 2, 3]), lit([2])], Code::ShapeMismatch);
    is_refused("uniform", args![range(&[2]), lit([2])], Code::DTypeMismatch);
    is_refused("uniform", args![key(), lit([-2])], Code::BadArgument);
    is_refused("uniform", args![key(), lit([2]), lit(0), lit(1), lit(DType::I32)], Code::BadDType);
    is_refused("randint", args![key(), lit([2]), lit(3), lit(3)], Code::BadArgument);
    is_refused("randint", args![key(), lit([2]), lit(i64::MIN), lit(i64::MAX)], Code::BadArgument);
    is_refused("dropout", args![range(&[2]), key(), lit(1.5), lit(true)], Code::BadArgument);
    is_refused("dropout", args![range(&[2]), Lit::None, lit(0.5), lit(true)], Code::Unconnected);
}
