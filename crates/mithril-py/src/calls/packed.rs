//! Packed parameters that stand for the arrays they came from.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use mithril::ir::error::{Code, Error};
use mithril::ir::graph::Role;
use mithril::runtime::c::Interface;
use pyo3::prelude::*;
use pyo3::types::{PyIterator, PyString, PyTuple};

use super::{Callable, Given, Groups, Kept, Ready, lock};
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
        let buffers = self.ready.made.interface().inputs.iter().zip(&self.kept.arrays);
        let kept: usize =
            buffers.filter(|(_, array)| array.is_some()).map(|(buffer, _)| buffer.bytes()).sum();
        kept + self.kept.packed.as_ref().map_or(0, F::bytes)
    }
    fn names(&self, py: Python<'_>) -> Vec<Py<PyString>> {
        let params = self.ready.inputs.iter().filter(|(role, _)| *role == Role::Param);
        params.map(|(_, name)| name.clone_ref(py)).collect()
    }
    fn get(&self, py: Python<'_>, name: &str) -> Option<Py<PyAny>> {
        let known = self.ready.made.interface().inputs.iter().position(|buffer| &*buffer.name == name);
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

impl<F: Callable> Ready<F> {
    /// Packs what is the same at every call, and keeps of it only what calls read as it is, and the states: one that is
    /// replaced is noticed.
    pub(super) fn keep(&self, py: Python<'_>, groups: &Groups<'_>) -> Outcome<Kept<F>> {
        let Interface { inputs, fixed, read, .. } = self.made.interface();
        let mut arrays = Vec::with_capacity(inputs.len());
        let mut held = Given::with_capacity(inputs.len());
        for (i, (role, name)) in self.inputs.iter().enumerate() {
            if !fixed[i] {
                arrays.push(None);
                held.push(None);
                continue;
            }
            let array = groups.get(*role, name.bind(py))?;
            held.push(Some(self.find(py, i, array.clone(), &inputs[i])?.ok_or_else(|| {
                Error::new(Code::BadParameter, format!("`{}` has another shape", inputs[i].name))
                    .help(format!("its shape is {:?}", inputs[i].shape))
            })?));
            arrays.push(Some(array));
        }
        let packed = self.packed(py, &held)?;
        for (i, array) in arrays.iter_mut().enumerate() {
            match array {
                Some(array) if read[i] || self.inputs[i].0 == Role::State => lock(array)?,
                _ => (*array, held[i]) = (None, None),
            }
        }
        Ok(Kept { arrays: arrays.into_iter().map(|array| array.map(Bound::unbind)).collect(), held, packed })
    }
    /// The inputs beside those that are kept, and the number of rows where that is an argument.
    pub(super) fn beside(
        &self,
        py: Python<'_>,
        kept: &Kept<F>,
        groups: &Groups<'_>,
    ) -> Outcome<(Given, Option<usize>)> {
        let own = self.made.interface();
        let rows = self.rows(py, groups)?;
        let scaled = rows.map(|count| own.of_rows(count));
        let Interface { inputs, fixed, .. } = scaled.as_ref().unwrap_or(own);
        let mut given: Given = inputs.iter().map(|_| None).collect();
        for (i, (role, name)) in self.inputs.iter().enumerate() {
            if fixed[i] && *role == Role::Param {
                continue;
            }
            let array = groups.get(*role, name.bind(py))?;
            if fixed[i] {
                if kept.arrays[i].as_ref().is_none_or(|known| !known.is(&array)) {
                    let text = format!("the state `{}` was replaced after it was packed", inputs[i].name);
                    return Err(Error::new(Code::BadParameter, text).help("pack again").into());
                }
                continue;
            }
            given[i] = Some(self.find(py, i, array, &inputs[i])?.ok_or_else(|| {
                let text = format!("the parameters are packed for another size of `{}`", inputs[i].name);
                Error::new(Code::BadParameter, text).help(format!("its shape is {:?}", inputs[i].shape))
            })?);
        }
        Ok((given, rows))
    }
}
