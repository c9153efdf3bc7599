//! Models.

use std::cell::RefCell;
use std::sync::{Arc, OnceLock};

use mithril::ir::error::Line;
use mithril::ir::{Code, Error, Place, Role};
use mithril::model::{Connection, Model, Spec, SummaryRow, layers};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyAttributeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple, PyType};

use crate::connection::{PyConnection, PyIOKey, outputs};
use crate::convert::literal_to_python;
use crate::convert::{argument, dtype, literal, pairs, shape_to_python, sizes};
use crate::errors::Outcome;

thread_local! {
    /// The line of a module or function that is being converted.
    static CONVERTED: RefCell<Option<Line>> = const { RefCell::new(None) };
}

/// Say which line of a module or function of another framework is being converted, in this thread; None ends it.
#[pyfunction]
pub fn converted_line(file: Option<String>, line: u32) {
    CONVERTED.set(file.map(|file| Line { file: file.into(), line }));
}

/// The line that is being converted.
pub fn converted() -> Option<Line> {
    CONVERTED.with_borrow(Clone::clone)
}

/// The line of the user's program that is running: the innermost outside of this package, or the one that is converted.
pub fn user_line(py: Python<'_>) -> Option<Line> {
    static PACKAGE: OnceLock<String> = OnceLock::new();
    if let Some(line) = converted() {
        return Some(line);
    }
    let package = if let Some(package) = PACKAGE.get() {
        package
    } else {
        let path = py.import("mithril").ok()?.getattr("__path__").ok()?.get_item(0).ok()?;
        PACKAGE.get_or_init(|| path.to_string())
    };
    let mut frame = py.import("sys").ok()?.getattr("_getframe").ok()?.call1((0,)).ok()?;
    loop {
        let file: String = frame.getattr("f_code").ok()?.getattr("co_filename").ok()?.extract().ok()?;
        if !file.starts_with(package.as_str()) {
            let line: u32 = frame.getattr("f_lineno").ok()?.extract().ok()?;
            return Some(Line { file: file.into(), line });
        }
        frame = frame.getattr("f_back").ok().filter(|f| !f.is_none())?;
    }
}

pub fn here(py: Python<'_>) -> Place {
    Place { path: None, line: user_line(py) }
}

/// A model: what is computed, independent of where.
///
/// Start with ``Model()`` and add layers with ``|=`` and ``+=``; derive from it for models of your own. A model is a
/// value: adding it to another one neither changes nor consumes it.
///
/// Parameters
/// ----------
/// name : str, optional
///     Name; where the model is added to another one it becomes a part of the paths of its parameters.
///
/// Examples
/// --------
/// >>> import mithril as ml
/// >>> model = ml.Model()
/// >>> model |= ml.Linear(64)(input="input", output="hidden")
/// >>> model += ml.Relu()(output="output")
/// >>> model
/// Model(2 layers, inputs=[input], outputs=[output])
#[pyclass(name = "Model", module = "mithril", subclass, dict, weakref)]
#[derive(Debug)]
pub struct PyModel {
    /// The model.
    pub inner: Model,
}

/// A model with what stands at its ports, to be added with ``|=`` or ``+=``.
#[pyclass(name = "Use", module = "mithril", frozen)]
#[derive(Debug)]
pub struct PyUse {
    model: Model,
    spec: Spec,
}

#[pymethods]
impl PyUse {
    fn __repr__(&self) -> String {
        format!("{}(...), to be added with `model |= ...` or `model += ...`", self.model.class())
    }
    fn __getattr__(&self, name: &str) -> PyResult<()> {
        Err(PyAttributeError::new_err(format!(
            "this is a use of {}, which has no attribute {name:?}: add it with `model |= ...`, or call the layer with \
             connections to get connections",
            self.model.class()
        )))
    }
}

#[pymethods]
impl PyModel {
    #[new]
    #[classmethod]
    #[pyo3(signature = (*args, **named))]
    fn new(
        cls: &Bound<'_, PyType>,
        args: &Bound<'_, PyTuple>,
        named: Option<&Bound<'_, PyDict>>,
    ) -> Outcome<Self> {
        let class = cls.name()?.to_string();
        let mut inner = Model::with_class(&class);
        // Arguments of a subclass are for its own __init__; a plain Model takes a name.
        let name = named.map(|n| n.get_item("name")).transpose()?.flatten();
        let name = name.or_else(|| args.get_item(0).ok().filter(|_| class == "Model"));
        if let Some(name) = name.filter(|n| n.is_instance_of::<PyString>()) {
            inner.set_name(Some(&name.extract::<String>()?))?;
        }
        Ok(Self { inner })
    }
    #[pyo3(signature = (*_args, **_named))]
    fn __init__(&self, _args: &Bound<'_, PyTuple>, _named: Option<&Bound<'_, PyDict>>) {}

    /// Build a layer of the registry in place; the generated classes call this.
    #[pyo3(signature = (layer, args, name=None))]
    fn _build(
        slf: &Bound<'_, Self>,
        layer: &str,
        args: &Bound<'_, PyDict>,
        name: Option<&str>,
    ) -> Outcome<()> {
        let arguments = pairs(args.as_any())?;
        let arguments =
            arguments.iter().map(|(k, v)| Ok((k.as_str(), literal(v)?))).collect::<Outcome<Vec<_>>>()?;
        let place = here(slf.py());
        let class = slf.get_type().name()?.to_string();
        let mut model =
            layers::build(layer, Vec::new(), arguments).map_err(|e| e.at(&place))?.of_class(&class);
        model.set_name(name).map_err(|e| e.at(&place))?;
        slf.borrow_mut().inner = model;
        Ok(())
    }

    /// Say what stands at the ports, or apply the model to connections.
    #[pyo3(signature = (*args, **named))]
    fn __call__<'py>(
        slf: &Bound<'py, Self>,
        args: &Bound<'py, PyTuple>,
        named: Option<&Bound<'py, PyDict>>,
    ) -> Outcome<Bound<'py, PyAny>> {
        let py = slf.py();
        let named = named.map(|n| pairs(n.as_any())).transpose()?.unwrap_or_default();
        let model = slf.borrow().inner.clone();
        let outs = model.outputs();
        let is_spec = args.is_empty()
            && (named.is_empty()
                || named.iter().any(|(k, v)| {
                    v.is_instance_of::<PyString>()
                        || v.is_instance_of::<PyIOKey>()
                        || outs.iter().any(|o| **o == **k)
                })
                || !named.iter().any(|(_, v)| v.is_instance_of::<PyConnection>()));
        if is_spec {
            let mut spec = Spec::new();
            for (port, value) in &named {
                let arg = argument(value).map_err(|e| explain_array(&model, value, e))?;
                spec = spec.with(port, arg);
            }
            return Ok(Bound::new(py, PyUse { model, spec })?.into_any());
        }
        for value in args {
            let connection = value.is_instance_of::<PyConnection>();
            if value.is_instance_of::<PyString>() {
                return Err(Error::new(
                    Code::BadArgument,
                    format!("{} is called with a text by place", model.class()),
                )
                .help("name the port: layer(input=\"x\", output=\"y\")")
                .at(&here(py))
                .into());
            }
            if !connection && value.hasattr("shape")? {
                return Err(arrays(&model).at(&here(py)).into());
            }
        }
        let args = args.iter().map(|a| argument(&a)).collect::<Outcome<Vec<_>>>()?;
        let named = named.iter().map(|(k, v)| Ok((k.as_str(), argument(v)?))).collect::<Outcome<Vec<_>>>()?;
        outputs(py, model.call_with(args, named, user_line(py)).map_err(|e| e.at(&here(py)))?)
    }

    fn __ior__(&mut self, part: &Bound<'_, PyAny>) -> Outcome<()> {
        self.add(part, false)
    }
    fn __iadd__(&mut self, part: &Bound<'_, PyAny>) -> Outcome<()> {
        self.add(part, true)
    }

    /// Make a model of connections: ``Model.create(output=y)``.
    #[classmethod]
    #[pyo3(signature = (**outputs))]
    fn create(_cls: &Bound<'_, PyType>, outputs: Option<&Bound<'_, PyDict>>) -> Outcome<Self> {
        let named = outputs.map(|o| pairs(o.as_any())).transpose()?.unwrap_or_default();
        let mut connections: Vec<(String, Connection)> = Vec::new();
        for (name, value) in named {
            connections.push((name, connection(&value)?));
        }
        Ok(Self { inner: Model::from_outputs(connections)? })
    }

    /// Declare shapes of connections: ``model.set_shapes({"input": ["batch", 3]})`` or ``set_shapes(input=[...])``.
    #[pyo3(signature = (shapes=None, **named))]
    fn set_shapes(
        &mut self,
        py: Python<'_>,
        shapes: Option<&Bound<'_, PyAny>>,
        named: Option<&Bound<'_, PyDict>>,
    ) -> Outcome<()> {
        let named = both(shapes, named)?;
        let shapes = named.iter().map(|(k, v)| Ok((k.as_str(), sizes(v)?))).collect::<Outcome<Vec<_>>>()?;
        Ok(self.inner.set_shapes(shapes, &here(py))?)
    }
    /// Declare dtypes of connections.
    #[pyo3(signature = (types=None, **named))]
    fn set_types(
        &mut self,
        py: Python<'_>,
        types: Option<&Bound<'_, PyAny>>,
        named: Option<&Bound<'_, PyDict>>,
    ) -> Outcome<()> {
        let named = both(types, named)?;
        let types = named.iter().map(|(k, v)| Ok((k.as_str(), dtype(v)?))).collect::<Outcome<Vec<_>>>()?;
        Ok(self.inner.set_dtypes(types, &here(py))?)
    }
    /// Say which inputs are learned.
    #[pyo3(signature = (flags=None, **named))]
    fn set_differentiability(
        &mut self,
        py: Python<'_>,
        flags: Option<&Bound<'_, PyAny>>,
        named: Option<&Bound<'_, PyDict>>,
    ) -> Outcome<()> {
        let named = both(flags, named)?;
        let flags =
            named.iter().map(|(k, v)| Ok((k.as_str(), v.extract::<bool>()?))).collect::<Outcome<Vec<_>>>()?;
        Ok(self.inner.set_differentiability(flags, &here(py))?)
    }
    /// Give inputs constant values.
    #[pyo3(signature = (values=None, **named))]
    fn set_values(
        &mut self,
        py: Python<'_>,
        values: Option<&Bound<'_, PyAny>>,
        named: Option<&Bound<'_, PyDict>>,
    ) -> Outcome<()> {
        let named = both(values, named)?;
        let values = named.iter().map(|(k, v)| Ok((k.as_str(), literal(v)?))).collect::<Outcome<Vec<_>>>()?;
        Ok(self.inner.set_values(values, &here(py))?)
    }
    /// Say which connections are the outputs: ``set_outputs("hidden", output=model.logits)``.
    #[pyo3(signature = (*names, **named))]
    fn set_outputs(
        &mut self,
        py: Python<'_>,
        names: Vec<String>,
        named: Option<&Bound<'_, PyDict>>,
    ) -> Outcome<()> {
        let place = here(py);
        if !names.is_empty() {
            let connections = names.iter().map(|n| Ok((n.as_str(), self.inner.connection(n)?)));
            let connections = connections.collect::<Outcome<Vec<_>>>()?;
            self.inner.set_outputs(connections, &place)?;
        }
        let keywords = named.map(|n| pairs(n.as_any())).transpose()?.unwrap_or_default();
        let mut connections: Vec<(Arc<str>, Connection)> = Vec::new();
        for (name, value) in keywords {
            let c = match value.cast::<PyString>() {
                Ok(text) => self.inner.connection(&text.to_string_lossy())?,
                Err(_) => connection(&value)?,
            };
            connections.push((name.into(), c));
        }
        if !connections.is_empty() {
            self.inner.add_outputs(&connections, &place)?;
        }
        Ok(())
    }
    /// Give a connection another name.
    fn rename(&mut self, py: Python<'_>, old: &str, new: &str) -> Outcome<()> {
        Ok(self.inner.rename(old, new, &here(py))?)
    }
    /// Shape of a connection as far as it is known: numbers, symbols, None; None if the rank is not known.
    fn shape_of<'py>(&self, py: Python<'py>, name: &str) -> Outcome<Option<Bound<'py, PyTuple>>> {
        let Some(dims) = self.inner.shape_of(name)? else { return Ok(None) };
        let mut items = Vec::new();
        for dim in dims {
            items.push(match dim {
                Some(d) => shape_to_python(py, &[d])?.get_item(0)?,
                None => py.None().into_bound(py),
            });
        }
        Ok(Some(PyTuple::new(py, items)?))
    }
    /// Dtype of a connection, None if not known.
    fn dtype_of(&self, name: &str) -> Outcome<Option<&'static str>> {
        Ok(self.inner.dtype_of(name)?.map(mithril::ir::DType::name))
    }

    #[getter]
    fn name(&self) -> Option<String> {
        self.inner.name().map(Into::into)
    }
    #[setter]
    fn set_name(&mut self, name: Option<&str>) -> Outcome<()> {
        Ok(self.inner.set_name(name)?)
    }
    /// Names of the data inputs and parameters.
    #[getter]
    fn input_keys(&self) -> Vec<String> {
        self.inner.inputs().iter().map(|n| n.to_string()).collect()
    }
    /// Names of the outputs.
    #[getter]
    fn output_keys(&self) -> Vec<String> {
        self.inner.outputs().iter().map(|n| n.to_string()).collect()
    }
    /// Names of the parameters.
    #[getter]
    fn parameter_keys(&self) -> Vec<String> {
        self.inner.inputs_of(Role::Param).iter().map(|n| n.to_string()).collect()
    }
    /// Names of the direct parts.
    #[getter]
    fn layer_keys(&self) -> Vec<String> {
        self.inner.children().map(|(n, _)| n.to_owned()).collect()
    }
    /// Whether a connection has that name or path.
    fn has_connection(&self, name: &str) -> bool {
        self.inner.connection(name).is_ok()
    }
    /// The value of the constant of that path, such as a buffer of integers of an imported module; None if there is none.
    fn constant<'py>(&self, py: Python<'py>, path: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.inner.constant(path).map(|value| literal_to_python(py, value)).transpose()
    }
    /// Names of all named connections.
    #[getter]
    fn connection_names(&self) -> Vec<String> {
        self.inner.ports().iter().map(|n| n.to_string()).collect()
    }
    /// Table of the layers: name, output shape, number of parameters.
    fn summary(&self) -> String {
        self.inner.summary()
    }
    /// Path, depth, kind, output shapes and number of parameters of each part; the last is text where it has symbols.
    fn summary_rows(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        summary_rows(py, self.inner.summary_rows())
    }
    /// The table as a tree for notebooks.
    fn _repr_html_(&self) -> String {
        self.inner.summary_html()
    }
    /// What it was made by: the name of a layer, of a model of the zoo, or of a class.
    #[getter]
    fn kind(&self) -> &str {
        self.inner.class()
    }
    /// The arguments that a model of the zoo, or a layer, was made with.
    #[getter]
    fn arguments<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for (name, value) in self.inner.arguments() {
            dict.set_item(name, literal_to_python(py, value)?)?;
        }
        Ok(dict)
    }
    /// The model as JSON text: no code, with a version.
    fn to_json(&self) -> Outcome<String> {
        Ok(self.inner.to_json()?)
    }
    /// A model from its JSON text.
    #[staticmethod]
    fn from_json(text: &str) -> Outcome<Self> {
        Ok(Self { inner: Model::from_json(text)? })
    }
    /// Compile the model; see `mithril.compile`.
    #[pyo3(
        signature = (backend, **options),
        text_signature = "($self, backend, *, shapes=None, dtypes=None, data_keys=None, constant_keys=None, \
                          trainable_keys=None, freeze=None, initializers=None, discard_keys=None, donate=None, \
                          inference=None, static_shapes=False, jit=None, jit_options=None, \
                          auto_scalar_promotion=True, gradient_checkpointing=None, autodiff=None, precision=None, \
                          layout=None, strategy=None, hardware=None, file_path=None, strict=False, verbose=False, \
                          **aliases)"
    )]
    fn compile<'py>(
        slf: &Bound<'py, Self>,
        backend: &Bound<'py, PyAny>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("mithril")?.getattr("compile")?.call((slf, backend), options)
    }
    fn __len__(&self) -> usize {
        self.inner.len()
    }
    fn __bool__(&self) -> bool {
        true
    }
    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let restore = py.get_type::<Self>().getattr("from_json")?;
        (restore, (slf.call_method0("to_json")?,)).into_bound_py_any(py)
    }
    fn __copy__(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
    fn __deepcopy__(&self, _memo: &Bound<'_, PyAny>) -> Self {
        self.__copy__()
    }
    fn __repr__(&self) -> String {
        self.inner.to_string()
    }
    fn __getattr__(&self, name: &str) -> PyResult<PyConnection> {
        if !name.starts_with("__")
            && let Ok(c) = self.inner.connection(name)
        {
            return Ok(PyConnection(c));
        }
        let kind = self.inner.class();
        Err(PyAttributeError::new_err(format!("{kind} has no attribute and no connection {name:?}")))
    }
}

impl PyModel {
    fn add(&mut self, part: &Bound<'_, PyAny>, chain: bool) -> Outcome<()> {
        let place = here(part.py());
        let add = if chain { Model::chain } else { Model::extend };
        if let Ok(part) = part.cast::<PyUse>() {
            let part = part.get();
            add(&mut self.inner, &part.model, part.spec.clone(), place)?;
        } else if let Ok(model) = part.cast::<Self>() {
            let model = model.try_borrow().map_err(|_| {
                Error::new(Code::Cycle, "a model is added to itself")
                    .help("add a copy of it: copy.copy(model)")
                    .at(&place)
            })?;
            add(&mut self.inner, &model.inner, Spec::new(), place)?;
        } else if let Ok(c) = connection(part) {
            self.inner.include(&c, &place)?;
        } else {
            let kind = part.get_type().name()?.to_string();
            return Err(Error::new(Code::BadConnection, format!("a {kind} cannot be added to a model"))
                .help("add a layer: model |= ml.Linear(64)(input=\"input\", output=\"output\")")
                .at(&place)
                .into());
        }
        Ok(())
    }
}

fn both<'py>(
    mapping: Option<&Bound<'py, PyAny>>,
    named: Option<&Bound<'py, PyDict>>,
) -> Outcome<Vec<(String, Bound<'py, PyAny>)>> {
    let mut all = mapping.map(pairs).transpose()?.unwrap_or_default();
    all.extend(named.map(|n| pairs(n.as_any())).transpose()?.unwrap_or_default());
    Ok(all)
}

fn connection(value: &Bound<'_, PyAny>) -> Outcome<Connection> {
    if let Ok(c) = value.cast::<PyConnection>() {
        return Ok(c.get().0.clone());
    }
    let kind = value.get_type().name()?.to_string();
    Err(Error::new(Code::BadConnection, format!("a {kind} is not a connection"))
        .help("give what a layer returns when it is called with connections")
        .into())
}

fn arrays(model: &Model) -> Error {
    Error::new(Code::BadArgument, format!("{} is called with an array", model.class()))
        .help("a model has no values: compile it, then call what `ml.compile(model, backend)` returns")
}

fn explain_array(
    model: &Model,
    value: &Bound<'_, PyAny>,
    failure: crate::errors::Failure,
) -> crate::errors::Failure {
    if value.hasattr("shape").unwrap_or(false) { arrays(model).into() } else { failure }
}

/// The rows of a summary as Python data.
pub fn summary_rows(py: Python<'_>, rows: Vec<SummaryRow>) -> PyResult<Py<PyAny>> {
    let rows = rows.into_iter().map(|row| {
        let count = match &row.parameters {
            None => py.None(),
            Some(n) => match n.known() {
                Some(n) => n.into_py_any(py)?,
                None => n.to_string().into_py_any(py)?,
            },
        };
        Ok((row.path, row.depth, row.class, row.shape, count))
    });
    rows.collect::<PyResult<Vec<_>>>()?.into_py_any(py)
}

/// What a model gives that takes no data: connections, where a call without arguments is a use to be added.
#[pyfunction]
pub fn connections<'py>(model: &Bound<'py, PyModel>) -> Outcome<Bound<'py, PyAny>> {
    let py = model.py();
    let inner = model.borrow().inner.clone();
    outputs(py, inner.call_with(Vec::new(), Vec::new(), user_line(py)).map_err(|e| e.at(&here(py)))?)
}
