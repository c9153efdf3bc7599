//! Writing layers as expressions.

use mithril_ir::{Lit, Result};

use crate::connection::{Arg, Connection};
use crate::init::Init;
use crate::key::{IOKey, Size};
use crate::model::Model;

/// An op on connections and literals.
pub(crate) fn op<const N: usize>(name: &str, args: [Arg; N]) -> Result<Connection> {
    Connection::op(name, args.into(), Vec::new())
}

/// A parameter of the layer.
pub(crate) fn parameter(name: &str, shape: impl IntoIterator<Item = Size>, init: Init) -> Connection {
    Connection::input(IOKey::new(name).shape(shape).trainable(true).init(init))
}

/// An input of the layer.
pub(crate) fn input(name: &str) -> Connection {
    Connection::input(IOKey::new(name))
}

/// An input that may be left out.
pub(crate) fn optional(name: &str, default: impl Into<Lit>) -> Connection {
    Connection::input(IOKey::new(name).value(default))
}

/// The size of an axis.
pub(crate) fn size(x: &Connection, axis: i64) -> Result<Connection> {
    x.shape()?.item(axis)
}

/// `[a, b, ...]` as an argument.
pub(crate) fn tuple<const N: usize>(items: [Arg; N]) -> Arg {
    Arg::List(items.into())
}

/// Equal parts along an axis.
pub(crate) fn split(x: &Connection, parts: i64, axis: i64) -> Result<Vec<Connection>> {
    Connection::op_outputs("split", vec![x.into(), parts.into(), axis.into()], Vec::new())
}

/// A layer by name, with the name that its part gets.
pub(crate) fn layer(class: &str, name: &str, args: Vec<Lit>, named: Vec<(&str, Lit)>) -> Result<Model> {
    super::build(class, args, named)?.named(name)
}

/// An op with parameters of its own as a part called `name`.
pub(crate) fn call(model: &Model, x: &Connection) -> Result<Connection> {
    model.call([x])
}
