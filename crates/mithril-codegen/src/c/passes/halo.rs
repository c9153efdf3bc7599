//! Halos: the zeros around images in blocked layout that convolutions read beyond their edges.

use mithril_ir::DType;

use crate::c::ir::layout::Blocks;
use crate::c::ir::program::{KernelBuffer, KernelProgram, LoopProgram, LoopWork};
use crate::c::kernels::blocked_conv::halo::Halo;
use crate::c::kernels::common::library::Library;
use crate::c::kernels::spec::bytes::AsBytes;
use crate::c::kernels::spec::strides::Stored;
use crate::c::request::Request;
use crate::c::select::convolution::blocked_convolution;
use crate::c::target::Element;

/// Makes the halo of each tensor as large as its consumers need.
pub fn grow(program: &mut LoopProgram, request: &Request, library: &Library) {
    for step in program.steps.ids() {
        let LoopWork::Nest(nest) = &program.steps[step].work else { continue };
        let Some(conv) = blocked_convolution(program, nest, request, library) else { continue };
        let (buffer, halo, frames) = (conv.image, conv.halo(library), conv.frames());
        if let Some(blocks) = &mut program.buffers[buffer].blocks {
            for (size, needed) in blocks.frame_halo.iter_mut().zip(frames) {
                *size = (*size).max(needed as i64);
            }
            for (size, needed) in blocks.halo.iter_mut().flatten().zip(halo.as_flattened()) {
                *size = (*size).max(*needed as i64);
            }
        }
    }
}

/// Adds the functions that fill the halos.
pub fn fill(program: &mut KernelProgram, library: &mut Library) {
    for b in program.buffers.ids() {
        if let Some(halo) = of(&program.buffers[b]) {
            program.info.halos.insert(b, halo.build(library));
        }
    }
}

fn of(buffer: &KernelBuffer) -> Option<Halo> {
    let blocks = buffer.blocks.filter(Blocks::has_halo)?;
    let size = |n: i64| n as usize;
    let [_, channels, .., height, width] = buffer.shape[..] else { return None };
    let of_frame = size(channels / blocks.lanes);
    let [front, behind] = blocks.frame_halo;
    let frames =
        (blocks.frame_halo != [0; 2]).then(|| (of_frame, [front, buffer.shape[2], behind].map(size)));
    let is_half = matches!(buffer.dtype, DType::F16 | DType::BF16);
    Some(Halo {
        element: if blocks.bytes.is_some() || is_half { Element::F32 } else { Element::of(buffer.dtype)? },
        stored: if is_half { Stored::BF16 } else { Stored::Same },
        bytes: AsBytes::of(&blocks, &buffer.shape, 0),
        planes: size(buffer.shape[0] * blocks.frames(&buffer.shape)) * of_frame,
        frames,
        plane: size(blocks.plane(&buffer.shape)),
        size: [height, width].map(size),
        halo: blocks.halo.map(|side| side.map(size)),
        lanes: size(blocks.lanes),
    })
}
