//! Lion.

use mithril_ir::Result;
use mithril_ir::op::{Attr, DefaultLit};

use super::formula::{decayed_param, input, mean, op, step};
use super::{OptimizerDef, from, share, slot};
use crate::layers::{LayerArgs, LayerDef, arg};
use crate::model::Model;

/// evolved sign momentum
pub(super) static LION: OptimizerDef = OptimizerDef {
    def: LayerDef {
        name: "Lion",
        doc: "Evolved sign momentum (Chen et al. 2023, arXiv:2302.06675): `p ← p·(1 − rate·weight_decay) − \
              rate·sign(β₁·m + (1 − β₁)·g)`, `m ← β₂·m + (1 − β₂)·g`.",
        args: &[
            arg("beta1", Attr::Float, DefaultLit::Float(0.9), "Share of the momentum in the direction."),
            arg("beta2", Attr::Float, DefaultLit::Float(0.99), "Share of the momentum that is kept."),
            arg(
                "weight_decay",
                Attr::Float,
                DefaultLit::Float(0.0),
                "Times the learning rate, what a parameter loses.",
            ),
        ],
        build,
        aliases: &[],
        arg_aliases: &[],
    },
    slots: &[slot("momentum")],
};

fn build(a: &LayerArgs<'_>) -> Result<Model> {
    let (beta1, beta2) = (share(a, "beta1")?, share(a, "beta2")?);
    let (gradient, rate, momentum) = (input("gradient"), input("learning_rate"), input("momentum"));
    let param = decayed_param(input("param"), &rate, from(a, "weight_decay", 0.0)?)?;
    let direction = op("sign", [(&mean(&momentum, &gradient, beta1)?).into()])?;
    let new = step(&param, &direction, &rate)?;
    Model::from_outputs([("new_param", new), ("new_momentum", mean(&momentum, &gradient, beta2)?)])
}
