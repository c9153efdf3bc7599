//! A plan that can be called, by any number of threads at once.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Arc;

use mithril_codegen::ggml::plan::Source;
use mithril_compile::ggml::Plan;
use mithril_ggml::{Graph, Lease, Workers};
use mithril_ir::{Code, Error, Result, Tensor};

use super::call::Run;
use super::convert;
use super::given::Blocks;
use super::instances::{Instance, Instances};
use super::pack::{Packed, kept, room};
use super::places::{Home, Places};
use crate::c::memory::Memory;
use crate::c::{Address, AddressMut, Buffer, Interface};

/// What a call needs in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Parameters and constants, as they are kept.
    pub weights: usize,
    /// Values between the steps, and inside the graphs of ggml.
    pub graphs: usize,
    /// What ggml's threads work in.
    pub work: usize,
    /// Beside the weights, while they are packed.
    pub packing: usize,
}

impl Needs {
    /// The most that is needed at a time.
    pub fn total(&self) -> usize {
        self.weights.saturating_add(self.graphs.saturating_add(self.work).max(self.packing))
    }
    /// An error if that is more than a limit.
    pub fn check(&self, limit: Option<usize>) -> Result<()> {
        let Some(limit) = limit.filter(|&limit| self.total() > limit) else { return Ok(()) };
        let text = format!("the model needs {} bytes, the limit is {limit}", self.total());
        let Self { weights, graphs, work, packing } = self;
        Err(Error::new(Code::OutOfMemory, text)
            .note(format!(
                "weights have {weights}, graphs {graphs}, the threads work in {work}; packing takes {packing}"
            ))
            .help("make the batch smaller, keep weights in fewer bits, or raise memory_limit"))
    }
}

/// A part of a plan with its scratch memory: values first, then the tensors inside of graphs, then what threads work in.
#[derive(Debug)]
pub(super) struct Part {
    pub places: Places,
    /// Where the tensors of graphs begin, and what threads work in.
    pub arena: usize,
    pub work: usize,
    /// Bytes of all of it.
    pub bytes: usize,
}

impl Part {
    fn new(places: Places, graphs: &[Graph], threads: usize) -> Self {
        let widest = |count: usize| graphs.iter().map(|g| g.work_bytes(count)).max().unwrap_or(0);
        let arena = places.bytes.next_multiple_of(64);
        let inside = graphs.iter().map(Graph::bytes).max().unwrap_or(0);
        let work = (arena + inside).next_multiple_of(64);
        Self { places, arena, work, bytes: work + widest(threads).max(widest(1)) }
    }
    fn memory(&self) -> Result<Memory> {
        Memory::new(self.bytes.max(64))
    }
}

/// A plan that can be called.
#[derive(Debug)]
pub struct Function {
    plan: Plan,
    interface: Interface,
    blocks: Blocks,
    calls: Part,
    packing: Part,
    constants: BTreeMap<usize, Memory>,
    needs: Needs,
    threads: usize,
    pack: bool,
    instances: Instances,
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
        let places = Places::of_calls(&plan, &interface, &blocks, pack)?;
        let packing = Places::of_packing(&plan, &blocks, &places)?;
        let graphs = packing.graphs(&plan, &plan.prepared)?;
        let packing = Part::new(packing, &graphs, threads);
        let graphs = places.graphs(&plan, &plan.steps)?;
        let calls = Part::new(places, &graphs, threads);
        let needs = Needs {
            weights: weights(&plan, &interface, &calls.places),
            graphs: calls.work,
            work: calls.bytes - calls.work,
            packing: if plan.prepared.is_empty() { 0 } else { packing.bytes },
        };
        needs.check(limit)?;
        let mut constants = BTreeMap::new();
        for v in calls.places.borders.iter().flat_map(|border| border.reads.iter().copied()) {
            if calls.places.homes[v] == Home::Constant {
                constants.insert(v, kept(&*constant(&plan, v)?, &plan, v, threads)?);
            }
        }
        let first = Instance { graphs, memory: calls.memory()? };
        let room = limit.map_or(usize::MAX, |limit| limit.saturating_sub(needs.weights));
        let instances = Instances::new(first, room / calls.bytes.max(1));
        Ok(Self { plan, interface, blocks, calls, packing, constants, needs, threads, pack, instances })
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
        self.pack && !self.packing.places.results.is_empty()
    }
    /// Turns the weights that are not read as they are given into what ggml reads; `None` if there are none.
    pub fn pack(&self, inputs: &[Address<'_>]) -> Result<Option<Packed>> {
        if !self.packs() {
            return Ok(None);
        }
        let inputs = self.inputs(inputs, |i| self.interface.fixed[i])?;
        let Part { places, .. } = &self.packing;
        let mut rooms = BTreeMap::new();
        let mut outputs = vec![std::ptr::null_mut(); places.results.len()];
        for (k, &v) in places.results.iter().enumerate() {
            if places.homes[v] == Home::Output(k)
                && let Some(ty) = &self.plan.values[v].ty
            {
                let memory = rooms.entry(v).or_insert(room(ty)?);
                outputs[k] = memory.start();
            }
        }
        let mut memory = self.packing.memory()?;
        let mut graphs = places.graphs(&self.plan, &self.plan.prepared)?;
        let lease = self.lease();
        let mut run = Run::new(self, &self.packing, &inputs, &outputs, None, memory.start());
        run.steps(&self.plan.prepared, &mut graphs, lease.as_ref())?;
        let mut packed = Packed::default();
        for &v in &places.results {
            let value = &self.plan.values[v];
            let is_hosted = matches!(value.source, Source::Host);
            if is_hosted {
                packed.insert_hosted(v, run.own(v)?);
            }
            let is_read = self.calls.places.borders.iter().any(|border| border.reads.contains(&v));
            let Some(ty) = value.ty.filter(|_| is_read || !is_hosted) else { continue };
            let memory = match rooms.remove(&v) {
                Some(memory) => memory,
                None => kept(&*run.own(v)?, &self.plan, v, self.threads)?,
            };
            packed.insert(v, memory, ty.bytes() as usize);
        }
        Ok(Some(packed))
    }
    fn lease(&self) -> Option<Lease> {
        if self.threads > 1 { Workers::of(self.threads).lease() } else { None }
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
        let make = || {
            let graphs = self.calls.places.graphs(&self.plan, &self.plan.steps)?;
            Ok(Instance { graphs, memory: self.calls.memory()? })
        };
        self.instances.with(make, |Instance { graphs, memory }| {
            let lease = self.lease();
            let mut run = Run::new(self, &self.calls, &inputs, &outputs, packed, memory.start());
            run.take_donated();
            run.steps(&self.plan.steps, graphs, lease.as_ref())?;
            run.results()
        })?
    }
    /// Runs the steps on tensors: the outputs, then the new states.
    pub fn run(&self, inputs: &[Arc<Tensor>]) -> Result<Vec<Tensor>> {
        self.interface.run(inputs, |inputs, outputs| {
            let packed = self.pack(inputs)?;
            self.call(inputs, outputs, packed.as_ref())
        })
    }
    pub(super) fn constant_address(&self, v: usize) -> Option<*const c_void> {
        self.constants.get(&v).map(Memory::address)
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

/// A constant, which may be permuted.
fn constant(plan: &Plan, v: usize) -> Result<Arc<Tensor>> {
    let of = |v: usize| match &plan.values[v].source {
        Source::Constant(tensor) => Ok(tensor.clone()),
        _ => Err(Error::internal("a constant of a plan is none")),
    };
    match &plan.values[v].source {
        Source::Permuted { of: base, axes } => Ok(Arc::new(convert::permuted(&*of(*base)?, axes))),
        _ => of(v),
    }
}

/// Bytes of parameters and constants, as they are kept.
fn weights(plan: &Plan, interface: &Interface, places: &Places) -> usize {
    let mut bytes = 0;
    let mut is_given = vec![false; interface.inputs.len()];
    for (value, home) in plan.values.iter().zip(&places.homes) {
        match (home, &value.ty) {
            (Home::Packed | Home::Constant, Some(ty)) => bytes += ty.bytes() as usize,
            (Home::Packed, None) => {
                bytes += value.shape.iter().product::<i64>() as usize * value.dtype.size();
            }
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
    plan.results().for_each(&mut mark);
    read
}
