//! Pulls cuts towards the inputs: a value that all devices compute whole, and of which each reads its shard alone, is
//! computed in shards.
//!
//! Placements are propagated forward ([`super::axis`]), so what is computed before it meets something divided is
//! computed whole at first: masks, positions, the zeros that gradients of lookups are added to, and sums over the
//! devices that are then cut, which become the shards of a sum.

use std::rc::Rc;

use mithril_ir::build::Builder;
use mithril_ir::error::{Error, Result};
use mithril_ir::graph::{Def, Node, NodeId, TensorType, ValueId, Values};
use mithril_ir::op::OpDef;
use mithril_ir::ops::collective;
use mithril_ir::{DType, Lit};
use rustc_hash::FxHashMap;

use super::choose::way;
use super::memo::{Memo, Way};
use super::pass::Divided;
use super::rule::{Arg, Placement, Use};
use super::write::write;

/// In which form a value is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Want {
    Nothing,
    Shard(usize),
    /// Whole, or in several forms.
    Whole,
}

impl Want {
    fn and(&mut self, other: Self) {
        *self = match (*self, other) {
            (Self::Nothing, other) => other,
            (own, other) if own == other => own,
            _ => Self::Whole,
        };
    }
}

/// How a node is written.
#[derive(Clone, Debug)]
enum How {
    /// As it is.
    Same,
    /// It cuts its operand.
    Cut(usize),
    /// In shards.
    Shards(Way),
    /// The sum over the devices is scattered along this axis.
    Scatter(usize),
    /// What is divided along an axis becomes divided along another one, or stays.
    Exchange(usize, usize),
}

/// Rewrites a graph that was divided along an axis of the mesh.
#[expect(clippy::too_many_lines, reason = "one pass over the nodes, with shared maps")]
pub(super) fn pull(old: Divided, axis: &str, devices: usize, memo: &Memo) -> Result<Divided> {
    let graph = &old.graph;
    let is = |node: &Node, op: &'static OpDef| {
        node.op == op && collective::mesh_axis_of(graph, node).is_some_and(|(name, _)| name == axis)
    };
    let mut wants = vec![Want::Nothing; graph.values().len()];
    for v in graph.outputs.values().chain(graph.updates.iter().map(|(_, new)| new)) {
        wants[v.index()] = Want::Whole;
    }
    let mut hows = vec![How::Same; graph.nodes().len()];
    let mut changes = false;
    for (n, node) in graph.nodes().collect::<Vec<_>>().into_iter().rev() {
        let is_read = node.outputs.iter().any(|v| wants[v.index()] != Want::Nothing);
        if !is_read {
            continue;
        }
        let want = wants[node.outputs[0].index()];
        let along = collective::axis_of(graph, node);
        let how = match (want, along) {
            (_, Some(along)) if is(node, &collective::SHARD) => How::Cut(along),
            (Want::Shard(to), _)
                if is(node, &collective::ALL_REDUCE) && is_sum(graph.lit(node.inputs[3])) =>
            {
                How::Scatter(to)
            }
            (Want::Shard(to), Some(from)) if is(node, &collective::ALL_GATHER) => How::Exchange(from, to),
            (Want::Shard(to), _) if is_whole(&old, node) => Use::of(graph, node).map_or(How::Same, |call| {
                let to = Placement::Shard(to);
                let shards = memo.way(&call, to, devices, || way(&call, to, devices).map(Rc::new));
                shards.map_or(How::Same, How::Shards)
            }),
            _ => How::Same,
        };
        changes |= !matches!(how, How::Same | How::Cut(_));
        match &how {
            How::Cut(axis) => wants[node.inputs[0].index()].and(Want::Shard(*axis)),
            How::Shards(way) => {
                for (&v, place) in node.inputs.iter().zip(&way.0) {
                    wants[v.index()].and(place.axis().map_or(Want::Whole, Want::Shard));
                }
            }
            How::Same | How::Scatter(_) | How::Exchange(..) => {
                for v in &node.inputs {
                    wants[v.index()].and(Want::Whole);
                }
            }
        }
        hows[n.index()] = how;
    }
    if !changes {
        return Ok(old);
    }
    let puller = Puller {
        old: &old,
        axis,
        devices,
        builder: Builder::new(DType::F32),
        places: Vec::new(),
        weights: Vec::new(),
        wholes: FxHashMap::default(),
        shards: FxHashMap::default(),
    };
    puller.run(&hows, &wants)
}

fn is_sum(lit: Option<&Lit>) -> bool {
    matches!(lit, Some(Lit::Str(kind)) if &**kind == "SUM")
}

/// Whether a node computes the same on all devices, from values that all of them have.
fn is_whole(old: &Divided, node: &Node) -> bool {
    let is_whole = |v: &ValueId| old.place(*v) == Some(Placement::Replicate);
    !collective::is_collective(node.op)
        && node.outputs.len() == 1
        && node.inputs.iter().chain(&node.outputs).all(is_whole)
}

struct Puller<'a> {
    old: &'a Divided,
    axis: &'a str,
    devices: usize,
    builder: Builder,
    places: Vec<Option<Placement>>,
    weights: Vec<u32>,
    /// New values by old ones.
    wholes: FxHashMap<ValueId, ValueId>,
    /// The same of shards along an axis.
    shards: FxHashMap<(ValueId, usize), ValueId>,
}

impl Puller<'_> {
    fn put(&mut self, v: ValueId, place: Option<Placement>) {
        if self.places.len() <= v.index() {
            self.places.resize(v.index() + 1, None);
        }
        self.places[v.index()] = place;
    }

    fn run(mut self, hows: &[How], wants: &[Want]) -> Result<Divided> {
        let graph = &self.old.graph;
        for &v in &graph.inputs {
            let value = graph.value(v);
            let (Def::Input(role), Some(ty)) = (&value.def, &value.ty) else { continue };
            let name = value.name.clone().unwrap_or_else(|| "input".into());
            let new = self.builder.graph.add_input(name, *role, ty.clone());
            self.put(new, self.old.place(v));
            self.wholes.insert(v, new);
        }
        for (n, node) in graph.nodes() {
            let is_read = node.outputs.iter().any(|v| wants[v.index()] != Want::Nothing);
            if !is_read {
                continue;
            }
            self.builder.set_origin(graph.place(n).clone());
            self.node(n, node, &hows[n.index()])?;
            let weight = self.old.weight(n);
            self.weights.resize(self.builder.graph.nodes().len(), weight);
        }
        for (name, &v) in &graph.outputs {
            let new = self.whole(v)?;
            self.builder.graph.outputs.insert(name.clone(), new);
        }
        for &(state, v) in &graph.updates {
            let (state, new) = (self.whole(state)?, self.whole(v)?);
            self.builder.graph.updates.push((state, new));
        }
        let graph = self.builder.graph;
        let places = self.places;
        let weights = if self.old.weights.is_empty() { Vec::new() } else { self.weights };
        Ok(Divided { graph, places, weights })
    }

    fn node(&mut self, n: NodeId, node: &Node, how: &How) -> Result<()> {
        let graph = &self.old.graph;
        let output = node.outputs[0];
        let (new, place) = match how {
            How::Same => {
                let inputs: Values = node.inputs.iter().map(|&v| self.whole(v)).collect::<Result<_>>()?;
                let types: Vec<TensorType> =
                    node.outputs.iter().filter_map(|&v| graph.ty(v).cloned()).collect();
                let outputs = self.builder.push_typed(node.op, inputs, types);
                for (&v, new) in node.outputs.iter().zip(outputs) {
                    self.put(new, self.old.place(v));
                    self.name(v, new);
                    self.wholes.insert(v, new);
                }
                return Ok(());
            }
            How::Cut(axis) => {
                let new = self.shard(node.inputs[0], *axis)?;
                self.wholes.insert(output, new);
                return Ok(());
            }
            How::Shards(way) => {
                let (places, local) = &**way;
                let mut inputs = Vec::new();
                for ((&v, place), arg) in node.inputs.iter().zip(places).zip(&local.call.args) {
                    inputs.push(match (arg, place) {
                        (Arg::Lit(lit), _) => self.builder.graph.add_literal(lit.clone()),
                        (_, Placement::Shard(axis)) => self.shard(v, *axis)?,
                        _ => self.whole(v)?,
                    });
                }
                let before = self.builder.graph.values().len();
                let new = write(&mut self.builder, self.axis, self.devices as i64, local, &inputs)?[0];
                let after = self.builder.graph.values().len();
                for inner in before..after {
                    self.put(ValueId::new(inner), None);
                }
                (new, local.placements[0])
            }
            How::Scatter(axis) => {
                let input = self.whole(node.inputs[0])?;
                (self.collective(&collective::REDUCE_SCATTER, input, &[*axis])?, Placement::Shard(*axis))
            }
            How::Exchange(from, to) => {
                let input = self.whole(node.inputs[0])?;
                let new = if from == to {
                    input
                } else {
                    self.collective(&collective::ALL_TO_ALL, input, &[*to, *from])?
                };
                (new, Placement::Shard(*to))
            }
        };
        self.put(new, Some(place));
        self.name(output, new);
        let axis = place.axis().ok_or_else(|| Error::internal(format!("node {} is not cut", n.index())))?;
        self.shards.insert((output, axis), new);
        Ok(())
    }

    fn name(&mut self, old: ValueId, new: ValueId) {
        if let Some(name) = &self.old.graph.value(old).name {
            self.builder.graph.name_value(new, name.clone());
        }
    }

    /// The new value of an old one.
    fn whole(&mut self, v: ValueId) -> Result<ValueId> {
        match &self.old.graph.value(v).def {
            Def::Const(lit) => Ok(self.builder.graph.add_literal(lit.clone())),
            _ => self.wholes.get(&v).copied().ok_or_else(|| Error::internal("a value was pulled away")),
        }
    }

    /// The shard of this device of an old value.
    fn shard(&mut self, v: ValueId, axis: usize) -> Result<ValueId> {
        if let Some(&known) = self.shards.get(&(v, axis)) {
            return Ok(known);
        }
        let whole = self.whole(v)?;
        let new = self.collective(&collective::SHARD, whole, &[axis])?;
        self.put(new, Some(Placement::Shard(axis)));
        if !matches!(self.old.graph.value(v).def, Def::Const(_)) {
            self.shards.insert((v, axis), new);
        }
        Ok(new)
    }

    fn collective(&mut self, op: &'static OpDef, v: ValueId, axes: &[usize]) -> Result<ValueId> {
        let mut args =
            vec![v, self.builder.lit(Lit::text(self.axis)), self.builder.lit(Lit::int(self.devices as i64))];
        args.extend(axes.iter().map(|axis| self.builder.lit(Lit::int(*axis as i64))));
        Ok(self.builder.push(op, &args)?[0])
    }
}
