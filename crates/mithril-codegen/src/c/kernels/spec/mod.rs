//! What kernels compute: sizes, strides, elements, epilogues.

pub mod blocked_conv;
pub mod bytes;
pub mod conv;
pub mod epilogue;
pub mod gemm;
pub mod strides;
