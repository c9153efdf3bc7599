#![doc = include_str!("../README.md")]

pub use mithril_codegen as codegen;
pub use mithril_compile as compile;
pub use mithril_ir as ir;
pub use mithril_model as model;
pub use mithril_onnx as onnx;
pub use mithril_runtime as runtime;

/// The Rust example of the README of the repository runs as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// What most programs need.
pub mod prelude {
    pub use crate::compile::compiled::Compiled;
    pub use crate::ir::rules::Attrs;
    pub use crate::ir::{Code, DType, Dim, Error, Lit, Place, Result, Shape, Tensor};
    pub use crate::model::{Arg, Connection, FlattenOptions, IOKey, Init, Model, Size, Spec, layers, zoo};
    pub use crate::runtime::backend::{Arrays, Backend, Call, Outcome, Program, Use};
    pub use crate::runtime::c;
    pub use crate::runtime::interpreter::{Evaluation, Executable, Tensors, tensors};
    pub use crate::runtime::training::{Optimizer, TrainingStep};
    pub use crate::runtime::weights::Checkpoint;
}
