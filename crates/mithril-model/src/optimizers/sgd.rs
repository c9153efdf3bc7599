//! Stochastic gradient descent.

use mithril_ir::Result;
use mithril_ir::op::{Attr, DefaultLit};

use super::formula::{add_product, decayed_gradient, input, multiply, op, step, subtract};
use super::{OptimizerDef, conflict, from, share, slot};
use crate::layers::{LayerArg, LayerArgs, LayerDef, arg};
use crate::model::Model;

/// Weight decay that is part of the gradient.
pub(super) const WEIGHT_DECAY: LayerArg =
    arg("weight_decay", Attr::Float, DefaultLit::Float(0.0), "Times the parameter, added to the gradient.");

/// stochastic gradient descent
pub(super) static SGD: OptimizerDef = OptimizerDef {
    def: LayerDef {
        name: "SGD",
        doc: "Stochastic gradient descent. With momentum (Polyak 1964): `m ← momentum·m + (1 − dampening)·g`, `p ← p \
              − rate·m`; with Nesterov's (1983): `p ← p − rate·(g + momentum·m)`. The first `m` is `g`.",
        args: &[
            arg("momentum", Attr::Float, DefaultLit::Float(0.0), "Share of the direction that is kept."),
            arg("dampening", Attr::Float, DefaultLit::Float(0.0), "What a gradient lacks in the momentum."),
            arg("nesterov", Attr::Bool, DefaultLit::Bool(false), "Whether to look ahead along the momentum."),
            WEIGHT_DECAY,
        ],
        build,
        aliases: &[],
        arg_aliases: &[],
    },
    slots: &[slot("momentum")],
};

fn build(a: &LayerArgs<'_>) -> Result<Model> {
    let (momentum, dampening) = (share(a, "momentum")?, from(a, "dampening", 0.0)?);
    let nesterov = a.bool("nesterov")?;
    if nesterov && (momentum == 0.0 || dampening != 0.0) {
        return Err(conflict("`nesterov` needs a momentum and no dampening", "e.g. momentum=0.9"));
    }
    let (param, rate) = (input("param"), input("learning_rate"));
    let gradient = decayed_gradient(&param, input("gradient"), from(a, "weight_decay", 0.0)?)?;
    if momentum == 0.0 {
        return Model::from_outputs([("new_param", step(&param, &gradient, &rate)?)]);
    }
    let mut fresh = gradient.clone();
    if dampening != 0.0 {
        // 0 in the first step, else 1.
        let later = op("clip", [(&subtract(&input("step"), 1.0)?).into(), 0.0.into(), 1.0.into()])?;
        let factor = op("subtract", [1.0.into(), (&multiply(&later, dampening)?).into()])?;
        fresh = multiply(&gradient, &factor)?;
    }
    let kept = add_product(&fresh, &input("momentum"), momentum, 1.0)?;
    let direction = if nesterov { add_product(&gradient, &kept, momentum, 1.0)? } else { kept.clone() };
    let new = step(&param, &direction, &rate)?;
    Model::from_outputs([("new_param", new), ("new_momentum", kept)])
}
