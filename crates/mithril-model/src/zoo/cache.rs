//! What decoders share that keep the keys and values of earlier tokens.
//!
//! Such a model has, beside its tokens, the inputs `position` (number of tokens in the cache), `padding` (for each text
//! the number of tokens at its left that are none) and, for each layer, `past_key_0` and `past_value_0` `[batch, heads,
//! capacity, features]`; the caches with the new tokens in them are the outputs `key_0` and `value_0`. Sizes that change
//! from call to call are declared as symbols, so that one program serves prompt and continuation.

use std::collections::BTreeMap;

use mithril_ir::op::{Attr, DefaultLit};
use mithril_ir::{DType, Lit, Result, Role};

use crate::connection::Connection;
use crate::key::{IOKey, Size};
use crate::layers::expr::{op, size};
use crate::layers::{LayerArg, arg};
use crate::model::Model;

pub(super) const CACHE: LayerArg = arg(
    "cache",
    Attr::Bool,
    DefaultLit::Bool(false),
    "Whether keys and values of earlier tokens are kept. There are then the inputs `position`, how many tokens came \
     before; `padding` `[batch]`, how many of the first tokens of each text are none; and for each layer \
     `past_key_0` and `past_value_0` `[batch, heads, capacity, features]`. Further outputs `key_0` and `value_0` are \
     the same with the new tokens in their places.",
);
pub(super) const LAST_ONLY: LayerArg = arg(
    "last_only",
    Attr::Bool,
    DefaultLit::Bool(false),
    "Whether only the logits of the last token are computed.",
);

// --- parts with many inputs --------------------------------------------------------------------------------

/// What a model that is being written knows by name; what it does not know yet becomes an input of it.
#[derive(Debug, Default)]
pub(super) struct Scope(BTreeMap<String, Connection>);

impl Scope {
    /// What is called so.
    pub fn get(&mut self, name: &str) -> Connection {
        let known = self.0.entry(name.to_owned());
        known.or_insert_with(|| Connection::input(IOKey::new(name).trainable(false))).clone()
    }
    /// Gives a connection a name.
    pub fn set(&mut self, name: &str, connection: Connection) {
        self.0.insert(name.to_owned(), connection);
    }
    /// Calls a part with what is called as its inputs are; its outputs and their names.
    pub fn call(&mut self, part: &Model) -> Result<Vec<(String, Connection)>> {
        self.call_numbered(part, |name| name.to_owned())
    }
    fn call_numbered(
        &mut self,
        part: &Model,
        here: impl Fn(&str) -> String,
    ) -> Result<Vec<(String, Connection)>> {
        let inputs = part.inputs_of(Role::Data);
        let named = inputs.iter().map(|name| (&**name, self.get(&here(name)).into())).collect();
        let outputs = part.call_with(Vec::new(), named, None)?;
        Ok(part.outputs().iter().map(|name| here(name)).zip(outputs).collect())
    }
}

/// Blocks one behind the other, called `0`, `1` …, each with a cache of its own.
pub(super) fn stack(blocks: i64, block: impl Fn() -> Result<Model>) -> Result<Model> {
    let block = block()?;
    stack_behind(&block, &block, blocks, "")
}

/// As [`stack`], with a first block that is different; its output `shared` is an input of the others.
pub(super) fn stack_behind(first: &Model, other: &Model, blocks: i64, shared: &str) -> Result<Model> {
    let mut scope = Scope::default();
    let mut outputs = Vec::new();
    for i in 0..blocks {
        let block = if i == 0 { first } else { other };
        let own = |name: &str| match name {
            "past_key" | "past_value" | "key" | "value" | "memory_key" | "memory_value" => {
                format!("{name}_{i}")
            }
            _ => name.to_owned(),
        };
        for (name, value) in scope.call_numbered(&block.clone().named(i.to_string())?, own)? {
            match &*name {
                "output" => scope.set("input", value),
                name if name == shared => scope.set(name, value),
                _ => outputs.push((name, value)),
            }
        }
    }
    outputs.insert(0, ("output".to_owned(), scope.get("input")));
    Model::from_outputs(outputs)
}

// --- the cache ---------------------------------------------------------------------------------------------

/// Where the tokens of a call stand: the inputs `position` and `padding`.
pub(super) struct Places {
    slots: Connection,
    padding: Connection,
}

impl Places {
    /// Those of `tokens` `[batch, length]`.
    pub fn of(tokens: &Connection) -> Result<Self> {
        let input = |name: &str, shape: Vec<Size>| {
            Connection::input(IOKey::new(name).shape(shape).dtype(DType::I64).trainable(false))
        };
        let count = op("arange", [size(tokens, 1)?.into()])?;
        let slots = (&count + &input("position", vec![]))?;
        Ok(Self { slots, padding: input("padding", vec!["batch".into()]) })
    }
    /// `[batch, length]`: the place of each token in its text; that of padding is 0.
    pub fn positions(&self) -> Result<Connection> {
        let after = (&self.slots - &op("expand_dims", [(&self.padding).into(), 1.into()])?)?;
        op("maximum", [after.into(), 0.into()])
    }
    /// Gives the blocks that are called in `scope` their `slots` `[length]` and their `mask` `[batch, 1, length,
    /// capacity]`: a token sees the slots that hold no padding and nothing later.
    pub fn enter(&self, scope: &mut Scope) -> Result<()> {
        let keys = op("arange", [size(&scope.get("past_key_0"), 2)?.into()])?;
        let earlier =
            op("less_equal", [(&keys).into(), op("expand_dims", [(&self.slots).into(), 1.into()])?.into()])?;
        let padding = op("reshape", [(&self.padding).into(), Lit::from([-1, 1, 1, 1]).into()])?;
        let real = op("greater_equal", [keys.into(), padding.into()])?;
        scope.set("slots", self.slots.clone());
        scope.set("mask", op("logical_and", [earlier.into(), real.into()])?);
        Ok(())
    }
}

/// The input of tokens, `[batch, length]`.
pub(super) fn tokens() -> Connection {
    Connection::input(IOKey::new("input").shape(["batch", "length"]).dtype(DType::I64))
}

/// Keys and values of all tokens up to those of this call.
pub(super) struct Remembered {
    /// `[batch, heads, capacity, features]`
    pub key: Connection,
    /// `[batch, heads, capacity, features]`
    pub value: Connection,
    /// What a query sees of them.
    pub mask: Connection,
    /// Where the tokens of the call stand.
    pub slots: Connection,
}

impl Remembered {
    /// The inputs `past_key` and `past_value` of a block with those of its tokens, `[batch, heads, length, features]`,
    /// in their slots. `sizes` are the number of heads and of features.
    pub fn with(key: &Connection, value: &Connection, sizes: [i64; 2]) -> Result<Self> {
        let slots = Connection::input(IOKey::new("slots").shape([Size::Unknown]).dtype(DType::I64));
        let updated = |name: &str, new: &Connection| {
            let shape: [Size; 4] = ["batch".into(), sizes[0].into(), "capacity".into(), sizes[1].into()];
            let past = Connection::input(IOKey::new(name).shape(shape).trainable(false));
            op("index_copy", [past.into(), (&slots).into(), new.into(), 2.into()])
        };
        Ok(Self {
            key: updated("past_key", key)?,
            value: updated("past_value", value)?,
            mask: Connection::input(IOKey::new("mask").shape(vec![Size::Unknown; 4]).dtype(DType::Bool)),
            slots,
        })
    }
}
