#![doc = include_str!("../README.md")]

pub use mithril_codegen as codegen;
pub use mithril_compile as compile;
pub use mithril_ir as ir;
pub use mithril_model as model;
pub use mithril_runtime as runtime;

/// Files of ONNX as models with their parameters, and compiled models as files of ONNX.
///
/// [`read_onnx`](onnx::read_onnx) takes a path, [`read_onnx_bytes`](onnx::read_onnx_bytes) the contents of a file. Both
/// return the model and a checkpoint with its parameters, which are views of the file. What cannot be read is an error:
/// [`Code::Unsupported`](ir::Code::Unsupported) lists all ops and attributes that have no counterpart,
/// [`Code::BadFile`](ir::Code::BadFile) is for files that are damaged or no ONNX, [`Code::Io`](ir::Code::Io) for those
/// that are not there.
///
/// ```
/// use mithril::onnx::{self, OnnxOptions};
/// use mithril::prelude::*;
///
/// # let folder = std::env::temp_dir().join(format!("mithril-onnx-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder).unwrap();
/// # let path = folder.join("linear.onnx");
/// // A file with `output = input · weightᵀ`, and a batch of any size.
/// let shapes = vec![("input".into(), vec!["batch".into(), 3.into()])];
/// let options = FlattenOptions { shapes, training: false, ..FlattenOptions::default() };
/// let compiled = Compiled::new(&layers::linear(1, false)?, &options)?;
/// let file = onnx::onnx(&compiled, &OnnxOptions::default())?;
/// let weight = Tensor::of(&[1, 3], vec![1.0_f32, 2.0, 3.0])?;
/// onnx::save_onnx(&path, file, None, |_, out| out.write_all(&weight.to_bytes()))?;
///
/// let (model, weights) = onnx::read_onnx(&path, &onnx::Options::default())?;
/// let program = Executable::new(&model, &FlattenOptions { training: false, ..FlattenOptions::default() })?;
/// let params = program.load_named(&weights)?;
/// let data = tensors([("input", Tensor::of(&[2, 3], vec![1.0_f32, 1.0, 1.0, 0.0, 0.0, 2.0])?)]);
/// assert_eq!(program.evaluate(&[&params, &data])?.outputs["output"].to_f64s(), [6.0, 6.0]);
///
/// let error = onnx::read_onnx_bytes(b"no model", &onnx::Options::default()).unwrap_err();
/// assert_eq!(error.code(), Code::BadFile);
/// # std::fs::remove_dir_all(&folder).unwrap();
/// # Ok::<(), Error>(())
/// ```
pub mod onnx {
    pub use mithril_onnx::*;
    pub use mithril_runtime::onnx::{Onnx, OnnxOptions, onnx, save_onnx};
    pub use mithril_runtime::weights::{read_onnx, read_onnx_bytes};
}

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
    pub use crate::runtime::training::{Epoch, FitOptions, Optimizer, TrainingStep};
    pub use crate::runtime::weights::Checkpoint;
}
