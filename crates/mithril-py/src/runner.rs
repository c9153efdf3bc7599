//! Programs that the reference interpreter runs, on one device or on a virtual mesh.

use std::sync::Arc;

use mithril::compile::compiled::gradient_of;
use mithril::compile::partition::{Partitioned, virtual_mesh};
use mithril::ir::error::Error;
use mithril::ir::graph::{Def, Graph, Role, ValueId};
use mithril::ir::{interp, text};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::convert::{array, tensor};
use crate::errors::Outcome;

/// Values by name.
pub type Named = Vec<(Arc<str>, ValueId)>;

/// A graph run by the reference interpreter, called like a generated function.
#[pyclass(name = "Runner", module = "mithril", frozen)]
#[derive(Debug)]
pub struct PyRunner {
    /// The graph.
    pub graph: Graph,
    /// What the arguments hold.
    pub groups: Vec<Role>,
    /// Results by name, in a dict each.
    pub results: Vec<Named>,
    /// Whether results come as a tuple.
    pub tuple: bool,
    /// Whether an op has several outputs.
    pub many: bool,
    /// The programs of a mesh of devices that are run instead of the graph.
    pub mesh: Option<Arc<Partitioned>>,
}

#[pymethods]
impl PyRunner {
    /// Whether an op has several outputs.
    #[getter]
    fn many(&self) -> bool {
        self.many
    }
    /// The graph.
    #[getter]
    fn text(&self) -> String {
        text::print(&self.graph)
    }
    #[pyo3(signature = (*groups))]
    fn __call__<'py>(&self, py: Python<'py>, groups: Vec<Bound<'py, PyAny>>) -> Outcome<Bound<'py, PyAny>> {
        let mut inputs = Vec::new();
        for &v in &self.graph.inputs {
            let value = self.graph.value(v);
            let (Def::Input(role), Some(name)) = (&value.def, &value.name) else { continue };
            let group = self.groups.iter().position(|r| r == role).and_then(|i| groups.get(i));
            let group = group.ok_or_else(|| Error::internal(format!("no group holds `{name}`")))?;
            inputs.push(Arc::new(tensor(&group.get_item(&**name)?, None)?));
        }
        let result = py.detach(|| match &self.mesh {
            Some(program) => virtual_mesh::run(program, &inputs),
            None => interp::run(&self.graph, &inputs),
        })?;
        let (outputs, states) = result.split_at(self.graph.outputs.len());
        let all: Vec<ValueId> = self.graph.outputs.values().copied().collect();
        let value = |v: &ValueId| {
            let at = all.iter().position(|a| a == v).unwrap_or_default();
            array(py, &outputs[at])
        };
        if self.tuple {
            let items = self.results.iter().flatten().map(|(_, v)| value(v)).collect::<PyResult<Vec<_>>>()?;
            return Ok(PyTuple::new(py, items)?.into_any());
        }
        let mut dicts = Vec::new();
        for names in &self.results {
            let dict = PyDict::new(py);
            for (name, v) in names {
                dict.set_item(&**name, value(v)?)?;
            }
            dicts.push(dict);
        }
        if !self.graph.updates.is_empty() {
            let dict = PyDict::new(py);
            for ((input, _), t) in self.graph.updates.iter().zip(states) {
                dict.set_item(self.graph.value(*input).name.as_deref(), array(py, t)?)?;
            }
            dicts.push(dict);
        }
        match <[_; 1]>::try_from(dicts) {
            Ok([one]) => Ok(one.into_any()),
            Err(several) => Ok(PyTuple::new(py, several)?.into_any()),
        }
    }
}

/// All outputs.
pub fn one_dict(graph: &Graph) -> Vec<Named> {
    vec![graph.outputs.iter().map(|(n, &v)| (n.clone(), v)).collect()]
}

/// Outputs, and gradients by the names of inputs.
pub fn two_dicts(graph: &Graph) -> Vec<Named> {
    let mut outputs = Vec::new();
    let mut gradients = Vec::new();
    for (name, &v) in &graph.outputs {
        match gradient_of(name) {
            Some(input) => gradients.push((input.into(), v)),
            None => outputs.push((name.clone(), v)),
        }
    }
    vec![outputs, gradients]
}
