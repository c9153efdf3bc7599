//! Packed parameters that stand for the arrays they came from.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use mithril::ir::error::{Code, Error};
use mithril::ir::graph::Role;
use mithril::runtime::c::{Address, Interface};
use pyo3::intern;
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
    /// Packs what is the same at every call, part by part: an array that neither a later part nor a call reads goes at
    /// once, unless all are to be known again. States stay known: one that is replaced is noticed. `None`: a shape is that
    /// of another choice of sizes.
    pub(super) fn keep(
        &self,
        py: Python<'_>,
        groups: &Groups<'_>,
        knows_all: bool,
    ) -> Outcome<Option<Kept<F>>> {
        let Interface { inputs, fixed, read, .. } = self.made.interface();
        let parts = self.made.parts();
        let mut last = vec![0; inputs.len()];
        parts.iter().enumerate().for_each(|(part, reads)| reads.iter().for_each(|&i| last[i] = part));
        let release = groups.params.getattr_opt(intern!(py, "_release"))?;
        let mut arrays: Vec<Option<Bound<'_, PyAny>>> = vec![None; inputs.len()];
        let mut held: Given = std::iter::repeat_with(|| None).take(inputs.len()).collect();
        let give_back = |i: usize| match (&release, &self.inputs[i]) {
            (Some(release), (Role::Param, name)) => release.call1((name,)).map(drop),
            _ => Ok(()),
        };
        let mut packing = self.made.start_packing()?;
        for (part, reads) in parts.iter().enumerate() {
            if !self.take(py, groups, reads, &mut arrays, &mut held)? {
                return Ok(None);
            }
            let found = held.iter().zip(inputs).map(|(found, buffer)| found.as_ref()?.fits(buffer));
            let addresses: Vec<Address<'_>> = found.map(|found| found.unwrap_or(Address::none())).collect();
            py.detach(|| self.made.pack_part(&mut packing, &addresses))?;
            for &i in reads.iter().filter(|&&i| last[i] == part) {
                if !read[i] {
                    (arrays[i], held[i]) = (None, None);
                }
                give_back(i)?;
            }
        }
        let packed = self.made.finish_packing(packing)?;
        let is_known = |i: &usize| fixed[*i] && (knows_all || read[*i] || self.inputs[*i].0 == Role::State);
        let known: Vec<usize> = (0..inputs.len()).filter(is_known).collect();
        let read: Vec<usize> = known.iter().copied().filter(|&i| read[i]).collect();
        if !self.take(py, groups, &read, &mut arrays, &mut held)? {
            return Ok(None);
        }
        for i in known {
            let (role, name) = &self.inputs[i];
            let array = arrays[i].take().map_or_else(|| groups.get(*role, name.bind(py)), Ok)?;
            lock(&array)?;
            give_back(i)?;
            arrays[i] = Some(array);
        }
        let arrays = arrays.into_iter().map(|array| array.map(Bound::unbind)).collect();
        Ok(Some(Kept { arrays, held, packed }))
    }
    /// Takes inputs that are not there yet; false if one has another shape.
    fn take<'py>(
        &self,
        py: Python<'py>,
        groups: &Groups<'py>,
        wanted: &[usize],
        arrays: &mut [Option<Bound<'py, PyAny>>],
        held: &mut Given,
    ) -> Outcome<bool> {
        for &i in wanted {
            if held[i].is_some() {
                continue;
            }
            let (role, name) = &self.inputs[i];
            let array = groups.get(*role, name.bind(py))?;
            held[i] = self.find(py, i, array.clone(), &self.made.interface().inputs[i])?;
            if held[i].is_none() {
                return Ok(false);
            }
            arrays[i] = Some(array);
        }
        Ok(true)
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
