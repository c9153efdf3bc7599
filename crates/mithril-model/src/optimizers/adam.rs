//! Adam and AdamW.

use mithril_ir::Result;
use mithril_ir::op::{Attr, DefaultLit};

use super::formula::{
    add, decayed_gradient, decayed_param, divide, input, mean, mean_square, multiply, op, root, seen, step,
};
use super::sgd::WEIGHT_DECAY;
use super::{OptimizerDef, Slot, from, share, slot};
use crate::connection::Connection;
use crate::layers::{LayerArg, LayerArgs, LayerDef, arg};
use crate::model::Model;

const BETA1: LayerArg = arg(
    "beta1",
    Attr::Float,
    DefaultLit::Float(0.9),
    "Share of the running mean of the gradient that is kept.",
);
const BETA2: LayerArg =
    arg("beta2", Attr::Float, DefaultLit::Float(0.999), "The same of the running mean of its square.");
const EPS: LayerArg =
    arg("eps", Attr::Float, DefaultLit::Float(1e-8), "Added to the root of the mean square.");
const AMSGRAD: LayerArg =
    arg("amsgrad", Attr::Bool, DefaultLit::Bool(false), "Whether the largest mean square so far counts.");

static SLOTS: &[Slot] = &[slot("mean"), slot("square"), slot("largest")];

/// adaptive moments
pub(super) static ADAM: OptimizerDef = OptimizerDef {
    def: LayerDef {
        name: "Adam",
        doc: "Adaptive moments (Kingma and Ba 2014, arXiv:1412.6980): `m ← β₁·m + (1 − β₁)·g`, `v ← β₂·v + (1 − \
              β₂)·g²`, `p ← p − rate·m̂ / (√v̂ + eps)` with `m̂ = m / (1 − β₁ᵗ)` and `v̂ = v / (1 − β₂ᵗ)`; `amsgrad` \
              (Reddi et al. 2018, arXiv:1904.09237) takes the largest `v` so far.",
        args: &[BETA1, BETA2, EPS, WEIGHT_DECAY, AMSGRAD],
        build: |a| {
            let param = input("param");
            let gradient = decayed_gradient(&param, input("gradient"), from(a, "weight_decay", 0.0)?)?;
            adapted(a, &param, &gradient, &input("learning_rate"))
        },
        aliases: &[],
        arg_aliases: &[],
    },
    slots: SLOTS,
};

/// Adam with weight decay of its own
pub(super) static ADAMW: OptimizerDef = OptimizerDef {
    def: LayerDef {
        name: "AdamW",
        doc: "Adam with weight decay of its own (Loshchilov and Hutter 2017, arXiv:1711.05101): before the step of \
              `Adam`, `p ← p·(1 − rate·weight_decay)`, whatever the gradient is.",
        args: &[
            BETA1,
            BETA2,
            EPS,
            arg(
                "weight_decay",
                Attr::Float,
                DefaultLit::Float(0.01),
                "Times the learning rate, what a parameter loses.",
            ),
            AMSGRAD,
        ],
        build: |a| {
            let rate = input("learning_rate");
            let param = decayed_param(input("param"), &rate, from(a, "weight_decay", 0.0)?)?;
            adapted(a, &param, &input("gradient"), &rate)
        },
        aliases: &[],
        arg_aliases: &[],
    },
    slots: SLOTS,
};

/// The step that both have; `p − rate·√s₂/s₁ · m / (√v + eps·√s₂)` with `sᵢ = 1 − βᵢᵗ` saves a pass over the
/// parameter.
fn adapted(a: &LayerArgs<'_>, param: &Connection, gradient: &Connection, rate: &Connection) -> Result<Model> {
    let (beta1, beta2, eps) = (share(a, "beta1")?, share(a, "beta2")?, from(a, "eps", 0.0)?);
    let t = input("step");
    let moment = mean(&input("mean"), gradient, beta1)?;
    let squares = mean_square(&input("square"), gradient, beta2)?;
    let mut outputs = vec![("new_mean", moment.clone()), ("new_square", squares.clone())];
    let mut largest = squares;
    if a.bool("amsgrad")? {
        largest = op("maximum", [(&input("largest")).into(), (&largest).into()])?;
        outputs.push(("new_largest", largest.clone()));
    }
    let spread = root(&seen(&t, beta2)?)?;
    let size = divide(&multiply(rate, &spread)?, &seen(&t, beta1)?)?;
    let scale = add(&root(&largest)?, &multiply(&spread, eps)?)?;
    let new = step(param, &divide(&moment, &scale)?, &size)?;
    outputs.insert(0, ("new_param", new));
    Model::from_outputs(outputs)
}
