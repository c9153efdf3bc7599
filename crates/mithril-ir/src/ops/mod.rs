//! All ops, one family per file. A family file opens with its list; [`FAMILIES`] joins the lists.

pub mod activation;
pub mod adaptive;
pub mod arithmetic;
pub mod attention;
pub mod collective;
pub mod compare;
pub mod complex;
pub mod conv;
pub mod counting;
pub mod create;
pub mod decompose;
pub mod einsum;
pub mod elementwise;
pub mod factor;
mod foreach;
pub mod function;
pub mod getitem;
mod ggml;
pub mod gradient;
pub mod host;
pub mod image;
pub mod index;
pub mod joining;
pub mod least_squares;
pub mod linalg;
pub mod loss;
pub mod missing;
pub mod movement;
pub mod norm;
mod onnx;
pub mod order;
pub mod pool;
pub mod products;
pub mod quantized;
pub mod random;
pub mod recurrent;
pub mod reduce;
pub mod sampling;
pub mod scan;
pub mod scatter;
pub mod signal;
pub mod signatures;
pub mod slicing;
pub mod softmax;
pub mod sort;
pub mod statistics;
#[cfg(test)]
pub(crate) mod trial;
pub mod triangle;
pub mod views;
pub mod window;

use std::sync::LazyLock;

use rustc_hash::FxHashMap;

use crate::error::{Error, Result};
use crate::op::OpDef;

/// The families in the order of the documentation: name and ops.
pub static FAMILIES: &[(&str, &[&OpDef])] = &[
    ("elementwise", elementwise::OPS),
    ("function", function::OPS),
    ("gradient", gradient::OPS),
    ("compare", compare::OPS),
    ("arithmetic", arithmetic::OPS),
    ("activation", activation::OPS),
    ("softmax", softmax::OPS),
    ("movement", movement::OPS),
    ("slicing", slicing::OPS),
    ("joining", joining::OPS),
    ("views", views::OPS),
    ("index", index::OPS),
    ("scatter", scatter::OPS),
    ("create", create::OPS),
    ("triangle", triangle::OPS),
    ("random", random::OPS),
    ("linalg", linalg::OPS),
    ("products", products::OPS),
    ("einsum", einsum::OPS),
    ("decompose", decompose::OPS),
    ("factor", factor::OPS),
    ("least_squares", least_squares::OPS),
    ("signal", signal::OPS),
    ("complex", complex::OPS),
    ("reduce", reduce::OPS),
    ("statistics", statistics::OPS),
    ("scan", scan::OPS),
    ("recurrent", recurrent::OPS),
    ("sort", sort::OPS),
    ("missing", missing::OPS),
    ("counting", counting::OPS),
    ("conv", conv::OPS),
    ("pool", pool::OPS),
    ("adaptive", adaptive::OPS),
    ("norm", norm::OPS),
    ("attention", attention::OPS),
    ("image", image::OPS),
    ("sampling", sampling::OPS),
    ("loss", loss::OPS),
    ("order", order::OPS),
];

static BY_NAME: LazyLock<FxHashMap<&'static str, &'static OpDef>> = LazyLock::new(|| {
    let mut map = FxHashMap::default();
    for op in all()
        .chain([&host::HOST_CALL])
        .chain(collective::OPS.iter().copied())
        .chain(quantized::OPS.iter().copied())
    {
        for name in std::iter::once(&op.name).chain(op.aliases) {
            map.insert(*name, op);
        }
    }
    map
});

/// All ops in the order of the documentation.
pub fn all() -> impl Iterator<Item = &'static OpDef> {
    FAMILIES.iter().flat_map(|(_, ops)| ops.iter().copied())
}

/// The op of that name or alias.
pub fn find(name: &str) -> Option<&'static OpDef> {
    BY_NAME.get(name).copied()
}

/// The op of a name that comes from Mithril itself.
///
/// # Errors
/// If the registry does not have it, which is a bug.
pub fn get(name: &str) -> Result<&'static OpDef> {
    find(name).ok_or_else(|| Error::internal(format!("unknown op `{name}`")))
}
