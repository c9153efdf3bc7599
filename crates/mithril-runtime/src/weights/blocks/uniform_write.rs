//! Making blocks with one scale (or few).

use super::put_half;
use super::uniform::{TINY_FLOATS, half_power, small_scale};

/// What a scale is divided by; 0 where there is none.
fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// The largest absolute value.
fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |most, x| x.abs().max(most))
}

/// The first value whose absolute value is largest.
fn extreme(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |most: f32, x| if x.abs() > most.abs() { *x } else { most })
}

fn range(values: &[f32]) -> (f32, f32) {
    let wider =
        |(least, most), &x: &f32| (if x < least { x } else { least }, if x > most { x } else { most });
    values.iter().fold((f32::MAX, f32::MIN), wider)
}

/// The low halves of bytes from the first half of the values, the high ones from the second.
fn nibbles(values: &[f32], bytes: &mut [u8], level: impl Fn(f32) -> u8) {
    let (first, second) = values.split_at(bytes.len());
    for ((byte, x), y) in bytes.iter_mut().zip(first).zip(second) {
        *byte = level(*x) & 15 | level(*y) << 4;
    }
}

/// The fifth bits of all values.
fn fifths(values: &[f32], level: impl Fn(f32) -> u8) -> [u8; 4] {
    let bits = values.iter().enumerate().map(|(j, x)| u32::from(level(*x) >> 4 & 1) << j);
    bits.fold(0, |all, bit| all | bit).to_le_bytes()
}

pub(super) fn q4_0(values: &[f32], block: &mut [u8]) {
    let scale = extreme(values) / -8.0;
    let by = inverse(scale);
    put_half(block, 0, scale);
    nibbles(values, &mut block[2..], |x| ((x * by + 8.5) as u8).min(15));
}

pub(super) fn q4_1(values: &[f32], block: &mut [u8]) {
    let (least, most) = range(values);
    let scale = (most - least) / 15.0;
    let by = inverse(scale);
    put_half(block, 0, scale);
    put_half(block, 2, least);
    nibbles(values, &mut block[4..], |x| (((x - least) * by + 0.5) as u8).min(15));
}

pub(super) fn q5_0(values: &[f32], block: &mut [u8]) {
    let scale = extreme(values) / -16.0;
    let by = inverse(scale);
    let level = |x: f32| ((x * by + 16.5) as u8).min(31);
    put_half(block, 0, scale);
    block[2..6].copy_from_slice(&fifths(values, level));
    nibbles(values, &mut block[6..], level);
}

pub(super) fn q5_1(values: &[f32], block: &mut [u8]) {
    let (least, most) = range(values);
    let scale = (most - least) / 31.0;
    let by = inverse(scale);
    let level = |x: f32| (((x - least) * by + 0.5) as u8).min(31);
    put_half(block, 0, scale);
    put_half(block, 2, least);
    block[4..8].copy_from_slice(&fifths(values, level));
    nibbles(values, &mut block[8..], level);
}

pub(super) fn q8_0(values: &[f32], block: &mut [u8]) {
    let scale = largest(values) / 127.0;
    let by = inverse(scale);
    put_half(block, 0, scale);
    for (byte, x) in block[2..].iter_mut().zip(values) {
        *byte = (x * by).round() as i8 as u8;
    }
}

pub(super) fn q1_0(values: &[f32], block: &mut [u8]) {
    // One after the other: the order decides the rounding, and ggml's is this.
    let sum = values.iter().fold(0.0_f32, |sum, x| sum + x.abs());
    put_half(block, 0, sum / values.len() as f32);
    for (byte, values) in block[2..].iter_mut().zip(values.chunks(8)) {
        *byte = values.iter().enumerate().fold(0, |byte, (j, x)| byte | u8::from(*x >= 0.0) << j);
    }
}

pub(super) fn q2_0(values: &[f32], block: &mut [u8]) {
    let scale = largest(values);
    let by = inverse(scale);
    put_half(block, 0, scale);
    for (byte, values) in block[2..].iter_mut().zip(values.chunks(4)) {
        let levels = values.iter().map(|x| three(*x, by));
        *byte = levels.enumerate().fold(0, |byte, (j, level)| byte | level << (2 * j));
    }
}

pub(super) fn mxfp4(values: &[f32], block: &mut [u8]) {
    let most = largest(values);
    block[0] = if most > 0.0 { (most.log2().floor() - 2.0 + 127.0) as u8 } else { 0 };
    let scale = half_power(block[0]);
    nibbles(values, &mut block[1..], |x| tiny_float(x, scale));
}

/// The tiny float that is nearest.
fn tiny_float(x: f32, scale: f32) -> u8 {
    let error = |i: usize| (f32::from(TINY_FLOATS[i]) * scale - x).abs();
    (1..16).fold(0, |best, i| if error(i) < error(best) { i } else { best }) as u8
}

pub(super) fn nvfp4(values: &[f32], block: &mut [u8]) {
    for (i, values) in values.chunks_exact(16).enumerate() {
        block[i] = nearest_scale(largest(values) / 6.0);
        let scale = small_scale(block[i]);
        nibbles(values, &mut block[4 + 8 * i..12 + 8 * i], |x| tiny_float(x, scale));
    }
}

/// The number with four bits of exponent and three of fraction that is nearest; the largest is 448.
fn nearest_scale(x: f32) -> u8 {
    const MOST: u8 = 0x7e;
    if x <= 0.0 {
        return 0;
    }
    let bits = x.min(448.0).to_bits();
    let exponent = (bits >> 23) as i32 - 127 + 7;
    if exponent <= 0 {
        return (x * 512.0 + 0.5).min(7.0) as u8;
    }
    // Rounding up may reach the next exponent, which the sum counts by itself; the last one has one number for ggml.
    let rounded = (exponent << 3 | (bits >> 20 & 7) as i32) + (bits >> 19 & 1) as i32;
    if rounded >= 15 << 3 { MOST } else { rounded as u8 }
}

/// Levels 0, 1, 2 of values between -1 and 1 times the scale.
fn three(x: f32, by: f32) -> u8 {
    ((x * by).round().clamp(-1.0, 1.0) as i8 + 1) as u8
}

pub(super) fn tq1_0(values: &[f32], block: &mut [u8]) {
    let scale = largest(values);
    let by = inverse(scale);
    put_half(block, 52, scale);
    for (at, count, digits, start) in [(0, 32, 5, 0), (32, 16, 5, 160), (48, 4, 4, 240)] {
        for j in 0..count {
            let digit =
                |n: usize| if n < digits { u16::from(three(values[start + j + n * count], by)) } else { 0 };
            let number = (0..5).fold(0, |number, n| number * 3 + digit(n));
            // As a fraction of 3^5, rounded up.
            block[at + j] = (number * 256).div_ceil(243) as u8;
        }
    }
}

pub(super) fn tq2_0(values: &[f32], block: &mut [u8]) {
    let scale = largest(values);
    let by = inverse(scale);
    put_half(block, 64, scale);
    for (bytes, values) in block[..64].chunks_exact_mut(32).zip(values.chunks_exact(128)) {
        for (j, byte) in bytes.iter_mut().enumerate() {
            *byte = (0..4).fold(0, |byte, n| byte | three(values[j + 32 * n], by) << (2 * n));
        }
    }
}
