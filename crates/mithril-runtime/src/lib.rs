//! Files, processes and executables: the only crate with unsafe code.
//!
//! It holds [`interpreter`], which runs compiled models on the reference evaluations without any tool chain, [`c`],
//! which compiles, loads and calls generated C, [`ggml`], which runs models on ggml, [`backend`], which runs models on a backend that a user wrote, and
//! [`weights`], which reads and writes checkpoints.

pub mod backend;
pub mod c;
pub mod ggml;
pub mod interpreter;
mod pages;
mod specialised;
pub mod weights;
