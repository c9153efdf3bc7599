//! One call: the steps of a plan in their order.

use std::ffi::c_void;
use std::sync::Arc;

use mithril_codegen::ggml::plan::{Host, HostInput, PlanValueId, Source, Step};
use mithril_codegen::ids::{Id as _, Table};
use mithril_ggml::{Graph, Lease};
use mithril_ir::interp::{self, EvalArg};
use mithril_ir::tensor::Data;
use mithril_ir::{DType, Error, Lit, Result, Tensor};

use super::convert;
use super::function::{Function, Part};
use super::pack::Packed;
use super::places::{Border, Home};
use crate::pages;

/// A call while it runs, or the packing of weights.
pub(super) struct Run<'a> {
    function: &'a Function,
    part: &'a Part,
    inputs: &'a [*const c_void],
    outputs: &'a [*mut c_void],
    packed: Option<&'a Packed>,
    memory: *mut c_void,
    /// What the host made so far.
    hosted: Table<PlanValueId, Option<Arc<Tensor>>>,
    /// Whether a value was written into its place in scratch memory.
    is_written: Table<PlanValueId, bool>,
}

impl<'a> Run<'a> {
    /// A run of a part, with scratch memory of its size, which nobody else has.
    pub fn new(
        function: &'a Function,
        part: &'a Part,
        inputs: &'a [*const c_void],
        outputs: &'a [*mut c_void],
        packed: Option<&'a Packed>,
        memory: *mut c_void,
    ) -> Self {
        let values = &function.plan().values;
        Self {
            function,
            part,
            inputs,
            outputs,
            packed,
            memory,
            hosted: Table::beside(values, None),
            is_written: Table::beside(values, false),
        }
    }
    /// Copies donated inputs to where the outputs that are made of them lie, if those lie elsewhere.
    pub fn take_donated(&self) {
        let plan = self.function.plan();
        for &(input, k) in &plan.donated {
            let Source::Input(i) = plan.values[input].source else { continue };
            let (i, k) = (i.index(), k.index());
            if self.inputs[i] != self.outputs[k].cast_const() {
                let bytes = self.function.interface().inputs[i].bytes();
                // SAFETY: both have so many bytes, as was checked; nobody else has the memory of the output.
                unsafe { std::ptr::copy(self.inputs[i].cast::<u8>(), self.outputs[k].cast(), bytes) }
            }
        }
    }
    /// Runs a step of that number, which has a graph if it is a segment.
    pub fn step(
        &mut self,
        number: usize,
        step: &Step,
        graph: Option<&mut Graph>,
        lease: Option<&Lease>,
    ) -> Result<()> {
        match step {
            Step::Segment(_) => {
                let graph = graph.ok_or_else(|| Error::internal("a segment has no graph"))?;
                let part = self.part;
                self.segment(graph, &part.places.borders[number], lease)
            }
            Step::Host(host) => self.host(host).map_err(|e| e.at(&host.place)),
        }
    }
    /// Gives back what the host made and nothing reads after this time (see [`super::places::Places::lives`]); where
    /// weights are packed, also the pages of files that hold them.
    pub fn forget(&mut self, at: usize, is_packing: bool) {
        let ended = |life: Option<(usize, usize)>| life.is_some_and(|(_, last)| last == at);
        let interface = self.function.interface();
        for (v, _) in self.part.places.lives.entries().filter(|(_, life)| ended(**life)) {
            self.hosted[v] = None;
            if let Source::Input(i) = self.function.plan().values[v].source
                && is_packing
                && !interface.read[i.index()]
            {
                // SAFETY: that the input has the memory was checked; it is borrowed as long as the call lasts.
                pages::release(unsafe {
                    convert::bytes(self.inputs[i.index()], interface.inputs[i.index()].bytes())
                });
            }
        }
    }
    fn segment(&mut self, graph: &mut Graph, border: &Border, lease: Option<&Lease>) -> Result<()> {
        let leaves = border.reads.iter().map(|&v| self.ready(v)).collect::<Result<Vec<_>>>()?;
        let outputs = border.writes.iter().map(|&v| self.place(v)).collect::<Result<Vec<_>>>()?;
        let Part { arena, work, .. } = *self.part;
        // SAFETY: leaves and outputs have their places, which `Places` made as large as their types; inputs and outputs
        // fit their buffers and do not overlap, as the caller of the function vouches and was checked. The instance has
        // the memory that the graphs asked for, for as many threads. Positions were checked when they were written.
        unsafe {
            let (arena, work) = (self.memory.byte_add(arena), self.memory.byte_add(work));
            graph.compute(&leaves, &outputs, arena, work, lease)
        }
    }
    /// The place of a value.
    fn place(&self, v: PlanValueId) -> Result<*mut c_void> {
        let missing = || Error::internal("a value of a plan has no place");
        match self.part.places.homes[v] {
            Home::Input(i) => Ok(self.inputs[i.index()].cast_mut()),
            Home::Output(i) => Ok(self.outputs[i]),
            Home::Constant => {
                self.function.constant_address(v).map(<*const c_void>::cast_mut).ok_or_else(missing)
            }
            // SAFETY: inside of the packed weights, which have room for what this plan packs.
            Home::Packed(start) => {
                Ok(unsafe { self.packed.ok_or_else(missing)?.address().byte_add(start).cast_mut() })
            }
            // SAFETY: inside of the memory of this call.
            Home::Scratch(start) => Ok(unsafe { self.memory.byte_add(start) }),
            Home::Elsewhere => Err(missing()),
        }
    }
    /// The place of a value that is there by now; what the host has is written first.
    fn ready(&mut self, v: PlanValueId) -> Result<*mut c_void> {
        let value = &self.function.plan().values[v];
        let is_made = matches!(value.source, Source::Call);
        if is_made || self.is_written[v] || !matches!(self.part.places.homes[v], Home::Scratch(_)) {
            return self.place(v);
        }
        let ty = value.ty.ok_or_else(|| Error::internal("a value has no type in ggml"))?;
        if let (Source::Host, Some(tensor)) = (&value.source, &self.hosted[v])
            && let Data::F32(values) = tensor.data()
            && values.len() as i64 == ty.elements()
        {
            // It stays where it is until nothing reads it.
            return Ok(values.as_ptr().cast_mut().cast());
        }
        let place = self.place(v)?;
        // SAFETY: its place has as many bytes as its type, and nobody else has the memory of this call.
        self.write(v, unsafe { convert::bytes_mut(place, ty.bytes() as usize) }, 1)?;
        self.is_written[v] = true;
        Ok(place)
    }
    /// Writes a value as ggml reads it; rows of blocks are written by so many threads.
    pub fn write(&self, v: PlanValueId, out: &mut [u8], threads: usize) -> Result<()> {
        let value = &self.function.plan().values[v];
        let ty = value.ty.ok_or_else(|| Error::internal("a value has no type in ggml"))?;
        let named = |e: Error| e.note(format!("the weight is {}", value.name));
        if let Some(i) = self.function.blocks().whole(self.function.plan(), value) {
            // SAFETY: that the input has the memory was checked; it is borrowed as long as the call lasts.
            out.copy_from_slice(unsafe { convert::bytes(self.inputs[i.index()], out.len()) });
            return Ok(());
        }
        if let Source::Permuted { of, axes } = &value.source
            && let Source::Input(i) = self.function.plan().values[*of].source
            && let Some(values) = self.function.floats(i, self.inputs)
        {
            let shape = &self.function.interface().inputs[i.index()].shape;
            return convert::permute(values, shape, axes, &ty, out, threads).map_err(named);
        }
        convert::encode(&*self.own(v)?, &ty, out).map_err(named)
    }
    /// A value in its own dtype and shape.
    pub fn own(&self, v: PlanValueId) -> Result<Arc<Tensor>> {
        let value = &self.function.plan().values[v];
        let shape: Vec<usize> = value.shape.iter().map(|&n| n as usize).collect();
        self.tensor(v, value.dtype, &shape)
    }
    /// A value as a tensor of the host.
    fn tensor(&self, v: PlanValueId, dtype: DType, shape: &[usize]) -> Result<Arc<Tensor>> {
        let value = &self.function.plan().values[v];
        let array = match &value.source {
            Source::Input(i) => Arc::new(self.function.input(*i, self.inputs)?),
            Source::Constant(tensor) => tensor.clone(),
            Source::Host => {
                let kept = || self.packed.and_then(|packed| packed.hosted(v));
                let array = self.hosted[v].as_ref().or_else(kept).cloned();
                array.ok_or_else(|| Error::internal("a value is read before it is defined"))?
            }
            Source::Call => {
                let ty = value.ty.ok_or_else(|| Error::internal("a value has no type in ggml"))?;
                let count = (ty.elements() * ty.element.bytes()) as usize;
                // SAFETY: its place has so many bytes, which ggml wrote.
                let bytes = unsafe { convert::bytes(self.place(v)?, count) };
                Arc::new(convert::decode(bytes, &ty, dtype, shape)?)
            }
            Source::Permuted { of, axes } => Arc::new(convert::permuted(&*self.own(*of)?, axes)),
        };
        if (array.dtype(), array.shape()) == (dtype, shape) {
            return Ok(array);
        }
        if array.len() != shape.iter().product::<usize>() {
            return Err(Error::internal("a value has another number of elements than its type"));
        }
        Ok(Arc::new(array.cast(dtype).reshaped(shape)))
    }
    fn host(&mut self, host: &Host) -> Result<()> {
        let unknown = || Error::internal("a size of a step of the host is not a number");
        let mut arguments = Vec::with_capacity(host.inputs.len());
        for (i, input) in host.inputs.iter().enumerate() {
            arguments.push(match input {
                HostInput::Value(v, ty) => {
                    EvalArg::Tensor(self.tensor(*v, ty.dtype, &ty.shape.known().ok_or_else(unknown)?)?)
                }
                HostInput::Literal(lit) if !host.op.takes_tensor(i) || lit.is_none() => {
                    EvalArg::Lit(lit.clone())
                }
                HostInput::Literal(Lit::Tensor(tensor)) => EvalArg::Tensor(tensor.clone()),
                HostInput::Literal(lit) => EvalArg::Tensor(Arc::new(operand(host, lit)?)),
            });
        }
        let types = host.types.iter().map(|ty| Ok((ty.dtype, ty.shape.known().ok_or_else(unknown)?)));
        let outputs = interp::eval(host.op, &arguments, &types.collect::<Result<Vec<_>>>()?)?;
        for (&v, tensor) in host.outputs.iter().zip(outputs) {
            self.hosted[v] = Some(tensor);
        }
        Ok(())
    }
    /// Writes the outputs that do not lie in their place yet.
    pub fn results(&self) -> Result<()> {
        for (k, &v) in self.part.places.results.iter().enumerate() {
            if self.part.places.homes[v] == Home::Output(k) {
                continue;
            }
            let buffer = &self.function.interface().outputs[k];
            let tensor = self.tensor(v, buffer.dtype, &buffer.shape)?;
            // SAFETY: the memory of an output, which nobody else has; as large as its buffer, as was checked.
            unsafe { convert::bytes_mut(self.outputs[k], buffer.bytes()) }
                .copy_from_slice(&tensor.to_bytes());
        }
        Ok(())
    }
}

/// The tensor that a number among the operands of a step stands for: it takes the dtype of the operands beside it, as
/// in [`interp::operand`].
pub(super) fn operand(host: &Host, lit: &Lit) -> Result<Tensor> {
    let weak = lit.weak_dtype(DType::F32);
    let mut dtypes = host.inputs.iter().enumerate().filter_map(|(i, input)| match input {
        HostInput::Value(_, ty) if host.op.takes_tensor(i) => Some(ty.dtype),
        _ => None,
    });
    interp::number(lit, weak.and_then(|weak| dtypes.find(|d| d.kind() >= weak.kind())))
}
