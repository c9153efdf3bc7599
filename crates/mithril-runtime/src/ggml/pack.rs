//! Weights as ggml keeps them, made once for many calls, and what became of each.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Arc;

use mithril_codegen::ggml::plan::PlanValueId;
use mithril_compile::ggml::{Element, Plan};
use mithril_ir::{Error, Result, Tensor};

use super::convert;
use crate::c::memory::Memory;

/// What became of a weight where some are to be kept otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The path of the weight.
    pub weight: Arc<str>,
    /// The elements in which it is kept, or why it is not kept as it was asked for.
    pub outcome: std::result::Result<Element, String>,
    /// Whether it stays as it is by its name, or since it is not a matrix.
    pub is_intended: bool,
    /// Its sizes.
    pub shape: Vec<usize>,
    /// Bytes in which it is kept.
    pub bytes: usize,
}

/// Weights as ggml keeps them, and what follows from them, in one memory: large pages are then filled to their ends.
#[derive(Debug)]
pub struct Packed {
    memory: Memory,
    hosted: BTreeMap<PlanValueId, Arc<Tensor>>,
    bytes: usize,
}

/// Memory with a value of a plan in it.
pub(super) fn kept(tensor: &Tensor, plan: &Plan, v: PlanValueId) -> Result<Memory> {
    let value = &plan.values[v];
    let ty = value.ty.ok_or_else(|| Error::internal("a value that is kept has no type"))?;
    let bytes = ty.bytes() as usize;
    let mut memory = Memory::new(bytes)?;
    // SAFETY: the memory was just made, with at least so many bytes.
    let out = unsafe { convert::bytes_mut(memory.start(), bytes) };
    convert::encode(tensor, &ty, out)?;
    Ok(memory)
}

impl Packed {
    /// Room for so many bytes.
    pub(super) fn new(bytes: usize) -> Result<Self> {
        Ok(Self { memory: Memory::new(bytes)?, hosted: BTreeMap::new(), bytes })
    }
    pub(super) fn start(&mut self) -> *mut c_void {
        self.memory.start()
    }
    /// Keeps a value that steps of the host read.
    pub(super) fn insert_hosted(&mut self, v: PlanValueId, tensor: Arc<Tensor>) {
        self.bytes += tensor.len() * tensor.dtype().size();
        self.hosted.insert(v, tensor);
    }
    pub(super) fn address(&self) -> *const c_void {
        self.memory.address()
    }
    pub(super) fn hosted(&self, v: PlanValueId) -> Option<&Arc<Tensor>> {
        self.hosted.get(&v)
    }
    /// Bytes of all of them.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}
