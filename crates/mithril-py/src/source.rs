//! Generated source as Python sees it.

use std::sync::Arc;

use mithril::codegen::python as codegen;
use mithril::compile::partition::Partitioned;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::convert::array;
use crate::partition::PyPartitioned;

/// Generated source.
#[pyclass(name = "Source", module = "mithril", frozen)]
#[derive(Debug)]
pub struct PySource {
    /// The source.
    pub source: codegen::Source,
    /// Whether an op has several outputs.
    pub many: bool,
    /// How the program is divided over a mesh of devices.
    pub partition: Option<Arc<Partitioned>>,
}

#[pymethods]
impl PySource {
    /// The text.
    #[getter]
    fn text(&self) -> &str {
        &self.source.text
    }
    /// Whether an op has several outputs.
    #[getter]
    fn many(&self) -> bool {
        self.many
    }
    /// How the program is divided over a mesh of devices; None on one device.
    #[getter]
    fn partition(&self) -> Option<PyPartitioned> {
        self.partition.clone().map(PyPartitioned)
    }
    /// Whether values of 64 bits occur, which some frameworks compute with on request only.
    #[getter]
    fn is_wide(&self) -> bool {
        self.source.is_wide
    }
    /// Ops that the global `reference` runs on the host, since the backend has nothing for them.
    #[getter]
    fn referred(&self) -> Vec<&'static str> {
        self.source.referred.clone()
    }
    /// Names of the parameters that the first function reads.
    #[getter]
    fn reads(&self) -> Vec<String> {
        let function = self.source.functions.first();
        function.and_then(|f| f.reads.first()).into_iter().flatten().map(ToString::to_string).collect()
    }
    /// What the global `_CONSTANTS` has to hold.
    fn constants<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for (name, t) in &self.source.constants {
            dict.set_item(name, array(py, t)?)?;
        }
        Ok(dict)
    }
    /// Op, path and user's line that a line comes from.
    fn origin(&self, line: u32) -> Option<(&str, Option<String>, Option<String>)> {
        let origin = self.source.origin(line)?;
        let path = origin.place.path.as_deref().filter(|p| !p.is_empty()).map(Into::into);
        Some((origin.op, path, origin.place.line.as_ref().map(ToString::to_string)))
    }
}
