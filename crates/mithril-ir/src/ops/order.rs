//! Order of evaluation.

use crate::lowering::Lowering;
use crate::lowering::LoweringRule::Template;
use crate::op::{BLANK, DTypeRule, Eval, Grad, OpDef, ShapeRule, Tolerance, Unsigned, tensor};

/// Ops of this file.
pub static OPS: &[&OpDef] = &[&BARRIER];

/// `input`, after another value
pub static BARRIER: OpDef = OpDef {
    name: "barrier",
    doc: "Returns the input, but only after `after` has been computed. Values computed from it are not merged \
          with those computed from the input itself, so that gradient checkpointing recomputes intermediate \
          results instead of storing them.",
    ports: &[tensor("input"), tensor("after")],
    shape: ShapeRule::Same,
    dtype: DTypeRule::Same(0),
    eval: Some(Eval::Tensors(|c| Ok(vec![c.tensor(0).clone()]))),
    loops: Some(|c| Ok(vec![c.output(0, |at| c.load(0, at))])),
    unsigned: Unsigned::Bits,
    grad: Grad::Formula(|v| vec![v.g]),
    lowering: Lowering {
        // Python evaluates statements in order.
        py: Template("{0}"),
        jax: Template("jax.lax.optimization_barrier(({0}, {1}))[0]"),
        mlx: Template("{xp}.depends([{0}], [{1}])[0]"),
        c: Template("{0}"),
        onnx: Template("{0}"),
        ..Lowering::NONE
    },
    cases: &["[2,3] [4]", "i64[3]<9 []", "[] [2]", "[0,2] [1]"],
    tolerance: Tolerance::Exact,
    ..BLANK
};
