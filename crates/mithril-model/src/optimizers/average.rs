//! The exponential moving average of parameters.

use super::OptimizerDef;
use super::formula::{add_product, input, subtract};
use crate::layers::LayerDef;
use crate::model::Model;

/// moving average
pub(super) static AVERAGE: OptimizerDef = OptimizerDef {
    def: LayerDef {
        name: "Average",
        doc: "Exponential moving average (Polyak and Juditsky 1992): `param` is the average, `gradient` what is \
              averaged, and `learning_rate` the share of the new: `p ← p + rate·(g − p)`.",
        args: &[],
        build: |_| {
            let param = input("param");
            let change = subtract(&input("gradient"), &param)?;
            let new = add_product(&param, &change, input("learning_rate"), 1.0)?;
            Model::from_outputs([("new_param", new)])
        },
        aliases: &[],
        arg_aliases: &[],
    },
    slots: &[],
};
