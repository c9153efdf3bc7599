//! The tolerance policy: how far a result may be from the reference, in units of the dtype's epsilon.

use mithril::ir::op::Tolerance;
use mithril::ir::tensor::{Scalar, Tensor};

/// Units of epsilon that a class allows; see the table in the documentation. Never widened to pass a test.
pub const fn units(class: Tolerance) -> f64 {
    match class {
        Tolerance::Exact | Tolerance::Random => 0.0,
        Tolerance::Rounded => 0.5,
        Tolerance::Elementwise => 4.0,
        Tolerance::Contraction => 8.0,
        Tolerance::Decomposition => 256.0,
    }
}

/// Units of epsilon allowed for gradients.
pub const GRADIENT: f64 = 64.0;

/// The largest error of `actual` against `expected` in units of `actual`'s epsilon, relative to the largest
/// magnitude of `expected` (`None`: relative to each element). NaN and infinities have to agree.
pub fn error(actual: &Tensor, expected: &Tensor, scale: Option<f64>) -> f64 {
    if actual.shape() != expected.shape() {
        return f64::INFINITY;
    }
    let epsilon = actual.dtype().epsilon();
    let mut worst: f64 = 0.0;
    for i in 0..actual.len() {
        let (a, b) = (actual.get(i), expected.get(i));
        let distance = match (a, b) {
            (Scalar::Float(a), _) => {
                let b = b.f64();
                if a == b || (a.is_nan() && b.is_nan()) {
                    0.0
                } else if !a.is_finite() || !b.is_finite() {
                    f64::INFINITY
                } else {
                    let unit = epsilon * scale.unwrap_or(b.abs()).max(f64::MIN_POSITIVE / epsilon);
                    (a - b).abs() / unit
                }
            }
            (a, b) => f64::from(u8::from(a.int() != b.int())) * f64::INFINITY,
        };
        worst = worst.max(if distance.is_nan() { 0.0 } else { distance });
    }
    worst
}

/// The largest magnitude of the finite elements.
pub fn magnitude(t: &Tensor) -> f64 {
    t.to_f64s().into_iter().filter(|x| x.is_finite()).fold(0.0, |m, x| m.max(x.abs()))
}
