//! What the families of kernels share: the library of functions, micro-kernels, groups of rows, tuning.

pub mod library;
pub mod pad;
pub mod row_groups;
pub mod tiling;
pub mod tuning;
