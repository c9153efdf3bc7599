//! The passes: functions from a graph to a new graph, each in a file of its own.

pub mod cse;
pub mod dce;
pub mod differentiate;
pub mod fold_constants;
pub mod join_products;
pub mod join_slices;
pub mod legalize;
pub mod precision;
pub mod quantize;
pub mod raise;
pub mod recompute;
pub mod simplify;
mod slices;
pub mod specialize;
