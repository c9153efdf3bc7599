//! Creation: tensors that are determined by sizes and numbers alone.

use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::formula::{ExpandCx, V};
use crate::literal::Lit;
use crate::loops::{Expr, Index, Within};
use crate::lowering::LoweringRule::{Function, Template};
use crate::lowering::{Lowering, LoweringCx};
use crate::op::{
    Attr, BLANK, DTypeRule, DefaultLit, Eval, Grad, OpDef, Port, ShapeRule, Tolerance, Unsigned, attr,
    dtype_or, tensor,
};
use crate::rules::{Attrs, DTypeCx, DTypes, ShapeCx};
use crate::shape::{MAX_ELEMENTS, Shape};
use crate::tensor::{Scalar, Tensor};

/// Ops of this file.
pub static OPS: &[&OpDef] =
    &[&FULL, &ZEROS, &ONES, &FULL_LIKE, &ZEROS_LIKE, &ONES_LIKE, &ARANGE, &LINSPACE, &EYE];

const CREATE: OpDef =
    OpDef { unsigned: Unsigned::Bits, grad: Grad::Zero, tolerance: Tolerance::Exact, ..BLANK };

const SHAPE: Port = attr("shape", Attr::Shape, DefaultLit::Required);
const DTYPE: Port = attr("dtype", Attr::DType, DefaultLit::None);

/// The sizes at port `i`.
pub(super) fn shape_arg(cx: &ShapeCx<'_>, i: usize) -> Result<Shape> {
    let shape = Shape::of(cx.dims(i)?);
    if shape.iter().any(|d| d.known().is_some_and(|n| n < 0)) {
        return Err(cx.bad(i, &cx.lit(i), "a tuple of sizes, none of them negative"));
    }
    Ok(shape)
}

/// The dtype at port `i`, or the default float.
pub(super) fn dtype_or_float(cx: &DTypeCx<'_>, i: usize) -> DTypes {
    DTypes::keep([dtype_or(&cx.lit(i), cx.float)])
}

/// The number at port `i`.
fn scalar_arg(cx: &impl Attrs, i: usize) -> Result<Scalar> {
    match cx.lit(i) {
        Lit::Bool(b) => Ok(Scalar::Bool(b)),
        Lit::Int(_) => cx.int(i).map(Scalar::from),
        Lit::Tensor(t) if t.rank() == 0 => Ok(t.get(0)),
        _ => cx.f64(i).map(Scalar::Float),
    }
}

/// one number everywhere
pub static FULL: OpDef = OpDef {
    name: "full",
    doc: "A tensor filled with one number. Without `dtype` it is the default float, int64 or bool, depending \
          on the number.",
    ports: &[SHAPE, attr("value", Attr::Scalar, DefaultLit::Required), DTYPE],
    shape: ShapeRule::Fn(|cx| Ok(vec![shape_arg(cx, 0)?])),
    dtype: DTypeRule::Fn(|cx| {
        let suggested = cx.lit(1).weak_dtype(cx.float).unwrap_or(cx.float);
        let dtype = dtype_or(&cx.lit(2), suggested);
        cx.check_int(1, dtype)?;
        Ok(DTypes::keep([dtype]))
    }),
    eval: Some(Eval::Tensors(|c| Ok(vec![Tensor::full(c.dtype(), c.shape(), scalar_arg(c, 1)?)]))),
    loops: Some(|c| {
        let value = Tensor::scalar(c.out_dtype(0), scalar_arg(c, 1)?).get(0);
        Ok(vec![c.number(value, c.out_dtype(0))])
    }),
    lowering: Lowering {
        py: Template("{xp}.full({shape}, {1}, {dtype})"),
        torch: Template("torch.full({shape}, {1}, dtype={dtype}, device=device)"),
        mlx: Function(|s| {
            // MLX creates floats if the number is not an integer.
            let out = s.out(0)?;
            let (shape, value, dtype) = (s.dims(&out.shape), s.arg(1), s.dtype(out.dtype));
            // Nor does it take integers beyond int64.
            let number = match s.lit(1) {
                Lit::Tensor(t) => format!("mx.array({}).astype({dtype})", t.get(0).i64()),
                _ => format!("mx.array({value}, {dtype})"),
            };
            let typed = || format!("mx.full({shape}, {number})");
            Some(if out.dtype.is_float() { format!("mx.full({shape}, {value}, {dtype})") } else { typed() })
        }),
        onnx: Template("Expand(cast({1}), sizes())"),
        ..Lowering::NONE
    },
    cases: &[
        "shape=(2,3) value=1.5",
        "shape=() value=7",
        "shape=(0,2) value=true",
        "shape=3 value=2 dtype=f16",
    ],
    ..CREATE
};

const FILLED: OpDef = OpDef {
    ports: &[SHAPE, DTYPE],
    shape: ShapeRule::Fn(|cx| Ok(vec![shape_arg(cx, 0)?])),
    dtype: DTypeRule::Fn(|cx| Ok(dtype_or_float(cx, 1))),
    cases: &["shape=(2,3)", "shape=()", "shape=(0,)", "shape=4 dtype=i32", "shape=2 dtype=bool"],
    ..CREATE
};

fn full_of<'a>(c: &ExpandCx<'a>, value: f64) -> Vec<V<'a>> {
    let dtype = dtype_or(&c.lit(1), c.cx.float());
    vec![c.cx.full(c.x[0], value, dtype)]
}

/// zeros
pub static ZEROS: OpDef = OpDef {
    name: "zeros",
    doc: "A tensor of zeros, of the default float unless `dtype` says otherwise.",
    expand: Some(|c| full_of(c, 0.0)),
    lowering: Lowering {
        py: Template("{xp}.zeros({shape}, {dtype})"),
        torch: Template("torch.zeros({shape}, dtype={dtype}, device=device)"),
        ..Lowering::NONE
    },
    ..FILLED
};

/// ones
pub static ONES: OpDef = OpDef {
    name: "ones",
    doc: "A tensor of ones, of the default float unless `dtype` says otherwise.",
    expand: Some(|c| full_of(c, 1.0)),
    lowering: Lowering {
        py: Template("{xp}.ones({shape}, {dtype})"),
        torch: Template("torch.ones({shape}, dtype={dtype}, device=device)"),
        ..Lowering::NONE
    },
    ..FILLED
};

// --- like another tensor -----------------------------------------------------------------------------------

const LIKE: OpDef = OpDef {
    shape: ShapeRule::Same,
    cases: &["[2,3]", "[]", "i64[0,2]", "[2] dtype=i32", "bool[3]"],
    ..CREATE
};

/// The dtype at port `i`, or that of the first input.
fn dtype_or_same(cx: &DTypeCx<'_>, i: usize) -> DTypes {
    DTypes::keep([dtype_or(&cx.lit(i), cx.dtype(0).unwrap_or(cx.float))])
}

/// A tensor like the first input, filled by `op`.
fn like<'a>(c: &ExpandCx<'a>, op: &'static OpDef, value: Option<V<'a>>, dtype: usize) -> Vec<V<'a>> {
    let dtype = c.cx.lit(dtype_or(&c.lit(dtype), c.x[0].dtype()));
    let shape = c.cx.lit(c.x[0].shape().0.to_vec());
    let args: Vec<V<'a>> = [shape].into_iter().chain(value).chain([dtype]).collect();
    vec![c.cx.call(op, &args)]
}

/// one number, shape and dtype as another tensor
pub static FULL_LIKE: OpDef = OpDef {
    name: "full_like",
    doc: "A tensor of the shape and (unless given) dtype of the input, filled with one number.",
    ports: &[tensor("input"), attr("value", Attr::Scalar, DefaultLit::Required), DTYPE],
    dtype: DTypeRule::Fn(|cx| {
        let dtypes = dtype_or_same(cx, 2);
        cx.check_int(1, dtypes.out[0])?;
        Ok(dtypes)
    }),
    expand: Some(|c| like(c, &FULL, Some(c.x[1]), 2)),
    cases: &["[2,3] value=1.5", "[] value=2", "i64[0,2] value=3", "[2] value=1 dtype=i32"],
    ..LIKE
};

/// zeros, shape and dtype as another tensor
pub static ZEROS_LIKE: OpDef = OpDef {
    name: "zeros_like",
    doc: "Zeros of the shape and (unless given) dtype of the input.",
    ports: &[tensor("input"), DTYPE],
    dtype: DTypeRule::Fn(|cx| Ok(dtype_or_same(cx, 1))),
    expand: Some(|c| like(c, &ZEROS, None, 1)),
    ..LIKE
};

/// ones, shape and dtype as another tensor
pub static ONES_LIKE: OpDef = OpDef {
    name: "ones_like",
    doc: "Ones of the shape and (unless given) dtype of the input.",
    ports: &[tensor("input"), DTYPE],
    dtype: DTypeRule::Fn(|cx| Ok(dtype_or_same(cx, 1))),
    expand: Some(|c| like(c, &ONES, None, 1)),
    ..LIKE
};

// --- sequences ---------------------------------------------------------------------------------------------

/// The sequence of `arange`: integers, which may be symbolic, or floats.
enum Count {
    Whole { start: Dim, stop: Dim, step: i64 },
    Float { start: f64, stop: f64, step: f64 },
}

impl Count {
    fn of(cx: &impl Attrs) -> Result<Self> {
        let (from, to) = if cx.absent(1) { (None, 0) } else { (Some(0), 1) };
        let whole = [0, 1, 2].into_iter().all(|i| !matches!(cx.lit(i), Lit::Float(_)));
        let zero = || cx.bad(2, &cx.lit(2), "a finite number other than 0");
        if whole {
            let start = from.map_or(Ok(Dim::Const(0)), |i| cx.dim(i))?;
            let step = cx.int(2)?;
            return if step == 0 { Err(zero()) } else { Ok(Self::Whole { start, stop: cx.dim(to)?, step }) };
        }
        let start = from.map_or(Ok(0.0), |i| cx.f64(i))?;
        let (stop, step) = (cx.f64(to)?, cx.f64(2)?);
        if step == 0.0 || !step.is_finite() {
            return Err(zero());
        }
        if !start.is_finite() || !stop.is_finite() {
            return Err(cx.bad(to, &cx.lit(to), "finite"));
        }
        Ok(Self::Float { start, stop, step })
    }
    fn len(&self) -> Dim {
        match self {
            Self::Whole { start, stop, step } => {
                let way = if *step > 0 { stop - start } else { start - stop };
                let step = step.saturating_abs();
                let n = (&way + &Dim::Const(step - 1)).floor_div(&Dim::Const(step));
                n.known().map_or(n, |n| Dim::Const(n.max(0)))
            }
            Self::Float { start, stop, step } => Dim::Const(((stop - start) / step).ceil().max(0.0) as i64),
        }
    }
}

/// `start, start + step, ...` below `stop`
pub static ARANGE: OpDef = OpDef {
    name: "arange",
    doc: "The numbers `start + i * step` that lie before `stop`, `ceil((stop - start) / step)` of them.           `arange(n)` counts from 0 to `n - 1`. The dtype is int64 if all three are integers, else the           default float. Bounds may be symbolic.",
    ports: &[
        attr("start", Attr::Float, DefaultLit::Required),
        attr("stop", Attr::OptFloat, DefaultLit::None),
        attr("step", Attr::Float, DefaultLit::Int(1)),
        DTYPE,
    ],
    shape: ShapeRule::Fn(|cx| Ok(vec![Shape::of([Count::of(cx)?.len()])])),
    dtype: DTypeRule::Fn(|cx| {
        let whole = (0..3).all(|i| !matches!(cx.lit(i), Lit::Float(_)));
        let dtype = dtype_or(&cx.lit(3), if whole { DType::I64 } else { cx.float });
        if dtype == DType::U64 && !whole {
            return Err(Error::new(Code::BadDType, "arange of floats in uint64")
                .help("use integers, or cast the floats: arange(...).cast(\"uint64\")"));
        }
        Ok(DTypes::keep([dtype]))
    }),
    eval: Some(Eval::Tensors(|c| {
        let element: Box<dyn Fn(usize) -> Scalar> = match Count::of(c)? {
            Count::Whole { start, step, .. } => {
                let start = start.known().unwrap_or(0);
                Box::new(move |i| Scalar::from(start.wrapping_add(step.wrapping_mul(i as i64))))
            }
            Count::Float { start, step, .. } => Box::new(move |i| Scalar::Float(start + i as f64 * step)),
        };
        Ok(vec![Tensor::build(c.dtype(), c.shape(), element)])
    })),
    loops: Some(|c| {
        let count = Count::of(c)?;
        let number = |x: f64| c.number(x, DType::F64);
        Ok(vec![c.output(0, |at| {
            match count {
                Count::Whole { start, step, .. } => {
                    Expr::Index(Box::new(at[0].clone() * step + start.known().unwrap_or(0).into()))
                        .cast(c.out_dtype(0))
                }
                Count::Float { start, step, .. } => {
                    (number(start) + position(&at[0]) * number(step)).cast(c.out_dtype(0))
                }
            }
        })])
    }),
    lowering: Lowering {
        py: Function(|s| {
            let dtype = s.out(0)?.dtype;
            // Integers times a number would be float32 there.
            let is_double = s.xp == "mx" && dtype == DType::F64;
            let text = arange_text(s, if is_double { ", dtype=mx.float64" } else { "" })?;
            let as_is = dtype == DType::I64 && s.xp == "np";
            Some(if as_is { text } else { format!("{text}.astype({})", s.dtype(dtype)) })
        }),
        torch: Function(|s| {
            let (dtype, is_float) = (s.out(0)?.dtype, matches!(Count::of(s), Ok(Count::Float { .. })));
            // Integers times a number would be of torch's default dtype.
            let is_double = is_float && dtype == DType::F64;
            let more = if is_double { ", dtype=torch.float64, device=device" } else { ", device=device" };
            let text = arange_text(s, more)?;
            let as_is = is_double || !is_float && dtype == DType::I64;
            Some(if as_is { text } else { format!("{text}.to({})", s.dtype(dtype)) })
        }),
        onnx: Function(super::onnx::arange),
        ..Lowering::NONE
    },
    cases: &[
        "start=5",
        "start=2 stop=9 step=3",
        "start=5 stop=0 step=-2",
        "start=0.5 stop=2.0 step=0.25",
        "start=-0.9 stop=1.3 step=0.7 dtype=f64",
        "start=0.1 stop=5 step=0.3",
        "start=3 stop=1",
        "start=4 dtype=f16",
    ],
    // Floats are rounded by the step and by the sum, where they are not computed in float64.
    tolerance: Tolerance::Rounded,
    ..CREATE
};

/// Integers as int64, floats as float64 where the target has them; `more` follows the arguments.
fn arange_text(s: &LoweringCx<'_>, more: &str) -> Option<String> {
    let count = Count::of(s).ok()?;
    Some(match &count {
        // torch raises an error if the stop is before the start.
        _ if count.len().is(0) => format!("{}.arange(0{more})", s.xp),
        Count::Whole { start, stop, step: 1 } if start.is(0) => {
            format!("{}.arange({}{more})", s.xp, s.dim(stop))
        }
        Count::Whole { start, stop, step } => {
            format!("{}.arange({}, {}, {step}{more})", s.xp, s.dim(start), s.dim(stop))
        }
        Count::Float { start, step, .. } => {
            format!("({start:?} + {step:?} * {}.arange({}{more}))", s.xp, s.dim(&count.len()))
        }
    })
}

/// evenly spaced numbers
pub static LINSPACE: OpDef = OpDef {
    name: "linspace",
    doc: "`num` evenly spaced numbers from `start` to `stop`, both included. A single number is `start`.",
    ports: &[
        attr("start", Attr::Float, DefaultLit::Required),
        attr("stop", Attr::Float, DefaultLit::Required),
        attr("num", Attr::Int, DefaultLit::Int(50)),
        DTYPE,
    ],
    shape: ShapeRule::Fn(|cx| {
        let num = cx.dim(2)?;
        if num.known().is_some_and(|n| n < 0) {
            return Err(cx.bad(2, &cx.lit(2), "a number that is not negative"));
        }
        cx.f64(0)?;
        cx.f64(1)?;
        Ok(vec![Shape::of([num])])
    }),
    dtype: DTypeRule::Fn(|cx| Ok(dtype_or_float(cx, 3))),
    eval: Some(Eval::Tensors(|c| {
        let (start, stop, n) = (c.f64(0)?, c.f64(1)?, c.shape()[0]);
        let step = (stop - start) / (n as f64 - 1.0);
        let at = |i: usize| match i {
            0 => start,
            i if i + 1 == n => stop,
            i => start + i as f64 * step,
        };
        Ok(vec![Tensor::build(c.dtype(), c.shape(), |i| Scalar::Float(at(i)))])
    })),
    expand: Some(|c| {
        let (start, stop, n) = (c.get(|c| c.f64(0)), c.get(|c| c.f64(1)), c.get(|c| c.int(2)));
        let dtype = dtype_or(&c.lit(3), c.cx.float());
        let wide = if dtype.is_float() { dtype } else { c.cx.float() };
        let none = c.cx.none();
        let count = c.cx.call(&ARANGE, &[c.x[2], none, c.cx.lit(1), c.cx.lit(wide)]);
        vec![(count * ((stop - start) / (n - 1).max(1) as f64) + start).cast(dtype)]
    }),
    loops: Some(|c| {
        let (start, stop, n, dtype) = (c.f64(0)?, c.f64(1)?, c.out_shape(0)[0], c.out_dtype(0));
        if !dtype.is_float() {
            return Err(Error::new(Code::Unsupported, "linspace of integers has no loops"));
        }
        let number = |x: f64| c.number(x, DType::F64);
        let step = number((stop - start) / (n - 1).max(1) as f64);
        Ok(vec![c.output(0, |at| {
            let before_last = vec![Within::new(at[0].clone(), 0, (n - 1).max(1))];
            (number(start) + position(&at[0]) * step).within(before_last, number(stop)).cast(dtype)
        })])
    }),
    unsigned: Unsigned::Expand,
    lowering: Lowering {
        py: Template("{xp}.linspace({0}, {1}, {2}, dtype={dtype})"),
        torch: Template("torch.linspace({0}, {1}, {2}, dtype={dtype}, device=device)"),
        ..Lowering::NONE
    },
    cases: &[
        "start=0.0 stop=1.0 num=5",
        "start=-1.0 stop=3.0 num=1",
        "start=2 stop=1 num=4 dtype=f64",
        "start=0 stop=1 num=0",
    ],
    tolerance: Tolerance::Elementwise,
    ..CREATE
};

/// ones on a diagonal
pub static EYE: OpDef = OpDef {
    name: "eye",
    doc: "An `n` by `m` matrix (square without `m`) with ones on diagonal `k` and zeros elsewhere; `k` counts \
          upwards from the main diagonal.",
    ports: &[
        attr("n", Attr::Int, DefaultLit::Required),
        attr("m", Attr::OptInt, DefaultLit::None),
        attr("k", Attr::Int, DefaultLit::Int(0)),
        DTYPE,
    ],
    shape: ShapeRule::Fn(|cx| {
        let n = cx.dim(0)?;
        let m = if cx.absent(1) { n.clone() } else { cx.dim(1)? };
        cx.int(2)?;
        for (i, size) in [(0, &n), (1, &m)] {
            if size.known().is_some_and(|n| n < 0) {
                return Err(cx.bad(i, &cx.lit(i), "a size that is not negative"));
            }
        }
        Ok(vec![Shape::of([n, m])])
    }),
    dtype: DTypeRule::Fn(|cx| Ok(dtype_or_float(cx, 3))),
    expand: Some(|c| {
        let n = c.get(|c| c.dims(0)).pop().unwrap_or(Dim::ONE);
        let m = if c.absent(1) { n.clone() } else { c.get(|c| c.dims(1)).pop().unwrap_or(Dim::ONE) };
        let (rows, columns) = (diagonal_of_row(c, &n, c.get(|c| c.int(2))), count(c, &m));
        vec![rows.equal(columns).cast(dtype_or(&c.lit(3), c.cx.float()))]
    }),
    lowering: Lowering {
        numpy: Template("np.eye({0}, {1}, {2}, {dtype})"),
        torch: Function(|s| {
            let sizes = s.out(0)?.shape.iter().map(|d| s.dim(d)).collect::<Vec<_>>().join(", ");
            let dtype = s.dtype(s.out(0)?.dtype);
            matches!(s.int(2), Ok(0)).then(|| format!("torch.eye({sizes}, dtype={dtype}, device=device)"))
        }),
        jax: Template("jnp.eye({0}, {1}, {2}, {dtype})"),
        mlx: Template("mx.eye({0}, {1}, {2}, {dtype})"),
        ..Lowering::NONE
    },
    cases: &["n=3", "n=2 m=4", "n=3 k=1 dtype=i64", "n=3 m=2 k=-1", "n=0", "n=2 k=5 dtype=bool"],
    ..CREATE
};

/// An index as a number to compute with.
fn position(at: &Index) -> Expr {
    Expr::Index(Box::new(at.clone())).cast(DType::F64)
}

/// `[0, 1, ..., n - 1]`
pub(super) fn count<'a>(c: &ExpandCx<'a>, n: &Dim) -> V<'a> {
    c.cx.arange(n.clone())
}

/// The column in which diagonal `k` crosses each row, as a column vector.
pub(super) fn diagonal_of_row<'a>(c: &ExpandCx<'a>, rows: &Dim, k: i64) -> V<'a> {
    // A diagonal further out crosses no matrix; the sum must not saturate.
    let k = k.clamp(-MAX_ELEMENTS, MAX_ELEMENTS);
    let last = rows + &Dim::Const(k);
    c.cx.call(&ARANGE, &[c.cx.lit(k), c.cx.lit(last)]).expand_dims(1)
}
