//! Typed graphs for ggml: a plan of calls of its functions, and of what the reference interpreter does between them.
//!
//! A row says its call in ggml (`Spell.ggml`), as text; [`parse`] makes a tree of it, [`functions`] knows what ggml
//! asserts and returns, and [`plan`] is what the runtime follows. Nothing here calls ggml.

pub mod functions;
pub mod parse;
pub mod plan;
mod shapes;
mod types;

pub use types::{DIMENSIONS, Element, Type};
