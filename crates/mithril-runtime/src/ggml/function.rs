//! A plan that can be called, by any number of threads at once.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_void;
use std::sync::Arc;

use mithril_codegen::ggml::plan::{PlanValueId, Source, Step, Value};
use mithril_codegen::ids::{Id as _, InputId};
use mithril_compile::ggml::Plan;
use mithril_ggml::{Graph, Lease, Workers};
use mithril_ir::{Code, DType, Error, Result, Tensor};

use super::borrowed::Blocks;
use super::budget::Budget;
use super::call::Run;
use super::convert;
use super::instances::{Instance, Instances};
use super::pack::{Packed, kept};
use super::places::{Home, Places};
use crate::c::memory::Memory;
use crate::c::{Address, AddressMut, Interface, TensorSpec};

/// What a call needs in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Parameters that are read where they are given.
    pub borrowed: usize,
    /// What is made of parameters and kept, and constants.
    pub prepared: usize,
    /// Values between the steps, and inside the graphs of ggml.
    pub graphs: usize,
    /// What ggml's threads work in.
    pub work: usize,
    /// Beside the weights, while they are packed.
    pub packing: usize,
}

impl Needs {
    /// Parameters and constants, as they are kept.
    pub fn weights(&self) -> usize {
        self.borrowed.saturating_add(self.prepared)
    }
    /// The most that is needed at a time.
    pub fn total(&self) -> usize {
        self.weights().saturating_add(self.graphs.saturating_add(self.work).max(self.packing))
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
    /// The part for these steps with its graphs; one after the other, they are given to `keep`.
    fn new(
        plan: &Plan,
        steps: &[Step],
        places: Places,
        threads: usize,
        mut keep: impl FnMut(Option<Graph>),
    ) -> Result<Self> {
        let (mut inside, mut widest) = (0, 0);
        for number in 0..steps.len() {
            let graph = places.graph(plan, steps, number)?;
            if let Some(graph) = &graph {
                inside = inside.max(graph.bytes());
                widest = widest.max(graph.work_bytes(threads)).max(graph.work_bytes(1));
            }
            keep(graph);
        }
        let arena = places.bytes.next_multiple_of(64);
        let work = (arena + inside).next_multiple_of(64);
        Ok(Self { places, arena, work, bytes: work + widest })
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
    constants: BTreeMap<PlanValueId, Memory>,
    needs: Needs,
    threads: usize,
    pack: bool,
    instances: Instances,
}

impl Function {
    /// A function of a plan; an error if it needs more memory than there is, before any is taken.
    pub fn new(
        plan: Plan,
        interface: Interface,
        pack: bool,
        threads: usize,
        budget: &Arc<Budget>,
    ) -> Result<Self> {
        Self::of_blocks(plan, interface, Blocks::default(), BTreeSet::new(), pack, threads, budget)
    }
    /// A function some of whose weights are given in blocks, and whose packed weights of `repacked` are interleaved.
    pub(super) fn of_blocks(
        plan: Plan,
        interface: Interface,
        blocks: Blocks,
        repacked: BTreeSet<PlanValueId>,
        pack: bool,
        threads: usize,
        budget: &Arc<Budget>,
    ) -> Result<Self> {
        let places = Places::of_calls(&plan, &interface, &blocks, pack, repacked)?;
        let packing = Places::of_packing(&plan, &blocks, &places)?;
        let packing = Part::new(&plan, &plan.prepared, packing, threads, drop)?;
        let mut graphs = Vec::with_capacity(plan.steps.len());
        let calls = Part::new(&plan, &plan.steps, places, threads, |graph| graphs.push(graph))?;
        let caller_memory = borrowed_weights(&interface, &calls.places);
        let needs = Needs {
            borrowed: caller_memory.iter().map(|(_, bytes)| bytes).sum(),
            prepared: prepared(&plan, &calls.places),
            graphs: calls.work,
            work: calls.bytes - calls.work,
            packing: if plan.prepared.is_empty() { 0 } else { packing.bytes }
                + largest_copy(&plan, &calls.places),
        };
        let reserved = budget.reserve(needs, &caller_memory)?;
        let mut constants = BTreeMap::new();
        for v in calls.places.borders.iter().flat_map(|border| border.reads.iter().copied()) {
            if calls.places.homes[v] == Home::Constant {
                constants.insert(v, kept(&*constant(&plan, v)?, &plan, v)?);
            }
        }
        let first = Instance { graphs, memory: calls.memory()? };
        let instances = Instances::new(first, calls.bytes, reserved);
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
        let (places, steps) = (&self.packing.places, &self.plan.prepared);
        let mut packed = Packed::new(self.calls.places.packed)?;
        let start = packed.start();
        let place = |v: PlanValueId| match self.calls.places.homes[v] {
            // SAFETY: inside of the packed weights, which have room for all that is packed.
            Home::Packed(at) => Ok(unsafe { start.byte_add(at) }),
            _ => Err(Error::internal("a packed weight has no place")),
        };
        let outputs = places.results.iter().map(|&v| place(v)).collect::<Result<Vec<_>>>()?;
        let mut memory = self.packing.memory()?;
        let lease = self.lease();
        let mut run = Run::new(self, &self.packing, &inputs, &outputs, None, memory.start());
        for (s, step) in steps.iter().enumerate() {
            // Each is made when it is needed, and goes then.
            let mut graph = places.graph(&self.plan, steps, s)?;
            run.step(s, step, graph.as_mut(), lease.as_ref())?;
            run.forget(s, true);
        }
        for ((k, &v), at) in places.results.iter().enumerate().zip(steps.len()..) {
            let value = &self.plan.values[v];
            let is_hosted = matches!(value.source, Source::Host);
            if is_hosted {
                packed.insert_hosted(v, run.own(v)?);
            }
            let is_read = self.calls.places.borders.iter().any(|border| border.reads.contains(&v));
            let ty = value.ty.filter(|_| is_read || !is_hosted);
            if let Some(ty) = ty.filter(|_| places.homes[v] != Home::Output(k)) {
                // SAFETY: the room of this value in the packed weights, which nobody else has yet.
                let out = unsafe { convert::bytes_mut(outputs[k], ty.bytes() as usize) };
                run.write(v, out, self.threads)?;
            }
            if let Some(ty) = value.ty.filter(|_| self.calls.places.repacked.contains(&v)) {
                // SAFETY: as above; what the steps wrote is there.
                let out = unsafe { convert::bytes_mut(outputs[k], ty.bytes() as usize) };
                mithril_ggml::repack(&ty, out)?;
            }
            run.forget(at, true);
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
            let steps = &self.plan.steps;
            let graphs = (0..steps.len()).map(|s| self.calls.places.graph(&self.plan, steps, s));
            Ok(Instance { graphs: graphs.collect::<Result<_>>()?, memory: self.calls.memory()? })
        };
        self.instances.with(make, |Instance { graphs, memory }| {
            let lease = self.lease();
            let mut run = Run::new(self, &self.calls, &inputs, &outputs, packed, memory.start());
            run.take_donated();
            for ((s, step), graph) in self.plan.steps.iter().enumerate().zip(graphs) {
                run.step(s, step, graph.as_mut(), lease.as_ref())?;
                run.forget(s, false);
            }
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
    pub(super) fn constant_address(&self, v: PlanValueId) -> Option<*const c_void> {
        self.constants.get(&v).map(Memory::address)
    }
    /// An input as a tensor.
    pub(super) fn input(&self, i: InputId, inputs: &[*const c_void]) -> Result<Tensor> {
        let buffer = &self.interface.inputs[i.index()];
        // SAFETY: that the input has the memory was checked; it is borrowed as long as the call lasts.
        let bytes = unsafe { convert::bytes(inputs[i.index()], buffer.bytes()) };
        if let Some(element) = self.blocks.of(i) {
            return Blocks::read(element, bytes, &buffer.shape);
        }
        Tensor::from_bytes(buffer.dtype, buffer.shape.clone(), bytes)
    }
    /// The elements of an input that is given in float32.
    pub(super) fn floats<'a>(&self, i: InputId, inputs: &'a [*const c_void]) -> Option<&'a [f32]> {
        let buffer = &self.interface.inputs[i.index()];
        if buffer.dtype != DType::F32 || self.blocks.of(i).is_some() {
            return None;
        }
        let count = buffer.shape.iter().product();
        // SAFETY: that the input has the memory, at a multiple of its element, was checked; it is borrowed as long as
        // the call lasts.
        Some(if count == 0 {
            &[]
        } else {
            unsafe { std::slice::from_raw_parts(inputs[i.index()].cast(), count) }
        })
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

fn misfits(buffer: &TensorSpec, misfit: &str) -> Error {
    Error::new(Code::BadParameter, format!("`{}` {misfit}", buffer.name))
}

/// A constant, which may be permuted.
fn constant(plan: &Plan, v: PlanValueId) -> Result<Arc<Tensor>> {
    let of = |v: PlanValueId| match &plan.values[v].source {
        Source::Constant(tensor) => Ok(tensor.clone()),
        _ => Err(Error::internal("a constant of a plan is none")),
    };
    match &plan.values[v].source {
        Source::Permuted { of: base, axes } => Ok(Arc::new(convert::permuted(&*of(*base)?, axes))),
        _ => of(v),
    }
}

/// Bytes of the largest weight that is interleaved, of which there is a copy meanwhile.
fn largest_copy(plan: &Plan, places: &Places) -> usize {
    let bytes = places.repacked.iter().filter_map(|&v| plan.values[v].ty.map(|ty| ty.bytes() as usize));
    bytes.max().unwrap_or(0)
}

/// Bytes of parameters that are packed, and of constants.
fn prepared(plan: &Plan, places: &Places) -> usize {
    let bytes = |(value, home): (&Value, &Home)| match (home, &value.ty) {
        (Home::Packed(_) | Home::Constant, Some(ty)) => ty.bytes() as usize,
        (Home::Packed(_), None) => value.shape.iter().product::<i64>() as usize * value.dtype.size(),
        _ => 0,
    };
    plan.values.iter().zip(&places.homes).map(bytes).sum()
}

/// Parameters that are read where they are given, with their bytes.
fn borrowed_weights(interface: &Interface, places: &Places) -> Vec<(Arc<str>, usize)> {
    let mut is_passed = vec![false; interface.inputs.len()];
    for home in &places.homes {
        if let Home::Input(i) = home {
            is_passed[i.index()] = interface.fixed[i.index()] && interface.read[i.index()];
        }
    }
    let inputs = interface.inputs.iter().zip(is_passed).filter(|(_, is_passed)| *is_passed);
    inputs.map(|(buffer, _)| (buffer.name.clone(), buffer.bytes())).collect()
}

/// Which inputs a call reads as they are given.
pub(super) fn read(plan: &Plan, count: usize) -> Vec<bool> {
    let mut read = vec![false; count];
    let mut mark = |v: PlanValueId| {
        if let Source::Input(i) = plan.values[v].source {
            read[i.index()] = true;
        }
    };
    plan.calls().flat_map(|c| &c.arguments).filter_map(|a| a.value()).for_each(&mut mark);
    for step in &plan.steps {
        if let Step::Host(host) = step {
            host.inputs.iter().filter_map(|input| input.value()).for_each(&mut mark);
        }
    }
    plan.results().for_each(&mut mark);
    read
}
