//! Looking inside compiled models, for the tools that compare backends and search for errors.

use std::sync::Arc;

use mithril::codegen::python::Support;
use mithril::compile::inspect::first_dtype;
use mithril::ir::graph::{Def, Graph, Node, NodeId, Role};
use mithril::ir::text;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::compile::PyCompiled;
use crate::convert::{literal_to_python, shape_to_python};
use crate::errors::Outcome;
use crate::target::{TargetArgument, native};

/// The program with all of its values as outputs, named by their positions.
#[pyfunction]
pub fn exposed(core: &PyCompiled) -> PyCompiled {
    core.with(core.compiled.exposed())
}

/// The program with its gradients as one that is evaluated; cotangents are data.
#[pyfunction]
pub fn with_gradients(core: &PyCompiled, outputs: Vec<String>, inputs: Vec<String>) -> Outcome<PyCompiled> {
    let names = |list: Vec<String>| list.into_iter().map(Arc::from).collect::<Vec<Arc<str>>>();
    Ok(core.with(core.compiled.with_gradients(&names(outputs), &names(inputs))?))
}

/// A program of one node; with `is_wide` its floats are float64.
#[pyfunction]
pub fn single(core: &PyCompiled, node: usize, is_wide: bool) -> Outcome<PyCompiled> {
    Ok(core.with(core.compiled.single(NodeId::new(node), is_wide)?))
}

/// Text of the graph: equal programs have equal texts.
#[pyfunction]
pub fn graph_text(core: &PyCompiled) -> String {
    text::print(&core.compiled.graph)
}

fn place(graph: &Graph, row: &Bound<'_, PyDict>, n: NodeId, node: &Node) -> PyResult<()> {
    let place = graph.place(n);
    row.set_item("op", node.op.name)?;
    row.set_item("dtype", first_dtype(graph, node).map(|d| d.name()))?;
    row.set_item("path", place.path.as_deref().filter(|path| !path.is_empty()))?;
    row.set_item("where", place.line.as_ref().map(ToString::to_string))
}

/// All nodes: op, place, inputs, outputs. A value is its position; an input of the graph has a name and a role.
#[pyfunction]
pub fn nodes<'py>(py: Python<'py>, core: &PyCompiled) -> Outcome<Bound<'py, PyList>> {
    node_rows(py, &core.compiled.graph)
}

/// A graph from its text form: `inputs` (position, name, role, dtype, shape), `nodes` as of [`nodes`], `outputs`
/// (name, position).
#[pyfunction]
pub fn parse_graph<'py>(py: Python<'py>, text: &str) -> Outcome<Bound<'py, PyDict>> {
    let graph = text::parse(text)?;
    let inputs = PyList::empty(py);
    for &v in &graph.inputs {
        let value = graph.value(v);
        if let (Def::Input(role), Some(ty)) = (&value.def, graph.ty(v)) {
            let shape = shape_to_python(py, &ty.shape)?;
            inputs.append((v.index(), value.name.as_deref(), role_name(*role), ty.dtype.name(), shape))?;
        }
    }
    let outputs = PyList::empty(py);
    for (name, v) in &graph.outputs {
        outputs.append((&**name, v.index()))?;
    }
    let dict = PyDict::new(py);
    dict.set_item("inputs", inputs)?;
    dict.set_item("nodes", node_rows(py, &graph)?)?;
    dict.set_item("outputs", outputs)?;
    Ok(dict)
}

fn node_rows<'py>(py: Python<'py>, graph: &Graph) -> Outcome<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for (n, node) in graph.nodes() {
        let row = PyDict::new(py);
        place(graph, &row, n, node)?;
        row.set_item("tolerance", format!("{:?}", node.op.tolerance))?;
        row.set_item("primitive", node.op.expand.is_none())?;
        let inputs = PyList::empty(py);
        let literals = PyDict::new(py);
        for (i, &v) in node.inputs.iter().enumerate() {
            match (&graph.value(v).def, node.op.port_of(i)) {
                (Def::Const(lit), Some(port)) => literals.set_item(port.name, literal_to_python(py, lit)?)?,
                (Def::Const(_), None) => {}
                (Def::Input(role), _) => {
                    inputs.append((i, v.index(), graph.value(v).name.as_deref(), role_name(*role)))?;
                }
                (Def::Node(..), _) => {
                    inputs.append((i, v.index(), graph.value(v).name.as_deref(), "value"))?;
                }
            }
        }
        row.set_item("inputs", inputs)?;
        row.set_item("literals", literals)?;
        let outputs = PyList::empty(py);
        for &v in &node.outputs {
            if let Some(ty) = graph.ty(v) {
                let shape = shape_to_python(py, &ty.shape)?;
                outputs.append((v.index(), graph.value(v).name.as_deref(), ty.dtype.name(), shape))?;
            }
        }
        row.set_item("outputs", outputs)?;
        list.append(row)?;
    }
    Ok(list)
}

/// Positions of the values of the outputs by name.
#[pyfunction]
pub fn output_values<'py>(py: Python<'py>, core: &PyCompiled) -> Outcome<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (name, v) in &core.compiled.graph.outputs {
        dict.set_item(&**name, v.index())?;
    }
    Ok(dict)
}

/// Uses of ops that no method of the user's backend runs, although there is one: op, place, argument, and whether the
/// method has no parameter for it.
#[pyfunction]
pub fn passed_over<'py>(
    py: Python<'py>,
    core: &PyCompiled,
    target: &Bound<'py, PyAny>,
) -> Outcome<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for (n, argument, is_absent) in core.compiled.passed_over(&target.extract::<TargetArgument>()?.0)? {
        let row = PyDict::new(py);
        place(&core.compiled.graph, &row, n, core.compiled.graph.node(n))?;
        row.set_item("argument", argument)?;
        row.set_item("is_absent", is_absent)?;
        list.append(row)?;
    }
    Ok(list)
}

/// How a target runs each node: op, place, `native`, `expanded`, `reference` or `missing`, into what, and what is lacking.
#[pyfunction]
pub fn uses<'py>(
    py: Python<'py>,
    core: &PyCompiled,
    target: &Bound<'py, PyAny>,
) -> Outcome<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    let all = match native(target) {
        Some(target) => core.compiled.uses_by(target)?,
        None => core.compiled.uses(&target.extract::<TargetArgument>()?.0)?,
    };
    for group in all {
        let row = PyDict::new(py);
        place(&core.compiled.graph, &row, group.node, core.compiled.graph.node(group.node))?;
        let support = match group.support {
            Support::Native => "native",
            Support::Expanded if !group.referred.is_empty() => "reference",
            Support::Expanded => "expanded",
            Support::Missing => "missing",
        };
        row.set_item("support", support)?;
        row.set_item("parts", group.parts)?;
        let missing: Vec<_> = group.missing.iter().map(|(op, d)| (*op, d.map(|d| d.name()))).collect();
        row.set_item("missing", missing)?;
        row.set_item("referred", group.referred)?;
        list.append(row)?;
    }
    Ok(list)
}

/// What an input is for, as Python says it.
pub fn role_name(role: Role) -> &'static str {
    match role {
        Role::Param => "param",
        Role::Data => "data",
        Role::State => "state",
        Role::Cotangent => "cotangent",
    }
}
