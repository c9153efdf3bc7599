//! Arrays of NumPy for large outputs, in memory that is used again.

use mithril::runtime::recycled::{Loan, Recycled};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PySlice, PyTuple};

use super::numpy;

/// At what memory starts: a line of the cache.
const LINE: usize = 64;

/// Bytes that are an array of NumPy.
#[derive(Debug)]
pub(super) struct Memory {
    array: Py<PyAny>,
    bytes: usize,
}

impl Memory {
    fn new(py: Python<'_>, bytes: usize) -> PyResult<Self> {
        let array = numpy(py)?.call_method1(intern!(py, "empty"), (bytes + LINE, intern!(py, "uint8")))?;
        let data = array.getattr(intern!(py, "__array_interface__"))?.get_item(intern!(py, "data"))?;
        let (start, _): (usize, bool) = data.extract()?;
        let skipped = start.next_multiple_of(LINE) - start;
        let lines = PySlice::new(py, skipped as isize, (skipped + bytes) as isize, 1);
        Ok(Self { array: array.get_item(lines)?.unbind(), bytes })
    }
}

/// Has memory as long as the array of an output lives, or a view of it: NumPy keeps it for that.
#[pyclass(module = "mithril", frozen)]
#[derive(Debug)]
struct Owner(Loan<Memory>);

#[pymethods]
impl Owner {
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.0.array.bind(py).getattr(intern!(py, "__array_interface__"))
    }
}

/// An array of this shape and dtype, which has so many bytes; what is in it is left open.
pub(super) fn array<'py>(
    recycled: &Recycled<Memory>,
    py: Python<'py>,
    arguments: &Bound<'py, PyTuple>,
    bytes: usize,
) -> PyResult<Bound<'py, PyAny>> {
    let loan = recycled.lend(|memory| memory.bytes == bytes, || Memory::new(py, bytes))?;
    let owner = Bound::new(py, Owner(loan))?;
    let numpy = numpy(py)?;
    let lines = numpy.call_method1(intern!(py, "asarray"), (owner,))?;
    let (shape, dtype) = (arguments.get_item(0)?, arguments.get_item(1)?);
    numpy.call_method1(intern!(py, "ndarray"), (shape, dtype, lines))
}
