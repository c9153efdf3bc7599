//! What the ops of ONNX become: one entry of a table for each, in files by family.
//!
//! An entry is a function of a [`Use`], which gives inputs, attributes and the version of the op, and enters ops of
//! Mithril with `op!(u, "relu", x)`. It returns the outputs in order. A use that has no counterpart is
//! [`Use::refuse`]d, with the reason: all reasons of a file are reported together.

mod attention;
mod convolution;
mod create;
mod elementwise;
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
mod resize;

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
];

/// The conversion of an op of that domain.
pub fn find(domain: &str, op: &str) -> Option<Convert> {
    let tables = match domain {
        "" => DEFAULT,
        "com.microsoft" => &[microsoft::OPS],
        _ => return None,
    };
    tables.iter().flat_map(|table| table.iter()).find(|(name, _)| *name == op).map(|(_, convert)| *convert)
}

/// One output.
fn one(v: ValueId) -> Result<Vec<Value>> {
    Ok(vec![Value::Graph(v)])
}
