//! A plan that can be called, by any number of threads at once.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use mithril_codegen::ggml::plan::Source;
use mithril_compile::ggml::Plan;
use mithril_ggml::{Graph, Workers};
use mithril_ir::{Code, Error, Result, Tensor};

use super::call::Run;
use super::convert;
use super::given::Blocks;
use super::pack::{Packed, kept};
use super::places::{Home, Places};
use crate::c::memory::Memory;
use crate::c::{Address, AddressMut, Buffer, Interface};

/// So many instances are kept for later calls; with more calls at a time, the others are made anew.
const KEPT: usize = 4;

/// What a call needs in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Parameters and constants, as they are kept.
    pub weights: usize,
    /// Values between the steps, and inside the graphs of ggml.
    pub graphs: usize,
    /// What ggml's threads work in.
    pub work: usize,
}

impl Needs {
    /// All of it.
    pub fn total(&self) -> usize {
        self.weights.saturating_add(self.graphs).saturating_add(self.work)
    }
    /// An error if that is more than a limit.
    pub fn check(&self, limit: Option<usize>) -> Result<()> {
        let Some(limit) = limit.filter(|&limit| self.total() > limit) else { return Ok(()) };
        let text = format!("the model needs {} bytes, the limit is {limit}", self.total());
        let Self { weights, graphs, work } = self;
        Err(Error::new(Code::OutOfMemory, text)
            .note(format!("weights have {weights}, graphs {graphs}, the threads work in {work}"))
            .help("make the batch smaller, keep weights in fewer bits, or raise memory_limit"))
    }
}

/// What one call in flight has for itself.
#[derive(Debug)]
pub(super) struct Instance {
    pub graphs: Vec<Graph>,
    pub memory: Memory,
}

/// A plan that can be called.
#[derive(Debug)]
pub struct Function {
    plan: Plan,
    interface: Interface,
    blocks: Blocks,
    places: Places,
    constants: BTreeMap<usize, Memory>,
    /// Where the intermediate tensors of graphs begin in scratch memory, and what threads work in.
    arena: usize,
    work: usize,
    bytes: usize,
    needs: Needs,
    threads: usize,
    pack: bool,
    free: Mutex<Vec<Instance>>,
}

impl Function {
    /// A function of a plan; an error if it needs more memory than the limit, before any is taken.
    pub fn new(
        plan: Plan,
        interface: Interface,
        pack: bool,
        threads: usize,
        limit: Option<usize>,
    ) -> Result<Self> {
        Self::of_blocks(plan, interface, Blocks::default(), pack, threads, limit)
    }
    /// A function some of whose weights are given in blocks.
    pub(super) fn of_blocks(
        plan: Plan,
        interface: Interface,
        blocks: Blocks,
        pack: bool,
        threads: usize,
        limit: Option<usize>,
    ) -> Result<Self> {
        let places = Places::new(&plan, &interface, &blocks, pack)?;
        let graphs = places.graphs(&plan)?;
        let widest = |count: usize| graphs.iter().map(|g| g.work_bytes(count)).max().unwrap_or(0);
        let work_bytes = widest(threads).max(widest(1));
        let arena = places.bytes.next_multiple_of(64);
        let inside = graphs.iter().map(Graph::bytes).max().unwrap_or(0);
        let work = (arena + inside).next_multiple_of(64);
        let needs = Needs { weights: weights(&plan, &interface, &places), graphs: work, work: work_bytes };
        needs.check(limit)?;
        let mut constants = BTreeMap::new();
        for (v, value) in plan.values.iter().enumerate() {
            if places.homes[v] == Home::Constant
                && value.ty.is_some()
                && let Some(tensor) = constant(&plan, v)
            {
                constants.insert(v, kept(tensor, &plan, v, threads)?);
            }
        }
        let bytes = work + work_bytes.max(64);
        let first = Instance { graphs, memory: Memory::new(bytes)? };
        let free = Mutex::new(vec![first]);
        Ok(Self {
            plan,
            interface,
            blocks,
            places,
            constants,
            arena,
            work,
            bytes,
            needs,
            threads,
            pack,
            free,
        })
    }
    /// What it reads and writes.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }
    /// Which inputs are given in blocks.
    pub fn blocks(&self) -> &Blocks {
        &self.blocks
    }
    /// The steps.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }
    /// What a call needs.
    pub fn needs(&self) -> Needs {
        self.needs
    }
    /// Whether parameters are the same at every call.
    pub fn keeps(&self) -> bool {
        self.pack
    }
    /// Whether calls need packed weights.
    pub fn packs(&self) -> bool {
        self.pack && self.places.homes.contains(&Home::Packed)
    }
    /// Turns the weights that are not read as they are given into what ggml reads; `None` if there are none.
    pub fn pack(&self, inputs: &[Address<'_>]) -> Result<Option<Packed>> {
        if !self.packs() {
            return Ok(None);
        }
        let inputs = self.inputs(inputs, |i| self.interface.fixed[i])?;
        let mut packed = Packed::new();
        for (v, value) in self.plan.values.iter().enumerate() {
            if self.places.homes[v] != Home::Packed {
                continue;
            }
            let source = value.source.of().map_or(&value.source, |of| &self.plan.values[of].source);
            let Source::Input(i) = source else { return Err(Error::internal("a packed value is no weight")) };
            let tensor = self.input(*i, &inputs)?;
            let memory = kept(&tensor, &self.plan, v, self.threads)?;
            packed.insert(v, memory, value.ty.map_or(0, |ty| ty.bytes() as usize));
        }
        Ok(Some(packed))
    }
    /// Runs the steps on inputs into outputs, each at an address that fits its buffer.
    pub fn call(
        &self,
        inputs: &[Address<'_>],
        outputs: &mut [AddressMut<'_>],
        packed: Option<&Packed>,
    ) -> Result<()> {
        let Interface { fixed, read, .. } = &self.interface;
        let inputs = self.inputs(inputs, |i| read[i] || !fixed[i])?;
        self.interface.count("outputs", outputs.len(), self.interface.outputs.len())?;
        let outputs = outputs.iter_mut().zip(&self.interface.outputs).map(|(address, buffer)| {
            address.written(buffer.bytes(), buffer.dtype).map_err(|misfit| misfits(buffer, &misfit))
        });
        let outputs = outputs.collect::<Result<Vec<_>>>()?;
        if packed.is_none() && self.packs() {
            return Err(Error::internal("the parameters are not packed"));
        }
        let found = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut instance = match found {
            Some(instance) => instance,
            None => Instance { graphs: self.places.graphs(&self.plan)?, memory: Memory::new(self.bytes)? },
        };
        let lease = if self.threads > 1 { Workers::of(self.threads).lease() } else { None };
        let Instance { graphs, memory } = &mut instance;
        let result = Run::new(self, &inputs, &outputs, packed, memory.start()).steps(graphs, lease.as_ref());
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < KEPT {
            free.push(instance);
        }
        result
    }
    /// Runs the steps on tensors: the outputs, then the new states.
    pub fn run(&self, inputs: &[Arc<Tensor>]) -> Result<Vec<Tensor>> {
        self.interface.run(inputs, |inputs, outputs| {
            let packed = self.pack(inputs)?;
            self.call(inputs, outputs, packed.as_ref())
        })
    }
    pub(super) fn places(&self) -> &Places {
        &self.places
    }
    pub(super) fn constant_address(&self, v: usize) -> Option<*const c_void> {
        self.constants.get(&v).map(Memory::address)
    }
    /// Where the tensors of graphs, and what threads work in, begin in scratch memory.
    pub(super) fn starts(&self) -> (usize, usize) {
        (self.arena, self.work)
    }
    /// An input as a tensor.
    pub(super) fn input(&self, i: usize, inputs: &[*const c_void]) -> Result<Tensor> {
        let buffer = &self.interface.inputs[i];
        // SAFETY: that the input has the memory was checked; it is borrowed as long as the call lasts.
        let bytes = unsafe { convert::bytes(inputs[i], buffer.bytes()) };
        if let Some(element) = self.blocks.of(i) {
            return Blocks::read(element, bytes, &buffer.shape);
        }
        Tensor::from_bytes(buffer.dtype, buffer.shape.clone(), bytes)
    }
    /// Where inputs start that have the memory for their buffers; those that are not needed may have none.
    fn inputs(
        &self,
        inputs: &[Address<'_>],
        is_needed: impl Fn(usize) -> bool,
    ) -> Result<Vec<*const c_void>> {
        self.interface.count("inputs", inputs.len(), self.interface.inputs.len())?;
        let all = inputs.iter().zip(&self.interface.inputs).enumerate();
        all.map(|(i, (address, buffer))| {
            let bytes = if is_needed(i) { buffer.bytes() } else { 0 };
            address.read(bytes, buffer.dtype).map_err(|misfit| misfits(buffer, &misfit))
        })
        .collect()
    }
}

fn misfits(buffer: &Buffer, misfit: &str) -> Error {
    Error::new(Code::BadParameter, format!("`{}` {misfit}", buffer.name))
}

/// The tensor that a constant is made of.
fn constant(plan: &Plan, v: usize) -> Option<&Arc<Tensor>> {
    let source = &plan.values[v].source;
    let source = source.of().map_or(source, |of| &plan.values[of].source);
    if let Source::Constant(tensor) = source { Some(tensor) } else { None }
}

/// Bytes of parameters and constants, as they are kept.
fn weights(plan: &Plan, interface: &Interface, places: &Places) -> usize {
    let mut bytes = 0;
    let mut is_given = vec![false; interface.inputs.len()];
    for (value, home) in plan.values.iter().zip(&places.homes) {
        match (home, &value.ty) {
            (Home::Packed | Home::Constant, Some(ty)) => bytes += ty.bytes() as usize,
            (Home::Input(i), _) if interface.fixed[*i] => is_given[*i] = true,
            _ => {}
        }
    }
    let given = interface.inputs.iter().enumerate().filter(|(i, _)| is_given[*i] && interface.read[*i]);
    bytes + given.map(|(_, buffer)| buffer.bytes()).sum::<usize>()
}

/// Which inputs a call reads as they are given.
pub(super) fn read(plan: &Plan, count: usize) -> Vec<bool> {
    let mut read = vec![false; count];
    let mut mark = |v: usize| {
        if let Source::Input(i) = plan.values[v].source {
            read[i] = true;
        }
    };
    plan.calls().flat_map(|c| &c.arguments).filter_map(|a| a.value()).for_each(&mut mark);
    for step in &plan.steps {
        if let mithril_codegen::ggml::plan::Step::Host(host) = step {
            host.inputs.iter().filter_map(|input| input.value()).for_each(&mut mark);
        }
    }
    plan.outputs.iter().map(|(_, v)| *v).chain(plan.updates.iter().map(|u| u.1)).for_each(&mut mark);
    read
}
