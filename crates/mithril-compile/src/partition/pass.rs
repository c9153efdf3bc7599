//! The pass: placements of the inputs are propagated through the graph, one axis of the mesh after another, and
//! collectives are inserted where an op needs what other devices hold.
//!
//! A value may exist in several forms (divided, whole, partial), each made once, when an op asks for it. For every op
//! those ways to divide it that [`super::rule`] accepts compete, and the cheapest in bytes sent and work done is taken.
//! So contractions over divided axes give partial results, which are reduced by the first op that cannot go on
//! with them. An op that divides in no way is expanded if its parts are cheaper (a softmax over a divided axis reduces
//! its maximum and its sum), or else computed by every device on whole operands.

use std::sync::Arc;

use mithril_ir::build::Builder;
use mithril_ir::error::{Error, Place, Result};
use mithril_ir::graph::{Def, Graph, NodeId, TensorType, ValueId, Values};
use mithril_ir::ops::collective;
use mithril_ir::{DType, Lit};
use rustc_hash::FxHashMap;

use super::memo::{Choice, Memo};
use super::mesh::{Layout, Mesh};
use super::request::requested;
use super::rule::{self, Arg, Local, Placement, Reduction, Use};

/// A collective of a partitioned graph.
#[derive(Clone, Debug)]
pub struct Communication {
    /// The op: `all_reduce`, `all_gather`, `reduce_scatter`.
    pub op: &'static str,
    /// The axis of the mesh.
    pub mesh_axis: String,
    /// Devices along that axis.
    pub devices: usize,
    /// Bytes that each device sends, by the ring algorithm.
    pub bytes: u64,
    /// The part of the model that needs it.
    pub place: Place,
}

/// The program that each device of a mesh runs.
#[derive(Debug)]
pub struct Partitioned {
    /// The graph on the shards of one device.
    pub graph: Graph,
    /// The mesh.
    pub mesh: Mesh,
    /// For each input, how it is divided along each axis of the mesh.
    pub inputs: Vec<Vec<Placement>>,
    /// The same for the outputs, then for the new states.
    pub outputs: Vec<Vec<Placement>>,
    /// What the devices exchange.
    pub communications: Vec<Communication>,
}

/// Partitions a graph whose sizes are numbers.
///
/// Outputs stay divided where that needs no communication; gradients named `gradient_of` and new states are
/// divided as their parameters and states are. `gradient_of` maps the name of an output to that of the
/// parameter whose gradient it is.
///
/// # Errors
/// If the layout names an axis that the mesh or a tensor does not have, a size is not known or does not divide.
pub fn partition(
    graph: &Graph,
    layout: &Layout,
    float: DType,
    gradient_of: &dyn Fn(&str) -> Option<String>,
) -> Result<Partitioned> {
    let mesh = &layout.mesh;
    let inputs = requested(graph, layout)?;
    let mut current = graph.clone();
    let mut outputs = vec![Vec::new(); graph.outputs.len() + graph.updates.len()];
    let memo = Memo::default();
    for (axis, (name, devices)) in mesh.axes().iter().enumerate() {
        let places: Vec<Placement> = inputs.iter().map(|all| all[axis]).collect();
        let (graph, results) = partition_axis(&current, name, *devices, float, &places, gradient_of, &memo)?;
        for (all, placement) in outputs.iter_mut().zip(results) {
            all.push(placement);
        }
        current = graph;
    }
    let communications = communications(&current);
    Ok(Partitioned { graph: current, mesh: mesh.clone(), inputs, outputs, communications })
}

/// Partitions a graph along one axis of a mesh, with its inputs in these places; where its results lie.
pub(super) fn partition_axis(
    graph: &Graph,
    axis: &str,
    devices: usize,
    float: DType,
    places: &[Placement],
    gradient_of: &dyn Fn(&str) -> Option<String>,
    memo: &Memo,
) -> Result<(Graph, Vec<Placement>)> {
    let (graph, results, _) =
        partition_weighted(graph, &[], axis, devices, float, places, gradient_of, memo)?;
    Ok((graph, results))
}

/// The same with the weights of the nodes, each as that of the node that it was made for.
#[expect(clippy::too_many_arguments, reason = "those of the pass, and the weights")]
pub(super) fn partition_weighted(
    graph: &Graph,
    weights: &[u32],
    axis: &str,
    devices: usize,
    float: DType,
    places: &[Placement],
    gradient_of: &dyn Fn(&str) -> Option<String>,
    memo: &Memo,
) -> Result<(Graph, Vec<Placement>, Vec<u32>)> {
    let mut pass = AxisPass::new(graph, axis, devices, float, memo);
    pass.old_weights = weights;
    let results = pass.run(&|i| places[i], gradient_of)?;
    Ok((pass.builder.graph, results, pass.weights))
}

/// The collectives of a graph, with what they send.
pub fn communications(graph: &Graph) -> Vec<Communication> {
    let mut all = Vec::new();
    for (n, node) in graph.nodes() {
        if !collective::is_collective(node.op) || std::ptr::eq(node.op, &raw const collective::SHARD) {
            continue;
        }
        let (Some(Lit::Str(axis)), Some(Lit::Int(count))) =
            (graph.lit(node.inputs[collective::MESH_AXIS]), graph.lit(node.inputs[collective::DEVICES]))
        else {
            continue;
        };
        let devices = count.known().unwrap_or(1).max(1) as u64;
        let whole = if std::ptr::eq(node.op, &raw const collective::ALL_GATHER) {
            node.outputs[0]
        } else {
            node.inputs[0]
        };
        let rounds = if std::ptr::eq(node.op, &raw const collective::ALL_REDUCE) { 2 } else { 1 };
        let size = graph.ty(whole).map_or(0, bytes);
        all.push(Communication {
            op: node.op.name,
            mesh_axis: axis.to_string(),
            devices: devices as usize,
            bytes: rounds * size * (devices - 1) / devices,
            place: graph.place(n).clone(),
        });
    }
    all
}

/// Bytes of a tensor whose sizes are known.
pub fn bytes(ty: &TensorType) -> u64 {
    ty.shape.known().map_or(0, |sizes| sizes.iter().product::<usize>() as u64 * ty.dtype.size() as u64)
}

/// What an operation costs in units of a byte sent. Real machines compute much more in the time of a byte; but what
/// was divided is asked to stay divided, also where batches are small, as they are when somebody tries a layout.
const COST_OF_WORK: u64 = 4;

/// The pass along one axis of the mesh.
struct AxisPass<'a> {
    old: &'a Graph,
    axis: &'a str,
    devices: usize,
    /// What the nodes so far cost a device: bytes sent, and work.
    cost: u64,
    builder: Builder,
    /// Of each old value: the forms in which it exists.
    forms: Vec<Vec<(Placement, ValueId)>>,
    /// What was chosen for such uses before.
    memo: &'a Memo,
    /// How many nodes each old node stands for, if not for one.
    old_weights: &'a [u32],
    /// The same of the new nodes.
    weights: Vec<u32>,
}

impl<'a> AxisPass<'a> {
    fn new(old: &'a Graph, axis: &'a str, devices: usize, float: DType, memo: &'a Memo) -> Self {
        let forms = vec![Vec::new(); old.values().len()];
        let (old_weights, weights) = (&[][..], Vec::new());
        Self { old, axis, devices, cost: 0, builder: Builder::new(float), forms, memo, old_weights, weights }
    }

    /// Rewrites the graph; where the outputs and new states lie.
    fn run(
        &mut self,
        place: &dyn Fn(usize) -> Placement,
        gradient_of: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Vec<Placement>> {
        let old = self.old;
        for (i, &v) in old.inputs.iter().enumerate() {
            let value = old.value(v);
            let (Def::Input(role), Some(ty)) = (&value.def, &value.ty) else { continue };
            let axis = match place(i) {
                Placement::Shard(axis) => Some(axis),
                _ => None,
            };
            let local = rule::shard_type(ty, axis, self.devices as i64)
                .ok_or_else(|| Error::internal("an input that does not divide is partitioned"))?;
            let name = value.name.clone().unwrap_or_else(|| "input".into());
            let new = self.builder.graph.add_input(name, *role, local);
            self.forms[v.index()].push((place(i), new));
        }
        let input_place = |name: &str| {
            let at = old.inputs.iter().position(|&v| old.value(v).name.as_deref() == Some(name))?;
            Some(place(at))
        };
        let gradient_place = |name: &str| gradient_of(name).and_then(|name| input_place(&name));
        let gradients: FxHashMap<ValueId, Placement> =
            old.outputs.iter().filter_map(|(name, &v)| Some((v, gradient_place(name)?))).collect();
        for (n, node) in old.nodes() {
            self.builder.set_origin(old.place(n).clone());
            self.node(n).map_err(|e| e.at(old.place(n)))?;
            // Right where a gradient is known, so that its exchange overlaps with the computation of the others.
            for v in &node.outputs {
                if let Some(to) = gradients.get(v) {
                    self.form(*v, *to)?;
                }
            }
            self.weigh(n);
        }
        let mut results = Vec::new();
        for (name, &v) in &old.outputs {
            let to = gradient_place(name).unwrap_or_else(|| self.resting(v));
            if let Def::Node(n, _) = old.value(v).def {
                self.builder.set_origin(old.place(n).clone());
            }
            let new = self.form(v, to)?;
            if let Def::Node(n, _) = old.value(v).def {
                self.weigh(n);
            }
            self.builder.graph.outputs.insert(name.clone(), new);
            results.push(to);
        }
        for &(state, new) in &old.updates {
            let at = old
                .inputs
                .iter()
                .position(|&v| v == state)
                .ok_or_else(|| Error::internal("a state is no input"))?;
            let input = self.builder.graph.inputs[at];
            let value = new;
            let new = self.form(value, place(at))?;
            if let Def::Node(n, _) = old.value(value).def {
                self.weigh(n);
            }
            self.builder.graph.updates.push((input, new));
            results.push(place(at));
        }
        Ok(results)
    }

    /// Gives the nodes that were made for an old node its weight.
    fn weigh(&mut self, n: NodeId) {
        if let Some(&weight) = self.old_weights.get(n.index()) {
            self.weights.resize(self.builder.graph.nodes().len(), weight);
        }
    }

    /// Where a result lies without communication, as far as it is not partial.
    fn resting(&self, v: ValueId) -> Placement {
        let forms = &self.forms[v.index()];
        let whole = forms.iter().find(|(p, _)| *p == Placement::Replicate);
        let divided = forms.iter().find(|(p, _)| matches!(p, Placement::Shard(_)));
        whole.or(divided).map_or(Placement::Replicate, |(p, _)| *p)
    }

    fn node(&mut self, n: NodeId) -> Result<()> {
        let node = self.old.node(n);
        let call = Use::of(self.old, node)
            .ok_or_else(|| Error::internal(format!("{} with unknown sizes is partitioned", node.op.name)))?;
        let forms: Vec<Vec<Placement>> =
            node.inputs.iter().map(|v| self.forms[v.index()].iter().map(|(p, _)| *p).collect()).collect();
        let choice = self.memo.choice(&call, &forms, self.devices, || self.choose(&call, &node.inputs))?;
        let Choice { shards, local, cost } = &*choice;
        let cost = *cost;
        if shards.iter().all(Option::is_none)
            && self.gathers(&call, &node.inputs)
            && let Some(expansion) = rule::expansion(&call)
        {
            let (places, given) = self.operands(&call, &node.inputs)?;
            let mut pass = AxisPass::new(&expansion, self.axis, self.devices, self.builder.float, self.memo);
            let placements = pass.run(&|i| places[i], &|_| None)?;
            if pass.cost < cost {
                let outputs = self.append(&pass.builder.graph, given);
                self.cost = self.cost.saturating_add(pass.cost);
                self.found(&node.outputs, &outputs, &placements);
                return Ok(());
            }
        }
        self.cost = self.cost.saturating_add(cost);
        let mut inputs = Vec::new();
        for (i, (&v, arg)) in node.inputs.iter().zip(&local.call.args).enumerate() {
            inputs.push(match arg {
                Arg::Lit(lit) => self.builder.graph.add_literal(lit.clone()),
                Arg::Tensor(_) => self.form(v, shards[i].map_or(Placement::Replicate, Placement::Shard))?,
            });
        }
        let outputs = self.builder.push_typed(node.op, inputs.into(), local.call.outputs.clone());
        self.found(&node.outputs, &outputs, &local.placements);
        Ok(())
    }

    /// Notes where the results of a node are.
    fn found(&mut self, old: &[ValueId], new: &[ValueId], placements: &[Placement]) {
        for ((&old, &new), &placement) in old.iter().zip(new).zip(placements) {
            if let Some(name) = &self.old.value(old).name {
                self.builder.graph.name_value(new, name.clone());
            }
            self.forms[old.index()].push((placement, new));
        }
    }

    /// Whether some operand exists in parts only.
    fn gathers(&self, call: &Use, inputs: &[ValueId]) -> bool {
        let is_whole = |v: &ValueId| self.forms[v.index()].iter().any(|(p, _)| *p == Placement::Replicate);
        call.args.iter().zip(inputs).any(|(arg, v)| matches!(arg, Arg::Tensor(_)) && !is_whole(v))
    }

    /// The tensors that a node is given, as they are; where they lie.
    fn operands(&mut self, call: &Use, inputs: &[ValueId]) -> Result<(Vec<Placement>, Vec<ValueId>)> {
        let (mut places, mut values) = (Vec::new(), Vec::new());
        for (arg, &v) in call.args.iter().zip(inputs) {
            if matches!(arg, Arg::Lit(_)) {
                continue;
            }
            let divided = self.forms[v.index()].iter().find(|(p, _)| matches!(p, Placement::Shard(_)));
            let place = divided.map_or(Placement::Replicate, |(p, _)| *p);
            places.push(place);
            values.push(self.form(v, place)?);
        }
        Ok((places, values))
    }

    /// Appends the nodes of a graph whose inputs are these values; its outputs.
    fn append(&mut self, graph: &Graph, inputs: Vec<ValueId>) -> Vec<ValueId> {
        let mut map: FxHashMap<ValueId, ValueId> = graph.inputs.iter().copied().zip(inputs).collect();
        for (_, node) in graph.nodes() {
            let new: Values = node
                .inputs
                .iter()
                .map(|v| match &graph.value(*v).def {
                    Def::Const(lit) => self.builder.graph.add_literal(lit.clone()),
                    _ => map[v],
                })
                .collect();
            let types: Vec<TensorType> = node.outputs.iter().filter_map(|&v| graph.ty(v).cloned()).collect();
            let outputs = self.builder.push_typed(node.op, new, types);
            map.extend(node.outputs.iter().copied().zip(outputs));
        }
        graph.outputs.values().map(|v| map[v]).collect()
    }

    /// The way to divide a use that costs the least.
    fn choose(&self, call: &Use, inputs: &[ValueId]) -> Result<Choice> {
        let whole = vec![None; inputs.len()];
        let devices = self.devices as i64;
        let local =
            rule::local(call, &whole, devices).ok_or_else(|| Error::internal("an op is not itself"))?;
        let work = COST_OF_WORK.saturating_mul(rule::work(call));
        let cost = self.cost(call, inputs, &whole, &local).saturating_add(work);
        let mut best = Choice { shards: whole, local, cost };
        for (i, v) in inputs.iter().enumerate() {
            if matches!(call.args[i], Arg::Lit(_)) {
                continue;
            }
            for (placement, _) in &self.forms[v.index()] {
                let Placement::Shard(axis) = *placement else { continue };
                for shards in rule::candidates(call, i, axis) {
                    let Some(local) = rule::local(call, &shards, devices) else { continue };
                    let cost = self.cost(call, inputs, &shards, &local).saturating_add(work / devices as u64);
                    if cost < best.cost {
                        best = Choice { shards, local, cost };
                    }
                }
            }
        }
        Ok(best)
    }

    /// Bytes that a device sends so that the operands lie so, and to reduce what is partial afterwards.
    fn cost(&self, call: &Use, inputs: &[ValueId], shards: &[Option<usize>], local: &Local) -> u64 {
        let n = self.devices as u64;
        let mut sum = 0;
        for (i, arg) in call.args.iter().enumerate() {
            let Arg::Tensor(ty) = arg else { continue };
            let to = shards[i].map_or(Placement::Replicate, Placement::Shard);
            let forms = &self.forms[inputs[i].index()];
            if forms.iter().any(|(p, _)| *p == to || *p == Placement::Replicate) {
                continue;
            }
            let is_partial = forms.iter().all(|(p, _)| matches!(p, Placement::Partial(_)));
            let rounds = if is_partial && to == Placement::Replicate { 2 } else { 1 };
            sum += rounds * bytes(ty) * (n - 1) / n;
        }
        for (ty, placement) in call.outputs.iter().zip(&local.placements) {
            if matches!(placement, Placement::Partial(_)) {
                sum += 2 * bytes(ty) * (n - 1) / n;
            }
        }
        sum
    }

    /// The value in that form, made of another one if there is none yet.
    fn form(&mut self, v: ValueId, to: Placement) -> Result<ValueId> {
        if let Def::Const(lit) = &self.old.value(v).def {
            let whole = self.builder.graph.add_literal(lit.clone());
            return match to {
                Placement::Shard(axis) => self.collective(&collective::SHARD, whole, Lit::int(axis as i64)),
                _ => Ok(whole),
            };
        }
        let has = |forms: &[(Placement, ValueId)], p: Placement| forms.iter().find(|f| f.0 == p).map(|f| f.1);
        let forms = &self.forms[v.index()];
        if let Some(new) = has(forms, to) {
            return Ok(new);
        }
        let along = |axis: usize| Lit::int(axis as i64);
        let new = match (to, has(forms, Placement::Replicate), forms.first().copied()) {
            (Placement::Shard(axis), Some(whole), _) => {
                self.collective(&collective::SHARD, whole, along(axis))?
            }
            (Placement::Shard(axis), None, Some((Placement::Partial(Reduction::Sum), part))) => {
                self.collective(&collective::REDUCE_SCATTER, part, along(axis))?
            }
            (Placement::Shard(_), None, _) => {
                self.form(v, Placement::Replicate)?;
                return self.form(v, to);
            }
            (Placement::Replicate, _, Some((Placement::Shard(axis), part))) => {
                self.collective(&collective::ALL_GATHER, part, along(axis))?
            }
            (Placement::Replicate, _, Some((Placement::Partial(by), part))) => {
                self.collective(&collective::ALL_REDUCE, part, Lit::text(by.text()))?
            }
            _ => return Err(Error::internal(format!("value {} is read before it is computed", v.index()))),
        };
        self.forms[v.index()].push((to, new));
        Ok(new)
    }

    fn collective(&mut self, op: &'static mithril_ir::op::OpDef, v: ValueId, last: Lit) -> Result<ValueId> {
        let axis = self.builder.lit(Lit::Str(Arc::from(self.axis)));
        let devices = self.builder.lit(Lit::int(self.devices as i64));
        let last = self.builder.graph.add_literal(last);
        Ok(self.builder.push(op, &[v, axis, devices, last])?[0])
    }
}
