//! Where the values of a part of a plan lie while it runs: in the memory of the caller, in packed weights, in scratch
//! memory. A plan has two parts: what is done when weights are packed, and what is done at each call.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use mithril_codegen::ggml::plan::{self, PlanValueId, Source, Step, Value};
use mithril_codegen::ids::{Id as _, InputId, Table};
use mithril_compile::ggml::{Plan, Type};
use mithril_ggml::{Argument, Context, Graph};
use mithril_ir::{Error, Result};

use super::borrowed::Blocks;
use super::custom;
use crate::c::Interface;

/// Where a value lies during a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// In an input, as it is.
    Input(InputId),
    /// In the result of that number of the part, as it is.
    Output(usize),
    /// In the constants of the function.
    Constant,
    /// In packed weights, from that byte on.
    Packed(usize),
    /// In scratch memory, from that byte on.
    Scratch(usize),
    /// Inside a segment, or with the host.
    Elsewhere,
}

/// What a segment reads from outside, and what others read of it.
#[derive(Clone, Debug, Default)]
pub struct Border {
    /// Values that it reads.
    pub reads: Vec<PlanValueId>,
    /// Values that it makes for others.
    pub writes: Vec<PlanValueId>,
}

/// The places of all values during a part of a plan.
#[derive(Clone, Debug)]
pub struct Places {
    /// Per value.
    pub homes: Table<PlanValueId, Home>,
    /// Per step; of a step of the host nothing.
    pub borders: Vec<Border>,
    /// The values that are wanted of the part, in order: a call writes them into outputs, packing into packed weights.
    pub results: Vec<PlanValueId>,
    /// Per value the first and the last time that a step has to do with it: the number of the step; results are read
    /// behind all steps, one after the other.
    pub lives: Table<PlanValueId, Option<(usize, usize)>>,
    /// Bytes of scratch memory for values.
    pub bytes: usize,
    /// Bytes of packed weights.
    pub packed: usize,
    /// Packed weights whose rows are interleaved.
    pub repacked: BTreeSet<PlanValueId>,
}

/// Values start at multiples of it.
const ALIGNMENT: usize = 64;

/// Borders of the steps of a part, of which these values are wanted.
fn borders(plan: &Plan, steps: &[Step], read: &[PlanValueId]) -> Vec<Border> {
    let results: Vec<PlanValueId> = plan.results().collect();
    let mut read_by_others: Table<PlanValueId, BTreeSet<usize>> =
        Table::beside(&plan.values, BTreeSet::new());
    for &v in read {
        read_by_others[v].insert(usize::MAX);
    }
    for (s, step) in steps.iter().enumerate() {
        let reader = if matches!(step, Step::Segment(_)) { s } else { usize::MAX };
        for v in step.reads() {
            read_by_others[v].insert(reader);
        }
    }
    // What is made of a value is read by another step than the one that makes it.
    for value in &plan.values {
        if let Some(of) = value.source.of() {
            read_by_others[of].insert(usize::MAX);
        }
    }
    let mut borders = Vec::with_capacity(steps.len());
    for (s, step) in steps.iter().enumerate() {
        let mut border = Border::default();
        if let Step::Segment(calls) = step {
            let produced: BTreeSet<PlanValueId> = calls.iter().map(|c| c.result).collect();
            let mut seen = BTreeSet::new();
            border.reads = step.reads();
            border.reads.retain(|v| !produced.contains(v) && seen.insert(*v));
            let leaves = |v: &PlanValueId| read_by_others[*v].iter().any(|&reader| reader != s);
            // What is changed where it lies is there.
            let is_in_place = |v: PlanValueId| plan.donated.iter().any(|(_, k)| results[k.index()] == v);
            let produced = calls.iter().map(|c| c.result);
            border.writes = produced.filter(leaves).filter(|v| !is_in_place(*v)).collect();
        }
        borders.push(border);
    }
    borders
}

/// Values that steps read, and what those are made of.
fn read(plan: &Plan, steps: &[Step], results: &[PlanValueId]) -> BTreeSet<PlanValueId> {
    let direct = steps.iter().flat_map(Step::reads).chain(results.iter().copied());
    direct.flat_map(|v| [Some(v), plan.values[v].source.of()]).flatten().collect()
}

/// Whether ggml reads an input where the caller has it.
fn is_passed_through(value: &Value, blocks: &Blocks) -> bool {
    let Source::Input(i) = value.source else { return false };
    value.ty.is_some_and(|ty| ty.element.holds(value.dtype)) && blocks.of(i).is_none()
}

/// Values that calls read of packed weights.
fn packed(plan: &Plan, interface: &Interface, blocks: &Blocks) -> BTreeSet<PlanValueId> {
    let prepared: BTreeSet<PlanValueId> = plan.prepared.iter().flat_map(Step::makes).collect();
    let is_fixed = |v: PlanValueId| match plan.values[v].source {
        Source::Input(i) => interface.fixed[i.index()],
        _ => prepared.contains(&v),
    };
    let mut read_values: BTreeSet<PlanValueId> =
        plan.steps.iter().flat_map(Step::reads).chain(plan.results()).collect();
    read_values.retain(|&v| {
        let value = &plan.values[v];
        match value.source {
            // As it is, unless ggml has it in another type.
            Source::Input(_) => {
                is_fixed(v)
                    && value.ty.is_some()
                    && !is_passed_through(value, blocks)
                    && plan.steps.iter().any(|s| matches!(s, Step::Segment(_)) && s.reads().contains(&v))
            }
            Source::Permuted { of, .. } => is_fixed(of) && blocks.borrowed(plan, v).is_none(),
            Source::Call | Source::Host => prepared.contains(&v),
            Source::Constant(_) => false,
        }
    });
    read_values
}

/// When values are made and read; who reads what is made of a value reads that, too.
fn lives(plan: &Plan, steps: &[Step], results: &[PlanValueId]) -> Table<PlanValueId, Option<(usize, usize)>> {
    let mut homes = Table::beside(&plan.values, None);
    let mut touch = |v: PlanValueId, at: usize| {
        for v in [Some(v), plan.values[v].source.of()].into_iter().flatten() {
            let (_, last) = homes[v].get_or_insert((at, at));
            *last = at.max(*last);
        }
    };
    for (s, step) in steps.iter().enumerate() {
        step.makes().into_iter().chain(step.reads()).for_each(|v| touch(v, s));
    }
    results.iter().zip(steps.len()..).for_each(|(&v, at)| touch(v, at));
    homes
}

/// A value with its bytes.
type Room = (PlanValueId, i64);

/// Where values begin, each with its bytes, and how many bytes that takes. Those that are there at other times
/// (`lives`) may have the same place; without times all are there at once.
fn arranged(
    rooms: &[Room],
    lives: Option<&Table<PlanValueId, Option<(usize, usize)>>>,
) -> Result<(Vec<usize>, usize)> {
    let too_large = || Error::internal("a tensor of a plan is too large");
    let life = |v: PlanValueId| lives.and_then(|lives| lives[v]).unwrap_or((0, usize::MAX));
    // Where the room of a value begins and ends, in the order of the places.
    let mut used: Vec<(PlanValueId, usize, usize)> = Vec::with_capacity(rooms.len());
    let (mut starts, mut whole) = (vec![0; rooms.len()], 0);
    for (k, &(v, bytes)) in rooms.iter().enumerate() {
        let bytes = usize::try_from(bytes).map_err(|_| too_large())?;
        let (first, last) = life(v);
        let mut start: usize = 0;
        for &(other, from, to) in &used {
            let (born, dead) = life(other);
            if born > last || dead < first {
                continue;
            }
            if start.checked_add(bytes).ok_or_else(too_large)? <= from {
                break;
            }
            start = start.max(to);
        }
        let end = start.checked_add(bytes).and_then(|end| end.checked_next_multiple_of(ALIGNMENT));
        let end = end.ok_or_else(too_large)?;
        used.insert(used.partition_point(|u| u.1 < start), (v, start, end));
        starts[k] = start;
        whole = whole.max(end);
    }
    Ok((starts, whole))
}

impl Places {
    /// Places for a call; fixed inputs, and what follows from them, may be packed if `pack`, and those of `repacked` are then
    /// interleaved.
    pub fn of_calls(
        plan: &Plan,
        interface: &Interface,
        blocks: &Blocks,
        pack: bool,
        mut repacked: BTreeSet<PlanValueId>,
    ) -> Result<Self> {
        let packed = if pack { packed(plan, interface, blocks) } else { BTreeSet::new() };
        // What the host alone reads needs no room.
        let segments = plan.steps.iter().filter(|step| matches!(step, Step::Segment(_)));
        let in_graphs: BTreeSet<PlanValueId> = segments.flat_map(Step::reads).collect();
        let rooms: Vec<Room> = packed
            .iter()
            .map(|&v| match (&plan.values[v].ty, &plan.values[v].source) {
                (Some(_), Source::Host) if !in_graphs.contains(&v) => (v, 0),
                (Some(ty), _) => (v, Type::contiguous(ty.element, ty.sizes).bytes()),
                (None, _) => (v, 0),
            })
            .collect();
        let (starts, packed_bytes) = arranged(&rooms, None)?;
        let packed: BTreeMap<PlanValueId, usize> = packed.into_iter().zip(starts).collect();
        let results: Vec<PlanValueId> = plan.results().collect();
        let mut outputs = BTreeMap::new();
        for &(_, k) in &plan.donated {
            outputs.insert(results[k.index()], k.index());
        }
        for (k, &v) in results.iter().enumerate() {
            if plan.values[v].ty.is_some_and(|ty| ty.element.holds(interface.outputs[k].dtype)) {
                outputs.entry(v).or_insert(k);
            }
        }
        let places = Self::new(plan, &plan.steps, results, &outputs, blocks, |v| {
            if let Some(i) = blocks.borrowed(plan, v) {
                return Some(Home::Input(i));
            }
            if let Some((_, k)) = plan.donated.iter().find(|(input, _)| *input == v) {
                return Some(Home::Output(k.index()));
            }
            if let Some(&start) = packed.get(&v) {
                return Some(Home::Packed(start));
            }
            let of = plan.values[v].source.of().unwrap_or(v);
            matches!(plan.values[of].source, Source::Constant(_)).then_some(Home::Constant)
        })?;
        repacked.retain(|&v| matches!(places.homes[v], Home::Packed(_)));
        Ok(Self { packed: packed_bytes, repacked, ..places })
    }
    /// Places for the packing of what those of calls say is packed.
    pub fn of_packing(plan: &Plan, blocks: &Blocks, calls: &Self) -> Result<Self> {
        let is_packed = |v: &PlanValueId| matches!(calls.homes[*v], Home::Packed(_));
        let packed: Vec<PlanValueId> = plan.values.ids().filter(is_packed).collect();
        let is_call = |v: &PlanValueId| matches!(plan.values[*v].source, Source::Call);
        let mut outputs = BTreeMap::new();
        for (k, &v) in packed.iter().enumerate().filter(|(_, v)| is_call(v)) {
            outputs.insert(v, k);
        }
        Self::new(plan, &plan.prepared, packed, &outputs, blocks, |_| None)
    }
    /// Places for steps: what they make lies in one of the `outputs` if it is there; what they do not make lies where
    /// `given` says, or is made in scratch memory.
    fn new(
        plan: &Plan,
        steps: &[Step],
        results: Vec<PlanValueId>,
        outputs: &BTreeMap<PlanValueId, usize>,
        blocks: &Blocks,
        home_of: impl Fn(PlanValueId) -> Option<Home>,
    ) -> Result<Self> {
        let borders = borders(plan, steps, &results);
        let read_values = read(plan, steps, &results);
        let reads: BTreeSet<PlanValueId> = borders.iter().flat_map(|b| b.reads.iter().copied()).collect();
        let writes: BTreeSet<PlanValueId> = borders.iter().flat_map(|b| b.writes.iter().copied()).collect();
        let produced: BTreeSet<PlanValueId> = steps.iter().flat_map(Step::makes).collect();
        let lives = lives(plan, steps, &results);
        let mut homes = Table::default();
        let mut rooms: Vec<Room> = Vec::new();
        // The place is found when all are known.
        let mut scratch = |v: PlanValueId, bytes: i64| {
            rooms.push((v, bytes));
            Home::Scratch(0)
        };
        for (v, value) in plan.values.entries() {
            let outside = if read_values.contains(&v) && !produced.contains(&v) { home_of(v) } else { None };
            let home = match (&value.source, &value.ty) {
                _ if outside.is_some() => outside.unwrap_or(Home::Elsewhere),
                (Source::Input(i), ty) if ty.is_none() || is_passed_through(value, blocks) => Home::Input(*i),
                (Source::Call, _) if outputs.contains_key(&v) => Home::Output(outputs[&v]),
                (Source::Call, Some(ty)) if writes.contains(&v) => {
                    scratch(v, ty.elements() * ty.element.bytes())
                }
                (Source::Call, _) => Home::Elsewhere,
                (_, Some(ty)) if reads.contains(&v) => scratch(v, ty.bytes()),
                _ => Home::Elsewhere,
            };
            homes.push(home);
        }
        let (starts, bytes) = arranged(&rooms, Some(&lives))?;
        for ((v, _), start) in rooms.iter().zip(starts) {
            homes[*v] = Home::Scratch(start);
        }
        Ok(Self { homes, borders, results, lives, bytes, packed: 0, repacked: BTreeSet::new() })
    }
    /// The graph of a step that is a segment, by its number among the steps.
    pub fn graph(&self, plan: &Plan, steps: &[Step], number: usize) -> Result<Option<Graph>> {
        let (Some(Step::Segment(calls)), Some(border)) = (steps.get(number), self.borders.get(number)) else {
            return Ok(None);
        };
        let mut context = Context::new()?;
        let mut tensors = HashMap::new();
        let is_donated = |v: PlanValueId| plan.donated.iter().any(|(input, _)| *input == v);
        for &v in &border.reads {
            let ty = plan.values[v].ty.as_ref().ok_or_else(|| Error::internal("a value has no type"))?;
            let ty = Type::contiguous(ty.element, ty.sizes);
            let leaf = if self.repacked.contains(&v) {
                context.repacked_leaf(&ty)
            } else if is_donated(v) {
                context.leaf_to_change(&ty)
            } else {
                context.leaf(&ty)
            };
            tensors.insert(v, leaf?);
        }
        let unknown = || Error::internal("a value is read before it is defined");
        for call in calls {
            let arguments = call.arguments.iter().map(|argument| {
                Ok(match argument {
                    plan::Argument::Value(v) => Argument::Tensor(*tensors.get(v).ok_or_else(unknown)?),
                    plan::Argument::Null => Argument::Null,
                    plan::Argument::Number(x) => Argument::Number(*x),
                    plan::Argument::Element(e) => Argument::Element(*e),
                })
            });
            let arguments = arguments.collect::<Result<Vec<_>>>()?;
            let bytes = match call.custom.as_deref() {
                Some(op) => custom::add(&mut context, plan, call, op, &arguments)?,
                None => context.call(call.function, &arguments)?,
            };
            tensors.insert(call.result, bytes);
        }
        let outputs = border.writes.iter().map(|v| tensors.get(v).copied().ok_or_else(unknown));
        Ok(Some(context.finish(&outputs.collect::<Result<Vec<_>>>()?)?))
    }
}
