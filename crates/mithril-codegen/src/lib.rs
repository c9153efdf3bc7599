//! Typed graph to source text, one module per target family. Pure: no files, no processes, no environment.

mod affine;
pub mod c;
pub mod ggml;
pub mod ids;
pub mod python;
