//! Losses.

use mithril_ir::{Dim, Result, ValueId};

use super::{Table, one};
use crate::context::Value;
use crate::node::{Use, op};

pub static OPS: Table = &[
    ("NegativeLogLikelihoodLoss", |u| {
        let x = u.x(0)?;
        one(loss(u, x)?)
    }),
    ("SoftmaxCrossEntropyLoss", |u| {
        let x = u.x(0)?;
        let log = op!(u, "log_softmax", x, 1_i64)?;
        Ok(vec![Value::Graph(loss(u, log)?), Value::Graph(log)])
    }),
];

/// The loss of log-probabilities. Targets of `ignore_index` may be no class.
fn loss(u: &mut Use<'_>, x: ValueId) -> Result<ValueId> {
    let (target, weight) = (u.x(1)?, u.optional(2)?);
    let (how, ignored) = (u.text("reduction", "mean")?, u.optional_int("ignore_index")?);
    if u.shape(x).get(1).is_some_and(|n: &Dim| n.is(0)) {
        return Err(Use::refuse("there are no classes"));
    }
    op!(u, "nll_loss", x, target, weight, &*how, ignored.unwrap_or(i64::from(i32::MIN)))
}
