//! Convolutions among the sums of products: an image that is read at multiples of a pixel's place plus multiples of a
//! weight's place, zero outside.

use mithril_ir::loops::{Atom, Expr, Index, Var, Within};

use super::Options;
use super::contract::{
    Contraction, Making, Start, affine, call, flat_loads, is_fixed, is_zero, loaded, operands, the_sum,
};
use super::kernels::{
    Algorithm, Blocked, Conv, Epilogue, Image, InBytes, Library, Operand, Packing, Places, Strides, Target,
};
use super::program::{Buffer, KernelCall, Nest, Program};
use super::quantize::{self, InFewBits};
use super::tail::Tails;
use super::template::c_type;

/// Results of fewer pixels do not fill the tiles of the kernels for blocks.
const LEAST_PIXELS: usize = 4;

/// How a line of the image is read: by steps of pixels and of weights.
struct Axis {
    image: usize,
    kernel: usize,
    stride: usize,
    dilation: usize,
    padding: [usize; 2],
}

/// Whether a nest is a convolution.
pub fn is_convolution(program: &Program, nest: &Nest, c: &Contraction<'_>) -> bool {
    shape(program, nest, c).is_some()
}

/// The convolution that a nest is, if it is one.
pub fn convolution(
    program: &Program,
    nest: &Nest,
    c: &Contraction<'_>,
    making: &mut Making<'_>,
) -> Option<KernelCall> {
    let (mut conv, [x, w], vars) = shape(program, nest, c)?;
    let [height, width] = conv.result();
    let what = format!(
        "convolution of {} channels to {}, {}x{} weights, {height}x{width} pixels",
        conv.channels, conv.filters, conv.kernel[0], conv.kernel[1]
    );
    let work = nest.vars.iter().chain(c.vars).map(|v| v.size as usize).product();
    let few = quantize::convolution(program, w, &conv, making.options);
    let in_blocks = [nest.to, x].iter().any(|&b| program.buffers[b].blocks.is_some());
    let is_whole = matches!(few, Some(Ok(InFewBits::Whole(_))));
    if in_blocks || is_whole || (conv.groups == 1 && matches!(few, Some(Ok(_)))) {
        let target = *making.library.target();
        let shape = (conv.clone(), [x, w], vars.clone());
        let found = in_blocks_of(program, nest, &shape, making.options, &target, making.tails);
        if let Some(found) = found {
            let inputs = [(x, found.start()?), (w, 0)];
            let kernel = match few {
                Some(Ok(InFewBits::Whole(range))) => found.conv.quantized(range, making.library),
                _ => found.conv.build(making.library),
            };
            if let Some(outcome) = few {
                let together = if is_whole { 1 } else { found.conv.together(target.lanes) };
                let kept = (found.conv.terms(together), kernel.packed_bytes);
                quantize::decided(program, w, &conv, outcome, kept, making.decisions);
            }
            return Some(call(kernel, nest.to, inputs, found.operands, what, work));
        }
        if in_blocks {
            return None;
        }
    }
    let few = few.map(|found| found.map(InFewBits::weights));
    let flat_nest = Nest { value: flat_loads(&nest.value, &program.buffers), ..nest.clone() };
    let names = names(&vars, height, width);
    let tail = making.tails.add(&program.buffers, &flat_nest, the_sum(&flat_nest.value)?, &names)?;
    let (operands, starts) = operands(&tail, |at| pixels(at, &vars, width))?;
    let coordinates: Vec<Index> = nest.vars.iter().map(|&v| Index::var(v)).collect();
    conv.out = pixels(&program.buffers[nest.to].position(&coordinates), &vars, width)?;
    c_type(program.buffers[nest.to].dtype).clone_into(&mut conv.out_element);
    let is_ahead = is_fixed(program, w, making.options);
    conv.packing = if is_ahead { Packing::Ahead } else { Packing::Running };
    conv.epilogue = Epilogue { operands, expression: tail.expression, vectors: tail.vectors };
    conv.few_bits = few.as_ref().and_then(|found| found.as_ref().ok()).copied();
    let kernel = conv.build(making.library);
    if let Some(outcome) = few {
        let terms = vec![(conv.channels / conv.groups * conv.kernel[0] * conv.kernel[1], 1)];
        let kept = (terms, kernel.packed_bytes);
        quantize::decided(program, w, &conv, outcome.map(InFewBits::Weights), kept, making.decisions);
    }
    Some(call(kernel, nest.to, [(x, 0), (w, 0)], starts, what, work))
}

/// The buffer of the image and its range, if it is known, of a convolution that is done in whole numbers.
pub fn in_whole_numbers(
    program: &Program,
    nest: &Nest,
    c: &Contraction<'_>,
    options: &Options,
) -> Option<(usize, Option<[f32; 2]>)> {
    let (conv, [x, w], _) = shape(program, nest, c)?;
    match quantize::convolution(program, w, &conv, options)?.ok()? {
        InFewBits::Whole(range) => Some((x, range)),
        InFewBits::Weights(_) => None,
    }
}

/// A convolution that reads or writes blocks of channels.
pub struct InBlocks {
    /// The buffer of the image.
    pub image: usize,
    conv: Blocked,
    size: [usize; 2],
    padding: [[usize; 2]; 2],
    /// Where in the image's buffer its first element lies, behind the margins.
    first: usize,
    operands: Vec<Start>,
}

impl InBlocks {
    /// Rows and pixels of zeros that it wants around its image.
    pub fn margins(&self, library: &Library) -> [[usize; 2]; 2] {
        self.conv.margins(self.size, self.padding, library)
    }
    /// Where the element under the first weight at the first pixel lies.
    fn start(&self) -> Option<usize> {
        match self.conv.image {
            Image::Plain(..) => Some(0),
            Image::Blocks(places) => {
                self.first.checked_sub(self.padding[0][0] * places.y + self.padding[1][0] * places.x)
            }
        }
    }
}

/// The convolution that a nest is, if image or result lie in blocks and it can work so.
pub fn in_blocks(
    program: &Program,
    nest: &Nest,
    c: &Contraction<'_>,
    options: &Options,
    target: &Target,
) -> Option<InBlocks> {
    let shape = shape(program, nest, c)?;
    in_blocks_of(program, nest, &shape, options, target, &mut Tails::default())
}

fn in_blocks_of(
    program: &Program,
    nest: &Nest,
    (conv, [x, w], vars): &Shape,
    options: &Options,
    target: &Target,
    tails: &mut Tails,
) -> Option<InBlocks> {
    let [image, to] = [*x, nest.to].map(|b| &program.buffers[b]);
    let lanes = target.lanes_of(conv.element);
    let few = quantize::convolution(program, *w, conv, options).and_then(Result::ok);
    let is_whole = matches!(few, Some(InFewBits::Whole(_)));
    let is_depth = conv.groups > 1 && !is_whole;
    let suits = match (image.blocks.is_some(), to.blocks.is_some()) {
        (true, true) => !is_depth || (conv.groups == conv.channels && conv.groups == conv.filters),
        (true, false) | (false, true) => !is_depth,
        (false, false) => false,
    };
    let [height, width] = conv.result();
    let is_filled = suits && height * width >= LEAST_PIXELS && is_fixed(program, *w, options);
    if !is_filled && (few.is_none() || is_depth) {
        return None;
    }
    let places = |at: &Index| places(at, program.next_var, vars, conv.filters, lanes);
    let flat_nest = Nest { value: flat_loads(&nest.value, &program.buffers), ..nest.clone() };
    let names = names(vars, height, width);
    let tail = tails.add(&program.buffers, &flat_nest, the_sum(&flat_nest.value)?, &names)?;
    let (mut operands, mut strides, mut starts) = (Vec::new(), Vec::new(), Vec::new());
    for load in &tail.loads {
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
        batch: conv.batch,
        channels: conv.channels,
        filters: conv.filters,
        groups: conv.groups,
        kernel: conv.kernel,
        stride: conv.stride,
        dilation: conv.dilation,
        result: [height, width],
        image: source,
        out: places(&to.position(&coordinates))?,
        out_element: c_type(to.dtype).to_owned(),
        epilogue: Epilogue { operands, expression: tail.expression, vectors: tail.vectors },
        operands: strides,
        algorithm: if few.is_some() { Algorithm::Direct } else { conv.algorithm },
        few_bits: few.map(InFewBits::weights),
        bytes: InBytes { image: None, out: to.blocks.and_then(|blocks| blocks.as_bytes(&to.shape, 0)) },
    };
    let (size, padding) = (conv.image, conv.padding);
    let mut found = InBlocks { image: *x, conv: made, size, padding, first, operands: starts };
    if let (Some(blocks), Some(start)) = (image.blocks, found.start()) {
        found.conv.bytes.image = blocks.as_bytes(&image.shape, start);
    }
    Some(found)
}

/// How an image lies, and where its first element is, behind the margins.
fn image_of(conv: &Conv, image: &Buffer) -> (Image, usize) {
    let Some(blocks) = image.blocks else { return (Image::Plain(conv.image, conv.padding), 0) };
    let (row, plane) = (blocks.row(&image.shape) as usize, blocks.plane(&image.shape) as usize);
    let lanes = blocks.lanes as usize;
    let first = blocks.margins[0][0] as usize * row + blocks.margins[1][0] as usize * lanes;
    let batch = plane * conv.channels / lanes;
    (Image::Blocks(Places { batch, block: plane, lane: 1, y: row, x: lanes, base: 0 }), first)
}

/// A position in images, blocks of filters, lanes, rows and pixels; `next` is the next number of a variable.
fn places(at: &Index, next: u32, vars: &[Var], filters: usize, lanes: usize) -> Option<Places> {
    let (batch, filter, y, x) = match *vars {
        [batch, filter, y, x] => (batch, filter, y, x),
        [batch, filter, x] => (batch, filter, Var { id: next + 2, size: 1 }, x),
        _ => return None,
    };
    let block = Var { id: next, size: filters.div_ceil(lanes) as i64 };
    let lane = Var { id: next + 1, size: lanes as i64 };
    let digits = |v: Var| match v {
        v if v == filter => Index::var(block) * lane.size + Index::var(lane),
        v => Index::var(v),
    };
    let (factors, base) = affine(&at.substitute(&digits), &[batch, block, lane, y, x])?;
    let &[batch, block, lane, y, x] = factors.as_slice() else { return None };
    Some(Places { batch, block, lane, y, x, base })
}

/// A convolution by its sizes, the buffers of image and weights, and the variables of the result: image, filter, place.
pub type Shape = (Conv, [usize; 2], Vec<Var>);

/// The sizes of the convolution, the buffers of image and weights, and the variables of the result: image, filter,
/// place.
fn shape(program: &Program, nest: &Nest, c: &Contraction<'_>) -> Option<Shape> {
    let (conv, factors, vars) = sliding(program, nest, c)?;
    let wanted = vars[2..].iter().map(|v| v.size as usize).product::<usize>();
    // A gradient of weights "slides" an image over an image: that is better multiplied as matrices.
    let slides = conv.kernel.iter().product::<usize>() <= 4 * wanted;
    (slides && conv.result().iter().product::<usize>() == wanted).then_some((conv, factors, vars))
}

/// As [`shape`], of all that slides over an image: a gradient of weights, too, which takes the result of a convolution for
/// weights. There may be more places than are wanted.
pub fn sliding(program: &Program, nest: &Nest, c: &Contraction<'_>) -> Option<Shape> {
    let (image, tests) = match c.factors[0] {
        Expr::Select { when, yes, no } if is_zero(no) => (&**yes, when.as_slice()),
        other => (other, &[][..]),
    };
    let (x, x_at) = loaded(image, c.element)?;
    let (w, w_at) = loaded(c.factors[1], c.element)?;
    let [x_shape, w_shape] = [x, w].map(|b| &program.buffers[b].shape);
    let spatial = x_shape.len().checked_sub(2).filter(|n| (1..=2).contains(n))?;
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
    let pair = |f: fn(&Axis) -> usize| [f(&axes[0]), f(&axes[1])];
    let channels = [x_shape[1] as usize, w_shape[0] as usize];
    let mut conv = Conv::new(c.element, x_shape[0] as usize, channels, pair(|a| a.image), pair(|a| a.kernel));
    conv.groups = groups as usize;
    conv.stride = pair(|a| a.stride);
    conv.dilation = pair(|a| a.dilation);
    conv.padding = [axes[0].padding, axes[1].padding];
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
    let texts = ["batch".to_owned(), "row".to_owned()].into_iter();
    let places = if vars.len() == 4 { vec![y, x] } else { vec![x] };
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
