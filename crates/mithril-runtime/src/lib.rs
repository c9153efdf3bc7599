//! Files, processes and executables: the only crate with unsafe code.
//!
//! It holds [`interpreter`], which runs compiled models on the reference evaluations without any tool chain, [`c`],
//! which compiles, loads and calls generated C, `ggml` (with the feature of that name), which runs
//! models on ggml, [`training`], which trains them, [`backend`], which runs models on a backend that a user wrote, and
//! [`weights`], which reads and writes checkpoints; [`onnx`] writes compiled models as files of ONNX; [`host_calls`] calls
//! functions with arrays of a host language, and [`recycled`] keeps the memory of their outputs for later calls.

pub mod backend;
pub mod c;
#[cfg(feature = "ggml")]
pub mod ggml;
pub mod host_calls;
pub mod interpreter;
pub mod onnx;
mod pages;
pub mod recycled;
mod specialized;
pub mod training;
pub mod weights;
