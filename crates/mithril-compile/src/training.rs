//! A training step as one program: outputs, gradients and the step of an optimizer, with all that it changes as state.

use std::collections::HashMap;
use std::sync::Arc;

use mithril_ir::build::Builder;
use mithril_ir::error::{Code, Error, Result};
use mithril_ir::graph::{Def, Graph, Role, TensorType, ValueId};
use mithril_ir::{Lit, Tensor, ops};
use mithril_model::{Init, Input};

use crate::compiled::{Compiled, gradient_of};
use crate::passes::differentiate::Request;
use crate::pipeline::{Interpreter, differentiated};

/// Values of one graph in another, by their position.
type Map = Vec<Option<ValueId>>;

impl Compiled {
    /// The program that takes a step of `params`, which minimizes the sum of the output `loss`. `step` is the model of
    /// the optimizer's step of these parameters (`mithril_model::optimizers::join`), whose learning rates become
    /// data (`learning_rate`; those of further groups `learning_rate_1`…). Parameters, what the optimizer remembers (`<param>.<slot>`) and the number of the step (`step`,
    /// from 1 on) become states.
    pub fn training_step(&self, loss: &str, params: &[Arc<str>], step: &Self) -> Result<Self> {
        let request =
            Request { outputs: vec![loss.into()], inputs: params.to_vec(), recompute: self.checkpoint };
        let forward = differentiated(&self.graph, &request, &Interpreter, self.float, &mut |_, _| {})?;
        let mut joined = Joined { builder: Builder::new(self.float), inputs: Vec::new() };
        let map = joined.forward(&forward, &self.inputs, params)?;
        joined.step(&forward, &map, params, &step.graph)?;
        let Joined { builder, inputs } = joined;
        Ok(Self { graph: builder.graph, inputs, ..self.clone() })
    }
}

struct Joined {
    builder: Builder,
    inputs: Vec<Input>,
}

impl Joined {
    fn input(&mut self, name: Arc<str>, role: Role, ty: &TensorType, init: Init) -> ValueId {
        self.inputs.push(Input { name: name.clone(), role, ty: ty.clone(), init, is_frozen: false });
        self.builder.graph.add_input(name, role, ty.clone())
    }
    /// Copies the program with gradients. Cotangents are one.
    fn forward(&mut self, old: &Graph, known: &[Input], params: &[Arc<str>]) -> Result<Map> {
        let mut inputs = HashMap::new();
        for &v in &old.inputs {
            let value = old.value(v);
            let (Def::Input(role), Some(ty), Some(name)) = (&value.def, &value.ty, &value.name) else {
                continue;
            };
            let new = match role {
                Role::Cotangent => {
                    let open =
                        || Error::new(Code::UnknownShape, format!("the shape of `{name}` is {}", ty.shape));
                    let sizes = ty.shape.known().ok_or_else(open)?;
                    let ones = Tensor::full(ty.dtype, &sizes, 1.0);
                    self.builder.graph.add_literal(Lit::Tensor(Arc::new(ones)))
                }
                role => {
                    let role = if params.contains(name) { Role::State } else { *role };
                    let init = known.iter().find(|i| i.name == *name).map_or(Init::Zeros, |i| i.init.clone());
                    self.input(name.clone(), role, ty, init)
                }
            };
            inputs.insert(v, new);
        }
        let map = copy(&mut self.builder, old, &inputs)?;
        for (name, &v) in old.outputs.iter().filter(|(name, _)| gradient_of(name).is_none()) {
            let new = get(&map, v)?;
            self.builder.graph.outputs.insert(name.clone(), new);
        }
        for &(input, value) in &old.updates {
            let update = (get(&map, input)?, get(&map, value)?);
            self.builder.graph.updates.push(update);
        }
        Ok(map)
    }
    /// Copies the step of the optimizer behind it.
    fn step(&mut self, forward: &Graph, map: &Map, params: &[Arc<str>], step: &Graph) -> Result<()> {
        let param = |i: usize| -> Result<ValueId> {
            let name = params.get(i).ok_or_else(|| Error::internal("a step of other parameters"))?;
            let parameter = forward.inputs.iter().find(|&&v| forward.value(v).name.as_ref() == Some(name));
            get(map, *parameter.ok_or_else(|| Error::internal(format!("`{name}` is not a parameter")))?)
        };
        let gradient = |i: usize| -> Result<ValueId> {
            let parameter =
                forward.outputs.iter().find(|(name, _)| gradient_of(name) == params.get(i).map(|p| &**p));
            get(map, *parameter.ok_or_else(|| Error::internal("a gradient is missing"))?.1)
        };
        let mut inputs = HashMap::new();
        // What replaces which output of the step.
        let mut kept: Vec<(String, ValueId)> = Vec::new();
        for &v in &step.inputs {
            let value = step.value(v);
            let (Some(ty), Some(name)) = (&value.ty, &value.name) else { continue };
            let (what, number) = name.rsplit_once('_').unwrap_or((name, ""));
            let i: usize =
                number.parse().map_err(|_| Error::internal(format!("an optimizer takes `{name}`")))?;
            let new = match what {
                "param" => param(i)?,
                "gradient" => gradient(i)?,
                "learning_rate" => {
                    let name = if i == 0 { what.to_owned() } else { name.to_string() };
                    self.input(name.into(), Role::Data, ty, Init::Zeros)
                }
                "step" if i == 0 => self.input("step".into(), Role::State, ty, Init::Ones),
                "step" => return Err(several_counters()),
                slot => {
                    let owner = params.get(i).map_or("", |p| &**p);
                    let new = self.input(format!("{owner}.{slot}").into(), Role::State, ty, Init::Zeros);
                    kept.push((format!("new_{slot}_{i}"), new));
                    new
                }
            };
            inputs.insert(v, new);
            if what == "step" {
                let one = self.builder.lit(Lit::Float(1.0));
                let next = self
                    .builder
                    .push(ops::find("add").ok_or_else(|| Error::internal("no add"))?, &[new, one])?;
                self.builder.graph.updates.push((new, next[0]));
            }
        }
        for i in 0..params.len() {
            kept.push((format!("new_param_{i}"), param(i)?));
        }
        let map = copy(&mut self.builder, step, &inputs)?;
        for (name, input) in kept {
            let v = step
                .outputs
                .get(name.as_str())
                .ok_or_else(|| Error::internal(format!("no output `{name}`")))?;
            self.builder.graph.updates.push((input, get(&map, *v)?));
        }
        Ok(())
    }
}

fn several_counters() -> Error {
    Error::new(Code::Unsupported, "the parameters have taken different numbers of steps")
        .help("start with a new optimizer")
}

/// Copies the nodes of a graph; `given` stands for its inputs.
fn copy(builder: &mut Builder, old: &Graph, bindings: &HashMap<ValueId, ValueId>) -> Result<Map> {
    let mut map: Map = vec![None; old.values().len()];
    for (v, value) in old.values() {
        map[v.index()] = match &value.def {
            Def::Const(lit) => Some(builder.graph.add_literal(lit.clone())),
            _ => bindings.get(&v).copied(),
        };
    }
    for (n, node) in old.nodes() {
        builder.set_origin(old.place(n).clone());
        let inputs = node.inputs.iter().map(|&v| get(&map, v)).collect::<Result<_>>()?;
        let outputs = builder.push_typed(node.op, inputs, crate::rewrite::types(old, node));
        for (&before, &new) in node.outputs.iter().zip(&outputs) {
            if let Some(name) = &old.value(before).name {
                builder.graph.name_value(new, name.clone());
            }
            map[before.index()] = Some(new);
        }
    }
    Ok(map)
}

fn get(map: &Map, v: ValueId) -> Result<ValueId> {
    map[v.index()].ok_or_else(|| Error::internal(format!("value {} is used before it is defined", v.index())))
}
