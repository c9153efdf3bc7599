//! Byte layout, a part of the blocked layout: temporaries that a quantized convolution writes and only quantized convolutions
//! read lie as bytes if the range of their values is known. Images then need not be quantized first, and a quarter of the
//! bytes is written and read.
//!
//! Consumers read words of four channels: all channels of a pixel are adjacent.

use mithril_ir::DType;

use crate::c::analysis::contraction::contraction;
use crate::c::ir::expr::{BufferId, Expr};
use crate::c::ir::layout::{Blocks, Bytes};
use crate::c::ir::program::{LoopProgram, LoopWork, Nest};
use crate::c::kernels::common::library::Library;
use crate::c::options::Options;
use crate::c::select::convolution::{self, blocked_convolution};

/// Decides which temporaries that lie in blocks lie as bytes.
pub fn lay_out(program: &mut LoopProgram, options: &Options, library: &Library) {
    if program.integers.is_empty() && options.quantize.as_ref().is_none_or(|wanted| wanted.ranges.is_empty())
    {
        return;
    }
    for step in program.steps.ids() {
        let LoopWork::Nest(Nest { to, .. }) = program.steps[step].work else { continue };
        let Some(bytes) = wanted(program, to, options) else { continue };
        let before = program.buffers[to].clone();
        let buffer = &mut program.buffers[to];
        let lanes = buffer.shape[1];
        buffer.blocks = Some(Blocks { bytes: Some(bytes), ..Blocks::of(lanes) });
        buffer.dtype = DType::U8;
        if !suits(program, to, options, library) {
            program.buffers[to] = before;
        }
    }
}

/// How a temporary is to lie as bytes: as all who read it know its range.
fn wanted(program: &LoopProgram, buffer: BufferId, options: &Options) -> Option<Bytes> {
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
        let (image, range) = convolution::in_whole_numbers(program, nest, &contraction(nest)?, options)?;
        let is_other = known.is_some() && known != range;
        if reads && (writes || image != buffer || loads(nest, buffer) != 1 || is_other) {
            return None;
        }
        if reads {
            known = Some(range?);
        }
    }
    let notes = of.shape[1] / options.target.lanes as i64 * of.shape[2];
    Some(Bytes { range: known?, notes })
}

/// How often a nest names a buffer.
fn loads(nest: &Nest, buffer: BufferId) -> usize {
    let mut found = 0;
    nest.value.walk(&mut |e| found += usize::from(matches!(e, Expr::Load { from, .. } if *from == buffer)));
    found
}

/// Whether kernels are made for all steps that touch a buffer.
fn suits(program: &LoopProgram, buffer: BufferId, options: &Options, library: &Library) -> bool {
    let touch =
        program.steps.iter().filter(|step| step.reads().contains(&buffer) || step.writes().contains(&buffer));
    touch
        .map(|step| &step.work)
        .all(|work| matches!(work, LoopWork::Nest(nest) if blocked_convolution(program, nest, options, library).is_some()))
}
