//! Models on ggml: plans of calls, with steps of the reference interpreter between them where ggml lacks an op.
//!
//! [`program`] makes a function for each choice of sizes, [`places`] says where its values lie, [`pack`] turns weights
//! into the types in which ggml keeps them, and [`call`] runs the steps.

mod borrowed;
mod budget;
pub mod call;
mod convert;
mod custom;
pub mod function;
mod instances;
pub mod pack;
mod places;
pub mod program;
mod repacked;

pub use borrowed::{Blocks, BorrowedWeights};
pub use budget::Budget;
pub use function::{Function, Needs};
pub use mithril_compile::ggml::Element;
pub use mithril_ggml::{Device, bytes, dequantize, devices, instructions, quantize, version};
pub use pack::{Decision, Packed};
pub use program::{Options, Program, Quantize, Specialized};
