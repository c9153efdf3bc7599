//! Adafactor.

use mithril_ir::op::{Attr, DefaultLit};
use mithril_ir::{Lit, Result};

use super::formula::{add_product, decayed_param, divide, input, multiply, op, root, square, step, subtract};
use super::{Extent, OptimizerDef, Slot, from, slot};
use crate::connection::{Arg, Connection};
use crate::layers::{LayerArgs, LayerDef, arg};
use crate::model::Model;

/// adaptive moments in sublinear memory
pub(super) static ADAFACTOR: OptimizerDef = OptimizerDef {
    def: LayerDef {
        name: "Adafactor",
        doc: "Adaptive moments in little memory (Shazeer and Stern 2018, arXiv:1804.04235): of a matrix only the means \
              of each row and of each column of `g²` are remembered, with `1 − step^decay` as the share that is kept; \
              their outer product over their mean estimates `v`. `u = g / √v` is held to a root mean square of `clip`, \
              and `p ← p·(1 − rate·weight_decay) − max(eps2, rms(p))·min(rate, 1/√step)·u`.",
        args: &[
            arg("decay", Attr::Float, DefaultLit::Float(-0.8), "Exponent of what the means lose in a step."),
            arg("eps1", Attr::Float, DefaultLit::Float(f32::EPSILON as f64), "The least root mean square."),
            arg("eps2", Attr::Float, DefaultLit::Float(1e-3), "The least scale of a parameter."),
            arg("clip", Attr::Float, DefaultLit::Float(1.0), "The largest root mean square of a step."),
            arg(
                "weight_decay",
                Attr::Float,
                DefaultLit::Float(0.0),
                "Times the learning rate, what a parameter loses.",
            ),
            arg(
                "factored",
                Attr::Bool,
                DefaultLit::Bool(true),
                "Whether tensors of two axes or more keep rows and columns only.",
            ),
        ],
        build,
        aliases: &[],
        arg_aliases: &[],
    },
    slots: &[
        Slot { name: "rows", extent: Extent::Rows },
        Slot { name: "columns", extent: Extent::Columns },
        slot("square"),
    ],
};

fn build(a: &LayerArgs<'_>) -> Result<Model> {
    let (eps1, eps2, clip) = (from(a, "eps1", 0.0)?, from(a, "eps2", 0.0)?, from(a, "clip", 0.0)?);
    let decay = a.f64("decay")?;
    if !decay.is_finite() || decay > 0.0 {
        return Err(a.bad("decay", "a number up to 0"));
    }
    if clip == 0.0 {
        return Err(a.bad("clip", "a number above 0"));
    }
    let (gradient, rate, t) = (input("gradient"), input("learning_rate"), input("step"));
    let param = input("param");
    let lost = op("power", [(&t).into(), decay.into()])?;
    let (squares, mut outputs) = if a.bool("factored")? {
        factored(&gradient, &lost, eps1)?
    } else {
        let squares = running(&input("square"), &square(&gradient)?, &lost)?;
        (squares.clone(), vec![("new_square", squares)])
    };
    let update = divide(&gradient, &root(&op("maximum", [(&squares).into(), (eps1 * eps1).into()])?)?)?;
    let excess = op("maximum", [(&divide(&rms(&update)?, clip)?).into(), 1.0.into()])?;
    let slowing = op("rsqrt", [(&t).into()])?;
    let relative = op("minimum", [(&rate).into(), (&slowing).into()])?;
    let size = multiply(&op("maximum", [(&rms(&param)?).into(), eps2.into()])?, &relative)?;
    let kept = decayed_param(param, &rate, from(a, "weight_decay", 0.0)?)?;
    let new = step(&kept, &update, &divide(&size, &excess)?)?;
    outputs.insert(0, ("new_param", new));
    Model::from_outputs(outputs)
}

type Outputs = Vec<(&'static str, Connection)>;

/// The mean squares estimated of those of rows and columns.
fn factored(gradient: &Connection, lost: &Connection, eps: f64) -> Result<(Connection, Outputs)> {
    let squares = square(gradient)?;
    let over = |x: &Connection, axis: i64| op("mean", [x.into(), axis.into(), true.into()]);
    let rows = running(&input("rows"), &over(&squares, -1)?, lost)?;
    let columns = running(&input("columns"), &over(&squares, -2)?, lost)?;
    let level = op("maximum", [(&over(&rows, -2)?).into(), eps.into()])?;
    let estimate = multiply(&divide(&rows, &level)?, &columns)?;
    Ok((estimate, vec![("new_rows", rows), ("new_columns", columns)]))
}

/// `old + lost·(new − old)`
fn running(old: &Connection, new: &Connection, lost: &Connection) -> Result<Connection> {
    add_product(old, &subtract(new, old)?, lost, 1.0)
}

/// Root mean square of all elements.
fn rms(x: &Connection) -> Result<Connection> {
    root(&op("mean", [Arg::from(&square(x)?), Lit::None.into(), false.into()])?)
}
