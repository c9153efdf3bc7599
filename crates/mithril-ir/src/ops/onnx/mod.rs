//! Lowerings to ONNX that are more than a template. `mithril-onnx` `export/parse.rs` describes the grammar of the texts,
//! `export/forms.rs` the words in lower case.

mod arithmetic;
mod matrices;
mod movement;
mod norm;
mod windows;

pub(super) use arithmetic::*;
pub(super) use matrices::*;
pub(super) use movement::*;
pub(super) use norm::*;
pub(super) use windows::*;

use std::fmt::Write as _;

use crate::dim::{Dim, DimFactor};

/// Integers as an attribute or a constant.
fn list(items: impl IntoIterator<Item = i64>) -> String {
    format!("[{}]", items.into_iter().map(|n| n.to_string()).collect::<Vec<_>>().join(", "))
}

/// Sizes as a tensor of int64 with one axis.
fn sizes<'a>(dims: impl IntoIterator<Item = &'a Dim>) -> String {
    format!("list({})", dims.into_iter().map(size).collect::<Vec<_>>().join(", "))
}

/// A size as a tensor of int64 with one element.
fn size(dim: &Dim) -> String {
    let (terms, constant) = dim.parts();
    let mut parts = Vec::with_capacity(terms.len() + 1);
    for (factors, coefficient) in terms {
        let number = (*coefficient != 1).then(|| format!("[{coefficient}]"));
        let factors = factors.iter().map(|factor| match factor {
            DimFactor::Symbol(symbol) => {
                let mut text = String::from("symbol_");
                for byte in symbol.to_string().bytes() {
                    _ = write!(text, "{byte:02x}");
                }
                text + "()"
            }
            DimFactor::Div(a, b) => format!("quotient({}, {})", size(a), size(b)),
        });
        parts.push(nested("Mul", factors.chain(number)));
    }
    if constant != 0 || parts.is_empty() {
        parts.push(format!("[{constant}]"));
    }
    nested("Add", parts)
}

/// `Op(Op(a, b), c)`
fn nested(op: &str, parts: impl IntoIterator<Item = String>) -> String {
    parts.into_iter().reduce(|a, b| format!("{op}({a}, {b})")).unwrap_or_else(|| "[1]".into())
}
