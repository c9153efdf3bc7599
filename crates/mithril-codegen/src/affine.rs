//! Arithmetic that follows a product of matrices or a convolution, as one factor and one term: a batch norm, a bias. Where
//! those are known before a call, the factor goes into the weights.

use mithril_ir::loops::Binary;

/// A value after steps of arithmetic: times `scale`, plus `shift`.
#[derive(Clone, Debug)]
pub struct Affine<T> {
    /// What it is multiplied by.
    pub scale: Option<T>,
    /// What is then added.
    pub shift: Option<T>,
}

impl<T> Default for Affine<T> {
    fn default() -> Self {
        Self { scale: None, shift: None }
    }
}

impl<T: Clone> Affine<T> {
    /// With one more step, whose right operand is `other`; `None` if that is not such arithmetic. `combine` computes of
    /// two values; a first one that is missing is 0 in sums and 1 in products.
    pub fn then(
        self,
        op: Binary,
        other: T,
        mut combine: impl FnMut(Binary, Option<T>, T) -> Option<T>,
    ) -> Option<Self> {
        let Self { scale, shift } = self;
        Some(match op {
            Binary::Add if shift.is_none() => Self { scale, shift: Some(other) },
            Binary::Add | Binary::Subtract => Self { scale, shift: Some(combine(op, shift, other)?) },
            Binary::Multiply | Binary::Divide => Self {
                shift: match shift {
                    Some(shift) => Some(combine(op, Some(shift), other.clone())?),
                    None => None,
                },
                scale: match scale {
                    None if op == Binary::Multiply => Some(other),
                    scale => Some(combine(op, scale, other)?),
                },
            },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_in_any_order_are_one_factor_and_one_term() {
        let compute = |op, a: Option<f64>, b: f64| match op {
            Binary::Add => Some(a.unwrap_or(0.0) + b),
            Binary::Subtract => Some(a.unwrap_or(0.0) - b),
            Binary::Multiply => Some(a.unwrap_or(1.0) * b),
            Binary::Divide => Some(a.unwrap_or(1.0) / b),
            _ => None,
        };
        let ops = [Binary::Add, Binary::Subtract, Binary::Multiply, Binary::Divide];
        for first in ops {
            for second in ops {
                for third in ops {
                    let (mut composed, mut expected) = (Affine::default(), 0.75);
                    for (op, number) in [(first, 3.0), (second, -2.0), (third, 0.5)] {
                        composed = composed.then(op, number, compute).expect("arithmetic");
                        expected = compute(op, Some(expected), number).expect("arithmetic");
                    }
                    let value: f64 = 0.75 * composed.scale.unwrap_or(1.0) + composed.shift.unwrap_or(0.0);
                    assert!((value - expected).abs() < 1e-12, "{first:?} {second:?} {third:?}");
                }
            }
        }
        assert!(Affine::default().then(Binary::Max, 1.0, compute).is_none());
    }
}
