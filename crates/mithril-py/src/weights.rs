//! Checkpoints: their tensors as objects that NumPy makes arrays of without a copy, and writing.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use mithril::ir::{Code, DType, Error, Lit};
use mithril::model::zoo::plan::{self, FileArray, ModelArray};
use mithril::onnx::Options;
use mithril::runtime::weights::{self, Checkpoint, Entry, Stored, Weight};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};

use crate::convert::{literal, pairs, sizes};
use crate::errors::{Failure, Outcome};
use crate::gguf;
use crate::model::PyModel;

/// An open checkpoint.
#[pyclass(name = "Checkpoint", module = "mithril", frozen)]
#[derive(Debug)]
pub struct PyCheckpoint(Checkpoint);

#[pymethods]
impl PyCheckpoint {
    /// Open a file, an index or a folder.
    #[staticmethod]
    #[pyo3(signature = (path, key=None))]
    fn open(py: Python<'_>, path: PathBuf, key: Option<String>) -> Outcome<Self> {
        Ok(Self(py.detach(|| Checkpoint::open_at(&path, key.as_deref()))?))
    }
    /// Names of the tensors, in the order of the file.
    #[getter]
    fn names(&self) -> Vec<&str> {
        self.0.iter().map(|(name, _)| name).collect()
    }
    /// Values that describe the file, as `mithril.gguf` takes them.
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Vec<(&str, Bound<'py, PyAny>)>> {
        self.0.metadata().map(|(key, value)| Ok((key, gguf::to_python(py, value)?))).collect()
    }
    /// Rows of a head of queries and keys, if they are pairs of a rotary embedding.
    fn pairs(&self) -> Outcome<Option<usize>> {
        Ok(self.0.pairs()?)
    }
    /// The file that was found.
    #[getter]
    fn path(&self) -> Option<PathBuf> {
        self.0.path().map(PathBuf::from)
    }
    /// Sizes of the tensors, in the order of the file.
    #[getter]
    fn shapes(&self) -> Vec<&[usize]> {
        self.0.iter().map(|(_, weight)| weight.shape()).collect()
    }
    /// Gives back the memory of a tensor's pages.
    fn release(&self, name: &str) {
        if let Some(weight) = self.0.get(name) {
            weight.release();
        }
    }
    /// A tensor.
    fn weight(&self, name: &str) -> Outcome<PyWeight> {
        Ok(PyWeight(self.0.readable(name)?.clone()))
    }
}

/// A tensor of a checkpoint.
#[pyclass(name = "Weight", module = "mithril", frozen)]
#[derive(Debug)]
pub struct PyWeight(Weight);

#[pymethods]
impl PyWeight {
    /// What its elements are in the file.
    #[getter]
    fn stored(&self) -> String {
        self.0.stored().to_string()
    }
    /// The sizes.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.shape())
    }
    /// The memory, as NumPy takes it over: the array that it makes holds this object. Numbers of bfloat16, truth
    /// values, which could be bytes of any value, and blocks are shown as unsigned integers.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> Outcome<Bound<'py, PyDict>> {
        let about = PyDict::new(py);
        let size = self.0.stored().size().unwrap_or(0);
        about.set_item("version", 3)?;
        about.set_item("data", (self.0.address()?, false))?;
        about.set_item("typestr", code(self.0.stored()))?;
        let mut shape = self.0.shape().to_vec();
        if let (Stored::Blocks(format), Some(row)) = (self.0.stored(), shape.last_mut()) {
            *row = *row / format.values * format.bytes;
        }
        about.set_item("shape", PyTuple::new(py, shape)?)?;
        if !self.0.is_contiguous() {
            let strides = self.0.strides().iter().map(|n| n * size);
            about.set_item("strides", PyTuple::new(py, strides.collect::<Vec<_>>())?)?;
        }
        Ok(about)
    }
}

fn code(stored: &Stored) -> &'static str {
    match stored {
        Stored::Known(DType::Bool | DType::U8) | Stored::Blocks(_) | Stored::Other(_) => "|u1",
        Stored::Known(DType::I8) => "|i1",
        Stored::Known(DType::I16) => "<i2",
        Stored::Known(DType::I32) => "<i4",
        Stored::Known(DType::I64) => "<i8",
        Stored::Known(DType::F16) => "<f2",
        Stored::Known(DType::BF16 | DType::U16) => "<u2",
        Stored::Known(DType::F32) => "<f4",
        Stored::Known(DType::F64) => "<f8",
        Stored::Known(DType::U32) => "<u4",
        Stored::Known(DType::U64) => "<u8",
    }
}

/// The model of a file of ONNX, given by its path or as bytes, and its parameters.
#[pyfunction]
#[pyo3(signature = (source, shapes=None, constants=None))]
pub fn read_onnx(
    py: Python<'_>,
    source: &Bound<'_, PyAny>,
    shapes: Option<&Bound<'_, PyAny>>,
    constants: Option<&Bound<'_, PyAny>>,
) -> Outcome<(PyModel, PyCheckpoint)> {
    let declared = shapes.map(pairs).transpose()?.unwrap_or_default();
    let shapes = declared.iter().map(|(k, v)| Ok((k.clone(), sizes(v)?))).collect::<Outcome<Vec<_>>>()?;
    let declared = constants.map(pairs).transpose()?.unwrap_or_default();
    let mut constants = Vec::with_capacity(declared.len());
    for (name, value) in declared {
        let shape: Vec<usize> = value.getattr("shape")?.extract()?;
        let flat = value.call_method1("reshape", (-1,))?;
        let Lit::Tensor(tensor) = literal(&flat)? else {
            let message = format!("the value of the input {name:?} is not an array");
            return Err(Error::new(Code::BadArgument, message).help("give an array of NumPy").into());
        };
        constants.push((name, tensor.reshaped(&shape)));
    }
    let options = Options { shapes, constants };
    let (model, parameters) = if let Ok(bytes) = source.cast::<PyBytes>() {
        let bytes = bytes.as_bytes();
        py.detach(|| weights::read_onnx_bytes(bytes, &options))?
    } else {
        let path: PathBuf = source.extract()?;
        py.detach(|| weights::read_onnx(&path, &options))?
    };
    Ok((PyModel { inner: model }, PyCheckpoint(parameters)))
}

/// Every op of ONNX that is read, as domain and name.
#[pyfunction]
pub fn onnx_ops() -> Vec<(&'static str, &'static str)> {
    mithril::onnx::readable_ops()
}

/// Writes tensors, given as (name, dtype, shape); `chunks` gives the bytes of one of them, by its place, piece by piece.
#[pyfunction]
pub fn save_tensors(
    path: PathBuf,
    tensors: Vec<(String, String, Vec<usize>)>,
    metadata: BTreeMap<String, String>,
    chunks: &Bound<'_, PyAny>,
) -> Outcome<()> {
    let entries = tensors
        .into_iter()
        .map(|(name, dtype, shape)| Ok(Entry { name, dtype: DType::parse(&dtype)?, shape }))
        .collect::<Outcome<Vec<_>>>()?;
    streamed(chunks, |write| weights::save_streamed(&path, &entries, &metadata, write))
}

/// Writes what `chunks` gives for each place, piece by piece; an exception of it is what the caller gets.
pub fn streamed(
    chunks: &Bound<'_, PyAny>,
    save: impl FnOnce(&mut dyn FnMut(usize, &mut dyn io::Write) -> io::Result<()>) -> mithril::ir::Result<()>,
) -> Outcome<()> {
    let mut raised = None;
    let written = save(&mut |i, file| {
        let told = (|| {
            let mut written = Ok(());
            for chunk in chunks.call1((i,))?.try_iter()? {
                written = file.write_all(chunk?.extract()?);
                if written.is_err() {
                    break;
                }
            }
            Ok::<_, PyErr>(written)
        })();
        told.unwrap_or_else(|error| {
            raised = Some(error);
            Err(io::Error::other("an array could not be read"))
        })
    });
    match (written, raised) {
        (Err(_), Some(error)) => Err(Failure::Python(error)),
        (written, _) => Ok(written?),
    }
}

/// Name of ours, its shape as far as known, whether it may stay as it is.
type Ours = (String, Option<Vec<usize>>, bool);

/// Where the tensors of a checkpoint go; see `mithril.weights`.
#[pyfunction]
pub fn plan_weights<'py>(
    py: Python<'py>,
    ours: Vec<Ours>,
    theirs: Vec<(String, Vec<usize>)>,
    layout: Option<&str>,
    prefix: Option<&str>,
    names: Vec<(String, String)>,
) -> Outcome<Bound<'py, PyDict>> {
    let ours: Vec<_> =
        ours.into_iter().map(|(name, shape, optional)| ModelArray { name, shape, optional }).collect();
    let theirs: Vec<_> = theirs.into_iter().map(|(name, shape)| FileArray { name, shape }).collect();
    let names: Vec<_> = names.iter().map(|(ours, theirs)| (&**ours, &**theirs)).collect();
    let plan = py.detach(|| plan::plan(&ours, &theirs, layout, prefix, &names))?;
    let told = PyDict::new(py);
    let steps = plan.steps.into_iter().map(|s| (s.ours, s.theirs, s.transposed, s.paired));
    told.set_item("steps", steps.collect::<Vec<_>>())?;
    told.set_item("layout", plan.report.layout)?;
    told.set_item("prefix", plan.report.prefix)?;
    told.set_item("missing", plan.report.missing)?;
    told.set_item("unexpected", plan.report.unexpected)?;
    told.set_item("ignored", plan.report.ignored)?;
    told.set_item("renamed", plan.report.renamed)?;
    let mis_shaped = plan.report.mis_shaped.into_iter();
    let mis_shaped = mis_shaped.map(|m| (m.step.ours, m.step.theirs.join(" + "), m.expected, m.actual));
    told.set_item("mis_shaped", mis_shaped.collect::<Vec<_>>())?;
    Ok(told)
}

/// Name in a file, ours, which part of how many, whether transposed, whether rows may be pairs.
type Published = (String, String, usize, usize, bool, bool);

/// The tensors of a file of a published layout.
#[pyfunction]
pub fn publish_weights(ours: Vec<String>, layout: &str) -> Outcome<Vec<Published>> {
    let ours: Vec<_> = ours.iter().map(String::as_str).collect();
    let published = plan::publish(&ours, layout)?.into_iter();
    Ok(published.map(|p| (p.theirs, p.ours, p.part, p.parts, p.transposed, p.paired)).collect())
}
