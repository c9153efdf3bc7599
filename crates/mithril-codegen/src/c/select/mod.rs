//! Kernel selection: which nests become which kernels, and in which of their ways.

pub mod context;
pub mod contractions;
pub mod convolution;
pub mod decision;
pub mod epilogue;
pub mod im2col;
pub mod product;
pub mod quantize;
pub mod separate;
pub mod weight_gradient;
