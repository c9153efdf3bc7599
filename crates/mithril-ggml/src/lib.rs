//! ggml behind an interface that cannot abort the process.
//!
//! [`Context`] puts operations together to a [`Graph`], after everything was checked that ggml would assert;
//! [`Workers`] compute it; [`quantize`] and [`dequantize`] turn rows of floats into the types of ggml and back, and
//! [`repack`](repack()) interleaves rows for its fastest products.

mod context;
mod custom;
mod ffi;
mod graph;
mod layout;
mod loops;
mod operations;
mod processor;
mod quantize;
mod repack;
mod workers;

pub use context::{Argument, Context, TensorId};
pub use custom::{Custom, Elements, ElementsMut};
pub use graph::Graph;
pub use processor::{Device, devices, instructions, ready, version};
pub use quantize::{bytes, dequantize, quantize};
pub use repack::{can_repack, repack};
pub use workers::{Lease, Workers};

#[cfg(test)]
mod tests;
