//! Single ops on arrays, as programs in Python source and for the interpreter.

use std::sync::Arc;

use mithril::codegen::python::{self as codegen, Argument, Function, Results};
use mithril::compile::pipeline::lower;
use mithril::compile::python::Python as PythonBackend;
use mithril::ir::error::Error;
use mithril::ir::graph::{Graph, Role, TensorType, ValueId};
use mithril::ir::{Builder, DType, Lit, Shape, ops};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::convert::{dtype, literal, shape_to_python};
use crate::errors::Outcome;
use crate::runner::{PyRunner, one_dict};
use crate::source::PySource;
use crate::target::TargetArgument;

/// Source of the function `op` that applies one op to arrays `x0`, `x1` … of the given dtypes and shapes.
#[pyfunction]
#[pyo3(signature = (name, signature, target, float, device="cpu"))]
pub fn eager_source(
    name: &str,
    signature: Vec<Bound<'_, PyAny>>,
    target: TargetArgument,
    float: &str,
    device: &str,
) -> Outcome<PySource> {
    let target = &target.0;
    let float = DType::parse(float)?;
    let (graph, many) = eager_graph(name, &signature, float)?;
    let no_op = &mut |_: &str, _: &Graph| {};
    let graph = lower(&graph, &PythonBackend(target), float, no_op)?;
    let arguments = [Argument { name: "x", role: Role::Data }];
    let function = Function {
        name: "op",
        graph: &graph,
        arguments: &arguments,
        results: Results::Tuple,
        donated: &[],
        foreach: false,
    };
    Ok(PySource { source: codegen::emit_on(target, &[function], device)?, many, partition: None })
}

/// Dtypes and shapes of the results of an op applied to arguments of that signature.
#[pyfunction]
pub fn eager_types<'py>(
    py: Python<'py>,
    name: &str,
    signature: Vec<Bound<'py, PyAny>>,
    float: &str,
) -> Outcome<Vec<(&'static str, Bound<'py, PyTuple>)>> {
    let (graph, _) = eager_graph(name, &signature, DType::parse(float)?)?;
    let types = graph.outputs.values().filter_map(|&v| graph.ty(v));
    types.map(|ty| Ok((ty.dtype.name(), shape_to_python(py, &ty.shape)?))).collect()
}

/// As [`eager_source`], run by the reference interpreter.
#[pyfunction]
pub fn eager_runner(name: &str, signature: Vec<Bound<'_, PyAny>>, float: &str) -> Outcome<PyRunner> {
    let (graph, many) = eager_graph(name, &signature, DType::parse(float)?)?;
    let results = one_dict(&graph);
    Ok(PyRunner { graph, groups: vec![Role::Data], results, tuple: true, many, mesh: None })
}

fn eager_graph(name: &str, signature: &[Bound<'_, PyAny>], float: DType) -> Outcome<(Graph, bool)> {
    let op = ops::find(name).ok_or_else(|| Error::internal(format!("eager methods have no op {name:?}")))?;
    let mut builder = Builder::new(float);
    let mut args = Vec::new();
    let mut arrays = 0;
    for item in signature {
        eager_argument(&mut builder, item, &mut arrays, &mut args)?;
    }
    let outputs = builder.push(op, &args)?;
    for (i, &v) in outputs.iter().enumerate() {
        builder.graph.outputs.insert(format!("y{i}").into(), v);
    }
    Ok((builder.graph, outputs.len() > 1))
}

fn eager_argument(
    builder: &mut Builder,
    item: &Bound<'_, PyAny>,
    arrays: &mut usize,
    args: &mut Vec<ValueId>,
) -> Outcome<()> {
    let Ok(parts) = item.cast::<PyTuple>() else {
        let lit = literal(item)?;
        args.push(builder.lit(lit));
        return Ok(());
    };
    let tag: String = parts.get_item(0)?.extract()?;
    if tag == "array" {
        let shape: Vec<i64> = parts.get_item(2)?.extract()?;
        let ty = TensorType { dtype: dtype(&parts.get_item(1)?)?, shape: Shape::of(shape) };
        let v = builder.graph.add_input(format!("x{arrays}"), Role::Data, ty);
        *arrays += 1;
        args.push(v);
        return Ok(());
    }
    let holds_arrays = tag == "tuple"
        && parts.iter().skip(1).any(|p| {
            p.cast::<PyTuple>().is_ok_and(|p| p.get_item(0).is_ok_and(|t| t.eq("array").unwrap_or(false)))
        });
    if holds_arrays {
        for part in parts.iter().skip(1) {
            eager_argument(builder, &part, arrays, args)?;
        }
        return Ok(());
    }
    let lit = eager_literal(item)?;
    args.push(builder.lit(lit));
    Ok(())
}

/// A literal of a signature, where every value is tagged with its type.
fn eager_literal(item: &Bound<'_, PyAny>) -> Outcome<Lit> {
    let Ok(parts) = item.cast::<PyTuple>() else { return literal(item) };
    let tag: String = parts.get_item(0)?.extract()?;
    let rest = || parts.iter().skip(1);
    Ok(match tag.as_str() {
        "tuple" => Lit::Tuple(rest().map(|p| eager_literal(&p)).collect::<Outcome<Vec<_>>>()?.into()),
        "slice" => {
            let p = rest().map(|p| literal(&p)).collect::<Outcome<Vec<_>>>()?;
            let get = |i: usize| p.get(i).cloned().unwrap_or(Lit::None);
            Lit::Slice(Arc::new([get(0), get(1), get(2)]))
        }
        "dtype" => Lit::DType(dtype(&parts.get_item(1)?)?),
        _ => literal(&parts.get_item(1)?)?,
    })
}
