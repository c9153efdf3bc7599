//! Formulas of the rules: ops on connections and numbers, and terms that several rules have.

use mithril_ir::Result;

use crate::connection::{Arg, Connection};
pub(super) use crate::layers::expr::{input, op};

pub(super) fn add(a: &Connection, b: impl Into<Arg>) -> Result<Connection> {
    op("add", [a.into(), b.into()])
}

pub(super) fn subtract(a: &Connection, b: impl Into<Arg>) -> Result<Connection> {
    op("subtract", [a.into(), b.into()])
}

pub(super) fn multiply(a: &Connection, b: impl Into<Arg>) -> Result<Connection> {
    op("multiply", [a.into(), b.into()])
}

pub(super) fn divide(a: &Connection, b: impl Into<Arg>) -> Result<Connection> {
    op("divide", [a.into(), b.into()])
}

pub(super) fn square(a: &Connection) -> Result<Connection> {
    multiply(a, a)
}

pub(super) fn root(a: &Connection) -> Result<Connection> {
    op("sqrt", [a.into()])
}

/// `x + factor·left·right`, which some targets compute in one pass.
pub(super) fn add_product(
    x: &Connection,
    left: &Connection,
    right: impl Into<Arg>,
    factor: f64,
) -> Result<Connection> {
    op("addcmul", [x.into(), left.into(), right.into(), factor.into()])
}

/// `kept·old + (1 − kept)·new`
pub(super) fn mean(old: &Connection, new: &Connection, kept: f64) -> Result<Connection> {
    add_product(&multiply(old, kept)?, new, 1.0 - kept, 1.0)
}

/// `kept·old + (1 − kept)·new²`
pub(super) fn mean_square(old: &Connection, new: &Connection, kept: f64) -> Result<Connection> {
    add_product(&multiply(old, kept)?, new, new, 1.0 - kept)
}

/// `param − rate·direction`
pub(super) fn step(param: &Connection, direction: &Connection, rate: &Connection) -> Result<Connection> {
    add_product(param, direction, rate, -1.0)
}

/// `1 − kept^step`, what a running mean that started at zero has seen. Written so that nothing cancels: in float32
/// `1 − 0.999` has four correct digits.
pub(super) fn seen(step: &Connection, kept: f64) -> Result<Connection> {
    op("negative", [(&op("expm1", [(&multiply(step, kept.ln())?).into()])?).into()])
}

/// The gradient of the loss with `decay/2·‖param‖²` added to it.
pub(super) fn decayed_gradient(param: &Connection, gradient: Connection, decay: f64) -> Result<Connection> {
    if decay == 0.0 { Ok(gradient) } else { add_product(&gradient, param, decay, 1.0) }
}

/// `param·(1 − rate·decay)`: the parameter shrinks whatever the gradient is.
pub(super) fn decayed_param(param: Connection, rate: &Connection, decay: f64) -> Result<Connection> {
    if decay == 0.0 {
        return Ok(param);
    }
    multiply(&param, &op("subtract", [1.0.into(), (&multiply(rate, decay)?).into()])?)
}
