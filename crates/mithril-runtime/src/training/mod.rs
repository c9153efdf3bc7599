//! Training: outputs, gradients and the step of an optimizer as one program, which keeps what it changes.

use std::sync::{Arc, OnceLock};

use mithril_compile::compiled::Compiled;
use mithril_compile::pipeline::Interpreter;
use mithril_ir::error::{Code, Error, Result, nearest};
use mithril_ir::graph::{Graph, Role};
use mithril_ir::{DType, Lit, Tensor};
use mithril_model::optimizers::{Clipping, Joined, Part, find, join};
use mithril_model::{FlattenOptions, Model};

use crate::c::{EntryPoint, Options, Program};
use crate::interpreter::{Evaluation, Tensors, run};

mod fit;

pub use fit::{Epoch, FitOptions};

/// An optimizer with its options.
///
/// ```
/// use mithril_runtime::training::Optimizer;
/// let optimizer = Optimizer::new("SGD", 0.1)?.with("momentum", 0.9).clip_norm(1.0);
/// assert!(Optimizer::new("Adm", 0.1).unwrap_err().to_string().contains("Adam"));
/// # Ok::<(), mithril_ir::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Optimizer {
    name: String,
    args: Vec<(String, Lit)>,
    clipping: Clipping,
    rate: f64,
}

impl Optimizer {
    /// The optimizer of that name (`SGD`, `Adam`, `AdamW`, `RMSprop`, `Adafactor`, `Lion`) with a learning rate.
    pub fn new(name: &str, learning_rate: f64) -> Result<Self> {
        find(name)?;
        check_rate(learning_rate)?;
        let clipping = Clipping::default();
        Ok(Self { name: name.to_owned(), args: Vec::new(), clipping, rate: learning_rate })
    }
    /// The same with an argument of its rule, e.g. `momentum`. Names and values are checked when a training begins.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Lit>) -> Self {
        self.args.push((name.to_owned(), value.into()));
        self
    }
    /// The same with gradients scaled down where their norm, of all together, is larger.
    #[must_use]
    pub fn clip_norm(mut self, norm: f64) -> Self {
        self.clipping.norm = Some(norm);
        self
    }
    /// The same with each element of the gradients bounded in magnitude.
    #[must_use]
    pub fn clip_value(mut self, value: f64) -> Self {
        self.clipping.value = Some(value);
        self
    }
}

/// A model in training: each step computes outputs and gradients of a batch and updates the parameters.
///
/// It runs in the interpreter, or as C after [`TrainingStep::in_c`], from the same numbers to the same numbers.
///
/// ```
/// use mithril_ir::{Place, Tensor};
/// use mithril_model::{FlattenOptions, Model, layers};
/// use mithril_runtime::interpreter::tensors;
/// use mithril_runtime::training::{Optimizer, TrainingStep};
///
/// // output = input · weightᵀ + bias, and the mean of (output − target)².
/// let mut model = Model::new();
/// model.extend(&layers::linear(1, true)?, [("input", "input"), ("output", "output")], Place::default())?;
/// let loss = layers::build("MSELoss", vec![], vec![])?;
/// model.extend(&loss, [("input", "output"), ("target", "target"), ("output", "loss")], Place::default())?;
/// let shape = || vec!["batch".into(), 1.into()];
/// let shapes = vec![("input".into(), shape()), ("target".into(), shape())];
/// let options = FlattenOptions { shapes, training: true, ..FlattenOptions::default() };
///
/// let optimizer = Optimizer::new("SGD", 0.05)?.with("momentum", 0.9);
/// let mut training = TrainingStep::new(&model, &options, "loss", &optimizer, 0)?;
/// let data = tensors([
///     ("input", Tensor::of(&[4, 1], vec![-1.0_f32, 0.0, 1.0, 2.0])?),
///     ("target", Tensor::of(&[4, 1], vec![-4.0_f32, -1.0, 2.0, 5.0])?),
/// ]);
/// for _ in 0..200 {
///     training.step(&data)?;
/// }
/// assert!((training.parameter("linear.weight")?.get(0).f64() - 3.0).abs() < 1e-3);
/// # Ok::<(), mithril_ir::Error>(())
/// ```
#[derive(Debug)]
pub struct TrainingStep {
    compiled: Compiled,
    runner: Runner,
    /// Parameters, what the optimizer remembers, the number of the next step, and states of the model.
    state: Tensors,
    params: Vec<Arc<str>>,
    rate: f64,
    scalar: DType,
    /// The output that is minimized.
    loss: String,
    /// The model and its options, and, once it is needed, what evaluates it without training.
    source: (Model, FlattenOptions),
    evaluator: OnceLock<Runner>,
    /// How C is made, if that is what runs.
    in_c: Option<Options>,
}

/// What runs a program.
#[derive(Debug)]
enum Runner {
    Interpreter(Box<Graph>),
    C(Box<Program>),
}

impl Runner {
    fn new(compiled: &Compiled, in_c: Option<&Options>) -> Result<Self> {
        Ok(match in_c {
            Some(options) => Self::in_c(compiled, options.clone()),
            None => Self::Interpreter(Box::new(compiled.forward(&Interpreter, &mut |_, _| {})?)),
        })
    }
    fn in_c(compiled: &Compiled, options: Options) -> Self {
        Self::C(Box::new(Program::new(compiled.clone(), EntryPoint::Outputs, options)))
    }
    fn run(&self, inputs: &[&Tensors]) -> Result<Evaluation> {
        match self {
            Self::Interpreter(graph) => run(graph, inputs, &Tensors::new()),
            Self::C(program) => program.evaluate(inputs, &Tensors::new()),
        }
    }
}

impl TrainingStep {
    /// Begins a training that minimizes the sum of the output `loss`, with parameters drawn by `seed`.
    ///
    /// All sizes of parameters have to follow from the model and the shapes in `options`; sizes of data may be symbols.
    pub fn new(
        model: &Model,
        options: &FlattenOptions,
        loss: &str,
        optimizer: &Optimizer,
        seed: u64,
    ) -> Result<Self> {
        let options = FlattenOptions { training: true, ..options.clone() };
        let forward = Compiled::new(model, &options)?;
        check_loss(&forward, loss)?;
        let trained: Vec<_> = forward.trained().cloned().collect();
        if trained.is_empty() {
            return Err(Error::new(Code::BadArgument, "the model has no parameters to train"));
        }
        let params: Vec<Arc<str>> = trained.iter().map(|input| input.name.clone()).collect();
        let parts = trained
            .iter()
            .map(|input| {
                let open = || {
                    let message = format!("the shape of `{}` is {}", input.name, input.ty.shape);
                    Error::new(Code::UnknownShape, message).help("give the shapes of the data in the options")
                };
                let shape = input.ty.shape.known().ok_or_else(open)?;
                Ok(Part {
                    shape: shape.into_iter().map(|n| n as i64).collect(),
                    dtype: input.ty.dtype,
                    gradient: input.ty.dtype,
                    args: optimizer.args.clone(),
                    rate: 0,
                    counter: 0,
                })
            })
            .collect::<Result<Vec<_>>>()?;
        let Joined { model: rule, scalar, .. } = join(&optimizer.name, &parts, optimizer.clipping, false)?;
        let float = options.float;
        let rule = Compiled::new(&rule, &FlattenOptions { float, training: false, ..Default::default() })?;
        let compiled = forward.training_step(loss, &params, &rule)?;
        let mut step = Self {
            runner: Runner::new(&compiled, None)?,
            compiled,
            state: Tensors::new(),
            params,
            rate: optimizer.rate,
            scalar,
            loss: loss.to_owned(),
            source: (model.clone(), options),
            evaluator: OnceLock::new(),
            in_c: None,
        };
        // Of the same seed an `Executable` of the model has the same parameters.
        let kept = step.compiled.inputs.iter().filter(|i| matches!(i.role, Role::Param | Role::State));
        let names: Vec<Arc<str>> = kept.map(|i| i.name.clone()).collect();
        let values = step.compiled.initial(&names.iter().map(|n| &**n).collect::<Vec<_>>(), seed)?;
        step.state.extend(names.into_iter().zip(values.into_iter().map(Arc::new)));
        Ok(step)
    }
    /// Goes on as C: each choice of sizes is compiled when it comes.
    #[must_use]
    pub fn in_c(mut self, options: Options) -> Self {
        // Parameters change from step to step.
        let options = Options { pack: false, ..options };
        self.runner = Runner::in_c(&self.compiled, options.clone());
        self.evaluator = OnceLock::new();
        self.in_c = Some(options);
        self
    }
    /// Takes a step on a batch; the outputs, the loss among them, as they were before it. After an error nothing has
    /// changed.
    pub fn step(&mut self, data: &Tensors) -> Result<Tensors> {
        let rate = Arc::new(Tensor::scalar(self.scalar, self.rate));
        let rate: Tensors = [("learning_rate".into(), rate)].into_iter().collect();
        let result = self.runner.run(&[&self.state, data, &rate])?;
        self.state.extend(result.state);
        Ok(result.outputs)
    }
    /// The outputs for a batch with the parameters as they are, without training: no dropout, and running statistics.
    pub fn evaluate(&self, data: &Tensors) -> Result<Tensors> {
        let evaluator = if let Some(evaluator) = self.evaluator.get() {
            evaluator
        } else {
            let (model, options) = &self.source;
            let options = FlattenOptions { training: false, ..options.clone() };
            let runner = Runner::new(&Compiled::new(model, &options)?, self.in_c.as_ref())?;
            self.evaluator.get_or_init(|| runner)
        };
        Ok(evaluator.run(&[&self.state, data])?.outputs)
    }
    /// The learning rate of the next steps.
    pub fn learning_rate(&self) -> f64 {
        self.rate
    }
    /// Changes the learning rate, as a schedule does.
    pub fn set_learning_rate(&mut self, rate: f64) -> Result<()> {
        check_rate(rate)?;
        self.rate = rate;
        Ok(())
    }
    /// A parameter by name.
    pub fn parameter(&self, name: &str) -> Result<&Arc<Tensor>> {
        let param = self.params.iter().any(|p| **p == *name).then(|| self.state.get(name)).flatten();
        param.ok_or_else(|| unknown("parameter", name, self.params.iter().map(|p| &**p)))
    }
    /// All parameters that are trained, by name: what an executable of the model takes.
    pub fn parameters(&self) -> Tensors {
        self.params.iter().filter_map(|name| Some((name.clone(), self.state.get(name)?.clone()))).collect()
    }
    /// All that the training goes on from: parameters, states of the model, what the optimizer remembers
    /// (`<parameter>.<slot>`), and the number of the next step (`step`).
    pub fn state(&self) -> &Tensors {
        &self.state
    }
    /// Goes on from values of an earlier [`TrainingStep::state`], or of some of it; all of them or, after an error, none.
    pub fn load(&mut self, state: &Tensors) -> Result<()> {
        for (name, value) in state {
            let Some(own) = self.state.get(name) else {
                return Err(unknown("parameter or state", name, self.state.keys().map(|n| &**n)));
            };
            if own.shape() != value.shape() || own.dtype() != value.dtype() {
                let (actual, expected) = (described(value), described(own));
                let message = format!("`{name}` is {actual}, but must be {expected}");
                return Err(Error::new(Code::BadParameter, message).help("check which model it comes from"));
            }
        }
        self.state.extend(state.iter().map(|(name, value)| (name.clone(), value.clone())));
        Ok(())
    }
}

fn check_loss(compiled: &Compiled, loss: &str) -> Result<()> {
    let outputs = &compiled.graph.outputs;
    let Some(&value) = outputs.get(loss) else {
        return Err(unknown("output", loss, outputs.keys().map(|n| &**n)));
    };
    match &compiled.graph.value(value).ty {
        Some(ty) if !ty.dtype.is_float() => Err(Error::new(
            Code::BadArgument,
            format!("the loss `{loss}` is {ty}, and only floats have gradients"),
        )),
        _ => Ok(()),
    }
}

fn check_rate(rate: f64) -> Result<()> {
    if rate.is_finite() && rate >= 0.0 {
        return Ok(());
    }
    let message = format!("the learning rate is {rate}");
    Err(Error::new(Code::BadArgument, message).help("it must be 0 or more"))
}

fn described(tensor: &Tensor) -> String {
    format!("{} {:?}", tensor.dtype().name(), tensor.shape())
}

fn unknown<'a>(kind: &str, name: &str, known: impl Iterator<Item = &'a str> + Clone) -> Error {
    let error = Error::new(Code::UnknownName, format!("there is no {kind} called `{name}`"));
    match nearest(name, known.clone()) {
        Some(near) => error.help(format!("did you mean `{near}`?")),
        None => error.help(format!("available: {}", known.collect::<Vec<_>>().join(", "))),
    }
}
