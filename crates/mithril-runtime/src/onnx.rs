//! Compiled models as files of ONNX.

use std::io::{self, Write};
use std::path::Path;

use mithril_compile::compiled::Compiled;
use mithril_compile::passes::differentiate::Request;
use mithril_compile::pipeline::Target;
use mithril_ir::graph::{Graph, NodeId};
use mithril_ir::{Code, Error, Result};
use mithril_onnx::export::{self, MAX_BYTES, Written};

use crate::weights::{Part, resolved, streamed, within};

/// ONNX as the pipeline sees it: ops that it has no lowering of at this opset are expanded.
#[derive(Clone, Copy, Debug)]
pub struct Onnx {
    /// The opset.
    pub opset: i64,
}

impl Target for Onnx {
    fn name(&self) -> &'static str {
        "onnx"
    }
    fn can_lower(&self, graph: &Graph, node: NodeId) -> bool {
        export::can_write(graph, node, self.opset)
    }
}

/// What is written.
#[derive(Clone, Debug)]
pub struct OnnxOptions {
    /// The opset.
    pub opset: i64,
    /// What the model is, for people.
    pub title: String,
    /// Outputs that get a cotangent, and inputs whose gradients become outputs.
    pub gradients: Option<Request>,
    /// Whether the cotangents are one, rather than inputs.
    pub is_loss: bool,
}

impl Default for OnnxOptions {
    fn default() -> Self {
        Self { opset: export::OPSETS.2, title: String::new(), gradients: None, is_loss: false }
    }
}

/// Lowers a compiled model to ops of ONNX.
///
/// # Errors
/// When the opset cannot be written, or ops have no counterpart: one error that lists all of them.
pub fn onnx(compiled: &Compiled, options: &OnnxOptions) -> Result<Written> {
    export::check_opset(options.opset)?;
    let target = Onnx { opset: options.opset };
    let graph = match &options.gradients {
        None => compiled.forward(&target, &mut |_, _| {})?,
        Some(gradient) => compiled.gradient(&target, &gradient.outputs, &gradient.inputs, &mut |_, _| {})?,
    };
    export::write(&graph, options.opset, &options.title, options.is_loss)
}

/// Writes a file, and its parameters into it or into another one beside it (`model.onnx.data`): by default there if one
/// file cannot hold them. `write` gives the values of a parameter, by its place. Whether there are two files.
///
/// # Errors
/// When a file cannot be written, or parameters inside would be more than a file can hold.
pub fn save_onnx(
    path: &Path,
    file: Written,
    is_external: Option<bool>,
    mut write: impl FnMut(usize, &mut dyn Write) -> io::Result<()>,
) -> Result<bool> {
    let path = &resolved(path).map_err(|e| within(&Error::new(Code::Io, e.to_string()), path))?;
    let is_large = file.bytes() > MAX_BYTES;
    if is_external == Some(false) && is_large {
        let message = format!("a file of ONNX holds 2 GB; this one would have {} bytes", file.bytes());
        return Err(Error::new(Code::BadArgument, message)
            .help("leave out external_data=False: the parameters then go into a file beside it"));
    }
    let is_external = (is_external.unwrap_or(is_large) || is_large) && !file.parameters.is_empty();
    let bytes = if is_external {
        let beside = data_path(path)?;
        let name = beside.file_name().and_then(|n| n.to_str()).ok_or_else(|| no_name(path))?.to_owned();
        let (mut parts, mut offsets, mut end) = (Vec::new(), Vec::new(), 0_u64);
        for (place, parameter) in file.parameters.iter().enumerate() {
            offsets.push(end);
            let bytes = parameter.bytes() as usize;
            // A page each, so that readers may map them.
            let padding = bytes.next_multiple_of(4096) - bytes;
            parts.push(Part { place, name: &parameter.name, bytes, padding });
            end += (bytes + padding) as u64;
        }
        streamed(&beside, &[], &parts, write).map_err(|e| within(&e, &beside))?;
        file.with_places(&name, &offsets)
    } else {
        let mut values = Vec::with_capacity(file.parameters.len());
        for (place, parameter) in file.parameters.iter().enumerate() {
            let mut bytes = Vec::with_capacity(parameter.bytes() as usize);
            write(place, &mut bytes)
                .map_err(|e| Error::new(Code::Io, format!("{:?} cannot be read: {e}", parameter.name)))?;
            if bytes.len() as u64 != parameter.bytes() {
                let message = format!("{:?} has {} bytes", parameter.name, bytes.len());
                return Err(Error::new(Code::BadParameter, message));
            }
            values.push(bytes.into());
        }
        file.with_values(values)
    };
    streamed(path, &bytes, &[], |_, _| Ok(())).map_err(|e| within(&e, path))?;
    Ok(is_external)
}

fn data_path(path: &Path) -> Result<std::path::PathBuf> {
    let name = path.file_name().and_then(|n| n.to_str()).ok_or_else(|| no_name(path))?;
    Ok(path.with_file_name(format!("{name}.data")))
}

fn no_name(path: &Path) -> Error {
    Error::new(Code::BadArgument, format!("{} is not the name of a file", path.display()))
        .help("give one that ends in .onnx")
}
