//! A compiled model on ggml: one function per choice of sizes, made when it is needed.

use std::collections::BTreeSet;
use std::sync::Arc;

use mithril_codegen::c::is_fixed;
use mithril_codegen::c::{find_all, matches};
use mithril_codegen::ggml::plan::PlanValueId;
use mithril_codegen::ids::{Id as _, OutputId};
use mithril_compile::compiled::Compiled;
use mithril_compile::ggml::{self, Element, Ggml, Plan};
use mithril_compile::pipeline::Observer;
use mithril_ir::dim::Symbol;
use mithril_ir::graph::Def;
use mithril_ir::interp::Symbols;
use mithril_ir::{Code, DType, Error, Graph, Result, Role, ValueId, text};

use super::borrowed::{Blocks, BorrowedWeights};
use super::budget::Budget;
use super::function::{Function, read};
use super::pack::{Decision, Packed};
use super::repacked;
use crate::c::program::symbols_of;
use crate::c::{Address, AddressMut, EntryPoint, Interface, TensorSpec};
use crate::host_calls::Callable;
use crate::interpreter::{Evaluation, Tensors};
use crate::specialized::{Made, Named};

/// Which weights are kept in other elements.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quantize {
    /// Patterns of paths of weights, and in what those are kept; `None`: as they are. The first that is the path counts;
    /// `*` stands for anything, `?` for one character.
    pub rules: Vec<(String, Option<Element>)>,
    /// Whether a weight that cannot be kept so is an error.
    pub strict: bool,
}

/// How a program is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// Threads of a call; 0: as many as the system has for this process.
    pub threads: usize,
    /// Bytes that weights, the graphs of ggml and what its threads work in may have together, for all choices of sizes;
    /// calls at the same time wait for each other where it is reached.
    pub memory_limit: Option<usize>,
    /// Whether weights may be made ready once: they then must not change between calls.
    pub pack: bool,
    /// Weights that are quantized; needs `pack`.
    pub quantize: Option<Quantize>,
    /// Whether the rows of low-bit weights are interleaved for products where ggml has kernels for that. By default those of
    /// weights that are packed; `Some(true)`: also of those that would be read where they are given, which are copied.
    pub repack: Option<bool>,
}

impl Default for Options {
    fn default() -> Self {
        Self { threads: 1, memory_limit: None, pack: false, quantize: None, repack: None }
    }
}

impl Options {
    /// Threads of a call.
    pub fn threads(&self) -> usize {
        match self.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            other => other,
        }
    }
}

/// The program for one choice of sizes.
#[derive(Debug)]
pub struct Specialized {
    /// What it runs.
    pub function: Function,
    /// Names of stages and what they made of the graph, as text; the last is the plan.
    pub stages: Vec<(String, String)>,
    /// What became of the weights where some are to be kept in other elements.
    pub decisions: Vec<Decision>,
}

/// Symbols with their numbers, sorted.
type Sizes = Vec<(Symbol, i64)>;

/// What a program is made for: sizes, and which weights are given in blocks.
type Key = (Sizes, BorrowedWeights);

/// A compiled model on ggml.
#[derive(Debug)]
pub struct Program {
    compiled: Compiled,
    entry: EntryPoint,
    options: Options,
    budget: Arc<Budget>,
    specialized: Made<Key, Specialized>,
}

impl Program {
    /// A program of a compiled model; [`Program::specialize`] makes its functions.
    pub fn new(compiled: Compiled, entry: EntryPoint, options: Options) -> Self {
        let budget = Budget::new(options.memory_limit);
        Self { compiled, entry, options, budget, specialized: Made::default() }
    }
    /// The model.
    pub fn compiled(&self) -> &Compiled {
        &self.compiled
    }
    /// How it is made.
    pub fn options(&self) -> &Options {
        &self.options
    }
    /// The memory that all choices of sizes have together.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }
    /// Whether some sizes are symbols, so that each choice of them is a program of its own.
    pub fn is_open(&self) -> bool {
        let mut dims = self.compiled.inputs.iter().flat_map(|i| i.ty.shape.iter());
        dims.any(|d| d.known().is_none())
    }
    /// Values of the symbols, from the sizes of inputs by name.
    pub fn symbols<'a>(&self, shapes: impl IntoIterator<Item = (&'a str, Vec<usize>)>) -> Result<Symbols> {
        symbols_of(&self.compiled, shapes)
    }
    /// The program for these sizes.
    pub fn specialize(&self, symbols: &Symbols) -> Result<Arc<Specialized>> {
        self.specialize_blocks(symbols, &BorrowedWeights::new())
    }
    /// The program for these sizes where some weights are given in blocks: they stay so, unless it is to keep them
    /// otherwise.
    pub fn specialize_blocks(
        &self,
        symbols: &Symbols,
        borrowed: &BorrowedWeights,
    ) -> Result<Arc<Specialized>> {
        let mut sizes: Sizes = symbols.iter().map(|(s, &n)| (s.clone(), n)).collect();
        sizes.sort();
        self.specialized.find((sizes, borrowed.clone()), || self.make(symbols, borrowed))
    }
    fn make(&self, symbols: &Symbols, borrowed: &BorrowedWeights) -> Result<Specialized> {
        let pack = self.options.pack;
        let threads = self.options.threads();
        let quantize = self.options.quantize.as_ref();
        check(quantize, pack)?;
        let mut stages = Vec::new();
        let graph =
            self.graph(symbols, &mut |name, graph| stages.push((name.to_owned(), text::print(graph))))?;
        let choice = Choice {
            rules: quantize.cloned(),
            borrowed: if pack { borrowed.clone() } else { BorrowedWeights::new() },
        };
        let plan = choice.plan(&graph, pack, &self.compiled.donated)?;
        stages.push(("plan".to_owned(), plan.to_string()));
        let mut interface = interface(&graph, &plan)?;
        if let Some(quantize) = quantize {
            let inputs = interface.inputs.iter().zip(&interface.roles);
            let names: Vec<&str> =
                inputs.filter(|(_, role)| **role == Role::Param).map(|(buffer, _)| &*buffer.name).collect();
            find_all(quantize.rules.iter().map(|(pattern, _)| &**pattern), &names)?;
        }
        let decisions = choice.decisions(&plan, &interface);
        refuse(quantize, &decisions)?;
        let can_repack = pack && self.options.repack != Some(false);
        let repacked = if can_repack { repacked::candidates(&plan)? } else { BTreeSet::new() };
        let copied = if self.options.repack == Some(true) { repacked.clone() } else { BTreeSet::new() };
        let blocks = Blocks::new(&choice.borrowed, &plan, &mut interface, copied);
        let function = Function::of_blocks(plan, interface, blocks, repacked, pack, threads, &self.budget)?;
        Ok(Specialized { function, stages, decisions })
    }
    /// What becomes a plan.
    fn graph(&self, symbols: &Symbols, observe: &mut Observer<'_>) -> Result<Graph> {
        let model = self.compiled.specialize(symbols)?;
        match &self.entry {
            EntryPoint::Outputs => model.forward(&Ggml, observe),
            EntryPoint::Gradients { outputs, inputs } => model.gradient(&Ggml, outputs, inputs, observe),
        }
    }
    /// Computes the outputs. Every input is looked up by its name in `inputs`, from the first map to the last; gradients
    /// take their cotangents from `cotangents`.
    ///
    /// ```
    /// use mithril_compile::compiled::Compiled;
    /// use mithril_ir::{Place, Tensor};
    /// use mithril_model::{FlattenOptions, Model, layers};
    /// use mithril_runtime::c::EntryPoint;
    /// use mithril_runtime::ggml::{Options, Program};
    /// use mithril_runtime::interpreter::{Tensors, tensors};
    ///
    /// let mut model = Model::new();
    /// model.extend(&layers::linear(2, true)?, [("input", "input"), ("output", "output")], Place::default())?;
    /// let shapes = vec![("input".into(), vec!["batch".into(), 3.into()])];
    /// let compiled = Compiled::new(&model, &FlattenOptions { shapes, ..Default::default() })?;
    /// let program = Program::new(compiled, EntryPoint::Outputs, Options::default());
    /// let params = tensors([
    ///     ("linear.weight", Tensor::from_parts(&[2, 3], vec![1.0_f32, 0.0, 0.0, 0.0, 2.0, 0.0])),
    ///     ("linear.bias", Tensor::from_parts(&[2], vec![0.5_f32, 0.0])),
    /// ]);
    /// let data = tensors([("input", Tensor::from_parts(&[1, 3], vec![1.0_f32, 2.0, 3.0]))]);
    /// let found = program.evaluate(&[&params, &data], &Tensors::new())?;
    /// assert_eq!(found.outputs["output"].as_slice::<f32>(), Some(&[1.5, 4.0][..]));
    /// # Ok::<(), mithril_ir::Error>(())
    /// ```
    pub fn evaluate(&self, inputs: &[&Tensors], cotangents: &Tensors) -> Result<Evaluation> {
        let named = Named { inputs, cotangents };
        let specialized = self.specialize(&self.symbols(named.shapes(&self.compiled)?)?)?;
        named.evaluate(specialized.function.interface(), |arguments| specialized.function.run(arguments))
    }
}

impl Quantize {
    /// In what a weight is to be kept.
    fn element(&self, name: &str) -> Option<Element> {
        self.rules.iter().find(|(pattern, _)| matches(pattern, name)).and_then(|(_, element)| *element)
    }
}

/// In what each weight is kept: as it is asked for by its name, or else as it is given.
struct Choice {
    rules: Option<Quantize>,
    borrowed: BorrowedWeights,
}

impl Choice {
    /// In what a weight is to be kept.
    fn element(&self, name: &str) -> Option<Element> {
        let asked = self.rules.as_ref().and_then(|rules| rules.element(name));
        asked.or_else(|| self.borrowed.get(name).copied())
    }
    /// Whether there is anything to choose.
    fn is_empty(&self) -> bool {
        self.rules.is_none() && self.borrowed.is_empty()
    }
    /// The plan of a graph.
    fn plan(&self, graph: &Graph, pack: bool, donated: &[Arc<str>]) -> Result<Plan> {
        let own = Self { rules: self.rules.clone(), borrowed: self.borrowed.clone() };
        let elements = move |name: &str| own.element(name);
        let elements = (!self.is_empty()).then_some(&elements as &ggml::Choice);
        ggml::plan(graph, &ggml::Options { pack, elements, donated })
    }
    /// What became of the weights.
    fn decisions(&self, plan: &Plan, interface: &Interface) -> Vec<Decision> {
        let mut decisions = Vec::new();
        if self.is_empty() {
            return decisions;
        }
        for (&v, (i, buffer)) in plan.inputs.iter().zip(interface.inputs.iter().enumerate()) {
            if !interface.fixed[i] {
                continue;
            }
            let element = self.element(&buffer.name);
            let kept = plan.values.iter().filter(|value| value.source.of() == Some(v));
            let kept: Vec<_> =
                kept.filter_map(|value| value.ty).filter(|ty| Some(ty.element) == element).collect();
            let reason = plan.refused.iter().find(|(of, _)| *of == v).map(|(_, reason)| reason.clone());
            let is_vector = buffer.shape.len() < 2;
            let is_plain = is_vector || matches!(element, None | Some(Element::F32));
            let outcome = match (kept.first(), reason) {
                (Some(ty), None) => Ok(ty.element),
                (_, Some(reason)) => Err(reason),
                (None, None) if is_vector => Err("it is not a matrix".to_owned()),
                (None, None) if is_plain && self.rules.is_none() => Err("it is given in float32".to_owned()),
                (None, None) if is_plain => Err("kept as it is by its name".to_owned()),
                (None, None) => Err("no product of matrices reads it".to_owned()),
            };
            let bytes = if outcome.is_ok() {
                kept.iter().map(|ty| ty.bytes() as usize).sum()
            } else {
                buffer.bytes()
            };
            let shape = buffer.shape.clone();
            decisions.push(Decision {
                weight: buffer.name.clone(),
                outcome,
                is_intended: is_plain,
                shape,
                bytes,
            });
        }
        decisions
    }
}

/// Refuses options that cannot be met.
fn check(quantize: Option<&Quantize>, pack: bool) -> Result<()> {
    if quantize.is_none() || pack {
        return Ok(());
    }
    let text = "weights that may change between calls are not quantized";
    Err(Error::new(Code::ConflictingOptions, text).help("compile the model for inference"))
}

/// Refuses weights that are not kept as asked for, if that is to be an error.
fn refuse(quantize: Option<&Quantize>, decisions: &[Decision]) -> Result<()> {
    if !quantize.is_some_and(|quantize| quantize.strict) {
        return Ok(());
    }
    let left = decisions.iter().filter(|d| !d.is_intended);
    let left: Vec<String> =
        left.filter_map(|d| Some(format!("{}: {}", d.weight, d.outcome.as_ref().err()?))).collect();
    if left.is_empty() {
        return Ok(());
    }
    let text = format!("{} of the weights cannot be quantized", left.len());
    let error = Error::new(Code::Unsupported, text).help(
        "exclude them by name, or leave quantize_strict out: they then stay as they are and are reported",
    );
    Err(left.into_iter().fold(error, Error::note))
}

/// Donated inputs with the outputs that lie in their memory.
fn donated(plan: &Plan) -> Vec<(usize, usize)> {
    let number = |&(v, k): &(PlanValueId, OutputId)| {
        Some((plan.inputs.position(|&input| input == v)?.index(), k.index()))
    };
    plan.donated.iter().filter_map(number).collect()
}

/// What a plan reads and writes.
pub fn interface(graph: &Graph, plan: &Plan) -> Result<Interface> {
    let buffer = |v: ValueId, name: Arc<str>| {
        let (dtype, shape) = match (graph.ty(v), graph.lit(v)) {
            (Some(ty), _) => (ty.dtype, ty.shape.known()),
            // A number that is an output.
            (None, Some(lit)) => (lit.weak_dtype(DType::F32).unwrap_or(DType::F32), Some(Vec::new())),
            (None, None) => return Err(Error::internal("a result without a type is compiled")),
        };
        let shape = shape.ok_or_else(|| Error::internal("a size that is not a number reaches ggml"))?;
        Ok(TensorSpec { name, dtype, shape })
    };
    let name = |v: ValueId| graph.value(v).name.clone().unwrap_or_default();
    let role = |&v: &ValueId| if let Def::Input(role) = graph.value(v).def { role } else { Role::Data };
    let inputs = graph.inputs.iter().map(|&v| buffer(v, name(v))).collect::<Result<Vec<_>>>()?;
    let outputs = graph.outputs.iter().map(|(name, &v)| buffer(v, name.clone()));
    let outputs = outputs.chain(graph.updates.iter().map(|&(old, new)| buffer(new, name(old))));
    Ok(Interface {
        prefix: "the model".to_owned(),
        outputs: outputs.collect::<Result<_>>()?,
        roles: graph.inputs.iter().map(role).collect(),
        fixed: graph.inputs.iter().map(|&v| is_fixed(graph, v)).collect(),
        read: read(plan, inputs.len()),
        updates: graph.updates.len(),
        shared: donated(plan),
        inputs,
        ..Interface::default()
    })
}

impl Callable for Specialized {
    type Packed = Packed;
    type Packing = Option<Packed>;
    fn interface(&self) -> &Interface {
        self.function.interface()
    }
    fn keeps(&self) -> bool {
        self.function.keeps()
    }
    fn parts(&self) -> Vec<Vec<usize>> {
        let fixed = &self.function.interface().fixed;
        vec![(0..fixed.len()).filter(|&i| fixed[i]).collect()]
    }
    fn start_packing(&self) -> Result<Option<Packed>> {
        Ok(None)
    }
    fn pack_part(&self, packing: &mut Option<Packed>, inputs: &[Address<'_>]) -> Result<()> {
        *packing = self.function.pack(inputs)?;
        Ok(())
    }
    fn finish_packing(&self, packing: Option<Packed>) -> Result<Option<Packed>> {
        Ok(packing)
    }
    fn bytes(packed: &Packed) -> usize {
        packed.bytes()
    }
    fn call(
        &self,
        inputs: &[Address<'_>],
        outputs: &mut [AddressMut<'_>],
        packed: Option<&Packed>,
        _rows: Option<usize>,
    ) -> Result<()> {
        self.function.call(inputs, outputs, packed)
    }
}
