//! Making blocks of 256 values. The searches and the order of their sums are those of ggml's reference, so that the
//! same values give the same bytes.

use super::put_half;
use super::superblock::{scale_and_least, scale_of_six_bits};

/// Largest absolute value of a part that counts as zero.
const NOTHING: f32 = 1e-15;

/// The level that is nearest, within bounds.
fn level(x: f32, least: i32, most: i32) -> i32 {
    // So large a number has no fraction: adding it rounds, and all processors do that at once for several values.
    const WHOLE: f32 = 12_582_912.0;
    (x.clamp(least as f32, most as f32) + WHOLE - WHOLE) as i32
}

// --- scale and least value --------------------------------------------------------------------------------------

/// How the scale and the least value of a part are looked for.
struct Search {
    /// The highest level; the lowest is 0.
    most: i32,
    /// The first scale that is tried has so many levels more, each further one a tenth more.
    start: f32,
    steps: u8,
    /// Whether errors count as they are, not squared.
    absolute: bool,
}

/// Scale, and least value with the sign turned, with small weighted errors. `levels` get the levels.
fn fit(search: &Search, values: &[f32], weights: &[f32], levels: &mut [u8]) -> (f32, f32) {
    let (mut least, mut most) = (values[0], values[0]);
    let (mut sum_w, mut sum_x) = (weights[0], weights[0] * values[0]);
    for (&x, &w) in values.iter().zip(weights).skip(1) {
        least = if x < least { x } else { least };
        most = if x > most { x } else { most };
        sum_w += w;
        sum_x += w * x;
    }
    least = if least > 0.0 { 0.0 } else { least };
    if most == least {
        levels.fill(0);
        return (0.0, -least);
    }
    let assign = |by: f32, least: f32, levels: &mut [u8]| {
        for (l, x) in levels.iter_mut().zip(values) {
            *l = level(by * (x - least), 0, search.most) as u8;
        }
    };
    let error = |(scale, least): (f32, f32), levels: &[u8]| {
        values.iter().zip(weights).zip(levels).fold(0.0_f32, |sum, ((x, w), l)| {
            let off = scale * f32::from(*l) + least - x;
            sum + w * if search.absolute { off.abs() } else { off * off }
        })
    };
    let top = search.most as f32;
    let by = top / (most - least);
    assign(by, least, levels);
    let mut chosen = (1.0 / by, least);
    let mut best = error(chosen, levels);
    let mut tried = [0; 32];
    let tried = &mut tried[..values.len()];
    for step in 0..=search.steps {
        assign((search.start + 0.1 * f32::from(step) + top) / (most - chosen.1), chosen.1, tried);
        let Some(next) = regression(values, weights, tried, (sum_w, sum_x)) else { continue };
        let next_error = error(next, tried);
        if next_error < best {
            levels.copy_from_slice(tried);
            (best, chosen) = (next_error, next);
        }
    }
    (chosen.0, -chosen.1)
}

/// The scale and the least value, at most 0, that fit levels best; `None` if the levels do not decide them. The sums of
/// the weights, and of them times the values, are given.
fn regression(
    values: &[f32],
    weights: &[f32],
    levels: &[u8],
    (sum_w, sum_x): (f32, f32),
) -> Option<(f32, f32)> {
    let (mut sum_l, mut sum_l2, mut sum_xl) = (0.0, 0.0, 0.0);
    for ((&l, &x), &w) in levels.iter().zip(values).zip(weights) {
        let l = f32::from(l);
        sum_l += w * l;
        sum_l2 += w * l * l;
        sum_xl += w * l * x;
    }
    let determinant = sum_w * sum_l2 - sum_l * sum_l;
    if determinant <= 0.0 {
        return None;
    }
    let least = (sum_l2 * sum_x - sum_l * sum_xl) / determinant;
    let scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
    Some(if least > 0.0 { (sum_xl / sum_l2, 0.0) } else { (scale, least) })
}

/// The largest of numbers that are not negative.
fn largest(numbers: &[f32]) -> f32 {
    numbers.iter().fold(0.0, |most, x| if *x > most { *x } else { most })
}

/// Puts four levels of two bits into each byte.
fn put_two_bits(levels: &[u8], bytes: &mut [u8]) {
    for (bytes, levels) in bytes.chunks_exact_mut(32).zip(levels.chunks_exact(128)) {
        for (j, byte) in bytes.iter_mut().enumerate() {
            *byte = (0..4).fold(0, |byte, n| byte | levels[j + 32 * n] << (2 * n));
        }
    }
}

pub(super) fn q2_k(values: &[f32], block: &mut [u8]) {
    const SEARCH: Search = Search { most: 3, start: -0.5, steps: 15, absolute: true };
    let (mut levels, mut scales, mut leasts) = ([0; 256], [0.0; 16], [0.0; 16]);
    for (j, (values, levels)) in values.chunks_exact(16).zip(levels.chunks_exact_mut(16)).enumerate() {
        let weights: [f32; 16] = std::array::from_fn(|i| values[i].abs());
        (scales[j], leasts[j]) = fit(&SEARCH, values, &weights, levels);
    }
    let (scale, least) = (largest(&scales), largest(&leasts));
    let small = |all: f32, one: f32| if all > 0.0 { level(15.0 / all * one, 0, 15) as u8 } else { 0 };
    for (j, byte) in block[..16].iter_mut().enumerate() {
        *byte = small(scale, scales[j]) | small(least, leasts[j]) << 4;
    }
    let scale = put_half(block, 80, scale / 15.0);
    let least = put_half(block, 82, least / 15.0);
    for (j, (values, levels)) in values.chunks_exact(16).zip(levels.chunks_exact_mut(16)).enumerate() {
        let packed = block[j];
        assign(values, levels, scale * f32::from(packed & 15), least * f32::from(packed >> 4), 3);
    }
    put_two_bits(&levels, &mut block[16..80]);
}

/// The levels of a part for the scale and the least value as they are stored. Without a scale the old ones stay.
fn assign(values: &[f32], levels: &mut [u8], scale: f32, least: f32, most: i32) {
    if scale != 0.0 {
        for (l, x) in levels.iter_mut().zip(values) {
            *l = level((x + least) / scale, 0, most) as u8;
        }
    }
}

/// The levels of q4_k and q5_k; their scales go into the first 16 bytes.
fn four_or_five_bits(search: &Search, values: &[f32], block: &mut [u8]) -> [u8; 256] {
    let (mut levels, mut scales, mut leasts) = ([0; 256], [0.0; 8], [0.0; 8]);
    for (j, (values, levels)) in values.chunks_exact(32).zip(levels.chunks_exact_mut(32)).enumerate() {
        let squares = values.iter().fold(0.0_f32, |sum, x| sum + x * x);
        let usual = (squares / 32.0).sqrt();
        let weights: [f32; 32] = std::array::from_fn(|i| usual + values[i].abs());
        (scales[j], leasts[j]) = fit(search, values, &weights, levels);
    }
    let (scale, least) = (largest(&scales), largest(&leasts));
    let by = |all: f32| if all > 0.0 { 63.0 / all } else { 0.0 };
    let (scale_by, least_by) = (by(scale), by(least));
    let packed = &mut block[4..16];
    for j in 0..8 {
        let a = level(scale_by * scales[j], 0, 63) as u8;
        let b = level(least_by * leasts[j], 0, 63) as u8;
        if j < 4 {
            (packed[j], packed[j + 4]) = (a, b);
        } else {
            packed[j + 4] = a & 15 | (b & 15) << 4;
            packed[j - 4] |= a >> 4 << 6;
            packed[j] |= b >> 4 << 6;
        }
    }
    let scale = put_half(block, 0, scale / 63.0);
    let least = put_half(block, 2, least / 63.0);
    for (j, (values, levels)) in values.chunks_exact(32).zip(levels.chunks_exact_mut(32)).enumerate() {
        let (a, b) = scale_and_least(&block[4..16], j);
        assign(values, levels, scale * f32::from(a), least * f32::from(b), search.most);
    }
    levels
}

/// Puts the low halves of levels, pair by pair of parts, into bytes.
fn put_nibbles(levels: &[u8], bytes: &mut [u8]) {
    for (bytes, levels) in bytes.chunks_exact_mut(32).zip(levels.chunks_exact(64)) {
        for (j, byte) in bytes.iter_mut().enumerate() {
            *byte = levels[j] & 15 | levels[j + 32] << 4;
        }
    }
}

pub(super) fn q4_k(values: &[f32], block: &mut [u8]) {
    const SEARCH: Search = Search { most: 15, start: -1.0, steps: 20, absolute: false };
    let levels = four_or_five_bits(&SEARCH, values, block);
    put_nibbles(&levels, &mut block[16..144]);
}

pub(super) fn q5_k(values: &[f32], block: &mut [u8]) {
    const SEARCH: Search = Search { most: 31, start: -0.5, steps: 15, absolute: false };
    let levels = four_or_five_bits(&SEARCH, values, block);
    for (j, byte) in block[16..48].iter_mut().enumerate() {
        *byte = (0..8).fold(0, |byte, n| byte | (levels[32 * n + j] >> 4) << n);
    }
    put_nibbles(&levels, &mut block[48..176]);
}

// --- scale alone ------------------------------------------------------------------------------------------------

/// The first value whose absolute value is largest; `None` if all are about zero.
fn extreme(values: &[f32]) -> Option<f32> {
    let most = values.iter().fold(0.0, |most: f32, x| if x.abs() > most.abs() { *x } else { most });
    (most.abs() >= NOTHING).then_some(most)
}

/// Sums of products and squares of values and levels, weighted by the squares of the values.
fn sums(values: &[f32], levels: impl Fn(usize, f32) -> i32) -> (f32, f32) {
    values.iter().enumerate().fold((0.0, 0.0), |(products, squares), (i, &x)| {
        let (w, l) = (x * x, levels(i, x) as f32);
        (products + w * x * l, squares + w * l * l)
    })
}

/// The scale of a part of q6_k, whose levels are between -32 and 31; `levels` get them plus 32.
fn symmetric(values: &[f32], levels: &mut [u8]) -> f32 {
    let Some(most) = extreme(values) else {
        levels.fill(0);
        return 0.0;
    };
    let nearest = |by: f32, x: f32| level(by * x, -32, 31);
    let mut assign = |by: f32| {
        for (l, x) in levels.iter_mut().zip(values) {
            *l = (nearest(by, *x) + 32) as u8;
        }
    };
    let by = -32.0 / most;
    assign(by);
    let (products, squares) = sums(values, |_, x| nearest(by, x));
    let mut scale = if squares == 0.0 { 0.0 } else { products / squares };
    let mut best = scale * products;
    for step in (-9..=9).filter(|step| *step != 0) {
        let by = -(32.0 + 0.1 * step as f32) / most;
        let (products, squares) = sums(values, |_, x| nearest(by, x));
        if squares > 0.0 && products * products > best * squares {
            assign(by);
            scale = products / squares;
            best = scale * products;
        }
    }
    scale
}

pub(super) fn q6_k(values: &[f32], block: &mut [u8]) {
    let (mut levels, mut scales) = ([0; 256], [0.0; 16]);
    for ((values, levels), scale) in
        values.chunks_exact(16).zip(levels.chunks_exact_mut(16)).zip(scales.iter_mut())
    {
        *scale = symmetric(values, levels);
    }
    let Some(most) = extreme(&scales) else {
        block.fill(0);
        return;
    };
    let by = -128.0 / most;
    let scale = put_half(block, 208, 1.0 / by);
    for (j, (values, levels)) in values.chunks_exact(16).zip(levels.chunks_exact_mut(16)).enumerate() {
        let small = level(by * scales[j], -128, 127) as i8;
        block[192 + j] = small as u8;
        let scale = scale * f32::from(small);
        if scale != 0.0 {
            for (l, x) in levels.iter_mut().zip(values) {
                *l = (level(x / scale, -32, 31) + 32) as u8;
            }
        }
    }
    for (group, levels) in levels.chunks_exact(128).enumerate() {
        for j in 0..32 {
            let parts = [0, 32, 64, 96].map(|n| levels[j + n]);
            let low = &mut block[64 * group..64 * group + 64];
            low[j] = parts[0] & 15 | parts[2] << 4;
            low[j + 32] = parts[1] & 15 | parts[3] << 4;
            let high = parts.iter().enumerate().fold(0, |byte, (n, part)| byte | part >> 4 << (2 * n));
            block[128 + 32 * group + j] = high;
        }
    }
}

/// The scale of a part of q3_k, whose levels are between -4 and 3; `levels` get them plus 4. Levels are changed one at
/// a time as long as that helps.
fn descended(values: &[f32], levels: &mut [u8]) -> f32 {
    let Some(most) = extreme(values) else {
        levels.fill(0);
        return 0.0;
    };
    let by = -4.0 / most;
    let mut rounded: [i32; 16] = std::array::from_fn(|i| level(by * values[i], -4, 3));
    let (mut products, mut squares) = sums(values, |i, _| rounded[i]);
    for _ in 0..5 {
        let mut changed = false;
        for (&x, l) in values.iter().zip(&mut rounded) {
            let (w, old) = (x * x, *l as f32);
            let other_products = products - w * x * old;
            if other_products <= 0.0 {
                continue;
            }
            let other_squares = squares - w * old * old;
            let new = level(x * other_squares / other_products, -4, 3);
            if new == *l {
                continue;
            }
            let new_products = other_products + w * x * new as f32;
            let new_squares = other_squares + w * new as f32 * new as f32;
            if new_squares > 0.0 && new_products * new_products * squares > products * products * new_squares
            {
                (*l, products, squares) = (new, new_products, new_squares);
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    for (l, rounded) in levels.iter_mut().zip(rounded) {
        *l = (rounded + 4) as u8;
    }
    if squares > 0.0 { products / squares } else { 0.0 }
}

pub(super) fn q3_k(values: &[f32], block: &mut [u8]) {
    let (mut levels, mut scales) = ([0; 256], [0.0; 16]);
    for ((values, levels), scale) in
        values.chunks_exact(16).zip(levels.chunks_exact_mut(16)).zip(scales.iter_mut())
    {
        *scale = descended(values, levels);
    }
    block.fill(0);
    let most = scales.iter().fold(0.0, |most: f32, x| if x.abs() > most.abs() { *x } else { most });
    let mut scale = 0.0;
    if most != 0.0 {
        let by = -32.0 / most;
        let packed = &mut block[96..108];
        for (j, scale) in scales.iter().enumerate() {
            let small = (level(by * scale, -32, 31) + 32) as u8;
            packed[j % 8] |= (small & 15) << (4 * (j / 8));
            packed[8 + j % 4] |= small >> 4 << (2 * (j / 4));
        }
        scale = put_half(block, 108, 1.0 / by);
    }
    for (j, (values, levels)) in values.chunks_exact(16).zip(levels.chunks_exact_mut(16)).enumerate() {
        let scale = scale * f32::from(scale_of_six_bits(&block[96..108], j));
        if scale != 0.0 {
            for (l, x) in levels.iter_mut().zip(values) {
                *l = (level(x / scale, -4, 3) + 4) as u8;
            }
        }
    }
    for (i, l) in levels.iter_mut().enumerate() {
        block[i % 32] |= (*l >> 2) << (i / 32);
        *l &= 3;
    }
    put_two_bits(&levels, &mut block[32..96]);
}
