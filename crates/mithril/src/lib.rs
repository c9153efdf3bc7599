//! Define a model once, compile it for every target.
//!
//! This crate joins the others under one name; [`ir`] holds the ops and graphs, [`compile`] the passes.

pub use mithril_codegen as codegen;
pub use mithril_compile as compile;
pub use mithril_ir as ir;
pub use mithril_model as model;
