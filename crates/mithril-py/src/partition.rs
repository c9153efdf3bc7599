//! Layouts, and partitioned programs: what each device of a mesh runs.

use std::sync::Arc;

use mithril::codegen::python::Argument;
use mithril::compile::partition::stages::Step;
use mithril::compile::partition::{Layout, Mesh, Partitioned, Placement, device_memory};
use mithril::ir::graph::{Def, Role};
use mithril::ir::text;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::convert::shape_to_python;
use crate::errors::Outcome;
use crate::inspect::role_name;

/// A program divided over a mesh of devices.
#[pyclass(name = "Partitioned", module = "mithril", frozen)]
#[derive(Debug)]
pub struct PyPartitioned(pub Arc<Partitioned>);

/// Axes of the mesh that divide one axis of a tensor, by axis of the tensor.
type Axes = Vec<Vec<String>>;

/// A layout of Python: axes of the mesh, those that divide the batch, those that divide parameters, and patterns of
/// names, each with the axes of the mesh that divide each axis of the tensors that it names.
pub type LayoutArgument = (Vec<(String, usize)>, Vec<String>, Vec<String>, Vec<(String, Axes)>);

/// Reads a layout.
pub fn layout((mesh, batch, parameters, patterns): LayoutArgument) -> Outcome<Arc<Layout>> {
    Ok(Arc::new(Layout { mesh: Mesh::new(mesh)?, batch, patterns, parameters }))
}

/// Op, axis of the mesh, devices, bytes that a device sends, path and line.
type CommunicationRow = (&'static str, String, usize, u64, Option<String>, Option<String>);

#[pymethods]
impl PyPartitioned {
    /// The program of a device.
    #[getter]
    fn text(&self) -> String {
        text::print(&self.0.graph)
    }
    /// Name, role, dtype, shape on a device, and for each axis of the mesh the axis that it divides.
    fn inputs<'py>(&self, py: Python<'py>) -> Outcome<Bound<'py, PyList>> {
        let graph = &self.0.graph;
        let list = PyList::empty(py);
        for (&v, placements) in graph.inputs.iter().zip(&self.0.inputs) {
            let value = graph.value(v);
            let (Def::Input(role), Some(ty)) = (&value.def, &value.ty) else { continue };
            let shape = shape_to_python(py, &ty.shape)?;
            list.append((value.name.as_deref(), role_name(*role), ty.dtype.name(), shape, axes(placements)))?;
        }
        Ok(list)
    }
    /// Names of outputs, with the prefix `gradient:` for gradients, and for each axis of the mesh the axis that it divides.
    fn outputs(&self) -> Vec<(String, Vec<Option<usize>>)> {
        let names = self.0.graph.outputs.keys();
        names.zip(&self.0.outputs).map(|(name, p)| (name.to_string(), axes(p))).collect()
    }
    /// The same for the new states.
    fn states(&self) -> Vec<(String, Vec<Option<usize>>)> {
        let graph = &self.0.graph;
        let name = |v| graph.value(v).name.as_deref().unwrap_or("").to_owned();
        let placements = self.0.outputs.iter().skip(graph.outputs.len());
        graph.updates.iter().zip(placements).map(|((input, _), p)| (name(*input), axes(p))).collect()
    }
    /// Op, axis of the mesh, devices, bytes that a device sends, path and line.
    fn communications(&self) -> Vec<CommunicationRow> {
        self.0
            .communications
            .iter()
            .map(|c| {
                let path = c.place.path.as_deref().filter(|path| !path.is_empty()).map(ToOwned::to_owned);
                let line = c.place.line.as_ref().map(ToString::to_string);
                (c.op, c.mesh_axis.clone(), c.devices, c.bytes, path, line)
            })
            .collect()
    }
    /// Bytes on a device, by what they are for.
    fn memory<'py>(&self, py: Python<'py>) -> Outcome<Bound<'py, PyDict>> {
        let memory = device_memory(&self.0.graph);
        let dict = PyDict::new(py);
        dict.set_item("parameters", memory.parameters)?;
        dict.set_item("states", memory.states)?;
        dict.set_item("data", memory.data)?;
        dict.set_item("gradients", memory.gradients)?;
        dict.set_item("activations", memory.activations)?;
        Ok(dict)
    }
}

/// Device, level, name of the function or the op of the collective, what it reads, what it makes; of a collective the
/// axis and the reduction.
pub type StepRow = (usize, usize, String, Vec<String>, Vec<String>, Option<(usize, String)>);

/// What the function of a step takes.
pub const VALUES: &[Argument<'static>] = &[Argument { name: "values", role: Role::Data }];

/// A step as Python sees it.
pub fn step_row(step: &Step, name: &str) -> StepRow {
    let (name, exchange) = match &step.exchange {
        None => (name, None),
        Some(exchange) => (exchange.op, Some((exchange.axis, exchange.reduction.clone()))),
    };
    (step.device, step.level, name.to_owned(), step.reads.clone(), step.makes.clone(), exchange)
}

fn axes(placements: &[Placement]) -> Vec<Option<usize>> {
    let axis = |p: &Placement| match p {
        Placement::Shard(axis) => Some(*axis),
        _ => None,
    };
    placements.iter().map(axis).collect()
}
