//! Byte layout: temporaries in blocked layout that a quantized convolution writes and only quantized convolutions read are
//! stored as bytes if the range of their values is known. Images then need not be quantized first, and a quarter of the
//! bytes is written and read.
//!
//! Consumers read words of four channels: all channels of a pixel are adjacent.

use mithril_ir::DType;

use crate::c::analysis::contraction::contraction;
use crate::c::ir::expr::BufferId;
use crate::c::ir::layout::{Blocks, Bytes};
use crate::c::ir::program::{LoopProgram, LoopWork, Nest};
use crate::c::kernels::common::library::Library;
use crate::c::request::Request;
use crate::c::select::convolution::{self, blocked_convolution};

/// Decides which temporaries in blocked layout are stored as bytes.
pub fn lay_out(program: &mut LoopProgram, request: &Request, library: &Library) {
    if program.integers.is_empty()
        && request.options.quantize.as_ref().is_none_or(|quantize| quantize.ranges.is_empty())
    {
        return;
    }
    for step in program.steps.ids() {
        let LoopWork::Nest(Nest { to, .. }) = program.steps[step].work else { continue };
        let Some(bytes) = bytes_of(program, to, request) else { continue };
        let before = program.buffers[to].clone();
        let buffer = &mut program.buffers[to];
        let lanes = buffer.shape[1];
        buffer.blocks = Some(Blocks { bytes: Some(bytes), ..Blocks::of(lanes) });
        buffer.dtype = DType::U8;
        if !has_kernels(program, to, request, library) {
            program.buffers[to] = before;
        }
    }
}

/// The quantization of a temporary as bytes, if all of its consumers have the same known range.
fn bytes_of(program: &LoopProgram, buffer: BufferId, request: &Request) -> Option<Bytes> {
    let of = &program.buffers[buffer];
    if of.dtype != DType::F32 || of.blocks.is_none() {
        return None;
    }
    let mut known = None;
    for step in &program.steps {
        let (reads, writes) = (step.reads().contains(&buffer), step.writes().contains(&buffer));
        if !reads && !writes {
            continue;
        }
        let LoopWork::Nest(nest) = &step.work else { return None };
        let (image, range) = convolution::in_whole_numbers(program, nest, &contraction(nest)?, request)?;
        let is_other = known.is_some() && known != range;
        if reads && (writes || image != buffer || loads(nest, buffer) != 1 || is_other) {
            return None;
        }
        if reads {
            known = Some(range?);
        }
    }
    let nan_flags = of.shape[1] / request.target.lanes as i64 * of.shape[2];
    Some(Bytes { range: known?, nan_flags })
}

/// How often a nest reads a buffer.
fn loads(nest: &Nest, buffer: BufferId) -> usize {
    nest.reads().iter().filter(|read| **read == buffer).count()
}

/// Whether there are kernels for all steps that use a buffer.
fn has_kernels(program: &LoopProgram, buffer: BufferId, request: &Request, library: &Library) -> bool {
    let users =
        program.steps.iter().filter(|step| step.reads().contains(&buffer) || step.writes().contains(&buffer));
    users
        .map(|step| &step.work)
        .all(|work| matches!(work, LoopWork::Nest(nest) if blocked_convolution(program, nest, request, library).is_some()))
}
