//! Reading blocks of 256 values: parts of 16 or 32 values have small scales of their own.

use super::uniform::{UNEQUAL, bytes, nibbles};
use super::{half, word};

/// The scale and the least value of part `j`, of 6 bits each, in the 12 bytes of q4_k and q5_k.
pub(super) fn scale_and_least(packed: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        let low = packed[j + 4];
        (low & 15 | packed[j - 4] >> 6 << 4, low >> 4 | packed[j] >> 6 << 4)
    }
}

/// The scale of part `j` in the 12 bytes of q3_k.
pub(super) fn scale_of_six_bits(packed: &[u8], j: usize) -> i8 {
    let low = if j < 8 { packed[j] & 15 } else { packed[j - 8] >> 4 };
    (low | (packed[8 + j % 4] >> (2 * (j / 4)) & 3) << 4) as i8 - 32
}

/// The two low bits of value `i` in forms that keep four in a byte.
fn two_bits(bytes: &[u8], i: usize) -> u8 {
    bytes[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3
}

pub(super) fn q2_k(block: &[u8], values: &mut [f32]) {
    let (scale, least) = (half(block, 80), half(block, 82));
    for (part, values) in values.chunks_exact_mut(16).enumerate() {
        let small = block[part];
        let (scale, least) = (scale * f32::from(small & 15), least * f32::from(small >> 4));
        for (j, value) in values.iter_mut().enumerate() {
            *value = scale * f32::from(two_bits(&block[16..80], 16 * part + j)) - least;
        }
    }
}

pub(super) fn q3_k(block: &[u8], values: &mut [f32]) {
    let scale = half(block, 108);
    for (part, values) in values.chunks_exact_mut(16).enumerate() {
        let scale = scale * f32::from(scale_of_six_bits(&block[96..108], part));
        for (j, value) in values.iter_mut().enumerate() {
            let i = 16 * part + j;
            let high = block[i % 32] >> (i / 32) & 1;
            *value = scale * f32::from((two_bits(&block[32..96], i) | high << 2) as i8 - 4);
        }
    }
}

pub(super) fn q4_k(block: &[u8], values: &mut [f32]) {
    let (scale, least) = (half(block, 0), half(block, 2));
    for (pair, values) in values.chunks_exact_mut(64).enumerate() {
        let parts = [2 * pair, 2 * pair + 1].map(|j| {
            let (a, b) = scale_and_least(&block[4..16], j);
            (scale * f32::from(a), least * f32::from(b))
        });
        nibbles(&block[16 + 32 * pair..48 + 32 * pair], values, |q, j| {
            parts[j / 32].0 * f32::from(q) - parts[j / 32].1
        });
    }
}

pub(super) fn q5_k(block: &[u8], values: &mut [f32]) {
    let (scale, least) = (half(block, 0), half(block, 2));
    for (pair, values) in values.chunks_exact_mut(64).enumerate() {
        let parts = [2 * pair, 2 * pair + 1].map(|j| {
            let (a, b) = scale_and_least(&block[4..16], j);
            (scale * f32::from(a), least * f32::from(b))
        });
        nibbles(&block[48 + 32 * pair..80 + 32 * pair], values, |q, j| {
            let fifth = block[16 + j % 32] >> (2 * pair + j / 32) & 1;
            parts[j / 32].0 * f32::from(q | fifth << 4) - parts[j / 32].1
        });
    }
}

pub(super) fn q6_k(block: &[u8], values: &mut [f32]) {
    let scale = half(block, 208);
    for (i, value) in values.iter_mut().enumerate() {
        let (group, part, j) = (i / 128, i % 128 / 32, i % 32);
        let low = block[64 * group + 32 * (part % 2) + j] >> (4 * (part / 2)) & 15;
        let high = block[128 + 32 * group + j] >> (2 * part) & 3;
        let small = block[192 + i / 16] as i8;
        *value = scale * f32::from(small) * f32::from((low | high << 4) as i8 - 32);
    }
}

/// Bytes with a scale of 32 bits, beside sums of every 16.
pub(super) fn q8_k(block: &[u8], values: &mut [f32]) {
    let scale = f32::from_bits(super::long(block, 0));
    bytes(&block[4..260], values, scale);
}

pub(super) fn iq4_xs(block: &[u8], values: &mut [f32]) {
    let (scale, high) = (half(block, 0), word(block, 2));
    for (part, values) in values.chunks_exact_mut(32).enumerate() {
        let low = block[4 + part / 2] >> (4 * (part % 2)) & 15;
        let small = (low | ((high >> (2 * part) & 3) << 4) as u8) as i8 - 32;
        let scale = scale * f32::from(small);
        nibbles(&block[8 + 16 * part..24 + 16 * part], values, |q, _| {
            scale * f32::from(UNEQUAL[usize::from(q)])
        });
    }
}
