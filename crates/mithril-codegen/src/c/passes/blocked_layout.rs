//! Blocked layout (NCHWc): temporaries that convolutions read and write are stored in blocks of as many channels as a vector
//! has lanes. A convolution then copies nothing, and elementwise steps between two of them work on the same vectors.
//!
//! Only the layout changes: nests still index images, channels, rows and pixels. `halo.rs` adds the zeros around each image that
//! consumers read, and `byte_layout.rs` stores tensors between quantized convolutions as bytes.

use mithril_ir::DType;

use crate::c::analysis::contraction::contraction;
use crate::c::analysis::convolution::shape as convolution_shape;
use crate::c::ir::expr::{BufferId, Expr, Index};
use crate::c::ir::layout::Blocks;
use crate::c::ir::program::{LoopBuffer, LoopProgram, LoopWork, Nest};
use crate::c::kernels::common::library::Library;
use crate::c::request::Request;
use crate::c::select::convolution::blocked_convolution;
use crate::c::target::Element;
use crate::ids::Table;

/// Decides which temporaries are stored in blocked layout.
pub fn lay_out(program: &mut LoopProgram, request: &Request, library: &Library) {
    let volumes = volumes(program);
    drop_unit_axes(program, &volumes);
    for buffer in &mut program.buffers {
        buffer.blocks = could_be(buffer, !volumes.is_empty(), library);
    }
    while let Some(buffers) = unsuitable(program, request, library) {
        for b in buffers {
            program.buffers[b].blocks = None;
        }
    }
}

/// Drops axes of size 1 behind the channels of temporaries that otherwise have images, channels, rows and pixels: fusion may
/// have moved a convolution into a nest that enlarges its result.
fn drop_unit_axes(program: &mut LoopProgram, volumes: &[BufferId]) {
    let in_calls: Vec<BufferId> = program
        .steps
        .iter()
        .filter(|step| !matches!(step.work, LoopWork::Nest(_)))
        .flat_map(|step| step.reads().into_iter().chain(step.writes()))
        .collect();
    for b in program.buffers.ids() {
        let buffer = &program.buffers[b];
        let units = (2..buffer.shape.len()).filter(|&i| buffer.shape[i] == 1);
        let gone: Vec<usize> = units.take(buffer.shape.len().saturating_sub(4)).collect();
        if !buffer.is_temporary()
            || volumes.contains(&b)
            || gone.is_empty()
            || buffer.shape.len() - gone.len() != 4
            || in_calls.contains(&b)
        {
            continue;
        }
        drop_axes(&mut program.buffers[b].shape, &gone);
        for step in &mut program.steps {
            let LoopWork::Nest(nest) = &mut step.work else { continue };
            if nest.to == b {
                drop_axes(&mut nest.vars, &gone);
            }
            nest.value = nest.value.map_loads(&|from, mut at, stored| {
                if from == b {
                    drop_axes(&mut at, &gone);
                }
                Expr::Load { from, at, stored }
            });
        }
    }
}

/// The tensors that convolutions of volumes read and write.
fn volumes(program: &LoopProgram) -> Vec<BufferId> {
    let nests = program.steps.iter().filter_map(|step| match &step.work {
        LoopWork::Nest(nest) => Some((step, nest)),
        LoopWork::Call(_) => None,
    });
    let of_volumes = |nest: &Nest| {
        let (conv, ..) = convolution_shape(program, nest, &contraction(nest)?)?;
        conv.depth
    };
    let convolutions = nests.filter(|(_, nest)| nest.vars.len() == 5 && of_volumes(nest).is_some());
    convolutions.flat_map(|(step, _)| step.reads().into_iter().chain(step.writes())).collect()
}

fn drop_axes<T>(of: &mut Vec<T>, gone: &[usize]) {
    for &i in gone.iter().rev() {
        of.remove(i);
    }
}

/// Blocks without a halo, if the tensor can be stored in blocks at all.
fn could_be(buffer: &LoopBuffer, with_volumes: bool, library: &Library) -> Option<Blocks> {
    let element = if matches!(buffer.dtype, DType::F16 | DType::BF16) {
        Element::F32
    } else {
        Element::of(buffer.dtype)?
    };
    let lanes = library.target().lanes_of(element) as i64;
    let is_image = buffer.shape.len() == 4 || (buffer.shape.len() == 5 && with_volumes);
    let fits = buffer.is_temporary() && is_image && buffer.count() > 0;
    (fits && lanes > 1 && buffer.shape[1] % lanes == 0).then(|| Blocks::of(lanes))
}

/// Tensors in blocks that have to be row-major after all, since a step cannot work on blocks.
fn unsuitable(program: &LoopProgram, request: &Request, library: &Library) -> Option<Vec<BufferId>> {
    let is_blocked = |b: &BufferId| program.buffers[*b].blocks.is_some();
    let mut of_convolutions: Table<BufferId, bool> = Table::beside(&program.buffers, false);
    for step in &program.steps {
        let touched: Vec<BufferId> =
            step.reads().into_iter().chain(step.writes()).filter(is_blocked).collect();
        if touched.is_empty() {
            continue;
        }
        let suits = match &step.work {
            LoopWork::Nest(nest) if contraction(nest).is_none() => !looks_up_channels(nest),
            LoopWork::Nest(nest) => match blocked_convolution(program, nest, request, library) {
                Some(convolution) => {
                    of_convolutions[convolution.image] = true;
                    of_convolutions[nest.to] = true;
                    true
                }
                None => false,
            },
            LoopWork::Call(_) => false,
        };
        if !suits {
            return Some(touched);
        }
    }
    while propagate(program, &mut of_convolutions) {}
    let idle: Vec<BufferId> =
        (program.buffers.ids()).filter(|b| is_blocked(b) && !of_convolutions[*b]).collect();
    (!idle.is_empty()).then_some(idle)
}

/// Marks the tensors in blocks that a step computes from marked ones, or marked ones from, channel for channel; whether there
/// were any: the layout would otherwise change between them.
fn propagate(program: &LoopProgram, marked: &mut Table<BufferId, bool>) -> bool {
    let mut is_new = false;
    for step in &program.steps {
        let LoopWork::Nest(nest) = &step.work else { continue };
        if program.buffers[nest.to].blocks.is_none() {
            continue;
        }
        let mut linked = vec![nest.to];
        nest.value.walk(&mut |e| {
            if let Expr::Load { from, at, .. } = e
                && program.buffers[*from].blocks.is_some()
                && at[1].factor(nest.vars[1]) == Some(1)
            {
                linked.push(*from);
            }
        });
        if linked.iter().any(|&b| marked[b]) {
            for b in linked {
                is_new |= !marked[b];
                marked[b] = true;
            }
        }
    }
    is_new
}

/// Whether images or channels are looked up; rows and pixels may be, as for resizing.
fn looks_up_channels(nest: &Nest) -> bool {
    let mut looks_up = false;
    nest.value.walk(&mut |e| {
        looks_up |= match e {
            Expr::Load { at, .. } if at.len() > 2 => at[..2].iter().any(Index::reads),
            _ => e.indices().iter().any(|index| index.reads()),
        }
    });
    looks_up
}
