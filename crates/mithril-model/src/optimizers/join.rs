//! One model that takes a training step of many parameters.

use std::sync::Arc;

use mithril_ir::{DType, Lit, Place, Result};

use super::{Optimizer, clip, find};
use crate::connection::{Arg, Connection};
use crate::key::IOKey;
use crate::model::Model;

/// A parameter in a training step.
#[derive(Clone, Debug)]
pub struct Part {
    /// Its shape, and that of its gradient.
    pub shape: Vec<i64>,
    /// Its dtype.
    pub dtype: DType,
    /// The dtype of its gradient.
    pub gradient: DType,
    /// Arguments of the rule for this parameter.
    pub args: Vec<(String, Lit)>,
    /// Which of the learning rates it takes.
    pub rate: usize,
    /// Which of the counters of steps.
    pub counter: usize,
}

/// What is done to the gradients before the step; by value, then by norm, so that both bounds hold.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clipping {
    /// The largest magnitude of an element.
    pub value: Option<f64>,
    /// The largest norm of all gradients together.
    pub norm: Option<f64>,
}

/// A slot of a parameter.
#[derive(Clone, Debug)]
pub struct Kept {
    /// Name.
    pub name: &'static str,
    /// Shape.
    pub shape: Vec<i64>,
    /// Dtype.
    pub dtype: DType,
    /// Whether it starts as the parameter, and not at zero.
    pub is_copy: bool,
}

/// A training step of many parameters.
#[derive(Clone, Debug)]
pub struct Joined {
    /// Inputs `param_<i>`, `gradient_<i>`, `<slot>_<i>`, `learning_rate_<k>`, `step_<k>`; outputs `new_param_<i>`
    /// and `new_<slot>_<i>`, and with clipping by norm `norm`, that of the gradients before.
    pub model: Model,
    /// The slots of each parameter.
    pub slots: Vec<Vec<Kept>>,
    /// The dtype of learning rates and counters.
    pub scalar: DType,
}

/// Name of the slot that keeps a parameter of low precision in float32.
const MASTER: &str = "master";

/// Joins the rule of an optimizer over many parameters to one model. What is narrower than float32 is computed, and
/// remembered, in float32; with `master` the parameter itself too is remembered in float32, and rounded where it is
/// used.
///
/// ```
/// use mithril_ir::DType;
/// use mithril_model::optimizers::{Clipping, Part, join};
/// let (dtype, gradient) = (DType::F32, DType::F32);
/// let part = |shape: &[i64]| Part { shape: shape.to_vec(), dtype, gradient, args: vec![], rate: 0, counter: 0 };
/// let step = join("Adam", &[part(&[3, 2]), part(&[3])], Clipping::default(), false)?;
/// assert_eq!(step.slots[1].iter().map(|s| s.name).collect::<Vec<_>>(), ["mean", "square"]);
/// assert!(step.model.outputs().iter().any(|o| &**o == "new_param_1"));
/// # Ok::<(), mithril_ir::Error>(())
/// ```
pub fn join(optimizer: &str, parts: &[Part], clipping: Clipping, master: bool) -> Result<Joined> {
    let optimizer = find(optimizer)?;
    let scalar = if parts.iter().any(|p| p.dtype == DType::F64) { DType::F64 } else { DType::F32 };
    let gradients: Vec<Connection> =
        (0..).zip(parts).map(|(i, p)| array(&format!("gradient_{i}"), &p.shape, p.gradient)).collect();
    let (gradients, norm) = clipped(&gradients, parts, clipping, scalar)?;
    let mut scalars = Scalars { dtype: scalar, known: Vec::new() };
    let (mut outputs, mut slots) = (Vec::new(), Vec::new());
    for ((i, part), gradient) in (0..).zip(parts).zip(&gradients) {
        let (kept, mut updated) = one(optimizer, part, i, gradient, &mut scalars, master)?;
        outputs.append(&mut updated);
        slots.push(kept);
    }
    if let Some(norm) = norm {
        outputs.push(("norm".to_owned(), norm));
    }
    let mut model = Model::with_class(optimizer.layer.name);
    let outputs: Vec<_> = outputs.into_iter().map(|(name, c)| (name.into(), c)).collect();
    model.add_outputs(&outputs, &Place::default())?;
    Arc::make_mut(&mut model.0).is_optimizer_step = true;
    Ok(Joined { model, slots, scalar })
}

/// Scalars that many parameters share.
struct Scalars {
    dtype: DType,
    known: Vec<(String, DType, Connection)>,
}

impl Scalars {
    /// The scalar of that name, in that dtype.
    fn get(&mut self, name: &str, dtype: DType) -> Result<Connection> {
        if let Some((.., c)) = self.known.iter().find(|(n, d, _)| n == name && *d == dtype) {
            return Ok(c.clone());
        }
        let gradient = if dtype == self.dtype {
            array(name, &[], dtype)
        } else {
            cast(&self.get(name, self.dtype)?, self.dtype, dtype)?
        };
        self.known.push((name.to_owned(), dtype, gradient.clone()));
        Ok(gradient)
    }
}

fn array(name: &str, shape: &[i64], dtype: DType) -> Connection {
    Connection::input(IOKey::new(name).shape(shape.iter().copied()).dtype(dtype).trainable(false))
}

fn cast(x: &Connection, from: DType, to: DType) -> Result<Connection> {
    if from == to {
        return Ok(x.clone());
    }
    Connection::op("cast", vec![x.into(), to.into()], Vec::new())
}

/// The dtype that a parameter is updated in.
fn computed(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// Gradients in the dtype of the computation, clipped; and their norm.
fn clipped(
    gradients: &[Connection],
    parts: &[Part],
    clipping: Clipping,
    scalar: DType,
) -> Result<(Vec<Connection>, Option<Connection>)> {
    let computed_dtypes: Vec<DType> = parts.iter().map(|p| computed(p.dtype)).collect();
    let gradient_dtypes: Vec<DType> = parts.iter().map(|p| p.gradient).collect();
    let mut gradients = cast_all(gradients, &gradient_dtypes, &computed_dtypes)?;
    if let Some(bound) = clipping.value {
        gradients = clip::by_value(&gradients, bound)?;
    }
    let Some(bound) = clipping.norm else { return Ok((gradients, None)) };
    let common = vec![scalar; parts.len()];
    let (clipped, norm) = clip::by_norm(&cast_all(&gradients, &computed_dtypes, &common)?, bound)?;
    Ok((cast_all(&clipped, &common, &computed_dtypes)?, Some(norm)))
}

fn cast_all(all: &[Connection], from: &[DType], to: &[DType]) -> Result<Vec<Connection>> {
    all.iter().zip(from.iter().zip(to)).map(|(x, (&from, &to))| cast(x, from, to)).collect()
}

type Outputs = Vec<(String, Connection)>;

/// The step of one parameter.
fn one(
    optimizer: &Optimizer,
    part: &Part,
    i: usize,
    gradient: &Connection,
    scalars: &mut Scalars,
    master: bool,
) -> Result<(Vec<Kept>, Outputs)> {
    let dtype = computed(part.dtype);
    let rule = rule(optimizer, part)?;
    let keeps_master = master && part.dtype != dtype;
    let mut slots: Vec<Kept> = Vec::new();
    let mut named: Vec<(&str, Arg)> = Vec::new();
    let inputs = rule.inputs();
    for name in &inputs {
        let value = match &**name {
            "param" if keeps_master => array(&format!("{MASTER}_{i}"), &part.shape, dtype),
            "param" => cast(&array(&format!("param_{i}"), &part.shape, part.dtype), part.dtype, dtype)?,
            "gradient" => gradient.clone(),
            "learning_rate" => scalars.get(&format!("learning_rate_{}", part.rate), dtype)?,
            "step" => scalars.get(&format!("step_{}", part.counter), dtype)?,
            slot => {
                let slot = optimizer.slot(slot)?;
                let (name, shape) = (slot.name, slot.extent.of(&part.shape));
                let input = array(&format!("{name}_{i}"), &shape, dtype);
                slots.push(Kept { name, shape, dtype, is_copy: false });
                input
            }
        };
        named.push((name, value.into()));
    }
    let mut outputs = Vec::new();
    for (name, value) in rule.outputs().iter().zip(rule.call_with(Vec::new(), named, None)?) {
        if &**name != "new_param" {
            outputs.push((format!("{name}_{i}"), value));
            continue;
        }
        outputs.push((format!("{name}_{i}"), cast(&value, dtype, part.dtype)?));
        if keeps_master {
            outputs.push((format!("new_{MASTER}_{i}"), value));
        }
    }
    if keeps_master {
        slots.push(Kept { name: MASTER, shape: part.shape.clone(), dtype, is_copy: true });
    }
    Ok((slots, outputs))
}

/// The rule for a parameter; what has no rows and columns is not factored.
fn rule(optimizer: &Optimizer, part: &Part) -> Result<Model> {
    let mut args: Vec<(&str, Lit)> = part.args.iter().map(|(n, v)| (&**n, v.clone())).collect();
    if part.shape.len() < 2 && optimizer.layer.args.iter().any(|a| a.name == "factored") {
        args.retain(|(name, _)| *name != "factored");
        args.push(("factored", false.into()));
    }
    optimizer.layer.build(Vec::new(), args)
}
