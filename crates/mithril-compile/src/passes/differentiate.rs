//! Differentiate: adds the cotangent graph (vector-Jacobian product, reverse mode) to a graph.
//!
//! Walks the nodes backwards and applies each row's gradient formula to the cotangents of its outputs. What is
//! common to all formulas is done once here: cotangents are summed over the axes that an input was broadcast
//! along, converted to its dtype, and added up where a value is used several times.
//!
//! A [`Request`] may ask for intermediate results to be computed again: see [`super::recompute`].
//!
//! # Higher orders
//!
//! The result is an ordinary graph, so the pass may be applied to it again: its outputs are those of the graph
//! before and the gradients, its inputs those of the graph before and the cotangents. Names stay distinct:
//! - a cotangent shares the name of its output; where another cotangent has that name already, the prefix
//!   [`COTANGENT`] is put before it, as often as needed;
//! - a gradient is named like its input with the prefix [`GRADIENT`]; where another output has that name already,
//!   the prefix is put before it as often as needed: the second derivative by `x` is `gradient:gradient:x`;
//! - a [`Request`] for the gradient by a cotangent names it with the prefix [`COTANGENT`], since an input and an
//!   output may have the same name. (The gradient of a gradient by its cotangent is a Jacobian-vector product.)

use std::sync::Arc;

use mithril_ir::build::Builder;
use mithril_ir::error::{Code, Error, Result, nearest};
use mithril_ir::formula::{GradCx, V};
use mithril_ir::graph::{Def, Graph, Node, NodeId, Role, TensorType, ValueId, Values};
use mithril_ir::op::{Grad, OpDef};
use mithril_ir::ops::host::call;
use mithril_ir::ops::{create, elementwise};
use mithril_ir::{DType, Lit, Shape};

use rustc_hash::FxHashMap;

use crate::passes::recompute::Recompute;
use crate::pipeline::{HostGradient, Interpreter, Target};
use crate::rewrite::{Rewrite, inline};

/// What to differentiate, with respect to what.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Names of the outputs that get a cotangent, each an input of the new graph of that name and of role
    /// [`Role::Cotangent`]. These are the last inputs, in this order.
    pub outputs: Vec<Arc<str>>,
    /// Names of the inputs whose gradients become outputs, named with the prefix [`GRADIENT`]. These are the last
    /// outputs, in this order.
    pub inputs: Vec<Arc<str>>,
    /// Whether the backward half computes intermediate results again, so that they need not be kept.
    pub recompute: bool,
}

/// Prefix of the outputs that give the gradients.
pub const GRADIENT: &str = "gradient:";

pub use mithril_ir::graph::COTANGENT;

/// Adds gradients to a graph. Its outputs and updates stay; gradients follow them in the order asked for. What a
/// request names twice counts once.
pub fn differentiate(graph: &Graph, request: &Request, float: DType) -> Result<Graph> {
    differentiate_for(&Interpreter, graph, request, float)
}

/// As [`differentiate`], with the gradients that the target has functions of its own for.
pub fn differentiate_for(
    target: &dyn Target,
    graph: &Graph,
    request: &Request,
    float: DType,
) -> Result<Graph> {
    let inputs = find_inputs(graph, &request.inputs)?;
    let mut forward = Forward {
        rewrite: Rewrite::new(graph, float),
        needs: Vec::new(),
        shadows: Shadows::default(),
        target,
    };
    let mut wrt = Vec::new();
    for &v in &inputs {
        let new = forward.rewrite.get(v)?;
        forward.mark(new);
        wrt.push(new);
    }
    forward.copy_all(graph)?;
    let (needs, shadows) = (forward.needs, forward.shadows);
    let mut result = forward.rewrite.finish()?;
    let recompute = if request.recompute { Recompute::new(&result) } else { Recompute::default() };
    let seeds = add_cotangents(&mut result, &request.outputs)?;
    let forward_nodes = result.nodes().len();
    let b = Builder::extend(result, float);
    let mut backward = Backward { b, needs, cotangents: Vec::new(), shadows, target, recompute };
    for (output, seed) in seeds {
        backward.accumulate(output, seed)?;
    }
    for n in (0..forward_nodes).rev() {
        backward.step(NodeId::new(n))?;
    }
    for (i, (name, v)) in request.inputs.iter().zip(wrt).enumerate() {
        if request.inputs[..i].contains(name) {
            continue;
        }
        let g = match backward.take(v) {
            Some(g) => g,
            None => backward.zeros(v)?,
        };
        let outputs = &mut backward.b.graph.outputs;
        let name = free(GRADIENT, format!("{GRADIENT}{name}"), |name| outputs.contains_key(name));
        outputs.insert(name.into(), g);
    }
    Ok(backward.b.graph)
}

/// The name, with the prefix before it as often as it takes to be new.
fn free(prefix: &str, name: String, taken: impl Fn(&str) -> bool) -> String {
    let mut name = name;
    while taken(&name) {
        name.insert_str(0, prefix);
    }
    name
}

fn is_cotangent(graph: &Graph, v: ValueId) -> bool {
    matches!(graph.value(v).def, Def::Input(Role::Cotangent))
}

fn find_inputs(graph: &Graph, names: &[Arc<str>]) -> Result<Vec<ValueId>> {
    let name_of = |v: ValueId| graph.value(v).name.as_deref().unwrap_or("");
    names
        .iter()
        .map(|name| {
            let find = |name: &str, cotangent: bool| {
                let fits = |&v: &ValueId| is_cotangent(graph, v) == cotangent && name_of(v) == name;
                graph.inputs.iter().copied().find(fits)
            };
            let cotangent = || name.strip_prefix(COTANGENT).and_then(|name| find(name, true));
            let value = find(name, false).or_else(cotangent);
            let v = value.ok_or_else(|| unknown("input", name, graph.inputs.iter().map(|&v| name_of(v))))?;
            match graph.ty(v) {
                Some(ty) if !ty.dtype.is_float() => Err(Error::new(
                    Code::NoGradient,
                    format!("there is no gradient with respect to `{name}`: it is {}", ty.dtype.name()),
                )
                .help("only floats have gradients; make it data, or declare a float dtype")),
                _ => Ok(v),
            }
        })
        .collect()
}

fn unknown<'a>(what: &str, name: &str, all: impl Iterator<Item = &'a str> + Clone) -> Error {
    let error = Error::new(Code::UnknownName, format!("there is no {what} called `{name}`"));
    match nearest(name, all.clone()) {
        Some(n) => error.help(format!("did you mean `{n}`?")),
        None => error.help(format!("available: {}", all.collect::<Vec<_>>().join(", "))),
    }
}

fn add_cotangents(graph: &mut Graph, outputs: &[Arc<str>]) -> Result<Vec<(ValueId, ValueId)>> {
    let mut seeds = Vec::new();
    for (i, name) in outputs.iter().enumerate() {
        if outputs[..i].contains(name) {
            continue;
        }
        let output = graph.outputs.get(name).copied();
        let output = output.ok_or_else(|| unknown("output", name, graph.outputs.keys().map(|k| &**k)))?;
        let Some(ty) = graph.ty(output).cloned() else { continue };
        if !ty.dtype.is_float() {
            let message = format!("output `{name}` is {} and has no gradient", ty.dtype.name());
            return Err(Error::new(Code::NoGradient, message).help("give a cotangent to float outputs only"));
        }
        let taken: Vec<ValueId> = graph.inputs.iter().copied().filter(|&v| is_cotangent(graph, v)).collect();
        let is_taken = |name: &str| taken.iter().any(|&v| graph.value(v).name.as_deref() == Some(name));
        let name = free(COTANGENT, name.to_string(), is_taken);
        let seed = graph.add_input(name, Role::Cotangent, ty);
        seeds.push((output, seed));
    }
    Ok(seeds)
}

/// For an output of an op that a backend computes by a method of its own: the output of its expansion, through
/// which the gradient flows.
type Shadows = FxHashMap<ValueId, ValueId>;

/// The forward half: copies the graph, expanding composites whose gradient is that of their expansion.
struct Forward<'g> {
    rewrite: Rewrite<'g>,
    /// Whether a value depends on what is differentiated with respect to.
    needs: Vec<bool>,
    shadows: Shadows,
    target: &'g dyn Target,
}

impl Forward<'_> {
    fn mark(&mut self, v: ValueId) {
        mark(&mut self.needs, v);
    }
    fn copy_all(&mut self, graph: &Graph) -> Result<()> {
        for (n, node) in graph.nodes() {
            self.rewrite.at(n);
            let inputs = self.rewrite.inputs(node)?;
            let types = crate::rewrite::types(graph, node);
            let mut place = Place { target: self.target, needs: &mut self.needs, shadows: &mut self.shadows };
            let outputs = place
                .node(&mut self.rewrite.builder, node.op, &inputs, types)
                .map_err(|e| e.at(graph.place(n)))?;
            self.rewrite.set_outputs(node, &outputs);
        }
        Ok(())
    }
}

fn mark(needs: &mut Vec<bool>, v: ValueId) {
    if needs.len() <= v.index() {
        needs.resize(v.index() + 1, false);
    }
    needs[v.index()] = true;
}

fn needed(needs: &[bool], v: ValueId) -> bool {
    needs.get(v.index()).copied().unwrap_or(false)
}

/// Where nodes of the forward half go.
struct Place<'p> {
    target: &'p dyn Target,
    needs: &'p mut Vec<bool>,
    shadows: &'p mut Shadows,
}

impl Place<'_> {
    fn node(
        &mut self,
        b: &mut Builder,
        op: &'static OpDef,
        inputs: &Values,
        types: Vec<TensorType>,
    ) -> Result<Values> {
        let flows = inputs.iter().any(|&v| needed(self.needs, v)) && !matches!(op.grad, Grad::Zero);
        let is_expanded = flows
            && (matches!(op.grad, Grad::Expansion)
                || self.target.has_gradient_call_inside(&b.graph, op, inputs));
        let may_stay = self.target.has_gradient_call(op) || self.target.has_method(op);
        if is_expanded && !may_stay {
            return self.expansion(b, op, inputs);
        }
        // Before the node, so that the way back meets the node first.
        let has_shadow = is_expanded && self.target.has_method(op);
        let shadow = if has_shadow { Some(self.expansion(b, op, inputs)?) } else { None };
        let outputs = b.push_typed(op, inputs.clone(), types);
        // The target is asked about the node in the graph; if it refuses, the node stays unused, and DCE removes it.
        let node = outputs.first().and_then(|&v| b.graph.producer(v));
        let calls = node.is_some_and(|n| self.target.gradient_call(&b.graph, n).is_some());
        let has_loop = node.is_some_and(|n| self.target.can_lower(&b.graph, n));
        if flows && matches!(op.grad, Grad::Loop(_)) && !has_loop {
            return self.expansion(b, op, inputs);
        }
        match shadow {
            Some(shadow) if !calls => self.shadows.extend(outputs.iter().copied().zip(shadow)),
            None if is_expanded && !calls => return self.expansion(b, op, inputs),
            _ => {}
        }
        if flows {
            for &v in &outputs {
                if b.graph.ty(v).is_some_and(|t| t.dtype.is_float()) {
                    mark(self.needs, v);
                }
            }
        }
        Ok(outputs)
    }
    fn expansion(&mut self, b: &mut Builder, op: &'static OpDef, inputs: &Values) -> Result<Values> {
        inline(b, op, inputs, &mut |b, op, inputs, types| self.node(b, op, &inputs, types))
    }
}

/// The backward half.
struct Backward<'h> {
    b: Builder,
    needs: Vec<bool>,
    cotangents: Vec<Option<ValueId>>,
    shadows: Shadows,
    target: &'h dyn Target,
    recompute: Recompute,
}

impl Backward<'_> {
    fn take(&mut self, v: ValueId) -> Option<ValueId> {
        self.cotangents.get(v.index()).copied().flatten()
    }
    fn accumulate(&mut self, v: ValueId, g: ValueId) -> Result<()> {
        if self.cotangents.len() <= v.index() {
            self.cotangents.resize(v.index() + 1, None);
        }
        let sum = match self.cotangents[v.index()] {
            Some(old) => self.b.push(&elementwise::ADD, &[old, g])?[0],
            None => g,
        };
        self.cotangents[v.index()] = Some(sum);
        Ok(())
    }
    fn zeros(&mut self, v: ValueId) -> Result<ValueId> {
        let ty = self.b.graph.ty(v).cloned();
        let ty = ty.ok_or_else(|| Error::internal("a literal has no cotangent"))?;
        let args = [Lit::tuple(ty.shape.iter().cloned()), Lit::Float(0.0), Lit::DType(ty.dtype)];
        let args = args.map(|lit| self.b.lit(lit));
        Ok(self.b.push(&create::FULL, &args)?[0])
    }
    fn cotangents_of(&mut self, node: &Node) -> Result<Values> {
        let mut gs = Values::new();
        for &v in &node.outputs {
            gs.push(match self.take(v) {
                Some(g) => g,
                None => self.zeros(v)?,
            });
        }
        Ok(gs)
    }
    /// Hands the cotangents of a node with an expansion beside it to that; whether there is one.
    fn pass_to_shadow(&mut self, node: &Node) -> Result<bool> {
        let mut is_any = false;
        for v in &node.outputs {
            let Some(&shadow) = self.shadows.get(v) else { continue };
            is_any = true;
            if let Some(g) = self.take(*v) {
                self.accumulate(shadow, g)?;
            }
        }
        Ok(is_any)
    }
    fn step(&mut self, n: NodeId) -> Result<()> {
        let node = self.b.graph.node(n).clone();
        let Some(entering) = node.outputs.iter().find_map(|&v| self.take(v)) else { return Ok(()) };
        if !node.inputs.iter().any(|&v| needed(&self.needs, v)) {
            return Ok(());
        }
        if self.pass_to_shadow(&node)? {
            return Ok(());
        }
        self.recompute.enter(&mut self.b, n, entering)?;
        let gradients = self.formula(n, &node)?;
        for (&v, &g) in node.inputs.iter().zip(&gradients) {
            if needed(&self.needs, v) && self.b.graph.ty(g).is_some() {
                self.accumulate(v, g)?;
            }
        }
        Ok(())
    }

    /// The gradients of the inputs of a node, by the formula of its row or of the host.
    fn formula(&mut self, n: NodeId, node: &Node) -> Result<Values> {
        let place = self.b.graph.place(n).clone();
        let host = self.target.gradient_call(&self.b.graph, n);
        let formula = match node.op.grad {
            _ if host.is_some() => None,
            Grad::Formula(f) | Grad::Loop(f) => Some(f),
            Grad::Zero => return Ok(Values::new()),
            Grad::Unsupported(reason) => {
                return Err(Error::new(Code::NoGradient, format!("{} has no gradient", node.op.name))
                    .note(reason)
                    .at(&place));
            }
            Grad::Expansion => {
                return Err(Error::internal(format!("{} was not expanded", node.op.name)).at(&place));
            }
        };
        let mut read =
            |vs: &Values| vs.iter().map(|&v| self.recompute.read(&mut self.b, v)).collect::<Result<Values>>();
        let (inputs, outputs) = (read(&node.inputs)?, read(&node.outputs)?);
        self.b.set_origin(place.clone());
        let gs = self.cotangents_of(node)?;
        let needs = &self.needs;
        self.b
            .formula(|cx| {
                let values = |ids: &[ValueId]| ids.iter().map(|&id| cx.value(id)).collect::<Vec<_>>();
                let call = GradCx::new(cx, node.op, values(&inputs), values(&outputs), values(&gs));
                let parts = match (&host, formula) {
                    (Some(host), _) => by_host(&call, host),
                    (None, Some(formula)) => formula(&call),
                    (None, None) => Vec::new(),
                };
                node.inputs
                    .iter()
                    .enumerate()
                    .map(|(i, &v)| match parts.get(i) {
                        Some(&g) if needed(needs, v) && g.is_some() => fit(g, cx.value(v)),
                        _ => cx.none(),
                    })
                    .collect()
            })
            .map_err(|e| e.note(format!("in the gradient of {}", node.op.name)).at(&place))
    }
}

/// The gradient of an op by a function of the host program: given cotangents, inputs and outputs, it returns a
/// gradient per input that is a float tensor.
fn by_host<'a>(c: &GradCx<'a>, host: &HostGradient) -> Vec<V<'a>> {
    let is_tensor = |i: usize| c.op.takes_tensor(i) && c.x[i].is_some();
    let tensors: Vec<V<'a>> = (0..c.x.len()).filter(|&i| is_tensor(i)).map(|i| c.x[i]).collect();
    let has_type = |x: V<'a>| c.cx.graph().ty(x.id()).is_some_and(|ty| ty.dtype.is_float());
    let floats: Vec<V<'a>> = tensors.iter().copied().filter(|&x| has_type(x)).collect();
    let options = host.options.iter().map(|(name, lit)| Lit::Tuple([Lit::text(name), lit.clone()].into()));
    let options = if host.options.is_empty() { Lit::None } else { Lit::Tuple(options.collect()) };
    let mut results = call(c.cx, &host.function, options, &floats, &[&c.gs, &tensors, &c.ys]).into_iter();
    let gradient = |i: usize| {
        let x = c.x[i];
        if is_tensor(i) && has_type(x) { results.next().unwrap_or_else(|| c.none()) } else { c.none() }
    };
    (0..c.x.len()).map(gradient).collect()
}

/// Brings a cotangent to the shape and dtype of the value it belongs to.
fn fit<'a>(g: V<'a>, x: V<'a>) -> V<'a> {
    let (target, mut shape) = (x.shape(), g.shape());
    let mut g = g;
    if shape != target {
        let extra = shape.rank().saturating_sub(target.rank());
        let is_broadcast = |i: usize| i < extra || target[i - extra].is(1);
        let axes: Vec<i64> = shape
            .iter()
            .enumerate()
            .filter(|&(i, d)| is_broadcast(i) && !d.is(1))
            .map(|(i, _)| i as i64)
            .collect();
        if !axes.is_empty() {
            g = g.sum(axes, true);
            shape = g.shape();
        }
        if shape.rank() > target.rank() {
            g = g.reshape(dims(&Shape::of(shape.iter().skip(extra).cloned())));
        }
        if g.shape() != target {
            g = g.broadcast_to(dims(&target));
        }
    }
    g.cast(x.dtype())
}

fn dims(shape: &Shape) -> Lit {
    Lit::tuple(shape.iter().cloned())
}
