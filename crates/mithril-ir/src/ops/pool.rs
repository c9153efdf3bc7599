//! Pooling, and the two primitives that it consists of: windows of a tensor and their adjoint.

use super::reduce::at_least_f32;
use super::window::{self, Axis, Padding, triples};
use crate::dim::Dim;
use crate::dtype::{DType, Kinds};
use crate::error::{Code, Error, Result};
use crate::formula::{ExpandCx, GradCx, V};
use crate::interp::EvalCx;
use crate::lowering::LoweringRule::{Function, Template};
use crate::lowering::{Lowering, LoweringCx};
use crate::op::{
    Attr, BLANK, DTypeRule, DefaultLit, Eval, Grad, OpDef, Port, ShapeRule, Tolerance, Unsigned, attr,
    tensor, tensor_of,
};
use crate::rules::{Attrs, ShapeCx};
use crate::shape::Shape;
use crate::tensor::{Scalar, Tensor};

/// Ops of this file.
pub static OPS: &[&OpDef] =
    &[&WINDOWS, &FOLD_WINDOWS, &MAX_POOL1D, &MAX_POOL2D, &MAX_POOL3D, &AVG_POOL1D, &AVG_POOL2D, &AVG_POOL3D];

static WINDOWS_PORTS: &[Port] = &[
    tensor("input"),
    attr("window", Attr::Ints, DefaultLit::Required),
    attr("stride", Attr::Ints, DefaultLit::Int(1)),
    attr("pads", Attr::Any, DefaultLit::Int(0)),
    attr("dilation", Attr::Ints, DefaultLit::Int(1)),
    attr("value", Attr::Scalar, DefaultLit::Float(0.0)),
];

/// all windows of a tensor
pub static WINDOWS: OpDef = OpDef {
    name: "windows",
    doc: "Windows sliding over the spatial axes: `[n, c, *s]` becomes `[n, c, *positions, *window]`.\n\n\
          `output[n, c, p, k] = input'[n, c, p·stride + k·dilation]`, where `input'` is the input with `pads` \
          elements of `value` before and after each axis (negative: cut off). For integers an infinite `value` is \
          the end of their range.",
    aliases: &["sliding_window"],
    ports: WINDOWS_PORTS,
    shape: ShapeRule::Fn(windows_shape),
    dtype: DTypeRule::Same(0),
    eval: Some(Eval::Tensors(windows_eval)),
    loops: Some(loops::windows),
    on_rows: Some(loops::windows_on_rows),
    unsigned: Unsigned::Lowering,
    grad: Grad::Formula(|v| {
        let sizes = v.x[0].shape().iter().skip(2).cloned().collect::<Vec<_>>();
        vec![v.g.op(&FOLD_WINDOWS, &[v.cx.lit(sizes), v.x[2], v.x[3], v.x[4]])]
    }),
    lowering: Lowering {
        numpy: Template("_windows({0}, {window}, {stride}, {pads}, {dilation}, {value})"),
        torch: Function(torch::windows),
        jax: Template("_windows({0}, {window}, {stride}, {pads}, {dilation}, {value})"),
        mlx: Template("_windows({0}, {window}, {stride}, {pads}, {dilation}, {value})"),
        onnx: Function(super::onnx::windows),
        ..Lowering::NONE
    },
    cases: &[
        "[2,3,7] window=3",
        "[2,3,5,6] window=(2,3) stride=(1,2) pads=((1,0),(2,1)) value=-1.5",
        "[1,2,5,6] window=2 pads=((-1,1),(0,-2)) dilation=(2,1)",
        "i64[1,1,4,4]<9 window=2 stride=2",
        "[0,3,4] window=2",
    ],
    tolerance: Tolerance::Exact,
    ..BLANK
};

static FOLD_PORTS: &[Port] = &[
    tensor("input"),
    attr("sizes", Attr::Shape, DefaultLit::Required),
    attr("stride", Attr::Ints, DefaultLit::Int(1)),
    attr("pads", Attr::Any, DefaultLit::Int(0)),
    attr("dilation", Attr::Ints, DefaultLit::Int(1)),
];

/// adjoint of [`WINDOWS`]
pub static FOLD_WINDOWS: OpDef = OpDef {
    name: "fold_windows",
    doc: "Sums windows at the positions they were extracted from, the adjoint of `windows`: `[n, c, *positions, *window]` \
          becomes `[n, c, *sizes]`. Elements in the padding are dropped.",
    ports: FOLD_PORTS,
    shape: ShapeRule::Fn(fold_shape),
    dtype: DTypeRule::Arith,
    eval: Some(Eval::Tensors(fold_eval)),
    loops: Some(loops::fold),
    on_rows: Some(loops::fold_on_rows),
    unsigned: Unsigned::Bits,
    grad: Grad::Formula(|v| {
        let shape = v.x[0].shape();
        let window = shape.iter().skip(usize::midpoint(shape.rank(), 2)).cloned().collect::<Vec<_>>();
        vec![v.g.op(&WINDOWS, &[v.cx.lit(window), v.x[2], v.x[3], v.x[4]])]
    }),
    lowering: Lowering {
        numpy: Template("_fold_windows({0}, {sizes}, {stride}, {pads}, {dilation})"),
        torch: Function(torch::fold),
        jax: Template("_fold_windows({0}, {sizes}, {stride}, {pads}, {dilation})"),
        mlx: Template("_fold_windows({0}, {sizes}, {stride}, {pads}, {dilation})"),
        onnx: Function(super::onnx::fold_windows),
        ..Lowering::NONE
    },
    cases: &[
        "[2,3,5,3] sizes=7",
        "[2,1,3,3,2,3] sizes=(4,5) stride=(1,2) pads=((0,0),(1,1))",
        "i64[1,1,2,2,2,2]<9 sizes=(4,4) stride=2",
    ],
    tolerance: Tolerance::Contraction,
    ..BLANK
};

fn windows_shape(cx: &ShapeCx<'_>) -> Result<Vec<Shape>> {
    let n = cx.rank(0, &[3, 4, 5])? - 2;
    let (window, stride) = (window::positive(cx, 1, n)?, window::positive(cx, 2, n)?);
    let (pads, dilation) = (window::pads(cx, 3, n)?, window::positive(cx, 4, n)?);
    let input = cx.shape(0);
    let mut out = Shape::of(input[..2].iter().cloned());
    for i in 0..n {
        let extent = window::dilated(&Dim::Const(window[i]), dilation[i]);
        let p = window::positions(&input[i + 2], &pads[i], &extent, stride[i]);
        if p.known().is_some_and(|p| p < 0) {
            let [lo, hi] = pads[i].clone().map(|d| d.known().unwrap_or(0));
            window::check_fits(cx, i, &input[i + 2], [lo, hi], &extent)?;
        }
        out.0.push(p);
    }
    out.0.extend(window.into_iter().map(Dim::Const));
    Ok(vec![out])
}

fn fold_shape(cx: &ShapeCx<'_>) -> Result<Vec<Shape>> {
    let n = cx.rank(0, &[4, 6, 8])? / 2 - 1;
    let (stride, dilation) = (window::positive(cx, 2, n)?, window::positive(cx, 4, n)?);
    let (pads, sizes) = (window::pads(cx, 3, n)?, cx.dims(1)?);
    if sizes.len() != n {
        return Err(cx.bad(1, &cx.lit(1), &format!("{n} sizes, one for each spatial axis")));
    }
    let input = cx.shape(0);
    for i in 0..n {
        let extent = window::dilated(&input[2 + n + i], dilation[i]);
        let p = window::positions(&sizes[i], &pads[i], &extent, stride[i]);
        cx.same(&input[2 + i], &p, "numbers of windows")?;
    }
    Ok(vec![Shape::of(input[..2].iter().cloned().chain(sizes))])
}

/// For each position and window element, in this order, the offset of the element in a plane of the input.
fn sources(
    call: &EvalCx<'_>,
    sizes: &[usize],
    positions: &[usize],
    window: &[usize],
) -> Result<Vec<Option<usize>>> {
    let n = sizes.len();
    let (stride, dilation) = (window::positive(call, 2, n)?, window::positive(call, 4, n)?);
    let pads = window::pads(call, 3, n)?;
    let mut axes: Vec<Axis> = (n..3).map(|_| Axis::unit()).collect();
    for i in 0..n {
        let lo = pads[i][0].known().unwrap_or(0);
        axes.push(Axis::new(sizes[i], window[i], positions[i], [stride[i], lo, dilation[i], 1]));
    }
    let [a, b, c] = [&axes[0], &axes[1], &axes[2]];
    let one = |[i, j, k]: [usize; 3], [p, q, r]: [usize; 3]| {
        let (i, j, k) = (a.row(i)[p]?, b.row(j)[q]?, c.row(k)[r]?);
        Some((i * b.input + j) * c.input + k)
    };
    let kernel = [a.kernel, b.kernel, c.kernel];
    let places = triples([a.out, b.out, c.out]);
    Ok(places.flat_map(|p| triples(kernel).map(move |k| (k, p))).map(|(k, p)| one(k, p)).collect())
}

/// The fill value as an element of `dtype`.
fn filling(dtype: DType, value: f64) -> Scalar {
    match dtype.int_range() {
        Some((least, _)) if value == f64::NEG_INFINITY => Scalar::Int(least),
        Some((_, most)) if value == f64::INFINITY => Scalar::Int(most),
        Some(_) => Scalar::Int(value as i128),
        None => Scalar::Float(value),
    }
}

fn windows_eval(call: &EvalCx<'_>) -> Result<Vec<Tensor>> {
    let (x, out) = (call.tensor(0), call.shape());
    let n = x.rank() - 2;
    let sources = sources(call, &x.shape()[2..], &out[2..2 + n], &out[2 + n..])?;
    let plane: usize = x.shape()[2..].iter().product();
    let value = filling(x.dtype(), call.f64(5)?);
    let at = |i: usize| {
        let source = sources[i % sources.len()];
        source.map_or(value, |source| x.get(i / sources.len() * plane + source))
    };
    Ok(vec![Tensor::build(x.dtype(), out, at)])
}

fn fold_eval(call: &EvalCx<'_>) -> Result<Vec<Tensor>> {
    let (x, out) = (call.tensor(0), call.shape());
    let n = out.len() - 2;
    let sources = sources(call, &out[2..], &x.shape()[2..2 + n], &x.shape()[2 + n..])?;
    let plane: usize = out[2..].iter().product();
    let target = |i: usize| Some(i / sources.len() * plane + sources[i % sources.len()]?);
    let len = out.iter().product();
    if call.dtype().is_float() {
        let mut sums = vec![0.0; len];
        for i in 0..x.len() {
            if let Some(at) = target(i) {
                sums[at] += x.get(i).f64();
            }
        }
        return Ok(vec![Tensor::from_f64s(call.dtype(), out, &sums)]);
    }
    let mut sums = vec![0_i128; len];
    for i in 0..x.len() {
        if let Some(at) = target(i) {
            sums[at] = sums[at].wrapping_add(x.get(i).int());
        }
    }
    Ok(vec![Tensor::build(call.dtype(), out, |i| Scalar::Int(sums[i]))])
}

// --- pooling with windows ----------------------------------------------------------------------------------

const KERNEL: Port = attr("kernel_size", Attr::Ints, DefaultLit::Required);
const STRIDE: Port = attr("stride", Attr::OptInts, DefaultLit::None);
const PADDING: Port = attr("padding", Attr::Any, DefaultLit::Int(0));
const CEIL: Port = attr("ceil_mode", Attr::Bool, DefaultLit::Bool(false));

static MAX_PORTS: &[Port] = &[
    tensor_of("input", Kinds::NUMBER),
    KERNEL,
    STRIDE,
    PADDING,
    attr("dilation", Attr::Ints, DefaultLit::Int(1)),
    CEIL,
];

static AVG_PORTS: &[Port] = &[
    tensor_of("input", Kinds::NUMBER),
    KERNEL,
    STRIDE,
    PADDING,
    CEIL,
    attr("count_include_pad", Attr::Bool, DefaultLit::Bool(true)),
];

/// The arguments of a use of a pooling.
pub(super) struct Pool {
    pub kernel: Vec<i64>,
    pub stride: Vec<i64>,
    pub dilation: Vec<i64>,
    pub padding: Padding,
    pub ceil: bool,
}

impl Pool {
    fn read(cx: &(impl Attrs + ?Sized), n: usize) -> Result<Self> {
        let port = |name| cx.op().port(name);
        let kernel = window::positive(cx, 1, n)?;
        let stride = if cx.absent(2) { kernel.clone() } else { window::positive(cx, 2, n)? };
        let dilation = port("dilation").map_or(Ok(vec![1; n]), |i| window::positive(cx, i, n))?;
        let ceil = port("ceil_mode").map_or(Ok(false), |i| cx.bool(i))?;
        if kernel.iter().fold(1_i64, |n, &k| n.saturating_mul(k)) > window::MAX_TABLE {
            return Err(cx.bad(
                1,
                &cx.lit(1),
                &format!("a window of at most {} elements", window::MAX_TABLE),
            ));
        }
        let pool = Self { kernel, stride, dilation, padding: window::padding(cx, 3, n)?, ceil };
        if let Padding::Explicit(pads) = &pool.padding
            && let Some(i) = (0..n).find(|&i| pads[i].iter().any(|p| *p >= pool.extent(i)))
        {
            let (pair, name, extent) = (pads[i], cx.op().name, pool.extent(i));
            let message =
                format!("padding {pair:?} of {name} is not less than the kernel, which spans {extent}");
            return Err(Error::new(Code::BadArgument, message)
                .help("a window must not lie in the padding alone; pad less, or pad the input before"));
        }
        Ok(pool)
    }
    fn extent(&self, i: usize) -> i64 {
        (self.kernel[i] - 1) * self.dilation[i] + 1
    }
    /// Pads of axis `i` of size `n`; with `ceil_mode` they include the part of the last window beyond the padding.
    fn pads(&self, cx: &(impl Attrs + ?Sized), i: usize, n: &Dim) -> Result<[Dim; 2]> {
        let (extent, stride) = (self.extent(i), self.stride[i]);
        let [lo, hi] = match &self.padding {
            Padding::Same => return window::same_pads(cx, 3, n, extent, stride),
            Padding::Explicit(pads) => pads[i],
        };
        let beyond = match n.known() {
            _ if !self.ceil => 0,
            Some(n) => {
                let room = n.saturating_add(lo + hi) - extent;
                let steps = room.saturating_add(stride - 1).div_euclid(stride);
                // The last window must start inside the input or the padding before it.
                let steps = if steps * stride >= n + lo { steps - 1 } else { steps };
                (steps * stride - room).max(0)
            }
            // The last window always starts there.
            None if stride + hi <= extent => stride - 1,
            None if n.has_var() => {
                let message = format!("the size of {} is not known yet", cx.op().name);
                return Err(Error::new(Code::UnknownShape, message).help("declare the shape of the input"));
            }
            None => return Err(cx.symbolic(0, n)),
        };
        Ok([Dim::Const(lo), Dim::Const(hi + beyond)])
    }
    fn all_pads(&self, cx: &(impl Attrs + ?Sized), input: &Shape) -> Result<window::Pads> {
        (0..self.kernel.len()).map(|i| self.pads(cx, i, &input[i + 2])).collect()
    }
}

fn pool_shape<const N: usize>(cx: &ShapeCx<'_>) -> Result<Vec<Shape>> {
    check_rank(cx, N)?;
    let pool = Pool::read(cx, N)?;
    let input = cx.shape(0);
    let mut out = Shape::of(input[..2].iter().cloned());
    for i in 0..N {
        let size = &input[i + 2];
        if size.is(0) {
            return Err(nothing_to_pool(cx, i));
        }
        let extent = Dim::Const(pool.extent(i));
        out.0.push(if pool.padding == Padding::Same {
            window::ceil_div(size, pool.stride[i])
        } else {
            let pads = pool.pads(cx, i, size)?;
            let p = window::positions(size, &pads, &extent, pool.stride[i]);
            if p.known().is_some_and(|p| p < 1) {
                let [lo, hi] = pads.map(|d| d.known().unwrap_or(0));
                window::check_fits(cx, i, size, [lo, hi], &extent)?;
            }
            p
        });
    }
    Ok(vec![out])
}

pub(super) fn check_rank(cx: &ShapeCx<'_>, n: usize) -> Result<()> {
    if cx.shape(0).rank() == n + 1 {
        let message = format!("`input` of {} has {} dimensions: {}", cx.op().name, n + 1, cx.shape(0));
        return Err(Error::new(Code::RankMismatch, message).help(
            "batch and channels come first; if one of them is missing, add an axis of size 1 with expand_dims",
        ));
    }
    cx.rank(0, &[n + 2]).map(|_| ())
}

pub(super) fn nothing_to_pool(cx: &ShapeCx<'_>, i: usize) -> Error {
    let message = format!("spatial axis {i} of the input of {} has no elements", cx.op().name);
    Error::new(Code::BadSize, message)
        .note(format!("the input has shape {}", cx.shape(0)))
        .help("pooling needs at least one element")
}

/// The arguments of a pooling and the pads of all axes.
pub(super) fn pool_of(s: &LoweringCx<'_>) -> Option<(Pool, window::Pads)> {
    let shape = &s.ty(0)?.shape;
    let pool = Pool::read(s, shape.rank().checked_sub(2)?).ok()?;
    let pads = pool.all_pads(s, shape).ok()?;
    Some((pool, pads))
}

const MAX_POOL: OpDef = OpDef {
    ports: MAX_PORTS,
    dtype: DTypeRule::Same(0),
    expand: Some(max_expand),
    loops: Some(loops::max),
    padding_value: Some(f64::NEG_INFINITY),
    on_rows: Some(loops::pool_on_rows),
    unsigned: Unsigned::Order,
    grad: Grad::Formula(max_grad),
    lowering: Lowering {
        numpy: Function(max_helper),
        torch: Function(max_torch),
        jax: Function(jax::max),
        mlx: Function(max_helper),
        ggml: Function(|s| {
            let (pool, pads) = pool_of(s)?;
            let dense = pool.dilation.iter().all(|&d| d == 1);
            if dense { super::ggml::pooling(s, true, &pool.kernel, &pool.stride, &pads) } else { None }
        }),
        onnx: Function(super::onnx::max_pool),
        ..Lowering::NONE
    },
    tolerance: Tolerance::Exact,
    ..BLANK
};

macro_rules! max_doc {
    ($shape:literal) => {
        concat!(
            "Largest element of each window; input `", $shape, "`.\n\n`stride` is `kernel_size` if not given. \
             Padding must be smaller than the kernel and is never the maximum: it is -∞, for integers their smallest value. Each axis \
             gets `⌊(size + before + after - dilation·(k - 1) - 1) / stride⌋ + 1` elements; with `ceil_mode` \
             rounded up, so that the last window may reach beyond the end, but starts inside. `padding` is an \
             integer, one per axis, pairs, `\"valid\"` or `\"same\"`. NaN propagates. Among equal elements \
             the first gets the gradient."
        )
    };
}

/// maximum of windows over sequences
pub static MAX_POOL1D: OpDef = OpDef {
    name: "max_pool1d",
    doc: max_doc!("[n, c, length]"),
    shape: ShapeRule::Fn(pool_shape::<1>),
    cases: &["[2,3,8] kernel_size=2", "[2,3,8] kernel_size=3 stride=2 padding=1 dilation=2 ceil_mode=true"],
    ..MAX_POOL
};

/// maximum of windows over images
pub static MAX_POOL2D: OpDef = OpDef {
    name: "max_pool2d",
    doc: max_doc!("[n, c, height, width]"),
    aliases: &["max_pool"],
    shape: ShapeRule::Fn(pool_shape::<2>),
    cases: &[
        "[2,3,6,5] kernel_size=2",
        "[2,3,6,5] kernel_size=3 stride=2 padding=1",
        "[1,2,7,6] kernel_size=(2,3) stride=(2,1) ceil_mode=true",
        "[1,2,7,6] kernel_size=3 padding=\"same\" stride=2",
        "[1,2,4,5] kernel_size=(3,4) stride=(1,2) padding=(2,3)",
        "[0,2,4,4] kernel_size=2",
    ],
    ..MAX_POOL
};

/// maximum of windows over volumes
pub static MAX_POOL3D: OpDef = OpDef {
    name: "max_pool3d",
    doc: max_doc!("[n, c, depth, height, width]"),
    shape: ShapeRule::Fn(pool_shape::<3>),
    cases: &["[1,2,4,5,4] kernel_size=2 stride=(1,2,2)"],
    ..MAX_POOL
};

/// All windows as `[n, c, *positions, elements]`.
fn flat_windows<'a>(c: &ExpandCx<'a>, value: f64) -> Result<(V<'a>, Vec<V<'a>>)> {
    let input = c.x[0].shape();
    let n = input.rank().saturating_sub(2);
    let pool = Pool::read(c, n)?;
    let pads = pool.all_pads(c, &input)?;
    let args = [c.cx.lit(pool.stride), c.cx.lit(window::pads_lit(&pads)), c.cx.lit(pool.dilation)];
    let [stride, pads, dilation] = args;
    let all = [c.cx.lit(pool.kernel.clone()), stride, pads, dilation, c.cx.lit(value)];
    let windows = c.x[0].op(&WINDOWS, &all);
    let mut shape: Vec<Dim> = windows.shape().iter().take(n + 2).cloned().collect();
    shape.push(Dim::Const(pool.kernel.iter().product()));
    Ok((windows.reshape(shape), args.to_vec()))
}

fn max_expand<'a>(c: &ExpandCx<'a>) -> Vec<V<'a>> {
    match flat_windows(c, f64::NEG_INFINITY) {
        Ok((windows, _)) => vec![windows.max(-1, false)],
        Err(error) => {
            c.cx.fail(error);
            vec![c.x[0]]
        }
    }
}

fn max_grad<'a>(v: &GradCx<'a>) -> Vec<V<'a>> {
    let Ok((windows, geometry)) = flat_windows(v, f64::NEG_INFINITY) else { return vec![] };
    let input = v.x[0].shape();
    let elements = windows.dim(-1).known().unwrap_or(1);
    let first = windows.argmax(-1, true);
    let numbers = v.cx.lit(Tensor::from_parts(&[elements as usize], (0..elements).collect::<Vec<i64>>()));
    let g = v.g.expand_dims(-1);
    let to_windows = first.equal(numbers).select(g, 0.0);
    let kernel = v.get(|c| window::positive(c, 1, input.rank() - 2)).into_iter().map(Dim::Const);
    let shape: Vec<Dim> = v.g.shape().iter().cloned().chain(kernel).collect();
    let sizes: Vec<Dim> = input.iter().skip(2).cloned().collect();
    let mut args = vec![v.cx.lit(sizes)];
    args.extend(geometry);
    vec![to_windows.reshape(shape).op(&FOLD_WINDOWS, &args)]
}

fn max_helper(s: &LoweringCx<'_>) -> Option<String> {
    let input = &s.ty(0)?.shape;
    let pool = Pool::read(s, input.rank().checked_sub(2)?).ok()?;
    let pads = pool.all_pads(s, input).ok()?;
    Some(format!(
        "_max_pool({}, {}, {}, {}, {})",
        s.arg(0),
        python(s, &pool.kernel),
        python(s, &pool.stride),
        crate::lowering::tuple(pads.iter().map(|pair| s.dims(pair))),
        python(s, &pool.dilation)
    ))
}

fn python(s: &LoweringCx<'_>, values: &[i64]) -> String {
    s.dims(&values.iter().copied().map(Dim::Const).collect::<Vec<_>>())
}

/// The arguments of `windows` and `fold_windows` that follow the second one, as tuples.
fn geometry(s: &LoweringCx<'_>, n: usize, first: usize) -> Option<[String; 3]> {
    let (stride, dilation) = (window::positive(s, first, n).ok()?, window::positive(s, first + 2, n).ok()?);
    let pads = window::pads(s, first + 1, n).ok()?;
    let pads = crate::lowering::tuple(pads.iter().map(|pair| s.dims(pair)));
    Some([python(s, &stride), pads, python(s, &dilation)])
}

/// The input and the padding argument of torch; asymmetric padding is applied to the input with `value`.
fn torch_input(s: &LoweringCx<'_>, pool: &Pool, value: &str) -> Option<(String, String)> {
    let ceil = if pool.ceil { ", ceil_mode=True" } else { "" };
    // PyTorch does not accept padding of more than half a window.
    let even = |(i, [lo, hi]): (usize, &[i64; 2])| (lo == hi && *lo <= pool.extent(i) / 2).then_some(*lo);
    if let Padding::Explicit(pads) = &pool.padding
        && let Some(even) = pads.iter().enumerate().map(even).collect::<Option<Vec<i64>>>()
    {
        return Some((s.arg(0).to_owned(), window::torch_option("padding", &even, 0) + ceil));
    }
    let pads = pool.all_pads(s, &s.ty(0)?.shape).ok()?;
    Some((window::torch_padded(s, s.arg(0), &pads, value), String::new()))
}

/// Kernel size, and stride if it differs.
fn torch_kernel(pool: &Pool) -> String {
    let kernel = window::torch_option("", &pool.kernel, 0).replace('=', "");
    if pool.stride == pool.kernel {
        kernel
    } else {
        kernel + &window::torch_option("stride", &pool.stride, 0)
    }
}

fn max_torch(s: &LoweringCx<'_>) -> Option<String> {
    let ty = s.ty(0).filter(|ty| ty.dtype.is_float())?;
    let pool = Pool::read(s, ty.shape.rank().checked_sub(2)?).ok()?;
    let (input, padding) = torch_input(s, &pool, ", value=-torch.inf")?;
    let (kernel, dilation) = (torch_kernel(&pool), window::torch_option("dilation", &pool.dilation, 1));
    Some(format!("F.{}({input}{kernel}{padding}{dilation})", s.op().name))
}

const AVG_POOL: OpDef = OpDef {
    ports: AVG_PORTS,
    dtype: DTypeRule::Float,
    expand: Some(avg_expand),
    loops: Some(loops::avg),
    on_rows: Some(loops::pool_on_rows),
    lowering: Lowering {
        torch: Function(avg_torch),
        jax: Function(jax::avg),
        // ggml always divides by the size of the window.
        ggml: Function(|s| {
            let (pool, pads) = pool_of(s)?;
            let counts = s.bool(5).ok()? && !pool.ceil && pool.padding != Padding::Same;
            let fits = counts || pads.iter().flatten().all(|p| p.is(0));
            if fits { super::ggml::pooling(s, false, &pool.kernel, &pool.stride, &pads) } else { None }
        }),
        onnx: Function(super::onnx::avg_pool),
        ..Lowering::NONE
    },
    tolerance: Tolerance::Contraction,
    ..BLANK
};

macro_rules! avg_doc {
    ($shape:literal) => {
        concat!(
            "Mean of each window; input `", $shape, "`.\n\n`stride` is `kernel_size` if not given. Padding \
             must be smaller than the kernel and counts as zeros, or not at all with \
             `count_include_pad=False`; elements that the last window of `ceil_mode` covers beyond the padding \
             never count. Sizes and `padding` as in \
             max pooling."
        )
    };
}

/// mean of windows over sequences
pub static AVG_POOL1D: OpDef = OpDef {
    name: "avg_pool1d",
    doc: avg_doc!("[n, c, length]"),
    shape: ShapeRule::Fn(pool_shape::<1>),
    cases: &["[2,3,8] kernel_size=2", "[2,3,8] kernel_size=3 stride=2 padding=1 ceil_mode=true"],
    ..AVG_POOL
};

/// mean of windows over images
pub static AVG_POOL2D: OpDef = OpDef {
    name: "avg_pool2d",
    doc: avg_doc!("[n, c, height, width]"),
    aliases: &["avg_pool", "average_pool2d", "mean_pool2d"],
    shape: ShapeRule::Fn(pool_shape::<2>),
    cases: &[
        "[2,3,6,5] kernel_size=2",
        "[2,3,6,5] kernel_size=3 stride=2 padding=1",
        "[2,3,6,5] kernel_size=3 stride=2 padding=1 count_include_pad=false",
        "[1,2,7,6] kernel_size=(2,3) stride=(2,1) ceil_mode=true",
        "[1,2,7,6] kernel_size=3 padding=\"same\" stride=2",
        "[1,2,4,5] kernel_size=(3,4) stride=(1,2) padding=(2,3)",
        "[1,2,4,5] kernel_size=3 stride=2 padding=2 count_include_pad=false",
    ],
    ..AVG_POOL
};

/// mean of windows over volumes
pub static AVG_POOL3D: OpDef = OpDef {
    name: "avg_pool3d",
    doc: avg_doc!("[n, c, depth, height, width]"),
    shape: ShapeRule::Fn(pool_shape::<3>),
    cases: &["[1,2,4,5,4] kernel_size=2 stride=(1,2,2)"],
    ..AVG_POOL
};

fn avg_expand<'a>(c: &ExpandCx<'a>) -> Vec<V<'a>> {
    let dtype = c.x[0].dtype();
    let means = flat_windows(c, 0.0).and_then(|(windows, _)| {
        let sums = at_least_f32(windows).sum(-1, false);
        let counts = counts(c, sums.dtype())?;
        Ok((sums / counts).cast(dtype))
    });
    vec![means.unwrap_or_else(|error| {
        c.cx.fail(error);
        c.x[0]
    })]
}

/// The divisor of each window, to be broadcast.
fn counts<'a>(c: &ExpandCx<'a>, dtype: DType) -> Result<V<'a>> {
    let input = c.x[0].shape();
    let n = input.rank().saturating_sub(2);
    let pool = Pool::read(c, n)?;
    let include = c.bool(5)?;
    let mut product = c.cx.lit(1.0);
    for i in 0..n {
        let [lo, hi] = pool.pads(c, i, &input[i + 2])?;
        let declared = match &pool.padding {
            Padding::Explicit(pads) => pads[i].map(Dim::Const),
            Padding::Same => [lo.clone(), hi.clone()],
        };
        let whole = if include { hi == declared[1] } else { lo.is(0) && hi.is(0) };
        if whole {
            product = product * pool.kernel[i] as f64;
            continue;
        }
        let (size, pads) = if include {
            (&(&input[i + 2] + &declared[0]) + &declared[1], [Dim::Const(0), &hi - &declared[1]])
        } else {
            (input[i + 2].clone(), [lo, hi])
        };
        let ones = c.cx.ones([Dim::ONE, Dim::ONE, size], dtype);
        let args = [pool.kernel[i], pool.stride[i]].map(|v| c.cx.lit(v));
        let windows = ones.op(&WINDOWS, &[args[0], args[1], c.cx.lit(window::pads_lit(&[pads]))]);
        let along = windows.sum([0, 1, 3], false);
        let mut shape = vec![Dim::ONE; n - i];
        shape[0] = along.dim(0);
        product = product * along.reshape(shape);
    }
    Ok(product)
}

fn avg_torch(s: &LoweringCx<'_>) -> Option<String> {
    let ty = s.ty(0).filter(|ty| ty.dtype.is_float())?;
    let pool = Pool::read(s, ty.shape.rank().checked_sub(2)?).ok()?;
    let (input, padding) = torch_input(s, &pool, "")?;
    let (kernel, include) = (torch_kernel(&pool), s.bool(5).ok()?);
    // Padding that was applied to the input is counted, and so is the part of a window beyond it.
    if input != s.arg(0) && (!include || pool.ceil) {
        return None;
    }
    let count = if include { "" } else { ", count_include_pad=False" };
    let call = |x: &str| format!("F.{}({x}{kernel}{padding}{count})", s.op().name);
    // torch has no 3-d mean pooling of 16-bit floats on the CPU.
    let is_half = ty.dtype.size() < DType::F32.size() && pool.kernel.len() == 3;
    Some(if is_half {
        format!("{}.to({})", call(&format!("{input}.float()")), s.dtype(ty.dtype))
    } else {
        call(&input)
    })
}

mod jax;
mod loops;
#[cfg(test)]
mod tests;
mod torch;
