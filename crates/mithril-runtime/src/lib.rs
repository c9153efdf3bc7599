//! Files, processes and executables: the only crate with unsafe code.
//!
//! So far it holds [`interpreter`], which runs compiled models on the reference evaluations without any tool chain,
//! [`backend`], which runs them on a backend that a user wrote, and [`weights`], which reads and writes checkpoints.

pub mod backend;
pub mod interpreter;
pub mod weights;
