//! Update rules of optimizers, and training steps joined of them.

use mithril::ir::DType;
use mithril::model::optimizers::{self, Clipping, Part};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::convert::{dtype, literal, pairs};
use crate::definitions::layer_definition;
use crate::errors::Outcome;
use crate::model::{PyModel, here};

/// All optimizers.
#[pyfunction]
pub fn optimizer_definitions(py: Python<'_>) -> PyResult<Bound<'_, PyList>> {
    let list = PyList::empty(py);
    for optimizer in optimizers::all() {
        let entry = layer_definition(py, &optimizer.layer)?;
        entry.set_item("slots", optimizer.definition.slots.iter().map(|s| s.name).collect::<Vec<_>>())?;
        list.append(entry)?;
    }
    Ok(list)
}

/// Build the update rule of one parameter.
#[pyfunction]
pub fn optimizer_rule(py: Python<'_>, optimizer: &str, args: &Bound<'_, PyDict>) -> Outcome<PyModel> {
    let args = pairs(args.as_any())?;
    let args = args.iter().map(|(k, v)| Ok((k.as_str(), literal(v)?))).collect::<Outcome<Vec<_>>>()?;
    let model = optimizers::build(optimizer, Vec::new(), args).map_err(|e| e.at(&here(py)))?;
    Ok(PyModel { inner: model })
}

type PartArguments<'py> = (Vec<i64>, Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyDict>, usize, usize);
type Slots = Vec<Vec<(&'static str, Vec<i64>, &'static str, bool)>>;

/// Join the rules of many parameters to one model; with the slots of each, and the dtype of its scalars.
///
/// A part is the shape and dtype of a parameter, the dtype of its gradient, the arguments of its rule, and the
/// numbers of its learning rate and of its counter of steps. A slot is a name, shape, dtype, and whether it starts
/// as a copy of the parameter.
#[pyfunction]
#[pyo3(signature = (optimizer, parts, clip_value=None, clip_norm=None, master=false))]
pub fn optimizer_step(
    py: Python<'_>,
    optimizer: &str,
    parts: Vec<PartArguments<'_>>,
    clip_value: Option<f64>,
    clip_norm: Option<f64>,
    master: bool,
) -> Outcome<(PyModel, Slots, &'static str)> {
    let parts = parts.iter().map(part).collect::<Outcome<Vec<_>>>()?;
    let clipping = Clipping { value: clip_value, norm: clip_norm };
    let joined = optimizers::join(optimizer, &parts, clipping, master).map_err(|e| e.at(&here(py)))?;
    let slots = joined
        .slots
        .into_iter()
        .map(|kept| kept.into_iter().map(|s| (s.name, s.shape, DType::name(s.dtype), s.is_copy)).collect());
    Ok((PyModel { inner: joined.model }, slots.collect(), joined.scalar.name()))
}

fn part(part_options: &PartArguments<'_>) -> Outcome<Part> {
    let (shape, own, gradient, args, rate, counter) = part_options;
    let args = pairs(args.as_any())?.into_iter().map(|(k, v)| Ok((k, literal(&v)?)));
    Ok(Part {
        shape: shape.clone(),
        dtype: dtype(own)?,
        gradient: dtype(gradient)?,
        args: args.collect::<Outcome<_>>()?,
        rate: *rate,
        counter: *counter,
    })
}
