//! Convolutions among the contractions: an image that is read at multiples of a pixel's position plus multiples of a
//! weight's position, zero outside.

use crate::c::analysis::affine::affine;
use crate::c::analysis::contraction::{Contraction, is_zero, loaded, stored};
use crate::c::ir::expr::{Atom, BufferId, Expr, Index, Var, Within};
use crate::c::ir::program::{Level, Nest, Program};
use crate::c::kernels::spec::conv::{Conv, Depth};
use crate::c::kernels::spec::strides::Strides;

/// How a line of the image is read: by steps of pixels and of weights.
struct Axis {
    image: usize,
    kernel: usize,
    stride: usize,
    dilation: usize,
    padding: [usize; 2],
}

/// Whether a nest is a convolution.
pub fn is_convolution<L: Level>(program: &Program<L>, nest: &Nest, c: &Contraction<'_>) -> bool {
    shape(program, nest, c).is_some()
}

/// A convolution by its sizes, the buffers of image and weights, and the variables of the result: image, filter, place.
pub type Shape = (Conv, [BufferId; 2], Vec<Var>);

/// The sizes of the convolution, the buffers of image and weights, and the variables of the result: image, filter,
/// place.
pub fn shape<L: Level>(program: &Program<L>, nest: &Nest, c: &Contraction<'_>) -> Option<Shape> {
    let (conv, factors, vars) = sliding(program, nest, c)?;
    let pixels = vars[2..].iter().map(|v| v.size as usize).product::<usize>();
    let [taps, frames] = conv.depth.map_or([1, 1], |depth| [depth.kernel, depth.result]);
    // A gradient of weights "slides" an image over an image: that is better multiplied as matrices.
    let slides = taps * conv.kernel.iter().product::<usize>() <= 4 * pixels;
    (slides && frames * conv.result().iter().product::<usize>() == pixels).then_some((conv, factors, vars))
}

/// As [`shape`], of all that slides over an image: a gradient of weights, too, which takes the result of a convolution for
/// weights. There may be more places than are wanted.
pub fn sliding<L: Level>(program: &Program<L>, nest: &Nest, c: &Contraction<'_>) -> Option<Shape> {
    let (image, tests) = match c.factors[0] {
        Expr::Select { when, yes, no } if is_zero(no) => (&**yes, when.as_slice()),
        other => (other, &[][..]),
    };
    let (x, x_at, image_stored) = stored(image, c.element)?;
    let (w, w_at) = loaded(c.factors[1], c.element)?;
    let [x_shape, w_shape] = [x, w].map(|b| &program.buffers[b].shape);
    let spatial = x_shape.len().checked_sub(2).filter(|n| (1..=3).contains(n))?;
    if w_shape.len() != x_shape.len() || nest.vars.len() != x_shape.len() || c.vars.len() != spatial + 1 {
        return None;
    }
    let vars = ordered(&nest.vars, [(&x_at[0], x_shape[0]), (&w_at[0], w_shape[0])])?;
    // Weights are read at [filter, channel, place], all as they are.
    let own: Vec<Index> = vars[1..2].iter().chain(c.vars).map(|&v| Index::var(v)).collect();
    // All of them: the sizes of the convolution are those of the tensors.
    if !c.vars.iter().map(|v| v.size).eq(w_shape[1..].iter().copied()) {
        return None;
    }
    let per_group = w_shape[1];
    let groups = x_shape[1] / per_group.max(1);
    let filters = w_shape[0] / groups.max(1);
    if groups * per_group != x_shape[1] || filters * groups != w_shape[0] {
        return None;
    }
    let group = if groups == 1 { Index::default() } else { Index::var(vars[1]).floor_div(filters.max(1)) };
    let channel = group * per_group + Index::var(c.vars[0]);
    if *w_at != own || x_at[1] != channel {
        return None;
    }
    let one = |i: usize| {
        let sizes = [x_shape[2 + i], w_shape[2 + i], vars[2 + i].size];
        axis(&x_at[2 + i], [vars[2 + i], c.vars[1 + i]], sizes)
    };
    let mut axes = (0..spatial).map(one).collect::<Option<Vec<Axis>>>()?;
    let covers = |w: &Within| {
        let axis = (0..spatial).find(|&i| x_at[2 + i] == w.index);
        axis.is_some_and(|i| w.from <= 0 && w.to >= x_shape[2 + i])
    };
    if !tests.iter().all(covers) {
        return None;
    }
    if spatial == 1 {
        axes.insert(0, Axis { image: 1, kernel: 1, stride: 1, dilation: 1, padding: [0, 0] });
    }
    let depth = (spatial == 3).then(|| axes.remove(0));
    let pair = |f: fn(&Axis) -> usize| [f(&axes[0]), f(&axes[1])];
    let channels = [x_shape[1] as usize, w_shape[0] as usize];
    let mut conv = Conv::new(c.element, x_shape[0] as usize, channels, pair(|a| a.image), pair(|a| a.kernel));
    conv.groups = groups as usize;
    conv.stored = image_stored;
    conv.stride = pair(|a| a.stride);
    conv.dilation = pair(|a| a.dilation);
    conv.padding = [axes[0].padding, axes[1].padding];
    conv.depth = depth.map(|Axis { image, kernel, stride, dilation, padding }| {
        let result = vars[2].size as usize;
        Depth { image, kernel, stride, dilation, padding, result }
    });
    Some((conv.row_major(), [x, w], vars))
}

/// The variables with those first that count images and filters, which are what these positions are.
fn ordered(vars: &[Var], first: [(&Index, i64); 2]) -> Option<Vec<Var>> {
    let mut rest = vars.to_vec();
    let mut ordered = Vec::new();
    for (at, size) in first {
        let i = rest.iter().position(|&v| v.size == size && Index::var(v) == *at)?;
        ordered.push(rest.remove(i));
    }
    ordered.extend(rest);
    Some(ordered)
}

/// A place in the image: `stride · pixel + dilation · weight - padding`.
fn axis(at: &Index, [pixel, weight]: [Var; 2], [image, kernel, pixels]: [i64; 3]) -> Option<Axis> {
    let is_known = |atom: &Atom| matches!(atom, Atom::Var(v) if *v == pixel || *v == weight);
    if at.terms.iter().any(|(atom, factor)| !is_known(atom) || *factor < 1) || at.constant > 0 {
        return None;
    }
    // A place that does not move with a pixel, or with a weight, is a repeated one: a kernel would read zeros beside it.
    if [(pixel, pixels), (weight, kernel)]
        .iter()
        .any(|&(v, size)| size > 1 && at.factor(v).is_none_or(|f| f < 1))
    {
        return None;
    }
    let factor = |v: Var| at.factor(v).filter(|f| *f > 0).unwrap_or(1);
    let (stride, dilation, before) = (factor(pixel), factor(weight), -at.constant);
    let reach = (pixels - 1) * stride + (kernel - 1) * dilation + 1;
    let after = (reach - image - before).max(0);
    let [image, kernel, stride, dilation, before, after] =
        [image, kernel, stride, dilation, before, after].map(|n| n as usize);
    Some(Axis { image, kernel, stride, dilation, padding: [before, after] })
}

/// How the epilogue calls the variables of the output.
pub fn names(vars: &[Var], height: usize, width: usize) -> Vec<(Var, String)> {
    let x = if height == 1 { "column".to_owned() } else { format!("column % {width}") };
    let y = if width == 1 { "column".to_owned() } else { format!("column / {width}") };
    let (batch, z) = match vars {
        // Kernels count the frames of all volumes.
        [_, _, z, _, _] => (format!("batch / {}", z.size), Some(format!("batch % {}", z.size))),
        _ => ("batch".to_owned(), None),
    };
    let texts = [batch, "row".to_owned()].into_iter().chain(z);
    let places = if vars.len() >= 4 { vec![y, x] } else { vec![x] };
    vars.iter().copied().zip(texts.chain(places)).collect()
}

/// A position as strides over images, filters and pixels.
pub fn pixels(at: &Index, vars: &[Var], width: usize) -> Option<Strides> {
    let (factors, _) = affine(at, vars)?;
    let column = match vars[2..] {
        [y, x] if y.size > 1 && x.size > 1 => (factors[2] == factors[3] * width).then_some(factors[3])?,
        [y, _] if y.size > 1 => factors[2],
        _ => factors[vars.len() - 1],
    };
    Some(Strides { batch: vec![factors[0]], row: factors[1], column })
}
