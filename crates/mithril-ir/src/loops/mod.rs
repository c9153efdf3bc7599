//! What an op computes, element by element: the *tensor expression* of a row, from which loops are made (target C).
//!
//! A row says how one element of each output follows from elements of the inputs, as an [`Expr`] over the
//! coordinates of the output:
//!
//! ```
//! use mithril_ir::loops::{Fold, LoopsFn};
//! use mithril_ir::rules::Attrs;
//!
//! // output[i, j] = input[j, i]
//! let transposed: LoopsFn = |cx| Ok(vec![cx.output(0, |i| cx.load(0, [i[1].clone(), i[0].clone()]))]);
//! // output[i] = Σ_k input[i, k]
//! let summed: LoopsFn = |cx| {
//!     let n = cx.shape(0)[1];
//!     Ok(vec![cx.output(0, |i| cx.fold(Fold::Sum, &[n], |k| cx.load(0, [i[0].clone(), k[0].clone()])))])
//! };
//! ```
//!
//! Rows with worked examples: `transpose` (movement), `sum` (a reduction), `matmul` (a contraction), `add` (arithmetic).
//!
//! - **Sizes are numbers.** [`LoopCx::shape`], [`LoopCx::out_shape`]; literals by [`crate::rules::Attrs`] as everywhere.
//! - **Indices** ([`Index`]) are added, subtracted, multiplied by a number, divided ([`Index::floor_div`]), and may be
//!   read from a tensor ([`LoopCx::value`]); a read index is checked when running. [`flat`] and [`unflat`] go between
//!   coordinates and row-major positions.
//! - **Padding** is [`Expr::within`]: `cx.load(0, [at]).within(vec![Within::new(at, 0, n)], cx.number(0.0, dtype))`.
//! - **Dtypes**: `cx.load` gives what is stored (float16 and bfloat16 as float32); operands of arithmetic have one dtype,
//!   [`Expr::cast`] converts. A sum of int32 in int64 is a sum of `cx.load(..).cast(DType::I64)`. The value of an output
//!   has its dtype (rounding to half precision is done by the store).
//! - **Several steps**: [`LoopCx::temporary`] puts an expression into a tensor of its own, whose number may be loaded
//!   from like an input; [`LoopCx::call`] calls a C function of the prelude, whose outputs are such tensors too.
//! - **An op without loops** whose row has a `Lowering.c` is elementwise: its tensor inputs broadcast to the output, and the
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
//! | `{if_near}`, `{far}` | what makes `mithril_sin{if_near}_{t}({far}{0})` the quick form, where loops are written for it | `_if_near` and `&far, `, or nothing; nothing; nothing |
//!
//! `{{` and `}}` are braces. The text of a function (`Text::F`) is treated like a template, so it may hold placeholders.
//! In integer dtypes the value is converted to the output's C type; signed overflow is undefined in C, so integer
//! templates compute in unsigned. Functions named `mithril_…` are found in the C prelude and emitted with what they use.
//!
//! # Calls
//!
//! A C function of the prelude `void name(…)`, or `int name(…)` where it may fail: the arguments in the order given;
//! inputs are `const T *restrict`, outputs `T *restrict` (T the storage type: `uint16_t` for halves, `uint8_t` for bool),
//! integers `int64_t`, numbers `double`, lists `const int64_t *`; last, where `scratch` is not 0, `void *restrict scratch`
//! of so many bytes, 64-aligned. An `int` result is 0 or one of the codes of [`ERRORS`].
//!
//! A function whose parameters begin with `int64_t thread, int64_t threads` is called by all threads at once, each with
//! scratch memory of its own, and does the part of that thread; which part may change nothing about the result. Others are
//! called by one thread.

mod context;
mod expr;
mod index;

pub use context::{LoopArg, LoopCx};
pub use expr::{Binary, Expr, Fold, Within, arithmetic};
pub use index::{Atom, Index, Var, flat, unflat};

use std::fmt;

use crate::dtype::DType;
use crate::error::Result;

/// How expressions name tensors: by the number of an input or temporary of a node (`usize`) in what a row says, by the
/// typed id of a buffer in the programs of a target. It is displayed as its number.
pub trait TensorRef: Copy + PartialEq + fmt::Debug + fmt::Display {}

impl TensorRef for usize {}

/// Of the dtypes that prelude functions are written for, the one that holds the sums of a dtype: float32 (of the halves
/// too), float64 and int64.
pub const fn accumulator(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        DType::F16 | DType::BF16 | DType::F32 => DType::F32,
        _ => DType::I64,
    }
}

/// Numbers of elements before, along and after an axis.
pub fn sizes_around(shape: &[i64], axis: usize) -> (i64, i64, i64) {
    (shape[..axis].iter().product(), shape[axis], shape[axis + 1..].iter().product())
}

/// The field `loops` of a row: for each output the value of its elements. An error means that this use has none.
pub type LoopsFn = fn(&LoopCx<'_>) -> Result<Vec<Expr>>;

/// Codes that generated functions return, with their names in C and what they mean.
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
];

/// In C, what a call fails with is one of [`ERRORS`], and so many times the number of the call, from 1 on: the text of
/// that sum says where.
pub const ERROR_PLACES: i32 = 16;

/// A tensor between the steps of a node. Its number is that of the last input plus 1, and so on.
#[derive(Clone, Debug, PartialEq)]
pub struct Temporary {
    /// Dtype as stored.
    pub dtype: DType,
    /// Sizes.
    pub shape: Vec<i64>,
}

/// What is done before the outputs are computed.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// An expression is put into a temporary.
    Compute {
        /// The number of the temporary.
        to: usize,
        /// Its coordinates.
        vars: Vec<Var>,
        /// The value of an element.
        value: Expr,
    },
    /// A function of the prelude is called.
    Call(Call),
}

/// A call of a C function of the prelude.
#[derive(Clone, Debug, PartialEq)]
pub struct Call<T = usize> {
    /// Its name.
    pub function: String,
    /// What it is given.
    pub args: Vec<Argument<T>>,
    /// Bytes of scratch memory of a thread; 0 for none.
    pub scratch: usize,
}

/// An argument of a call.
#[derive(Clone, Debug, PartialEq)]
pub enum Argument<T = usize> {
    /// A tensor that is read.
    In(T),
    /// A temporary that is written. One that is written by no call before holds nothing; see [`LoopCx::call`].
    Out(T),
    /// An integer.
    Int(i64),
    /// A number.
    Float(f64),
    /// A list of integers.
    Ints(Vec<i64>),
}

impl<T> Argument<T> {
    /// With its tensor, if it is one, named in another way.
    #[must_use]
    pub fn with_tensor<U>(self, f: &dyn Fn(T) -> U) -> Argument<U> {
        match self {
            Self::In(tensor) => Argument::In(f(tensor)),
            Self::Out(tensor) => Argument::Out(f(tensor)),
            Self::Int(n) => Argument::Int(n),
            Self::Float(x) => Argument::Float(x),
            Self::Ints(list) => Argument::Ints(list),
        }
    }
}
