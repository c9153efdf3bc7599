//! Products and convolutions with quantized weights, and in integers.

pub mod bytes;
pub mod conv;
pub mod gemm;
