//! Layouts, and partitioned programs: what each device of a mesh runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use mithril::codegen::python::Argument;
use mithril::compile::partition::halo::gathered;
use mithril::compile::partition::memo::Memo;
use mithril::compile::partition::pass::communications;
use mithril::compile::partition::stages::Step;
use mithril::compile::partition::{
    Estimate, Hardware, Layout, Mesh, Partitioned, Placement, Training, device_memory, estimate, stages,
};
use mithril::compile::pipeline::Interpreter;
use mithril::ir::graph::{Def, Role};
use mithril::ir::text;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::compile::PyCompiled;
use crate::convert::shape_to_python;
use crate::errors::Outcome;
use crate::inspect::role_name;

/// A program divided over a mesh of devices.
#[pyclass(name = "Partitioned", module = "mithril", frozen)]
#[derive(Debug)]
pub struct PyPartitioned(pub Arc<Partitioned>);

/// Axes of the mesh that divide one axis of a tensor, by axis of the tensor.
type Axes = Vec<Vec<String>>;

/// A layout of Python: axes of the mesh, those that divide the batch, the sequence, parameters, and experts, and patterns of
/// names, each with the axes of the mesh that divide each axis of the tensors that it names; whether fused weights are
/// divided within their parts.
pub type LayoutArgument = (Vec<(String, usize)>, [Vec<String>; 4], Vec<(String, Axes)>, bool);

/// Reads a layout.
pub fn layout(argument: LayoutArgument) -> Outcome<Arc<Layout>> {
    let (mesh, [batch, sequence, parameters, experts], patterns, divides_sections) = argument;
    let mesh = Mesh::new(mesh)?;
    Ok(Arc::new(Layout { mesh, batch, sequence, patterns, parameters, experts, divides_sections }))
}

/// A description of hardware: operations per second on floats and on those of 16 bits, bytes of memory, bytes per second
/// of it and of each axis of the mesh, seconds of latency.
type HardwareArgument = (f64, f64, u64, f64, Vec<f64>, f64);

fn hardware((flops, half_flops, memory, bandwidth, links, latency): HardwareArgument) -> Hardware {
    Hardware { flops, half_flops, memory, bandwidth, links, latency }
}

/// Operations, bytes moved, seconds of arithmetic and of memory, seconds of each collective, of computation between.
type EstimateRow = (u64, u64, f64, f64, Vec<f64>, Vec<f64>);

/// Name, seconds, bytes on a device, whether they fit.
type CandidateRow = (String, f64, u64, bool);

/// The layout over a mesh of the shortest step that fits in memory, if one does: axes of the batch and of parameters,
/// patterns; the candidates, and how many layouts were costed.
#[pyfunction]
#[expect(clippy::type_complexity, reason = "a tuple for Python")]
pub fn best_layout(
    py: Python<'_>,
    core: PyRef<'_, PyCompiled>,
    mesh: Vec<(String, usize)>,
    description: HardwareArgument,
    slots: f64,
    outputs: Vec<String>,
    inputs: Vec<String>,
) -> Outcome<(Vec<String>, Vec<String>, Vec<(String, Axes)>, Vec<CandidateRow>, usize)> {
    let shared = |names: Vec<String>| names.into_iter().map(Arc::from).collect::<Vec<Arc<str>>>();
    let (outputs, inputs) = (shared(outputs), shared(inputs));
    let (mesh, hardware) = (Mesh::new(mesh)?, hardware(description));
    let compiled = &core.compiled;
    let training = Training { slots };
    let plan =
        py.detach(|| compiled.best_layout(&Interpreter, &mesh, &hardware, training, &outputs, &inputs))?;
    let rows = plan.candidates.into_iter().map(|c| (c.name, c.seconds, c.memory, c.fits));
    let layout = plan.layout;
    Ok((layout.batch, layout.parameters, layout.patterns, rows.collect(), plan.evaluated))
}

/// The layout of strategies, one for each axis of a mesh: axes of the batch and of parameters, patterns.
#[pyfunction]
#[expect(clippy::type_complexity, reason = "a tuple for Python")]
pub fn named_layout(
    py: Python<'_>,
    core: PyRef<'_, PyCompiled>,
    mesh: Vec<(String, usize)>,
    names: Vec<String>,
    outputs: Vec<String>,
    inputs: Vec<String>,
) -> Outcome<(Vec<String>, Vec<String>, Vec<(String, Axes)>)> {
    let shared = |names: Vec<String>| names.into_iter().map(Arc::from).collect::<Vec<Arc<str>>>();
    let (outputs, inputs, mesh) = (shared(outputs), shared(inputs), Mesh::new(mesh)?);
    let compiled = &core.compiled;
    let layout = py.detach(|| compiled.named_layout(&Interpreter, &mesh, &names, &outputs, &inputs))?;
    Ok((layout.batch, layout.parameters, layout.patterns))
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
    fn outputs(&self) -> Vec<(String, Divided)> {
        let names = self.0.graph.outputs.keys();
        names.zip(&self.0.outputs).map(|(name, p)| (name.to_string(), axes(p))).collect()
    }
    /// The same for the new states.
    fn states(&self) -> Vec<(String, Divided)> {
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
    /// Paths of layers whose images are gathered, and why.
    fn gathered(&self) -> Vec<(Option<String>, String)> {
        let all = gathered(&self.0.graph).into_iter();
        all.map(|(place, reason)| (place.path.as_deref().map(ToOwned::to_owned), reason)).collect()
    }
    /// Operations, bytes and seconds of a step on a description of hardware.
    fn estimate(&self, description: HardwareArgument) -> EstimateRow {
        let result = estimate(&self.0.graph, &self.0.mesh, &hardware(description), &Memo::default());
        let Estimate { flops, moved, arithmetic, memory_bound, collectives, computation } = result;
        (flops, moved, arithmetic, memory_bound, collectives, computation)
    }
    /// The steps of a pipeline, by the devices of layers, each with its operations, the seconds that it takes on a
    /// description of hardware, the most bytes between its ops, and the bytes that a device sends within its stage; names of
    /// results; bytes of values by name.
    #[expect(clippy::type_complexity, reason = "a tuple for Python")]
    fn stages(
        &self,
        devices: Vec<(String, usize)>,
        description: Option<HardwareArgument>,
    ) -> Outcome<(Vec<(StepRow, u64, f64, u64, u64)>, Vec<String>, BTreeMap<String, u64>)> {
        let staged = stages(&self.0, &devices)?;
        let hardware = description.map(hardware).unwrap_or_default();
        let memo = Memo::default();
        let row = |(i, step): (usize, &Step)| {
            let cost = estimate(&step.graph, &self.0.mesh, &hardware, &memo);
            let held = device_memory(&step.graph).activations;
            let sent = communications(&step.graph).iter().map(|c| c.bytes).sum();
            (step_row(step, &format!("step_{i}")), cost.flops, cost.seconds(), held, sent)
        };
        Ok((staged.steps.iter().enumerate().map(row).collect(), staged.results, staged.bytes))
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
/// axis and the reduction; whether it is the same for all micro-batches.
pub type StepRow = (usize, usize, String, Vec<String>, Vec<String>, Option<(usize, usize, String)>, bool);

/// What the function of a step takes.
pub const VALUES: &[Argument<'static>] = &[Argument { name: "values", role: Role::Data }];

/// A step as Python sees it.
pub fn step_row(step: &Step, name: &str) -> StepRow {
    let (name, exchange) = match &step.exchange {
        None => (name, None),
        Some(exchange) => (exchange.op, Some((exchange.axis, exchange.joined, exchange.reduction.clone()))),
    };
    (
        step.device,
        step.level,
        name.to_owned(),
        step.reads.clone(),
        step.makes.clone(),
        exchange,
        step.is_shared,
    )
}

/// For each axis of the mesh the axis of a tensor that it divides, and the sizes of its sections where there are several.
type Divided = Vec<Option<(usize, Vec<usize>)>>;

fn axes(placements: &[Placement]) -> Divided {
    let axis = |place: &Placement| match place {
        Placement::Shard(axis) => Some((*axis, Vec::new())),
        Placement::Sections(axis, sections) => Some((*axis, sections.sizes())),
        Placement::Replicate | Placement::Partial(_) => None,
    };
    placements.iter().map(axis).collect()
}
