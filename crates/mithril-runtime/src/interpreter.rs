//! Compiled models run by the reference interpreter.

use std::sync::Arc;

use indexmap::IndexMap;
use mithril_compile::compiled::{Compiled, gradient_of};
use mithril_compile::pipeline::Interpreter;
use mithril_ir::error::{Code, Error, Result, nearest};
use mithril_ir::graph::{Graph, Role};
use mithril_ir::interp;
use mithril_ir::tensor::Tensor;
use mithril_model::{FlattenOptions, Input, Model};

/// Tensors by name.
pub type Tensors = IndexMap<Arc<str>, Arc<Tensor>>;

/// What a call gives.
#[derive(Clone, Debug, Default)]
pub struct Evaluation {
    /// Outputs by name.
    pub outputs: Tensors,
    /// Gradients by parameter name; empty unless asked for.
    pub gradients: Tensors,
    /// New values of the states that changed.
    pub state: Tensors,
}

/// A model that runs on the interpreter. Calls do not change it: states go in and come out.
///
/// ```
/// use mithril_ir::{Place, Tensor};
/// use mithril_model::{FlattenOptions, Model, layers};
/// use mithril_runtime::interpreter::{Executable, tensors};
///
/// let mut model = Model::new();
/// model.extend(&layers::linear(2, true)?, [("input", "input"), ("output", "output")], Place::default())?;
/// let options =
///     FlattenOptions { shapes: vec![("input".into(), vec!["batch".into(), 3.into()])], ..Default::default() };
/// let program = Executable::new(&model, &options)?;
/// let params = program.initial(0)?;
/// let data = tensors([("input", Tensor::from_parts(&[1, 3], vec![1.0_f32, 2.0, 3.0]))]);
/// let result = program.evaluate(&[&params, &data])?;
/// assert_eq!(result.outputs["output"].shape(), [1, 2]);
/// # Ok::<(), mithril_ir::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Executable {
    compiled: Compiled,
    forward: Graph,
}

/// Tensors by name, from pairs.
pub fn tensors<N: AsRef<str>>(pairs: impl IntoIterator<Item = (N, Tensor)>) -> Tensors {
    pairs.into_iter().map(|(name, t)| (name.as_ref().into(), Arc::new(t))).collect()
}

impl Executable {
    /// Compiles a model.
    pub fn new(model: &Model, options: &FlattenOptions) -> Result<Self> {
        let compiled = Compiled::new(model, options)?;
        let forward = compiled.forward(&Interpreter, &mut |_, _| {})?;
        Ok(Self { compiled, forward })
    }
    /// The compiled model.
    pub fn compiled(&self) -> &Compiled {
        &self.compiled
    }
    /// Parameters and states.
    pub(crate) fn kept(&self) -> impl Iterator<Item = &Input> {
        self.compiled.inputs.iter().filter(|i| matches!(i.role, Role::Param | Role::State))
    }
    /// Initial values of all parameters and states.
    pub fn initial(&self, seed: u64) -> Result<Tensors> {
        let names: Vec<Arc<str>> = self.kept().map(|i| i.name.clone()).collect();
        let values = self.compiled.initial(&names.iter().map(|n| &**n).collect::<Vec<_>>(), seed)?;
        Ok(names.into_iter().zip(values.into_iter().map(Arc::new)).collect())
    }
    /// Computes the outputs. Every input is looked up by its name in `inputs`, from the first map to the last.
    pub fn evaluate(&self, inputs: &[&Tensors]) -> Result<Evaluation> {
        self.check_limits(inputs)?;
        run(&self.forward, inputs, &Tensors::new())
    }
    /// Checks that the model holds for the sizes of these inputs.
    fn check_limits(&self, inputs: &[&Tensors]) -> Result<()> {
        let mut symbols = interp::Symbols::default();
        for input in self.compiled.inputs.iter().filter(|_| !self.compiled.limits.is_empty()) {
            let Some(tensor) = inputs.iter().find_map(|map| map.get(&*input.name)) else { continue };
            for (dim, &n) in input.ty.shape.iter().zip(tensor.shape()) {
                if let Some(symbol) = dim.as_symbol() {
                    symbols.insert(symbol.clone(), n as i64);
                }
            }
        }
        self.compiled.check_limits(&symbols)
    }
    /// Computes outputs and gradients of all parameters, for these cotangents of outputs.
    pub fn gradients(&self, inputs: &[&Tensors], cotangents: &Tensors) -> Result<Evaluation> {
        self.check_limits(inputs)?;
        let outputs: Vec<Arc<str>> = cotangents.keys().cloned().collect();
        let params: Vec<Arc<str>> = self.compiled.trained().map(|i| i.name.clone()).collect();
        let graph = self.compiled.gradient(&Interpreter, &outputs, &params, &mut |_, _| {})?;
        run(&graph, inputs, cotangents)
    }
}

pub(crate) fn run(graph: &Graph, inputs: &[&Tensors], cotangents: &Tensors) -> Result<Evaluation> {
    let mut tensors = Vec::with_capacity(graph.inputs.len());
    for &v in &graph.inputs {
        let value = graph.value(v);
        let name = value.name.as_deref().unwrap_or("");
        let tensor = match value.def {
            mithril_ir::graph::Def::Input(Role::Cotangent) => cotangents.get(name),
            _ => inputs.iter().find_map(|map| map.get(name)),
        };
        tensors.push(tensor.cloned().ok_or_else(|| missing(name, inputs))?);
    }
    let mut results = interp::run(graph, &tensors)?.into_iter();
    let mut evaluation = Evaluation::default();
    for (name, t) in graph.outputs.keys().zip(results.by_ref()) {
        match gradient_of(name) {
            Some(input) => evaluation.gradients.insert(input.into(), t),
            None => evaluation.outputs.insert(name.clone(), t),
        };
    }
    for ((input, _), t) in graph.updates.iter().zip(results) {
        let name = graph.value(*input).name.clone().unwrap_or_else(|| "".into());
        evaluation.state.insert(name, t);
    }
    Ok(evaluation)
}

pub(crate) fn missing(name: &str, inputs: &[&Tensors]) -> Error {
    let names = || inputs.iter().flat_map(|map| map.keys()).map(|k| &**k);
    let error = Error::new(Code::BadParameter, format!("input `{name}` is missing"));
    match nearest(name, names()) {
        Some(near) => error.help(format!("did you mean `{near}`, which you gave?")),
        None => error.help("add it to one of the maps"),
    }
}
