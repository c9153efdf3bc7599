//! Compiled models as files of ONNX.

use std::path::PathBuf;
use std::sync::Arc;

use mithril::compile::passes::differentiate::Request;
use mithril::ir::{Code, Error};
use mithril::onnx::export::{MAX_BYTES, OPSETS, Written};
use mithril::runtime::onnx::{OnnxOptions, onnx, save_onnx};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::compile::PyCompiled;
use crate::errors::Outcome;
use crate::weights::streamed;

/// A file that has no values yet.
#[pyclass(name = "OnnxFile", module = "mithril", frozen)]
#[derive(Debug)]
pub struct PyOnnxFile(Written);

/// The file of a compiled model; with gradients of outputs by inputs, of a loss or of any cotangents.
#[pyfunction]
#[pyo3(signature = (core, opset=None, title="", gradients=None, is_loss=false))]
pub fn onnx_file(
    py: Python<'_>,
    core: &PyCompiled,
    opset: Option<i64>,
    title: &str,
    gradients: Option<(Vec<String>, Vec<String>)>,
    is_loss: bool,
) -> Outcome<PyOnnxFile> {
    let names = |list: Vec<String>| list.into_iter().map(Arc::from).collect::<Vec<Arc<str>>>();
    let gradients = gradients.map(|(outputs, inputs)| Request {
        outputs: names(outputs),
        inputs: names(inputs),
        recompute: core.compiled.checkpoint,
    });
    let opset = opset.unwrap_or(OPSETS.2);
    let options = OnnxOptions { opset, title: title.to_owned(), gradients, is_loss };
    Ok(PyOnnxFile(py.detach(|| onnx(&core.compiled, &options))?))
}

#[pymethods]
impl PyOnnxFile {
    /// Name, dtype and sizes of what belongs into the file.
    #[getter]
    fn parameters(&self) -> Vec<(String, &'static str, Vec<usize>)> {
        self.0.parameters.iter().map(|p| (p.name.to_string(), p.dtype.name(), p.shape.clone())).collect()
    }
    /// Writes the file; `chunks` gives the bytes of a parameter, by its place, piece by piece. Whether there are two files.
    #[pyo3(signature = (path, chunks, external=None))]
    fn save(&self, path: PathBuf, chunks: &Bound<'_, PyAny>, external: Option<bool>) -> Outcome<bool> {
        let mut is_external = false;
        streamed(chunks, |write| {
            is_external = save_onnx(&path, self.0.clone(), external, write)?;
            Ok(())
        })?;
        Ok(is_external)
    }
    /// The file as bytes.
    fn bytes<'py>(&self, py: Python<'py>, chunks: &Bound<'py, PyAny>) -> Outcome<Bound<'py, PyBytes>> {
        if self.0.bytes() > MAX_BYTES {
            let message = format!("a file of ONNX holds 2 GB; this one would have {} bytes", self.0.bytes());
            return Err(Error::new(Code::BadArgument, message)
                .help("give a path: the parameters then go into a file beside it")
                .into());
        }
        let mut values = Vec::with_capacity(self.0.parameters.len());
        for (place, parameter) in self.0.parameters.iter().enumerate() {
            let mut bytes: Vec<u8> = Vec::with_capacity(parameter.bytes() as usize);
            for chunk in chunks.call1((place,))?.try_iter()? {
                let chunk = chunk?;
                bytes.extend_from_slice(chunk.extract().map_err(PyErr::from)?);
            }
            if bytes.len() as u64 != parameter.bytes() {
                return Err(Error::internal(format!("`{}` has {} bytes", parameter.name, bytes.len())).into());
            }
            values.push(bytes.into());
        }
        Ok(PyBytes::new(py, &self.0.clone().with_values(values)))
    }
}
