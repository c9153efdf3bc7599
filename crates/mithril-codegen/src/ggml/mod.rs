//! Typed graphs for ggml: a plan of calls of its functions, and of what the reference interpreter does between them.
//!
//! An op definition has its call in ggml (`Lowering.ggml`) as text; [`parse`] makes a tree of it, [`functions`] knows what ggml
//! asserts and returns, and [`plan`] is what the runtime follows. Nothing here calls ggml.

mod donation;
mod emit;
mod fold_batch_norm;
pub mod functions;
mod lower;
mod parallel_axis;
pub mod parse;
pub mod plan;
mod prepack;
mod schedule;
mod shapes;
mod types;
mod views;

pub use lower::{Choice, Options, can_lower, plan};
pub use types::{DIMENSIONS, Element, Type};
