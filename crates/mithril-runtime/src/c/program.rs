//! A compiled model as C: one function per choice of sizes, made when it is needed.

use std::sync::Arc;

use mithril_compile::c;
use mithril_compile::c::batch::{self, Rows};
use mithril_compile::c::{C, COptions, CSource, Quantize, block, compile_c};
use mithril_compile::compiled::Compiled;
use mithril_compile::partition::Partitioned;
use mithril_compile::pipeline::Observer;
use mithril_ir::dim::Symbol;
use mithril_ir::interp::Symbols;
use mithril_ir::{Code, DType, Dim, Error, Graph, Result, text};

use super::array::{Address, AddressMut};
use super::cache::Cache;
use super::call::{Function, Interface, Packed, Packing, TensorSpec};
use super::compiler::Tool;
use super::tune::tune;
use crate::host_calls::Callable;
use crate::interpreter::{Evaluation, Tensors};
use crate::specialized::{Made, Named};

/// What a program computes.
#[derive(Clone, Debug)]
pub enum EntryPoint {
    /// The outputs.
    Outputs,
    /// The outputs, and the gradients of inputs for cotangents of outputs.
    Gradients {
        /// Outputs that have cotangents.
        outputs: Vec<Arc<str>>,
        /// Inputs whose gradients are wanted.
        inputs: Vec<Arc<str>>,
    },
}

/// How a program is made.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "options, each by itself")]
pub struct Options {
    /// What all symbols of the generated C start with.
    pub prefix: String,
    /// Whether parameters may be packed once: they then must not change between calls.
    pub pack: bool,
    /// Whether new states are written into the memory of the old ones; callers pass the same for both.
    pub in_place: bool,
    /// Floats in a vector of the processor that the code is for; by default those of this one.
    pub lanes: Option<usize>,
    /// The compiler.
    pub tool: Tool,
    /// Threads of a call; 0: as many as the system has for this process.
    pub threads: usize,
    /// Bytes that packed parameters and the scratch memory of a call may have together.
    pub memory_limit: Option<usize>,
    /// Whether the candidates of kernels are measured, rather than estimated.
    pub autotune: bool,
    /// Weights that are quantized; needs `pack`.
    pub quantize: Option<Quantize>,
    /// A size that is an argument of a call, rather than a number of each program.
    pub batch: Option<Arc<str>>,
    /// How many rows are computed at a time; where their number is fixed, a divisor of it. By default as many as are
    /// estimated to be quickest, and of those whose number is an argument at most [`BLOCK`].
    pub block: Option<usize>,
    /// Whether programs of all sizes pack weights alike, so that they can share them; a product of one row may be slower.
    pub packs_alike: bool,
    /// Vector registers of the processor that the code is for; by default as `lanes` suggest.
    pub registers: Option<usize>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            prefix: "model".into(),
            pack: false,
            in_place: false,
            lanes: None,
            tool: Tool::default(),
            threads: 1,
            memory_limit: None,
            autotune: false,
            quantize: None,
            batch: None,
            block: None,
            packs_alike: false,
            registers: None,
        }
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

/// Rows that are computed at a time, where their number is an argument and no other choice is better.
pub const BLOCK: usize = 8;

/// What the output with the seconds of the steps is called: blanks keep it apart from values.
pub const SECONDS: &str = "seconds of each step";

/// The program for one choice of sizes.
#[derive(Debug)]
pub struct Specialized {
    /// The generated C.
    pub source: CSource,
    /// The same, compiled and loaded.
    pub function: Function,
}

/// Calls below so many nanoseconds are not worth letting other threads of Python run meanwhile: handing over the lock
/// takes a noticeable part of that, and getting it back may take thousands of times as long.
const QUICK: u64 = 10_000;

impl Specialized {
    /// Whether a call takes a few microseconds, whatever the data.
    pub fn is_quick(&self) -> bool {
        let has_rows = self.function.interface().batch.is_some();
        !has_rows && self.source.nanoseconds.is_some_and(|time| time < QUICK)
    }
}

impl Callable for Specialized {
    type Packed = Packed;
    type Packing = Option<Packing>;
    fn interface(&self) -> &Interface {
        self.function.interface()
    }
    fn keeps(&self) -> bool {
        self.function.packed_bytes() > 0
    }
    fn is_quick(&self) -> bool {
        self.is_quick()
    }
    fn parts(&self) -> Vec<Vec<usize>> {
        self.function.interface().packing.clone()
    }
    fn start_packing(&self) -> Result<Option<Packing>> {
        self.function.start_packing()
    }
    fn pack_part(&self, packing: &mut Option<Packing>, inputs: &[Address<'_>]) -> Result<()> {
        packing.as_mut().map_or(Ok(()), |packing| self.function.pack_part(packing, inputs))
    }
    fn finish_packing(&self, packing: Option<Packing>) -> Result<Option<Packed>> {
        packing.map(|packing| self.function.finish_packing(packing)).transpose()
    }
    fn bytes(packed: &Packed) -> usize {
        packed.bytes().len()
    }
    fn call(
        &self,
        inputs: &[Address<'_>],
        outputs: &mut [AddressMut<'_>],
        packed: Option<&Packed>,
        rows: Option<usize>,
    ) -> Result<()> {
        self.function.call_rows(inputs, outputs, packed, rows)
    }
}

/// Symbols with their numbers, sorted.
type Sizes = Vec<(Symbol, i64)>;

/// A compiled model as C.
#[derive(Debug)]
pub struct Program {
    compiled: Compiled,
    entry: EntryPoint,
    options: Options,
    specialized: Made<Sizes, Specialized>,
    /// Rows that are computed at a time, for the other sizes, where their number is an argument.
    blocks: Made<Sizes, usize>,
}

impl Program {
    /// A program of a compiled model. C is generated by [`Program::specialize`].
    pub fn new(compiled: Compiled, entry: EntryPoint, options: Options) -> Self {
        Self { compiled, entry, options, specialized: Made::default(), blocks: Made::default() }
    }
    /// The same, with new states in the memory of the old ones.
    #[must_use]
    pub fn in_place(&self) -> Self {
        let options = Options { in_place: true, ..self.options.clone() };
        Self::new(self.compiled.clone(), self.entry.clone(), options)
    }
    /// The model.
    pub fn compiled(&self) -> &Compiled {
        &self.compiled
    }
    /// How it is made.
    pub fn options(&self) -> &Options {
        &self.options
    }
    /// Whether some sizes are symbols, so that each choice of them is a program of its own.
    pub fn is_open(&self) -> bool {
        let mut dims = self.compiled.inputs.iter().flat_map(|i| i.ty.shape.iter());
        dims.any(|d| d.known().is_none())
    }
    /// The program for these sizes.
    pub fn specialize(&self, symbols: &Symbols) -> Result<Arc<Specialized>> {
        let symbols = &self.in_blocks(symbols)?;
        self.specialized.find(key(symbols), || self.make(symbols))
    }
    fn make(&self, symbols: &Symbols) -> Result<Specialized> {
        let (source, interface) = self.source(symbols, &self.options.prefix)?;
        let function = self.function(&source, interface)?;
        if let Some(error) = self.over_limit(function.packed_bytes(), function.arena_bytes()) {
            return Err(error);
        }
        Ok(Specialized { source, function })
    }
    /// The error for more memory than the limit.
    pub(super) fn over_limit(&self, packed: usize, arena: usize) -> Option<Error> {
        let limit = self.options.memory_limit?;
        let bytes = packed + arena;
        let error = || {
            Error::new(Code::OutOfMemory, format!("a call needs {bytes} bytes, the limit is {limit}"))
                .note(format!("packed parameters have {packed}, the rest is scratch memory"))
                .help("make the batch smaller, or raise memory_limit")
        };
        (bytes > limit).then(error)
    }
    /// The same program, measuring its steps: the last output takes the seconds of each of [`CSource::costs`].
    pub fn profiled(&self, symbols: &Symbols) -> Result<Specialized> {
        let (source, mut interface) = self.written(symbols, &self.options.prefix, true)?;
        let shape = vec![source.costs.len()];
        interface.outputs.push(TensorSpec { name: SECONDS.into(), dtype: DType::F64, shape });
        // It stands behind the new states.
        interface.updates += 1;
        let function = self.function(&source, interface)?;
        Ok(Specialized { source, function })
    }
    fn function(&self, source: &CSource, interface: Interface) -> Result<Function> {
        Function::new(&self.options.tool, &Cache::default(), &source.c, interface, self.options.threads())
    }
    /// The generated C for these sizes, whose symbols start with `prefix`, and what it reads and writes.
    pub fn source(&self, symbols: &Symbols, prefix: &str) -> Result<(CSource, Interface)> {
        let symbols = self.in_blocks(symbols)?;
        let (mut source, mut interface) = self.written(&symbols, prefix, false)?;
        if let Some(name) = &self.options.batch {
            let (rows, block) = (self.rows(&symbols, name)?, symbols[&Symbol::Named(name.clone())] as usize);
            batch::extend(&mut source.c, &mut source.h, prefix, block, &rows);
            interface.batch = Some((rows, block));
        }
        Ok((source, interface))
    }
    /// The symbols with as many rows as are computed at a time.
    fn in_blocks(&self, symbols: &Symbols) -> Result<Symbols> {
        let mut symbols = symbols.clone();
        let Some(name) = &self.options.batch else { return Ok(symbols) };
        let Some(size) = symbols.get_mut(&Symbol::Named(name.clone())) else {
            return Err(Error::new(Code::BadArgument, format!("the model has no size called {name:?}"))
                .help(format!("name it in the shapes: shapes={{\"input\": [{name:?}, ...]}}")));
        };
        *size = self.options.block.unwrap_or(BLOCK) as i64;
        if self.options.block.is_none() && self.options.pack && self.options.quantize.is_none() {
            let estimate = || block(&self.graph(&symbols, &mut |_, _| {})?, BLOCK);
            let rows = *self.blocks.find(key(&symbols), estimate)? as i64;
            symbols.insert(Symbol::Named(name.clone()), rows);
        }
        Ok(symbols)
    }
    /// The rows of inputs and outputs, if every op treats each row by itself.
    fn rows(&self, symbols: &Symbols, name: &Arc<str>) -> Result<Rows> {
        let of = |size: i64| {
            let mut symbols = symbols.clone();
            symbols.insert(Symbol::Named(name.clone()), size);
            self.graph(&symbols, &mut |_, _| {})
        };
        let [one, two] = batch::SIZES;
        let graphs = [of(one)?, of(two)?];
        if !graphs[0].updates.is_empty() {
            let text = format!("the model changes states, which all rows of {name} would do together");
            return Err(Error::new(Code::Unsupported, text).help("compile it with inference=True"));
        }
        batch::rows([&graphs[0], &graphs[1]], name)
    }
    fn written(&self, symbols: &Symbols, prefix: &str, profile: bool) -> Result<(CSource, Interface)> {
        check_prefix(prefix)?;
        let mut stages = Vec::new();
        let (graph, partition) =
            self.divided(symbols, &mut |name, graph| stages.push((name.to_owned(), text::print(graph))))?;
        let Options { pack, in_place, lanes, autotune, ref tool, .. } = self.options;
        let block = self.options.block.filter(|_| self.options.batch.is_none());
        let quantize = self.options.quantize.clone();
        let mut target = c::target(lanes)?;
        target.packs_alike = self.options.packs_alike;
        target.registers = self.options.registers.unwrap_or(target.registers);
        let mut options =
            COptions { prefix: prefix.into(), pack, target, quantize, block, ..COptions::default() };
        options.mesh = partition.as_ref().map(c::mesh);
        let threads = self.options.threads();
        if autotune {
            options.choices = tune(&graph, &options, tool, &Cache::default(), threads)?;
        }
        // What is measured changes no memory of the caller; blocks of rows may be copies.
        if self.options.batch.is_none() {
            options.donated = c::donated(&graph, &self.compiled.donated);
        }
        let options = COptions { in_place, profile, ..options };
        let mut source = compile_c(&graph, &options)?;
        stages.append(&mut source.stages);
        source.stages = stages;
        let interface = Interface::of(&source, prefix);
        Ok((source, interface))
    }
    /// What is written as C.
    pub(super) fn graph(&self, symbols: &Symbols, observe: &mut Observer<'_>) -> Result<Graph> {
        Ok(self.divided(symbols, observe)?.0)
    }
    /// The same, and how it is divided over a mesh, if it is.
    pub(super) fn divided(
        &self,
        symbols: &Symbols,
        observe: &mut Observer<'_>,
    ) -> Result<(Graph, Option<Partitioned>)> {
        let model = self.compiled.specialize(symbols)?;
        if model.layout.is_some() {
            self.check_divided()?;
            let program = match &self.entry {
                EntryPoint::Outputs => model.partitioned_forward(&C, observe)?,
                EntryPoint::Gradients { outputs, inputs } => {
                    model.partitioned_gradient(&C, outputs, inputs, observe)?
                }
            };
            return Ok((program.graph.clone(), Some(program)));
        }
        let graph = match &self.entry {
            EntryPoint::Outputs => model.forward(&C, observe),
            EntryPoint::Gradients { outputs, inputs } => model.gradient(&C, outputs, inputs, observe),
        };
        Ok((graph?, None))
    }
    /// Refuses options that programs of a mesh do not have.
    fn check_divided(&self) -> Result<()> {
        let options = &self.options;
        let all = [
            (options.batch.is_some(), "batch", "every rank has a fixed part of the rows"),
            (options.block.is_some(), "block", "every rank computes its part of the rows at once"),
            (options.autotune, "autotune", "what is measured runs on one rank"),
            (options.quantize.is_some(), "quantize", "low-bit weights are not divided"),
        ];
        match all.iter().find(|(is_set, ..)| *is_set) {
            Some((_, option, reason)) => {
                Err(Error::new(Code::BadArgument, format!("{option} does not go with a layout: {reason}"))
                    .help(format!("leave out {option}, or the layout")))
            }
            None => Ok(()),
        }
    }
    /// Computes the outputs. Every input is looked up by its name in `inputs`, from the first map to the last; gradients
    /// take their cotangents from `cotangents`.
    ///
    /// ```
    /// use mithril_compile::compiled::Compiled;
    /// use mithril_ir::{Place, Tensor};
    /// use mithril_model::{FlattenOptions, Model, layers};
    /// use mithril_runtime::c::{Options, Program, EntryPoint};
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
    /// Values of the symbols, from the sizes of inputs by name.
    pub fn symbols<'a>(&self, shapes: impl IntoIterator<Item = (&'a str, Vec<usize>)>) -> Result<Symbols> {
        symbols_of(&self.compiled, shapes)
    }
}

/// A choice of sizes, in order.
fn key(symbols: &Symbols) -> Sizes {
    let mut key: Sizes = symbols.iter().map(|(s, &n)| (s.clone(), n)).collect();
    key.sort();
    key
}

/// Values of the symbols of a model, from the sizes of inputs by name.
pub(crate) fn symbols_of<'a>(
    compiled: &Compiled,
    shapes: impl IntoIterator<Item = (&'a str, Vec<usize>)>,
) -> Result<Symbols> {
    let mut symbols = Symbols::default();
    for (name, sizes) in shapes {
        let Some(input) = compiled.inputs.iter().find(|i| &*i.name == name) else { continue };
        let declared = &input.ty.shape;
        if declared.rank() != sizes.len() {
            let text = format!("`{name}` has {} dimensions, {} are needed", sizes.len(), declared.rank());
            return Err(Error::new(Code::BadParameter, text).help(format!("its shape is {declared}")));
        }
        for (dim, n) in declared.iter().zip(sizes) {
            if let Some(symbol) = Dim::as_symbol(dim) {
                symbols.entry(symbol.clone()).or_insert(n as i64);
            }
        }
    }
    Ok(symbols)
}

/// Headers of systems: an export has a header that is called like its prefix, and would hide them.
const HEADERS: &[&str] = &[
    "assert",
    "complex",
    "ctype",
    "errno",
    "fenv",
    "float",
    "inttypes",
    "limits",
    "locale",
    "malloc",
    "math",
    "memory",
    "pthread",
    "sched",
    "setjmp",
    "signal",
    "stdalign",
    "stdarg",
    "stdatomic",
    "stdbool",
    "stddef",
    "stdint",
    "stdio",
    "stdlib",
    "stdnoreturn",
    "string",
    "strings",
    "tgmath",
    "threads",
    "time",
    "uchar",
    "unistd",
    "wchar",
    "wctype",
];

/// A prefix becomes part of names of C.
fn check_prefix(prefix: &str) -> Result<()> {
    // Generated code calls its own so, and an export has a file main.c.
    let is_taken = ["main", "mithril"].contains(&prefix) || HEADERS.contains(&&*prefix.to_ascii_lowercase());
    let is_word = !is_taken && prefix.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if is_word && prefix.starts_with(|c: char| c.is_ascii_alphabetic()) && prefix.len() <= 64 {
        return Ok(());
    }
    Err(Error::new(Code::BadName, format!("{prefix:?} cannot be a prefix of C function names"))
        .help("use at most 64 letters, digits and underscores, a letter first; neither main, nor mithril, nor a header of C"))
}
