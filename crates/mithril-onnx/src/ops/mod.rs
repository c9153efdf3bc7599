//! What the ops of ONNX become: one entry of a table for each, in files by family.
//!
//! An entry is a function of a [`Use`], which gives inputs, attributes and the version of the op, and enters ops of
//! Mithril with `op!(u, "relu", x)`. It returns the outputs in order. A use that has no counterpart is
//! [`Use::refuse`]d, with the reason: all reasons of a file are reported together.

mod attention;
mod convolution;
mod create;
mod elementwise;
mod fused_attention;
mod indexing;
mod linear;
mod loss;
mod microsoft;
mod movement;
mod normalization;
mod pooling;
mod quantization;
mod recurrent;
mod reduction;
mod regions;
mod resize;
mod signal;
mod state;
mod vectors;

use mithril_ir::{Result, ValueId};

use crate::context::Value;
use crate::node::Use;

/// Converts a use of an op.
pub type Convert = fn(&mut Use<'_>) -> Result<Vec<Value>>;

/// The ops of a family.
pub type Table = &'static [(&'static str, Convert)];

/// Those of the default domain.
static DEFAULT: &[Table] = &[
    elementwise::OPS,
    reduction::OPS,
    linear::OPS,
    convolution::OPS,
    pooling::OPS,
    normalization::OPS,
    movement::OPS,
    indexing::OPS,
    create::OPS,
    resize::OPS,
    loss::OPS,
    recurrent::OPS,
    attention::OPS,
    quantization::OPS,
    regions::OPS,
    signal::OPS,
    state::OPS,
    vectors::OPS,
];

/// Those that ONNX Runtime adds.
static MICROSOFT: &[Table] = &[microsoft::OPS, fused_attention::OPS];

/// Those of classical machine learning.
static LEARNING: &[Table] = &[vectors::LEARNING];

/// The conversion of an op of that domain.
pub fn find(domain: &str, op: &str) -> Option<Convert> {
    let tables = match domain {
        "" => DEFAULT,
        "com.microsoft" => MICROSOFT,
        "ai.onnx.ml" => LEARNING,
        _ => return None,
    };
    tables.iter().flat_map(|table| table.iter()).find(|(name, _)| *name == op).map(|(_, convert)| *convert)
}

/// Every op that is read, with its domain.
pub fn all() -> impl Iterator<Item = (&'static str, &'static str)> {
    let named = |domain: &'static str, tables: &'static [Table]| {
        tables.iter().flat_map(|table| table.iter()).map(move |(name, _)| (domain, *name))
    };
    named("", DEFAULT).chain(named("com.microsoft", MICROSOFT)).chain(named("ai.onnx.ml", LEARNING))
}

/// One output.
fn one(v: ValueId) -> Result<Vec<Value>> {
    Ok(vec![Value::Graph(v)])
}
