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
//! assert_eq!(call, "mithril_gemm_128x512x784(thread, threads, a, packed, out, bias, own);");
//! assert!(library.source().contains("void mithril_gemm_128x512x784("));
//! ```
//!
//! # How the emitter runs a kernel
//! - Every call takes a thread's number and the number of threads and does that thread's part: *all* threads make
//!   the call. A kernel of several [`phases`](Kernel::phases) needs a barrier between two phases, and as every
//!   kernel one after the last before its output is read.
//! - [`Argument::Shared`] is memory of [`shared_bytes`](Kernel::shared_bytes) that all threads see;
//!   [`Argument::Own`] is memory of [`own_bytes`](Kernel::own_bytes) for each thread. Both are aligned to 64, hold
//!   nothing between kernels, and may be re-used as soon as the kernel is over.
//! - [`pack`](Kernel::pack), where there is one, brings the weights into the order in which the kernel reads them:
//!   it is made once (`P_pack`) and writes [`packed_bytes`](Kernel::packed_bytes) at [`Argument::Packed`].
//! - Outputs must not overlap inputs, operands or scratch memory.
//!
//! # Candidates
//! A kernel that can be computed in several ways makes a [`Question`] of its specification and the names of the
//! candidates: `library.ask` has them measured where somebody measures (`autotune` of the runtime), `library.chosen`
//! says which to take, by default the one that is estimated to be the fastest. Nothing else is to be done for a new
//! candidate.

use mithril_ir::DType;

mod blocked;
mod bytes;
mod choices;
mod conv;
mod correlation;
mod epilogue;
mod gemm;
mod library;
mod margins;
mod quantized;
mod quantized_conv;
mod rows;
mod vector_product;
mod winograd;
mod winograd_lines;

pub use blocked::{Blocked, Image, Places};
pub use bytes::{AsBytes, InBytes};
pub use choices::{Choices, Question};
pub use conv::{Algorithm, Conv};
pub use correlation::Correlation;
pub use epilogue::{Epilogue, Operand, is_vector_function};
pub use gemm::{Gemm, Packing};
pub use library::{Argument, Call, First, Kernel, Library};
pub use margins::Margins;
pub use quantized::{GROUP, MOST_TERMS, Scheme};

/// What the kernels are shaped for. The text stays correct on any other processor, since vectors are those of GCC
/// and Clang, which split what the machine does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// Lanes of a vector of `float`: 16, 8, 4, or 1 for plain C.
    pub lanes: usize,
    /// Vector registers: how many accumulators fit.
    pub registers: usize,
    /// Bytes of the second-level cache that one thread may fill.
    pub cache: usize,
    /// How many threads are expected; any number works, this one is balanced for.
    pub threads: usize,
    /// Whether it multiplies and adds up bytes faster than floats: it has an instruction for four of them.
    pub has_bytes: bool,
}

impl Target {
    /// A target of this many lanes with this many vector registers.
    pub const fn new(lanes: usize, registers: usize) -> Self {
        Self { lanes, registers, cache: 512 << 10, threads: 2, has_bytes: true }
    }

    /// x86-64 with AVX-512 and VNNI.
    pub const fn avx512() -> Self {
        Self { cache: 1 << 20, ..Self::new(16, 32) }
    }

    /// x86-64 with AVX2 and FMA, mostly without AVX-VNNI.
    pub const fn avx2() -> Self {
        Self { has_bytes: false, ..Self::new(8, 16) }
    }

    /// 64-bit ARM with dot products.
    pub const fn neon() -> Self {
        Self::new(4, 32)
    }

    /// Plain C without vectors.
    pub const fn plain() -> Self {
        Self::new(1, 16)
    }

    /// Lanes of a vector of this element.
    pub fn lanes_of(&self, element: Element) -> usize {
        match element {
            Element::F32 => self.lanes,
            Element::F64 => (self.lanes / 2).max(1),
        }
    }

    /// Rows of a micro-kernel that is two vectors wide: all registers but two for the vectors, one for the
    /// broadcast and one to spare.
    pub(crate) fn rows(&self) -> usize {
        (self.registers - 4) / 2
    }

    /// Vectors of sums that stay in registers beside eight of other things.
    pub(crate) fn accumulators(&self) -> usize {
        self.registers - 8
    }
}

/// What a kernel calculates with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Element {
    /// `float`.
    F32,
    /// `double`.
    F64,
}

impl Element {
    /// The C type.
    pub fn c(self) -> &'static str {
        match self {
            Self::F32 => "float",
            Self::F64 => "double",
        }
    }

    /// That of a dtype.
    pub fn of(dtype: DType) -> Option<Self> {
        match dtype {
            DType::F32 => Some(Self::F32),
            DType::F64 => Some(Self::F64),
            _ => None,
        }
    }

    /// The suffix of functions for this element.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
        }
    }

    /// Bytes of one.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F64 => 8,
        }
    }
}

/// How the elements of a factor are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Stored {
    /// As they are calculated with.
    #[default]
    Same,
    /// As float16.
    F16,
    /// As bfloat16.
    BF16,
}

impl Stored {
    /// The C type.
    fn c(self, element: Element) -> &'static str {
        if self == Self::Same { element.c() } else { "uint16_t" }
    }

    /// What stands before an element that is read: the function of the prelude that makes a `float` of it.
    fn open(self) -> &'static str {
        match self {
            Self::Same => "",
            Self::F16 => "mithril_from_f16(",
            Self::BF16 => "mithril_from_bf16(",
        }
    }

    /// What stands behind it.
    fn close(self) -> &'static str {
        if self == Self::Same { "" } else { ")" }
    }

    /// What functions that read it have in their names.
    fn mark(self) -> &'static str {
        match self {
            Self::Same => "",
            Self::F16 => "f16_",
            Self::BF16 => "bf16_",
        }
    }
}

/// Where the elements of a batch of matrices lie, in elements.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Strides {
    /// One stride for each batch axis; 0 where all of the axis share the matrix.
    pub batch: Vec<usize>,
    /// From one row to the next.
    pub row: usize,
    /// From one column to the next.
    pub column: usize,
}

/// The C expression of a batch's offset: `batch` counts through axes of these sizes.
fn batch_offset(sizes: &[usize], strides: &[usize]) -> String {
    let mut terms = Vec::new();
    let mut inner = 1;
    for (axis, (&size, &stride)) in sizes.iter().zip(strides).enumerate().rev() {
        if stride != 0 && size > 1 {
            let index = match (inner, axis) {
                (1, 0) => "batch".to_owned(),
                (1, _) => format!("batch % {size}"),
                (inner, 0) => format!("batch / {inner}"),
                (inner, _) => format!("batch / {inner} % {size}"),
            };
            terms.push(format!("{index} * {stride}"));
        }
        inner *= size;
    }
    if terms.is_empty() { "0".to_owned() } else { terms.join(" + ") }
}
