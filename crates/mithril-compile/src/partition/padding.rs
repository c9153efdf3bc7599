//! Batches that do not divide: the program for a larger batch that does, with the same results.
//!
//! The batch gets further examples at its end, copies of the last one, so that all numbers stay finite. That an op
//! computes each example from that example alone is proved as [`super::rule`] proves how it divides, with a device for
//! each example: the same op on one of them. What adds the examples up gets zeros in the place of those that were added:
//! they have the weight 0 in losses and statistics, and so their gradients are zero. Where a mean divides by the number
//! of examples, that is still the number of the batch. Outputs are cut to the batch again.

use std::sync::Arc;

use mithril_ir::build::Builder;
use mithril_ir::error::{Code, Error, Result};
use mithril_ir::graph::{Def, Graph, Node, Role, TensorType, ValueId, Values};
use mithril_ir::ops::compare::{LESS, WHERE};
use mithril_ir::ops::create::ARANGE;
use mithril_ir::ops::joining::CONCAT;
use mithril_ir::ops::movement::RESHAPE;
use mithril_ir::ops::slicing::SLICE;
use mithril_ir::{DType, Dim, Lit};
use rustc_hash::FxHashMap;

use super::mesh::Layout;
use super::rule::{self, Arg, Around, Local, Placement, Reduction, Use, sizes};

/// A program for a larger batch.
#[derive(Debug)]
pub struct Padded {
    /// The program.
    pub graph: Graph,
    /// The data with further examples.
    pub names: Vec<Arc<str>>,
    /// How many examples the batch has.
    pub batch: usize,
    /// How many they have.
    pub examples: usize,
}

/// The program of a graph whose sizes are numbers, for the next larger batch that divides as a layout says.
///
/// # Errors
/// If data that are divided have different numbers of examples, or an op is neither known to compute examples one by one
/// nor a sum over them.
pub fn pad(graph: &Graph, layout: &Layout, float: DType) -> Result<Padded> {
    let refuse = |message: String| Error::new(Code::BadArgument, message);
    let mut divided = Vec::new();
    let (mut examples, mut parts) = (None, 1);
    for &v in &graph.inputs {
        let value = graph.value(v);
        let (Def::Input(Role::Data), Some(ty), Some(name)) = (&value.def, &value.ty, &value.name) else {
            continue;
        };
        let axes = match layout.spec(name) {
            Some(spec) => spec.first(),
            None => Some(&layout.batch),
        };
        let (Some(axes), Some(&size)) = (axes.filter(|axes| !axes.is_empty()), sizes(ty).first()) else {
            continue;
        };
        let mut count = 1;
        for axis in axes {
            count *= layout.mesh.axes()[layout.mesh.axis(axis)?].1;
        }
        if *examples.get_or_insert(size) != size {
            return Err(refuse(format!("`{name}` has {size} examples, and other data have not")));
        }
        parts = parts.max(count);
        divided.push((v, Arc::from(&**name)));
    }
    let batch = examples.filter(|&size| size > 0);
    let batch = batch.ok_or_else(|| refuse("the layout divides no batch".into()))?;
    let padded = (batch as u64).next_multiple_of(parts as u64) as i64;
    let mut padder = Padder {
        builder: Builder::new(float),
        batch,
        padded,
        rows: FxHashMap::default(),
        masks: FxHashMap::default(),
    };
    let mut map = FxHashMap::default();
    for &v in &graph.inputs {
        let value = graph.value(v);
        let (Def::Input(role), Some(ty)) = (&value.def, &value.ty) else { continue };
        let name = value.name.clone().unwrap_or_else(|| "input".into());
        let is_padded = divided.iter().any(|(other, _)| *other == v);
        let ty = if is_padded { padder.resized(ty, 0) } else { ty.clone() };
        let new = padder.builder.graph.add_input(name, *role, ty);
        if is_padded {
            padder.rows.insert(new, 0);
        }
        map.insert(v, new);
    }
    padder.nodes(graph, &mut map)?;
    for (name, v) in &graph.outputs {
        let whole = padder.whole(graph, &map, *v)?;
        padder.builder.graph.outputs.insert(name.clone(), whole);
    }
    for (state, v) in &graph.updates {
        let whole = padder.whole(graph, &map, *v)?;
        padder.builder.graph.updates.push((map[state], whole));
    }
    let names = divided.into_iter().map(|(_, name)| name).collect();
    Ok(Padded { graph: padder.builder.graph, names, batch: batch as usize, examples: padded as usize })
}

struct Padder {
    builder: Builder,
    /// Examples of the batch, and of the larger one.
    batch: i64,
    padded: i64,
    /// By new value the axis that has further examples at its end: a multiple of them, if axes were joined.
    rows: FxHashMap<ValueId, usize>,
    /// Which places of an axis of that size belong to the batch, as a tensor of that many axes along one of them.
    masks: FxHashMap<(i64, usize, usize), ValueId>,
}

/// New values by old ones.
type Map = FxHashMap<ValueId, ValueId>;

impl Padder {
    /// A type with further examples along an axis.
    fn resized(&self, ty: &TensorType, axis: usize) -> TensorType {
        let mut shape = ty.shape.clone();
        let size = sizes(ty)[axis];
        shape.0[axis] = Dim::Const(size / self.batch * self.padded);
        TensorType { dtype: ty.dtype, shape }
    }

    fn nodes(&mut self, graph: &Graph, map: &mut Map) -> Result<()> {
        for (n, node) in graph.nodes() {
            self.builder.set_origin(graph.place(n).clone());
            let inputs: Values =
                node.inputs.iter().map(|&v| self.operand(graph, map, v)).collect::<Result<_>>()?;
            let outputs = self.node(graph, node, &inputs).map_err(|e| e.at(graph.place(n)))?;
            for (&v, &new) in node.outputs.iter().zip(&outputs) {
                if let Some(name) = &graph.value(v).name {
                    self.builder.graph.name_value(new, name.clone());
                }
                map.insert(v, new);
            }
        }
        Ok(())
    }

    fn operand(&mut self, graph: &Graph, map: &Map, v: ValueId) -> Result<ValueId> {
        match &graph.value(v).def {
            Def::Const(lit) => Ok(self.builder.graph.add_literal(lit.clone())),
            _ => map.get(&v).copied().ok_or_else(|| Error::internal("a value is read before it is computed")),
        }
    }

    /// The value for the batch alone.
    fn whole(&mut self, graph: &Graph, map: &Map, v: ValueId) -> Result<ValueId> {
        let new = self.operand(graph, map, v)?;
        let (Some(&axis), Some(ty)) = (self.rows.get(&new), graph.ty(v)) else { return Ok(new) };
        self.slice(new, axis, 0, sizes(ty)[axis])
    }

    fn slice(&mut self, v: ValueId, axis: usize, from: i64, to: i64) -> Result<ValueId> {
        let bounds = [from, to].map(|at| {
            let bound = Lit::Tuple(std::iter::repeat_n(Lit::None, axis).chain([Lit::int(at)]).collect());
            self.builder.lit(bound)
        });
        Ok(self.builder.push(&SLICE, &[v, bounds[0], bounds[1]])?[0])
    }

    /// Writes a node for the larger batch.
    fn node(&mut self, graph: &Graph, node: &Node, inputs: &[ValueId]) -> Result<Values> {
        let rows: Vec<Option<usize>> = inputs.iter().map(|v| self.rows.get(v).copied()).collect();
        let types = || node.outputs.iter().filter_map(|&v| graph.ty(v).cloned()).collect::<Vec<_>>();
        if rows.iter().all(Option::is_none) {
            return Ok(self.builder.push_typed(node.op, inputs.into(), types()));
        }
        let unknown = || Error::internal(format!("{} with unknown sizes is padded", node.op.name));
        let call = Use::of(graph, node).ok_or_else(unknown)?;
        for places in ways(&call, &rows) {
            if let Some(outputs) = self.divided(&call, &places, inputs)? {
                return Ok(outputs);
            }
        }
        let Some(expansion) = rule::expansion(&call) else {
            let message =
                format!("{} mixes the examples of a batch, and is not a sum over them", node.op.name);
            return Err(Error::new(Code::BadArgument, message));
        };
        let tensors = inputs.iter().zip(&call.args).filter(|(_, arg)| matches!(arg, Arg::Tensor(_)));
        let mut map: Map = expansion.inputs.iter().copied().zip(tensors.map(|(v, _)| *v)).collect();
        self.nodes(&expansion, &mut map)?;
        expansion.outputs.values().map(|&v| self.operand(&expansion, &map, v)).collect()
    }

    /// Writes a use whose operands have further examples in these places, if it computes them one by one or adds them up.
    fn divided(&mut self, call: &Use, places: &[Placement], inputs: &[ValueId]) -> Result<Option<Values>> {
        let Some(local) = self.local(call, places) else { return Ok(None) };
        let larger = self.larger(call, places, &local);
        // The same of each example in the larger batch.
        let is_same = rule::build(&larger, false).is_some()
            && rule::local(&larger, places, self.padded).is_some_and(|other| {
                other.call.op == local.call.op
                    && other.call.args == local.call.args
                    && other.call.outputs == local.call.outputs
                    && other.placements == local.placements
                    && other.around == Around::Nothing
            });
        let sums = local.placements.iter().filter(|place| place.is_partial()).count();
        if !is_same || sums > 0 && sums < local.placements.len() {
            return Ok(None);
        }
        // A sum over examples gets zeros in an operand in which it is linear.
        let linear = (0..places.len()).find(|&i| self.is_linear(call, places, i));
        if sums > 0 && linear.is_none() {
            return Ok(None);
        }
        let mut operands = Values::new();
        for (i, (&v, arg)) in inputs.iter().zip(&larger.args).enumerate() {
            operands.push(match (arg, places[i].axis()) {
                (Arg::Lit(lit), _) => self.builder.graph.add_literal(lit.clone()),
                (Arg::Tensor(_), None) => v,
                (Arg::Tensor(_), Some(axis)) => {
                    let v = if self.rows.contains_key(&v) { v } else { self.with_copies(v, axis)? };
                    if sums > 0 && linear == Some(i) { self.masked(v, axis)? } else { v }
                }
            });
        }
        let outputs = self.builder.push_typed(call.op, operands, larger.outputs);
        for (&v, place) in outputs.iter().zip(&local.placements) {
            if let Some(axis) = place.axis() {
                self.rows.insert(v, axis);
            }
        }
        Ok(Some(outputs))
    }

    /// What a use computes of one example.
    fn local(&self, call: &Use, places: &[Placement]) -> Option<Local> {
        let is_known = |place: &Placement| {
            matches!(place, Placement::Replicate | Placement::Shard(_) | Placement::Partial(Reduction::Sum))
        };
        rule::local(call, places, self.batch)
            .filter(|local| local.around == Around::Nothing && local.placements.iter().all(is_known))
    }

    /// Whether a use is linear in an operand that has further examples.
    fn is_linear(&self, call: &Use, places: &[Placement], operand: usize) -> bool {
        let mut partial = vec![Placement::Replicate; places.len()];
        partial[operand] = Placement::Partial(Reduction::Sum);
        let is_sum = |local: Local| local.placements.iter().all(|place| place.is_partial());
        places[operand].axis().is_some() && self.local(call, &partial).is_some_and(is_sum)
    }

    /// The use on the larger batch.
    fn larger(&self, call: &Use, places: &[Placement], local: &Local) -> Use {
        let resized = |ty: &TensorType, place: &Placement| {
            place.axis().map_or_else(|| ty.clone(), |axis| self.resized(ty, axis))
        };
        let outputs: Vec<TensorType> =
            call.outputs.iter().zip(&local.placements).map(|(ty, place)| resized(ty, place)).collect();
        let whole = Lit::tuple(sizes(&call.outputs[0]));
        let args = call.args.iter().zip(places).enumerate().map(|(i, (arg, place))| match arg {
            Arg::Tensor(ty) => Arg::Tensor(resized(ty, place)),
            Arg::Lit(lit) if rule::is_shape(call.op, i) && *lit == whole => {
                Arg::Lit(Lit::tuple(sizes(&outputs[0])))
            }
            Arg::Lit(lit) => Arg::Lit(lit.clone()),
        });
        Use { op: call.op, args: args.collect(), outputs }
    }

    /// A value of the batch with copies of the last example.
    fn with_copies(&mut self, v: ValueId, axis: usize) -> Result<ValueId> {
        let size = self.size(v, axis)?;
        let last = self.slice(v, axis, size - size / self.batch, size)?;
        let mut all = vec![self.builder.lit(Lit::int(axis as i64)), v];
        all.extend(std::iter::repeat_n(last, (self.padded - self.batch) as usize));
        Ok(self.builder.push(&CONCAT, &all)?[0])
    }

    /// A value of the larger batch with zeros in the place of further examples.
    fn masked(&mut self, v: ValueId, axis: usize) -> Result<ValueId> {
        let ty = self.builder.graph.ty(v).cloned();
        let ty = ty.ok_or_else(|| Error::internal("an operand without a type is padded"))?;
        let (rank, size) = (ty.shape.rank(), sizes(&ty)[axis]);
        let mask = self.mask(size, axis, rank)?;
        let zero = if ty.dtype.is_float() { Lit::Float(0.0) } else { Lit::int(0) };
        let zero = self.builder.lit(zero);
        let masked = self.builder.push(&WHERE, &[mask, v, zero])?[0];
        if self.builder.graph.ty(masked) != Some(&ty) {
            return Err(Error::new(Code::BadArgument, format!("a sum over examples of {ty}")));
        }
        Ok(masked)
    }

    /// Which places of an axis belong to the batch.
    fn mask(&mut self, size: i64, axis: usize, rank: usize) -> Result<ValueId> {
        if let Some(mask) = self.masks.get(&(size, axis, rank)) {
            return Ok(*mask);
        }
        let count = self.builder.lit(Lit::int(size));
        let at = self.builder.push(&ARANGE, &[count])?[0];
        let own = self.builder.lit(Lit::int(size / self.padded * self.batch));
        let is_own = self.builder.push(&LESS, &[at, own])?[0];
        let mut line = vec![1; rank];
        line[axis] = size;
        let line = self.builder.lit(Lit::tuple(line));
        let mask = self.builder.push(&RESHAPE, &[is_own, line])?[0];
        self.masks.insert((size, axis, rank), mask);
        Ok(mask)
    }

    fn size(&self, v: ValueId, axis: usize) -> Result<i64> {
        let size = self.builder.graph.ty(v).and_then(|ty| sizes(ty).get(axis).copied());
        size.ok_or_else(|| Error::internal("an operand of unknown size is padded"))
    }
}

/// Where operands may have further examples, if some have them there.
fn ways(call: &Use, rows: &[Option<usize>]) -> Vec<Vec<Placement>> {
    let shard = |axis: Option<usize>| axis.map_or(Placement::Replicate, Placement::Shard);
    let mut all = vec![rows.iter().map(|axis| shard(*axis)).collect::<Vec<_>>()];
    for (i, axis) in rows.iter().enumerate() {
        let Some(axis) = axis else { continue };
        for places in rule::candidates(call, i, Placement::Shard(*axis)) {
            let fits = rows.iter().zip(&places).all(|(axis, place)| axis.is_none() || *place == shard(*axis));
            if fits && !all.contains(&places) {
                all.push(places);
            }
        }
    }
    all
}
