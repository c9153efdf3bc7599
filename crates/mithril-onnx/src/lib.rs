//! Models of ONNX files, and files of models ([`export`]).
//!
//! [`read`] decodes a file, enters its nodes into a typed graph by the functions in `ops` (an op of ONNX is one entry of
//! one table), and makes a logical model of that graph. Initializers become parameters, whose values stay where they
//! are; what a model computes from shapes and constants is computed while reading.
//!
//! Nothing in a file is trusted: sizes, names and references are checked, and reading runs no code.

mod constants;
mod context;
mod control;
pub mod export;
mod flex;
mod import;
mod legacy;
mod lift;
mod names;
mod narrow;
mod node;
mod ops;
#[allow(missing_docs, reason = "the fields are those of onnx.proto")]
mod proto;
mod scan;
mod sizes;
mod tensor;

use bytes::Bytes;
use indexmap::IndexMap;
use mithril_ir::{Code, Error, Result, Tensor};
use mithril_model::{Model, Size};
use prost::Message;

pub use tensor::{External, Stored};

/// What is said about a file beside it.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Shapes of inputs, where those of the file shall not be taken.
    pub shapes: Vec<(String, Vec<Size>)>,
    /// Inputs that always have this value, and are not inputs of the model.
    pub constants: Vec<(String, Tensor)>,
}

/// What a file becomes.
#[derive(Debug)]
pub struct Imported {
    /// The model.
    pub model: Model,
    /// Its parameters by name, in the order of the file.
    pub parameters: IndexMap<String, Stored>,
}

/// Reads a file from its bytes, of which the parameters are views.
///
/// ```
/// let bytes = b"no model"[..].into();
/// let error = mithril_onnx::read(&bytes, &Default::default(), &mithril_onnx::no_other_file).unwrap_err();
/// assert_eq!(error.code().text(), "M0801");
/// ```
///
/// # Errors
/// When the bytes are not a file of ONNX, or contradict themselves; when ops, attributes or dtypes are not supported:
/// one error that lists all of them.
pub fn read(bytes: &Bytes, options: &Options, external: &External<'_>) -> Result<Imported> {
    scan::check(bytes)?;
    let model = proto::ModelProto::decode(bytes.clone()).map_err(|e| {
        Error::new(Code::BadFile, format!("it is not a model of ONNX: {e}"))
            .help("give a file written by onnx.save; it may be incomplete: fetch it again")
    })?;
    import::Importer::new(&model, external)?.run(options)
}

/// Every op that is read, as its domain and name, in order; the default domain is `""`.
///
/// ```
/// assert!(mithril_onnx::readable_ops().contains(&("", "Conv")));
/// ```
#[must_use]
pub fn readable_ops() -> Vec<(&'static str, &'static str)> {
    let mut names: Vec<_> =
        ops::all().chain(control::OPS.iter().map(|(domain, op, _)| (*domain, *op))).collect();
    names.sort_unstable();
    names
}

/// What refuses to read any other file, for a model that is given as bytes.
///
/// # Errors
/// Always.
pub fn no_other_file(location: &str, _: u64, _: u64) -> Result<Bytes> {
    Err(Error::new(Code::Io, format!("its weights lie in another file, {location:?}"))
        .help("give the path of the model instead of its bytes"))
}
