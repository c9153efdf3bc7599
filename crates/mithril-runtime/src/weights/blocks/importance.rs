//! Reading the low-bit formats whose groups of 4 or 8 values are points of a fixed grid.

use super::grids::{IQ1, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, ODD, ONE, THREE, TWO};
use super::{half, long, word};

/// How far the points of iq1_s and iq1_m are moved.
const SHIFT: f32 = 0.125;

/// A group of values: a point whose coordinates have `bits` each, with signs.
fn group(values: &mut [f32], point: u16, bits: usize, levels: &[u8], signs: u8, scale: f32) {
    for (j, value) in values.iter_mut().enumerate() {
        let level = levels[usize::from(point >> (bits * j)) & ((1 << bits) - 1)];
        let sign = if signs >> j & 1 == 1 { -1.0 } else { 1.0 };
        *value = scale * f32::from(level) * sign;
    }
}

/// Eight signs of seven bits: the last makes the number of negative ones even.
fn even(bits: u32) -> u8 {
    let seven = (bits & 127) as u8;
    seven | ((seven.count_ones() & 1) << 7) as u8
}

pub(super) fn iq2_xxs(block: &[u8], values: &mut [f32]) {
    let scale = half(block, 0);
    for (part, values) in values.chunks_exact_mut(32).enumerate() {
        let at = 2 + 8 * part;
        let rest = long(block, at + 4);
        let scale = scale * (0.5 + (rest >> 28) as f32) * 0.25;
        for (l, values) in values.chunks_exact_mut(8).enumerate() {
            group(values, IQ2_XXS[usize::from(block[at + l])], 2, TWO, even(rest >> (7 * l)), scale);
        }
    }
}

/// The scale of group `l` of a part, one for every two groups.
fn half_scale(scale: f32, small: u8, l: usize) -> f32 {
    scale * (0.5 + f32::from(small >> (4 * (l / 2)) & 15)) * 0.25
}

pub(super) fn iq2_xs(block: &[u8], values: &mut [f32]) {
    let scale = half(block, 0);
    for (i, values) in values.chunks_exact_mut(8).enumerate() {
        let packed = word(block, 2 + 2 * i);
        let scale = half_scale(scale, block[66 + i / 4], i % 4);
        group(values, IQ2_XS[usize::from(packed & 511)], 2, TWO, even(u32::from(packed >> 9)), scale);
    }
}

pub(super) fn iq2_s(block: &[u8], values: &mut [f32]) {
    let scale = half(block, 0);
    for (i, values) in values.chunks_exact_mut(8).enumerate() {
        let high = usize::from(block[66 + i / 4] >> (2 * (i % 4)) & 3);
        let point = IQ2_S[usize::from(block[2 + i]) | high << 8];
        group(values, point, 2, TWO, block[34 + i], half_scale(scale, block[74 + i / 4], i % 4));
    }
}

pub(super) fn iq3_xxs(block: &[u8], values: &mut [f32]) {
    let scale = half(block, 0);
    for (part, values) in values.chunks_exact_mut(32).enumerate() {
        let rest = long(block, 66 + 4 * part);
        let scale = scale * (0.5 + (rest >> 28) as f32) * 0.5;
        for (l, values) in values.chunks_exact_mut(4).enumerate() {
            let signs = even(rest >> (7 * (l / 2))) >> (4 * (l % 2));
            group(values, IQ3_XXS[usize::from(block[2 + 8 * part + l])], 3, THREE, signs, scale);
        }
    }
}

pub(super) fn iq3_s(block: &[u8], values: &mut [f32]) {
    let scale = half(block, 0);
    for (i, values) in values.chunks_exact_mut(4).enumerate() {
        let (part, l) = (i / 8, i % 8);
        let high = usize::from(block[66 + part] >> l & 1);
        let small = block[106 + part / 2] >> (4 * (part % 2)) & 15;
        let scale = scale * f32::from(1 + 2 * small);
        let signs = block[74 + i / 2] >> (4 * (i % 2));
        group(values, IQ3_S[usize::from(block[2 + i]) | high << 8], 3, ODD, signs, scale);
    }
}

/// A group of values -1, 0 and 1, moved a little.
fn moved(values: &mut [f32], point: u16, shift: f32, scale: f32) {
    for (j, value) in values.iter_mut().enumerate() {
        *value = scale * (f32::from(ONE[usize::from(point >> (2 * j) & 3)]) + shift);
    }
}

pub(super) fn iq1_s(block: &[u8], values: &mut [f32]) {
    let scale = half(block, 0);
    for (i, values) in values.chunks_exact_mut(8).enumerate() {
        let high = word(block, 34 + 2 * (i / 4));
        let scale = scale * f32::from(2 * (high >> 12 & 7) + 1);
        let shift = if high >> 15 == 1 { -SHIFT } else { SHIFT };
        let point = usize::from(block[2 + i]) | usize::from(high >> (3 * (i % 4)) & 7) << 8;
        moved(values, IQ1[point], shift, scale);
    }
}

pub(super) fn iq1_m(block: &[u8], values: &mut [f32]) {
    let scales = [48, 50, 52, 54].map(|at| word(block, at));
    // The scale of the whole is in the upper bits of the small ones.
    let bits = scales.iter().enumerate().fold(0, |bits, (i, small)| bits | (small >> 12) << (4 * i));
    let scale = half::f16::from_bits(bits).to_f32();
    for (i, values) in values.chunks_exact_mut(8).enumerate() {
        let small = scales[i / 8] >> (3 * (i / 2 % 4)) & 7;
        let high = block[32 + i / 2] >> (4 * (i % 2));
        let shift = if high & 8 == 8 { -SHIFT } else { SHIFT };
        let point = usize::from(block[i]) | usize::from(high & 7) << 8;
        moved(values, IQ1[point], shift, scale * f32::from(2 * small + 1));
    }
}
