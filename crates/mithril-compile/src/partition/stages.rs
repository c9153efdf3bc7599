//! Stages: a program that is divided in time, over the micro-batches of a pipeline, is cut into the parts that each
//! device runs, by the layers that are placed there.
//!
//! A step is what one device computes without waiting for another one, or a collective over the micro-batches. Every
//! step has a level, above those of all steps that it reads from: whoever runs steps in the order of their levels, each
//! for all micro-batches, never waits for what comes later.

use std::collections::BTreeMap;

use mithril_ir::Lit;
use mithril_ir::error::{Error, Result};
use mithril_ir::graph::{Def, Graph, Node, Role, ValueId, Values};
use mithril_ir::ops::collective;
use rustc_hash::{FxHashMap, FxHashSet};

use super::pass::{Partitioned, bytes};

/// A collective over the micro-batches.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// Its op.
    pub op: &'static str,
    /// The axis of the tensor that is divided; 0 for sums.
    pub axis: usize,
    /// The axis that is joined, where that is another one.
    pub joined: usize,
    /// `SUM`, `MAX` or `MIN`.
    pub reduction: String,
}

/// A part of a program that one device runs.
#[derive(Clone, Debug)]
pub struct Step {
    /// The device.
    pub device: usize,
    /// Above the levels of all steps that it reads from.
    pub level: usize,
    /// What it computes of inputs of role data; empty for a collective.
    pub graph: Graph,
    /// The collective, if it is one.
    pub exchange: Option<Exchange>,
    /// Names of what it reads.
    pub reads: Vec<String>,
    /// Names of what it makes.
    pub makes: Vec<String>,
}

/// The steps of a program, in the order of their levels, and names of its outputs, then of its new states.
#[derive(Clone, Debug)]
pub struct Stages {
    /// The steps.
    pub steps: Vec<Step>,
    /// For each output and new state what it is called in the steps.
    pub results: Vec<String>,
    /// Bytes of what steps read and make, of one micro-batch.
    pub bytes: BTreeMap<String, u64>,
}

/// The name of a value between steps; of inputs with the role in front.
fn name_of(graph: &Graph, v: ValueId) -> String {
    let value = graph.value(v);
    let name = value.name.as_deref().unwrap_or("");
    match value.def {
        Def::Input(Role::Param) => format!("param:{name}"),
        Def::Input(Role::Data) => format!("data:{name}"),
        Def::Input(Role::State) => format!("state:{name}"),
        Def::Input(Role::Cotangent) => format!("cotangent:{name}"),
        _ => format!("v{}", v.index()),
    }
}

/// The device of the layer that a path leads to, by the longest name that fits.
fn placed(path: &str, devices: &[(String, usize)]) -> Option<usize> {
    let inside =
        |name: &str| path.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    let fitting = devices.iter().filter(|(name, _)| inside(name));
    fitting.max_by_key(|(name, _)| name.len()).map(|(_, device)| *device)
}

/// Cuts a program into steps. What belongs to no layer in `devices` is computed where the last of its operands is.
///
/// # Errors
/// If a collective has no axis of the mesh.
pub fn stages(program: &Partitioned, devices: &[(String, usize)]) -> Result<Stages> {
    let graph = &program.graph;
    // Where and on which level each value is made, and whether that waits for all micro-batches.
    let mut made: FxHashMap<ValueId, (usize, usize, bool)> = FxHashMap::default();
    let mut unplaced: FxHashMap<&str, usize> = FxHashMap::default();
    let mut groups: BTreeMap<(usize, usize, bool, usize), Vec<&Node>> = BTreeMap::new();
    for (number, (n, node)) in graph.nodes().enumerate() {
        let operands = || node.inputs.iter().filter_map(|v| made.get(v));
        let is_collective = collective::is_collective(node.op);
        let around = operands().map(|(device, ..)| *device).max().unwrap_or(0);
        let path = graph.place(n).path.as_deref().unwrap_or("");
        let device = if is_collective {
            around
        } else if let Some(device) = placed(path, devices) {
            device
        } else {
            // The gradient of a layer is computed where the layer is.
            *unplaced.entry(path).or_insert(around)
        };
        // What waits for all micro-batches is apart: in one step with it, a micro-batch would wait that need not.
        let waits = collective::communicates(node.op) || operands().any(|(_, _, waits)| *waits);
        let mut level = 0;
        for v in &node.inputs {
            let Some(&(from, below, waited)) = made.get(v) else { continue };
            let is_exchanged =
                graph.producer(*v).is_some_and(|p| collective::is_collective(graph.node(p).op));
            let is_later = from != device || is_collective || is_exchanged || waited != waits;
            level = level.max(below + usize::from(is_later));
        }
        for &v in &node.outputs {
            made.insert(v, (device, level, waits));
        }
        // Collectives are steps of their own.
        groups
            .entry((level, device, waits, if is_collective { number + 1 } else { 0 }))
            .or_default()
            .push(node);
    }
    let results: Vec<ValueId> =
        graph.outputs.values().copied().chain(graph.updates.iter().map(|(_, new)| *new)).collect();
    let mut read: FxHashSet<ValueId> = results.iter().copied().collect();
    for nodes in groups.values() {
        let own: FxHashSet<ValueId> = nodes.iter().flat_map(|node| node.outputs.iter().copied()).collect();
        read.extend(nodes.iter().flat_map(|node| node.inputs.iter().copied()).filter(|v| !own.contains(v)));
    }
    let mut steps = Vec::new();
    let constants: Vec<ValueId> =
        results.iter().copied().filter(|&v| matches!(graph.value(v).def, Def::Const(_))).collect();
    if !constants.is_empty() {
        steps.push(step(graph, 0, 0, &[], &constants));
    }
    for ((level, device, _, number), nodes) in groups {
        if number > 0 {
            steps.push(exchange(graph, device, level, nodes[0])?);
            continue;
        }
        let makes = nodes.iter().flat_map(|node| node.outputs.iter().copied()).filter(|v| read.contains(v));
        steps.push(step(graph, device, level, &nodes, &makes.collect::<Vec<_>>()));
    }
    let read = graph.nodes().flat_map(|(_, node)| node.inputs.iter().copied());
    let named =
        read.chain(results.iter().copied()).filter_map(|v| Some((name_of(graph, v), bytes(graph.ty(v)?))));
    let bytes = named.collect();
    Ok(Stages { steps, results: results.iter().map(|&v| name_of(graph, v)).collect(), bytes })
}

fn exchange(graph: &Graph, device: usize, level: usize, node: &Node) -> Result<Step> {
    let (input, output) = (node.inputs[0], node.outputs[0]);
    let reduction = match node.inputs.get(collective::AXIS).and_then(|&v| graph.lit(v)) {
        Some(Lit::Str(text)) => text.to_string(),
        _ => "SUM".to_owned(),
    };
    if std::ptr::eq(node.op, &raw const collective::COLLECTIVE_PERMUTE) {
        return Err(Error::internal("micro-batches are sent to others"));
    }
    let axis = collective::axis_of(graph, node).unwrap_or(0);
    let joined = collective::axis_at(graph, node, collective::JOINED).unwrap_or(axis);
    let is_read = graph.lit(input).is_none();
    Ok(Step {
        device,
        level,
        graph: Graph::new(),
        exchange: Some(Exchange { op: node.op.name, axis, joined, reduction }),
        reads: is_read.then(|| name_of(graph, input)).into_iter().collect(),
        makes: vec![name_of(graph, output)],
    })
}

/// The graph of nodes that run together; what they read from elsewhere is data.
fn step(old: &Graph, device: usize, level: usize, nodes: &[&Node], makes: &[ValueId]) -> Step {
    let mut graph = Graph::new();
    let mut known: FxHashMap<ValueId, ValueId> = FxHashMap::default();
    let mut reads = Vec::new();
    let mut find = |graph: &mut Graph, known: &mut FxHashMap<ValueId, ValueId>, v: ValueId| {
        if let Some(&new) = known.get(&v) {
            return new;
        }
        let value = old.value(v);
        let new = match (&value.def, &value.ty) {
            (Def::Const(lit), _) => graph.add_literal(lit.clone()),
            (_, Some(ty)) => {
                let name = name_of(old, v);
                reads.push(name.clone());
                graph.add_input(name, Role::Data, ty.clone())
            }
            // What has no type is a literal.
            (_, None) => v,
        };
        known.insert(v, new);
        new
    };
    for node in nodes {
        let inputs: Values = node.inputs.iter().map(|&v| find(&mut graph, &mut known, v)).collect();
        let types: Vec<_> = node.outputs.iter().filter_map(|&v| old.ty(v).cloned()).collect();
        let origin = graph.add_origin(old.origins()[node.origin.index()].clone());
        let new = graph.add_node(node.op, inputs, types, origin);
        let outputs: Vec<ValueId> = graph.node(new).outputs.iter().copied().collect();
        for (&v, made) in node.outputs.iter().zip(outputs) {
            if let Some(name) = &old.value(v).name {
                graph.name_value(made, name.clone());
            }
            known.insert(v, made);
        }
    }
    for &v in makes {
        let new = find(&mut graph, &mut known, v);
        graph.outputs.insert(name_of(old, v).into(), new);
    }
    let makes = makes.iter().map(|&v| name_of(old, v)).collect();
    Step { device, level, graph, exchange: None, reads, makes }
}
