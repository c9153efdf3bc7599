//! Memory of large outputs, which is used again: the system clears and maps pages that are new to a process, which may take
//! as long as a tenth of a call.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PySlice, PyTuple};

use super::numpy;

/// From this size on, memory is used again.
const LARGE: usize = 1 << 20;

/// At what memory starts: a line of the cache.
const LINE: usize = 64;

/// Bytes that are an array of NumPy.
#[derive(Debug)]
struct Memory {
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

/// What the last array of an output that is gone has left for the next one: at most one.
type Left = Mutex<Option<Memory>>;

/// The memory of one output from call to call.
#[derive(Debug, Default)]
pub(super) struct Recycled(Arc<Left>);

/// Has memory as long as the array of an output lives, or a view of it: NumPy keeps it for that.
#[pyclass(module = "mithril", frozen)]
#[derive(Debug)]
struct Owner {
    memory: Option<Memory>,
    left: Weak<Left>,
}

#[pymethods]
impl Owner {
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let interface = |memory: &Memory| memory.array.bind(py).getattr(intern!(py, "__array_interface__"));
        self.memory.as_ref().map(interface).transpose()
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // Without the program there is no next call.
        let Some(left) = self.left.upgrade() else { return };
        let before =
            std::mem::replace(&mut *left.lock().unwrap_or_else(PoisonError::into_inner), self.memory.take());
        drop(before);
    }
}

impl Recycled {
    /// Whether an array of so many bytes is worth it.
    pub(super) fn is_for(bytes: usize) -> bool {
        bytes >= LARGE
    }
    /// An array of this shape and dtype, which has so many bytes; what is in it is left open.
    pub(super) fn array<'py>(
        &self,
        py: Python<'py>,
        arguments: &Bound<'py, PyTuple>,
        bytes: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let left = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let memory = match left.filter(|memory| memory.bytes == bytes) {
            Some(memory) => memory,
            None => Memory::new(py, bytes)?,
        };
        let owner = Bound::new(py, Owner { memory: Some(memory), left: Arc::downgrade(&self.0) })?;
        let numpy = numpy(py)?;
        let lines = numpy.call_method1(intern!(py, "asarray"), (owner,))?;
        let (shape, dtype) = (arguments.get_item(0)?, arguments.get_item(1)?);
        numpy.call_method1(intern!(py, "ndarray"), (shape, dtype, lines))
    }
}
