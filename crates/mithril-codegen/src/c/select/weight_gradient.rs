//! Gradients of the weights of convolutions among the sums of products: they slide the result of a convolution over its
//! image, and sum over images and pixels.

use crate::c::analysis::affine::{affine, flat_loads};
use crate::c::analysis::contraction::{Contraction, the_sum};
use crate::c::analysis::convolution::{Shape, names, pixels, sliding};
use crate::c::ir::expr::{BufferId, Expr, Index, Var};
use crate::c::ir::program::{
    KernelCall, KernelMemory, KernelProgram, KernelWork, Level, Nest, Place, Program,
};
use crate::c::kernels::spec::epilogue::Epilogue;
use crate::c::kernels::spec::strides::Stored;
use crate::c::kernels::weight_gradient::correlation::Correlation;
use crate::c::kernels::weight_gradient::grouped::GroupedCorrelation;
use crate::c::select::context::{SelectionContext, call, is_fixed, operands};
use crate::c::syntax::template::c_type;
use crate::c::target::Target;

/// Whether a nest is a gradient of weights of a shape that the kernels suit. [`correlation`] may still decline it for how its
/// tensors lie.
pub fn is_weight_gradient<L: Level>(
    program: &Program<L>,
    nest: &Nest,
    c: &Contraction<'_>,
    target: &Target,
) -> bool {
    sums_of_pixels(program, nest, c, target).is_some()
}

/// The gradient of weights that a nest is, as a convolution by the result of one; with the height and width of the
/// weights. More pixels are summed over than there are weights.
fn sums_of_pixels<L: Level>(
    program: &Program<L>,
    nest: &Nest,
    c: &Contraction<'_>,
    target: &Target,
) -> Option<(Shape, [usize; 2])> {
    let shape = sliding(program, nest, c)?;
    let (conv, _, vars) = &shape;
    if conv.stored != Stored::Same || conv.depth.is_some() {
        return None;
    }
    let [height, width] = match vars[2..] {
        [y, x] => [y.size as usize, x.size as usize],
        [x] => [1, x.size as usize],
        _ => return None,
    };
    let sums_pixels = conv.kernel.iter().product::<usize>() > height * width;
    let fills_vectors = conv.groups > 1 || Correlation::suits(conv.filters, conv.element, target);
    (sums_pixels && fills_vectors).then_some((shape, [height, width]))
}

/// The gradient of weights that a nest is, if it is one.
pub fn correlation(
    program: &KernelProgram,
    nest: &Nest,
    c: &Contraction<'_>,
    making: &mut SelectionContext<'_>,
) -> Option<KernelCall> {
    let target = *making.library.target();
    let ((conv, [x, w], vars), [height, width]) = sums_of_pixels(program, nest, c, &target)?;
    if is_fixed(program, w, making.request) {
        return None;
    }
    let is_grouped = conv.groups > 1;
    // What counts channels of the image counts groups, and images inside of them.
    let images = conv.channels / conv.groups;
    let (image, image_strides, group_stride) = planes(program, x, conv.groups)?;
    let (result, result_strides, _) = planes(program, w, 1)?;
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

/// Where the planes of a tensor that is indexed [channel, group and image, …] lie: the buffer; the elements from one image to
/// the next and from one channel to the next; and from one group to the next. Of a copy that only changes their order, those
/// of what was copied.
fn planes(program: &KernelProgram, buffer: BufferId, groups: usize) -> Option<(BufferId, [usize; 2], usize)> {
    let shape = &program.buffers[buffer].shape;
    let vars: Vec<Var> = shape.iter().zip(program.next_var..).map(|(&size, id)| Var { id, size }).collect();
    let own = || (buffer, vars.iter().map(|&v| Index::var(v)).collect());
    let strides = |(from, at): (BufferId, Vec<Index>)| {
        let of = &program.buffers[from];
        let group = Var { id: vars[0].id + vars.len() as u32, size: groups as i64 };
        let image = Var { id: group.id + 1, size: vars[1].size / group.size };
        let number = Index::var(group) * image.size + Index::var(image);
        let place =
            of.position(&at).substitute(&|v| if v == vars[1] { number.clone() } else { Index::var(v) });
        let all = [&[vars[0], group, image], &vars[2..]].concat();
        let (factors, constant) = affine(&place, &all)?;
        let rows = (2..shape.len()).map(|i| shape[i + 1..].iter().product::<i64>() as usize);
        let is_plane = rows.zip(&factors[3..]).zip(&vars[2..]).all(|((row, &f), v)| v.size == 1 || f == row);
        let [channel, group, image] = [0, 1, 2].map(|i| factors[i]);
        (of.blocks.is_none() && constant == 0 && is_plane).then_some((from, [image, channel], group))
    };
    copied(program, buffer, &vars).and_then(strides).or_else(|| strides(own()))
}

/// What the element of a copy at these places was copied from: the buffer and the place in it; unless it may be changed
/// before the copy is read.
fn copied(program: &KernelProgram, buffer: BufferId, vars: &[Var]) -> Option<(BufferId, Vec<Index>)> {
    let mut makers = program.steps.iter().filter(|step| step.writes().contains(&buffer));
    let (maker, None) = (makers.next()?, makers.next()) else { return None };
    let KernelWork::Nest(nest) = &maker.work else { return None };
    let Expr::Load { from, at, stored } = &nest.value else { return None };
    let [of, to] = [*from, buffer].map(|b| &program.buffers[b]);
    let is_kept =
        matches!(of.place, Place::Memory(KernelMemory::Arena(_)) | Place::Input(_) | Place::Constant(_));
    let is_copy = *stored == to.dtype && of.dtype == to.dtype && nest.vars.len() == vars.len();
    let own = |v: Var| Index::var(nest.vars.iter().position(|w| *w == v).map_or(v, |i| vars[i]));
    (is_kept && is_copy && !at.iter().any(Index::reads))
        .then(|| (*from, at.iter().map(|index| index.substitute(&own)).collect()))
}
