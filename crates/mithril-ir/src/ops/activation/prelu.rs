//! Leaky ReLU with learned slopes, one per channel.

use super::LEAKY_RELU;
use crate::error::Result;
use crate::lowering::Lowering;
use crate::lowering::LoweringRule::Template;
use crate::op::{OpDef, Port, ShapeRule, Tolerance, UNARY, tensor};
use crate::rules::ShapeCx;
use crate::shape::Shape;

static PRELU_PORTS: &[Port] = &[tensor("input"), tensor("weight")];

/// leaky ReLU with learned slopes
pub static PRELU: OpDef = OpDef {
    name: "prelu",
    doc: "Leaky rectified linear unit with learned slopes: `x` above 0, `weight * x` below. `weight` has one element, \
         or one per channel (axis 1). K. He et al., Delving deep into rectifiers (2015).",
    layer: "Prelu",
    ports: PRELU_PORTS,
    shape: ShapeRule::Fn(prelu_shape),
    expand: Some(|c| {
        let (x, weight) = (c.x[0], c.x[1]);
        let is_single = weight.rank() == 0 || weight.dim(0).is(1);
        let mut shape = if is_single { Vec::new() } else { vec![weight.dim(0)] };
        shape.extend(std::iter::repeat_n(1.into(), if is_single { 0 } else { x.rank().saturating_sub(2) }));
        let slope = if weight.rank() == 0 { weight } else { weight.reshape(shape) };
        vec![x.op(&LEAKY_RELU, &[slope])]
    }),
    lowering: Lowering { torch: Template("F.prelu({0}, {1})"), ..Lowering::NONE },
    cases: &["[2,3] [3]", "[2,3,4] [3]", "[2,3] [1]", "[4] [1]", "[0,3] [3]", "[] []"],
    tolerance: Tolerance::Rounded,
    ..UNARY
};

fn prelu_shape(cx: &ShapeCx<'_>) -> Result<Vec<Shape>> {
    let (x, weight) = (cx.shape(0), cx.shape(1));
    cx.rank(1, &[0, 1])?;
    if let (Some(n), Some(channels)) = (weight.iter().next().filter(|n| !n.is(1)), x.get(1)) {
        cx.same(n, channels, "numbers of channels")?;
    } else if let Some(n) = weight.iter().next() {
        cx.same(n, &1.into(), "numbers of channels")?;
    }
    Ok(vec![x.clone()])
}
