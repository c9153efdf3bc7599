//! Half layout: convolutions between blocks of channels read bfloat16 as it is stored, not float32 copies of it. Two channels
//! of a block are then a pair, which processors with such an instruction multiply and add at once; where each channel is
//! convolved by itself, numbers become float32 as they are read.
//!
//! Copies that nothing reads any more are removed later, by dead-code elimination.

use mithril_ir::DType;

use crate::c::analysis::contraction::contraction;
use crate::c::analysis::convolution::shape;
use crate::c::ir::expr::{BufferId, Expr, Index};
use crate::c::ir::program::{LoopProgram, LoopWork, Nest};
use crate::c::kernels::common::library::Library;
use crate::c::request::Request;
use crate::c::select::convolution::blocked_convolution;

/// Lets convolutions read the bfloat16 of which their images are copies.
pub fn lay_out(program: &mut LoopProgram, request: &Request, library: &Library) {
    for step in program.steps.ids() {
        let LoopWork::Nest(nest) = &program.steps[step].work else { continue };
        if let Some(nest) = reading_halves(program, nest, request, library) {
            program.steps[step].work = LoopWork::Nest(nest);
        }
    }
}

/// The convolution that reads what its image is a copy of; `None` where it has to read the copy.
fn reading_halves(program: &LoopProgram, nest: &Nest, request: &Request, library: &Library) -> Option<Nest> {
    let (conv, [image, weights], _) = shape(program, nest, &contraction(nest)?)?;
    program.buffers[image].blocks?;
    if !conv.is_depth() && (!request.target.has_bf16 || !is_exact(program, weights)) {
        return None;
    }
    let half = copied(program, image)?;
    let value = nest.value.map_loads(&|from, at, stored| match from {
        from if from == image => Expr::Load { from: half, at, stored: DType::BF16 },
        from => Expr::Load { from, at, stored },
    });
    let nest = Nest { value, ..nest.clone() };
    let conv = blocked_convolution(program, &nest, request, library)?;
    conv.gains_by_halves(library.target()).then_some(nest)
}

/// The only nest that writes a buffer, when packing or at every call.
fn writer(program: &LoopProgram, buffer: BufferId) -> Option<&Nest> {
    let mut steps =
        program.prepacking.iter().chain(&program.steps).filter(|step| step.writes().contains(&buffer));
    match (steps.next().map(|step| &step.work), steps.next()) {
        (Some(LoopWork::Nest(nest)), None) => Some(nest),
        _ => None,
    }
}

/// The bfloat16 in blocks that a tensor is a copy of.
fn copied(program: &LoopProgram, buffer: BufferId) -> Option<BufferId> {
    let Nest { vars, value, .. } = writer(program, buffer)?;
    let Expr::Load { from, at, stored: DType::BF16 } = value else { return None };
    let is_whole = at.iter().zip(vars).all(|(index, &v)| v.size == 1 || *index == Index::var(v));
    let [source, to] = [*from, buffer].map(|b| &program.buffers[b]);
    let lies_alike = source.blocks.is_some() && source.shape == to.shape;
    (is_whole && lies_alike && writer(program, *from).is_some()).then_some(*from)
}

/// Whether all numbers of a tensor are bfloat16.
fn is_exact(program: &LoopProgram, buffer: BufferId) -> bool {
    match writer(program, buffer).map(|nest| &nest.value) {
        Some(Expr::Load { stored: DType::BF16, .. }) => true,
        Some(Expr::Load { from, .. }) => is_exact(program, *from),
        _ => false,
    }
}
