//! Convolutions of row-major tensors.

pub mod direct;
