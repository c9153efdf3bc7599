//! Compiling: models to programs in Python source.

use std::sync::Arc;

use mithril::codegen::python::{self as codegen, EVALUATE, Function, GRADIENT, Results};
use mithril::compile::compiled::Compiled;
use mithril::compile::fit;
use mithril::compile::lift::lift;
use mithril::compile::partition::Partitioned;
use mithril::compile::partition::stages::stages;
use mithril::compile::passes::quantize::{Decision, Scheme, Schemes};
use mithril::compile::pipeline::{Interpreter, Target, lower};
use mithril::compile::positions::{Positions, Which};
use mithril::compile::python::Python as PythonBackend;
use mithril::ir::dim::Dim;
use mithril::ir::error::{Code, Error};
use mithril::ir::graph::{Graph, Role, TensorType};
use mithril::ir::{DType, Shape, Tensor, interp, text};
use mithril::model::{
    Arg, Connection, Distribution, Fan, FlattenOptions, Init, Values, VarianceScaling, unneeded_inputs,
};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::connection::PyConnection;
use crate::convert::{argument, array, dtype, pairs, shape_to_python, sizes, tensor};
use crate::errors::{Failure, Outcome, exception};
use crate::model::{PyModel, summary_rows};
use crate::partition::{LayoutArgument, PyPartitioned, StepRow, VALUES, layout, step_row};
use crate::runner::{PyRunner, one_dict, two_dicts};
use crate::source::PySource;
use crate::target::TargetArgument;

/// An error of a shape, with the input that it is of and the shape as it was given.
fn about_shape(failure: Failure, name: &str, shape: &Bound<'_, PyAny>) -> Failure {
    let Failure::Core(error) = failure else { return failure };
    let text = shape.repr().map_or_else(|_| "?".to_owned(), |text| text.to_string());
    let told = Error::new(error.code(), format!("the shape of {name:?} is {text}: {}", error.message()));
    Failure::Core(match error.hint() {
        Some(help) => told.help(help),
        None => told,
    })
}

fn options(dict: &Bound<'_, PyDict>, float: DType) -> Outcome<FlattenOptions> {
    let mut options = FlattenOptions { float, ..FlattenOptions::default() };
    for (key, value) in pairs(dict.as_any())? {
        let names = || {
            value.extract::<Vec<String>>().map(|v| v.into_iter().map(Arc::from).collect::<Vec<Arc<str>>>())
        };
        match key.as_str() {
            "shapes" => {
                for (name, shape) in pairs(&value)? {
                    let known = sizes(&shape).map_err(|failure| about_shape(failure, &name, &shape))?;
                    options.shapes.push((name.into(), known));
                }
            }
            "dtypes" => {
                for (name, d) in pairs(&value)? {
                    options.dtypes.push((name.into(), dtype(&d)?));
                }
            }
            "constants" => {
                for (name, t) in pairs(&value)? {
                    let t = tensor(&t, None)?;
                    let t = if t.dtype().is_float() { t.cast(float) } else { t };
                    options.constants.push((name.into(), Arc::new(t)));
                }
            }
            "precision" => options.precision = Some(dtype(&value)?),
            "scalar_promotion" => options.scalar_promotion = value.extract()?,
            "checkpoint" => options.checkpoint = value.extract()?,
            "training" => options.training = value.extract()?,
            "batch_groups" => options.batch_groups = value.extract()?,
            "data_keys" => options.data = names()?,
            "trainable_keys" => options.trainable = names()?,
            "frozen" => options.frozen = names()?,
            "initializers" => {
                for (name, init) in pairs(&value)? {
                    options.initial.push((name.into(), initial(&init)?));
                }
            }
            "donate" => options.donated = names()?,
            "discard_keys" => options.discard = names()?,
            "edges" => options.keep_edges = names()?,
            "quantize" => {}
            "keep_formulas" => options.keep_formulas = value.extract()?,
            other => return Err(Error::internal(format!("compile is given {other:?}")).into()),
        }
    }
    Ok(options)
}

/// How a parameter starts: a kind, and what belongs to it.
fn initial(object: &Bound<'_, PyAny>) -> Outcome<Init> {
    let (kind, value): (String, Bound<'_, PyAny>) = object.extract()?;
    Ok(match kind.as_str() {
        "zeros" => Init::Zeros,
        "ones" => Init::Ones,
        "constant" => Init::Constant(value.extract()?),
        "uniform" => Init::Uniform(value.extract()?),
        "normal" => Init::Normal(value.extract()?),
        "truncated_normal" => Init::TruncatedNormal(value.extract()?),
        "fan_in" => Init::FanIn,
        "variance_scaling" => {
            let (scale, fan, distribution): (f64, String, String) = value.extract()?;
            let fan = match &*fan {
                "fan_in" => Fan::In,
                "fan_out" => Fan::Out,
                "fan_avg" => Fan::Average,
                other => return Err(Error::internal(format!("a fan is {other:?}")).into()),
            };
            let distribution = match &*distribution {
                "uniform" => Distribution::Uniform,
                "normal" => Distribution::Normal,
                "truncated_normal" => Distribution::TruncatedNormal,
                other => return Err(Error::internal(format!("a distribution is {other:?}")).into()),
            };
            Init::VarianceScaling(VarianceScaling { scale, fan, distribution })
        }
        "orthogonal" => Init::Orthogonal(value.extract()?),
        "value" => Init::Value(Values(Arc::new(tensor(&value, None)?))),
        other => return Err(Error::internal(format!("an initializer is {other:?}")).into()),
    })
}

/// Names of the inputs by role, and of the outputs.
#[pyfunction]
pub fn roles<'py>(
    py: Python<'py>,
    model: &PyModel,
    settings: &Bound<'py, PyDict>,
) -> Outcome<Bound<'py, PyDict>> {
    let options = options(settings, DType::F32)?;
    let model = &model.inner;
    let dict = PyDict::new(py);
    let constant = |name: &Arc<str>| options.constants.iter().any(|(n, _)| n == name);
    let unneeded = unneeded_inputs(model, &options)?;
    for (key, role) in [("param", Role::Param), ("data", Role::Data), ("state", Role::State)] {
        let mut names = Vec::new();
        for name in model.inputs() {
            let own = if options.trainable.contains(&name) {
                Role::Param
            } else if options.data.contains(&name) {
                Role::Data
            } else {
                model.role_of(&name)?
            };
            if own == role && !constant(&name) && !unneeded.contains(&name) {
                names.push(name.to_string());
            }
        }
        dict.set_item(key, names)?;
    }
    let outputs: Vec<String> =
        model.outputs().iter().filter(|n| !options.discard.contains(n)).map(|n| n.to_string()).collect();
    dict.set_item("output", outputs)?;
    let is_unfrozen = |n: &Arc<str>| options.trainable.contains(n) || options.data.contains(n);
    let frozen = model.frozen().into_iter().filter(|n| !is_unfrozen(n));
    dict.set_item("frozen", frozen.map(|n| n.to_string()).collect::<Vec<_>>())?;
    dict.set_item("unneeded", unneeded.iter().map(ToString::to_string).collect::<Vec<_>>())?;
    Ok(dict)
}

/// Flattens, types and optimizes a model.
#[pyfunction]
pub fn compile(model: &PyModel, float: &str, settings: &Bound<'_, PyDict>) -> Outcome<PyCompiled> {
    let options = options(settings, DType::parse(float)?)?;
    let mut compiled = Compiled::new(&model.inner, &options)?;
    if let Some(quantize) = settings.get_item("quantize")? {
        compiled.schemes = schemes(&quantize)?;
    }
    Ok(PyCompiled { model: model.inner.clone(), options, compiled })
}

/// Names of weights, and how they are kept.
fn schemes(value: &Bound<'_, PyAny>) -> Outcome<Schemes> {
    let value: Vec<(String, String)> = value.extract()?;
    let scheme = |name: String| {
        Scheme::parse(&name).ok_or_else(|| Error::internal(format!("a weight is to be kept as {name:?}")))
    };
    value.into_iter().map(|(weight, name)| Ok((weight.into(), scheme(name)?))).collect()
}

/// A model compiled as far as no target is needed.
#[pyclass(name = "Compiled", module = "mithril", frozen)]
#[derive(Debug)]
pub struct PyCompiled {
    model: mithril::model::Model,
    options: FlattenOptions,
    /// The program.
    pub compiled: Compiled,
}

/// A weight; how it is kept, the axis of its scales, and the names of the inputs that stand for it; or why it stays.
type DecisionRow =
    (String, Option<(&'static str, usize, (String, String, Option<String>))>, Option<&'static str>);
type Entry<'py> = (String, &'static str, Bound<'py, PyTuple>);

#[pymethods]
impl PyCompiled {
    /// Name, dtype and shape of the inputs of a role.
    fn inputs<'py>(&self, py: Python<'py>, role: &str) -> Outcome<Vec<Entry<'py>>> {
        let role = match role {
            "param" => Role::Param,
            "data" => Role::Data,
            _ => Role::State,
        };
        self.compiled
            .inputs_of(role)
            .map(|i| Ok((i.name.to_string(), i.ty.dtype.name(), shape_to_python(py, &i.ty.shape)?)))
            .collect()
    }
    /// Names of the states that change at a call.
    #[getter]
    fn updates(&self) -> Vec<String> {
        let name = |v| self.compiled.graph.value(v).name.as_deref().unwrap_or("").to_owned();
        self.compiled.graph.updates.iter().map(|(input, _)| name(*input)).collect()
    }
    /// Names of the outputs.
    #[getter]
    fn output_names(&self) -> Vec<String> {
        self.compiled.graph.outputs.keys().map(|n| n.to_string()).collect()
    }
    /// Dtype and shape of an output.
    fn output_type<'py>(&self, py: Python<'py>, name: &str) -> Outcome<(&'static str, Bound<'py, PyTuple>)> {
        let ty = self.type_of(name)?;
        Ok((ty.dtype.name(), shape_to_python(py, &ty.shape)?))
    }
    /// Shape of an output for data of these shapes.
    fn output_shape<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        shapes: &Bound<'py, PyDict>,
    ) -> Outcome<Bound<'py, PyTuple>> {
        let symbols = self.bind(shapes)?;
        let ty = self.type_of(name)?;
        let sizes = ty.shape.iter().map(|d| interp::resolve(d, &symbols)).collect::<Result<Vec<_>, _>>()?;
        Ok(PyTuple::new(py, sizes)?)
    }
    /// The error that data of these shapes does not fit, or None.
    fn check<'py>(&self, py: Python<'py>, shapes: &Bound<'py, PyDict>) -> Outcome<Option<Bound<'py, PyAny>>> {
        match self.misfit(shapes)? {
            Some(error) => Ok(Some(exception(py, &error)?)),
            None => Ok(None),
        }
    }
    /// Positions to check before a call with data of these shapes, or None if there is nothing to check: those that
    /// depend on single integers, on integers and lists, or on any data, which is for after a call that has failed.
    fn positions(&self, shapes: &Bound<'_, PyDict>, which: &str) -> Outcome<Option<PyPositions>> {
        let which = match which {
            "numbers" => Which::OfNumbers,
            "little" => Which::OfLittle,
            _ => Which::OfData,
        };
        match Positions::of(&self.compiled.graph, self.compiled.float, which)? {
            Some(positions) => Ok(Some(PyPositions(positions.specialize(&self.bind(shapes)?)?))),
            None => Ok(None),
        }
    }
    /// What became of each weight that is to be kept in 8 bits: name; scheme, axis and the names of the inputs with
    /// numbers, scales and totals; or the reason why it stays as it is.
    fn decisions(&self) -> Outcome<Vec<DecisionRow>> {
        let text = |name: &Arc<str>| name.to_string();
        let row = |decision: Decision| match decision.outcome {
            Ok(kept) => {
                let names = (text(&kept.numbers), text(&kept.scale), kept.total.as_ref().map(text));
                (text(&decision.weight), Some((kept.scheme.name(), kept.axis, names)), None)
            }
            Err(reason) => (text(&decision.weight), None, Some(reason)),
        };
        Ok(self.compiled.decisions()?.into_iter().map(row).collect())
    }
    /// Names of the parameters that have gradients.
    #[getter]
    fn trained(&self) -> Vec<String> {
        self.compiled.trained().map(|i| i.name.to_string()).collect()
    }
    /// How far an output in C may be from a recorded one, in parts of its largest element.
    fn allowed_distance(&self, output: &str) -> f64 {
        mithril::runtime::c::export::allowed_distance(&self.compiled.graph, output)
    }
    /// Initial values of inputs, as NumPy arrays.
    fn initial<'py>(&self, py: Python<'py>, names: Vec<String>, seed: i64) -> Outcome<Bound<'py, PyDict>> {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let values = self.compiled.initial(&names, seed as u64)?;
        let dict = PyDict::new(py);
        let inputs = self.compiled.inputs.iter().filter(|i| names.contains(&&*i.name));
        for (input, t) in inputs.zip(&values) {
            dict.set_item(&*input.name, array(py, t)?)?;
        }
        Ok(dict)
    }
    /// The same program divided over a mesh of devices.
    fn with_layout(&self, argument: LayoutArgument) -> Outcome<Self> {
        Ok(self.with(Compiled { layout: Some(layout(argument)?), ..self.compiled.clone() }))
    }
    /// The same program for a larger batch that divides: names of data that get further examples, how many examples the batch
    /// has, and how many there are then.
    fn padded(&self) -> Outcome<(Self, Vec<String>, usize, usize)> {
        let (compiled, padded) = self.compiled.padded()?;
        let names = padded.names.iter().map(ToString::to_string).collect();
        Ok((self.with(compiled), names, padded.batch, padded.examples))
    }
    /// The same program for data of these shapes.
    fn specialize(&self, shapes: &Bound<'_, PyDict>) -> Outcome<Self> {
        Ok(self.with(self.compiled.specialize(&self.bind(shapes)?)?))
    }
    /// What each device of the mesh runs, with gradients of outputs by inputs if they are given.
    #[pyo3(signature = (gradients, target=None))]
    fn partition(
        &self,
        gradients: Option<(Vec<String>, Vec<String>)>,
        target: Option<TargetArgument>,
    ) -> Outcome<PyPartitioned> {
        let python = target.as_ref().map(|target| PythonBackend(&target.0));
        let target: &dyn Target = python.as_ref().map_or(&Interpreter, |target| target as &dyn Target);
        Ok(PyPartitioned(Arc::new(match gradients {
            None => self.compiled.partitioned_forward(target, &mut |_, _| {})?,
            Some((outputs, inputs)) => self.compiled.partitioned_gradient(
                target,
                &shared(outputs),
                &shared(inputs),
                &mut |_, _| {},
            )?,
        })))
    }
    /// Source of the function `evaluate`.
    #[pyo3(signature = (target, device="cpu"))]
    fn source(&self, py: Python<'_>, target: TargetArgument, device: &str) -> Outcome<PySource> {
        let target = &target.0;
        py.detach(|| {
            let (graph, partition) = self.forward(&PythonBackend(target))?;
            let function = Function {
                name: "evaluate",
                graph: &graph,
                arguments: EVALUATE,
                results: Results::Dict,
                donated: &self.compiled.donated,
                foreach: self.compiled.is_optimizer_step,
            };
            Ok(PySource { source: codegen::emit_on(target, &[function], device)?, many: false, partition })
        })
    }
    /// Source of the function `evaluate` in checkpointed segments, for a framework that differentiates by itself.
    #[pyo3(signature = (target, device="cpu"))]
    fn checkpointed_source(&self, py: Python<'_>, target: TargetArgument, device: &str) -> Outcome<PySource> {
        let target = &target.0;
        py.detach(|| {
            let (graph, segments) = self.compiled.segmented(&PythonBackend(target), &mut |_, _| {})?;
            let source = codegen::emit_checkpointed(target, &graph, &segments, device)?;
            Ok(PySource { source, many: false, partition: None })
        })
    }
    /// Source of the function `evaluate_gradients`.
    #[pyo3(signature = (target, outputs, inputs, device="cpu"))]
    fn gradient_source(
        &self,
        py: Python<'_>,
        target: TargetArgument,
        outputs: Vec<String>,
        inputs: Vec<String>,
        device: &str,
    ) -> Outcome<PySource> {
        let target = &target.0;
        let (outputs, inputs) = (shared(outputs), shared(inputs));
        py.detach(|| {
            let (graph, partition) = self.gradient(&PythonBackend(target), &outputs, &inputs)?;
            let dicts = two_dicts(&graph);
            let function = Function {
                name: "evaluate_gradients",
                graph: &graph,
                arguments: GRADIENT,
                results: Results::Dicts(&dicts),
                donated: &[],
                foreach: false,
            };
            Ok(PySource { source: codegen::emit_on(target, &[function], device)?, many: true, partition })
        })
    }
    /// Functions for the steps of a pipeline, by the devices of layers; of gradients, if outputs and inputs are given.
    #[pyo3(signature = (target, devices, gradients=None, device="cpu"))]
    fn staged_source(
        &self,
        py: Python<'_>,
        target: TargetArgument,
        devices: Vec<(String, usize)>,
        gradients: Option<(Vec<String>, Vec<String>)>,
        device: &str,
    ) -> Outcome<(PySource, Vec<StepRow>, Vec<String>)> {
        let target = &target.0;
        py.detach(|| {
            let backend = PythonBackend(target);
            let program = match gradients {
                None => self.compiled.partitioned_forward(&backend, &mut |_, _| {})?,
                Some((outputs, inputs)) => {
                    let (outputs, inputs) = (shared(outputs), shared(inputs));
                    self.compiled.partitioned_gradient(&backend, &outputs, &inputs, &mut |_, _| {})?
                }
            };
            let mut staged = stages(&program, &devices)?;
            // The lowering of an op may depend on the uses of its results, which a cut changes.
            for step in staged.steps.iter_mut().filter(|step| step.exchange.is_none()) {
                step.graph = lower(&step.graph, &backend, self.compiled.float, &mut |_, _| {})?;
            }
            let names: Vec<String> = (0..staged.steps.len()).map(|i| format!("step_{i}")).collect();
            let computed = staged.steps.iter().zip(&names).filter(|(step, _)| step.exchange.is_none());
            let functions: Vec<Function<'_>> = computed
                .map(|(step, name)| Function {
                    name,
                    graph: &step.graph,
                    arguments: VALUES,
                    results: Results::Dict,
                    donated: &[],
                    foreach: false,
                })
                .collect();
            let source = codegen::emit_on(target, &functions, device)?;
            let rows = staged.steps.iter().zip(&names).map(|(step, name)| step_row(step, name)).collect();
            let source = PySource { source, many: false, partition: Some(Arc::new(program)) };
            Ok((source, rows, staged.results))
        })
    }
    /// The function `evaluate`, run by the reference interpreter: on one device, or on a virtual mesh.
    fn runner(&self) -> Outcome<PyRunner> {
        let (graph, mesh) = self.forward(&Interpreter)?;
        let groups = vec![Role::Param, Role::Data, Role::State];
        let results = one_dict(&graph);
        Ok(PyRunner { graph, groups, results, tuple: false, many: false, mesh })
    }
    /// The function `evaluate_gradients`, run by the reference interpreter: on one device, or on a virtual mesh.
    fn gradient_runner(&self, outputs: Vec<String>, inputs: Vec<String>) -> Outcome<PyRunner> {
        let (graph, mesh) = self.gradient(&Interpreter, &shared(outputs), &shared(inputs))?;
        let results = two_dicts(&graph);
        let groups = vec![Role::Param, Role::Data, Role::State, Role::Cotangent];
        Ok(PyRunner { graph, groups, results, tuple: false, many: true, mesh })
    }
    /// Value and gradients of the 0-d output `output` as connections; `inputs` says which connection stands for
    /// which input.
    fn lift_gradient<'py>(
        &self,
        py: Python<'py>,
        parameters: Vec<String>,
        inputs: &Bound<'py, PyDict>,
    ) -> Outcome<(Bound<'py, PyAny>, Vec<Bound<'py, PyAny>>)> {
        let names: Vec<Arc<str>> = parameters.iter().map(|n| n.as_str().into()).collect();
        let dtype = self.type_of("output")?.dtype;
        let graph = self.compiled.gradient(&Interpreter, &["output".into()], &names, &mut |_, _| {})?;
        let arguments = pairs(inputs.as_any())?;
        let arguments = arguments
            .iter()
            .map(|(name, c)| Ok((name.as_str(), argument(c)?)))
            .collect::<Outcome<Vec<_>>>()?;
        let one = Arg::Lit(Tensor::scalar(dtype, 1.0).into());
        let input = |role: Role, name: &str| match role {
            Role::Cotangent => Some(one.clone()),
            _ => arguments.iter().find(|(n, _)| *n == name).map(|(_, arg)| arg.clone()),
        };
        let mut outputs = Vec::new();
        for (_, arg) in lift(&graph, &input)? {
            let connection = match arg {
                Arg::Connection(c) => c,
                Arg::Lit(lit) => Connection::constant(lit),
                _ => return Err(Error::internal("an output is lifted to no connection").into()),
            };
            outputs.push(Bound::new(py, PyConnection(connection))?.into_any());
        }
        if outputs.is_empty() {
            return Err(Error::internal("a gradient without outputs").into());
        }
        let gradients = outputs.split_off(1);
        Ok((outputs.remove(0), gradients))
    }
    /// The program that takes a training step of parameters by the compiled step of an optimizer, with all that it
    /// changes as state.
    fn training_step(&self, loss: &str, params: Vec<String>, step: &Self) -> Outcome<Self> {
        let params: Vec<Arc<str>> = params.into_iter().map(Arc::from).collect();
        Ok(self.with(self.compiled.training_step(loss, &params, &step.compiled)?))
    }
    /// Name and text of each stage; of the gradients of these outputs by these inputs, if there are any.
    #[pyo3(signature = (target, outputs=vec![], inputs=vec![]))]
    fn stages(
        &self,
        target: TargetArgument,
        outputs: Vec<String>,
        inputs: Vec<String>,
    ) -> Outcome<Vec<(String, String)>> {
        let target = &target.0;
        let mut stages = Vec::new();
        let mut observe = |name: &str, graph: &Graph| stages.push((name.to_owned(), text::print(graph)));
        let mut compiled = Compiled::observed(&self.model, &self.options, &mut observe)?;
        compiled.schemes = self.compiled.schemes.clone();
        compiled.layout.clone_from(&self.compiled.layout);
        if outputs.is_empty() {
            compiled.forward(&PythonBackend(target), &mut observe)?;
        } else {
            compiled.gradient(&PythonBackend(target), &shared(outputs), &shared(inputs), &mut observe)?;
        }
        Ok(stages)
    }
    /// Table of the layers.
    fn summary(&self) -> Outcome<String> {
        Ok(self.model.summary_with(&self.options)?)
    }
    /// The rows of that table.
    fn summary_rows(&self, py: Python<'_>) -> Outcome<Py<PyAny>> {
        Ok(summary_rows(py, self.model.summary_rows_with(&self.options)?)?)
    }
    /// The table as a tree for notebooks.
    fn summary_html(&self) -> Outcome<String> {
        Ok(self.model.summary_html_with(&self.options)?)
    }
}

fn shared(names: Vec<String>) -> Vec<Arc<str>> {
    names.into_iter().map(Arc::from).collect()
}

/// A lowered graph; how it is divided over a mesh, if it is.
type Divided = (Graph, Option<Arc<Partitioned>>);

impl PyCompiled {
    fn forward(&self, target: &dyn Target) -> Outcome<Divided> {
        if self.compiled.layout.is_none() {
            return Ok((self.compiled.forward(target, &mut |_, _| {})?, None));
        }
        let program = self.compiled.partitioned_forward(target, &mut |_, _| {})?;
        Ok((program.graph.clone(), Some(Arc::new(program))))
    }
    fn gradient(&self, target: &dyn Target, outputs: &[Arc<str>], inputs: &[Arc<str>]) -> Outcome<Divided> {
        if self.compiled.layout.is_none() {
            return Ok((self.compiled.gradient(target, outputs, inputs, &mut |_, _| {})?, None));
        }
        let program = self.compiled.partitioned_gradient(target, outputs, inputs, &mut |_, _| {})?;
        Ok((program.graph.clone(), Some(Arc::new(program))))
    }
    /// The same model with another program.
    pub fn with(&self, compiled: Compiled) -> Self {
        Self { model: self.model.clone(), options: self.options.clone(), compiled }
    }
    /// Whether it was compiled for training.
    pub fn is_training(&self) -> bool {
        self.options.training
    }
    fn type_of(&self, name: &str) -> Outcome<&TensorType> {
        let graph = &self.compiled.graph;
        let ty = graph.outputs.get(name).and_then(|&v| graph.ty(v));
        Ok(ty.ok_or_else(|| Error::new(Code::UnknownName, format!("there is no output called `{name}`")))?)
    }
    fn bind(&self, shapes: &Bound<'_, PyDict>) -> Outcome<interp::Symbols> {
        let mut symbols = interp::Symbols::default();
        for (name, shape) in pairs(shapes.as_any())? {
            let shape: Vec<i64> = shape.extract()?;
            let input = self.compiled.inputs.iter().find(|i| *i.name == *name);
            for (dim, n) in input.map(|i| i.ty.shape.iter()).into_iter().flatten().zip(shape) {
                if let Some(s) = dim.as_symbol() {
                    symbols.entry(s.clone()).or_insert(n);
                }
            }
        }
        Ok(symbols)
    }
    fn misfit(&self, shapes: &Bound<'_, PyDict>) -> Outcome<Option<Error>> {
        let symbols = self.bind(shapes)?;
        for (name, sizes) in pairs(shapes.as_any())? {
            let sizes: Vec<i64> = sizes.extract()?;
            let Some(input) = self.compiled.inputs.iter().find(|i| *i.name == *name) else { continue };
            let declared = &input.ty.shape;
            let fits = declared.rank() == sizes.len()
                && declared
                    .iter()
                    .zip(&sizes)
                    .all(|(d, &n)| interp::resolve(d, &symbols).is_ok_and(|m| m == n));
            if !fits {
                let sizes = Shape::of(sizes);
                let mut error = Error::new(
                    Code::BadParameter,
                    format!("data `{name}` has shape {sizes}, but must be {declared}"),
                );
                for (symbol, n) in
                    declared.iter().filter_map(|d| d.as_symbol()).filter_map(|s| Some((s, symbols.get(s)?)))
                {
                    error = error.note(format!("{symbol} is {n} in this call"));
                }
                let is_other = |(d, n): (&Dim, &Dim)| d.known().is_some() && d.known() != n.known();
                let help = if declared.rank() != sizes.rank() {
                    "the number of dimensions differs"
                } else if declared.iter().all(|d| d.known().is_some()) {
                    "the shape was fixed when compiling; give a symbol there for any size, e.g. shapes={\"input\": [\"batch\", 784]}"
                } else if declared.iter().zip(sizes.iter()).any(is_other) {
                    "sizes that are numbers were fixed when compiling; give symbols there for any size"
                } else {
                    "the same symbol is the same size everywhere in one call"
                };
                return Ok(Some(error.help(help)));
            }
        }
        if let Err(error) = self.compiled.check_limits(&symbols) {
            return Ok(Some(error));
        }
        Ok(fit::misfit(&self.compiled.graph, &symbols, self.compiled.float))
    }
}

/// Positions in tables that follow from data of some shapes.
#[pyclass(name = "Positions", module = "mithril", frozen)]
#[derive(Debug)]
pub struct PyPositions(Positions);

#[pymethods]
impl PyPositions {
    /// Names of the data that `check` wants.
    #[getter]
    fn inputs(&self) -> Vec<&str> {
        self.0.inputs().collect()
    }
    /// The error that a position is outside, or None.
    fn check<'py>(
        &self,
        py: Python<'py>,
        data: Vec<Bound<'py, PyAny>>,
    ) -> Outcome<Option<Bound<'py, PyAny>>> {
        let data = data.iter().map(|x| Ok(Arc::new(tensor(x, None)?))).collect::<Outcome<Vec<_>>>()?;
        match self.0.check(&data)? {
            Some(error) => Ok(Some(exception(py, &error)?)),
            None => Ok(None),
        }
    }
    /// What is known of a call that failed though `check` finds nothing, or None.
    fn guess<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.0.guess().map(|error| exception(py, &error)).transpose()
    }
}
