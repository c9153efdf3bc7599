//! Products and convolutions with weights in few bits, and in integers.

pub mod bytes;
pub mod conv;
pub mod gemm;
