//! The rows of ops and layers as Python data, from which classes, stubs and documentation are generated.

use mithril::ir::op::{Attr, DefaultLit, Port, PortKind};
use mithril::ir::{Code, ops};
use mithril::model::layers;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::convert::literal_to_python;

fn kind(port: &Port) -> &'static str {
    match port.kind {
        PortKind::Tensor(_) => "tensor",
        PortKind::Optional(_) => "optional",
        PortKind::Variadic(_) => "variadic",
        PortKind::Attr(attr) => match attr {
            Attr::Int => "int",
            Attr::Ints => "int | tuple[int, ...]",
            Attr::OptInts => "int | tuple[int, ...] | None",
            Attr::OptInt => "int | None",
            Attr::Float => "float",
            Attr::OptFloat => "float | None",
            Attr::Bool => "bool",
            Attr::Choice(_) | Attr::Text => "str",
            Attr::DType => "dtype | None",
            Attr::Shape => "tuple[int, ...]",
            Attr::Any => "object",
        },
    }
}

fn ports<'py>(py: Python<'py>, ports: &[Port]) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for port in ports {
        let row = PyDict::new(py);
        row.set_item("name", port.name)?;
        row.set_item("kind", kind(port))?;
        if let PortKind::Attr(Attr::Choice(all)) = port.kind {
            row.set_item("choices", all.to_vec())?;
        }
        row.set_item("required", matches!(port.default, DefaultLit::Required))?;
        if let Some(lit) = port.default.lit() {
            row.set_item("default", literal_to_python(py, &lit)?)?;
        }
        row.set_item("training", matches!(port.default, DefaultLit::Training))?;
        list.append(row)?;
    }
    Ok(list)
}

/// All ops by family.
#[pyfunction]
pub fn op_rows(py: Python<'_>) -> PyResult<Bound<'_, PyList>> {
    let list = PyList::empty(py);
    for (family, rows) in ops::FAMILIES {
        for op in *rows {
            let row = PyDict::new(py);
            row.set_item("name", op.name)?;
            row.set_item("family", family)?;
            row.set_item("doc", op.doc)?;
            row.set_item("ports", ports(py, op.ports)?)?;
            row.set_item("outputs", op.outputs.to_vec())?;
            row.set_item("aliases", op.aliases.to_vec())?;
            row.set_item("layer", op.layer)?;
            row.set_item("primitive", op.expand.is_none())?;
            row.set_item("tolerance", format!("{:?}", op.tolerance))?;
            row.set_item("cases", op.cases.to_vec())?;
            row.set_item("domain", op.domain)?;
            list.append(row)?;
        }
    }
    Ok(list)
}

/// All layers.
#[pyfunction]
pub fn layer_rows(py: Python<'_>) -> PyResult<Bound<'_, PyList>> {
    let list = PyList::empty(py);
    for layer in layers::all() {
        let row = PyDict::new(py);
        row.set_item("name", layer.name)?;
        row.set_item("doc", layer.doc)?;
        row.set_item("args", ports(py, &layer.args)?)?;
        row.set_item("aliases", layer.aliases.to_vec())?;
        list.append(row)?;
    }
    Ok(list)
}

/// Code and exception family of every error.
#[pyfunction]
pub fn error_codes() -> Vec<(&'static str, String, String)> {
    Code::ALL.iter().map(|c| (c.text(), format!("{c:?}"), format!("{:?}", c.class()))).collect()
}
