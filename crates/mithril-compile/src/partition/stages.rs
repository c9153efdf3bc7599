//! Stages: a program that is divided in time, over the micro-batches of a pipeline, is cut into the parts that each
//! device runs, by the layers that are placed there.
//!
//! Time is the first axis of the mesh. Its other axes are those of the devices of each stage, which run the same steps
//! and exchange tensors within them.
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

use super::micro_batches::{is_along, shared, sum_before_sending};
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
    /// The device, or the number of the stage, if a stage has several.
    pub device: usize,
    /// Above the levels of all steps that it reads from.
    pub level: usize,
    /// What it computes of inputs of role data; empty for a collective.
    pub graph: Graph,
    /// The collective, if it is one.
    pub exchange: Option<Exchange>,
    /// Whether what it computes is the same for all micro-batches.
    pub is_shared: bool,
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

/// The device of each node: that of its layer, else that of the last of its operands.
///
/// Where inputs are placed (`data:gradient_0`), as in the step of an optimizer, nodes are where the largest of their
/// operands is: what is computed of arrays that lie there, and a number from elsewhere.
pub(super) fn devices_of(graph: &Graph, time: &str, layers: &[(String, usize)]) -> Vec<usize> {
    let mut made: FxHashMap<ValueId, usize> = FxHashMap::default();
    let by_name: FxHashMap<&str, usize> = layers.iter().map(|(name, device)| (&**name, *device)).collect();
    made.extend(graph.inputs.iter().filter_map(|&v| Some((v, *by_name.get(&*name_of(graph, v))?))));
    let follows_inputs = !made.is_empty();
    let mut unplaced: FxHashMap<&str, usize> = FxHashMap::default();
    let mut devices = Vec::new();
    for (n, node) in graph.nodes() {
        let operands = node.inputs.iter().filter_map(|v| Some((v, *made.get(v)?)));
        let path = graph.place(n).path.as_deref().unwrap_or("");
        let device = if follows_inputs {
            let weight = |(v, device): (&ValueId, usize)| {
                (graph.ty(*v).map(bytes), graph.producer(*v).is_none(), device)
            };
            operands.map(weight).max().map_or(0, |(.., device)| device)
        } else {
            let around = operands.map(|(_, device)| device).max().unwrap_or(0);
            if is_along(graph, node, time) {
                around
            } else if let Some(device) = placed(path, layers) {
                device
            } else {
                // The gradient of a layer is computed where the layer is.
                *unplaced.entry(path).or_insert(around)
            }
        };
        made.extend(node.outputs.iter().map(|&v| (v, device)));
        devices.push(device);
    }
    devices
}

/// Where a value is made.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Made {
    level: usize,
    device: usize,
    /// Whether that waits for all micro-batches.
    waits: bool,
    /// Whether it is the same for all of them.
    is_shared: bool,
    /// Of a collective the number of its node, and one: those are steps of their own.
    collective: usize,
}

/// Cuts a program into steps. What belongs to no layer in `layers` is computed where the last of its operands is; a
/// name in `layers` may also be that of an input, with its role in front.
///
/// # Errors
/// If a collective has no axis of the mesh.
pub fn stages(program: &Partitioned, layers: &[(String, usize)]) -> Result<Stages> {
    let time = program.mesh.axes()[0].0.as_str();
    let summed = sum_before_sending(&program.graph, time, layers)?;
    let graph = summed.as_ref().unwrap_or(&program.graph);
    let groups = grouped(graph, time, layers, &shared(graph, &program.inputs, time));
    let results: Vec<ValueId> =
        graph.outputs.values().copied().chain(graph.updates.iter().map(|(_, new)| *new)).collect();
    let mut read: FxHashSet<ValueId> = results.iter().copied().collect();
    for nodes in groups.values() {
        let own: FxHashSet<ValueId> = nodes.iter().flat_map(|node| node.outputs.iter().copied()).collect();
        read.extend(nodes.iter().flat_map(|node| node.inputs.iter().copied()).filter(|v| !own.contains(v)));
    }
    let mut steps = Vec::new();
    // Tensors that are constants, where they are results or are divided.
    let divided =
        graph.nodes().filter(|(_, node)| is_along(graph, node, time)).map(|(_, node)| node.inputs[0]);
    let is_constant = |v: &ValueId| matches!(graph.value(*v).def, Def::Const(_)) && graph.ty(*v).is_some();
    let mut constants: Vec<ValueId> = results.iter().copied().chain(divided).filter(is_constant).collect();
    constants.sort_unstable_by_key(|v| v.index());
    constants.dedup();
    if !constants.is_empty() {
        let first = Made { level: 0, device: 0, waits: false, is_shared: true, collective: 0 };
        steps.push(step(graph, first, &[], &constants));
    }
    for (made, nodes) in groups {
        if made.collective > 0 {
            steps.push(exchange(graph, made, nodes[0])?);
            continue;
        }
        let makes = nodes.iter().flat_map(|node| node.outputs.iter().copied()).filter(|v| read.contains(v));
        steps.push(step(graph, made, &nodes, &makes.collect::<Vec<_>>()));
    }
    let read = graph.nodes().flat_map(|(_, node)| node.inputs.iter().copied());
    let named =
        read.chain(results.iter().copied()).filter_map(|v| Some((name_of(graph, v), bytes(graph.ty(v)?))));
    let bytes = named.collect();
    Ok(Stages { steps, results: results.iter().map(|&v| name_of(graph, v)).collect(), bytes })
}

/// The nodes of each step, in the order of the levels.
fn grouped<'g>(
    graph: &'g Graph,
    time: &str,
    layers: &[(String, usize)],
    shared: &[bool],
) -> BTreeMap<Made, Vec<&'g Node>> {
    let devices = devices_of(graph, time, layers);
    let mut made: FxHashMap<ValueId, Made> = FxHashMap::default();
    let mut groups: BTreeMap<Made, Vec<&Node>> = BTreeMap::new();
    // What is the same for all micro-batches and waits for none comes first, below the levels of all else.
    let mut first = 0;
    for is_first in [true, false] {
        for ((n, node), &device) in graph.nodes().zip(&devices) {
            let operands = || node.inputs.iter().filter_map(|v| made.get(v));
            let is_collective = is_along(graph, node, time);
            let is_shared = node.outputs.iter().any(|v| shared[v.index()]);
            // What waits for all micro-batches is apart: in one step with it, a micro-batch would wait that need not.
            let waits = is_collective && collective::communicates(node.op) || operands().any(|m| m.waits);
            let is_known = node.outputs.iter().any(|v| made.contains_key(v));
            let is_early = is_shared && !is_collective && {
                let is_there = |v: &ValueId| graph.producer(*v).is_none() || made.contains_key(v);
                node.inputs.iter().all(is_there)
            };
            if is_known || is_first && !is_early {
                continue;
            }
            let mut level = if is_first { 0 } else { first };
            for m in operands() {
                let is_later = m.device != device
                    || is_collective
                    || m.collective > 0
                    || m.waits != waits
                    || m.is_shared != is_shared;
                level = level.max(m.level + usize::from(is_later));
            }
            // Collectives are steps of their own.
            let collective = if is_collective { n.index() + 1 } else { 0 };
            let own = Made { level, device, waits, is_shared: is_shared && !is_collective, collective };
            made.extend(node.outputs.iter().map(|&v| (v, own)));
            groups.entry(own).or_default().push(node);
        }
        first = made.values().map(|m| m.level + 1).max().unwrap_or(0);
    }
    groups
}

fn exchange(graph: &Graph, made: Made, node: &Node) -> Result<Step> {
    let (input, output) = (node.inputs[0], node.outputs[0]);
    let reduction = match node.inputs.get(collective::AXIS).and_then(|&v| graph.lit(v)) {
        Some(Lit::Str(text)) => text.to_string(),
        _ => "SUM".to_owned(),
    };
    if node.op == &collective::COLLECTIVE_PERMUTE {
        return Err(Error::internal("micro-batches are sent to others"));
    }
    let axis = collective::axis_of(graph, node).unwrap_or(0);
    let joined = collective::axis_at(graph, node, collective::JOINED).unwrap_or(axis);
    let is_read = graph.ty(input).is_some();
    Ok(Step {
        device: made.device,
        level: made.level,
        graph: Graph::new(),
        exchange: Some(Exchange { op: node.op.name, axis, joined, reduction }),
        is_shared: false,
        reads: is_read.then(|| name_of(graph, input)).into_iter().collect(),
        makes: vec![name_of(graph, output)],
    })
}

/// The graph of nodes that run together; what they read from elsewhere is data.
fn step(old: &Graph, made: Made, nodes: &[&Node], makes: &[ValueId]) -> Step {
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
        for (&v, output) in node.outputs.iter().zip(outputs) {
            if let Some(name) = &old.value(v).name {
                graph.name_value(output, name.clone());
            }
            known.insert(v, output);
        }
    }
    for &v in makes {
        let new = find(&mut graph, &mut known, v);
        graph.outputs.insert(name_of(old, v).into(), new);
    }
    let makes = makes.iter().map(|&v| name_of(old, v)).collect();
    let Made { device, level, is_shared, .. } = made;
    Step { device, level, graph, exchange: None, is_shared, reads, makes }
}
