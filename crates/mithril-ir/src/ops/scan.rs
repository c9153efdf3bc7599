//! Cumulative sums, products and extrema along an axis.

use std::cmp::Ordering;

use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::Result;
use crate::formula::{ExpandCx, GradCx, V};
use crate::interp::EvalCx;
use crate::literal::Lit;
use crate::loops::{CallArgument, Expr, LoopCx, accumulator, sizes_around};
use crate::lowering::LoweringRule::{Function, Template};
use crate::lowering::{Lowering, LoweringCx};
use crate::op::{
    Attr, BLANK, DTypeRule, DefaultLit, Eval, Grad, OpDef, Port, ShapeRule, Tolerance, Unsigned, attr, tensor,
};
use crate::ops::reduce::{accumulated, is_half, order};
use crate::ops::slicing::zeros;
use crate::rules::{Attrs, DTypes, ShapeCx};
use crate::shape::{Shape, normalize_axis};
use crate::tensor::{Scalar, Tensor};

/// Ops of this file.
pub static OPS: &[&OpDef] = &[&CUMSUM, &CUMPROD, &CUMULATIVE_MAX, &CUMULATIVE_MIN, &CUMMAX, &CUMMIN];

static PORTS: &[Port] = &[
    tensor("input"),
    attr("axis", Attr::Int, DefaultLit::Required),
    attr("exclusive", Attr::Bool, DefaultLit::Bool(false)),
    attr("reverse", Attr::Bool, DefaultLit::Bool(false)),
];

const SCAN: OpDef = OpDef {
    ports: PORTS,
    shape: ShapeRule::Fn(same_with_axis),
    dtype: DTypeRule::Fn(accumulated),
    unsigned: Unsigned::Bits,
    cases: &[
        "[2,3] axis=1",
        "[2,3,4] axis=-2 reverse=true",
        "[4] axis=0 exclusive=true",
        "[2,3] axis=0 exclusive=true reverse=true",
        "[2,0] axis=1",
        "i64[5]<4 axis=0",
    ],
    tolerance: Tolerance::Contraction,
    ..BLANK
};

/// The shape of the input; checks that the axis at port 1 exists.
pub(super) fn same_with_axis(cx: &ShapeCx<'_>) -> Result<Vec<Shape>> {
    let input = cx.shape(0);
    cx.axis(1, input.rank())?;
    Ok(vec![input.clone(); cx.op().outputs.len()])
}

/// The positions of each line along `axis`.
pub(super) fn lines(
    shape: &[usize],
    axis: usize,
) -> impl Iterator<Item = impl DoubleEndedIterator<Item = usize>> {
    let (n, inner) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
    let outer: usize = shape[..axis].iter().product();
    (0..outer).flat_map(move |o| (0..inner).map(move |i| (0..n).map(move |k| (o * n + k) * inner + i)))
}

/// The initial value of a scan, and the function that combines it with an element.
struct Running {
    float: (f64, fn(f64, f64) -> f64),
    int: (i128, fn(i128, i128) -> i128),
}

fn run(c: &EvalCx<'_>, running: &Running) -> Result<Vec<Tensor>> {
    let x = c.tensor(0);
    let (axis, exclusive, reverse) = (c.axis(1, x.rank())?, c.bool(2)?, c.bool(3)?);
    let mut out = vec![Scalar::Int(0); x.len()];
    for line in lines(x.shape(), axis) {
        let mut line: Vec<usize> = line.collect();
        if reverse {
            line.reverse();
        }
        let (mut float, mut int) = (running.float.0, running.int.0);
        for at in line {
            let before = (float, int);
            match x.get(at) {
                Scalar::Float(x) => float = (running.float.1)(float, x),
                x => int = (running.int.1)(int, x.int()),
            }
            let (float, int) = if exclusive { before } else { (float, int) };
            out[at] = if c.dtype().is_float() { Scalar::Float(float) } else { Scalar::Int(int) };
        }
    }
    Ok(vec![Tensor::build(c.dtype(), c.shape(), |i| out[i])])
}

/// Calls a function of the C prelude.
fn scan_loops(c: &LoopCx<'_>, function: &str) -> Result<Vec<Expr>> {
    let wide = accumulator(c.out_dtype(0));
    let (outer, size, inner) = sizes_around(&c.shape(0), c.axis(1, c.rank(0))?);
    let (input, output) = (c.stored(0, wide), c.reserve(wide, c.out_shape(0)));
    let options = [c.bool(2)?, c.bool(3)?].map(i64::from);
    let mut args = vec![CallArgument::In(input), CallArgument::Out(output)];
    args.extend([outer, size, inner].into_iter().chain(options).map(CallArgument::Int));
    c.call(format!("{function}_{}", wide.short()), args, inner.max(1) as usize * 8);
    Ok(vec![c.output(0, |at| c.load(output, at).cast(c.out_dtype(0)))])
}

/// The framework's function, or a helper for options that it lacks.
fn scan_text(c: &LoweringCx<'_>, name: &str) -> Option<String> {
    let (exclusive, reverse) = (c.bool(2).ok()?, c.bool(3).ok()?);
    let function = if exclusive || reverse { format!("_{name}") } else { format!("{}.{name}", c.xp) };
    let flag = |word: &str, is: bool| if is { format!(", {word}=True") } else { String::new() };
    let (exclusive, reverse) = (flag("exclusive", exclusive), flag("reverse", reverse));
    let input = c.ty(0)?.dtype;
    let head =
        if is_half(input) && c.xp == "np" { format!("_wide({function}, ") } else { format!("{function}(") };
    let axis = if c.xp == "torch" { "dim" } else { "axis" };
    let dtype = if is_half(input) && c.xp == "torch" {
        // On CUDA it would round after each step.
        format!(", dtype={}", c.dtype(DType::F32))
    } else if input.is_float() || input.size() == 8 {
        String::new()
    } else {
        format!(", dtype={}", c.dtype(DType::I64))
    };
    let (x, narrow) = match c.xp {
        "jnp" => wide_operand(c)?,
        "torch" if is_half(input) => (c.arg(0).to_owned(), format!(".to({})", c.dtype(input))),
        _ => (c.arg(0).to_owned(), String::new()),
    };
    Some(format!("{head}{x}, {axis}={}{exclusive}{reverse}{dtype}){narrow}", c.arg(1)))
}

/// The operand and the conversion of the result: 16-bit floats are computed in float32, since JAX and MLX would round after each
/// step.
fn wide_operand(c: &LoweringCx<'_>) -> Option<(String, String)> {
    let (x, dtype) = (c.arg(0), c.ty(0)?.dtype);
    Some(if is_half(dtype) {
        let (wide, narrow) = (c.dtype(DType::F32), c.dtype(dtype));
        (format!("{x}.astype({wide})"), format!(".astype({narrow})"))
    } else {
        (x.to_owned(), String::new())
    })
}

fn mlx(c: &LoweringCx<'_>, name: &str) -> Option<String> {
    let flag = |word: &str, is: bool| if is { format!(", {word}") } else { String::new() };
    let (exclusive, reverse) =
        (flag("inclusive=False", c.bool(2).ok()?), flag("reverse=True", c.bool(3).ok()?));
    let (x, narrow) = wide_operand(c)?;
    let keeps = c.ty(0)?.dtype.is_float() || c.ty(0)?.dtype.size() == 8;
    let wide = if keeps { "" } else { ".astype(mx.int64)" };
    Some(format!("mx.{name}({x}{wide}, axis={}{reverse}{exclusive}){narrow}", c.arg(1)))
}

/// `y_k = Σ_{j ≤ k} x_j`
pub static CUMSUM: OpDef = OpDef {
    name: "cumsum",
    doc: "Running sum along `axis`: each element with all before it. `exclusive` leaves the element itself out, \
         `reverse` runs from the end. Integers and booleans add up in int64, uint64 in itself, 16-bit floats in \
         float32.",
    aliases: &["cumulative_sum"],
    layer: "CumSum",
    eval: Some(Eval::Tensors(|c| {
        run(c, &Running { float: (0.0, |a, b| a + b), int: (0, i128::wrapping_add) })
    })),
    loops: Some(|c| scan_loops(c, "mithril_cumsum")),
    grad: Grad::Formula(|v| vec![v.g.cumsum(v.x[1], v.x[2], backwards(v))]),
    lowering: Lowering {
        py: Function(|c| scan_text(c, "cumsum")),
        mlx: Function(|c| mlx(c, "cumsum")),
        ggml: Function(super::ggml::cumsum),
        onnx: Function(super::onnx::cumsum),
        ..Lowering::NONE
    },
    ..SCAN
};

/// `y_k = Π_{j ≤ k} x_j`
pub static CUMPROD: OpDef = OpDef {
    name: "cumprod",
    doc: "Running product along `axis`: each element with all before it. `exclusive` leaves the element itself \
         out, `reverse` runs from the end. Integers and booleans multiply in int64, uint64 in itself, 16-bit floats in float32. The gradient is right \
         also where elements are 0.",
    aliases: &["cumulative_prod"],
    layer: "CumProd",
    eval: Some(Eval::Tensors(|c| {
        run(c, &Running { float: (1.0, |a, b| a * b), int: (1, i128::wrapping_mul) })
    })),
    loops: Some(|c| scan_loops(c, "mithril_cumprod")),
    grad: Grad::Formula(cumprod_grad),
    lowering: Lowering {
        py: Function(|c| scan_text(c, "cumprod")),
        mlx: Function(|c| mlx(c, "cumprod")),
        onnx: Function(|s| super::onnx::scan(s, "Mul", "like(1, $y)", s.bool(2).ok()?, s.bool(3).ok()?)),
        ..Lowering::NONE
    },
    domain: (0.5, 2.0),
    ..SCAN
};

/// The flag of the opposite direction.
fn backwards<'a>(v: &GradCx<'a>) -> V<'a> {
    v.cx.lit(!v.get(|c| c.bool(3)))
}

/// `Σ_k g_k y_k / x_i` before the first zero of a line. At that zero the products exclude it, and behind it the gradient is 0.
fn cumprod_grad<'a>(v: &GradCx<'a>) -> Vec<V<'a>> {
    let (x, axis, one) = (v.x[0], v.x[1], v.cx.lit(1.0));
    let later = |t: V<'a>| t.cumsum(axis, v.x[2], backwards(v));
    let is_zero = x.equal(0.0);
    let zeros = is_zero.cumsum(axis, false, v.x[3]);
    let before = zeros.equal(0);
    let first = is_zero.select(zeros.equal(1), false);
    let without = first.select(one, x).cumprod(axis, v.x[2], v.x[3]);
    let divisor = before.select(x, one);
    let behind = first.select(later(v.g * without), 0.0);
    vec![before.select(later(v.g * v.y) / divisor, behind)]
}

// --- extremes ----------------------------------------------------------------------------------------------

static EXTREME_PORTS: &[Port] = &[
    tensor("input"),
    attr("axis", Attr::Int, DefaultLit::Required),
    attr("reverse", Attr::Bool, DefaultLit::Bool(false)),
];

const RUNNING_EXTREMUM: OpDef = OpDef {
    ports: EXTREME_PORTS,
    shape: ShapeRule::Fn(same_with_axis),
    unsigned: Unsigned::Order,
    cases: &["[2,5] axis=1", "[2,3,4] axis=-2 reverse=true", "[0,3] axis=0", "i64[6] axis=0", "[2,0] axis=1"],
    tolerance: Tolerance::Exact,
    ..BLANK
};

/// Cumulative extrema.
fn extremes(c: &EvalCx<'_>, ordering: Ordering) -> Result<Vec<Tensor>> {
    let x = c.tensor(0);
    let (axis, reverse) = (c.axis(1, x.rank())?, c.bool(2)?);
    let mut from: Vec<usize> = (0..x.len()).collect();
    for line in lines(x.shape(), axis) {
        let mut line: Vec<usize> = line.collect();
        if reverse {
            line.reverse();
        }
        let mut best = None;
        for at in line {
            let is_better = |best: usize| {
                let (old, new) = (x.get(best), x.get(at));
                !old.f64().is_nan() && (new.f64().is_nan() || order(&new, &old) == ordering)
            };
            best = Some(best.filter(|&b| !is_better(b)).unwrap_or(at));
            from[at] = best.unwrap_or(at);
        }
    }
    Ok(vec![x.select(x.shape(), from.into_iter())])
}

/// Calls a function of the C prelude.
fn extreme_loops(c: &LoopCx<'_>, function: &str) -> Result<Vec<Expr>> {
    let wide = accumulator(c.out_dtype(0));
    let (outer, size, inner) = sizes_around(&c.shape(0), c.axis(1, c.rank(0))?);
    let (input, output) = (c.stored(0, wide), c.reserve(wide, c.out_shape(0)));
    let mut args = vec![CallArgument::In(input), CallArgument::Out(output)];
    args.extend([outer, size, inner, c.bool(2)?.into()].map(CallArgument::Int));
    c.call(format!("{function}_{}", wide.short()), args, 0);
    Ok(vec![c.output(0, |at| c.load(output, at).cast(c.out_dtype(0)))])
}

/// For each cumulative extremum the index of the last element that equals it.
fn places_of<'a>(x: V<'a>, y: V<'a>, axis: V<'a>, reverse: bool) -> V<'a> {
    let cx = x.cx();
    let at = axis.literal().and_then(|lit| if let Lit::Int(n) = lit { n.known() } else { None });
    let at = at.and_then(|at| normalize_axis(at, x.rank()).ok()).unwrap_or(0);
    let (size, mut shape) = (x.dim(at as i64), vec![Dim::ONE; x.rank()]);
    if let Some(slot) = shape.get_mut(at) {
        *slot = size.clone();
    }
    let places = cx.arange(size.clone()).reshape(Lit::tuple(shape));
    let is_it = x.equal(y);
    let is_it = if x.dtype().is_float() { is_it.logical_or(x.is_nan()) } else { is_it };
    // Other elements inherit the previous index: the cumulative maximum of indices (from the end, the minimum).
    let (none, op) =
        if reverse { (cx.lit(&size - &Dim::ONE), &CUMULATIVE_MIN) } else { (cx.lit(0), &CUMULATIVE_MAX) };
    is_it.select(places, none).op(op, &[axis, cx.lit(reverse)])
}

/// Adds each cotangent to the element that the extremum comes from.
fn extreme_grad<'a>(v: &GradCx<'a>) -> Vec<V<'a>> {
    let places = places_of(v.x[0], v.y, v.x[1], v.get(|c| c.bool(2)));
    vec![zeros(v.x[0]).scatter_add(places, v.g, v.x[1])]
}

/// The framework's function, or a helper that scans from the end.
fn extreme_text(c: &LoweringCx<'_>, plain: &str, helper: &str) -> Option<String> {
    let (x, axis) = (c.arg(0), c.arg(1));
    Some(if c.bool(2).ok()? {
        format!("{helper}({x}, {axis}, True)")
    } else {
        plain.replace("{0}", x).replace("{1}", axis)
    })
}

/// `y_k = max_{j ≤ k} x_j`
pub static CUMULATIVE_MAX: OpDef = OpDef {
    name: "cumulative_max",
    doc: "Cumulative maximum along `axis`; NaN from the first one on. `reverse` runs from the end. Where several are          equal, the gradient goes to the last of them. See `cummax` for their positions.",
    layer: "CumulativeMax",
    dtype: DTypeRule::Same(0),
    eval: Some(Eval::Tensors(|c| extremes(c, Ordering::Greater))),
    loops: Some(|c| extreme_loops(c, "mithril_cummax")),
    grad: Grad::Formula(extreme_grad),
    lowering: Lowering {
        numpy: Function(|c| extreme_text(c, "np.maximum.accumulate({0}, axis={1})", "_cumulative_max")),
        torch: Function(|c| extreme_text(c, "torch.cummax({0}, {1}).values", "_cumulative_max")),
        jax: Function(|c| Some(format!("_cumulative_max({}, {}, {})", c.arg(0), c.arg(1), c.arg(2)))),
        mlx: Function(|c| Some(format!("_cumulative_max({}, {}, {})", c.arg(0), c.arg(1), c.arg(2)))),
        onnx: Function(|s| super::onnx::scan(s, "Max", "lowest($y)", false, s.bool(2).ok()?)),
        ..Lowering::NONE
    },
    ..RUNNING_EXTREMUM
};

/// `y_k = min_{j ≤ k} x_j`
pub static CUMULATIVE_MIN: OpDef = OpDef {
    name: "cumulative_min",
    doc: "Smallest element so far along `axis`; NaN from the first one on. `reverse` runs from the end. Where several          are equal, the gradient goes to the last of them. See `cummin` for their positions.",
    layer: "CumulativeMin",
    dtype: DTypeRule::Same(0),
    eval: Some(Eval::Tensors(|c| extremes(c, Ordering::Less))),
    loops: Some(|c| extreme_loops(c, "mithril_cummin")),
    grad: Grad::Formula(extreme_grad),
    lowering: Lowering {
        numpy: Function(|c| extreme_text(c, "np.minimum.accumulate({0}, axis={1})", "_cumulative_min")),
        torch: Function(|c| extreme_text(c, "torch.cummin({0}, {1}).values", "_cumulative_min")),
        jax: Function(|c| Some(format!("_cumulative_min({}, {}, {})", c.arg(0), c.arg(1), c.arg(2)))),
        mlx: Function(|c| Some(format!("_cumulative_min({}, {}, {})", c.arg(0), c.arg(1), c.arg(2)))),
        onnx: Function(|s| super::onnx::scan(s, "Min", "highest($y)", false, s.bool(2).ok()?)),
        ..Lowering::NONE
    },
    ..RUNNING_EXTREMUM
};

static POSITIONS_PORTS: &[Port] = &[tensor("input"), attr("axis", Attr::Int, DefaultLit::Required)];

const RUNNING_EXTREMUM_WITH_INDICES: OpDef = OpDef {
    ports: POSITIONS_PORTS,
    outputs: &["values", "indices"],
    dtype: DTypeRule::Fn(|cx| Ok(DTypes::keep([cx.dtype(0).unwrap_or(cx.float), DType::I64]))),
    cases: &["[2,5] axis=1", "[2,3,4] axis=-2", "[0,3] axis=0", "i64[6]<3 axis=0", "[2,0] axis=1"],
    ..RUNNING_EXTREMUM
};

fn both<'a>(c: &ExpandCx<'a>, op: &'static OpDef) -> Vec<V<'a>> {
    let y = c.x[0].op(op, &[c.x[1]]);
    vec![y, places_of(c.x[0], y, c.x[1], false)]
}

/// cumulative maximum and its index
pub static CUMMAX: OpDef = OpDef {
    name: "cummax",
    doc: "Largest element so far along `axis` and its position in int64: of equal ones, and of several NaN, the last one \
         so far. As in torch; see `cumulative_max` for the values alone.",
    layer: "CumMax",
    expand: Some(|c| both(c, &CUMULATIVE_MAX)),
    lowering: Lowering { torch: Template("torch.cummax({0}, {1})"), ..Lowering::NONE },
    ..RUNNING_EXTREMUM_WITH_INDICES
};

/// cumulative minimum and its index
pub static CUMMIN: OpDef = OpDef {
    name: "cummin",
    doc: "Smallest element so far along `axis` and its position in int64: of equal ones, and of several NaN, the last one \
         so far. As in torch; see `cumulative_min` for the values alone.",
    layer: "CumMin",
    expand: Some(|c| both(c, &CUMULATIVE_MIN)),
    lowering: Lowering { torch: Template("torch.cummin({0}, {1})"), ..Lowering::NONE },
    ..RUNNING_EXTREMUM_WITH_INDICES
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::reduce::tests::{check_gradient, f64s, run, values};

    #[test]
    fn all_directions() {
        let t = [("input", f64s(&[4], &[1.0, 2.0, 3.0, 4.0]))];
        let axis = ("axis", 0.into());
        let (exclusive, reverse) = (("exclusive", true.into()), ("reverse", true.into()));
        assert_eq!(values(&CUMSUM, &t, std::slice::from_ref(&axis)), [1.0, 3.0, 6.0, 10.0]);
        assert_eq!(values(&CUMSUM, &t, &[axis.clone(), exclusive.clone()]), [0.0, 1.0, 3.0, 6.0]);
        assert_eq!(values(&CUMSUM, &t, &[axis.clone(), reverse.clone()]), [10.0, 9.0, 7.0, 4.0]);
        assert_eq!(values(&CUMPROD, &t, std::slice::from_ref(&axis)), [1.0, 2.0, 6.0, 24.0]);
        assert_eq!(values(&CUMPROD, &t, &[axis, exclusive, reverse]), [24.0, 12.0, 4.0, 1.0]);
    }

    #[test]
    fn axes_and_dtypes() {
        let t = [("input", Tensor::from_parts(&[2, 2], vec![100_i8, 100, 50, 50]))];
        let y = &run(&CUMSUM, &t, &[("axis", (-1).into())]).unwrap()[0];
        assert_eq!((y.dtype(), y.to_i64s()), (DType::I64, vec![100, 200, 50, 100]));
        let y = &run(&CUMSUM, &t, &[("axis", 0.into())]).unwrap()[0];
        assert_eq!(y.to_i64s(), [100, 100, 150, 150]);
        assert!(run(&CUMSUM, &t, &[("axis", 2.into())]).is_err());
    }

    #[test]
    fn gradients_agree_with_differences() {
        let cases = [
            [0.5, -1.5, 2.0, 0.7, -0.3],
            [0.5, 0.0, 2.0, 0.7, -0.3],
            [0.0, -1.5, 0.0, 0.7, 0.0],
            [0.5, -1.5, 0.0, 0.0, 1.1],
        ];
        for values in cases {
            for (exclusive, reverse) in [(false, false), (true, false), (false, true), (true, true)] {
                let options =
                    [("axis", 1.into()), ("exclusive", exclusive.into()), ("reverse", reverse.into())];
                check_gradient(&CUMPROD, &[("input", f64s(&[1, 5], &values))], &options);
                check_gradient(&CUMSUM, &[("input", f64s(&[1, 5], &values))], &options);
            }
        }
    }
}
