//! The C target: typed graphs to one file of C11 and a header.
//!
//! A compiler of its own, whose folders are its stages:
//!
//! | folder | what it holds |
//! |---|---|
//! | `lower.rs` | graph → program: every node becomes loop nests over buffers, or calls of helpers of the prelude |
//! | `ir` | programs of two levels, `LoopProgram` and `KernelProgram`: buffers, steps, kernels, layouts; their text form; the statements of the driver function |
//! | `analysis` | affine accesses, contractions, convolutions, independence of batch elements, dependences, costs |
//! | `passes` | the passes, from fusion to memory planning; [`pipeline`] lists them in order |
//! | `select` | contractions become kernels: products, convolutions, weight gradients, im2col, quantized weights, epilogues |
//! | `kernels` | the kernels, a folder for each family, with their templates of C |
//! | `verify` | checks the program after each pass (in debug builds and tests), and the driver function (always) |
//! | `syntax` | C as text: expressions, reductions, names, comments, line breaks |
//! | `emit` | the file: a function per step, the driver function, the header, comments for readers |
//! | `prelude` | helpers of the generated code |
//! | `flags.rs` | flags of the C compiler |
//!
//! A file imports files of its own folder and of folders before it, never in a circle; `tests/suite/layers.rs` of
//! `mithril-testing` checks that.

mod analysis;
pub mod batch;
mod emit;
mod flags;
pub mod ir;
pub mod kernels;
mod lower;
mod options;
mod passes;
pub mod pipeline;
pub mod prelude;
mod request;
mod select;
mod source;
mod syntax;
mod target;
mod verify;

pub use analysis::cost::Cost;
pub use emit::units::units;
pub use flags::FLAGS;
pub(crate) use lower::{arguments, sizes};
pub use lower::{can_lower, is_fixed};
pub use options::{OptionDef, OptionKind, Options, Quantize, Value};
pub use request::{Mesh, Request};
pub use select::decision::{Decision, Matrix, Reason};
pub use select::quantize::{find_all, matches};
pub use source::{Source, TensorSpec, block, emit};
pub use syntax::template::c_type;
