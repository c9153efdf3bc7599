//! Winograd's algorithm for convolutions.

pub mod build;
pub mod transforms;
