//! Files of GGUF: what they say about themselves, low-bit blocks, and writing.

use std::path::PathBuf;

use mithril::ir::error::{Code, Error};
use mithril::ir::{DType, Result};
use mithril::runtime::weights::{self, BlockFormat, FORMATS, GgufEntry, List, Stored, Value};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyByteArray, PyBytes, PyList, PyString, PyTuple};

use crate::errors::Outcome;
use crate::weights::streamed;

/// Nesting of lists that is still read.
const MAX_DEPTH: usize = 4;

/// Runs `$do!(dtype of NumPy, variant, type)` for every kind of numbers.
macro_rules! numbers {
    ($do:ident) => {
        $do! {
            "|u1", U8, u8; "|i1", I8, i8; "<u2", U16, u16; "<i2", I16, i16; "<u4", U32, u32; "<i4", I32, i32;
            "<f4", F32, f32; "<u8", U64, u64; "<i8", I64, i64; "<f8", F64, f64;
        }
    };
}

/// A value: texts and booleans as they are; numbers as NumPy's dtype, their bytes, and whether it is a list.
pub fn to_python<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    macro_rules! convert {
        ($($code:literal, $kind:ident, $type:ty;)*) => {
            match value {
                Value::Text(text) => Ok(PyString::new(py, text).into_any()),
                Value::Bool(b) => Ok(PyBool::new(py, *b).to_owned().into_any()),
                Value::List(list) => list_to_python(py, list),
                $(Value::$kind(n) => numbers_to_python(py, $code, &n.to_le_bytes(), false),)*
            }
        };
    }
    numbers!(convert)
}

fn list_to_python<'py>(py: Python<'py>, list: &List) -> PyResult<Bound<'py, PyAny>> {
    macro_rules! convert {
        ($($code:literal, $kind:ident, $type:ty;)*) => {
            match list {
                List::Text(items) => Ok(PyList::new(py, items)?.into_any()),
                List::Bool(items) => Ok(PyList::new(py, items)?.into_any()),
                List::List(items) => {
                    let items = items.iter().map(|item| list_to_python(py, item)).collect::<PyResult<Vec<_>>>()?;
                    Ok(PyList::new(py, items)?.into_any())
                }
                $(List::$kind(items) => {
                    let bytes: Vec<u8> = items.iter().flat_map(|n| n.to_le_bytes()).collect();
                    numbers_to_python(py, $code, &bytes, true)
                })*
            }
        };
    }
    numbers!(convert)
}

fn numbers_to_python<'py>(
    py: Python<'py>,
    code: &str,
    bytes: &[u8],
    many: bool,
) -> PyResult<Bound<'py, PyAny>> {
    Ok((code, PyBytes::new(py, bytes), many).into_pyobject(py)?.into_any())
}

/// A value in the form of [`to_python`].
fn from_python(object: &Bound<'_, PyAny>) -> Outcome<Value> {
    if let Ok(text) = object.extract::<String>() {
        return Ok(Value::Text(text));
    }
    if let Ok(b) = object.cast::<PyBool>() {
        return Ok(Value::Bool(b.is_true()));
    }
    if object.is_instance_of::<PyTuple>() {
        let (code, bytes, many): (String, Vec<u8>, bool) = object.extract()?;
        let list = numbers_from_python(&code, &bytes)?;
        return if many { Ok(Value::List(list)) } else { single(list) };
    }
    Ok(Value::List(list_from_python(object, 0)?))
}

fn list_from_python(object: &Bound<'_, PyAny>, depth: usize) -> Outcome<List> {
    if let Ok((code, bytes, _)) = object.extract::<(String, Vec<u8>, bool)>() {
        return numbers_from_python(&code, &bytes);
    }
    if depth > MAX_DEPTH {
        return Err(Error::new(Code::BadArgument, "lists are nested too deeply").into());
    }
    if let Ok(items) = object.extract::<Vec<bool>>()
        && !items.is_empty()
    {
        return Ok(List::Bool(items));
    }
    if let Ok(items) = object.extract::<Vec<String>>() {
        return Ok(List::Text(items));
    }
    let items = object.try_iter()?.map(|item| list_from_python(&item?, depth + 1));
    Ok(List::List(items.collect::<Outcome<_>>()?))
}

fn numbers_from_python(code: &str, bytes: &[u8]) -> Outcome<List> {
    macro_rules! convert {
        ($($known:literal, $kind:ident, $type:ty;)*) => {
            match code {
                $($known => {
                    let (items, _) = bytes.as_chunks::<{ size_of::<$type>() }>();
                    Ok(List::$kind(items.iter().map(|item| <$type>::from_le_bytes(*item)).collect()))
                })*
                _ => Err(Error::new(Code::BadDType, format!("GGUF has no numbers of {code}")).into()),
            }
        };
    }
    numbers!(convert)
}

fn single(list: List) -> Outcome<Value> {
    macro_rules! convert {
        ($($code:literal, $kind:ident, $type:ty;)*) => {
            match list {
                $(List::$kind(items) if items.len() == 1 => Ok(Value::$kind(items[0])),)*
                _ => Err(Error::internal("a number has several values").into()),
            }
        };
    }
    numbers!(convert)
}

/// Forms of blocks: name, values and bytes of a block, whether they can be made.
#[pyfunction]
pub fn block_formats() -> Vec<(&'static str, usize, usize, bool)> {
    FORMATS.iter().map(|f| (f.name, f.values, f.bytes, f.is_writable())).collect()
}

/// Blocks of values, given as the bytes of float32.
#[pyfunction]
pub fn quantize_blocks<'py>(py: Python<'py>, format: &str, values: &[u8]) -> Outcome<Bound<'py, PyBytes>> {
    let format = BlockFormat::writable(format)?;
    let blocks = py.detach(|| {
        let (values, _) = values.as_chunks::<4>();
        format.quantize(&values.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect::<Vec<_>>())
    })?;
    Ok(PyBytes::new(py, &blocks))
}

/// The values of blocks, as the bytes of float32.
#[pyfunction]
pub fn dequantize_blocks<'py>(
    py: Python<'py>,
    format: &str,
    blocks: &[u8],
) -> Outcome<Bound<'py, PyByteArray>> {
    let format = known(format)?;
    let values = py.detach(|| {
        let mut values = vec![0.0_f32; blocks.len() / format.bytes * format.values];
        format.dequantize(blocks, &mut values)?;
        Ok::<_, Error>(values)
    })?;
    Ok(PyByteArray::new_with(py, values.len() * 4, |out| {
        let (out, _) = out.as_chunks_mut::<4>();
        for (bytes, value) in out.iter_mut().zip(&values) {
            *bytes = value.to_le_bytes();
        }
        Ok(())
    })?)
}

fn known(format: &str) -> Result<&'static BlockFormat> {
    BlockFormat::find(format)
        .ok_or_else(|| Error::new(Code::BadArgument, format!("there is no block format called {format:?}")))
}

/// Writes tensors, given as (name, form of blocks or dtype, shape), and values; `chunks` as for `save_tensors`.
#[pyfunction]
pub fn save_gguf(
    path: PathBuf,
    tensors: Vec<(String, String, Vec<usize>)>,
    metadata: Vec<(String, Bound<'_, PyAny>)>,
    chunks: &Bound<'_, PyAny>,
) -> Outcome<()> {
    let entry = |(name, stored, shape): (String, String, Vec<usize>)| {
        let stored = match BlockFormat::find(&stored) {
            Some(format) => Stored::Blocks(format),
            None => Stored::Known(DType::parse(&stored)?),
        };
        Ok(GgufEntry { name, stored, shape })
    };
    let entries = tensors.into_iter().map(entry).collect::<Outcome<Vec<_>>>()?;
    let value = |(key, value): (String, Bound<'_, PyAny>)| Ok((key, from_python(&value)?));
    let metadata = metadata.into_iter().map(value).collect::<Outcome<Vec<_>>>()?;
    streamed(chunks, |write| weights::save_gguf(&path, &metadata, &entries, write))
}
