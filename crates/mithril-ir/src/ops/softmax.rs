//! Softmax and its logarithm along an axis.

use crate::dtype::DType;
use crate::error::Result;
use crate::forms::form;
use crate::formula::{ExpandCx, V};
use crate::interp::EvalCx;
use crate::lowering::Lowering;
use crate::lowering::LoweringRule::{Function, Template};
use crate::op::{Attr, DefaultLit, Eval, Grad, OpDef, Port, ShapeRule, Tolerance, UNARY, attr, tensor};
use crate::ops::elementwise::larger;
use crate::ops::reduce::{MAX, SUM};
use crate::rules::Attrs;
use crate::tensor::Tensor;

/// Ops of this file.
pub static OPS: &[&OpDef] = &[&SOFTMAX, &LOG_SOFTMAX];

static SOFTMAX_PORTS: &[Port] = &[tensor("input"), attr("axis", Attr::Int, DefaultLit::Int(-1))];
const SOFTMAX_CASES: &[&str] =
    &["[2,3]", "[2,3,4] axis=1", "[2,3,4] axis=-3", "[5] axis=0", "[2,0]", "[0,3]"];

/// A function along an axis.
const ALONG_AXIS: OpDef = OpDef {
    ports: SOFTMAX_PORTS,
    shape: ShapeRule::Fn(|cx| {
        cx.axis(1, cx.shape(0).rank())?;
        Ok(vec![cx.shape(0).clone()])
    }),
    cases: SOFTMAX_CASES,
    tolerance: Tolerance::Contraction,
    ..UNARY
};

/// Applies a function along the axis to `x - max(x)` and the sum of the exponentials of that.
fn map_lines(c: &EvalCx<'_>, f: fn(f64, f64) -> f64) -> Result<Vec<Tensor>> {
    let x = c.tensor(0);
    let axis = c.axis(1, x.rank())?;
    let mut values = x.to_f64s();
    let (n, inner) = (x.shape()[axis], x.shape()[axis + 1..].iter().product::<usize>());
    for start in (0..values.len()).filter(|i| i / inner % n == 0) {
        let line = || (0..n).map(|k| start + k * inner);
        let top = line().map(|i| values[i]).fold(f64::NEG_INFINITY, larger);
        let sum: f64 = line().map(|i| libm::exp(values[i] - top)).sum();
        for i in line() {
            values[i] = f(values[i] - top, sum);
        }
    }
    Ok(vec![Tensor::from_f64s(c.dtype(), c.shape(), &values)])
}

/// Applies `f` to `x - max(x)` along the axis and the sum of the exponentials of that.
fn shifted<'a>(c: &ExpandCx<'a>, f: fn(V<'a>, V<'a>) -> V<'a>) -> Vec<V<'a>> {
    let x = c.x[0];
    if x.dim(c.get(|a| a.int(1))).is(0) {
        // An empty tensor has no maximum.
        return vec![x];
    }
    let along = [c.x[1], c.cx.lit(true)];
    let rest = x - x.op(&MAX, &along);
    vec![f(rest, rest.exp().op(&SUM, &along))]
}

/// `e^x / Σ e^x`
pub static SOFTMAX: OpDef = OpDef {
    name: "softmax",
    doc: "Exponentials along an axis, divided by their sum: `exp(x - max(x)) / sum(exp(x - max(x)))`. A slice \
         that contains NaN or plus infinity, or only minus infinity, becomes NaN.",
    layer: "Softmax",
    eval: Some(Eval::Tensors(|c| map_lines(c, |x, sum| libm::exp(x) / sum))),
    expand: Some(|c| shifted(c, |rest, sum| rest.exp() / sum)),
    forms: &[form("exp(input - max(input, axis)) / sum(exp(input - max(input, axis)), axis)")],
    grad: Grad::Formula(|v| {
        let total = (v.g * v.y).sum(v.x[1], true);
        vec![v.y * (v.g - total)]
    }),
    lowering: Lowering {
        py: Template("{xp}.softmax({0}, {1})"),
        numpy: Template("_softmax({0}, {1})"),
        jax: Template("jax.nn.softmax({0}, axis={1})"),
        mlx: Function(|s| {
            let (x, axis) = (s.arg(0), s.arg(1));
            Some(match s.out(0)?.dtype {
                DType::F64 if s.out(0)?.shape.iter().any(|d| d.is(0)) => x.to_owned(),
                DType::F64 => format!("_softmax({x}, {axis})"),
                DType::F32 => format!("mx.softmax({x}, {axis})"),
                _ => format!("mx.softmax({x}, {axis}, precise=True)"),
            })
        }),
        ggml: Function(super::ggml::softmax),
        onnx: Function(|s| super::onnx::along(s, "Softmax", 1)),
        ..Lowering::NONE
    },
    ..ALONG_AXIS
};

/// `x - ln Σ e^x`
pub static LOG_SOFTMAX: OpDef = OpDef {
    name: "log_softmax",
    doc: "Logarithm of the softmax along an axis: `x - max(x) - log(sum(exp(x - max(x))))`, accurate where the \
         softmax rounds to 0.",
    layer: "LogSoftmax",
    eval: Some(Eval::Tensors(|c| map_lines(c, |x, sum| x - libm::log(sum)))),
    expand: Some(|c| shifted(c, |rest, sum| rest - sum.log())),
    forms: &[form("input - max(input, axis) - log(sum(exp(input - max(input, axis)), axis))")],
    grad: Grad::Formula(|v| {
        let total = v.g.sum(v.x[1], true);
        vec![v.g - v.y.exp() * total]
    }),
    lowering: Lowering {
        numpy: Template("_log_softmax({0}, {1})"),
        torch: Template("torch.log_softmax({0}, {1})"),
        jax: Template("jax.nn.log_softmax({0}, axis={1})"),
        mlx: Function(|s| {
            let x = s.out(0)?;
            let fits = x.dtype != DType::F64 && !x.shape.iter().any(|d| d.is(0));
            fits.then(|| format!("_log_softmax({}, {})", s.arg(0), s.arg(1)))
        }),
        ggml: Function(super::ggml::log_softmax),
        onnx: Function(|s| super::onnx::along(s, "LogSoftmax", 1)),
        ..Lowering::NONE
    },
    ..ALONG_AXIS
};
