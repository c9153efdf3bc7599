//! Connections and IOKeys.

use std::collections::BTreeMap;

use mithril::ir::ops::signatures;
use mithril::ir::{Lit, ops};
use mithril::model::{Arg, Connection, IOKey};
use pyo3::exceptions::{PyAttributeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::convert::{argument, dtype, literal, sizes};
use crate::errors::Outcome;
use crate::model::converted;

/// What flows between the parts of a model.
///
/// Operators and methods of a connection are ops: ``x * 2``, ``x.sum(axis=1)``, ``x[:, 0]``, ``x.shape[0]``.
#[pyclass(name = "Connection", module = "mithril", frozen, subclass)]
#[derive(Debug)]
pub struct PyConnection(pub Connection);

/// A connection to be made, with everything that can be said about it.
///
/// Parameters
/// ----------
/// name : str, optional
///     Name of the connection.
/// value : object, optional
///     Constant value, or the default of an input.
/// shape : sequence, optional
///     Numbers, symbols (``"batch"``) and None.
/// dtype : dtype, optional
///     Also spelled ``type``.
/// expose : bool, optional
///     Make it an output of the model, or keep it from being one.
/// differentiable : bool, optional
///     Whether the input is learned. Also spelled ``trainable``.
/// ranges : mapping, optional
///     Smallest and largest sizes of axes of an input; others are errors: ``{0: (2, 64), 1: (1, None)}``.
#[pyclass(name = "IOKey", module = "mithril", frozen, extends = PyConnection)]
#[derive(Debug)]
pub struct PyIOKey {
    name: Option<String>,
}

#[pymethods]
impl PyIOKey {
    #[new]
    #[pyo3(signature = (name=None, value=None, shape=None, dtype=None, expose=None, differentiable=None, *, r#type=None, trainable=None, ranges=None))]
    #[expect(clippy::too_many_arguments, reason = "the signature is the API")]
    fn new(
        name: Option<&str>,
        value: Option<&Bound<'_, PyAny>>,
        shape: Option<&Bound<'_, PyAny>>,
        dtype: Option<&Bound<'_, PyAny>>,
        expose: Option<bool>,
        differentiable: Option<bool>,
        r#type: Option<&Bound<'_, PyAny>>,
        trainable: Option<bool>,
        ranges: Option<BTreeMap<usize, (i64, Option<i64>)>>,
    ) -> Outcome<PyClassInitializer<Self>> {
        let mut key = name.map_or_else(IOKey::unnamed, IOKey::new);
        if let Some(value) = value {
            key = key.value(literal(value)?);
        }
        if let Some(shape) = shape {
            key = key.shape(sizes(shape)?);
        }
        if let Some(d) = dtype.or(r#type) {
            key = key.dtype(crate::convert::dtype(d)?);
        }
        if let Some(expose) = expose {
            key = key.expose(expose);
        }
        if let Some(trainable) = differentiable.or(trainable) {
            key = key.trainable(trainable);
        }
        for (axis, (min, max)) in ranges.into_iter().flatten() {
            key = key.limit(axis, min, max);
        }
        // One connection wherever the object is used.
        let connection = PyConnection(Connection::input(key));
        Ok(PyClassInitializer::from(connection).add_subclass(Self { name: name.map(Into::into) }))
    }
    #[getter]
    fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }
    fn __repr__(&self) -> String {
        format!("IOKey({})", self.name.as_ref().map_or_else(|| "None".into(), |n| format!("{n:?}")))
    }
}

/// A method of a connection: an op with the connection as its first input.
#[pyclass(module = "mithril", frozen)]
#[derive(Debug)]
pub struct PyMethod {
    connection: Connection,
    op: &'static mithril::ir::OpDef,
    name: String,
}

#[pymethods]
impl PyMethod {
    #[pyo3(signature = (*args, **named))]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        args: &Bound<'py, PyTuple>,
        named: Option<&Bound<'py, PyDict>>,
    ) -> Outcome<Bound<'py, PyAny>> {
        let mut all = vec![Arg::Connection(self.connection.clone())];
        // x.reshape(2, -1) says the same as x.reshape((2, -1)).
        let is_packed =
            args.len() > 1 && self.op.ports.len() == 2 && signatures::packs(&self.name, args.len());
        if is_packed {
            all.push(argument(args.as_any())?);
        } else {
            for arg in args {
                all.push(argument(&arg)?);
            }
        }
        let named = named.map(|n| crate::convert::pairs(n.as_any())).transpose()?.unwrap_or_default();
        let named = named.iter().map(|(k, v)| Ok((k.as_str(), argument(v)?))).collect::<Outcome<Vec<_>>>()?;
        outputs(py, Connection::as_called(&self.name, all, named)?)
    }
}

/// Texts at literal ports are values, not names of connections.
fn texts(op: &'static mithril::ir::OpDef, args: Vec<Arg>) -> Vec<Arg> {
    let text = |(i, arg): (usize, Arg)| match arg {
        Arg::Name(text) if !op.takes_tensor(i) => Arg::Lit(Lit::Str(text)),
        other => other,
    };
    args.into_iter().enumerate().map(text).collect()
}

/// One connection, or a tuple of several.
pub fn outputs(py: Python<'_>, connections: Vec<Connection>) -> Outcome<Bound<'_, PyAny>> {
    let mut values = Vec::with_capacity(connections.len());
    for c in connections {
        values.push(Bound::new(py, PyConnection(c))?.into_any());
    }
    match <[_; 1]>::try_from(values) {
        Ok([one]) => Ok(one),
        Err(several) => Ok(PyTuple::new(py, several)?.into_any()),
    }
}

/// Applies an op to connections, numbers and arrays.
#[pyfunction]
pub fn apply_op<'py>(
    py: Python<'py>,
    name: &str,
    args: Vec<Bound<'py, PyAny>>,
) -> Outcome<Bound<'py, PyAny>> {
    let args = args.iter().map(argument).collect::<Outcome<Vec<_>>>()?;
    let args = match ops::find(name) {
        Some(op) => texts(op, args),
        None => args,
    };
    outputs(py, Connection::op_outputs_at(name, args, Vec::new(), converted())?)
}

/// Applies an op as users of any library call it ([`Connection::as_called`]).
#[pyfunction]
pub fn apply_called<'py>(
    py: Python<'py>,
    name: &str,
    args: Vec<Bound<'py, PyAny>>,
    named: &Bound<'py, PyDict>,
) -> Outcome<Bound<'py, PyAny>> {
    let args = args.iter().map(argument).collect::<Outcome<Vec<_>>>()?;
    let named = crate::convert::pairs(named.as_any())?;
    let named = named.iter().map(|(k, v)| Ok((k.as_str(), argument(v)?))).collect::<Outcome<Vec<_>>>()?;
    outputs(py, Connection::as_called(name, args, named)?)
}

impl PyConnection {
    fn left(&self, op: &str, other: &Bound<'_, PyAny>) -> Outcome<Self> {
        Ok(Self(Connection::arithmetic(op, (&self.0).into(), argument(other)?)?))
    }
    fn right(&self, op: &str, other: &Bound<'_, PyAny>) -> Outcome<Self> {
        Ok(Self(Connection::arithmetic(op, argument(other)?, (&self.0).into())?))
    }
}

#[pymethods]
impl PyConnection {
    fn __add__(&self, other: &Bound<'_, PyAny>) -> Outcome<Self> {
        self.left("add", other)
    }
    fn __radd__(&self, other: &Bound<'_, PyAny>) -> Outcome<Self> {
        self.right("add", other)
    }
    fn __sub__(&self, other: &Bound<'_, PyAny>) -> Outcome<Self> {
        self.left("subtract", other)
    }
    fn __rsub__(&self, other: &Bound<'_, PyAny>) -> Outcome<Self> {
        self.right("subtract", other)
    }
    fn __mul__(&self, other: &Bound<'_, PyAny>) -> Outcome<Self> {
        self.left("multiply", other)
    }
    fn __rmul__(&self, other: &Bound<'_, PyAny>) -> Outcome<Self> {
        self.right("multiply", other)
    }
    fn __truediv__(&self, other: &Bound<'_, PyAny>) -> Outcome<Self> {
        self.left("divide", other)
    }
    fn __rtruediv__(&self, other: &Bound<'_, PyAny>) -> Outcome<Self> {
        self.right("divide", other)
    }
    fn __floordiv__(&self, other: &Bound<'_, PyAny>) -> Outcome<Self> {
        self.left("floor_divide", other)
    }
    fn __rfloordiv__(&self, other: &Bound<'_, PyAny>) -> Outcome<Self> {
        self.right("floor_divide", other)
    }
    fn __mod__(&self, other: &Bound<'_, PyAny>) -> Outcome<Self> {
        self.left("remainder", other)
    }
    fn __rmod__(&self, other: &Bound<'_, PyAny>) -> Outcome<Self> {
        self.right("remainder", other)
    }
    fn __matmul__(&self, other: &Bound<'_, PyAny>) -> Outcome<Self> {
        self.left("matmul", other)
    }
    fn __rmatmul__(&self, other: &Bound<'_, PyAny>) -> Outcome<Self> {
        self.right("matmul", other)
    }
    fn __and__(&self, other: &Bound<'_, PyAny>) -> Outcome<Self> {
        self.left("logical_and", other)
    }
    fn __rand__(&self, other: &Bound<'_, PyAny>) -> Outcome<Self> {
        self.right("logical_and", other)
    }
    fn __or__(&self, other: &Bound<'_, PyAny>) -> Outcome<Self> {
        self.left("logical_or", other)
    }
    fn __ror__(&self, other: &Bound<'_, PyAny>) -> Outcome<Self> {
        self.right("logical_or", other)
    }
    fn __xor__(&self, other: &Bound<'_, PyAny>) -> Outcome<Self> {
        self.left("logical_xor", other)
    }
    fn __rxor__(&self, other: &Bound<'_, PyAny>) -> Outcome<Self> {
        self.right("logical_xor", other)
    }
    fn __pow__(&self, other: &Bound<'_, PyAny>, _modulo: Option<&Bound<'_, PyAny>>) -> Outcome<Self> {
        Ok(Self(Connection::arithmetic("power", (&self.0).into(), argument(other)?)?))
    }
    fn __rpow__(&self, other: &Bound<'_, PyAny>, _modulo: Option<&Bound<'_, PyAny>>) -> Outcome<Self> {
        Ok(Self(Connection::arithmetic("power", argument(other)?, (&self.0).into())?))
    }
    fn __neg__(&self) -> Outcome<Self> {
        Ok(Self(self.0.negative()?))
    }
    fn __abs__(&self) -> Outcome<Self> {
        Ok(Self(Connection::op("abs", vec![(&self.0).into()], Vec::new())?))
    }
    fn __invert__(&self) -> Outcome<Self> {
        Ok(Self(Connection::op("logical_not", vec![(&self.0).into()], Vec::new())?))
    }
    fn __richcmp__(&self, other: &Bound<'_, PyAny>, how: pyo3::basic::CompareOp) -> Outcome<Self> {
        use pyo3::basic::CompareOp;
        let op = match how {
            CompareOp::Lt => "less",
            CompareOp::Le => "less_equal",
            CompareOp::Eq => "equal",
            CompareOp::Ne => "not_equal",
            CompareOp::Gt => "greater",
            CompareOp::Ge => "greater_equal",
        };
        Ok(Self(Connection::op(op, vec![(&self.0).into(), argument(other)?], Vec::new())?))
    }
    fn __getitem__(&self, key: &Bound<'_, PyAny>) -> Outcome<Self> {
        if self.0.is_literal() {
            return Ok(Self(self.0.item(argument(key)?)?));
        }
        let (key, tensors) = split_key(key)?;
        let mut args = vec![Arg::from(&self.0), Arg::Lit(key)];
        args.extend(tensors);
        Ok(Self(Connection::op("getitem", args, Vec::new())?))
    }
    /// The shape, a tuple of sizes: ``x.shape[0]`` may stand wherever a number may.
    #[getter]
    fn shape(&self) -> Outcome<Self> {
        Ok(Self(self.0.shape()?))
    }
    /// The tensor with its axes in reverse order.
    #[getter(T)]
    fn transposed(&self) -> Outcome<Self> {
        Ok(Self(Connection::op("transpose", vec![(&self.0).into()], Vec::new())?))
    }
    /// A free-standing input.
    #[staticmethod]
    #[pyo3(signature = (name=None, shape=None, dtype=None))]
    fn input(
        name: Option<&str>,
        shape: Option<&Bound<'_, PyAny>>,
        dtype: Option<&Bound<'_, PyAny>>,
    ) -> Outcome<Self> {
        let mut key = name.map_or_else(IOKey::unnamed, IOKey::new);
        if let Some(shape) = shape {
            key = key.shape(sizes(shape)?);
        }
        if let Some(d) = dtype {
            key = key.dtype(self::dtype(d)?);
        }
        Ok(Self(Connection::input(key)))
    }
    fn __getattr__(&self, name: &str) -> PyResult<PyMethod> {
        match ops::find(name) {
            Some(op) if !name.starts_with("__") => {
                Ok(PyMethod { connection: self.0.clone(), op, name: name.to_owned() })
            }
            _ => Err(PyAttributeError::new_err(format!(
                "a connection has no attribute and there is no op {name:?}"
            ))),
        }
    }
    fn __bool__(&self) -> PyResult<bool> {
        Err(PyTypeError::new_err(
            "a connection has no value while the model is defined, so it cannot decide an `if` or `while`; \
             use where(condition, a, b), or decide by a Python value",
        ))
    }
    fn __iter__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("a connection cannot be iterated over; index it: x[0], x.shape[0]"))
    }
    fn __array__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err(
            "a connection has no value while the model is defined; use ops of a backend or methods of the \
             connection in the place of NumPy functions",
        ))
    }
    fn __hash__(slf: &Bound<'_, Self>) -> isize {
        slf.as_ptr() as isize >> 4
    }
    fn __repr__(&self) -> String {
        format!("{:?}", self.0)
    }
}

/// The literal part of an index, with the text "tensor" where a tensor stands, and the tensors.
pub fn split_key(key: &Bound<'_, PyAny>) -> Outcome<(Lit, Vec<Arg>)> {
    let items: Vec<Bound<'_, PyAny>> = match key.cast::<PyTuple>() {
        Ok(tuple) => tuple.iter().collect(),
        Err(_) => vec![key.clone()],
    };
    let (mut lits, mut tensors) = (Vec::new(), Vec::new());
    for item in items {
        match argument(&item)? {
            Arg::Lit(lit @ (Lit::Tensor(_) | Lit::Tuple(_))) => {
                let array = match lit {
                    Lit::Tensor(t) => Lit::Tensor(t),
                    _ => Lit::from(crate::convert::tensor(&item, None)?),
                };
                lits.push(Lit::text("tensor"));
                tensors.push(Arg::Lit(array));
            }
            Arg::Lit(lit) => lits.push(lit),
            other => {
                lits.push(Lit::text("tensor"));
                tensors.push(other);
            }
        }
    }
    Ok((Lit::Tuple(lits.into()), tensors))
}
