//! Errors of the core as Python exceptions; `mithril.errors.from_core` makes them.

use mithril::ir::Error;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

/// What a function of this module fails with.
#[derive(Debug)]
pub enum Failure {
    /// An error of the core.
    Core(Error),
    /// An exception.
    Python(PyErr),
}

/// Result of the functions of this module.
pub type Outcome<T> = Result<T, Failure>;

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Core(error)
    }
}

impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Self {
        Self::Python(error)
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Python(error) => error,
            Failure::Core(error) => {
                Python::attach(|py| exception(py, &error).map_or_else(|e| e, PyErr::from_value))
            }
        }
    }
}

/// The exception for an error.
pub fn exception<'py>(py: Python<'py>, error: &Error) -> PyResult<Bound<'py, PyAny>> {
    let details = PyDict::new(py);
    details.set_item("code", error.code().text())?;
    details.set_item("message", error.message())?;
    details.set_item("path", error.place().path.as_deref())?;
    details.set_item("where", error.place().line.as_ref().map(ToString::to_string))?;
    details.set_item("notes", PyTuple::new(py, error.notes())?)?;
    details.set_item("hint", error.hint())?;
    let family = format!("{:?}", error.code().class());
    let make = py.import("mithril.errors")?.getattr("from_core")?;
    make.call((family, error.to_string()), Some(&details))
}
