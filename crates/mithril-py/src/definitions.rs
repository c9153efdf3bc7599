//! Definitions of ops, layers and models as Python data, from which classes, stubs and documentation are generated.

use mithril::ir::op::{Attr, DefaultLit, PortKind};
use mithril::ir::ops::signatures;
use mithril::ir::signature::{self, ArgumentKind, ForeignKeyword, Parameter, Slot};
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
    let entry = PyDict::new(py);
    entry.set_item("name", name)?;
    entry.set_item("kind", kind(kind_of))?;
    if let PortKind::Tensor(kinds) | PortKind::Optional(kinds) | PortKind::Variadic(kinds) = kind_of {
        entry.set_item("kinds", kinds.to_string())?;
    }
    if let PortKind::Attr(Attr::Choice(all)) = kind_of {
        entry.set_item("choices", all.to_vec())?;
    }
    entry.set_item("required", matches!(default, DefaultLit::Required))?;
    if let Some(lit) = default.lit() {
        entry.set_item("default", literal_to_python(py, &lit)?)?;
    }
    entry.set_item("training", matches!(default, DefaultLit::Training))?;
    entry.set_item("doc", doc)?;
    Ok(entry)
}

/// All ops by family.
#[pyfunction]
pub fn op_definitions(py: Python<'_>) -> PyResult<Bound<'_, PyList>> {
    let list = PyList::empty(py);
    for (family, ops) in ops::FAMILIES {
        for op in *ops {
            let entry = PyDict::new(py);
            entry.set_item("name", op.name)?;
            entry.set_item("family", family)?;
            entry.set_item("doc", op.doc)?;
            let ports = op.ports.iter().map(|p| argument(py, p.name, p.kind, p.default, ""));
            entry.set_item("ports", ports.collect::<PyResult<Vec<_>>>()?)?;
            entry.set_item("outputs", op.outputs.to_vec())?;
            entry.set_item("aliases", op.aliases.to_vec())?;
            entry.set_item("layer", op.layer)?;
            entry.set_item("primitive", op.expand.is_none())?;
            entry.set_item("tolerance", format!("{:?}", op.tolerance))?;
            entry.set_item("cases", op.cases.to_vec())?;
            entry.set_item("domain", op.domain)?;
            list.append(entry)?;
        }
    }
    Ok(list)
}

/// All layers.
#[pyfunction]
pub fn layer_definitions(py: Python<'_>) -> PyResult<Bound<'_, PyList>> {
    let list = PyList::empty(py);
    for layer in layers::all() {
        list.append(layer_definition(py, layer)?)?;
    }
    Ok(list)
}

pub fn layer_definition<'py>(py: Python<'py>, layer: &Layer) -> PyResult<Bound<'py, PyDict>> {
    let entry = PyDict::new(py);
    entry.set_item("name", layer.name)?;
    entry.set_item("doc", layer.doc)?;
    let args = layer.args.iter().map(|a| argument(py, a.name, PortKind::Attr(a.kind), a.default, a.doc));
    entry.set_item("args", args.collect::<PyResult<Vec<_>>>()?)?;
    entry.set_item("aliases", layer.aliases.clone())?;
    entry.set_item("arg_aliases", layer.arg_aliases.to_vec())?;
    Ok(entry)
}

/// Other names for the ports of ops, each with the ports that it can stand for.
#[pyfunction]
pub fn port_aliases() -> Vec<(&'static str, Vec<&'static str>)> {
    signatures::PORT_ALIASES.iter().map(|(alias, ports)| (*alias, ports.to_vec())).collect()
}

/// Signatures of other libraries that differ from ours: op or layer, name, library, its parameters with our names, and
/// whether the name has only this order.
#[pyfunction]
#[expect(clippy::type_complexity, reason = "a table")]
pub fn library_signatures()
-> Vec<(&'static str, &'static str, &'static str, Vec<(&'static str, Option<&'static str>)>, bool)> {
    let ops = signatures::SIGNATURES.iter().map(|s| ("op", s));
    let layers = layers::signatures::SIGNATURES.iter().map(|s| ("layer", s));
    ops.chain(layers).map(|(what, s)| (what, s.name, s.library, s.names(), s.is_only)).collect()
}

/// The meanings of positional arguments of an op: positions of ports, -1 for sizes of the kernel, -2 for ignored ones; `None`
/// if they are in the order of the ports. `kinds` are their kinds, `words` their texts, `named` the ports with keywords.
#[pyfunction]
pub fn resolve_arguments(
    name: &str,
    kinds: Vec<String>,
    words: Vec<String>,
    named: Vec<String>,
) -> Outcome<Option<Vec<i64>>> {
    let (Some(signature), Some(op)) = (signatures::signature(name), ops::find(name)) else { return Ok(None) };
    let kinds: Vec<ArgumentKind> = kinds.iter().map(|kind| argument_kind(kind)).collect();
    let named: Vec<&str> = named.iter().map(String::as_str).collect();
    let text = |i: usize| words.get(i).cloned().unwrap_or_default();
    let slots = signature::resolve(signature, &Parameter::of_op(op), &kinds, &named, &text)?;
    let position = |slot| match slot {
        Slot::Parameter(i) => i as i64,
        Slot::Kernel => -1,
        Slot::Ignored => -2,
    };
    Ok(slots.map(|slots| slots.into_iter().map(position).collect()))
}

fn argument_kind(text: &str) -> ArgumentKind {
    match text {
        "tensor" => ArgumentKind::Tensor,
        "int" => ArgumentKind::Int,
        "float" => ArgumentKind::Float,
        "bool" => ArgumentKind::Bool,
        "str" => ArgumentKind::Text,
        "none" => ArgumentKind::None,
        ints => match ints.strip_prefix("ints").and_then(|n| n.parse().ok()) {
            Some(n) => ArgumentKind::Ints(n),
            None => ArgumentKind::Other,
        },
    }
}

/// Raises an error for positional arguments of a layer that mean something else in another library.
#[pyfunction]
pub fn check_layer(name: &str, args: Vec<Bound<'_, PyAny>>, named: Vec<String>) -> Outcome<()> {
    let Some(layer) = layers::find(name) else { return Ok(()) };
    let args = args.iter().map(literal).collect::<Outcome<Vec<_>>>()?;
    let named: Vec<&str> = named.iter().map(String::as_str).collect();
    Ok(layer.check_order(&args, &named)?)
}

/// Raises an error for keywords of an op that mean something else in another library; `ports` are the ports with an
/// argument, `kinds` the kinds of these.
#[pyfunction]
pub fn check_op_keywords(
    name: &str,
    keywords: Vec<String>,
    ports: Vec<String>,
    kinds: Vec<String>,
) -> Outcome<()> {
    let keywords: Vec<&str> = keywords.iter().map(String::as_str).collect();
    let kind_of = |port: &str| ports.iter().position(|p| p == port).map(|i| argument_kind(&kinds[i]));
    Ok(ForeignKeyword::check(signatures::FOREIGN_KEYWORDS, name, &keywords, &kind_of)?)
}

/// Raises an error for keywords of a layer that mean something else in another library.
#[pyfunction]
pub fn check_layer_keywords(
    name: &str,
    args: Vec<Bound<'_, PyAny>>,
    named: Vec<(String, Bound<'_, PyAny>)>,
) -> Outcome<()> {
    let Some(layer) = layers::find(name) else { return Ok(()) };
    let args = args.iter().map(literal).collect::<Outcome<Vec<_>>>()?;
    let named = named.iter().map(|(keyword, value)| Ok((keyword.as_str(), literal(value)?)));
    let named = named.collect::<Outcome<Vec<_>>>()?;
    Ok(layer.check_keywords(&args, &named)?)
}

/// Keywords that mean something else in another library, with the names of the ops or layers that take them.
#[pyfunction]
pub fn foreign_keywords() -> Vec<(&'static str, Vec<&'static str>)> {
    let entries = signatures::FOREIGN_KEYWORDS.iter().chain(layers::signatures::FOREIGN_KEYWORDS);
    entries.map(|entry| (entry.keyword, entry.names.to_vec())).collect()
}

/// All models of the zoo.
#[pyfunction]
pub fn zoo_definitions(py: Python<'_>) -> PyResult<Bound<'_, PyList>> {
    let list = PyList::empty(py);
    for model in zoo::all() {
        let entry = layer_definition(py, &model.layer)?;
        entry.set_item("example", model.definition.example)?;
        list.append(entry)?;
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
    let args = pairs(args.as_any())?;
    let args = args.iter().map(|(k, v)| Ok((k.as_str(), literal(v)?))).collect::<Outcome<Vec<_>>>()?;
    named(py, zoo::build(model, Vec::new(), args), name)
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
    let args = pairs(args.as_any())?;
    let args = args.iter().map(|(k, v)| Ok((k.as_str(), literal(v)?))).collect::<Outcome<Vec<_>>>()?;
    named(py, zoo::from_config(text, part, args), name)
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
