//! Reading blocks with one scale (or few): a value is its level times the scale, plus the least value in some forms.

use super::{half, long};

/// The values of numbers of 4 bits with a sign, an exponent of two bits and a fraction of one, doubled.
pub(super) const TINY_FLOATS: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
/// The levels of the forms with unequal steps.
pub(super) const UNEQUAL: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Levels of 4 bits: the low halves of bytes are the first half of the values, the high halves the second.
/// `value` is given the level and the place.
pub(super) fn nibbles(bytes: &[u8], values: &mut [f32], value: impl Fn(u8, usize) -> f32) {
    let second = bytes.len();
    for (j, byte) in bytes.iter().enumerate() {
        values[j] = value(byte & 15, j);
        values[second + j] = value(byte >> 4, second + j);
    }
}

pub(super) fn q4_0(block: &[u8], values: &mut [f32]) {
    let scale = half(block, 0);
    nibbles(&block[2..], values, |q, _| f32::from(q as i8 - 8) * scale);
}

pub(super) fn q4_1(block: &[u8], values: &mut [f32]) {
    let (scale, least) = (half(block, 0), half(block, 2));
    nibbles(&block[4..], values, |q, _| f32::from(q) * scale + least);
}

pub(super) fn q5_0(block: &[u8], values: &mut [f32]) {
    let (scale, high) = (half(block, 0), long(block, 2));
    nibbles(&block[6..], values, |q, j| f32::from((q | fifth(high, j)) as i8 - 16) * scale);
}

pub(super) fn q5_1(block: &[u8], values: &mut [f32]) {
    let (scale, least, high) = (half(block, 0), half(block, 2), long(block, 4));
    nibbles(&block[8..], values, |q, j| f32::from(q | fifth(high, j)) * scale + least);
}

/// The fifth bit of value `j`, in its place.
fn fifth(high: u32, j: usize) -> u8 {
    ((high >> j & 1) << 4) as u8
}

pub(super) fn q8_0(block: &[u8], values: &mut [f32]) {
    bytes(&block[2..], values, half(block, 0));
}

/// As q8_0, beside the sum of the values.
pub(super) fn q8_1(block: &[u8], values: &mut [f32]) {
    bytes(&block[4..], values, half(block, 0));
}

pub(super) fn bytes(levels: &[u8], values: &mut [f32], scale: f32) {
    for (value, level) in values.iter_mut().zip(levels) {
        *value = f32::from(*level as i8) * scale;
    }
}

/// Signs alone.
pub(super) fn q1_0(block: &[u8], values: &mut [f32]) {
    let scale = half(block, 0);
    for (j, value) in values.iter_mut().enumerate() {
        *value = if block[2 + j / 8] >> (j % 8) & 1 == 1 { scale } else { -scale };
    }
}

/// Levels -1, 0, 1, 2.
pub(super) fn q2_0(block: &[u8], values: &mut [f32]) {
    let scale = half(block, 0);
    for (j, value) in values.iter_mut().enumerate() {
        *value = f32::from((block[2 + j / 4] >> (2 * (j % 4)) & 3) as i8 - 1) * scale;
    }
}

/// Tiny floats with one exponent.
pub(super) fn mxfp4(block: &[u8], values: &mut [f32]) {
    let scale = half_power(block[0]);
    nibbles(&block[1..], values, |q, _| f32::from(TINY_FLOATS[usize::from(q)]) * scale);
}

/// `2^(exponent - 128)`: half of what the exponent says, since the tiny floats are doubled.
pub(super) fn half_power(exponent: u8) -> f32 {
    match exponent {
        0 | 1 => f32::from_bits(0x0020_0000 << exponent),
        _ => f32::from_bits(u32::from(exponent - 1) << 23),
    }
}

/// Tiny floats, every 16 of them with a scale of 8 bits.
pub(super) fn nvfp4(block: &[u8], values: &mut [f32]) {
    for (i, values) in values.chunks_exact_mut(16).enumerate() {
        let scale = small_scale(block[i]);
        nibbles(&block[4 + 8 * i..12 + 8 * i], values, |q, _| f32::from(TINY_FLOATS[usize::from(q)]) * scale);
    }
}

/// Half of the number with four bits of exponent and three of fraction.
pub(super) fn small_scale(bits: u8) -> f32 {
    let (exponent, fraction) = (i32::from(bits >> 3 & 15), f32::from(bits & 7));
    match bits {
        0 | 0x7f => 0.0,
        _ if exponent == 0 => fraction / 1024.0,
        _ => (1.0 + fraction / 8.0) * 2_f32.powi(exponent - 8),
    }
}

pub(super) fn iq4_nl(block: &[u8], values: &mut [f32]) {
    let scale = half(block, 0);
    nibbles(&block[2..], values, |q, _| scale * f32::from(UNEQUAL[usize::from(q)]));
}

/// Levels -1, 0, 1: five in a byte, as the digits of a fraction to base three.
pub(super) fn tq1_0(block: &[u8], values: &mut [f32]) {
    let scale = half(block, 52);
    let mut values = values.iter_mut();
    for (bytes, digits) in [(&block[..32], 5), (&block[32..48], 5), (&block[48..52], 4)] {
        for digit in 0..digits {
            for (byte, value) in bytes.iter().zip(&mut values) {
                let shifted = byte.wrapping_mul(3_u8.pow(digit));
                *value = f32::from(((u16::from(shifted) * 3) >> 8) as i8 - 1) * scale;
            }
        }
    }
}

/// Levels -1, 0, 1, in two bits each.
pub(super) fn tq2_0(block: &[u8], values: &mut [f32]) {
    let scale = half(block, 64);
    for (i, value) in values.iter_mut().enumerate() {
        let (group, shift, j) = (i / 128, i % 128 / 32, i % 32);
        *value = f32::from((block[32 * group + j] >> (2 * shift) & 3) as i8 - 1) * scale;
    }
}
