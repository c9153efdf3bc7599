//! Tensor expressions: how an op computes each element, from which loops are generated (target C).
//!
//! An op definition describes an element of each output as an [`Expr`] over the coordinates of the output:
//!
//! ```
//! use mithril_ir::loops::{ReduceOp, LoopsFn};
//! use mithril_ir::rules::Attrs;
//!
//! // output[i, j] = input[j, i]
//! let transposed: LoopsFn = |cx| Ok(vec![cx.output(0, |i| cx.load(0, [i[1].clone(), i[0].clone()]))]);
//! // output[i] = Σ_k input[i, k]
//! let summed: LoopsFn = |cx| {
//!     let n = cx.shape(0)[1];
//!     Ok(vec![cx.output(0, |i| cx.reduce(ReduceOp::Sum, &[n], |k| cx.load(0, [i[0].clone(), k[0].clone()])))])
//! };
//! ```
//!
//! Ops to learn from: `transpose` (movement), `sum` (a reduction), `matmul` (a contraction), `add` (arithmetic).
//!
//! - **Sizes are numbers.** [`LoopCx::shape`], [`LoopCx::out_shape`]; literals by [`crate::rules::Attrs`] as everywhere.
//! - **Indices** ([`Index`]) are added, subtracted, multiplied by a number, divided ([`Index::floor_div`]), and may be
//!   read from a tensor ([`LoopCx::value`]); a read index is checked when running. [`flat`] and [`unflat`] go between
//!   coordinates and row-major positions.
//! - **Padding** uses [`Expr::within`]: `cx.load(0, [at]).within(vec![Within::new(at, 0, n)], cx.number(0.0, dtype))`.
//! - **Dtypes**: `cx.load` returns the stored value (float16 and bfloat16 as float32); operands of arithmetic have one dtype,
//!   [`Expr::cast`] converts. A sum of int32 in int64 is a sum of `cx.load(..).cast(DType::I64)`. The value of an output
//!   has its dtype (rounding to half precision is done by the store).
//! - **Several steps**: [`LoopCx::temporary`] stores an expression in a temporary tensor, which can be loaded from like an
//!   input; [`LoopCx::call`] calls a C function of the prelude, whose outputs are such tensors too.
//! - **An op without `loops`** but with a lowering to C is elementwise: its tensor inputs broadcast to the output, and the
//!   template is applied to their elements ([`LoopCx::elementwise`]).
//!
//! # Templates of C
//!
//! In `Lowering.c` and [`Expr::Apply`], after `{0}`, `{1}`, `{name}` (the value of an input: an element in arithmetic
//! dtype, a literal number as a C constant of the dtype of the first tensor operand; brackets are put where needed):
//!
//! | placeholder | stands for | for float, double, int32 |
//! |---|---|---|
//! | `{t}` | short name of the dtype in which the operands are computed (that of the first tensor) | `f32`, `f64`, `i32` |
//! | `{T}` | its C type | `float`, `double`, `int32_t` |
//! | `{f}` | the suffix of libm: `exp{f}({0})` | `f`, nothing, nothing |
//! | `{to}` | as `{t}`, of the output as stored (`f16` too) | |
//! | `{TO}` | C type in which the output is computed | |
//! | `{fast}`, `{slow}` | turn `mithril_sin{fast}_{t}({slow}{0})` into the fast path, in loops that have a slow path too | `_fast` and `&slow, `, or nothing; nothing; nothing |
//!
//! `{{` and `}}` are braces. The result of a function ([`crate::lowering::LoweringRule::Function`]) is a template too. In
//! integer dtypes the value is converted to the output's C type; signed overflow is undefined in C, so integer templates
//! compute in unsigned types. Functions named `mithril_…` come from the C prelude and are emitted with their dependencies.
//!
//! # Calls
//!
//! A C function of the prelude is `void name(…)`, or `int name(…)` if it can fail, with its arguments in order: inputs are
//! `const T *restrict`, outputs `T *restrict` (T is the storage type: `uint16_t` for 16-bit floats, `uint8_t` for bool), integers
//! `int64_t`, numbers `double`, lists `const int64_t *`; last, if `scratch` is not 0, `void *restrict scratch` of that many
//! bytes, aligned to 64. Collectives take the mesh first, as `const mithril_mesh *` and the number of the axis. An `int`
//! result is 0 or one of the codes of [`ERRORS`].
//!
//! A function whose parameters begin with `int64_t thread, int64_t threads` is called by all threads in parallel, each with
//! its own scratch memory, and computes the part of that thread; the result must not depend on the number of threads. Other
//! functions are called by one thread.

mod context;
mod expr;
mod index;

pub use context::{LoopArg, LoopCx};
pub use expr::{Binary, Expr, ReduceOp, Within, arithmetic};
pub use index::{Index, IndexTerm, Var, flat, unflat};

use std::fmt;
use std::sync::Arc;

use crate::dtype::DType;
use crate::error::Result;

/// A reference to a tensor in expressions: in op definitions the number of an input or temporary of the node (`usize`), in
/// programs of a target the typed id of a buffer. It is displayed as its number.
pub trait TensorRef: Copy + PartialEq + fmt::Debug + fmt::Display {}

impl TensorRef for usize {}

/// The dtype in which prelude functions accumulate sums: float64 and uint64 for themselves, float32 for other
/// floats, else int64.
pub const fn accumulator(dtype: DType) -> DType {
    match dtype {
        DType::F64 | DType::U64 => dtype,
        DType::F16 | DType::BF16 | DType::F32 => DType::F32,
        _ => DType::I64,
    }
}

/// Numbers of elements before, along and after an axis.
pub fn sizes_around(shape: &[i64], axis: usize) -> (i64, i64, i64) {
    (shape[..axis].iter().product(), shape[axis], shape[axis + 1..].iter().product())
}

/// The field `loops` of an op definition: for each output the value of its elements. An error means that this use has none.
pub type LoopsFn = fn(&LoopCx<'_>) -> Result<Vec<Expr>>;

/// Codes that generated functions return, with their names in C and their meanings.
pub const ERRORS: &[(i32, &str, &str)] = &[
    (1, "MITHRIL_ERROR_INDEX", "an index is out of range"),
    (2, "MITHRIL_ERROR_SINGULAR", "a matrix is singular"),
    (3, "MITHRIL_ERROR_INDEFINITE", "a matrix is not positive definite"),
    (4, "MITHRIL_ERROR_CONVERGENCE", "a decomposition does not converge"),
    (
        5,
        "MITHRIL_ERROR_ARGUMENT",
        "an argument of the call is a null pointer, is not aligned, or overlaps another",
    ),
    (
        MESH_ERROR,
        "MITHRIL_ERROR_MESH",
        "the mesh is missing or has other sizes, or ranks could not exchange tensors",
    ),
];

/// The code of a program that is divided over a mesh, if its ranks cannot exchange tensors.
pub const MESH_ERROR: i32 = 6;

/// Generated code returns an error code plus this number times the index of the failed call (counted from 1), so that the error
/// message can name the op.
pub const ERROR_PLACES: i32 = 16;

/// A tensor between the steps of a node. Temporaries are numbered after the inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Temporary {
    /// Dtype as stored.
    pub dtype: DType,
    /// Sizes.
    pub shape: Vec<i64>,
}

/// A step before the outputs are computed.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Stores an expression in a temporary.
    Compute {
        /// The number of the temporary.
        to: usize,
        /// Its coordinates.
        vars: Vec<Var>,
        /// The value of an element.
        value: Expr,
    },
    /// Calls a function of the prelude.
    Call(PreludeCall),
}

/// A call of a C function of the prelude.
#[derive(Clone, Debug, PartialEq)]
pub struct PreludeCall<T = usize> {
    /// Its name.
    pub function: String,
    /// Its arguments.
    pub args: Vec<CallArgument<T>>,
    /// Bytes of scratch memory per thread; 0 for none.
    pub scratch: usize,
}

/// An argument of a call of a prelude function.
#[derive(Clone, Debug, PartialEq)]
pub enum CallArgument<T = usize> {
    /// A tensor that is read.
    In(T),
    /// A temporary that is written. Its contents are undefined unless a previous call wrote it; see [`LoopCx::call`].
    Out(T),
    /// An integer.
    Int(i64),
    /// A number.
    Float(f64),
    /// A list of integers.
    Ints(Vec<i64>),
    /// A constant of the generated file, by its name.
    Name(Arc<str>),
    /// The mesh that the program is divided over, and the number of its axis of this name: two arguments. Only collectives take
    /// it; all ranks make such calls in the same order.
    Mesh(Arc<str>),
}

impl<T> PreludeCall<T> {
    /// Whether the ranks of a mesh make the call together, or it depends on which of them makes it.
    pub fn uses_mesh(&self) -> bool {
        self.args.iter().any(|arg| matches!(arg, CallArgument::Mesh(_)))
    }
}

impl<T> CallArgument<T> {
    /// The argument with another reference to its tensor.
    #[must_use]
    pub fn with_tensor<U>(self, f: &dyn Fn(T) -> U) -> CallArgument<U> {
        match self {
            Self::In(tensor) => CallArgument::In(f(tensor)),
            Self::Out(tensor) => CallArgument::Out(f(tensor)),
            Self::Int(n) => CallArgument::Int(n),
            Self::Float(x) => CallArgument::Float(x),
            Self::Ints(list) => CallArgument::Ints(list),
            Self::Name(name) => CallArgument::Name(name),
            Self::Mesh(axis) => CallArgument::Mesh(axis),
        }
    }
}
