//! Kernels: the few shapes of work where a plain loop nest is far from what the processor can do.
//!
//! A kernel is made from a *specification* (sizes, strides, element, epilogue), never from an operation's name, and
//! is plain text: no files, no processes. All kernels of one C file go through one [`Library`], which keeps a
//! function once however many layers use it:
//!
//! ```
//! use mithril_codegen::c::kernels::{Argument, Element, Epilogue, Gemm, Library, Operand, Strides, Target};
//!
//! // y[128, 512] = max(x[128, 784] · w[784, 512] + bias, 0), where w is stored as [512, 784].
//! let mut library = Library::new(Target::avx512());
//! let mut gemm = Gemm::new(Element::F32, 128, 512, 784);
//! gemm.b = Strides { batch: vec![], row: 1, column: 784 };
//! gemm.epilogue = Epilogue {
//!     operands: vec![Operand::per_column("float")],
//!     expression: "mithril_relu({acc} + {0})".to_owned(),
//!     vectors: None,
//! };
//! let kernel = gemm.build(&mut library);
//! assert_eq!(kernel.phases.len(), 1);
//! let call = kernel.phases[0][0].text(|argument| match argument {
//!     Argument::Thread => "thread".to_owned(),
//!     Argument::Threads => "threads".to_owned(),
//!     Argument::Operand(0) => "bias".to_owned(),
//!     other => format!("{other:?}").to_lowercase(),
//! });
//! assert_eq!(call, "mithril_gemm_128x512x784(thread, threads, a, packed, out, bias, scratch);");
//! assert!(library.source().contains("void mithril_gemm_128x512x784("));
//! ```
//!
//! # How the emitter runs a kernel
//! - Every call takes a thread's number and the number of threads and does that thread's part: *all* threads make
//!   the call. A kernel of several [`phases`](Kernel::phases) needs a barrier between two phases, and as every
//!   kernel one after the last before its output is read.
//! - [`Argument::Shared`] is memory of [`shared_bytes`](Kernel::shared_bytes) that all threads see;
//!   [`Argument::Scratch`] is memory of [`scratch_bytes`](Kernel::scratch_bytes) for each thread. Both are aligned to 64, hold
//!   nothing between kernels, and may be re-used as soon as the kernel is over.
//! - [`pack`](Kernel::pack), where there is one, brings the weights into the order in which the kernel reads them:
//!   it is made once (`P_pack`) and writes [`packed_bytes`](Kernel::packed_bytes) at [`Argument::Packed`].
//! - Outputs must not overlap inputs, operands or scratch memory.
//!
//! # Candidates
//! A kernel that can be computed in several ways makes a [`TuningTask`] of its specification and the names of the
//! candidates: `library.add_tuning_task` has them measured where somebody measures (`autotune` of the runtime), `library.chosen`
//! says which to take, by default the one that is estimated to be the fastest. Nothing else is to be done for a new
//! candidate.

pub mod blocked_conv;
pub mod common;
pub mod conv;
pub mod gemm;
pub mod quantized;
pub mod spec;
pub mod weight_gradient;
pub mod winograd;

pub use blocked_conv::halo::Halo;
pub use common::library::{Library, is_vector_function};
pub use common::tuning::TuningTask;
pub use quantized::gemm::{GROUP, MOST_TERMS};
pub use spec::blocked_conv::{Blocked, Image, Places};
pub use spec::bytes::{AsBytes, InBytes};
pub use spec::conv::{Algorithm, Conv, Depth};
pub use spec::epilogue::{Epilogue, Operand};
pub use spec::gemm::{Gemm, Packing};
pub use spec::strides::{Stored, Strides};
pub use weight_gradient::correlation::Correlation;
pub use weight_gradient::grouped::GroupedCorrelation;

pub use crate::c::ir::kernel::{Argument, Call, Kernel, PanelStart};
pub use crate::c::options::Scheme;
pub use crate::c::request::Choices;
pub use crate::c::target::{Element, Target, TileFeatures};
