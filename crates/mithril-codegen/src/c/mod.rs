//! The C target: typed graphs to one file of C11 and a header.

pub mod kernels;
pub mod prelude;
