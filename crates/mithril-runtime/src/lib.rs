//! Files, processes and executables: the only crate with unsafe code.
//!
//! It holds [`interpreter`], which runs compiled models on the reference evaluations without any tool chain, [`c`],
//! which compiles, loads and calls generated C, [`backend`], which runs models on a backend that a user wrote, and
//! [`weights`], which reads and writes checkpoints.

pub mod backend;
pub mod c;
pub mod interpreter;
pub mod weights;
