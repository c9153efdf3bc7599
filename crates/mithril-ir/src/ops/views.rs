//! More views of a tensor: additional axes, coordinate grids, windows along an axis and of images, differences.

use crate::dim::Dim;
use crate::dtype::{DType, Kinds};
use crate::error::{Code, Error, Result};
use crate::formula::{ExpandCx, V};
use crate::literal::Lit;
use crate::lowering::LoweringRule::Function;
use crate::lowering::{Lowering, LoweringCx};
use crate::op::{
    Attr, BLANK, DTypeRule, DefaultLit, EACH, Grad, OpDef, Port, PortKind, ShapeRule, Tolerance, attr,
    optional, tensor,
};
use crate::ops::joining::CONCAT;
use crate::ops::movement::{INPUT, MOVE};
use crate::ops::pool::{FOLD_WINDOWS, WINDOWS};
use crate::ops::window;
use crate::rules::{Attrs, DTypes, ShapeCx};
use crate::shape::Shape;

/// Ops of this file.
pub static OPS: &[&OpDef] =
    &[&ATLEAST_1D, &ATLEAST_2D, &ATLEAST_3D, &UNFLATTEN, &MESHGRID, &DIFF, &UNFOLD_AXIS, &UNFOLD, &FOLD];

/// The input in another shape.
fn reshaped(x: V<'_>, dims: impl IntoIterator<Item = Dim>) -> V<'_> {
    x.reshape(Lit::tuple(dims))
}

// --- more axes ---------------------------------------------------------------------------------------------

/// The shape with axes of size 1 added, so that there are at least `n`.
fn at_least(shape: &Shape, n: usize) -> Shape {
    let one = || Dim::ONE;
    Shape(match (n, &shape[..]) {
        (_, dims) if dims.len() >= n => dims.iter().cloned().collect(),
        (_, []) => (0..n).map(|_| one()).collect(),
        (2, [a]) => [one(), a.clone()].into_iter().collect(),
        (_, [a]) => [one(), a.clone(), one()].into_iter().collect(),
        (_, dims) => dims.iter().cloned().chain([one()]).collect(),
    })
}

/// The definition of `atleast_nd`.
macro_rules! at_least {
    ($n:literal, $name:literal, $layer:literal, $doc:literal) => {
        OpDef {
            name: $name,
            doc: $doc,
            layer: $layer,
            ports: &[INPUT],
            shape: ShapeRule::Fn(|cx| Ok(vec![at_least(cx.shape(0), $n)])),
            expand: Some(|c| vec![reshaped(c.x[0], at_least(&c.x[0].shape(), $n).0.to_vec())]),
            cases: &["[]", "[3]", "[2,3]", "i64[2,0,3]", "[1,2,3,2]"],
            ..MOVE
        }
    };
}

/// one axis or more
pub static ATLEAST_1D: OpDef = at_least!(
    1,
    "atleast_1d",
    "AtLeast1d",
    "The input with at least one axis: a 0-d tensor becomes a vector of one element."
);
/// two axes or more
pub static ATLEAST_2D: OpDef = at_least!(
    2,
    "atleast_2d",
    "AtLeast2d",
    "The input with axes of size 1 in front, so that there are at least two: `[n]` becomes `[1, n]`."
);
/// three axes or more
pub static ATLEAST_3D: OpDef = at_least!(
    3,
    "atleast_3d",
    "AtLeast3d",
    "The input with axes of size 1, so that there are at least three: `[n]` becomes `[1, n, 1]` and `[m, n]` becomes \
     `[m, n, 1]`, as in NumPy and torch."
);

/// The shape with an axis split into several.
fn unflattened(cx: &(impl Attrs + ?Sized), from: &Shape) -> Result<Shape> {
    let (axis, mut parts) = (cx.axis(1, from.rank())?, cx.dims(2)?);
    let open: Vec<usize> = (0..parts.len()).filter(|&i| parts[i].is(-1)).collect();
    let wrong =
        || cx.bad(2, &cx.lit(2), &format!("sizes that multiply to {}, one of them may be -1", from[axis]));
    if open.len() > 1 || parts.is_empty() {
        return Err(wrong());
    }
    if let [open] = open[..] {
        parts[open] = Dim::ONE;
        let rest = parts.iter().fold(Dim::ONE, |n, d| &n * d);
        parts[open] = from[axis].exact_div(&rest).ok_or_else(wrong)?;
    }
    let all = parts.iter().fold(Dim::ONE, |n, d| &n * d);
    if all.known().is_some() && from[axis].known().is_some() && all != from[axis] {
        return Err(wrong());
    }
    Ok(from[..axis].iter().cloned().chain(parts).chain(from[axis + 1..].iter().cloned()).collect())
}

/// one axis split into several
pub static UNFLATTEN: OpDef = OpDef {
    name: "unflatten",
    doc: "Splits an axis into several of these sizes, one of which may be -1; the inverse of `flatten`.",
    layer: "Unflatten",
    ports: &[
        INPUT,
        attr("axis", Attr::Int, DefaultLit::Required),
        attr("sizes", Attr::Shape, DefaultLit::Required),
    ],
    shape: ShapeRule::Fn(|cx| {
        if cx.shape(0).iter().any(Dim::has_var) {
            return Err(cx.unknown());
        }
        Ok(vec![unflattened(cx, cx.shape(0))?])
    }),
    expand: Some(|c| {
        let shape = c.get(|c| unflattened(c, &c.x[0].shape()));
        vec![reshaped(c.x[0], shape.0.to_vec())]
    }),
    cases: &["[2,6] axis=1 sizes=(2,3)", "[6,2] axis=0 sizes=(-1,2)", "i64[2,0] axis=-1 sizes=(0,3)"],
    ..MOVE
};

// --- grids -------------------------------------------------------------------------------------------------

/// The size of each input, which has at most one axis.
fn grid_sizes(cx: &ShapeCx<'_>) -> Result<Vec<Dim>> {
    let shapes = cx.shapes_from(1);
    if shapes.is_empty() {
        let message = "meshgrid is given no inputs";
        return Err(Error::new(Code::BadArgument, message).help("give it the coordinates along each axis"));
    }
    (0..shapes.len())
        .map(|i| {
            cx.rank(1 + i, &[0, 1])?;
            Ok(shapes[i].iter().next().cloned().unwrap_or(Dim::ONE))
        })
        .collect()
}

/// Whether the first two axes are exchanged.
fn is_crossed(cx: &(impl Attrs + ?Sized), inputs: usize) -> Result<bool> {
    Ok(cx.text(0)? == "xy" && inputs > 1)
}

/// Coordinates of the points of a grid
pub static MESHGRID: OpDef = OpDef {
    name: "meshgrid",
    doc: "The coordinates of all points of a grid, from those along each axis: for inputs of `[m]` and `[n]` two outputs \
          of `[m, n]`, where `first[i, j]` is `input[i]` and `second[i, j]` is `other[j]`. With `indexing=\"xy\"` the \
          first two axes change places: `[n, m]`, NumPy's default. Inputs have one axis or none.",
    ports: &[
        attr("indexing", Attr::Choice(&["ij", "xy"]), DefaultLit::Str("ij")),
        Port { name: "inputs", kind: PortKind::Variadic(Kinds::ANY), default: DefaultLit::Required },
    ],
    outputs: EACH,
    shape: ShapeRule::Fn(|cx| {
        let mut sizes = grid_sizes(cx)?;
        if is_crossed(cx, sizes.len())? {
            sizes.swap(0, 1);
        }
        Ok(vec![Shape::of(sizes.iter().cloned()); sizes.len()])
    }),
    dtype: DTypeRule::Fn(|cx| {
        Ok(DTypes::keep((1..cx.len()).map(|i| cx.dtype(i).unwrap_or(cx.float)).collect::<Vec<_>>()))
    }),
    expand: Some(|c| {
        let inputs = c.x.get(1..).unwrap_or_default();
        let crossed = c.get(|c| is_crossed(c, inputs.len()));
        let place = |i: usize| if crossed && i < 2 { 1 - i } else { i };
        let size = |x: &V<'_>| if x.rank() == 0 { Dim::ONE } else { x.dim(0) };
        let mut sizes: Vec<Dim> = inputs.iter().map(size).collect();
        if crossed {
            sizes.swap(0, 1);
        }
        let whole = c.cx.lit(Lit::tuple(sizes.iter().cloned()));
        let one = |(i, x): (usize, &V<'_>)| {
            let mut shape = vec![Dim::ONE; inputs.len()];
            shape[place(i)] = size(x);
            reshaped(c.cx.value(x.id()), shape).broadcast_to(whole)
        };
        inputs.iter().enumerate().map(one).collect()
    }),
    cases: &["[2] [3]", "indexing=\"xy\" [2] [3] [4]", "[3] []", "[2] i64[3]", "[4]", "[0] [2]"],
    tolerance: Tolerance::Exact,
    ..BLANK
};

// --- differences -------------------------------------------------------------------------------------------

/// `input[1:] - input[:-1]`, n times
pub static DIFF: OpDef = OpDef {
    name: "diff",
    doc: "Differences of neighbors along `axis`, `n` times: `input[1:] - input[:-1]`. `prepend` and `append`  \
          are first added before and after the input, unless `n` is 0. Of booleans: whether neighbors differ.",
    layer: "Diff",
    ports: &[
        tensor("input"),
        attr("n", Attr::Int, DefaultLit::Int(1)),
        attr("axis", Attr::Int, DefaultLit::Int(-1)),
        optional("prepend"),
        optional("append"),
    ],
    dtype: DTypeRule::Fn(|cx| {
        let dtype = cx.promoted();
        Ok(DTypes::all(cx, dtype, [dtype]))
    }),
    expand: Some(|c| {
        let mut x = c.x[0];
        let axis = c.get(|c| c.axis(2, c.x[0].rank()));
        let times = c.get(|c| c.int(1));
        let parts: Vec<V<'_>> = [c.x[3], x, c.x[4]].into_iter().filter(|v| v.is_some()).collect();
        // As in NumPy and PyTorch, nothing is prepended or appended if no difference is taken.
        if parts.len() > 1 && times != 0 {
            let args: Vec<V<'_>> = [c.cx.lit(axis)].into_iter().chain(parts).collect();
            x = c.cx.call(&CONCAT, &args);
        }
        if !(0..=64).contains(&times) {
            c.cx.fail(c.bad(1, &c.lit(1), "from 0 to 64"));
            return vec![x];
        }
        for _ in 0..times {
            let part = |start: Lit, stop: Lit| {
                let along = |last: Lit| {
                    let whole = std::iter::repeat_n(Lit::None, axis);
                    c.cx.lit(Lit::Tuple(whole.chain([last]).collect()))
                };
                x.slice(along(start), along(stop))
            };
            let (later, earlier) = (part(Lit::int(1), Lit::None), part(Lit::None, Lit::int(-1)));
            x = if x.dtype() == DType::Bool { later.not_equal(earlier) } else { later - earlier };
        }
        vec![x]
    }),
    cases: &[
        "[5]",
        "[3,4] n=2",
        "[3,4] axis=0 n=0",
        "i64[4,2] axis=0",
        "bool[5]",
        "[2,3] n=1 axis=1 [2,1] [2,2]",
        "[2] n=3",
    ],
    tolerance: Tolerance::Rounded,
    ..BLANK
};

// --- windows -----------------------------------------------------------------------------------------------

/// Windows along one axis
pub static UNFOLD_AXIS: OpDef = OpDef {
    name: "unfold_axis",
    doc: "All windows of `size` elements along `axis`, `step` apart, as a new last axis: `[n]` becomes \
          `[⌊(n - size) / step⌋ + 1, size]`. The method `unfold` of torch's tensors.",
    layer: "UnfoldAxis",
    ports: &[
        INPUT,
        attr("axis", Attr::Int, DefaultLit::Required),
        attr("size", Attr::Int, DefaultLit::Required),
        attr("step", Attr::Int, DefaultLit::Int(1)),
    ],
    shape: ShapeRule::Fn(|cx| {
        let mut shape = cx.shape(0).clone();
        let axis = cx.axis(1, shape.rank())?;
        let (size, step) = (window::count(cx, 2)?, window::count(cx, 3)?);
        if shape[axis].known().is_some_and(|n| n < size) {
            let message = format!("windows of {size} elements do not fit into axis {axis} of {shape}");
            return Err(Error::new(Code::BadSize, message).help("use smaller windows, or pad the input"));
        }
        let none = [Dim::Const(0), Dim::Const(0)];
        shape.0[axis] = window::positions(&shape[axis], &none, &Dim::Const(size), step);
        shape.0.push(Dim::Const(size));
        Ok(vec![shape])
    }),
    expand: Some(|c| {
        let x = c.x[0];
        let shape = x.shape();
        let axis = c.get(|c| c.axis(1, shape.rank()));
        let (size, step) = (c.get(|c| window::count(c, 2)), c.get(|c| window::count(c, 3)).max(1));
        let product = |dims: &[Dim]| dims.iter().fold(Dim::ONE, |n, d| &n * d);
        let (before, after) = (&shape[..axis], shape.get(axis + 1..).unwrap_or_default());
        let plane = reshaped(x, [Dim::ONE, product(before), x.dim(axis as i64), product(after)]);
        let windows = plane.op(&WINDOWS, &[c.cx.lit([size, 1]), c.cx.lit([step, 1])]);
        let out = before.iter().cloned().chain([windows.dim(2)]).chain(after.iter().cloned());
        vec![reshaped(windows, out.chain([Dim::Const(size)]))]
    }),
    lowering: Lowering {
        torch: Function(|s| Some(format!("{}.unfold({}, {}, {})", s.arg(0), s.arg(1), s.arg(2), s.arg(3)))),
        ..Lowering::NONE
    },
    cases: &[
        "[7] axis=0 size=3",
        "[2,7,2] axis=1 size=2 step=3",
        "i64[3,4] axis=-1 size=4",
        "[5] axis=0 size=1 step=2",
        "[0,4] axis=1 size=2",
    ],
    ..MOVE
};

static UNFOLD_PORTS: &[Port] = &[
    INPUT,
    attr("kernel_size", Attr::Ints, DefaultLit::Required),
    attr("dilation", Attr::Ints, DefaultLit::Int(1)),
    attr("padding", Attr::Ints, DefaultLit::Int(0)),
    attr("stride", Attr::Ints, DefaultLit::Int(1)),
];

/// Arguments of `unfold` and `fold`, the first of which is at port `i`.
struct Patches {
    kernel: Vec<i64>,
    dilation: Vec<i64>,
    padding: Vec<i64>,
    stride: Vec<i64>,
}

impl Patches {
    fn read(cx: &(impl Attrs + ?Sized), i: usize) -> Result<Self> {
        Ok(Self {
            kernel: window::positive(cx, i, 2)?,
            dilation: window::positive(cx, i + 1, 2)?,
            padding: window::bounded(cx, i + 2, 2, 0)?,
            stride: window::positive(cx, i + 3, 2)?,
        })
    }
    /// Placeholder for arguments that could not be read.
    fn none() -> Self {
        let ones = || vec![1, 1];
        Self { kernel: ones(), dilation: ones(), padding: vec![0, 0], stride: ones() }
    }
    fn of(c: &ExpandCx<'_>, i: usize) -> Self {
        Self::read(c, i).unwrap_or_else(|error| {
            c.cx.fail(error);
            Self::none()
        })
    }
    /// Number of windows along spatial axis `i` of that size.
    fn count(&self, i: usize, size: &Dim) -> Dim {
        let pad = Dim::Const(self.padding[i]);
        let extent = window::dilated(&Dim::Const(self.kernel[i]), self.dilation[i]);
        window::positions(size, &[pad.clone(), pad], &extent, self.stride[i])
    }
    fn pads(&self) -> Lit {
        Lit::tuple(self.padding.iter().map(|&p| Lit::tuple([Dim::Const(p), Dim::Const(p)])))
    }
    fn area(&self) -> Dim {
        Dim::Const(self.kernel.iter().product())
    }
}

/// Patches of images as columns
pub static UNFOLD: OpDef = OpDef {
    name: "unfold",
    doc: "All patches of images as columns (im2col): `[n, c, h, w]` becomes `[n, c·kh·kw, positions]`, `[c, h, w]` \
          likewise without `n`. The image is padded with `padding` zeros. As `torch.nn.functional.unfold`; for windows along \
          one axis see `unfold_axis`, for windows of any number of axes `windows`.",
    layer: "Unfold",
    ports: UNFOLD_PORTS,
    shape: ShapeRule::Fn(|cx| {
        let rank = cx.rank(0, &[3, 4])?;
        let (patches, shape) = (Patches::read(cx, 1)?, cx.shape(0));
        for i in 0..2 {
            let extent = window::dilated(&Dim::Const(patches.kernel[i]), patches.dilation[i]);
            window::check_fits(cx, i, &shape[rank - 2 + i], [patches.padding[i]; 2], &extent)?;
        }
        let columns = &shape[rank - 3] * &patches.area();
        let positions = &patches.count(0, &shape[rank - 2]) * &patches.count(1, &shape[rank - 1]);
        Ok(vec![shape[..rank - 3].iter().cloned().chain([columns, positions]).collect()])
    }),
    expand: Some(|c| {
        let (x, patches) = (c.x[0], Patches::of(c, 1));
        let lead: Vec<Dim> = x.shape().iter().take(x.rank().saturating_sub(3)).cloned().collect();
        let many = lead.first().cloned().unwrap_or(Dim::ONE);
        let [channels, h, w] = [-3, -2, -1].map(|axis| x.dim(axis));
        let (ph, pw) = (patches.count(0, &h), patches.count(1, &w));
        let windows = reshaped(x, [many, channels.clone(), h, w]).op(
            &WINDOWS,
            &[
                c.cx.lit(patches.kernel.clone()),
                c.cx.lit(patches.stride.clone()),
                c.cx.lit(patches.pads()),
                c.cx.lit(patches.dilation.clone()),
            ],
        );
        let columns = windows.transpose([0_i64, 1, 4, 5, 2, 3]);
        vec![reshaped(columns, lead.into_iter().chain([&channels * &patches.area(), &ph * &pw]))]
    }),
    lowering: Lowering { torch: Function(|s| torch_patches(s, "unfold")), ..Lowering::NONE },
    cases: &[
        "[1,2,4,5] kernel_size=2",
        "[2,1,5,6] kernel_size=(2,3) dilation=(2,1) padding=(1,0) stride=(1,2)",
        "[2,4,4] kernel_size=(4,2) stride=2",
        "i64[1,1,3,3] kernel_size=2 padding=1",
    ],
    ..MOVE
};

/// The function of torch, which accepts only floats.
fn torch_patches(s: &LoweringCx<'_>, name: &str) -> Option<String> {
    let dtype = s.ty(0)?.dtype;
    let sizes = s.args.iter().skip(1).map(String::as_str).collect::<Vec<_>>().join(", ");
    matches!(dtype, DType::F32 | DType::F64).then(|| format!("F.{name}({}, {sizes})", s.arg(0)))
}

static FOLD_PORTS: &[Port] = &[
    tensor("input"),
    attr("output_size", Attr::Ints, DefaultLit::Required),
    attr("kernel_size", Attr::Ints, DefaultLit::Required),
    attr("dilation", Attr::Ints, DefaultLit::Int(1)),
    attr("padding", Attr::Ints, DefaultLit::Int(0)),
    attr("stride", Attr::Ints, DefaultLit::Int(1)),
];

/// Patches back into images
pub static FOLD: OpDef = OpDef {
    name: "fold",
    doc: "Sums patches at the positions they were extracted from, the adjoint of `unfold` (col2im): `[n, c·kh·kw, positions]` becomes \
          `[n, c, *output_size]`, `[c·kh·kw, positions]` likewise without `n`. Elements in the padding are dropped. As \
          `torch.nn.functional.fold`.",
    layer: "Fold",
    ports: FOLD_PORTS,
    shape: ShapeRule::Fn(|cx| {
        let rank = cx.rank(0, &[2, 3])?;
        let (patches, shape) = (Patches::read(cx, 2)?, cx.shape(0));
        let sizes: Vec<Dim> = window::positive(cx, 1, 2)?.into_iter().map(Dim::Const).collect();
        let positions = &patches.count(0, &sizes[0]) * &patches.count(1, &sizes[1]);
        cx.same(&shape[rank - 1], &positions, "numbers of patches")?;
        let columns = &shape[rank - 2];
        if columns.has_var() {
            return Err(cx.unknown());
        }
        let channels = columns.exact_div(&patches.area()).ok_or_else(|| {
            let message = format!("{columns} elements of a patch of fold do not divide by the kernel");
            Error::new(Code::ShapeMismatch, message)
                .help(format!("an axis of channels · {} elements comes before the positions", patches.area()))
        })?;
        Ok(vec![shape[..rank - 2].iter().cloned().chain([channels]).chain(sizes).collect()])
    }),
    dtype: DTypeRule::Arith,
    expand: Some(|c| {
        let (x, patches) = (c.x[0], Patches::of(c, 2));
        let sizes = window::positive(c, 1, 2).unwrap_or_else(|_| vec![1, 1]);
        let lead: Vec<Dim> = x.shape().iter().take(x.rank().saturating_sub(2)).cloned().collect();
        let many = lead.first().cloned().unwrap_or(Dim::ONE);
        let channels = x.dim(-2).floor_div(&patches.area());
        let kernel = patches.kernel.iter().map(|&k| Dim::Const(k));
        let counts = (0..2).map(|i| patches.count(i, &Dim::Const(sizes[i])));
        let split = reshaped(x, [many, channels.clone()].into_iter().chain(kernel).chain(counts));
        let images = split.transpose([0_i64, 1, 4, 5, 2, 3]).op(
            &FOLD_WINDOWS,
            &[
                c.cx.lit(sizes.clone()),
                c.cx.lit(patches.stride.clone()),
                c.cx.lit(patches.pads()),
                c.cx.lit(patches.dilation.clone()),
            ],
        );
        vec![reshaped(images, lead.into_iter().chain([channels]).chain(sizes.into_iter().map(Dim::Const)))]
    }),
    grad: Grad::Expansion,
    lowering: Lowering { torch: Function(|s| torch_patches(s, "fold")), ..Lowering::NONE },
    cases: &[
        "[1,8,6] output_size=(3,4) kernel_size=2",
        "[2,6,8] output_size=(4,5) kernel_size=(2,3) dilation=(2,1) padding=(1,0) stride=(1,2)",
        "[8,4] output_size=4 kernel_size=2 stride=2",
    ],
    tolerance: Tolerance::Contraction,
    ..BLANK
};
