//! The rows of ops and layers as Python data, from which classes, stubs and documentation are generated.

use mithril::ir::op::{Attr, DefaultLit, PortKind};
use mithril::ir::ops::spellings;
use mithril::ir::spelling::{self, Given, Ours, Slot};
use mithril::ir::{Code, ops};
use mithril::model::layers::{self, Layer};
use mithril::model::{Model, zoo};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::convert::{literal, literal_to_python, pairs};
use crate::errors::Outcome;
use crate::model::{PyModel, here};

fn kind(port: PortKind) -> &'static str {
    match port {
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
            Attr::Scalar => "float | bool",
            Attr::Bool => "bool",
            Attr::Choice(_) | Attr::Text => "str",
            Attr::DType => "dtype | None",
            Attr::Shape => "tuple[int, ...]",
            Attr::Any => "object",
        },
    }
}

fn argument<'py>(
    py: Python<'py>,
    name: &str,
    kind_of: PortKind,
    default: DefaultLit,
    doc: &str,
) -> PyResult<Bound<'py, PyDict>> {
    let row = PyDict::new(py);
    row.set_item("name", name)?;
    row.set_item("kind", kind(kind_of))?;
    if let PortKind::Tensor(kinds) | PortKind::Optional(kinds) | PortKind::Variadic(kinds) = kind_of {
        row.set_item("kinds", kinds.to_string())?;
    }
    if let PortKind::Attr(Attr::Choice(all)) = kind_of {
        row.set_item("choices", all.to_vec())?;
    }
    row.set_item("required", matches!(default, DefaultLit::Required))?;
    if let Some(lit) = default.lit() {
        row.set_item("default", literal_to_python(py, &lit)?)?;
    }
    row.set_item("training", matches!(default, DefaultLit::Training))?;
    row.set_item("doc", doc)?;
    Ok(row)
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
            let ports = op.ports.iter().map(|p| argument(py, p.name, p.kind, p.default, ""));
            row.set_item("ports", ports.collect::<PyResult<Vec<_>>>()?)?;
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
        list.append(layer_row(py, layer)?)?;
    }
    Ok(list)
}

pub fn layer_row<'py>(py: Python<'py>, layer: &Layer) -> PyResult<Bound<'py, PyDict>> {
    let row = PyDict::new(py);
    row.set_item("name", layer.name)?;
    row.set_item("doc", layer.doc)?;
    let args = layer.args.iter().map(|a| argument(py, a.name, PortKind::Attr(a.kind), a.default, a.doc));
    row.set_item("args", args.collect::<PyResult<Vec<_>>>()?)?;
    row.set_item("aliases", layer.aliases.clone())?;
    row.set_item("arg_aliases", layer.arg_aliases.to_vec())?;
    Ok(row)
}

/// Other words for the ports of ops, and the ports that they mean.
#[pyfunction]
pub fn port_words() -> Vec<(&'static str, Vec<&'static str>)> {
    spellings::WORDS.iter().map(|(word, ports)| (*word, ports.to_vec())).collect()
}

/// Names that another library takes with other arguments: op or layer, name, library, its parameters with our names, and
/// whether the name has no other order.
#[pyfunction]
#[expect(clippy::type_complexity, reason = "a table")]
pub fn spelling_rows()
-> Vec<(&'static str, &'static str, &'static str, Vec<(&'static str, Option<&'static str>)>, bool)> {
    let ops = spellings::SPELLINGS.iter().map(|s| ("op", s));
    let layers = layers::spellings::SPELLINGS.iter().map(|s| ("layer", s));
    ops.chain(layers).map(|(what, s)| (what, s.name, s.library, s.names(), s.only)).collect()
}

/// What arguments by position of an op are: ports by place, -1 for sizes of the kernel, -2 for nothing. `None`: as they
/// stand. `given` are their kinds, `words` their texts, `named` the ports given by name.
#[pyfunction]
pub fn read_op(
    name: &str,
    given: Vec<String>,
    words: Vec<String>,
    named: Vec<String>,
) -> Outcome<Option<Vec<i64>>> {
    let (Some(row), Some(op)) = (spellings::spelling(name), ops::find(name)) else { return Ok(None) };
    let kinds: Vec<Given> = given.iter().map(|g| given_kind(g)).collect();
    let named: Vec<&str> = named.iter().map(String::as_str).collect();
    let text = |i: usize| words.get(i).cloned().unwrap_or_default();
    let slots = spelling::read(row, &Ours::of_op(op), &kinds, &named, &text)?;
    let place = |slot| match slot {
        Slot::Ours(i) => i as i64,
        Slot::Kernel => -1,
        Slot::Nothing => -2,
    };
    Ok(slots.map(|slots| slots.into_iter().map(place).collect()))
}

fn given_kind(text: &str) -> Given {
    match text {
        "tensor" => Given::Tensor,
        "int" => Given::Int,
        "float" => Given::Float,
        "bool" => Given::Bool,
        "str" => Given::Text,
        "none" => Given::None,
        ints => match ints.strip_prefix("ints").and_then(|n| n.parse().ok()) {
            Some(n) => Given::Ints(n),
            None => Given::Other,
        },
    }
}

/// Refuses arguments by position of a layer that mean something else in another library.
#[pyfunction]
pub fn check_layer(name: &str, args: Vec<Bound<'_, PyAny>>, named: Vec<String>) -> Outcome<()> {
    let Some(layer) = layers::find(name) else { return Ok(()) };
    let args = args.iter().map(literal).collect::<Outcome<Vec<_>>>()?;
    let named: Vec<&str> = named.iter().map(String::as_str).collect();
    Ok(layer.check_order(&args, &named)?)
}

/// All models of the zoo.
#[pyfunction]
pub fn zoo_rows(py: Python<'_>) -> PyResult<Bound<'_, PyList>> {
    let list = PyList::empty(py);
    for entry in zoo::all() {
        let row = layer_row(py, &entry.layer)?;
        row.set_item("example", entry.row.example)?;
        list.append(row)?;
    }
    Ok(list)
}

/// Build a model of the zoo; the generated functions call this.
#[pyfunction]
#[pyo3(signature = (model, args, name=None))]
pub fn zoo_model(
    py: Python<'_>,
    model: &str,
    args: &Bound<'_, PyDict>,
    name: Option<&str>,
) -> Outcome<PyModel> {
    let given = pairs(args.as_any())?;
    let given = given.iter().map(|(k, v)| Ok((k.as_str(), literal(v)?))).collect::<Outcome<Vec<_>>>()?;
    named(py, zoo::build(model, Vec::new(), given), name)
}

/// Build the model of the zoo that the text of a ``config.json`` describes.
#[pyfunction]
#[pyo3(signature = (text, part, args, name=None))]
pub fn zoo_from_config(
    py: Python<'_>,
    text: &str,
    part: Option<&str>,
    args: &Bound<'_, PyDict>,
    name: Option<&str>,
) -> Outcome<PyModel> {
    let given = pairs(args.as_any())?;
    let given = given.iter().map(|(k, v)| Ok((k.as_str(), literal(v)?))).collect::<Outcome<Vec<_>>>()?;
    named(py, zoo::from_config(text, part, given), name)
}

fn named(py: Python<'_>, model: mithril::ir::Result<Model>, name: Option<&str>) -> Outcome<PyModel> {
    let place = here(py);
    let mut inner = model.map_err(|e| e.at(&place))?;
    inner.set_name(name).map_err(|e| e.at(&place))?;
    Ok(PyModel { inner })
}

/// Code and exception family of every error.
#[pyfunction]
pub fn error_codes() -> Vec<(&'static str, String, String)> {
    Code::ALL.iter().map(|c| (c.text(), format!("{c:?}"), format!("{:?}", c.class()))).collect()
}
