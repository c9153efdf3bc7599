//! Programs: buffers, and steps that fill them one after the other. What the passes change and print.
//!
//! There are two levels. The steps of a [`LoopProgram`] are loop nests and calls of helpers; what passes up to the blocked
//! layout work on. Those of a [`KernelProgram`] may be kernels, nests that are fused row by row, and packing, too.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mithril_ir::{DType, Tensor};

use crate::c::ir::expr::{Argument, BufferId, Call, Expr, Index, StepId, Var, flat};
use crate::c::ir::kernel::{self, First, Kernel};
use crate::c::ir::layout::Blocks;
use crate::ids::Table;

/// The buffers of a program.
pub type Buffers = Table<BufferId, Buffer>;
/// Steps, in the order in which they are done.
pub type Steps<W> = Table<StepId, Step<W>>;

/// A program of loop nests and calls.
pub type LoopProgram = Program<LoopWork>;
/// A step of such a program.
pub type LoopStep = Step<LoopWork>;
/// A program of nests, calls, and kernels, fused rows and packing, which contractions have become.
pub type KernelProgram = Program<KernelWork>;
/// A step of such a program.
pub type KernelStep = Step<KernelWork>;

/// A program whose steps do one kind of work: [`LoopProgram`] or [`KernelProgram`].
#[derive(Clone, Debug)]
pub struct Program<W> {
    /// Tensors. Expressions name them by position.
    pub buffers: Buffers,
    /// What is done once, when parameters are packed, in order.
    pub prepared: Steps<W>,
    /// What is done at every call, in order.
    pub steps: Steps<W>,
    /// The next number of a loop variable.
    pub next_var: u32,
    /// Bytes of the arena; `None`: memory is not planned yet.
    pub arena_bytes: Option<usize>,
    /// Bytes of the packed parameters.
    pub packed_bytes: usize,
    /// Bytes of scratch memory while they are packed.
    pub pack_bytes: usize,
    /// The functions that set the margins of tensors in blocks to zero.
    pub margins: BTreeMap<BufferId, String>,
    /// Tensors whose numbers are, or stand for, integers of 8 bits by the model itself.
    pub integers: BTreeMap<BufferId, Integers>,
    /// Old states and the new ones, where they share their memory.
    pub updates: Vec<(BufferId, BufferId)>,
    /// If a call goes through the steps several times: how, see `passes/batch_tiling.rs`. Sizes are those of one time.
    pub apart: Option<Apart>,
}

/// Numbers that the model itself quantizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Integers {
    /// 256 numbers, equally far from each other, from the first to the second; one of them is 0.
    Range([f32; 2]),
    /// Weights that are integers from -128 to 127.
    Weights,
}

/// A tensor in memory: contiguous in row-major order, or in blocks.
#[derive(Clone, Debug)]
pub struct Buffer {
    /// Its path in the model, or the op that makes it.
    pub name: String,
    /// Dtype as stored.
    pub dtype: DType,
    /// Sizes.
    pub shape: Vec<i64>,
    /// Where it lies.
    pub place: Place,
    /// Whether it is a parameter, or a state that the model never replaces: the same at every call of a model that is
    /// not trained.
    pub is_param: bool,
    /// How it lies in blocks; `None`: in row-major order.
    pub blocks: Option<Blocks>,
}

/// Where a buffer lies.
#[derive(Clone, Debug)]
pub enum Place {
    /// The caller's input of that number.
    Input(usize),
    /// The caller's output of that number.
    Output(usize),
    /// The caller's input of that number, which is changed: the output of that number is the same memory.
    State {
        /// Number of the input.
        input: usize,
        /// Number of the output.
        output: usize,
    },
    /// Written into the program.
    Constant(Arc<Tensor>),
    /// In the arena; memory planning says where. `None`: not decided, or not needed.
    Arena(Option<usize>),
    /// In the memory of each thread, from this byte on: scratch memory of one step.
    Scratch(usize),
    /// Among the packed parameters, where it is computed once; memory planning says where.
    Packed(Option<usize>),
    /// In the scratch memory of packing, which alone reads it.
    Packing(usize),
}

/// What fills buffers.
#[derive(Clone, Debug)]
pub struct Step<W> {
    /// What it is called after: the op, or the path of the value.
    pub name: String,
    /// Which part of the model it belongs to.
    pub origin: String,
    /// What is done.
    pub work: W,
}

/// What a step of one of the levels does.
pub trait Work: Clone + std::fmt::Debug {
    /// Buffers that are read.
    fn reads(&self) -> Vec<BufferId>;
    /// Buffers that are written, shared scratch memory too.
    fn writes(&self) -> Vec<BufferId>;
    /// The loop nest, if it is one.
    fn nest(&self) -> Option<&Nest>;
}

/// What a step does before kernels are selected.
#[derive(Clone, Debug)]
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
    /// How many of them, the first, count through the parts of a step ([`Parts`]), of which this is one.
    pub given: usize,
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
    /// Where those of the next step start, and with which of them each thread.
    pub ahead: Option<Box<(usize, First)>>,
    /// The buffer of the memory that all threads see.
    pub shared: Option<BufferId>,
    /// What it computes, for readers.
    pub what: String,
    /// Number of products.
    pub work: usize,
    /// Specifications for which there were candidates.
    pub asked: Vec<String>,
}

/// A loop nest.
#[derive(Clone, Debug)]
pub struct Nest {
    /// The buffer that is filled.
    pub to: BufferId,
    /// Its coordinates.
    pub vars: Vec<Var>,
    /// The value of an element.
    pub value: Expr,
}

impl<W> Default for Program<W> {
    fn default() -> Self {
        Self {
            buffers: Buffers::default(),
            prepared: Table::default(),
            steps: Table::default(),
            next_var: 0,
            arena_bytes: None,
            packed_bytes: 0,
            pack_bytes: 0,
            margins: BTreeMap::new(),
            integers: BTreeMap::new(),
            updates: Vec::new(),
            apart: None,
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

impl From<LoopProgram> for KernelProgram {
    fn from(program: LoopProgram) -> Self {
        let steps = |steps: Steps<LoopWork>| steps.into_iter().map(KernelStep::from).collect();
        Self {
            buffers: program.buffers,
            prepared: steps(program.prepared),
            steps: steps(program.steps),
            next_var: program.next_var,
            arena_bytes: program.arena_bytes,
            packed_bytes: program.packed_bytes,
            pack_bytes: program.pack_bytes,
            margins: program.margins,
            integers: program.integers,
            updates: program.updates,
            apart: program.apart,
        }
    }
}

impl<W> Program<W> {
    /// The range of the one of two factors that is quantized by the model, and the number of the other one, if that is one of
    /// weights that are integers.
    pub fn integer_factors(&self, factors: [BufferId; 2]) -> Option<([f32; 2], usize)> {
        match factors.map(|factor| self.integers.get(&factor)) {
            [Some(Integers::Range(range)), Some(Integers::Weights)] => Some((*range, 1)),
            [Some(Integers::Weights), Some(Integers::Range(range))] => Some((*range, 0)),
            _ => None,
        }
    }
    /// How often a call goes through the steps.
    pub fn times(&self) -> usize {
        self.apart.as_ref().map_or(1, |apart| apart.times)
    }
    /// How many times as much a call reads or writes of a tensor as one time through the steps.
    pub fn parts(&self, place: &Place) -> usize {
        let Some(Apart { times, inputs }) = &self.apart else { return 1 };
        match place {
            Place::Input(n) if inputs.contains(n) => *times,
            Place::Output(_) | Place::Arena(_) => *times,
            _ => 1,
        }
    }
}

impl Buffer {
    /// Memory that all threads use while a kernel runs.
    pub fn scratch(bytes: usize) -> Self {
        Self {
            name: "workspace".to_owned(),
            dtype: DType::U8,
            shape: vec![bytes as i64],
            place: Place::Arena(None),
            is_param: false,
            blocks: None,
        }
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
    /// Whether it is one number of a row, which needs no memory.
    pub fn is_constant(&self) -> bool {
        let is_half = matches!(self.dtype, DType::F16 | DType::BF16);
        matches!(self.place, Place::Scratch(_)) && self.count() == 1 && !is_half
    }
    /// Whether it lies in the arena.
    pub fn is_temporary(&self) -> bool {
        matches!(self.place, Place::Arena(_))
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
        call.arguments.iter().filter_map(|argument| given(argument, &self.inputs, &self.operands))
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
        self.call.arguments.iter().filter_map(|argument| given(argument, &self.inputs, &[]))
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
fn given(argument: &kernel::Argument, inputs: &[Start; 2], operands: &[Start]) -> Option<BufferId> {
    match argument {
        kernel::Argument::A => Some(inputs[0].0),
        kernel::Argument::B => Some(inputs[1].0),
        kernel::Argument::Operand(i) => Some(operands[*i].0),
        _ => None,
    }
}

/// A tensor from a position on.
pub type Start = (BufferId, usize);

/// How often a call goes through the steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Apart {
    /// How often.
    pub times: usize,
    /// Numbers of the inputs that hold the rows of all times, one after the other, as all outputs do.
    pub inputs: BTreeSet<usize>,
}

/// Places start at multiples of this: a cache line, and the widest vector.
pub const ALIGNMENT: usize = 64;
