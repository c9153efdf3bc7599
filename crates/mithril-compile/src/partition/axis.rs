//! Placements of the inputs are propagated through a graph, along one axis of the mesh, and collectives are inserted
//! where an op needs what other devices hold.
//!
//! A value may exist in several forms (divided, whole, partial), each made once, when an op asks for it. For every op
//! those ways to divide it that [`super::rule`] accepts compete, and the cheapest in bytes sent and work done is taken.
//! So contractions over divided axes give partial results, which are reduced by the first op that cannot go on
//! with them. A sum of what is whole (or divided) and what is partial is kept as its addends until an op needs it, so
//! that partial addends meet before they are reduced. An op that divides in no way is expanded if its parts are cheaper
//! (a softmax over a divided axis reduces its maximum and its sum), or else computed by every device on whole operands.

use std::sync::Arc;

use mithril_ir::build::Builder;
use mithril_ir::error::{Error, Result};
use mithril_ir::graph::{Def, Graph, NodeId, TensorType, ValueId, Values};
use mithril_ir::op::OpDef;
use mithril_ir::ops::{collective, elementwise, joining, slicing};
use mithril_ir::{DType, Lit};
use rustc_hash::FxHashMap;

use super::choose::{Choice, Operand, choose, divides, gathers};
use super::memo::Memo;
use super::rule::{self, Arg, Placement, Reduction, Use, sizes};
use super::seams::Seams;
use super::sections::Sections;
use super::work;
use super::write::write;

/// What exists of a value of the old graph.
#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_field_names, reason = "forms are one of the two ways in which a value exists")]
struct Forms {
    /// Each is the value.
    forms: Vec<(Placement, ValueId)>,
    /// Their sum is the value, until an op needs it in one piece.
    addends: Vec<(Placement, ValueId)>,
    /// Whether it is zero.
    is_zero: bool,
}

impl Forms {
    fn get(&self, place: Placement) -> Option<ValueId> {
        let is_there = self.forms.iter().find(|(p, _)| *p == place).map(|(_, v)| *v);
        let zero = || self.is_zero && place == Placement::Partial(Reduction::Sum);
        is_there.or_else(|| if zero() { self.get(Placement::Replicate) } else { None })
    }
    fn operand(&self) -> Operand {
        let places = |all: &[(Placement, ValueId)]| all.iter().map(|(place, _)| *place).collect();
        let (forms, addends) = (places(&self.forms), places(&self.addends));
        Operand { forms, addends, is_zero: self.is_zero, is_free: false }
    }
}

/// The pass along one axis of the mesh.
pub(super) struct AxisPass<'a> {
    old: &'a Graph,
    axis: &'a str,
    devices: usize,
    /// What the nodes so far cost a device: bytes sent, and work.
    cost: u64,
    /// What of it is work of ops that are not products.
    light: u64,
    /// Whether operands of the nodes so far are sent.
    is_sent: bool,
    pub(super) builder: Builder,
    /// Of each old value what exists of it.
    forms: Vec<Forms>,
    /// Where each new value lies; `None` if that is for the devices to know.
    pub(super) places: Vec<Option<Placement>>,
    /// What was chosen for such uses before.
    memo: &'a Memo,
    /// Where gradients have to lie.
    gradients: FxHashMap<ValueId, Placement>,
    /// The old node that is rewritten.
    current: Option<NodeId>,
    /// How many nodes each old node stands for, if not for one.
    pub(super) old_weights: &'a [u32],
    /// The same of the new nodes.
    pub(super) weights: Vec<u32>,
    /// Inputs that may lie as is best, with their groups: one place for all of a group.
    free: FxHashMap<ValueId, usize>,
    /// Where the groups lie, as far as an op has decided it.
    fixed: Vec<Option<Placement>>,
    /// Where fused parameters among them are cut.
    seams: Option<Seams>,
}

impl<'a> AxisPass<'a> {
    pub(super) fn new(old: &'a Graph, axis: &'a str, devices: usize, float: DType, memo: &'a Memo) -> Self {
        let forms = vec![Forms::default(); old.values().len()];
        let (old_weights, weights, places) = (&[][..], Vec::new(), Vec::new());
        Self {
            old,
            axis,
            devices,
            cost: 0,
            light: 0,
            is_sent: false,
            builder: Builder::new(float),
            forms,
            places,
            memo,
            gradients: FxHashMap::default(),
            current: None,
            old_weights,
            weights,
            free: FxHashMap::default(),
            fixed: Vec::new(),
            seams: None,
        }
    }

    /// Where groups of inputs lie best: that is decided by the first op that multiplies each, with what it knows until
    /// then. All other inputs are whole.
    pub(super) fn explore(mut self, groups: &[Vec<usize>]) -> Result<Vec<Option<Placement>>> {
        let old = self.old;
        self.fixed = vec![None; groups.len()];
        self.seams = Some(Seams::of(old, self.devices, self.memo));
        for (group, members) in groups.iter().enumerate() {
            self.free.extend(members.iter().map(|&i| (old.inputs[i], group)));
            self.fixed[group] = members.first().and_then(|&i| self.multiplied_later(old.inputs[i]));
        }
        for &v in &old.inputs {
            if !self.free.contains_key(&v) {
                self.input(v, Placement::Replicate)?;
            }
        }
        for (n, _) in old.nodes() {
            if self.fixed.iter().all(Option::is_some) {
                break;
            }
            self.node(n).map_err(|e| e.at(old.place(n)))?;
        }
        Ok(self.fixed)
    }

    /// Where an input lies that is read first by an op that is cheap, such as a lookup, and then by a product: as that
    /// wants it if all else is whole.
    fn multiplied_later(&self, v: ValueId) -> Option<Placement> {
        let readers = self.old.nodes().filter(|(_, node)| node.inputs.contains(&v));
        let uses: Vec<_> =
            readers.filter_map(|(_, node)| Some((Use::of(self.old, node)?, &node.inputs))).collect();
        let at = uses.iter().position(|(call, _)| work::is_product(call)).filter(|at| *at > 0)?;
        let (call, inputs) = &uses[at];
        let whole = Operand { forms: vec![Placement::Replicate], ..Operand::default() };
        let free = Operand { is_free: true, ..Operand::default() };
        let operands: Vec<Operand> =
            inputs.iter().map(|&input| if input == v { free.clone() } else { whole.clone() }).collect();
        let choice = choose(call, &operands, None, self.devices).ok()?;
        let i = inputs.iter().position(|&input| input == v)?;
        choice.places.get(i).copied()
    }

    /// Adds an input that lies so.
    fn input(&mut self, v: ValueId, place: Placement) -> Result<()> {
        let value = self.old.value(v);
        let (Def::Input(role), Some(ty)) = (&value.def, &value.ty) else { return Ok(()) };
        let local = rule::shard_type(ty, place, self.devices as i64)
            .ok_or_else(|| Error::internal("an input that does not divide is partitioned"))?;
        let name = value.name.clone().unwrap_or_else(|| "input".into());
        let new = self.builder.graph.add_input(name, *role, local);
        self.record(v, new, place);
        Ok(())
    }

    /// Puts free inputs where a use wants them, or leaves them whole if it multiplies nothing; whether they all lie there,
    /// and not in sections.
    fn fix(&mut self, inputs: &[ValueId], places: &[Placement]) -> Result<bool> {
        let mut are_kept = true;
        for (v, choice) in inputs.iter().zip(places) {
            if let Some(group) = self.free.remove(v) {
                let mut place = *self.fixed[group].get_or_insert(*choice);
                if let Some(seams) = &mut self.seams {
                    place = seams.place(self.old, *v, place, self.devices);
                }
                are_kept &= place == *choice;
                self.input(*v, place)?;
            }
        }
        Ok(are_kept)
    }

    /// Rewrites the graph; where the outputs and new states lie.
    pub(super) fn run(
        &mut self,
        place: &dyn Fn(usize) -> Placement,
        gradient_of: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Vec<Placement>> {
        let old = self.old;
        for (i, &v) in old.inputs.iter().enumerate() {
            if !self.free.contains_key(&v) {
                self.input(v, place(i))?;
            }
        }
        let input_place = |name: &str| {
            let at = old.inputs.iter().position(|&v| old.value(v).name.as_deref() == Some(name))?;
            Some(place(at))
        };
        let gradient_place = |name: &str| gradient_of(name).and_then(|name| input_place(&name));
        self.gradients =
            old.outputs.iter().filter_map(|(name, &v)| Some((v, gradient_place(name)?))).collect();
        for (n, node) in old.nodes() {
            self.current = Some(n);
            self.builder.set_origin(old.place(n).clone());
            self.node(n).map_err(|e| e.at(old.place(n)))?;
            // Right where a gradient is known, so that its exchange overlaps with the computation of the others.
            for v in &node.outputs {
                if let Some(&to) = self.gradients.get(v) {
                    self.form(*v, to)?;
                }
            }
            self.weigh(n);
        }
        let mut results = Vec::new();
        for (name, &v) in &old.outputs {
            let to = gradient_place(name).unwrap_or_else(|| self.resting(v));
            let new = self.form(v, to)?;
            self.builder.graph.outputs.insert(name.clone(), new);
            results.push(to);
        }
        for &(state, value) in &old.updates {
            let at = old
                .inputs
                .iter()
                .position(|&v| v == state)
                .ok_or_else(|| Error::internal("a state is no input"))?;
            let input = self.builder.graph.inputs[at];
            let new = self.form(value, place(at))?;
            self.builder.graph.updates.push((input, new));
            results.push(place(at));
        }
        Ok(results)
    }

    /// Gives the nodes that were made since the last call the weight of an old node.
    fn weigh(&mut self, n: NodeId) {
        if let Some(&weight) = self.old_weights.get(n.index()) {
            self.weights.resize(self.builder.graph.nodes().len(), weight);
        }
    }

    /// Notes where a new value lies.
    fn put(&mut self, new: ValueId, place: Option<Placement>) {
        if self.places.len() <= new.index() {
            self.places.resize(new.index() + 1, None);
        }
        self.places[new.index()] = place;
    }

    /// Notes that a form of an old value exists.
    fn record(&mut self, old: ValueId, new: ValueId, place: Placement) {
        self.put(new, Some(place));
        self.forms[old.index()].forms.push((place, new));
    }

    /// Where a result lies without communication, as far as it is not partial.
    fn resting(&self, v: ValueId) -> Placement {
        let all = &self.forms[v.index()];
        let whole = all.forms.iter().find(|(place, _)| *place == Placement::Replicate);
        // Sections are for what is inside of a program: results lie in blocks.
        let divided = |(place, _): &&(Placement, ValueId)| matches!(place, Placement::Shard(_));
        let divided = all.forms.iter().chain(&all.addends).find(divided);
        whole.or(divided).map_or(Placement::Replicate, |(place, _)| *place)
    }

    fn operands(&self, inputs: &[ValueId]) -> Vec<Operand> {
        let whole = Operand { forms: vec![Placement::Replicate], ..Operand::default() };
        let operand = |v: ValueId| match self.old.value(v).def {
            Def::Const(_) => whole.clone(),
            _ if self.free.contains_key(&v) => Operand { is_free: true, ..Operand::default() },
            _ => self.forms[v.index()].operand(),
        };
        inputs.iter().map(|&v| operand(v)).collect()
    }

    /// Puts free inputs that have to lie in one way: those of which another one of the group is there, and those of uses
    /// that are cheap.
    fn settle(&mut self, call: &Use, inputs: &[ValueId]) -> Result<()> {
        if !inputs.iter().any(|v| self.free.contains_key(v)) {
            return Ok(());
        }
        let is_product = work::is_product(call);
        for v in inputs {
            let Some(&group) = self.free.get(v) else { continue };
            if !is_product || self.fixed[group].is_some() {
                self.fix(&[*v], &[Placement::Replicate])?;
            }
        }
        Ok(())
    }

    fn node(&mut self, n: NodeId) -> Result<()> {
        let node = self.old.node(n);
        let call = Use::of(self.old, node)
            .ok_or_else(|| Error::internal(format!("{} with unknown sizes is partitioned", node.op.name)))?;
        self.settle(&call, &node.inputs)?;
        let operands = self.operands(&node.inputs);
        if self.keep_addends(&call, node.inputs.as_slice(), node.outputs[0], &operands)? {
            return Ok(());
        }
        let preferred = self.gradients.get(&node.outputs[0]).copied();
        let choice = self.memo.choice(&call, &operands, preferred, self.devices, || {
            choose(&call, &operands, preferred, self.devices)
        })?;
        let is_whole = choice.places.iter().all(|place| *place == Placement::Replicate);
        if moves(&operands, &choice.places) && self.expanded(n, &call, &choice)? {
            return Ok(());
        }
        if !self.fix(&node.inputs, &choice.places)? {
            return self.node(n);
        }
        self.cost = self.cost.saturating_add(choice.cost);
        self.is_sent |= choice.is_sent;
        if !work::is_product(&call) {
            self.light = self.light.saturating_add(choice.work);
        }
        let mut inputs = Vec::new();
        for ((&v, arg), place) in node.inputs.iter().zip(&choice.local.call.args).zip(&choice.places) {
            inputs.push(match arg {
                Arg::Lit(lit) => self.builder.graph.add_literal(lit.clone()),
                Arg::Tensor(_) => self.form(v, *place)?,
            });
        }
        let before = self.builder.graph.values().len();
        let outputs = write(&mut self.builder, self.axis, self.devices as i64, &choice.local, &inputs)?;
        let after = self.builder.graph.values().len();
        for inner in before..after {
            self.put(ValueId::new(inner), None);
        }
        self.note(&node.outputs, &outputs, &choice.local.placements);
        if is_whole && rule::is_zero(&call) {
            self.forms[node.outputs[0].index()].is_zero = true;
        }
        Ok(())
    }

    /// Notes where the results of a node are.
    fn note(&mut self, old: &[ValueId], new: &[ValueId], placements: &[Placement]) {
        for ((&old, &new), &placement) in old.iter().zip(new).zip(placements) {
            if let Some(name) = &self.old.value(old).name {
                self.builder.graph.name_value(new, name.clone());
            }
            self.record(old, new, placement);
        }
    }

    /// Replaces a node by its expansion, if that costs less.
    fn expanded(&mut self, n: NodeId, call: &Use, choice: &Choice) -> Result<bool> {
        let node = self.old.node(n);
        let Some(expansion) = rule::expansion(call) else { return Ok(false) };
        let tensors = || node.inputs.iter().zip(&call.args).filter(|(_, arg)| matches!(arg, Arg::Tensor(_)));
        // The largest free operand is tried in each place; those beside it are put where the expansion wants them.
        let size = |ty: &TensorType| sizes(ty).iter().product::<i64>();
        let free = tensors().enumerate().filter(|(_, (v, _))| self.free.contains_key(*v));
        let largest = free.filter_map(|(i, (_, arg))| match arg {
            Arg::Tensor(ty) => Some((i, ty)),
            Arg::Lit(_) => None,
        });
        let largest = largest.max_by_key(|(_, ty)| size(ty));
        let mut options = vec![None];
        if let Some((i, ty)) = largest {
            let all = (0..ty.shape.rank()).map(Placement::Shard);
            let fits = |place: &Placement| rule::shard_type(ty, *place, self.devices as i64).is_some();
            options = all.filter(fits).chain([Placement::Replicate]).map(|place| Some((i, place))).collect();
        }
        let mut least = (choice.cost, largest.is_some() && choice.has_divided_result());
        let mut best = None;
        for option in options {
            let expanded = self.expanded_so(&expansion, tensors().map(|(v, _)| *v), option)?;
            let (pass, _, results) = &expanded;
            let mut cost = (pass.cost, false);
            if option.is_some() {
                // As for a product that is one op: only sends and products count, and what is gathered to be divided
                // otherwise will have to be gathered again. Of equals, a whole result can be read by any op.
                let later = if pass.is_sent { gathers(call, results, self.devices as u64) } else { 0 };
                cost = ((pass.cost - pass.light).saturating_add(later), divides(results));
            }
            if cost < least {
                (least, best) = (cost, Some(expanded));
            }
        }
        let Some((pass, places, placements)) = best else { return Ok(false) };
        let operands: Vec<ValueId> = tensors().map(|(v, _)| *v).collect();
        if !self.fix(&operands, &places)? {
            self.node(n)?;
            return Ok(true);
        }
        // In the order in which the inner pass has added them.
        let mut inputs: Vec<Option<ValueId>> = vec![None; pass.builder.graph.inputs.len()];
        for ((v, place), inner) in operands.iter().zip(&places).zip(&expansion.inputs) {
            let own = self.form(*v, *place)?;
            let added = pass.forms[inner.index()].forms.first().map(|(_, v)| *v);
            let at = pass.builder.graph.inputs.iter().position(|v| Some(*v) == added);
            if let Some(at) = at {
                inputs[at] = Some(own);
            }
        }
        let inputs: Option<Vec<ValueId>> = inputs.into_iter().collect();
        let inputs = inputs.ok_or_else(|| Error::internal("an expansion with an input of its own"))?;
        let outputs = self.append(&pass.builder.graph, &pass.places, inputs);
        self.cost = self.cost.saturating_add(pass.cost);
        self.is_sent |= pass.is_sent;
        self.light = self.light.saturating_add(pass.light);
        self.note(&node.outputs, &outputs, &placements);
        Ok(true)
    }

    /// Divides an expansion, with one operand where an option says; where the operands and the results lie.
    fn expanded_so<'g>(
        &self,
        expansion: &'g Graph,
        operands: impl Iterator<Item = ValueId>,
        option: Option<(usize, Placement)>,
    ) -> Result<(AxisPass<'g>, Vec<Placement>, Vec<Placement>)>
    where
        'a: 'g,
    {
        let mut places = Vec::new();
        let mut pass = AxisPass::new(expansion, self.axis, self.devices, self.builder.float, self.memo);
        let mut free = Vec::new();
        for (i, (v, &inner)) in operands.zip(&expansion.inputs).enumerate() {
            let divided = self.forms[v.index()].forms.iter().find(|(place, _)| place.axis().is_some());
            let place = option.filter(|(at, _)| *at == i).map(|(_, place)| place);
            if place.is_none() && self.free.contains_key(&v) {
                pass.free.insert(inner, pass.fixed.len());
                pass.fixed.push(None);
                free.push(i);
            }
            places.push(place.or(divided.map(|(place, _)| *place)).unwrap_or(Placement::Replicate));
        }
        let placements = pass.run(&|i| places[i], &|_| None)?;
        for (i, place) in free.into_iter().zip(&pass.fixed) {
            places[i] = place.unwrap_or(Placement::Replicate);
        }
        Ok((pass, places, placements))
    }

    /// Appends the nodes of a graph whose inputs are these values; its outputs.
    fn append(&mut self, graph: &Graph, places: &[Option<Placement>], inputs: Vec<ValueId>) -> Vec<ValueId> {
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
            for (&old, &new) in node.outputs.iter().zip(&outputs) {
                self.put(new, places.get(old.index()).copied().flatten());
                map.insert(old, new);
            }
        }
        graph.outputs.values().map(|v| map[v]).collect()
    }

    /// Keeps a sum as its addends, if it is one of which a part still has to be reduced.
    #[expect(clippy::too_many_lines, reason = "one case after the other, with what they share")]
    fn keep_addends(
        &mut self,
        call: &Use,
        inputs: &[ValueId],
        output: ValueId,
        operands: &[Operand],
    ) -> Result<bool> {
        let is_sum = call.op == &elementwise::ADD
            && call.outputs[0].dtype.is_float()
            && call
                .args
                .iter()
                .all(|arg| matches!(arg, Arg::Tensor(ty) if ty.dtype == call.outputs[0].dtype));
        let unresolved = || operands.iter().filter(|operand| operand.is_unresolved());
        let all_partial =
            unresolved().count() == 2 && operands.iter().all(|operand| operand.addends.is_empty());
        if !is_sum || unresolved().next().is_none() || all_partial {
            return Ok(false);
        }
        // Each operand as addends: whole, divided in one way, partial.
        let mut all: Vec<(Placement, ValueId)> = Vec::new();
        for (&v, arg) in inputs.iter().zip(&call.args) {
            let forms = &self.forms[v.index()];
            let is_of_shape = matches!(arg, Arg::Tensor(ty) if ty.shape == call.outputs[0].shape);
            let own = match forms.addends.as_slice() {
                // A form that fits what is there already.
                [] => {
                    let known = |form: &&(Placement, ValueId)| all.iter().any(|(place, _)| *place == form.0);
                    let best = forms
                        .forms
                        .iter()
                        .find(known)
                        .or_else(|| forms.forms.iter().find(|f| !f.0.is_partial()));
                    best.or(forms.forms.first()).copied().into_iter().collect()
                }
                addends => addends.to_vec(),
            };
            let fits = |(place, _): &(Placement, ValueId)| {
                matches!(place, Placement::Replicate)
                    || is_of_shape
                        && matches!(place, Placement::Shard(_) | Placement::Partial(Reduction::Sum))
            };
            if !own.iter().all(fits) {
                return Ok(false);
            }
            all.extend(own);
        }
        let mut divided: Vec<Placement> =
            all.iter().map(|(place, _)| *place).filter(|place| place.axis().is_some()).collect();
        divided.dedup();
        if divided.len() > 1 {
            return Ok(false);
        }
        if let Some(to) = divided.first().copied() {
            // What is whole is added to the shards, if it has that axis.
            let shape = &call.outputs[0].shape;
            for (place, v) in &mut all {
                if *place == Placement::Replicate {
                    if self.builder.graph.ty(*v).is_none_or(|ty| ty.shape != *shape) {
                        return Ok(false);
                    }
                    *v = self.convert(*v, *place, to)?;
                    *place = to;
                }
            }
        }
        let mut sums: Vec<(Placement, ValueId)> = Vec::new();
        for (place, v) in all {
            match sums.iter().position(|(other, _)| *other == place) {
                Some(i) => sums[i].1 = self.add(sums[i].1, v, place)?,
                None => sums.push((place, v)),
            }
        }
        let forms = &mut self.forms[output.index()];
        if let [only] = sums.as_slice() {
            forms.forms.push(*only);
        } else {
            forms.addends = sums;
        }
        Ok(true)
    }

    fn add(&mut self, a: ValueId, b: ValueId, place: Placement) -> Result<ValueId> {
        let sum = self.builder.push(&elementwise::ADD, &[a, b])?[0];
        self.put(sum, Some(place));
        Ok(sum)
    }

    /// The value in that form, made of another one if there is none yet.
    fn form(&mut self, v: ValueId, to: Placement) -> Result<ValueId> {
        // What is exchanged belongs to what computed it.
        let Some(n) = self.old.producer(v) else { return self.made(v, to) };
        let place = self.builder.place();
        if let Some(current) = self.current {
            self.weigh(current);
        }
        self.builder.set_origin(self.old.place(n).clone());
        let new = self.made(v, to);
        self.weigh(n);
        self.builder.set_origin(place);
        new
    }

    fn made(&mut self, v: ValueId, to: Placement) -> Result<ValueId> {
        if let Def::Const(lit) = &self.old.value(v).def {
            let whole = self.builder.graph.add_literal(lit.clone());
            return self.convert(whole, Placement::Replicate, to);
        }
        let forms = &self.forms[v.index()];
        if let Some(new) = forms.get(to) {
            return Ok(new);
        }
        let addends = forms.addends.clone();
        if forms.forms.is_empty() && !addends.is_empty() {
            let mut sum = None;
            for (from, addend) in addends {
                let own = self.convert(addend, from, self.aligned(v, addend, from, to))?;
                sum = Some(match sum {
                    None => own,
                    Some(sum) => self.add(sum, own, to)?,
                });
            }
            let sum = sum.ok_or_else(|| Error::internal("a sum of nothing"))?;
            if let Some(name) = &self.old.value(v).name {
                self.builder.graph.name_value(sum, name.clone());
            }
            self.record(v, sum, to);
            return Ok(sum);
        }
        let unread = || Error::internal(format!("value {} is read before it is computed", v.index()));
        // What is whole is cut; what is divided is gathered; what is partial is reduced.
        let rank = |place: Placement| match place {
            Placement::Replicate => 0,
            Placement::Shard(_) | Placement::Sections(..) => 1,
            Placement::Partial(_) => 2,
        };
        let (from, own) = *forms.forms.iter().min_by_key(|(place, _)| rank(*place)).ok_or_else(unread)?;
        let new = self.convert(own, from, to)?;
        self.record(v, new, to);
        Ok(new)
    }

    /// Where an addend of a value has to lie so that their sum does: an axis that it repeats is not divided.
    fn aligned(&self, v: ValueId, addend: ValueId, from: Placement, to: Placement) -> Placement {
        let (Placement::Replicate, Some(axis)) = (from, to.axis()) else { return to };
        let rank = self.old.ty(v).map_or(0, |ty| ty.shape.rank());
        let own = self.builder.graph.ty(addend).map_or_else(Vec::new, sizes);
        match (axis + own.len()).checked_sub(rank) {
            Some(axis) if own[axis] != 1 => to.along(axis),
            _ => from,
        }
    }

    /// A new value in another form.
    fn convert(&mut self, v: ValueId, from: Placement, to: Placement) -> Result<ValueId> {
        let along = |axis: usize| Lit::int(axis as i64);
        let new = match (from, to) {
            _ if from == to => v,
            (Placement::Replicate, Placement::Shard(axis)) => {
                self.collective(&collective::SHARD, v, &[along(axis)])?
            }
            (Placement::Partial(Reduction::Sum), Placement::Shard(axis)) => {
                self.collective(&collective::REDUCE_SCATTER, v, &[along(axis)])?
            }
            (Placement::Shard(axis), Placement::Replicate) => {
                self.collective(&collective::ALL_GATHER, v, &[along(axis)])?
            }
            (Placement::Partial(by), Placement::Replicate) => {
                self.collective(&collective::ALL_REDUCE, v, &[Lit::text(by.text())])?
            }
            (Placement::Shard(axis), Placement::Shard(other)) if self.divides(v, other) => {
                self.collective(&collective::ALL_TO_ALL, v, &[along(other), along(axis)])?
            }
            (Placement::Replicate, Placement::Sections(axis, sections)) => {
                self.each_section(v, (from, Placement::Shard(axis)), sections, &collective::SHARD)?
            }
            (Placement::Partial(Reduction::Sum), Placement::Sections(axis, sections)) => {
                self.each_section(v, (from, Placement::Shard(axis)), sections, &collective::REDUCE_SCATTER)?
            }
            (Placement::Sections(axis, sections), Placement::Replicate) => {
                self.each_section(v, (Placement::Shard(axis), to), sections, &collective::ALL_GATHER)?
            }
            (_, Placement::Partial(_)) | (Placement::Replicate, Placement::Replicate) => {
                return Err(Error::internal("a value has no partial form"));
            }
            _ => {
                let whole = self.convert(v, from, Placement::Replicate)?;
                return self.convert(whole, Placement::Replicate, to);
            }
        };
        self.put(new, Some(to));
        Ok(new)
    }

    fn divides(&self, v: ValueId, axis: usize) -> bool {
        self.builder.graph.ty(v).is_some_and(|ty| sizes(ty)[axis] % self.devices as i64 == 0)
    }

    /// Applies a collective to each section of a tensor, and joins the results.
    fn each_section(
        &mut self,
        v: ValueId,
        (from, to): (Placement, Placement),
        sections: Sections,
        op: &'static OpDef,
    ) -> Result<ValueId> {
        let axis = from.axis().or(to.axis()).unwrap_or(0);
        let parts = if from.axis().is_some() { self.devices as i64 } else { 1 };
        let mut done = vec![self.builder.lit(Lit::int(axis as i64))];
        for section in sections.iter() {
            let bound = |at: i64| {
                Lit::Tuple(std::iter::repeat_n(Lit::None, axis).chain([Lit::int(at / parts)]).collect())
            };
            let bounds = [section.start, section.start + section.size].map(|at| self.builder.lit(bound(at)));
            let own = self.builder.push(&slicing::SLICE, &[v, bounds[0], bounds[1]])?[0];
            self.put(own, Some(from));
            let new = self.collective(op, own, &[Lit::int(axis as i64)])?;
            self.put(new, Some(to));
            done.push(new);
        }
        Ok(self.builder.push(&joining::CONCAT, &done)?[0])
    }

    fn collective(&mut self, op: &'static OpDef, v: ValueId, rest: &[Lit]) -> Result<ValueId> {
        let mut args = vec![v, self.builder.lit(Lit::Str(Arc::from(self.axis)))];
        args.push(self.builder.lit(Lit::int(self.devices as i64)));
        args.extend(rest.iter().map(|lit| self.builder.lit(lit.clone())));
        Ok(self.builder.push(op, &args)?[0])
    }
}

/// Whether some operand does not lie where it has to.
fn moves(operands: &[Operand], places: &[Placement]) -> bool {
    operands.iter().zip(places).any(|(operand, place)| !operand.is_free && !operand.forms.contains(place))
}
