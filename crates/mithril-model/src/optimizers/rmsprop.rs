//! RMSprop.

use mithril_ir::Result;
use mithril_ir::op::{Attr, DefaultLit};

use super::formula::{add, add_product, decayed_gradient, divide, input, mean, mean_square, root, step};
use super::sgd::WEIGHT_DECAY;
use super::{OptimizerDef, from, share, slot};
use crate::layers::{LayerArgs, LayerDef, arg};
use crate::model::Model;

/// root mean square propagation
pub(super) static RMSPROP: OptimizerDef = OptimizerDef {
    def: LayerDef {
        name: "RMSprop",
        doc: "Gradients divided by their running root mean square (Hinton 2012, lecture 6e): `v ← alpha·v + (1 − \
              alpha)·g²`, `p ← p − rate·g / (√v + eps)`. `centered` (Graves 2013, arXiv:1308.0850) takes the variance: \
              the square of the running mean of `g` is subtracted from `v`. With momentum: `m ← momentum·m + g / (√v + \
              eps)`, `p ← p − rate·m`.",
        args: &[
            arg("alpha", Attr::Float, DefaultLit::Float(0.99), "Share of the mean square that is kept."),
            arg("eps", Attr::Float, DefaultLit::Float(1e-8), "Added to the root."),
            arg("momentum", Attr::Float, DefaultLit::Float(0.0), "Share of the direction that is kept."),
            arg("centered", Attr::Bool, DefaultLit::Bool(false), "Whether the variance counts."),
            WEIGHT_DECAY,
        ],
        build,
        aliases: &[],
        arg_aliases: &[],
    },
    slots: &[slot("square"), slot("mean"), slot("momentum")],
};

fn build(a: &LayerArgs<'_>) -> Result<Model> {
    let (alpha, eps, momentum) = (share(a, "alpha")?, from(a, "eps", 0.0)?, share(a, "momentum")?);
    let (param, rate) = (input("param"), input("learning_rate"));
    let gradient = decayed_gradient(&param, input("gradient"), from(a, "weight_decay", 0.0)?)?;
    let squares = mean_square(&input("square"), &gradient, alpha)?;
    let mut outputs = vec![("new_square", squares.clone())];
    let mut spread = squares;
    if a.bool("centered")? {
        let middle = mean(&input("mean"), &gradient, alpha)?;
        spread = add_product(&spread, &middle, &middle, -1.0)?;
        outputs.push(("new_mean", middle));
    }
    let mut direction = divide(&gradient, &add(&root(&spread)?, eps)?)?;
    if momentum != 0.0 {
        direction = add_product(&direction, &input("momentum"), momentum, 1.0)?;
        outputs.push(("new_momentum", direction.clone()));
    }
    outputs.insert(0, ("new_param", step(&param, &direction, &rate)?));
    Model::from_outputs(outputs)
}
