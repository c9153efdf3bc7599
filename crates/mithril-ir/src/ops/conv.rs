//! Convolution: one general primitive, and the usual forms on top of it.

use ndarray::linalg::general_mat_mul;
use ndarray::{ArrayView2, ArrayViewMut2};

use super::elementwise::ADD;
use super::window::{self, Axis, Padding, triples};
use crate::dim::Dim;
use crate::dtype::Kinds;
use crate::error::{Code, Error, Result};
use crate::formula::{ExpandCx, GradCx, V};
use crate::interp::{EvalCx, elements, from_f64s};
use crate::literal::Lit;
use crate::lowering::LoweringRule::{Function, Template};
use crate::lowering::{Lowering, LoweringCx};
use crate::op::{
    Attr, BLANK, DTypeRule, DefaultLit, Eval, Grad, LowBit, OpDef, Port, Precision, ShapeRule, Tolerance,
    attr, tensor_of,
};
use crate::rules::{Attrs, ShapeCx};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// Ops of this file.
pub static OPS: &[&OpDef] =
    &[&CONV_GENERAL, &CONV1D, &CONV2D, &CONV3D, &CONV_TRANSPOSE1D, &CONV_TRANSPOSE2D, &CONV_TRANSPOSE3D];

static GENERAL_PORTS: &[Port] = &[
    tensor_of("input", Kinds::NUMBER),
    tensor_of("weight", Kinds::NUMBER),
    attr("stride", Attr::Ints, DefaultLit::Int(1)),
    attr("pads", Attr::Any, DefaultLit::Int(0)),
    attr("dilation", Attr::Ints, DefaultLit::Int(1)),
    attr("input_dilation", Attr::Ints, DefaultLit::Int(1)),
    attr("groups", Attr::Int, DefaultLit::Int(1)),
];

/// cross-correlation in its general form
pub static CONV_GENERAL: OpDef = OpDef {
    name: "conv_general",
    doc: "General convolution (cross-correlation) over 1 to 3 spatial axes, of which all others are special cases.\n\n\
          `output[n, o, p] = Σ_c Σ_k input'[n, c, p·stride + k·dilation] · weight[o, c, k]`, where `input'` is the \
          input with `input_dilation - 1` zeros between neighbors and then `pads` zeros before and after each \
          axis (negative pads cut off). Shapes: input `[n, c, *s]`, weight `[o, c/groups, *k]`, output \
          `[n, o, *p]`; channels are split into `groups` that do not mix. Integers become floats.",
    aliases: &["conv_general_dilated"],
    ports: GENERAL_PORTS,
    shape: ShapeRule::Fn(general_shape),
    dtype: DTypeRule::Float,
    eval: Some(Eval::Tensors(general_eval)),
    loops: Some(loops::general),
    on_rows: Some(loops::general_on_rows),
    grad: Grad::Formula(general_grad),
    lowering: Lowering {
        numpy: Template("_conv_general({0}, {1}, {stride}, {pads}, {dilation}, {input_dilation}, {groups})"),
        torch: Function(general_torch),
        jax: Function(jax::general),
        mlx: Function(mlx::general),
        ggml: Function(loops::general_ggml),
        onnx: Function(super::onnx::conv_general),
        ..Lowering::NONE
    },
    cases: &[
        "[2,3,7] [4,3,3]",
        "[2,3,7] [4,3,3] stride=2 pads=((2,1),) dilation=2",
        "[1,4,5,6] [6,2,3,2] stride=(2,1) pads=((1,1),(0,2)) groups=2",
        "[2,3,4,3] [2,3,2,3] pads=((-1,1),(2,-1)) input_dilation=(2,3)",
        "[2,16,4] [3,16,2] pads=((-1,2),)",
        "[2,2,3,4,3] [4,1,2,2,2] stride=(1,2,1) groups=2",
        "[0,3,5,5] [4,3,3,3]",
    ],
    tolerance: Tolerance::Contraction,
    precision: Some(Precision::Low),
    ..BLANK
};

/// The arguments of a use of [`CONV_GENERAL`].
struct General {
    stride: Vec<i64>,
    pads: window::Pads,
    dilation: Vec<i64>,
    input_dilation: Vec<i64>,
    groups: i64,
}

fn general(cx: &(impl Attrs + ?Sized), n: usize) -> Result<General> {
    Ok(General {
        stride: window::positive(cx, 2, n)?,
        pads: window::pads(cx, 3, n)?,
        dilation: window::positive(cx, 4, n)?,
        input_dilation: window::positive(cx, 5, n)?,
        groups: window::count(cx, 6)?,
    })
}

fn general_shape(cx: &ShapeCx<'_>) -> Result<Vec<Shape>> {
    let n = cx.rank(0, &[3, 4, 5])? - 2;
    cx.rank(1, &[n + 2])?;
    let a = general(cx, n)?;
    let (input, weight) = (cx.shape(0), cx.shape(1));
    check_channels(cx, &(&weight[1] * &Dim::Const(a.groups)), a.groups)?;
    check_divides(cx, "output channels", &weight[0], a.groups)?;
    let mut out = Shape::of([input[0].clone(), weight[0].clone()]);
    for i in 0..n {
        let size = window::dilated(&input[i + 2], a.input_dilation[i]);
        let extent = window::dilated(&weight[i + 2], a.dilation[i]);
        let p = window::positions(&size, &a.pads[i], &extent, a.stride[i]);
        if p.known().is_some_and(|p| p < 0) {
            let [lo, hi] = a.pads[i].clone().map(|d| d.known().unwrap_or(0));
            window::check_fits(cx, i, &size, [lo, hi], &extent)?;
        }
        out.0.push(p);
    }
    Ok(vec![out])
}

/// Checks the number of input channels against the one that the weight expects.
fn check_channels(cx: &ShapeCx<'_>, expected: &Dim, groups: i64) -> Result<()> {
    let channels = &cx.shape(0)[1];
    if let (Some(have), Some(want)) = (channels.known(), expected.known())
        && have != want
    {
        let per_group = want / groups;
        let message = format!(
            "`input` of {} has {have} channels, `weight` expects {per_group} × groups {groups}",
            cx.op().name
        );
        return Err(Error::new(Code::ShapeMismatch, message)
            .note(format!("input {}, weight {}", cx.shape(0), cx.shape(1)))
            .help("channels are axis 1 of the input; a channels-last input must be transposed first"));
    }
    cx.same(channels, expected, "input channels")
}

fn check_divides(cx: &ShapeCx<'_>, what: &str, channels: &Dim, groups: i64) -> Result<()> {
    match channels.known() {
        Some(c) if c % groups != 0 => {
            let message = format!("{c} {what} of {} do not divide into {groups} groups", cx.op().name);
            Err(Error::new(Code::BadArgument, message).help("choose groups that divide the channels"))
        }
        _ => Ok(()),
    }
}

fn general_eval(call: &EvalCx<'_>) -> Result<Vec<Tensor>> {
    let (x, w, out) = (call.tensor(0), call.tensor(1), call.shape());
    let n = x.rank() - 2;
    let a = general(call, n)?;
    let groups = a.groups as usize;
    // Missing spatial axes are axes of size 1 in front.
    let mut axes: Vec<Axis> = (n..3).map(|_| Axis::unit()).collect();
    let mut sizes = vec![1; 3 - n];
    for i in 0..n {
        let lo = a.pads[i][0].known().unwrap_or(0);
        let steps = [a.stride[i], lo, a.dilation[i], a.input_dilation[i]];
        axes.push(Axis::new(x.shape()[i + 2], w.shape()[i + 2], out[i + 2], steps));
        sizes.push(x.shape()[i + 2]);
    }
    let (per_group, filters) = (w.shape()[1], w.shape()[0] / groups);
    let taps = per_group * axes.iter().map(|a| a.kernel).product::<usize>();
    let places: usize = axes.iter().map(|a| a.out).product();
    let (xs, ws) = (elements::<f64>(x), elements::<f64>(w));
    let mut ys = vec![0.0; out.iter().product()];
    let image = per_group * sizes.iter().product::<usize>();
    let mut columns = vec![0.0; taps * places];
    if ys.is_empty() || taps == 0 {
        return Ok(vec![from_f64s(call.dtype(), out, ys)]);
    }
    for (block, y) in ys.chunks_exact_mut(filters * places).enumerate() {
        // Blocks of the output and images of the input are both ordered by batch, then by group.
        gather(&mut columns, &xs[block * image..][..image], per_group, &sizes, &axes);
        let weight = &ws[block % groups * filters * taps..][..filters * taps];
        multiply(y, weight, &columns, taps, places)?;
    }
    Ok(vec![from_f64s(call.dtype(), out, ys)])
}

/// im2col: writes the matrix `[channels · kernel, positions]` of the input elements under each window.
fn gather(columns: &mut [f64], image: &[f64], channels: usize, sizes: &[usize], axes: &[Axis]) {
    let [d, h, w] = [&axes[0], &axes[1], &axes[2]];
    let mut at = columns.iter_mut();
    for c in 0..channels {
        for [kd, kh, kw] in triples([d.kernel, h.kernel, w.kernel]) {
            for id in d.row(kd) {
                for ih in h.row(kh) {
                    let line = id.zip(*ih).map(|(id, ih)| ((c * sizes[0] + id) * sizes[1] + ih) * sizes[2]);
                    for (iw, slot) in w.row(kw).iter().zip(at.by_ref()) {
                        *slot = line.zip(*iw).map_or(0.0, |(line, iw)| image[line + iw]);
                    }
                }
            }
        }
    }
}

/// `y = weight · columns`
fn multiply(y: &mut [f64], weight: &[f64], columns: &[f64], taps: usize, places: usize) -> Result<()> {
    let rows = y.len() / places.max(1);
    let shape = |_| Error::internal("the matrices of a convolution do not fit");
    let weight = ArrayView2::from_shape((rows, taps), weight).map_err(shape)?;
    let columns = ArrayView2::from_shape((taps, places), columns).map_err(shape)?;
    let mut y = ArrayViewMut2::from_shape((rows, places), y).map_err(shape)?;
    general_mat_mul(1.0, &weight, &columns, 0.0, &mut y);
    Ok(())
}

/// Both gradients are general convolutions, so derivatives of any order work.
fn general_grad<'a>(v: &GradCx<'a>) -> Vec<V<'a>> {
    let n = v.x[0].rank().saturating_sub(2);
    let Ok(a) = general(&**v, n) else { return vec![] };
    let (x, w) = (v.x[0].shape(), v.x[1].shape());
    let mut backward = Vec::with_capacity(n);
    let mut correlate = Vec::with_capacity(n);
    for i in 0..n {
        let size = window::dilated(&x[i + 2], a.input_dilation[i]);
        let extent = window::dilated(&w[i + 2], a.dilation[i]);
        let reach = window::dilated(&v.y.dim(i as i64 + 2), a.stride[i]);
        let lo = &a.pads[i][0];
        backward.push([&(&extent - &Dim::ONE) - lo, &(&size + lo) - &reach]);
        let after = &(&(&extent + &reach) - &Dim::ONE) - &(&size + lo);
        correlate.push([lo.clone(), after]);
    }
    let lit = |values: &[i64]| v.cx.lit(values.to_vec());
    let groups = v.cx.lit(a.groups);
    let (stride, dilation, input_dilation) = (lit(&a.stride), lit(&a.dilation), lit(&a.input_dilation));
    let pads = v.cx.lit(window::pads_lit(&backward));
    let flipped = flip_weight(v.x[1], a.groups);
    let dx = v.g.op(&CONV_GENERAL, &[flipped, input_dilation, pads, dilation, stride, groups]);

    // The sum is over the batch, which therefore takes the role of the channels.
    let batch_last = |t: V<'a>, groups: i64| {
        if groups == 1 {
            return swap(t);
        }
        let split = split_channels(t, 1, groups);
        let order: Vec<usize> = [2, 1, 0].into_iter().chain(3..n + 3).collect();
        merge(split.transpose(order), 1)
    };
    let pads = v.cx.lit(window::pads_lit(&correlate));
    let images = batch_last(v.x[0], a.groups);
    let dw = images.op(&CONV_GENERAL, &[swap(v.g), dilation, pads, stride, input_dilation, groups]);
    vec![dx, swap(dw)]
}

/// Swaps the first two axes.
fn swap(t: V<'_>) -> V<'_> {
    let order: Vec<usize> = [1, 0].into_iter().chain(2..t.rank()).collect();
    t.transpose(order)
}

/// Splits axis `axis` into `groups` and the rest.
fn split_channels(t: V<'_>, axis: usize, groups: i64) -> V<'_> {
    let mut shape = t.shape();
    let each = shape[axis].floor_div(&Dim::Const(groups));
    shape.0[axis] = each;
    shape.0.insert(axis, Dim::Const(groups));
    t.reshape(shape.0.to_vec())
}

/// Merges axes `axis` and `axis + 1`.
fn merge(t: V<'_>, axis: usize) -> V<'_> {
    let mut shape = t.shape();
    if axis + 1 < shape.rank() {
        let inner = shape.0.remove(axis + 1);
        shape.0[axis] = &shape[axis] * &inner;
    }
    t.reshape(shape.0.to_vec())
}

/// The weight `[g·o, c, *k]` as `[g·c, o, *k]` with flipped kernels, which is the weight of the adjoint.
fn flip_weight(weight: V<'_>, groups: i64) -> V<'_> {
    let spatial: Vec<usize> = (2..weight.rank()).collect();
    let flipped = weight.flip(spatial);
    if groups == 1 {
        return swap(flipped);
    }
    let split = split_channels(flipped, 0, groups);
    let order: Vec<usize> = [0, 2, 1].into_iter().chain(3..split.rank()).collect();
    merge(split.transpose(order), 0)
}

fn python_tuple<T: ToString>(items: &[T]) -> String {
    let items: Vec<String> = items.iter().map(ToString::to_string).collect();
    format!("({}{})", items.join(", "), if items.len() == 1 { "," } else { "" })
}

static CONV_PORTS: &[Port] = &[
    tensor_of("input", Kinds::NUMBER),
    tensor_of("weight", Kinds::NUMBER),
    BIAS,
    attr("stride", Attr::Ints, DefaultLit::Int(1)),
    attr("padding", Attr::Any, DefaultLit::Int(0)),
    attr("dilation", Attr::Ints, DefaultLit::Int(1)),
    attr("groups", Attr::Int, DefaultLit::Int(1)),
];

const BIAS: Port = crate::op::optional("bias");

const CONVOLUTION: OpDef = OpDef {
    ports: CONV_PORTS,
    dtype: DTypeRule::Float,
    expand: Some(conv_expand),
    padding_value: Some(0.0),
    on_rows: Some(loops::conv_on_rows),
    lowering: Lowering { torch: Function(conv_torch), onnx: Function(super::onnx::conv), ..Lowering::NONE },
    tolerance: Tolerance::Contraction,
    precision: Some(Precision::Low),
    low_bit: Some(LowBit { weight: 1, outputs: 0, is_product: false }),
    ..BLANK
};

macro_rules! conv_doc {
    ($axes:literal, $input:literal, $kernel:literal) => {
        concat!(
            "Convolution (cross-correlation) over ", $axes, ".\n\nShapes: input `[n, c, ", $input,
            "]`, weight `[o, c/groups, ", $kernel, "]`, bias `[o]`, output `[n, o, ...]` with \
             `⌊(size + before + after - dilation·(k - 1) - 1) / stride⌋ + 1` elements per axis. `padding` is an \
             integer, one per axis, pairs `((before, after), ...)`, `\"valid\"` (none) or `\"same\"` (the output has \
             `⌈size / stride⌉` elements; an odd element goes to the end). The padded elements are 0."
        )
    };
}

/// convolution over sequences
pub static CONV1D: OpDef = OpDef {
    name: "conv1d",
    doc: conv_doc!("the last axis", "length", "k"),
    shape: ShapeRule::Fn(conv_shape::<1>),
    cases: &[
        "[2,3,8] [4,3,3] [4]",
        "[2,3,8] [4,3,3] padding=\"same\"",
        "[2,4,9] [4,2,2] [4] stride=2 padding=1 dilation=2 groups=2",
    ],
    ..CONVOLUTION
};

/// convolution over images
pub static CONV2D: OpDef = OpDef {
    name: "conv2d",
    doc: conv_doc!("the last two axes", "height, width", "kh, kw"),
    aliases: &["convolution"],
    shape: ShapeRule::Fn(conv_shape::<2>),
    cases: &[
        "[2,3,6,5] [4,3,3,3] [4]",
        "[2,3,6,5] [4,3,3,2] [4] stride=(2,1) padding=\"same\"",
        "[2,4,6,5] [6,2,3,3] padding=((0,1),(2,1)) dilation=(1,2) groups=2",
        "[2,3,6,5] [3,1,3,3] padding=1 groups=3",
        "[0,3,6,5] [4,3,1,1] [4]",
    ],
    ..CONVOLUTION
};

/// convolution over volumes
pub static CONV3D: OpDef = OpDef {
    name: "conv3d",
    doc: conv_doc!("the last three axes", "depth, height, width", "kd, kh, kw"),
    shape: ShapeRule::Fn(conv_shape::<3>),
    cases: &["[1,2,4,5,4] [3,2,2,3,2] [3] padding=(1,0,1) stride=(1,2,1)"],
    ..CONVOLUTION
};

fn conv_shape<const N: usize>(cx: &ShapeCx<'_>) -> Result<Vec<Shape>> {
    check_ranks(cx, N)?;
    let (input, weight) = (cx.shape(0), cx.shape(1));
    let (stride, dilation) = (window::positive(cx, 3, N)?, window::positive(cx, 5, N)?);
    let (padding, groups) = (window::padding(cx, 4, N)?, window::count(cx, 6)?);
    check_channels(cx, &(&weight[1] * &Dim::Const(groups)), groups)?;
    check_divides(cx, "output channels", &weight[0], groups)?;
    check_bias(cx, &weight[0])?;
    let mut out = Shape::of([input[0].clone(), weight[0].clone()]);
    for i in 0..N {
        let (size, extent) = (&input[i + 2], window::dilated(&weight[i + 2], dilation[i]));
        out.0.push(match &padding {
            Padding::Same => window::ceil_div(size, stride[i]),
            Padding::Explicit(pads) => {
                window::check_fits(cx, i, size, pads[i], &extent)?;
                window::positions(size, &pads[i].map(Dim::Const), &extent, stride[i])
            }
        });
    }
    Ok(vec![out])
}

fn check_ranks(cx: &ShapeCx<'_>, n: usize) -> Result<()> {
    if cx.shape(0).rank() == n + 1 {
        let message = format!("`input` of {} has {} dimensions: {}", cx.op().name, n + 1, cx.shape(0));
        return Err(Error::new(Code::RankMismatch, message)
            .help("batch and channels come first; if there is no batch or channel axis, add one of size 1 with expand_dims"));
    }
    cx.rank(0, &[n + 2])?;
    cx.rank(1, &[n + 2])?;
    for (i, k) in cx.shape(1).iter().enumerate().skip(2) {
        if k.known().is_some_and(|k| k < 1) {
            let message = format!("the kernel of {} has size {k} along spatial axis {}", cx.op().name, i - 2);
            return Err(Error::new(Code::BadSize, message).help("a kernel has at least one element"));
        }
    }
    Ok(())
}

fn check_bias(cx: &ShapeCx<'_>, filters: &Dim) -> Result<()> {
    if cx.has(2) {
        cx.rank(2, &[1])?;
        cx.same(&cx.shape(2)[0], filters, "sizes of `bias` and of the output channels")?;
    }
    Ok(())
}

fn conv_expand<'a>(c: &ExpandCx<'a>) -> Vec<V<'a>> {
    // In two steps: a target may have a convolution without bias.
    if c.x[2].is_some() {
        return vec![add_bias(c.cx.call(c.op, &[&c.x[..2], &[c.cx.none()], &c.x[3..]].concat()), c.x[2])];
    }
    let y = c.get(|c| {
        let (input, weight) = (c.x[0].shape(), c.x[1].shape());
        let pads = c.cx.lit(window::pads_lit(&conv_pads(c, &input, &weight)?));
        Ok(Some(c.x[0].op(&CONV_GENERAL, &[c.x[1], c.x[3], pads, c.x[5], c.cx.lit(1), c.x[6]])))
    });
    vec![y.unwrap_or(c.x[0])]
}

/// Pads of a convolution along each axis.
fn conv_pads<A: Attrs + ?Sized>(cx: &A, input: &Shape, weight: &Shape) -> Result<window::Pads> {
    let n = input.rank().saturating_sub(2);
    let (stride, dilation) = (window::positive(cx, 3, n)?, window::positive(cx, 5, n)?);
    match window::padding(cx, 4, n)? {
        Padding::Explicit(pads) => Ok(pads.into_iter().map(|p| p.map(Dim::Const)).collect()),
        Padding::Same => (0..n)
            .map(|i| {
                let extent = window::dilated(&weight[i + 2], dilation[i]);
                let extent = extent.known().ok_or_else(|| cx.symbolic(4, &extent))?;
                window::same_pads(cx, 4, &input[i + 2], extent, stride[i])
            })
            .collect(),
    }
}

/// Adds `[c]` to `[n, c, ...]`.
fn add_bias<'a>(y: V<'a>, bias: V<'a>) -> V<'a> {
    if bias.is_none() {
        return y;
    }
    let mut shape = vec![Dim::ONE; y.rank().saturating_sub(1)];
    if let Some(first) = shape.first_mut() {
        *first = bias.shape().numel();
    }
    y.op(&ADD, &[bias.reshape(shape)])
}

fn conv_torch(s: &LoweringCx<'_>) -> Option<String> {
    let n = s.ty(0)?.shape.rank().checked_sub(2)?;
    let (stride, dilation) = (window::positive(s, 3, n).ok()?, window::positive(s, 5, n).ok()?);
    let padding = window::padding(s, 4, n).ok()?;
    let is_same = padding == Padding::Same && stride.iter().all(|&v| v == 1);
    let pads = conv_pads(s, &s.ty(0)?.shape, &s.ty(1)?.shape).ok()?;
    let bias = if s.ty(2).is_some() { format!(", {}", s.arg(2)) } else { String::new() };
    let (input, padding) = match torch_padding(&pads) {
        _ if is_same => (s.arg(0).to_owned(), ", padding=\"same\"".into()),
        Some(padding) => (s.arg(0).to_owned(), padding),
        None => (window::torch_padded(s, s.arg(0), &pads, ""), String::new()),
    };
    let options = [
        window::torch_option("stride", &stride, 1),
        padding,
        window::torch_option("dilation", &dilation, 1),
        window::torch_option("groups", &[s.int(6).ok()?], 1),
    ];
    Some(format!("F.{}({input}, {}{bias}{})", s.op().name, s.arg(1), options.concat()))
}

/// `, padding=1` if torch can express the padding: numbers, the same on both sides.
fn torch_padding(pads: &[[Dim; 2]]) -> Option<String> {
    let even = |[lo, hi]: &[Dim; 2]| lo.known().filter(|&p| lo == hi && p >= 0);
    let values = pads.iter().map(even).collect::<Option<Vec<i64>>>()?;
    Some(window::torch_option("padding", &values, 0))
}

/// A plain convolution if possible; torch dilates the input only in transposed convolutions.
fn general_torch(s: &LoweringCx<'_>) -> Option<String> {
    let n = s.ty(0)?.shape.rank().checked_sub(2)?;
    let a = general(s, n).ok()?;
    let (x, w, groups) = (s.arg(0), s.arg(1), window::torch_option("groups", &[a.groups], 1));
    let dilation = window::torch_option("dilation", &a.dilation, 1);
    let has_elements =
        |i: usize| s.ty(i).is_some_and(|ty| ty.shape.iter().all(|d| d.known().is_none_or(|n| n > 0)));
    if a.input_dilation.iter().all(|&d| d == 1)
        && has_elements(1)
        && s.out(0).is_some_and(|ty| !ty.shape[2..].iter().any(|d| d.is(0)))
    {
        let (input, padding) = match torch_padding(&a.pads) {
            Some(padding) => (x.to_owned(), padding),
            None => (window::torch_padded(s, x, &a.pads, ""), String::new()),
        };
        let stride = window::torch_option("stride", &a.stride, 1);
        return Some(format!("F.conv{n}d({input}, {w}{stride}{padding}{dilation}{groups})"));
    }
    let tuple = |values: &[i64]| python_tuple(values);
    let pads = crate::lowering::tuple(a.pads.iter().map(|pair| s.dims(pair)));
    let shape = s.dims(&s.out(0)?.shape);
    Some(format!(
        "_conv_general({x}, {w}, {}, {pads}, {}, {}, {}, {shape})",
        tuple(&a.stride),
        tuple(&a.dilation),
        tuple(&a.input_dilation),
        a.groups
    ))
}

static TRANSPOSED_PORTS: &[Port] = &[
    tensor_of("input", Kinds::NUMBER),
    tensor_of("weight", Kinds::NUMBER),
    BIAS,
    attr("stride", Attr::Ints, DefaultLit::Int(1)),
    attr("padding", Attr::Any, DefaultLit::Int(0)),
    attr("output_padding", Attr::Ints, DefaultLit::Int(0)),
    attr("groups", Attr::Int, DefaultLit::Int(1)),
    attr("dilation", Attr::Ints, DefaultLit::Int(1)),
];

const TRANSPOSED: OpDef = OpDef {
    ports: TRANSPOSED_PORTS,
    expand: Some(transposed_expand),
    on_rows: Some(loops::transposed_on_rows),
    lowering: Lowering {
        torch: Function(transposed_torch),
        onnx: Function(super::onnx::conv_transpose),
        ..Lowering::NONE
    },
    ..CONVOLUTION
};

macro_rules! transposed_doc {
    ($base:literal, $input:literal, $kernel:literal) => {
        concat!(
            "Transposed ", $base, ": its gradient with respect to the input, used for upsampling.\n\nShapes: input \
             `[n, c, ", $input, "]`, weight `[c, o/groups, ", $kernel, "]`, bias `[o]`, output `[n, o, ...]` with \
             `(size - 1)·stride - before - after + dilation·(k - 1) + output_padding + 1` elements per axis. \
             `padding` is the padding of the convolution (`\"same\"`: the output has `size·stride` elements); \
             `output_padding`, smaller than stride or dilation, adds elements at the end. Order of arguments as \
             in torch."
        )
    };
}

/// transposed convolution over sequences
pub static CONV_TRANSPOSE1D: OpDef = OpDef {
    name: "conv_transpose1d",
    doc: transposed_doc!("conv1d", "length", "k"),
    shape: ShapeRule::Fn(transposed_shape::<1>),
    cases: &[
        "[2,3,5] [3,4,3] [4] stride=2 padding=1 output_padding=1",
        "[1,2,4] [2,3,2] padding=\"same\" stride=3",
    ],
    ..TRANSPOSED
};

/// transposed convolution over images
pub static CONV_TRANSPOSE2D: OpDef = OpDef {
    name: "conv_transpose2d",
    doc: transposed_doc!("conv2d", "height, width", "kh, kw"),
    aliases: &["deconv2d"],
    shape: ShapeRule::Fn(transposed_shape::<2>),
    cases: &[
        "[2,3,4,5] [3,4,3,3] [4] stride=2 padding=1 output_padding=1",
        "[2,4,4,3] [4,3,2,3] [6] stride=(2,1) groups=2 dilation=2",
    ],
    ..TRANSPOSED
};

/// transposed convolution over volumes
pub static CONV_TRANSPOSE3D: OpDef = OpDef {
    name: "conv_transpose3d",
    doc: transposed_doc!("conv3d", "depth, height, width", "kd, kh, kw"),
    shape: ShapeRule::Fn(transposed_shape::<3>),
    cases: &["[1,2,3,2,3] [2,3,2,2,2] [3] stride=2"],
    ..TRANSPOSED
};

/// Pads of the general convolution along each axis.
fn transposed_pads(cx: &(impl Attrs + ?Sized), kernel: &[Dim]) -> Result<window::Pads> {
    let n = kernel.len();
    let (stride, dilation) = (window::positive(cx, 3, n)?, window::positive(cx, 7, n)?);
    let (padding, more) = (window::padding(cx, 4, n)?, window::bounded(cx, 5, n, 0)?);
    if let Some(i) = (0..n).find(|&i| more[i] >= stride[i].max(dilation[i]) && more[i] > 0) {
        let expected = format!("smaller than the stride ({}) or the dilation ({})", stride[i], dilation[i]);
        return Err(cx.bad(5, &cx.lit(5), &expected));
    }
    let one_axis = |i: usize| {
        let edge = &window::dilated(&kernel[i], dilation[i]) - &Dim::ONE;
        let [lo, hi] = match &padding {
            Padding::Explicit(pads) => pads[i].map(Dim::Const),
            Padding::Same => {
                let edge = edge.known().ok_or_else(|| cx.symbolic(4, &edge))?;
                let total = edge + 1 - stride[i];
                [Dim::Const(total.max(0) / 2), Dim::Const(total - total.max(0) / 2)]
            }
        };
        Ok([&edge - &lo, &(&edge - &hi) + &Dim::Const(more[i])])
    };
    (0..n).map(one_axis).collect()
}

fn transposed_shape<const N: usize>(cx: &ShapeCx<'_>) -> Result<Vec<Shape>> {
    check_ranks(cx, N)?;
    let (input, weight) = (cx.shape(0), cx.shape(1));
    let groups = window::count(cx, 6)?;
    let (stride, dilation) = (window::positive(cx, 3, N)?, window::positive(cx, 7, N)?);
    check_divides(cx, "input channels", &input[1], groups)?;
    check_divides(cx, "input channels", &weight[0], groups)?;
    check_transposed_channels(cx)?;
    let filters = &weight[1] * &Dim::Const(groups);
    check_bias(cx, &filters)?;
    let pads = transposed_pads(cx, &weight[2..])?;
    let mut out = Shape::of([input[0].clone(), filters]);
    for i in 0..N {
        let size = window::dilated(&input[i + 2], stride[i]);
        let extent = window::dilated(&weight[i + 2], dilation[i]);
        let p = window::positions(&size, &pads[i], &extent, 1);
        if p.known().is_some_and(|p| p < 1) && !input[i + 2].is(0) {
            let message = format!("the output of {} has size {p} along spatial axis {i}", cx.op().name);
            return Err(Error::new(Code::BadSize, message).help("use less padding or a larger kernel"));
        }
        out.0.push(if p.known().is_some_and(|p| p < 0) { Dim::Const(0) } else { p });
    }
    Ok(vec![out])
}

fn check_transposed_channels(cx: &ShapeCx<'_>) -> Result<()> {
    let (have, want) = (&cx.shape(0)[1], &cx.shape(1)[0]);
    if have.known().zip(want.known()).is_some_and(|(a, b)| a != b) {
        let message = format!("`input` of {} has {have} channels, `weight` expects {want}", cx.op().name);
        return Err(Error::new(Code::ShapeMismatch, message)
            .note(format!("input {}, weight {}", cx.shape(0), cx.shape(1)))
            .help(
                "the weight of a transposed convolution is [input channels, output channels / groups, ...]",
            ));
    }
    cx.same(have, want, "input channels")
}

fn transposed_expand<'a>(c: &ExpandCx<'a>) -> Vec<V<'a>> {
    let kernel = c.x[1].shape();
    let pads = c.get(|c| transposed_pads(c, kernel.get(2..).unwrap_or_default()));
    let weight = flip_weight(c.x[1], c.get(|c| window::count(c, 6)).max(1));
    let pads: Lit = window::pads_lit(&pads);
    let args = [weight, c.cx.lit(1), c.cx.lit(pads), c.x[7], c.x[3], c.x[6]];
    vec![add_bias(c.x[0].op(&CONV_GENERAL, &args), c.x[2])]
}

/// torch pads both sides alike: additional cropping at the end is applied to the result.
fn transposed_torch(s: &LoweringCx<'_>) -> Option<String> {
    let (input, kernel) = (&s.ty(0)?.shape, s.ty(1)?.shape.get(2..)?.to_vec());
    let n = kernel.len();
    let (stride, dilation) = (window::positive(s, 3, n).ok()?, window::positive(s, 7, n).ok()?);
    let pads = transposed_pads(s, &kernel).ok()?;
    let (mut padding, mut more, mut crop) = (vec![0; n], vec![0; n], vec![[Dim::Const(0), Dim::Const(0)]; n]);
    for i in 0..n {
        let edge = (&window::dilated(&kernel[i], dilation[i]) - &Dim::ONE).known()?;
        let [lo, hi] = [edge - pads[i][0].known()?, edge - pads[i][1].known()?];
        padding[i] = lo;
        match lo - hi {
            end if end < 0 => crop[i][1] = Dim::Const(end),
            end if end < stride[i].max(dilation[i]) => more[i] = end,
            _ => return None,
        }
        if lo < 0 || input[i + 2].is(0) {
            return None;
        }
    }
    let bias = if s.ty(2).is_some() { format!(", {}", s.arg(2)) } else { String::new() };
    let options = [
        window::torch_option("stride", &stride, 1),
        window::torch_option("padding", &padding, 0),
        window::torch_option("output_padding", &more, 0),
        window::torch_option("groups", &[s.int(6).ok()?], 1),
        window::torch_option("dilation", &dilation, 1),
    ];
    let call = format!("F.{}({}, {}{bias}{})", s.op().name, s.arg(0), s.arg(1), options.concat());
    let is_whole = crop.iter().all(|[_, end]| end.is(0));
    Some(if is_whole { call } else { window::torch_padded(s, &call, &crop, "") })
}

mod jax;
mod loops;
mod mlx;
#[cfg(test)]
mod tests;
