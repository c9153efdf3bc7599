//! What language models are made of.

use mithril_ir::{DType, Lit, Result, ops};

use crate::connection::{Arg, Connection};
use crate::init::Init;
use crate::key::{IOKey, Size};
use crate::layers::LayerArgs;
use crate::layers::expr::op;
use crate::model::Model;

/// Tokens, `[batch, length]`.
pub(super) fn tokens() -> Connection {
    Connection::input(IOKey::new("input").shape(vec![Size::Unknown; 2]).dtype(DType::I64))
}

/// Features of tokens, `[batch, length, dims]`.
pub(super) fn features(dims: i64) -> Connection {
    Connection::input(IOKey::new("input").shape([Size::Unknown, Size::Unknown, dims.into()]))
}

/// The last token of each text alone, its axis kept.
pub(super) fn last(x: &Connection) -> Result<Connection> {
    let bounds = |token: Lit| Arg::Lit(Lit::tuple([Lit::None, token]));
    op("slice", [x.into(), bounds((-1).into()), bounds(Lit::None)])
}

/// Heads before tokens, or tokens before heads.
pub(super) fn turned(x: &Connection) -> Result<Connection> {
    op("transpose", [x.into(), Lit::from([0, 2, 1, 3]).into()])
}

/// A number of blocks.
pub(super) fn depth(a: &LayerArgs<'_>, name: &str) -> Result<i64> {
    let n = a.count(name)?;
    if n <= 10_000 { Ok(n) } else { Err(a.bad(name, "at most 10000")) }
}

/// An affine layer `[outputs, inputs]`.
pub(super) fn linear(name: &str, [outputs, inputs]: [i64; 2], bias: bool, init: Init) -> Result<Model> {
    let leaf = Model::leaf(definition("linear")?, 0).of_class("Linear");
    let leaf = leaf.learned("weight", [outputs.into(), inputs.into()], init)?;
    let leaf = if bias {
        leaf.learned("bias", [outputs.into()], Init::Zeros)?
    } else {
        leaf.setting("bias", Lit::None)?
    };
    leaf.named(name)
}

/// A table to look vectors up in.
pub(super) fn table(name: &str, [rows, dims]: [i64; 2], init: Init) -> Result<Model> {
    let leaf =
        Model::leaf(definition("embedding")?, 0).of_class("Embedding").port_called("indices", "input")?;
    leaf.setting("padding_idx", Lit::None)?.learned("weight", [rows.into(), dims.into()], init)?.named(name)
}

fn definition(name: &str) -> Result<&'static mithril_ir::op::OpDef> {
    ops::get(name)
}
