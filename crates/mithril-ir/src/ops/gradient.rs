//! Ops that return their input and say where its gradient flows.

use crate::dtype::Kinds;
use crate::error::{Code, Error};
use crate::lowering::LoweringRule::{Function, Template};
use crate::lowering::{Lowering, LoweringCx};
use crate::op::{
    Attr, BLANK, DTypeRule, DefaultLit, Eval, Grad, OpDef, ShapeRule, Tolerance, attr, tensor_of,
};
use crate::rules::Attrs;

use super::elementwise::NUMERIC;

/// Ops of this file.
pub static OPS: &[&OpDef] = &[&STOP_GRADIENT, &REPLACE_GRADIENT];

/// the input, without a gradient
pub static STOP_GRADIENT: OpDef = OpDef {
    name: "stop_gradient",
    doc: "The input as it is; for gradients it is a constant, through which none flows.",
    aliases: &["detach"],
    layer: "StopGradient",
    dtype: DTypeRule::Promote,
    eval: Some(Eval::Scalar(|x| x[0])),
    grad: Grad::Zero,
    lowering: Lowering {
        numpy: Template("{0}.copy()"),
        torch: Template("{0}.detach()"),
        jax: Template("jax.lax.stop_gradient({0})"),
        mlx: Template("mx.stop_gradient({0})"),
        c: Template("{0}"),
        onnx: Template("{0}"),
        ..Lowering::NONE
    },
    ..NUMERIC
};

/// the input, with the gradient of another tensor
pub static REPLACE_GRADIENT: OpDef = OpDef {
    name: "replace_gradient",
    doc: "The input as it is; in training its gradient flows to `surrogate`, a tensor of its shape, as if that were \
          the result. `replace_gradient(round(x), x)` rounds with the gradient of the identity: the straight-through \
          estimator (Bengio et al. 2013).",
    layer: "ReplaceGradient",
    ports: &[
        tensor_of("input", Kinds::FLOAT),
        tensor_of("surrogate", Kinds::FLOAT),
        attr("training", Attr::Bool, DefaultLit::Training),
    ],
    shape: ShapeRule::Fn(|cx| {
        let (input, surrogate) = (cx.shape(0), cx.shape(1));
        if cx.broadcast(&[input, surrogate])? != *input || input.rank() != surrogate.rank() {
            let message = format!("the input is {input}, `surrogate` {surrogate}");
            return Err(Error::new(Code::ShapeMismatch, message).help("both have one shape"));
        }
        Ok(vec![input.clone()])
    }),
    dtype: DTypeRule::Same(0),
    // Programs that hold their gradients already need only the value.
    expand: Some(|c| vec![c.x[0]]),
    grad: Grad::Formula(|v| {
        if v.get(|a| a.bool(2)) { vec![v.none(), v.g.cast(v.x[1].dtype())] } else { vec![v.g] }
    }),
    lowering: Lowering {
        torch: Function(|s| replaced(s, "torch.", "{value}.detach()")),
        jax: Function(|s| replaced(s, "jnp.", "jax.lax.stop_gradient({value})")),
        mlx: Function(|s| replaced(s, "mx.", "mx.stop_gradient({value})")),
        ..Lowering::NONE
    },
    cases: &["[2,3] [2,3] training=true", "[2,3] [2,3] training=false"],
    tolerance: Tolerance::Exact,
    ..BLANK
};

/// For frameworks that differentiate by themselves: the input, less a difference that is 0 and has the gradient.
fn replaced(s: &LoweringCx<'_>, xp: &str, stopped: &str) -> Option<String> {
    if !s.bool(2).ok()? {
        return None;
    }
    let stop = |i: usize| stopped.replace("{value}", s.arg(i));
    let (value, surrogate, fixed) = (stop(0), s.arg(1), stop(1));
    // Of infinities, the difference would be NaN.
    Some(format!("{xp}subtract({value}, {xp}where({xp}isfinite({surrogate}), {fixed} - {surrogate}, 0.0))"))
}
