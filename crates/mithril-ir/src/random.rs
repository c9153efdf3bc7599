//! The random numbers of Mithril: one counter-based generator, the same on every target.
//!
//! Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", 2011) turns a key
//! and a counter into four words of 32 bits; there is no state. A key tensor is `(seed, stream)`, two integers of
//! 64 bits. The seed is the key of Philox, low word first; the counter is
//! `(block low, block high, stream low, stream high)`. Word `i` of a stream is word `i % 4` of block `i / 4`, and
//! element `i` (row-major) of a tensor of bits is word `i`.
//!
//! Floats consist of the high bits: 24 of one word for `f32`, `f16` and `bf16` ([`unit_f32`]), 53 of two words for `f64`
//! ([`unit_f64`]).

use std::f64::consts::TAU;

/// The four words for a counter and a key.
pub fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        let [a, b] = [u64::from(counter[0]) * MULTIPLIERS[0], u64::from(counter[2]) * MULTIPLIERS[1]];
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

/// Rounds of Philox; ten pass all tests of TestU01 with a margin of three.
pub(crate) const ROUNDS: usize = 10;
/// Multipliers of the even words.
pub(crate) const MULTIPLIERS: [u64; 2] = [0xD251_1F53, 0xCD9E_8D57];
/// The increments of the key from round to round: the golden ratio and √3 - 1.
pub(crate) const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// The infinite stream of words for a key `(seed, stream)`.
pub fn words(key: [i64; 2]) -> impl Iterator<Item = u32> {
    let [seed, stream] = key.map(halves);
    (0_u64..).flat_map(move |block| {
        let [low, high] = halves(block as i64);
        philox([low, high, stream[0], stream[1]], seed)
    })
}

/// Low and high word.
fn halves(n: i64) -> [u32; 2] {
    [n as u32, (n >> 32) as u32]
}

/// A number from 0 to 1, 1 excluded: the high 24 bits of a word, in steps of 2⁻²⁴.
pub fn unit_f32(word: u32) -> f32 {
    (word >> 8) as f32 / (1_u32 << 24) as f32
}

/// A number from 0 to 1, 1 excluded: the high 27 bits of the first word, then the high 26 of the second, in steps
/// of 2⁻⁵³.
pub fn unit_f64(words: [u32; 2]) -> f64 {
    let bits = (u64::from(words[0] >> 5) << 26) | u64::from(words[1] >> 6);
    bits as f64 / (1_u64 << 53) as f64
}

/// Two independent numbers from the standard normal distribution of two from 0 to 1 (Box and Muller 1958): the
/// cosine and the sine of a pair.
pub fn normal_pair(u: f64, v: f64) -> (f64, f64) {
    // 1 - u rather than u, so that the logarithm is finite.
    let radius = (-2.0 * (1.0 - u).ln()).sqrt();
    (radius * (TAU * v).cos(), radius * (TAU * v).sin())
}

/// The key of a named stream under a seed: the numbers of a name do not depend on other names.
pub fn stream_key(seed: u64, name: &str) -> [i64; 2] {
    // FNV-1a is not well mixed, which does not matter: Philox mixes the key.
    let hash = name
        .bytes()
        .fold(0xCBF2_9CE4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01B3));
    [seed as i64, hash as i64]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers published with Random123 (`kat_vectors`, philox4x32 with 10 rounds).
    #[test]
    fn philox_gives_the_published_answers() {
        let ones = u32::MAX;
        let cases = [
            ([0; 4], [0; 2], [0x6627_E8D5, 0xE169_C58D, 0xBC57_AC4C, 0x9B00_DBD8]),
            ([ones; 4], [ones; 2], [0x408F_276D, 0x41C8_3B0E, 0xA20B_C7C6, 0x6D54_51FD]),
            (
                [0x243F_6A88, 0x85A3_08D3, 0x1319_8A2E, 0x0370_7344],
                [0xA409_3822, 0x299F_31D0],
                [0xD16C_FE09, 0x94FD_CCEB, 0x5001_E420, 0x2412_6EA1],
            ),
        ];
        for (counter, key, answer) in cases {
            assert_eq!(philox(counter, key), answer);
        }
    }

    #[test]
    fn streams_start_with_block_zero() {
        let first: Vec<u32> = words([0, 0]).take(6).collect();
        assert_eq!(first[..4], [0x6627_E8D5, 0xE169_C58D, 0xBC57_AC4C, 0x9B00_DBD8]);
        assert_eq!(first[4..], philox([1, 0, 0, 0], [0, 0])[..2]);
        // A negative seed and stream are their bits.
        assert_eq!(words([-1, -1]).next(), Some(philox([0, 0, u32::MAX, u32::MAX], [u32::MAX; 2])[0]));
    }

    #[test]
    fn units_reach_their_ends_and_no_further() {
        assert_eq!(unit_f32(0), 0.0);
        assert_eq!(unit_f32(u32::MAX), 1.0 - f32::EPSILON / 2.0);
        assert_eq!(unit_f64([0, 0]), 0.0);
        assert_eq!(unit_f64([u32::MAX; 2]), 1.0 - f64::EPSILON / 2.0);
        assert_eq!(unit_f64([1 << 31, 0]), 0.5);
    }

    #[test]
    fn names_have_streams_of_their_own() {
        // FNV-1a of "a", as published with the hash.
        assert_eq!(stream_key(7, "a"), [7, 0xAF63_DC4C_8601_EC8C_u64 as i64]);
        assert_ne!(words(stream_key(7, "a")).next(), words(stream_key(7, "b")).next());
        assert_ne!(words(stream_key(7, "a")).next(), words(stream_key(8, "a")).next());
    }

    #[test]
    fn pairs_are_standard_normal() {
        let mut stream = words([3, 1]);
        let n = 20_000;
        let mut sums = [0.0; 4];
        for _ in 0..n / 2 {
            let [u, v] = [(); 2].map(|()| f64::from(unit_f32(stream.next().unwrap_or(0))));
            let (a, b) = normal_pair(u, v);
            for z in [a, b] {
                for (k, sum) in sums.iter_mut().enumerate() {
                    *sum += z.powi(k as i32 + 1) / f64::from(n);
                }
            }
        }
        // Moments 0, 1, 0, 3, within five standard errors.
        let expected = [0.0, 1.0, 0.0, 3.0];
        let tolerance = [1.0, 2.0, 15.0, 96.0_f64].map(|v| 5.0 * (v / f64::from(n)).sqrt());
        for k in 0..4 {
            assert!((sums[k] - expected[k]).abs() < tolerance[k], "moment {}: {}", k + 1, sums[k]);
        }
    }
}
