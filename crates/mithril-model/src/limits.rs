//! Sizes that a model holds for: what is declared about the axes of an input, and whether the sizes of a program are
//! within it.

use std::sync::Arc;

use mithril_ir::{Code, Dim, Error, Result, Symbol};

/// The smallest and the largest size of an axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The axis.
    pub axis: usize,
    /// The smallest size.
    pub min: i64,
    /// The largest size; None if there is none.
    pub max: Option<i64>,
}

/// A limit, and the size that it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizeLimit {
    /// Path of the input.
    pub path: Arc<str>,
    /// The limit.
    pub limit: Limit,
    /// The size, which may have symbols.
    pub dim: Dim,
}

impl SizeLimit {
    /// Checks the limit, as far as the size is known with these values of symbols.
    ///
    /// # Errors
    /// If the size is out of range.
    pub fn check(&self, symbols: &dyn Fn(&Symbol) -> Option<i64>) -> Result<()> {
        let size = self.dim.substitute(&|s| symbols(s).map(Dim::from)).known();
        let Limit { axis, min, max } = self.limit;
        let Some(size) = size.filter(|&n| n < min || max.is_some_and(|max| n > max)) else { return Ok(()) };
        let range = match max {
            Some(max) if max == min => format!("{min}"),
            Some(max) => format!("{min} to {max}"),
            None => format!("at least {min}"),
        };
        let message = format!("axis {axis} of `{}` is {size}, and the model holds for {range}", self.path);
        let mut error = Error::new(Code::ShapeMismatch, message);
        if let Some(symbol) = self.dim.as_symbol() {
            error = error.note(format!("{symbol} is {size} here"));
        }
        Err(error.help("give data of a size in this range, which was declared with the input"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_checked_once_they_are_known() {
        let limit = Limit { axis: 1, min: 2, max: Some(64) };
        let batch = SizeLimit { path: "x".into(), limit, dim: &Dim::symbol("batch") + &Dim::Const(1) };
        let with = |n: i64| batch.check(&|_| Some(n)).map_err(|e| e.to_string());
        assert!(batch.check(&|_| None).is_ok() && with(1).is_ok() && with(63).is_ok());
        for n in [0, 64] {
            let text = with(n).unwrap_err();
            assert!(
                text.contains(&format!("axis 1 of `x` is {}, and the model holds for 2 to 64", n + 1)),
                "{text}"
            );
        }
    }
}
