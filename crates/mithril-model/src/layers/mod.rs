//! Layers: models that are ready to add.

use mithril_ir::{Lit, Result, ops};

use crate::init::Init;
use crate::key::Size;
use crate::model::Model;

/// `Linear(dimension, bias)`
pub fn linear(dimension: i64, bias: bool) -> Model {
    build_linear(dimension, bias).unwrap_or_else(|_| Model::new())
}

fn build_linear(dimension: i64, bias: bool) -> Result<Model> {
    let op = ops::find("linear").ok_or_else(|| mithril_ir::Error::internal("there is no op `linear`"))?;
    let model = Model::leaf(op, 0).of_class("Linear").learned(
        "weight",
        [Size::from(dimension), Size::Unknown],
        Init::KaimingUniform,
    )?;
    if bias {
        model.learned("bias", [Size::from(dimension)], Init::FanInOf("weight".into()))
    } else {
        model.setting("bias", Lit::None)
    }
}
