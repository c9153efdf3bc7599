//! Matrix products.

pub mod packed;
mod store;
pub mod vector;
