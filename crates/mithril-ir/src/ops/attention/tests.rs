//! Embedding, attention and rotary positions against values worked out by hand.

use super::*;
use crate::ops::trial::{close, first, gradients, infer, noise, refusal};

fn values(shape: &[usize], values: &[f64]) -> Lit {
    Tensor::from_parts(shape, values.to_vec()).into()
}

#[test]
fn embedding_looks_rows_up() {
    let weight = || values(&[3, 2], &[0.0, 1.0, 10.0, 11.0, 20.0, 21.0]);
    let indices = || Lit::from(Tensor::from_parts(&[2], vec![2_i64, 0]));
    assert_eq!(first(&EMBEDDING, &[indices(), weight()]).to_f64s(), [20.0, 21.0, 0.0, 1.0]);
    let g = Tensor::from_parts(&[2, 2], vec![1.0, 2.0, 3.0, 4.0]);
    let plain = gradients(&EMBEDDING, &[indices(), weight()], &g, &[1]);
    assert_eq!(plain[0].to_f64s(), [3.0, 4.0, 0.0, 0.0, 1.0, 2.0]);
    let padded = gradients(&EMBEDDING, &[indices(), weight(), (-1).into()], &g, &[1]);
    assert_eq!(padded[0].to_f64s(), [3.0, 4.0, 0.0, 0.0, 0.0, 0.0]);
    assert!(refusal(&EMBEDDING, &[values(&[1], &[1.0]), weight()]).contains("integer"));
    assert!(refusal(&EMBEDDING, &[indices(), weight(), 3.into()]).contains("padding_idx"));
}

const ATTENTION: &OpDef = &SCALED_DOT_PRODUCT_ATTENTION;

#[test]
fn equal_scores_take_the_mean() {
    let q = values(&[2, 2], &[0.0; 4]);
    let (k, v) = (Lit::from(noise(&[2, 2], 1)), values(&[2, 1], &[1.0, 3.0]));
    assert_eq!(first(ATTENTION, &[q.clone(), k.clone(), v.clone()]).to_f64s(), [2.0, 2.0]);
    let causal = [q, k, v, Lit::None, true.into()];
    assert_eq!(first(ATTENTION, &causal).to_f64s(), [1.0, 2.0]);
}

#[test]
fn scores_by_hand() {
    // One query, two keys with scores 0 and ln 3 after scaling by 1/√4 or by 2.
    let q = || values(&[1, 4], &[1.0, 0.0, 0.0, 0.0]);
    let key = |x: f64| values(&[2, 4], &[0.0, 0.0, 0.0, 0.0, x, 0.0, 0.0, 0.0]);
    let v = || values(&[2, 1], &[0.0, 4.0]);
    close(&first(ATTENTION, &[q(), key(2.0 * 3.0_f64.ln()), v()]).to_f64s(), &[3.0]);
    let scaled = [q(), key(0.5 * 3.0_f64.ln()), v(), Lit::None, false.into(), 2.0.into()];
    close(&first(ATTENTION, &scaled).to_f64s(), &[3.0]);
    let added = [q(), key(0.0), v(), values(&[2], &[0.0, 3.0_f64.ln()])];
    close(&first(ATTENTION, &added).to_f64s(), &[3.0]);
}

#[test]
fn rows_without_keys_are_zero() {
    let (q, k, v) = (noise(&[2, 3], 1), noise(&[2, 3], 2), noise(&[2, 3], 3));
    let attend = |mask: Lit, causal: bool| {
        first(ATTENTION, &[q.clone().into(), k.clone().into(), v.clone().into(), mask, causal.into()])
            .to_f64s()
    };
    let open = attend(Lit::None, false);
    let half = attend(Tensor::from_parts(&[2, 2], vec![false, false, true, true]).into(), false);
    assert_eq!(half[..3], [0.0; 3]);
    close(&half[3..], &open[3..]);
    let none = f64::NEG_INFINITY;
    let half = attend(values(&[2, 2], &[none, none, 0.0, 0.0]), false);
    assert_eq!(half[..3], [0.0; 3]);
    close(&half[3..], &open[3..]);
    // The mask allows only the second key for the first query, and is_causal forbids it.
    let neither = attend(Tensor::from_parts(&[1, 2], vec![false, true]).into(), true);
    assert_eq!(neither[..3], [0.0; 3]);
    close(&neither[3..], &v.to_f64s()[3..]);
}

#[test]
fn grouped_heads_are_repeated_heads() {
    let (q, k, v) = (noise(&[1, 4, 3, 2], 1), noise(&[1, 2, 5, 2], 2), noise(&[1, 2, 5, 2], 3));
    let mask = noise(&[1, 4, 3, 5], 4);
    // Heads 0 and 1 of the query share head 0 of the key.
    let repeated = |t: &Tensor| t.select(&[1, 4, 5, 2], (0..40).map(|i| i / 20 * 10 + i % 10));
    let more = [Lit::from(mask), false.into(), Lit::None];
    let args = |k: Tensor, v: Tensor, grouped: bool| {
        let mut args: Vec<Lit> = vec![q.clone().into(), k.into(), v.into()];
        args.extend(more.iter().cloned().chain([grouped.into()]));
        first(ATTENTION, &args).to_f64s()
    };
    close(&args(k.clone(), v.clone(), true), &args(repeated(&k), repeated(&v), false));
    assert!(refusal(ATTENTION, &[q.into(), k.into(), v.into()]).contains("enable_gqa"));
}

#[test]
fn attention_with_symbolic_lengths() {
    let shape = |d: i64| Shape::of([Dim::from("b"), 8.into(), "t".into(), d.into()]);
    let causal = [Lit::None, true.into()];
    let ty = infer(ATTENTION, &[shape(64), shape(64), shape(32)], &causal).unwrap();
    assert_eq!(ty.shape.to_string(), "[b, 8, t, 32]");
    let x = || Lit::from(noise(&[2, 3, 4], 1));
    assert!(refusal(ATTENTION, &[x(), noise(&[2, 3, 5], 1).into(), x()]).contains("feature sizes"));
    assert!(refusal(ATTENTION, &[x(), noise(&[4], 1).into(), x()]).contains("at least 2 axes"));
    let mask = Lit::from(Tensor::from_parts(&[4, 3], vec![true; 12]));
    assert!(refusal(ATTENTION, &[x(), x(), x(), mask]).contains("mask"));
}

#[test]
fn positions_turn_pairs() {
    let x = || values(&[2, 4], &[1.0, 2.0, 0.0, 0.0, 1.0, 2.0, 0.0, 0.0]);
    let (c0, s0) = (1.0_f64.cos(), 1.0_f64.sin());
    let (c1, s1) = (0.1_f64.cos(), 0.1_f64.sin());
    // Position 0 stays; at position 1 the pairs rotate by 1 and by 100^(-1/2).
    let halves = first(&ROPE, &[x(), Lit::None, 100.0.into()]).to_f64s();
    close(&halves, &[1.0, 2.0, 0.0, 0.0, c0, 2.0 * c1, s0, 2.0 * s1]);
    let neighbors = first(&ROPE, &[x(), Lit::None, 100.0.into(), true.into()]).to_f64s();
    close(&neighbors[4..], &[c0 - 2.0 * s0, 2.0 * c0 + s0, 0.0, 0.0]);
}

#[test]
fn only_distances_matter() {
    let (q, k) = (noise(&[1, 8], 1), noise(&[1, 8], 2));
    let score = |m: i64, n: i64| {
        let rotate = |x: &Tensor, at: i64| {
            first(&ROPE, &[x.clone().into(), Tensor::from_parts(&[1], vec![at]).into()]).to_f64s()
        };
        rotate(&q, m).iter().zip(rotate(&k, n)).map(|(a, b)| a * b).sum::<f64>()
    };
    close(&[score(7, 3)], &[score(104, 100)]);
    assert!((score(7, 3) - score(7, 4)).abs() > 1e-3);
}

#[test]
fn angles_in_both_forms() {
    let x = Lit::from(noise(&[3, 4], 1));
    let (cos, sin) = (noise(&[3, 2], 2), noise(&[3, 2], 3));
    let doubled = |t: &Tensor| t.select(&[3, 4], (0..12).map(|i| i / 4 * 2 + i % 2));
    let short = first(&ROTATE_PAIRS, &[x.clone(), cos.clone().into(), sin.clone().into()]);
    let long = first(&ROTATE_PAIRS, &[x, doubled(&cos).into(), doubled(&sin).into()]);
    close(&short.to_f64s(), &long.to_f64s());
    assert!(refusal(&ROPE, &[noise(&[2, 3], 1).into()]).contains("3 features"));
    let positions = Tensor::from_parts(&[3], vec![0_i64; 3]).into();
    assert!(refusal(&ROPE, &[noise(&[2, 4], 1).into(), positions]).contains("positions"));
}
