//! Products and convolutions with quantized weights, and in integers.

pub mod bytes;
pub mod conv;
mod conv_tiled;
pub mod gemm;
