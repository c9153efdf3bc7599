//! Convolutions of row-major tensors.

mod depth;
pub mod direct;
