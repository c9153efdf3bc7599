//! Files, processes and executables: the only crate with unsafe code.
//!
//! So far it holds [`interpreter`], which runs compiled models on the reference evaluations without any tool chain.

pub mod interpreter;
