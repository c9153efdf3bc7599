//! The passes and the pipeline from a logical model to a program.

pub mod c;
pub mod compiled;
pub mod fit;
pub mod ggml;
pub mod inspect;
pub mod lift;
pub mod partition;
pub mod passes;
pub mod pipeline;
pub mod positions;
pub mod python;
pub mod rewrite;
pub mod segments;
pub mod training;
