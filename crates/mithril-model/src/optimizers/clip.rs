//! Gradient clipping as graphs.

use mithril_ir::{Code, Error, Result};

use super::formula::{add, multiply, op, root, square};
use crate::connection::{Arg, Connection};

/// Holds each element within `-bound` and `bound`.
pub fn by_value(gradients: &[Connection], bound: f64) -> Result<Vec<Connection>> {
    positive("clip_value", bound)?;
    gradients.iter().map(|g| op("clip", [g.into(), (-bound).into(), bound.into()])).collect()
}

/// Scales all gradients by one factor, so that their common norm is at most `bound`, as
/// `torch.nn.utils.clip_grad_norm_` does (Pascanu et al. 2013, arXiv:1211.5063). Also returns the norm before.
/// All are of one dtype.
pub fn by_norm(gradients: &[Connection], bound: f64) -> Result<(Vec<Connection>, Connection)> {
    positive("clip_norm", bound)?;
    let mut total: Option<Connection> = None;
    for gradient in gradients {
        let sum = op("sum", [Arg::from(&square(gradient)?)])?;
        total = Some(match total {
            Some(total) => add(&total, &sum)?,
            None => sum,
        });
    }
    let total = total.ok_or_else(|| Error::new(Code::EmptyModel, "there are no gradients to clip"))?;
    let norm = root(&total)?;
    let factor = op("divide", [bound.into(), (&add(&norm, 1e-6)?).into()])?;
    let factor = op("minimum", [(&factor).into(), 1.0.into()])?;
    let clipped = gradients.iter().map(|g| multiply(g, &factor)).collect::<Result<_>>()?;
    Ok((clipped, norm))
}

fn positive(name: &str, bound: f64) -> Result<()> {
    if bound.is_finite() && bound > 0.0 {
        return Ok(());
    }
    Err(Error::new(Code::BadArgument, format!("`{name}` is {bound}")).help("it must be a number above 0"))
}
