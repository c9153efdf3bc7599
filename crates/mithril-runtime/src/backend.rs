//! Backends of a user's own: a trait with the ops that they have, and programs that run on them.
//!
//! A backend says what it supports ([`Backend::supports`]) and runs it ([`Backend::run`]). A model is lowered to
//! that: composites that the backend lacks are expanded, until nothing is left but what it has; primitives that it
//! lacks are run by the reference interpreter on the host if it allows that, and are an error when compiling
//! otherwise. Gradients are ops like all others. `examples/custom_backend.rs` of the crate `mithril` is a complete
//! example.

use std::sync::Arc;

use indexmap::IndexMap;
use mithril_compile::compiled::{Compiled, gradient_of};
use mithril_compile::pipeline::Target;
use mithril_ir::error::{Code, Error, Result, nearest};
use mithril_ir::graph::{Def, Graph, Node, NodeId, Role, TensorType};
use mithril_ir::interp::{self, EvalArg, Symbols};
use mithril_ir::op::OpDef;
use mithril_ir::rules::Attrs;
use mithril_ir::{DType, Lit, Tensor, ValueId};
use mithril_model::{FlattenOptions, Model};

/// What a backend of your own defines.
pub trait Backend {
    /// An array on the device. Cloning it should be cheap.
    type Array: Clone;

    /// Name, for messages.
    fn name(&self) -> &str;
    /// Whether the backend runs this use of an op.
    fn supports(&self, op: &Use<'_>) -> bool;
    /// Runs a use of an op that is supported; its outputs in order.
    ///
    /// # Errors
    /// If the device fails.
    fn run(&self, call: &Call<'_, Self::Array>) -> Result<Vec<Self::Array>>;
    /// Copies a tensor to the device.
    ///
    /// # Errors
    /// If the device has no such dtype, or no memory.
    fn upload(&self, tensor: &Tensor) -> Result<Self::Array>;
    /// Copies an array from the device.
    ///
    /// # Errors
    /// If the device fails.
    fn download(&self, array: &Self::Array) -> Result<Tensor>;
    /// Dtype and sizes of an array.
    fn describe(&self, array: &Self::Array) -> (DType, Vec<usize>);
    /// Whether the reference interpreter may run on the host what the backend lacks. If not, compiling lists it as
    /// an error.
    fn allows_host(&self) -> bool {
        true
    }
}

/// A use of an op in a graph, before it runs. Literal arguments are read with [`Attrs`].
#[derive(Clone, Copy, Debug)]
pub struct Use<'a> {
    graph: &'a Graph,
    node: &'a Node,
}

impl Attrs for Use<'_> {
    fn op(&self) -> &'static OpDef {
        self.node.op
    }
    fn lit(&self, i: usize) -> Lit {
        self.node.inputs.get(i).and_then(|&v| self.graph.lit(v)).cloned().unwrap_or(Lit::None)
    }
}

impl Use<'_> {
    /// Name of the op.
    pub fn name(&self) -> &'static str {
        self.node.op.name
    }
    /// Type of input `i`, if it is a tensor.
    pub fn input(&self, i: usize) -> Option<&TensorType> {
        self.node.inputs.get(i).and_then(|&v| self.graph.ty(v))
    }
    /// Type of output `i`.
    pub fn output(&self, i: usize) -> Option<&TensorType> {
        self.node.outputs.get(i).and_then(|&v| self.graph.ty(v))
    }
    /// Whether all tensors that go in and come out are of one of these dtypes.
    pub fn is_of(&self, dtypes: &[DType]) -> bool {
        let values = self.node.inputs.iter().chain(&self.node.outputs);
        values.filter_map(|&v| self.graph.ty(v)).all(|ty| dtypes.contains(&ty.dtype))
    }
}

/// A use of an op that is to be run. Literal arguments are read with [`Attrs`], without symbols.
#[derive(Debug)]
pub struct Call<'a, A> {
    op: &'static OpDef,
    args: &'a [Argument<A>],
    /// Dtypes and sizes that the outputs must have.
    pub outputs: &'a [(DType, Vec<usize>)],
}

/// What stands at a port.
#[derive(Clone, Debug)]
enum Argument<A> {
    Array(A),
    Lit(Lit),
}

impl<A: std::fmt::Debug> Attrs for Call<'_, A> {
    fn op(&self) -> &'static OpDef {
        self.op
    }
    fn lit(&self, i: usize) -> Lit {
        match self.args.get(i) {
            Some(Argument::Lit(lit)) => lit.clone(),
            _ => Lit::None,
        }
    }
}

impl<A> Call<'_, A> {
    /// Name of the op.
    pub fn name(&self) -> &'static str {
        self.op.name
    }
    /// The array at input `i`; numbers are arrays too. `None` if it is absent, or a literal argument.
    pub fn get(&self, i: usize) -> Option<&A> {
        match self.args.get(i) {
            Some(Argument::Array(array)) => Some(array),
            _ => None,
        }
    }
    /// The array at input `i`.
    ///
    /// # Errors
    /// If there is none.
    pub fn array(&self, i: usize) -> Result<&A> {
        self.get(i).ok_or_else(|| Error::internal(format!("input {i} of {} is not an array", self.op.name)))
    }
}

/// The target that a backend is for the compiler.
struct Supported<'b, B>(&'b B);

impl<B: Backend> Target for Supported<'_, B> {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn can_lower(&self, graph: &Graph, node: NodeId) -> bool {
        self.0.supports(&Use { graph, node: graph.node(node) })
    }
}

/// Arrays by name.
pub type Arrays<A> = IndexMap<Arc<str>, A>;

/// What a call of a program gives.
#[derive(Clone, Debug)]
pub struct Outcome<A> {
    /// Outputs by name.
    pub outputs: Arrays<A>,
    /// Gradients by parameter name; empty unless asked for.
    pub gradients: Arrays<A>,
    /// New values of the states that changed.
    pub state: Arrays<A>,
}

/// A model that runs on a backend of your own. Calls do not change it.
#[derive(Debug)]
pub struct Program<B> {
    backend: B,
    compiled: Compiled,
    forward: Graph,
}

impl<B: Backend> Program<B> {
    /// Compiles a model for a backend.
    ///
    /// # Errors
    /// If the model is not well-formed, or the backend lacks ops and does not allow the host.
    pub fn new(model: &Model, options: &FlattenOptions, backend: B) -> Result<Self> {
        let compiled = Compiled::new(model, options)?;
        let forward = compiled.forward(&Supported(&backend), &mut |_, _| {})?;
        let program = Self { backend, compiled, forward };
        program.check(&program.forward)?;
        Ok(program)
    }
    /// The backend.
    pub fn backend(&self) -> &B {
        &self.backend
    }
    /// The compiled model.
    pub fn compiled(&self) -> &Compiled {
        &self.compiled
    }
    /// Ops that the reference interpreter runs on the host since the backend lacks them.
    pub fn on_host(&self) -> Vec<&'static str> {
        self.lacking(&self.forward)
    }
    /// Initial values of all parameters and states.
    ///
    /// # Errors
    /// If a value cannot be drawn or copied to the device.
    pub fn initial(&self, seed: u64) -> Result<Arrays<B::Array>> {
        let kept = self.compiled.inputs.iter().filter(|i| matches!(i.role, Role::Param | Role::State));
        let names: Vec<Arc<str>> = kept.map(|i| i.name.clone()).collect();
        let values = self.compiled.initial(&names.iter().map(|n| &**n).collect::<Vec<_>>(), seed)?;
        names.into_iter().zip(&values).map(|(name, t)| Ok((name, self.backend.upload(t)?))).collect()
    }
    /// Computes the outputs. Every input is looked up by its name in `inputs`, from the first map to the last.
    ///
    /// # Errors
    /// If an input is missing or does not fit, or an op fails.
    pub fn evaluate(&self, inputs: &[&Arrays<B::Array>]) -> Result<Outcome<B::Array>> {
        self.run(&self.forward, inputs, &Arrays::new())
    }
    /// Computes outputs and gradients of all parameters, for these cotangents of outputs.
    ///
    /// # Errors
    /// As [`Program::evaluate`]; also if an op has no gradient.
    pub fn gradients(
        &self,
        inputs: &[&Arrays<B::Array>],
        cotangents: &Arrays<B::Array>,
    ) -> Result<Outcome<B::Array>> {
        let outputs: Vec<Arc<str>> = cotangents.keys().cloned().collect();
        let params: Vec<Arc<str>> = self.compiled.trained().map(|i| i.name.clone()).collect();
        let graph = self.compiled.gradient(&Supported(&self.backend), &outputs, &params, &mut |_, _| {})?;
        self.check(&graph)?;
        self.run(&graph, inputs, cotangents)
    }

    fn supports(&self, graph: &Graph, node: &Node) -> bool {
        self.backend.supports(&Use { graph, node })
    }
    fn lacking(&self, graph: &Graph) -> Vec<&'static str> {
        let mut missing: Vec<&'static str> =
            graph.nodes().filter(|(_, n)| !self.supports(graph, n)).map(|(_, n)| n.op.name).collect();
        missing.sort_unstable();
        missing.dedup();
        missing
    }
    fn check(&self, graph: &Graph) -> Result<()> {
        let lacking = self.lacking(graph);
        if self.backend.allows_host() || lacking.is_empty() {
            return Ok(());
        }
        let message = format!("{} has no {}", self.backend.name(), lacking.join(", "));
        Err(Error::new(Code::Unsupported, message).help("support these ops, or allow the host to run them"))
    }

    fn run(
        &self,
        graph: &Graph,
        inputs: &[&Arrays<B::Array>],
        cotangents: &Arrays<B::Array>,
    ) -> Result<Outcome<B::Array>> {
        let mut values: Vec<Option<B::Array>> = vec![None; graph.values().len()];
        let mut arrays = Vec::with_capacity(graph.inputs.len());
        for &v in &graph.inputs {
            let value = graph.value(v);
            let name = value.name.as_deref().unwrap_or("");
            let argument = match value.def {
                Def::Input(Role::Cotangent) => cotangents.get(name),
                _ => inputs.iter().find_map(|map| map.get(name)),
            };
            let array = argument.ok_or_else(|| missing(name, inputs))?;
            arrays.push(self.backend.describe(array));
            values[v.index()] = Some(array.clone());
        }
        let types: Vec<(DType, &[usize])> = arrays.iter().map(|(d, shape)| (*d, shape.as_slice())).collect();
        let symbols = interp::bind_types(graph, &types)?;
        self.compiled.check_limits(&symbols)?;
        let mut uses = interp::use_counts(graph);
        for (n, node) in graph.nodes() {
            let results = self.node(graph, node, &values, &symbols).map_err(|e| e.at(graph.place(n)))?;
            for (&v, array) in node.outputs.iter().zip(results) {
                values[v.index()] = Some(array);
            }
            for v in &node.inputs {
                uses[v.index()] -= 1;
                if uses[v.index()] == 0 {
                    values[v.index()] = None;
                }
            }
        }
        self.outcome(graph, &values, &symbols)
    }

    fn outcome(
        &self,
        graph: &Graph,
        values: &[Option<B::Array>],
        symbols: &Symbols,
    ) -> Result<Outcome<B::Array>> {
        let read = |v: ValueId| match (&values[v.index()], graph.lit(v)) {
            (Some(array), _) => Ok(array.clone()),
            (None, Some(Lit::Tensor(t))) => self.backend.upload(t),
            (None, Some(lit)) => {
                let lit = interp::resolve_lit(lit, symbols)?;
                self.backend.upload(&interp::number(&lit, graph.ty(v).map(|ty| ty.dtype))?)
            }
            (None, None) => Err(Error::internal("a result is not computed")),
        };
        let mut outcome = Outcome { outputs: Arrays::new(), gradients: Arrays::new(), state: Arrays::new() };
        for (name, &v) in &graph.outputs {
            match gradient_of(name) {
                Some(input) => outcome.gradients.insert(input.into(), read(v)?),
                None => outcome.outputs.insert(name.clone(), read(v)?),
            };
        }
        for &(input, v) in &graph.updates {
            let name = graph.value(input).name.clone().unwrap_or_else(|| "".into());
            outcome.state.insert(name, read(v)?);
        }
        Ok(outcome)
    }

    /// Runs one node, on the device or on the host.
    fn node(
        &self,
        graph: &Graph,
        node: &Node,
        values: &[Option<B::Array>],
        symbols: &Symbols,
    ) -> Result<Vec<B::Array>> {
        let mut args = Vec::with_capacity(node.inputs.len());
        for (i, &v) in node.inputs.iter().enumerate() {
            args.push(match graph.lit(v) {
                Some(lit) if !node.op.takes_tensor(i) || lit.is_none() => {
                    Argument::Lit(interp::resolve_lit(lit, symbols)?)
                }
                Some(Lit::Tensor(t)) => Argument::Array(self.backend.upload(t)?),
                Some(lit) => {
                    let number = interp::operand(graph, node, &interp::resolve_lit(lit, symbols)?)?;
                    Argument::Array(self.backend.upload(&number)?)
                }
                None => Argument::Array(values[v.index()].clone().ok_or_else(|| {
                    Error::internal(format!("value {} is read before it is computed", v.index()))
                })?),
            });
        }
        let outputs = interp::output_types(graph, node, symbols)?;
        if !self.supports(graph, node) {
            return self.on_the_host(node.op, &args, &outputs);
        }
        let results = self.backend.run(&Call { op: node.op, args: &args, outputs: &outputs })?;
        self.check_results(node.op, &results, &outputs)?;
        Ok(results)
    }

    fn on_the_host(
        &self,
        op: &'static OpDef,
        args: &[Argument<B::Array>],
        outputs: &[(DType, Vec<usize>)],
    ) -> Result<Vec<B::Array>> {
        let host = |arg: &Argument<B::Array>| match arg {
            Argument::Array(array) => Ok(EvalArg::Tensor(Arc::new(self.backend.download(array)?))),
            Argument::Lit(lit) => Ok(EvalArg::Lit(lit.clone())),
        };
        let args = args.iter().map(host).collect::<Result<Vec<_>>>()?;
        interp::eval(op, &args, outputs)?.iter().map(|t| self.backend.upload(t)).collect()
    }

    /// A wrong result is found where it is made.
    fn check_results(
        &self,
        op: &'static OpDef,
        results: &[B::Array],
        outputs: &[(DType, Vec<usize>)],
    ) -> Result<()> {
        let name = self.backend.name();
        if results.len() != outputs.len() {
            let message =
                format!("{name}: {} returns {} arrays, not {}", op.name, results.len(), outputs.len());
            return Err(Error::new(Code::BadArgument, message));
        }
        for (array, (dtype, shape)) in results.iter().zip(outputs) {
            let (actual, sizes) = self.backend.describe(array);
            if actual != *dtype || sizes != *shape {
                let code = if actual == *dtype { Code::ShapeMismatch } else { Code::DTypeMismatch };
                let message = format!(
                    "{name}: {} returns {actual}{sizes:?}, but must return {dtype}{shape:?}",
                    op.name
                );
                return Err(Error::new(code, message));
            }
        }
        Ok(())
    }
}

fn missing<A>(name: &str, inputs: &[&Arrays<A>]) -> Error {
    let names = || inputs.iter().flat_map(|map| map.keys()).map(|k| &**k);
    let error = Error::new(Code::BadParameter, format!("input `{name}` is missing"));
    match nearest(name, names()) {
        Some(near) => error.help(format!("did you mean `{near}`, which you gave?")),
        None => error.help("add it to one of the maps"),
    }
}
