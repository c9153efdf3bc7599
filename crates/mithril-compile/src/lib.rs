//! The passes and the pipeline from a logical model to a program.

pub mod passes;
pub mod pipeline;
pub mod rewrite;
