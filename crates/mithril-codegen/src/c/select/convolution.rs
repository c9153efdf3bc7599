//! Convolutions among the contractions as kernels: between row-major tensors, between blocked ones, and quantized ones.

use mithril_ir::DType;

use crate::c::analysis::affine::{affine, flat_loads};
use crate::c::analysis::contraction::{Contraction, contraction, the_sum};
use crate::c::analysis::convolution::{Shape, names, pixels, shape};
use crate::c::ir::expr::{BufferId, Expr, Index, Var};
use crate::c::ir::program::{Buffer, KernelCall, KernelProgram, Level, Memory, Nest, Program, Start};
use crate::c::kernels::common::library::Library;
use crate::c::kernels::spec::blocked_conv::{Blocked, Image, Places, span};
use crate::c::kernels::spec::bytes::{AsBytes, InBytes};
use crate::c::kernels::spec::conv::{Algorithm, Conv};
use crate::c::kernels::spec::epilogue::{Epilogue, Operand};
use crate::c::kernels::spec::gemm::Packing;
use crate::c::kernels::spec::strides::{Stored, Strides};
use crate::c::kernels::winograd::build;
use crate::c::request::Request;
use crate::c::select::context::{SelectionContext, call, is_fixed, operands};
use crate::c::select::epilogue::EpilogueFunctions;
use crate::c::select::quantize::{self, InFewBits};
use crate::c::syntax::template::c_type;
use crate::c::target::{Element, Target};

/// The convolution of a nest, as far as it reads or writes blocks.
pub fn blocked_convolution<L: Level>(
    program: &Program<L>,
    nest: &Nest,
    request: &Request,
    library: &Library,
) -> Option<InBlocks> {
    let contraction = contraction(nest)?;
    in_blocks(program, nest, &contraction, request, library.target())
}

/// Results of fewer pixels do not fill the tiles of the kernels for blocks.
const LEAST_PIXELS: usize = 4;

/// The convolution that a nest is, if it is one.
pub fn convolution(
    program: &KernelProgram,
    nest: &Nest,
    c: &Contraction<'_>,
    making: &mut SelectionContext<'_>,
) -> Option<KernelCall> {
    let (mut conv, [x, w], vars) = shape(program, nest, c)?;
    let [height, width] = conv.result();
    let [taps, frames] =
        conv.depth.map_or_else(Default::default, |d| [d.kernel, d.result].map(|n| format!("{n}x")));
    let what = format!(
        "convolution of {} channels to {}, {taps}{}x{} weights, {frames}{height}x{width} pixels",
        conv.channels, conv.filters, conv.kernel[0], conv.kernel[1]
    );
    let work = nest.vars.iter().chain(c.vars).map(|v| v.size as usize).product();
    let few = quantize::convolution(program, [x, w], &conv, making.request);
    let in_blocks = [nest.to, x].iter().any(|&b| program.buffers[b].blocks.is_some());
    let is_whole = matches!(few, Some(Ok(few)) if few.is_whole());
    if in_blocks || is_whole || (conv.groups == 1 && matches!(few, Some(Ok(_)))) {
        let target = *making.library.target();
        let shape = (conv.clone(), [x, w], vars.clone());
        let blocked = in_blocks_of(program, nest, &shape, making.request, &target, making.epilogues);
        if let Some(blocked) = blocked {
            let inputs = [(x, blocked.start(making.library)?), (w, 0)];
            let kernel = match few {
                Some(Ok(few)) if few.is_whole() => blocked.conv.quantized(few.range(), making.library),
                _ => blocked.conv.build(making.library),
            };
            if let Some(outcome) = few.filter(|_| making.request.options.quantize.is_some()) {
                let together = if is_whole { 1 } else { blocked.conv.together(target.lanes) };
                let kept = (blocked.conv.terms(together), kernel.packed_bytes);
                quantize::decided(program, w, &conv, outcome, kept, making.decisions);
            }
            return Some(call(kernel, nest.to, inputs, blocked.operands, what, work));
        }
        if in_blocks {
            return None;
        }
    }
    if conv.depth.is_some() || conv.stored != Stored::Same {
        return None;
    }
    if few.is_none() && conv.groups == 1 && conv.kernel == [1, 1] && height * width == 1 {
        // Images of one pixel are the rows of a matrix.
        return None;
    }
    let few = few.map(|blocked| blocked.map(InFewBits::weights));
    let flat_nest = Nest { value: flat_loads(&nest.value, &program.buffers), ..nest.clone() };
    let names = names(&vars, height, width);
    let epilogue = making.epilogues.add(&program.buffers, &flat_nest, the_sum(&flat_nest.value)?, &names)?;
    let (operands, starts) = operands(&epilogue, |at| pixels(at, &vars, width))?;
    let coordinates: Vec<Index> = nest.vars.iter().map(|&v| Index::var(v)).collect();
    conv.out = pixels(&program.buffers[nest.to].position(&coordinates), &vars, width)?;
    c_type(program.buffers[nest.to].dtype).clone_into(&mut conv.out_element);
    let is_ahead = is_fixed(program, w, making.request);
    conv.packing = if is_ahead { Packing::Ahead } else { Packing::Running };
    conv.epilogue = Epilogue { operands, expression: epilogue.expression, vectors: epilogue.vectors };
    conv.few_bits = few.as_ref().and_then(|blocked| blocked.as_ref().ok()).copied();
    let kernel = conv.build(making.library);
    if let Some(outcome) = few {
        let terms = vec![(conv.channels / conv.groups * conv.kernel[0] * conv.kernel[1], 1)];
        let kept = (terms, kernel.packed_bytes);
        quantize::decided(program, w, &conv, outcome.map(InFewBits::Weights), kept, making.decisions);
    }
    Some(call(kernel, nest.to, [(x, 0), (w, 0)], starts, what, work))
}

/// The buffer of the image and its range, if it is known, of a convolution that is done in integers.
pub fn in_whole_numbers<L: Level>(
    program: &Program<L>,
    nest: &Nest,
    c: &Contraction<'_>,
    request: &Request,
) -> Option<(BufferId, Option<[f32; 2]>)> {
    let (conv, [x, w], _) = shape(program, nest, c)?;
    if conv.depth.is_some() {
        return None;
    }
    let few = quantize::convolution(program, [x, w], &conv, request)?.ok()?;
    few.is_whole().then(|| (x, few.range()))
}

/// A convolution that reads or writes blocks of channels.
pub struct InBlocks {
    /// The buffer of the image.
    pub image: BufferId,
    conv: Blocked,
    size: [usize; 2],
    padding: [[usize; 2]; 2],
    /// Where in the image's buffer its first element lies, behind the halo.
    first: usize,
    operands: Vec<Start>,
}

impl InBlocks {
    /// Whether it is estimated to gain by reading bfloat16, not float32 copies.
    pub fn gains_by_halves(&self, target: &Target) -> bool {
        // Processors with tiles multiply pairs in vectors more slowly than floats.
        self.conv.is_depth()
            || self.conv.uses_tiles(target)
            || (!target.tiles.bf16 && build::gains_by_pairs(&self.conv, target))
    }
    /// Rows and pixels of zeros that it wants around its image.
    pub fn halo(&self, library: &Library) -> [[usize; 2]; 2] {
        self.conv.halo(self.size, self.padding, library)
    }
    /// Frames of zeros that it wants in front and behind.
    pub fn frames(&self) -> [usize; 2] {
        self.conv.depth.map_or([0; 2], |depth| depth.padding)
    }
    /// Where the kernel starts: at the element under the first weight at the first pixel, or along axes whose halo it does
    /// not read at the first pixel.
    fn start(&self, library: &Library) -> Option<usize> {
        self.start_behind(self.conv.zeros_before(self.padding, library))
    }
    /// Where the element lies that has so many rows and pixels between itself and the first one of the image.
    fn start_behind(&self, [above, left]: [usize; 2]) -> Option<usize> {
        match self.conv.image {
            Image::Plain(..) => Some(0),
            Image::Blocks(places) => {
                let front = self.conv.depth.map_or(0, |d| d.padding[0] * (places.frames[1] / d.stride));
                self.first.checked_sub(front + above * places.y + left * places.x)
            }
        }
    }
}

/// The convolution that a nest is, if image or result lie in blocks and it can work so.
pub fn in_blocks<L: Level>(
    program: &Program<L>,
    nest: &Nest,
    c: &Contraction<'_>,
    request: &Request,
    target: &Target,
) -> Option<InBlocks> {
    let shape = shape(program, nest, c)?;
    in_blocks_of(program, nest, &shape, request, target, &mut EpilogueFunctions::default())
}

fn in_blocks_of<L: Level>(
    program: &Program<L>,
    nest: &Nest,
    (conv, [x, w], vars): &Shape,
    request: &Request,
    target: &Target,
    epilogues: &mut EpilogueFunctions,
) -> Option<InBlocks> {
    let [image, to] = [*x, nest.to].map(|b| &program.buffers[b]);
    let lanes = target.lanes_of(conv.element);
    let few = quantize::convolution(program, [*x, *w], conv, request).and_then(Result::ok);
    let is_depth = is_in_float_groups(conv, few);
    if !has_kernel(conv, few, [image, to], lanes) {
        return None;
    }
    let [height, width] = conv.result();
    let is_worth_it = height * width >= LEAST_PIXELS && is_fixed(program, *w, request);
    if (few.is_none() || is_depth) && !is_worth_it {
        return None;
    }
    let places = |at: &Index| places(at, program.next_var, vars, conv.filters, lanes);
    let flat_nest = Nest { value: flat_loads(&nest.value, &program.buffers), ..nest.clone() };
    let names = names(vars, height, width);
    let epilogue = epilogues.add(&program.buffers, &flat_nest, the_sum(&flat_nest.value)?, &names)?;
    let (mut operands, mut strides, mut starts) = (vec![], vec![], vec![]);
    for load in &epilogue.loads {
        let Expr::Load { from, at, stored } = load else { return None };
        let place = places(&at[0])?;
        operands.push(Operand { element: c_type(*stored).to_owned(), strides: Strides::default() });
        starts.push((*from, place.base));
        strides.push(Places { base: 0, ..place });
    }
    let coordinates: Vec<Index> = nest.vars.iter().map(|&v| Index::var(v)).collect();
    let (source, first) = image_of(conv, image);
    let made = Blocked {
        element: conv.element,
        stored: conv.stored,
        batch: conv.batch * conv.depth.map_or(1, |depth| depth.result),
        channels: conv.channels * conv.depth.filter(|_| !is_depth).map_or(1, |depth| depth.kernel),
        filters: conv.filters,
        groups: conv.groups,
        kernel: conv.kernel,
        stride: conv.stride,
        dilation: conv.dilation,
        result: [height, width],
        depth: conv.depth,
        edges: Some([0, 1].map(|axis| [conv.image[axis], conv.padding[axis][0]])),
        image: source,
        out: places(&to.position(&coordinates))?,
        out_element: c_type(to.dtype).to_owned(),
        out_is_bf16: to.dtype == DType::BF16,
        epilogue: Epilogue { operands, expression: epilogue.expression, vectors: epilogue.vectors },
        operands: strides,
        algorithm: if few.is_some() { Algorithm::Direct } else { conv.algorithm },
        few_bits: few.map(InFewBits::weights),
        bytes: InBytes {
            image: None,
            out: to.blocks.and_then(|blocks| AsBytes::of(&blocks, &to.shape, 0)),
            of_integers: matches!(few, Some(InFewBits::Integers(_))),
        },
    };
    let mut in_blocks =
        InBlocks { image: *x, conv: made, size: conv.image, padding: conv.padding, first, operands: starts };
    let before = in_blocks.padding.map(|[before, _]| before);
    if let (Some(blocks), Some(start)) = (image.blocks, in_blocks.start_behind(before)) {
        in_blocks.conv.bytes.image = AsBytes::of(&blocks, &image.shape, start);
    }
    Some(in_blocks)
}

/// Whether a convolution has groups that are computed in float.
fn is_in_float_groups(conv: &Conv, few: Option<InFewBits>) -> bool {
    conv.groups > 1 && !few.is_some_and(InFewBits::is_whole)
}

/// Whether a kernel reads this image and writes this result, in blocks or not.
fn has_kernel<M: Memory>(
    conv: &Conv,
    few: Option<InFewBits>,
    [image, to]: [&Buffer<M>; 2],
    lanes: usize,
) -> bool {
    let is_depth = is_in_float_groups(conv, few);
    let is_paired = conv.stored != Stored::Same;
    if is_paired && (few.is_some() || image.blocks.is_none() || !takes_halves(conv)) {
        return false;
    }
    if (few.is_some() && conv.depth.is_some()) || (!is_depth && conv.depth.is_some_and(|d| d.has_gaps())) {
        return false;
    }
    match (image.blocks.is_some(), to.blocks.is_some()) {
        (true, true) => !is_depth || is_by_channels(conv) || (few.is_none() && is_by_blocks(conv, lanes)),
        (false, false) => few.is_some() && !is_depth,
        _ => !is_depth,
    }
}

/// Whether kernels read an image of this kind in 16 bits: as bfloat16, whose pairs are multiplied at once, unless each
/// channel is by itself.
fn takes_halves(conv: &Conv) -> bool {
    conv.element == Element::F32 && conv.stored == Stored::BF16
}

/// Whether each channel is convolved by itself.
fn is_by_channels(conv: &Conv) -> bool {
    conv.groups == conv.channels && conv.groups == conv.filters
}

/// Whether blocks of filters read whole blocks of channels of an image.
fn is_by_blocks(conv: &Conv, lanes: usize) -> bool {
    let sizes = [conv.channels, conv.filters, conv.groups];
    conv.depth.is_none() && span(sizes, conv.kernel.iter().product(), lanes).is_some()
}

/// How an image lies, and where its first element is, behind the halo.
fn image_of<M: Memory>(conv: &Conv, image: &Buffer<M>) -> (Image, usize) {
    let Some(blocks) = image.blocks else { return (Image::Plain(conv.image, conv.padding), 0) };
    let (row, plane) = (blocks.row(&image.shape) as usize, blocks.plane(&image.shape) as usize);
    let lanes = blocks.lanes as usize;
    let (frame, batch) = (blocks.frame(&image.shape) as usize, blocks.image(&image.shape) as usize);
    let first = blocks.frame_halo[0] as usize * frame
        + blocks.halo[0][0] as usize * row
        + blocks.halo[1][0] as usize * lanes;
    let frames = conv.depth.map_or([0; 2], |depth| [depth.result, depth.stride * frame]);
    (Image::Blocks(Places { batch, block: plane, lane: 1, y: row, x: lanes, base: 0, frames }), first)
}

/// A position in images, blocks of filters, lanes, rows and pixels; `next` is the next number of a variable.
fn places(at: &Index, next: u32, vars: &[Var], filters: usize, lanes: usize) -> Option<Places> {
    let unit = |id: u32| Var { id: next + id, size: 1 };
    let (batch, filter, z, y, x) = match *vars {
        [batch, filter, z, y, x] => (batch, filter, z, y, x),
        [batch, filter, y, x] => (batch, filter, unit(3), y, x),
        [batch, filter, x] => (batch, filter, unit(3), unit(2), x),
        _ => return None,
    };
    let block = Var { id: next, size: filters.div_ceil(lanes) as i64 };
    let lane = Var { id: next + 1, size: lanes as i64 };
    let split = |v: Var| match v {
        v if v == filter => Index::var(block) * lane.size + Index::var(lane),
        v => Index::var(v),
    };
    let (factors, base) = affine(&at.substitute(&split), &[batch, block, lane, z, y, x])?;
    let &[batch, block, lane, frame, y, x] = factors.as_slice() else { return None };
    let frames = if vars.len() == 5 { [z.size as usize, frame] } else { [0; 2] };
    Some(Places { batch, block, lane, y, x, base, frames })
}
