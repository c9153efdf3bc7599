//! What the families of kernels share: the library of functions, micro-kernels, groups of rows, tiles, tuning.

pub mod library;
pub mod pad;
pub mod row_groups;
pub mod tiles;
pub mod tiling;
pub mod tuning;
