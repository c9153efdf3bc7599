//! Programs: buffers, and steps that fill them one after the other. What the passes change and print.
//!
//! There are two levels. The steps of a [`LoopProgram`] are loop nests and calls of helpers; the passes up to the blocked
//! layout work on them. Those of a [`KernelProgram`] may be kernels, nests that are fused row by row, and packing, too, and
//! its buffers get addresses in memory. [`Level`] lists what differs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;

use mithril_ir::{DType, Tensor};

use crate::c::ir::expr::{Argument, BufferId, Call, Expr, Index, StepId, Var, flat};
use crate::c::ir::kernel::{self, Kernel, PanelStart};
use crate::c::ir::layout::Blocks;
use crate::ids::{InputId, OutputId, Table};

/// The loop level, see [`Level`].
#[derive(Clone, Copy, Debug)]
pub struct Loops;

/// The kernel level, see [`Level`].
#[derive(Clone, Copy, Debug)]
pub struct Kernels;

/// What differs between the levels of programs.
pub trait Level: Copy + Debug {
    /// What a step does.
    type Work: Work;
    /// Where buffers lie that are not the caller's.
    type Memory: Memory;
    /// What is known of the whole program besides its steps.
    type Info: Clone + Debug + Default;
}

impl Level for Loops {
    type Work = LoopWork;
    type Memory = LoopMemory;
    type Info = ();
}

impl Level for Kernels {
    type Work = KernelWork;
    type Memory = KernelMemory;
    type Info = KernelInfo;
}

/// Buffers of a program.
pub type Buffers<M> = Table<BufferId, Buffer<M>>;
/// Buffers of a program of loops.
pub type LoopBuffers = Buffers<LoopMemory>;
/// Buffers of a program of kernels.
pub type KernelBuffers = Buffers<KernelMemory>;
/// Steps, in the order in which they run.
pub type Steps<W> = Table<StepId, Step<W>>;

/// A program of loop nests and calls.
pub type LoopProgram = Program<Loops>;
/// A step of such a program.
pub type LoopStep = Step<LoopWork>;
/// A buffer of such a program.
pub type LoopBuffer = Buffer<LoopMemory>;
/// A program of nests, calls, kernels, fused rows and packing.
pub type KernelProgram = Program<Kernels>;
/// A step of such a program.
pub type KernelStep = Step<KernelWork>;
/// A buffer of such a program.
pub type KernelBuffer = Buffer<KernelMemory>;

/// A program of one of the levels: [`LoopProgram`] or [`KernelProgram`].
#[derive(Clone, Debug)]
pub struct Program<L: Level> {
    /// Tensors. Expressions name them by position.
    pub buffers: Buffers<L::Memory>,
    /// Steps that run once, when parameters are packed, in order.
    pub prepacking: Steps<L::Work>,
    /// Steps that run at every call, in order.
    pub steps: Steps<L::Work>,
    /// The next number of a loop variable.
    pub next_var: u32,
    /// Tensors whose numbers are, or stand for, integers of 8 bits by the model itself.
    pub integers: BTreeMap<BufferId, Integers>,
    /// Old states and the new ones, where they share their memory.
    pub updates: Vec<(BufferId, BufferId)>,
    /// If a call runs the steps for one tile of the batch after the other: how, see `passes/batch_tiling.rs`. Sizes are those of
    /// one tile.
    pub tiling: Option<BatchTiling>,
    /// What only this level has.
    pub info: L::Info,
}

/// What is known of a program of kernels besides its steps.
#[derive(Clone, Debug, Default)]
pub struct KernelInfo {
    /// Bytes of the arena; `None`: memory is not planned yet.
    pub arena_bytes: Option<usize>,
    /// Bytes of the packed parameters.
    pub packed_bytes: usize,
    /// Bytes of scratch memory while parameters are packed.
    pub pack_bytes: usize,
    /// The functions that fill the halos of tensors in blocked layout.
    pub halos: BTreeMap<BufferId, String>,
}

/// Numbers that the model itself quantizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Integers {
    /// 256 numbers, equally far from each other, from the first to the second; one of them is 0.
    Range([f32; 2]),
    /// Weights that are integers from -128 to 127.
    Weights,
}

/// A tensor in memory: contiguous in row-major order, or in blocked layout.
#[derive(Clone, Debug, PartialEq)]
pub struct Buffer<M> {
    /// Its path in the model, or the op that computes it.
    pub name: String,
    /// Dtype as stored.
    pub dtype: DType,
    /// Sizes.
    pub shape: Vec<i64>,
    /// Where it lies.
    pub place: Place<M>,
    /// Whether it is a parameter, or a state that the model never replaces: the same at every call of a model that is
    /// not trained.
    pub is_param: bool,
    /// Its blocked layout; `None`: it is in row-major order.
    pub blocks: Option<Blocks>,
}

/// Where a buffer lies.
#[derive(Clone, Debug)]
pub enum Place<M> {
    /// An input of the caller.
    Input(InputId),
    /// An output of the caller.
    Output(OutputId),
    /// An input of the caller that is updated in place: the output is the same memory.
    State {
        /// The old state.
        input: InputId,
        /// The new state.
        output: OutputId,
    },
    /// Written into the program.
    Constant(Arc<Tensor>),
    /// In memory of the program.
    Memory(M),
}

impl<M: PartialEq> PartialEq for Place<M> {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Input(a), Self::Input(b)) => a == b,
            (Self::Output(a), Self::Output(b)) => a == b,
            (Self::State { input: a, output: b }, Self::State { input: c, output: d }) => (a, b) == (c, d),
            (Self::Constant(a), Self::Constant(b)) => {
                Arc::ptr_eq(a, b)
                    || (a.dtype(), a.shape(), a.to_bytes()) == (b.dtype(), b.shape(), b.to_bytes())
            }
            (Self::Memory(a), Self::Memory(b)) => a == b,
            _ => false,
        }
    }
}

/// Where a buffer of a [`LoopProgram`] lies.
pub type LoopPlace = Place<LoopMemory>;
/// Where a buffer of a [`KernelProgram`] lies.
pub type KernelPlace = Place<KernelMemory>;

/// Kinds of memory of a program.
pub trait Memory: Clone + Debug + PartialEq {
    /// Memory of a call, for a tensor between steps.
    const TEMPORARY: Self;
    /// Whether it is [`Self::TEMPORARY`], wherever it lies.
    fn is_temporary(&self) -> bool;
    /// Whether it is filled once, when parameters are packed.
    fn is_prepacked(&self) -> bool;
    /// Whether it is scratch memory of a thread while one step runs.
    fn is_scratch(&self) -> bool;
}

/// The memory of a buffer of a [`LoopProgram`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopMemory {
    /// Of a call.
    Temporary,
    /// Filled once, when parameters are packed.
    Prepacked,
}

/// The memory of a buffer of a [`KernelProgram`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelMemory {
    /// In the arena; memory planning says where. `None`: not decided, or not needed.
    Arena(Option<usize>),
    /// In the scratch memory of each thread, from this byte on, while one step runs.
    Scratch(usize),
    /// Among the packed parameters, where it is computed once; memory planning says where.
    Packed(Option<usize>),
    /// In the scratch memory of packing, which alone reads it.
    Packing(usize),
}

impl Memory for LoopMemory {
    const TEMPORARY: Self = Self::Temporary;
    fn is_temporary(&self) -> bool {
        *self == Self::Temporary
    }
    fn is_prepacked(&self) -> bool {
        *self == Self::Prepacked
    }
    fn is_scratch(&self) -> bool {
        false
    }
}

impl Memory for KernelMemory {
    const TEMPORARY: Self = Self::Arena(None);
    fn is_temporary(&self) -> bool {
        matches!(self, Self::Arena(_))
    }
    fn is_prepacked(&self) -> bool {
        matches!(self, Self::Packed(_))
    }
    fn is_scratch(&self) -> bool {
        matches!(self, Self::Scratch(_))
    }
}

impl From<LoopMemory> for KernelMemory {
    fn from(memory: LoopMemory) -> Self {
        match memory {
            LoopMemory::Temporary => Self::Arena(None),
            LoopMemory::Prepacked => Self::Packed(None),
        }
    }
}

/// What fills buffers.
#[derive(Clone, Debug, PartialEq)]
pub struct Step<W> {
    /// What it is called after: the op, or the path of the value.
    pub name: String,
    /// Which part of the model it belongs to.
    pub origin: String,
    /// What is done.
    pub work: W,
}

/// What a step of one of the levels does.
pub trait Work: Clone + Debug {
    /// Buffers that are read.
    fn reads(&self) -> Vec<BufferId>;
    /// Buffers that are written, shared scratch memory too.
    fn writes(&self) -> Vec<BufferId>;
    /// The loop nest, if it is one.
    fn nest(&self) -> Option<&Nest>;
}

/// What a step does before kernels are selected.
#[derive(Clone, Debug, PartialEq)]
pub enum LoopWork {
    /// Every element of a buffer is computed by itself.
    Nest(Nest),
    /// A function of the prelude is called; tensors are buffers.
    Call(Call),
}

/// What a step does when kernels are being selected, and after.
#[derive(Clone, Debug)]
pub enum KernelWork {
    /// Every element of a buffer is computed by itself.
    Nest(Nest),
    /// A function of the prelude is called; tensors are buffers.
    Call(Call),
    /// A kernel is run.
    Kernel(KernelCall),
    /// Nests are computed row by row.
    Rows(Rows),
    /// The weights of a kernel are packed.
    Pack(PackCall),
    /// Several steps are done for one part after another.
    Parts(Parts),
}

/// Steps that are done for one part of what they make before the next part, by one thread: products and what lies between
/// them. They go through that which only they need in scratch memory.
#[derive(Clone, Debug)]
pub struct Parts {
    /// How many parts there are. A kernel is called as if each were the part of a thread.
    pub count: i64,
    /// Kernels, none of which packs anything once for many calls, and [`Rows`].
    pub steps: Vec<KernelStep>,
    /// Bytes of scratch memory, that of the kernels too, which comes first.
    pub scratch_bytes: usize,
}

/// Nests with common outermost variables: for each value of these, all of them are computed before the next one.
#[derive(Clone, Debug)]
pub struct Rows {
    /// The common variables.
    pub vars: Vec<Var>,
    /// How many of them, the first, count the parts of a step ([`Parts`]), of which this is one.
    pub part_vars: usize,
    /// The nests, and at which coordinates each stores: of what is scratch memory of a row these hold no common ones.
    pub nests: Vec<(Nest, Vec<Index>)>,
    /// Bytes of scratch memory.
    pub scratch_bytes: usize,
}

/// Weights that are brought into the order of a kernel.
#[derive(Clone, Debug)]
pub struct PackCall {
    /// The call.
    pub call: kernel::Call,
    /// The two factors of the kernel.
    pub inputs: [Start; 2],
    /// Where they go among the packed parameters, in bytes.
    pub packed: usize,
}

/// A use of a kernel.
#[derive(Clone, Debug)]
pub struct KernelCall {
    /// Its calls.
    pub kernel: Kernel,
    /// The buffer that is filled.
    pub to: BufferId,
    /// The two factors.
    pub inputs: [Start; 2],
    /// What the epilogue reads.
    pub operands: Vec<Start>,
    /// Where its packed weights start, in bytes.
    pub packed: usize,
    /// Where the packed weights of the next step start, and the panel of them with which each thread starts.
    pub next_weights: Option<Box<(usize, PanelStart)>>,
    /// The buffer of the memory that all threads see.
    pub shared: Option<BufferId>,
    /// What it computes, for readers.
    pub what: String,
    /// Number of products.
    pub work: usize,
    /// Tuning keys of what has several candidates.
    pub tuning_keys: Vec<String>,
}

/// A loop nest.
#[derive(Clone, Debug, PartialEq)]
pub struct Nest {
    /// The buffer that is filled.
    pub to: BufferId,
    /// Its coordinates.
    pub vars: Vec<Var>,
    /// The value of an element.
    pub value: Expr,
}

impl<L: Level> Default for Program<L> {
    fn default() -> Self {
        Self {
            buffers: Table::default(),
            prepacking: Table::default(),
            steps: Table::default(),
            next_var: 0,
            integers: BTreeMap::new(),
            updates: Vec::new(),
            tiling: None,
            info: L::Info::default(),
        }
    }
}

impl From<LoopWork> for KernelWork {
    fn from(work: LoopWork) -> Self {
        match work {
            LoopWork::Nest(nest) => Self::Nest(nest),
            LoopWork::Call(call) => Self::Call(call),
        }
    }
}

impl From<LoopStep> for KernelStep {
    fn from(LoopStep { name, origin, work }: LoopStep) -> Self {
        Self { name, origin, work: work.into() }
    }
}

impl From<LoopBuffer> for KernelBuffer {
    fn from(LoopBuffer { name, dtype, shape, place, is_param, blocks }: LoopBuffer) -> Self {
        let place = match place {
            Place::Input(input) => Place::Input(input),
            Place::Output(output) => Place::Output(output),
            Place::State { input, output } => Place::State { input, output },
            Place::Constant(tensor) => Place::Constant(tensor),
            Place::Memory(memory) => Place::Memory(memory.into()),
        };
        Self { name, dtype, shape, place, is_param, blocks }
    }
}

impl From<LoopProgram> for KernelProgram {
    fn from(program: LoopProgram) -> Self {
        let steps = |steps: Steps<LoopWork>| steps.into_iter().map(KernelStep::from).collect();
        Self {
            buffers: program.buffers.into_iter().map(KernelBuffer::from).collect(),
            prepacking: steps(program.prepacking),
            steps: steps(program.steps),
            next_var: program.next_var,
            integers: program.integers,
            updates: program.updates,
            tiling: program.tiling,
            info: KernelInfo::default(),
        }
    }
}

impl<L: Level> Program<L> {
    /// The range of the one of two factors that is quantized by the model, and the number of the other one, if that is one of
    /// weights that are integers.
    pub fn integer_factors(&self, factors: [BufferId; 2]) -> Option<([f32; 2], usize)> {
        match factors.map(|factor| self.integers.get(&factor)) {
            [Some(Integers::Range(range)), Some(Integers::Weights)] => Some((*range, 1)),
            [Some(Integers::Weights), Some(Integers::Range(range))] => Some((*range, 0)),
            _ => None,
        }
    }
    /// How many tiles of the batch a call computes.
    pub fn tiles(&self) -> usize {
        self.tiling.as_ref().map_or(1, |tiling| tiling.tiles)
    }
    /// How many times as much of a tensor a call reads or writes as one tile.
    pub fn tiles_of(&self, place: &Place<L::Memory>) -> usize {
        let Some(BatchTiling { tiles, inputs }) = &self.tiling else { return 1 };
        match place {
            Place::Input(n) if inputs.contains(n) => *tiles,
            Place::Output(_) => *tiles,
            Place::Memory(memory) if memory.is_temporary() => *tiles,
            _ => 1,
        }
    }
    /// A new loop variable.
    pub fn fresh_var(&mut self, size: i64) -> Var {
        self.next_var += 1;
        Var { id: self.next_var - 1, size }
    }
    /// New loop variables.
    pub fn fresh_vars(&mut self, sizes: impl IntoIterator<Item = i64>) -> Vec<Var> {
        sizes.into_iter().map(|size| self.fresh_var(size)).collect()
    }
}

impl<M: Memory> Buffer<M> {
    /// A tensor between steps, in row-major order.
    pub fn temporary(name: impl Into<String>, dtype: DType, shape: Vec<i64>) -> Self {
        let place = Place::Memory(M::TEMPORARY);
        Self { name: name.into(), dtype, shape, place, is_param: false, blocks: None }
    }
    /// Number of elements.
    pub fn count(&self) -> i64 {
        self.shape.iter().product()
    }
    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        let elements = self.blocks.map_or_else(|| self.count(), |blocks| blocks.elements(&self.shape));
        elements as usize * self.dtype.size()
    }
    /// Where the element at these coordinates lies.
    pub fn position(&self, at: &[Index]) -> Index {
        self.blocks.map_or_else(|| flat(at, &self.shape), |blocks| blocks.position(at, &self.shape))
    }
    /// Whether it is a tensor between steps of a call.
    pub fn is_temporary(&self) -> bool {
        matches!(&self.place, Place::Memory(memory) if memory.is_temporary())
    }
    /// Whether it is computed once, when parameters are packed.
    pub fn is_prepacked(&self) -> bool {
        matches!(&self.place, Place::Memory(memory) if memory.is_prepacked())
    }
    /// Whether it is scratch memory of a thread while one step runs.
    pub fn is_scratch(&self) -> bool {
        matches!(&self.place, Place::Memory(memory) if memory.is_scratch())
    }
    /// Whether it is one number of a row, which needs no memory.
    pub fn is_constant(&self) -> bool {
        let is_half = matches!(self.dtype, DType::F16 | DType::BF16);
        self.is_scratch() && self.count() == 1 && !is_half
    }
    /// Whether it is an input that is updated in place.
    pub fn is_state(&self) -> bool {
        matches!(self.place, Place::State { .. })
    }
    /// Whether it is the same at every call of a model that is not trained.
    pub fn is_fixed(&self) -> bool {
        self.is_param || self.is_prepacked() || matches!(self.place, Place::Constant(_))
    }
    /// The input that it is.
    pub fn input(&self) -> Option<InputId> {
        match self.place {
            Place::Input(input) | Place::State { input, .. } => Some(input),
            _ => None,
        }
    }
    /// The output that it is.
    pub fn output(&self) -> Option<OutputId> {
        match self.place {
            Place::Output(output) | Place::State { output, .. } => Some(output),
            _ => None,
        }
    }
}

impl KernelBuffer {
    /// Memory that all threads use while a kernel runs.
    pub fn workspace(bytes: usize) -> Self {
        Self::temporary("workspace", DType::U8, vec![bytes as i64])
    }
}

impl KernelCall {
    /// What packs its weights, if anything does.
    pub fn pack(&self) -> Option<PackCall> {
        let call = self.kernel.pack.clone()?;
        Some(PackCall { call, inputs: self.inputs, packed: self.packed })
    }
    /// The buffers that one of its calls is given to read.
    pub fn reads(&self, call: &kernel::Call) -> impl Iterator<Item = BufferId> {
        call.arguments.iter().filter_map(|argument| operand(argument, &self.inputs, &self.operands))
    }
    /// The buffers that it reads before its last phase.
    pub fn reads_before(&self) -> impl Iterator<Item = BufferId> {
        let before = self.kernel.phases.split_last().map_or(&[][..], |(_, before)| before);
        before.iter().flatten().flat_map(|call| self.reads(call))
    }
}

impl PackCall {
    /// Whether another call leaves the same: it has the same arguments, wherever it writes.
    pub fn does_as(&self, other: &PackCall) -> bool {
        let starts = |pack: &PackCall| {
            let read = pack.call.arguments.iter();
            let read = read.map(|argument| match argument {
                kernel::Argument::A => Some(pack.inputs[0]),
                kernel::Argument::B => Some(pack.inputs[1]),
                _ => None,
            });
            read.collect::<Vec<_>>()
        };
        self.call == other.call && starts(self) == starts(other)
    }
    /// The buffers that it is given to read.
    pub fn reads(&self) -> impl Iterator<Item = BufferId> {
        self.call.arguments.iter().filter_map(|argument| operand(argument, &self.inputs, &[]))
    }
}

impl<W: Work> Step<W> {
    /// Buffers that are read.
    pub fn reads(&self) -> Vec<BufferId> {
        self.work.reads()
    }
    /// Buffers that are written, shared scratch memory too.
    pub fn writes(&self) -> Vec<BufferId> {
        self.work.writes()
    }
}

impl Work for LoopWork {
    fn reads(&self) -> Vec<BufferId> {
        match self {
            Self::Nest(nest) => nest.reads(),
            Self::Call(call) => inputs(call),
        }
    }
    fn writes(&self) -> Vec<BufferId> {
        match self {
            Self::Nest(nest) => vec![nest.to],
            Self::Call(call) => outputs(call),
        }
    }
    fn nest(&self) -> Option<&Nest> {
        if let Self::Nest(nest) = self { Some(nest) } else { None }
    }
}

impl Work for KernelWork {
    fn reads(&self) -> Vec<BufferId> {
        match self {
            Self::Nest(nest) => nest.reads(),
            Self::Call(call) => inputs(call),
            Self::Parts(parts) => {
                let mut reads: Vec<BufferId> = parts.steps.iter().flat_map(Step::reads).collect();
                let written: Vec<BufferId> = parts.steps.iter().flat_map(Step::writes).collect();
                reads.retain(|b| !written.contains(b));
                reads
            }
            Self::Rows(rows) => {
                let mut reads: Vec<BufferId> = rows.nests.iter().flat_map(|(nest, _)| nest.reads()).collect();
                reads.retain(|b| !rows.nests.iter().any(|(nest, _)| nest.to == *b));
                reads
            }
            Self::Kernel(k) => k.kernel.phases.iter().flatten().flat_map(|call| k.reads(call)).collect(),
            Self::Pack(p) => p.reads().collect(),
        }
    }
    fn writes(&self) -> Vec<BufferId> {
        match self {
            Self::Nest(nest) => vec![nest.to],
            Self::Call(call) => outputs(call),
            Self::Rows(rows) => rows.nests.iter().map(|(nest, _)| nest.to).collect(),
            Self::Parts(parts) => parts.steps.iter().flat_map(Step::writes).collect(),
            Self::Kernel(k) => std::iter::once(k.to).chain(k.shared).collect(),
            Self::Pack(_) => Vec::new(),
        }
    }
    fn nest(&self) -> Option<&Nest> {
        if let Self::Nest(nest) = self { Some(nest) } else { None }
    }
}

impl Nest {
    /// Buffers that it reads, each as often as it is named.
    pub fn reads(&self) -> Vec<BufferId> {
        let mut reads = Vec::new();
        each_load(&self.value, &mut |from| reads.push(from));
        reads
    }
}

/// The buffers that a call of the prelude reads.
fn inputs(call: &Call) -> Vec<BufferId> {
    let read = |argument: &Argument| if let Argument::In(b) = argument { Some(*b) } else { None };
    call.args.iter().filter_map(read).collect()
}

/// The buffers that it writes.
fn outputs(call: &Call) -> Vec<BufferId> {
    let written = |argument: &Argument| if let Argument::Out(b) = argument { Some(*b) } else { None };
    call.args.iter().filter_map(written).collect()
}

/// Calls `f` with every buffer that is read.
fn each_load(value: &Expr, f: &mut dyn FnMut(BufferId)) {
    value.walk(&mut |e| {
        if let Expr::Load { from, .. } = e {
            f(*from);
        }
    });
}

/// The buffer that a kernel reads by this argument.
fn operand(argument: &kernel::Argument, inputs: &[Start; 2], operands: &[Start]) -> Option<BufferId> {
    match argument {
        kernel::Argument::A => Some(inputs[0].0),
        kernel::Argument::B | kernel::Argument::PackedB => Some(inputs[1].0),
        kernel::Argument::Operand(i) => Some(operands[*i].0),
        _ => None,
    }
}

/// A tensor from a position on.
pub type Start = (BufferId, usize);

/// How a call runs the steps for one tile of the batch after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchTiling {
    /// How many tiles there are.
    pub tiles: usize,
    /// The inputs that hold the elements of all tiles, one tile after the other, as all outputs do.
    pub inputs: BTreeSet<InputId>,
}

/// Places start at multiples of this: a cache line, and the widest vector.
pub const ALIGNMENT: usize = 64;
