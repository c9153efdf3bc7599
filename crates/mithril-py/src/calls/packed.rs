//! Packed parameters that stand for the arrays they came from.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use mithril::ir::error::{Code, Error};
use mithril::ir::graph::Role;
use pyo3::prelude::*;
use pyo3::types::{PyIterator, PyString, PyTuple};

use super::{Callable, Kept, Ready};
use crate::errors::Outcome;

/// Parameters, and states that are not replaced, as a program keeps them: packed, and as they are where calls read them
/// so. Stands for a dict of parameters.
#[pyclass(name = "Packed", module = "mithril", frozen, mapping)]
#[derive(Debug)]
pub struct PyPacked(Box<dyn Parameters>);

/// Packed parameters of some kind of function.
trait Parameters: Send + Sync + Debug {
    fn bytes(&self) -> usize;
    fn names(&self, py: Python<'_>) -> Vec<Py<PyString>>;
    /// What is kept as it was given.
    fn get(&self, py: Python<'_>, name: &str) -> Option<Py<PyAny>>;
    fn any(&self) -> &dyn Any;
}

/// For one choice of sizes.
#[derive(Debug)]
pub(super) struct For<F: Callable> {
    pub(super) ready: Arc<Ready<F>>,
    pub(super) kept: Arc<Kept<F>>,
}

impl<F: Callable + 'static> Parameters for For<F> {
    fn bytes(&self) -> usize {
        let buffers = self.ready.function().interface().inputs.iter().zip(&self.kept.arrays);
        let kept: usize =
            buffers.filter(|(_, array)| array.is_some()).map(|(buffer, _)| buffer.bytes()).sum();
        kept + self.kept.packed.as_ref().map_or(0, F::bytes)
    }
    fn names(&self, py: Python<'_>) -> Vec<Py<PyString>> {
        let params = self.ready.inputs.iter().filter(|(role, _)| *role == Role::Param);
        params.map(|(_, name)| name.clone_ref(py)).collect()
    }
    fn get(&self, py: Python<'_>, name: &str) -> Option<Py<PyAny>> {
        let known = self.ready.function().interface().inputs.iter().position(|buffer| &*buffer.name == name);
        known.and_then(|i| self.kept.arrays[i].as_ref()).map(|array| array.clone_ref(py))
    }
    fn any(&self) -> &dyn Any {
        self
    }
}

#[pymethods]
impl PyPacked {
    /// Bytes that are held: what is packed, and what is kept as it is.
    #[getter]
    fn bytes(&self) -> usize {
        self.0.bytes()
    }
    fn __len__(&self, py: Python<'_>) -> usize {
        self.0.names(py).len()
    }
    fn keys(&self, py: Python<'_>) -> Vec<Py<PyString>> {
        self.0.names(py)
    }
    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        PyTuple::new(py, self.keys(py))?.try_iter()
    }
    fn __getitem__(&self, py: Python<'_>, name: &str) -> Outcome<Py<PyAny>> {
        let missing = || {
            Error::new(Code::BadParameter, format!("`{name}` is packed: its values are not kept"))
                .help("read them before you pack them")
        };
        Ok(self.0.get(py, name).ok_or_else(missing)?)
    }
    fn __repr__(&self) -> String {
        format!("<packed parameters, {} bytes>", self.bytes())
    }
}

impl PyPacked {
    pub(super) fn new<F: Callable + 'static>(ready: Arc<Ready<F>>, kept: Arc<Kept<F>>) -> Self {
        Self(Box::new(For { ready, kept }))
    }
    /// What it is made of, if it is for this kind of function.
    pub(super) fn parts<F: Callable + 'static>(&self) -> Option<&For<F>> {
        self.0.any().downcast_ref()
    }
}
