//! Targets of the compiler as Python sees them: a name, or a table with the methods of a user's backend.

use mithril::codegen::python::{
    self as codegen, Backward, Form, Method, MethodArgument, Overlay, PythonTarget, Value,
};
use mithril::compile::c::C;
use mithril::compile::ggml::Ggml;
use mithril::compile::inspect::{op_support_in_c, op_support_in_ggml};
use mithril::compile::pipeline::Target;
use mithril::ir::error::{Code, Error};
use mithril::ir::op::OpDef;
use mithril::ir::ops;
use pyo3::prelude::*;

use crate::errors::{Failure, Outcome};

/// The table of a target with the methods of a user's backend.
#[pyclass(name = "Target", module = "mithril", frozen)]
#[derive(Debug)]
pub struct PyTarget(pub PythonTarget);

/// Keyword, what is passed (`port`, `optional`, `rest`, `list`, `kernel_size`), port, form (`plain`, `upper`, `lower`, or a
/// length).
type ArgumentRow = (Option<String>, String, usize, String);
/// Op, name of the method, arguments, ports that it does not take.
type MethodRow = (String, String, Vec<ArgumentRow>, Vec<usize>);
/// Op, name of the function, ports that it does not take, ports given by name.
type BackwardRow = (String, String, Vec<usize>, Vec<usize>);

fn argument((keyword, kind, port, form): ArgumentRow) -> Outcome<MethodArgument> {
    let value = match kind.as_str() {
        "port" => Value::Port(port),
        "optional" => Value::Optional(port),
        "rest" => Value::Rest(port),
        "list" => Value::List(port),
        "kernel_size" => Value::KernelSize(port),
        other => return Err(Error::internal(format!("a method is given {other:?}")).into()),
    };
    let form = match form.as_str() {
        "plain" => Form::Plain,
        "upper" => Form::Upper,
        "lower" => Form::Lower,
        length => Form::Tuple(length.parse().map_err(|_| Error::internal(format!("a form is {length:?}")))?),
    };
    Ok(MethodArgument { keyword, value, form })
}

#[pymethods]
impl PyTarget {
    /// The target `base` with methods of the class `owner`.
    #[staticmethod]
    fn over(
        base: &str,
        owner: String,
        methods: Vec<MethodRow>,
        backwards: Vec<BackwardRow>,
    ) -> Outcome<Self> {
        let base = named(base)?;
        let mut overlay = Overlay {
            owner,
            falls_back: std::ptr::eq(base, &raw const codegen::CUSTOM),
            ..Overlay::default()
        };
        for (op, name, arguments, absent) in methods {
            let arguments = arguments.into_iter().map(argument).collect::<Outcome<_>>()?;
            overlay.methods.insert(op, Method { name, arguments, absent });
        }
        for (op, function, absent, options) in backwards {
            overlay.backwards.insert(op, Backward { function, absent, options });
        }
        Ok(Self(base.with(overlay)))
    }
    /// Name of the target that it is based on.
    #[getter]
    fn base(&self) -> &'static str {
        self.0.name
    }
    fn __repr__(&self) -> String {
        let owner = self.0.overlay.as_ref().map_or("", |overlay| &overlay.owner);
        format!("Target({:?}, {owner})", self.0.name)
    }
}

fn named(name: &str) -> Outcome<&'static PythonTarget> {
    let target = codegen::TARGETS.iter().find(|t| t.name == name);
    Ok(*target.ok_or_else(|| {
        let names: Vec<&str> = codegen::TARGETS.iter().map(|t| t.name).collect();
        Error::new(Code::Unsupported, format!("there is no target {name:?}"))
            .help(format!("targets are: {}", names.join(", ")))
    })?)
}

/// A target as an argument: by name, or a table.
#[derive(Debug)]
pub struct TargetArgument(pub PythonTarget);

impl<'py> FromPyObject<'_, 'py> for TargetArgument {
    type Error = Failure;
    fn extract(object: Borrowed<'_, 'py, PyAny>) -> Outcome<Self> {
        if let Ok(target) = object.cast::<PyTarget>() {
            return Ok(Self(target.get().0.clone()));
        }
        let name: String = object.extract()?;
        Ok(Self(named(&name)?.clone()))
    }
}

/// How the target runs each op, according to its definition: `native`, `expanded` or `missing`, by name.
#[pyfunction]
pub fn op_support(target: &Bound<'_, PyAny>) -> Outcome<Vec<(&'static str, &'static str)>> {
    let support_of: Box<dyn Fn(&'static OpDef) -> codegen::Support> = match native(target) {
        Some(support_of) if support_of.name() == "c" => Box::new(op_support_in_c),
        Some(_) => Box::new(op_support_in_ggml),
        None => {
            let table = target.extract::<TargetArgument>()?.0;
            Box::new(move |op| codegen::op_support(&table, op))
        }
    };
    let support = |op| match support_of(op) {
        codegen::Support::Native => "native",
        codegen::Support::Expanded => "expanded",
        codegen::Support::Missing => "missing",
    };
    Ok(ops::all().map(|op| (op.name, support(op))).collect())
}

/// A target that has no table of the Python writer.
pub fn native(target: &Bound<'_, PyAny>) -> Option<&'static dyn Target> {
    match target.extract::<String>().ok()?.as_str() {
        "c" => Some(&C),
        "ggml" => Some(&Ggml),
        _ => None,
    }
}
