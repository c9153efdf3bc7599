//! Gradients of the weights of convolutions among the sums of products: they slide the result of a convolution over its
//! image, and sum over images and pixels.

use crate::c::analysis::affine::flat_loads;
use crate::c::analysis::contraction::{Contraction, the_sum};
use crate::c::analysis::convolution::{names, pixels, sliding};
use crate::c::ir::expr::{BufferId, Expr, Index};
use crate::c::ir::program::{KernelCall, KernelMemory, KernelProgram, KernelWork, Nest, Place};
use crate::c::kernels::spec::epilogue::Epilogue;
use crate::c::kernels::spec::strides::Stored;
use crate::c::kernels::weight_gradient::correlation::Correlation;
use crate::c::kernels::weight_gradient::grouped::GroupedCorrelation;
use crate::c::select::context::{SelectionContext, call, is_fixed, operands};
use crate::c::syntax::template::c_type;

/// The gradient of weights that a nest is, if it is one: more pixels are summed over than there are weights.
pub fn correlation(
    program: &KernelProgram,
    nest: &Nest,
    c: &Contraction<'_>,
    making: &mut SelectionContext<'_>,
) -> Option<KernelCall> {
    let (conv, [x, w], vars) = sliding(program, nest, c).filter(|(conv, ..)| conv.stored == Stored::Same)?;
    if conv.depth.is_some() {
        return None;
    }
    let [height, width] = match vars[2..] {
        [y, x] => [y.size as usize, x.size as usize],
        [x] => [1, x.size as usize],
        _ => return None,
    };
    let target = *making.library.target();
    let sums_pixels = conv.kernel.iter().product::<usize>() > height * width;
    let is_grouped = conv.groups > 1;
    let suits = sums_pixels && (is_grouped || Correlation::suits(conv.filters, conv.element, &target));
    if !suits || is_fixed(program, w, making.request) {
        return None;
    }
    // What counts channels of the image counts groups, and images inside of them.
    let images = conv.channels / conv.groups;
    let [(image, image_strides), (result, result_strides)] = if is_grouped {
        [(x, own_planes(program, x)?), (w, own_planes(program, w)?)]
    } else {
        [planes(program, x)?, planes(program, w)?]
    };
    let flat_nest = Nest { value: flat_loads(&nest.value, &program.buffers), ..nest.clone() };
    let names = names(&vars, height, width);
    let epilogue = making.epilogues.add(&program.buffers, &flat_nest, the_sum(&flat_nest.value)?, &names)?;
    let (operands, starts) = operands(&epilogue, |at| pixels(at, &vars, width))?;
    let coordinates: Vec<Index> = nest.vars.iter().map(|&v| Index::var(v)).collect();
    let made = Correlation {
        element: conv.element,
        batch: images,
        channels: conv.batch,
        filters: conv.filters,
        image: conv.image,
        kernel: [height, width],
        result: conv.kernel,
        stride: conv.dilation,
        dilation: conv.stride,
        padding: conv.padding,
        image_strides,
        result_strides,
        out: pixels(&program.buffers[nest.to].position(&coordinates), &vars, width)?,
        out_element: c_type(program.buffers[nest.to].dtype).to_owned(),
        epilogue: Epilogue { operands, expression: epilogue.expression, vectors: epilogue.vectors },
    };
    let (channels, filters, [down, across]) = (made.channels, made.filters, made.result);
    let groups = if is_grouped { format!(" in {} groups", conv.groups) } else { String::new() };
    let kernel = if is_grouped {
        let group_stride = images * made.image_strides[0];
        GroupedCorrelation { of: made, groups: conv.groups, group_stride }.build(making.library)
    } else {
        made.build(making.library)?
    };
    let what = format!(
        "gradient of {height}x{width} weights of {channels} channels to {filters}{groups}, {down}x{across} pixels"
    );
    let work = nest.vars.iter().chain(c.vars).map(|v| v.size as usize).product();
    Some(call(kernel, nest.to, [(image, 0), (result, 0)], starts, what, work))
}

/// Where the planes of a tensor that is indexed [channel, image, …] lie: the buffer, and the elements from one image to the
/// next and from one channel to the next. Of a copy that only changes their order, those of what was copied.
fn planes(program: &KernelProgram, buffer: BufferId) -> Option<(BufferId, [usize; 2])> {
    let (from, order) = copied(program, buffer).unwrap_or((buffer, [0, 1]));
    let of = &program.buffers[from];
    let plane = of.shape[2..].iter().product::<i64>();
    let strides = [plane * of.shape[1], plane];
    let [channel, image] = order.map(|axis| strides[axis] as usize);
    (of.blocks.is_none()).then_some((from, [image, channel]))
}

/// Elements from one image to the next and from one channel to the next of a tensor that is indexed [channel, image, …].
fn own_planes(program: &KernelProgram, buffer: BufferId) -> Option<[usize; 2]> {
    let of = &program.buffers[buffer];
    let plane = of.shape[2..].iter().product::<i64>() as usize;
    of.blocks.is_none().then_some([plane, plane * of.shape[1] as usize])
}

/// The buffer whose planes a buffer holds in another order, and which of its axes the first two axes are; unless it may be
/// changed before the copy is read. Planes are whole: rows of a part of a plane do not lie one after the other.
fn copied(program: &KernelProgram, buffer: BufferId) -> Option<(BufferId, [usize; 2])> {
    let mut makers = program.steps.iter().filter(|step| step.writes().contains(&buffer));
    let (maker, None) = (makers.next()?, makers.next()) else { return None };
    let KernelWork::Nest(nest) = &maker.work else { return None };
    let Expr::Load { from, at, stored } = &nest.value else { return None };
    let [of, to] = [*from, buffer].map(|b| &program.buffers[b]);
    let own: Vec<Index> = nest.vars.iter().map(|&v| Index::var(v)).collect();
    let order = [0, 1].map(|i| at.iter().take(2).position(|index| *index == own[i]));
    let whole = at.len() == own.len() && at[2..] == own[2..] && of.shape[2..] == to.shape[2..];
    let stays = whole && *stored == to.dtype && of.dtype == to.dtype;
    let is_kept =
        matches!(of.place, Place::Memory(KernelMemory::Arena(_)) | Place::Input(_) | Place::Constant(_));
    (stays && is_kept).then_some((*from, [order[0]?, order[1]?]))
}
