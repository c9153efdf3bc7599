//! Optimizers: update rules as models, and whole training steps made of them.
//!
//! A rule is a definition ([`OptimizerDef`]). Its model computes one step of one parameter: from the inputs `param`,
//! `gradient`, `learning_rate` and `step` (the number of the step, from 1 on; both scalars) and one input per slot
//! (what is remembered from step to step, and starts at zero) it computes `new_param` and `new_<slot>`.
//! [`join`] makes one model of the rules of many parameters, so that one program takes a whole training step.
//!
//! ```
//! use mithril_model::optimizers;
//! let rule = optimizers::build("SGD", vec![], vec![("momentum", 0.9.into())])?;
//! assert_eq!(rule.inputs().len(), 4);
//! assert_eq!(rule.outputs()[..], ["new_param", "new_momentum"].map(Into::into));
//! # Ok::<(), mithril_ir::Error>(())
//! ```

mod adafactor;
mod adam;
mod average;
pub mod clip;
mod formula;
mod join;
mod lion;
mod rmsprop;
mod sgd;

use std::sync::LazyLock;

use mithril_ir::{Code, Error, Lit, Result};

pub use join::{Clipping, Joined, Kept, Part, join};

use crate::layers::{Layer, LayerArgs, LayerDef};
use crate::model::{Model, unknown};

/// An optimizer.
#[derive(Debug)]
pub struct OptimizerDef {
    /// Name, arguments, documentation, and the function that builds the rule.
    pub def: LayerDef,
    /// All that a rule may remember; a rule has those that are inputs of its model.
    pub slots: &'static [Slot],
}

/// What is remembered of a parameter from step to step.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// Name.
    pub name: &'static str,
    /// How large it is.
    pub extent: Extent,
}

/// How large a slot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// As large as the parameter.
    Whole,
    /// One number per row: the last axis has size 1.
    Rows,
    /// One number per column: the last axis but one has size 1.
    Columns,
}

impl Extent {
    /// Shape of the slot of a parameter.
    fn of(self, shape: &[i64]) -> Vec<i64> {
        let mut shape = shape.to_vec();
        let from_end = match self {
            Self::Whole => 0,
            Self::Rows => 1,
            Self::Columns => 2,
        };
        let rank = shape.len();
        if let Some(size) = rank.checked_sub(from_end).and_then(|i| shape.get_mut(i)) {
            *size = 1;
        }
        shape
    }
}

/// A slot as large as the parameter that starts at zero.
const fn slot(name: &'static str) -> Slot {
    Slot { name, extent: Extent::Whole }
}

/// An optimizer in the form of the layers.
#[derive(Debug)]
pub struct Optimizer {
    /// The definition.
    pub definition: &'static OptimizerDef,
    /// Name, arguments and documentation; its model is the rule.
    pub layer: Layer,
}

static OPTIMIZERS: LazyLock<Vec<Optimizer>> = LazyLock::new(|| {
    let definitions =
        [&sgd::SGD, &adam::ADAM, &adam::ADAMW, &rmsprop::RMSPROP, &adafactor::ADAFACTOR, &lion::LION];
    let definitions = definitions.into_iter().chain([&average::AVERAGE]);
    definitions.map(|definition| Optimizer { definition, layer: Layer::of_def(&definition.def) }).collect()
});

/// All optimizers in the order of the documentation.
pub fn all() -> &'static [Optimizer] {
    &OPTIMIZERS
}

/// The optimizer of that name.
pub fn find(name: &str) -> Result<&'static Optimizer> {
    let optimizer = all().iter().find(|o| o.layer.name == name);
    optimizer.ok_or_else(|| unknown("optimizer", name, "Mithril", all().iter().map(|o| o.layer.name)))
}

impl Optimizer {
    /// The slot of that name.
    fn slot(&self, name: &str) -> Result<&'static Slot> {
        let slot = self.definition.slots.iter().find(|s| s.name == name);
        slot.ok_or_else(|| Error::internal(format!("{} has no slot `{name}`", self.layer.name)))
    }
}

/// Builds a rule by name; arguments by place, then by name.
pub fn build(name: &str, args: Vec<Lit>, named: Vec<(&str, Lit)>) -> Result<Model> {
    find(name)?.layer.build(args, named)
}

/// A number from `low` on.
fn from(a: &LayerArgs<'_>, name: &str, low: f64) -> Result<f64> {
    let x = a.f64(name)?;
    if x.is_finite() && x >= low { Ok(x) } else { Err(a.bad(name, &format!("a number from {low} on"))) }
}

/// A share: from 0 to below 1.
fn share(a: &LayerArgs<'_>, name: &str) -> Result<f64> {
    let x = a.f64(name)?;
    if (0.0..1.0).contains(&x) { Ok(x) } else { Err(a.bad(name, "a number from 0 to below 1")) }
}

#[cold]
fn conflict(message: &str, help: &str) -> Error {
    Error::new(Code::ConflictingOptions, message).help(help)
}
