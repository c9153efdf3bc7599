//! Python values as literals, shapes, dtypes and tensors, and back.

use std::sync::Arc;

use mithril::ir::error::{Code, Error};
use mithril::ir::{DType, Dim, Lit, Tensor, text};
use mithril::model::{Arg, Size};
use pyo3::prelude::*;
use pyo3::types::{
    IntoPyDict, PyBool, PyBytes, PyDict, PyEllipsis, PyFloat, PyInt, PyList, PySlice, PyString, PyTuple,
    PyType,
};

use crate::connection::PyConnection;
use crate::errors::{Failure, Outcome};

/// Nesting of tuples that is still read.
const MAX_DEPTH: usize = 32;

/// Canonical name of a dtype.
#[pyfunction]
pub fn parse_dtype(name: &str) -> Outcome<&'static str> {
    Ok(DType::parse(name)?.name())
}

/// The value of a literal in the text form, for test cases.
#[pyfunction]
pub fn parse_literal<'py>(py: Python<'py>, literal: &str) -> Outcome<Bound<'py, PyAny>> {
    Ok(literal_to_python(py, &text::parse_literal(literal)?)?)
}

/// A dtype of any library, by its name.
pub fn dtype(object: &Bound<'_, PyAny>) -> Outcome<DType> {
    let name = match object.cast::<PyString>() {
        Ok(text) => text.to_string(),
        Err(_) => object
            .getattr("name")
            .and_then(|n| n.extract::<String>())
            .or_else(|_| object.getattr("__name__").and_then(|n| n.extract::<String>()))
            .or_else(|_| object.str().map(|s| s.to_string()))?,
    };
    Ok(DType::parse(&name)?)
}

fn wrong(object: &Bound<'_, PyAny>, expected: &str) -> Failure {
    let kind = object.get_type().name().map_or_else(|_| "object".to_owned(), |n| n.to_string());
    let article = if kind.starts_with(['a', 'e', 'i', 'o']) { "an" } else { "a" };
    let text = object.repr().map_or_else(|_| String::new(), |text| text.to_string());
    // Large objects are recognized by their kind.
    let shown = if text.is_empty() || text.chars().count() > 60 || text.contains('\n') {
        format!("{article} {kind}")
    } else {
        format!("{text} ({article} {kind})")
    };
    Error::new(Code::BadArgument, format!("{shown} is not allowed here"))
        .help(format!("give {expected}"))
        .into()
}

/// A literal: numbers, texts, tuples, slices, dtypes, arrays.
pub fn literal(object: &Bound<'_, PyAny>) -> Outcome<Lit> {
    literal_at(object, 0)
}

fn literal_at(object: &Bound<'_, PyAny>, depth: usize) -> Outcome<Lit> {
    if depth > MAX_DEPTH {
        return Err(Error::new(Code::BadArgument, "tuples are nested too deeply").into());
    }
    if object.is_none() {
        return Ok(Lit::None);
    }
    if let Ok(b) = object.cast::<PyBool>() {
        return Ok(Lit::Bool(b.is_true()));
    }
    if object.is_instance_of::<PyInt>() {
        return integer(object);
    }
    if let Ok(x) = object.cast::<PyFloat>() {
        return Ok(Lit::Float(x.value()));
    }
    if let Ok(s) = object.cast::<PyString>() {
        // Our dtypes are strings of a class of their own.
        let is_dtype = !object.get_type().is(PyType::new::<PyString>(object.py()));
        return Ok(if is_dtype { Lit::DType(dtype(object)?) } else { Lit::text(&s.to_string_lossy()) });
    }
    if object.is_instance_of::<PyTuple>() || object.is_instance_of::<PyList>() {
        let items =
            object.try_iter()?.map(|item| literal_at(&item?, depth + 1)).collect::<Outcome<Vec<_>>>()?;
        return Ok(Lit::Tuple(items.into()));
    }
    if object.is_instance_of::<PySlice>() {
        let part = |name| literal_at(&object.getattr(name)?, depth + 1);
        return Ok(Lit::Slice(Arc::new([part("start")?, part("stop")?, part("step")?])));
    }
    if object.is_instance_of::<PyEllipsis>() {
        return Ok(Lit::Ellipsis);
    }
    if object.hasattr("shape")? && object.hasattr("dtype")? && !object.is_instance_of::<PyType>() {
        let t = tensor(object, None)?;
        if t.rank() == 0 && object.hasattr("__index__")? && object.getattr("__index__")?.call0().is_ok() {
            return integer(object);
        }
        return Ok(Lit::Tensor(Arc::new(t)));
    }
    if object.is_instance_of::<PyType>()
        || object.get_type().name()?.to_string().to_lowercase().contains("dtype")
    {
        return Ok(Lit::DType(dtype(object)?));
    }
    Err(wrong(object, "a number, a text, a tuple, a dtype, an array or a connection"))
}

fn integer(object: &Bound<'_, PyAny>) -> Outcome<Lit> {
    let index = object.call_method0("__index__")?;
    let wide = index
        .extract::<i64>()
        .map(Lit::int)
        .or_else(|_| index.extract::<u64>().map(|n| i128::from(n).into()));
    wide.map_err(|_| {
        Error::new(Code::BadArgument, format!("the integer {index} is too large"))
            .help(format!("int64 holds integers up to {}, uint64 up to {}", i64::MAX, u64::MAX))
            .into()
    })
}

fn not_numbers(array: &Bound<'_, PyAny>) -> Failure {
    let name = array.getattr("dtype").map_or_else(|_| "objects".to_owned(), |d| d.to_string());
    Error::new(Code::BadDType, format!("an array of {name} is not a tensor"))
        .help("convert it to one of our dtypes, e.g. array.astype(\"float32\")")
        .into()
}

/// A tensor from anything NumPy makes an array of.
pub fn tensor(object: &Bound<'_, PyAny>, target: Option<DType>) -> Outcome<Tensor> {
    let py = object.py();
    let numpy = py.import("numpy")?;
    let object = if object.hasattr("detach")? {
        object.call_method0("detach")?.call_method0("cpu")?
    } else {
        object.clone()
    };
    let array = numpy.call_method1("ascontiguousarray", (&object,))?;
    let shape: Vec<usize> =
        object.getattr("shape").and_then(|s| s.extract()).or_else(|_| array.getattr("shape")?.extract())?;
    let dtype = dtype(&array.getattr("dtype")?).map_err(|_| not_numbers(&array))?;
    let little = array.getattr("dtype")?.call_method1("newbyteorder", ("<",))?;
    let array = array.call_method("astype", (little,), Some(&[("copy", false)].into_py_dict(py)?))?;
    let bytes = array.call_method0("tobytes")?;
    let bytes = bytes.cast::<PyBytes>().map_err(PyErr::from)?;
    let t = Tensor::from_bytes(dtype, shape, bytes.as_bytes())?;
    Ok(match target {
        Some(target) if target != dtype => t.cast(target),
        _ => t,
    })
}

/// A NumPy array of a tensor.
pub fn array<'py>(py: Python<'py>, t: &Tensor) -> PyResult<Bound<'py, PyAny>> {
    let numpy = py.import("numpy")?;
    let name = t.dtype().name();
    let dtype = if t.dtype() == DType::BF16 {
        py.import("ml_dtypes")?.getattr("bfloat16")?
    } else {
        numpy.getattr("dtype")?.call1((name,))?
    };
    let buffer = numpy.call_method1("frombuffer", (PyBytes::new(py, &t.to_bytes()), dtype))?;
    let shape = PyTuple::new(py, t.shape())?;
    // A copy, since memory of `bytes` is read-only.
    buffer.call_method1("reshape", (shape,))?.call_method0("copy")
}

/// A literal as a Python value.
pub fn literal_to_python<'py>(py: Python<'py>, lit: &Lit) -> PyResult<Bound<'py, PyAny>> {
    Ok(match lit {
        Lit::None => py.None().into_bound(py),
        Lit::Bool(b) => PyBool::new(py, *b).to_owned().into_any(),
        Lit::Int(Dim::Const(n)) => n.into_pyobject(py)?.into_any(),
        Lit::Float(x) => PyFloat::new(py, *x).into_any(),
        Lit::Str(s) => PyString::new(py, s).into_any(),
        Lit::DType(d) => py.import("mithril.dtypes")?.getattr("DType")?.call1((d.name(),))?,
        Lit::Tuple(items) => {
            let items = items.iter().map(|i| literal_to_python(py, i)).collect::<PyResult<Vec<_>>>()?;
            PyTuple::new(py, items)?.into_any()
        }
        Lit::Ellipsis => py.Ellipsis().into_bound(py),
        Lit::Tensor(t) => array(py, t)?,
        Lit::Slice(p) => {
            let part = |i: usize| literal_to_python(py, &p[i]);
            py.import("builtins")?.getattr("slice")?.call1((part(0)?, part(1)?, part(2)?))?
        }
        Lit::Int(_) | Lit::Training => PyString::new(py, &lit.to_string()).into_any(),
    })
}

/// What may stand at a port.
pub fn argument(object: &Bound<'_, PyAny>) -> Outcome<Arg> {
    if let Ok(c) = object.cast::<PyConnection>() {
        return Ok(Arg::Connection(c.get().0.clone()));
    }
    if let Ok(name) = object.cast_exact::<PyString>() {
        return Ok(Arg::Name(name.to_string_lossy().as_ref().into()));
    }
    if (object.is_instance_of::<PyTuple>() || object.is_instance_of::<PyList>()) && holds_connection(object)?
    {
        let items = object.try_iter()?.map(|item| argument(&item?)).collect::<Outcome<Vec<_>>>()?;
        return Ok(Arg::List(items));
    }
    if let Ok(slice) = object.cast::<PySlice>()
        && holds_connection(&slice_parts(slice)?)?
    {
        return Err(wrong(object, "slices with numbers; use `slice` for sizes of connections"));
    }
    Ok(Arg::Lit(literal(object)?))
}

fn slice_parts<'py>(slice: &Bound<'py, PySlice>) -> PyResult<Bound<'py, PyAny>> {
    let parts = (slice.getattr("start")?, slice.getattr("stop")?, slice.getattr("step")?);
    Ok(parts.into_pyobject(slice.py())?.into_any())
}

fn holds_connection(items: &Bound<'_, PyAny>) -> PyResult<bool> {
    for item in items.try_iter()? {
        let item = item?;
        if item.is_instance_of::<PyConnection>() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A shape as a user declares it: numbers, symbols, `None`.
pub fn sizes(object: &Bound<'_, PyAny>) -> Outcome<Vec<Size>> {
    if object.is_instance_of::<PyString>() || object.try_iter().is_err() {
        return Err(wrong(object, "a shape: a list of numbers, symbols and None"));
    }
    object.try_iter()?.map(|item| size(&item?)).collect()
}

fn size(object: &Bound<'_, PyAny>) -> Outcome<Size> {
    if object.is_none() {
        return Ok(Size::Unknown);
    }
    if let Ok(name) = object.cast::<PyString>() {
        let name = name.to_string_lossy();
        let dim = text::parse_dim(&name).map_err(|_| {
            Error::new(Code::BadSize, format!("{name:?} is not a size"))
                .help("a symbol is a word of letters, digits and underscores, e.g. \"batch\"")
        })?;
        return Ok(Size::Is(dim));
    }
    let wrong_size = || wrong(object, "a number, a symbol or None as a size");
    match literal(object).map_err(|_| wrong_size())? {
        Lit::Int(Dim::Const(n)) if n >= 0 => Ok(Size::from(n)),
        Lit::Int(dim) => Err(Error::new(Code::BadSize, format!("a size is {dim}"))
            .help("sizes are not negative; None stands for any size")
            .into()),
        _ => Err(wrong_size()),
    }
}

/// Shape as Python: numbers and expressions as texts.
pub fn shape_to_python<'py>(py: Python<'py>, shape: &[Dim]) -> PyResult<Bound<'py, PyTuple>> {
    let items = shape
        .iter()
        .map(|d| match d {
            Dim::Const(n) => Ok(n.into_pyobject(py)?.into_any()),
            Dim::Expr(_) => Ok(PyString::new(py, &d.to_string()).into_any()),
        })
        .collect::<PyResult<Vec<_>>>()?;
    PyTuple::new(py, items)
}

/// Pairs of a mapping with texts as keys.
pub fn pairs<'py>(mapping: &Bound<'py, PyAny>) -> Outcome<Vec<(String, Bound<'py, PyAny>)>> {
    if let Ok(dict) = mapping.cast::<PyDict>() {
        return dict.iter().map(|(k, v)| Ok((k.extract::<String>()?, v))).collect();
    }
    mapping
        .call_method0("items")?
        .try_iter()?
        .map(|item| {
            let (k, v): (String, Bound<'py, PyAny>) = item?.extract()?;
            Ok((k, v))
        })
        .collect()
}
