//! Matrix products.

pub mod packed;
pub mod vector;
