//! The passes: functions from a graph to a new graph, each in a file of its own.

pub mod concrete;
pub mod differentiate;
pub mod fold;
pub mod legalize;
pub mod merge;
pub mod precision;
pub mod prune;
pub mod recompute;
pub mod simplify;
