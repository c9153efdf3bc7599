//! Where the values of a plan lie: in the memory of the caller, in packed weights, in scratch memory.

use std::collections::{BTreeSet, HashMap};

use mithril_codegen::ggml::plan::{self, Source, Step};
use mithril_compile::ggml::{Element, Plan, Type};
use mithril_ggml::{Argument, Context, Graph};
use mithril_ir::{Error, Result};

use super::custom;
use super::given::Blocks;
use crate::c::Interface;

/// Where a value lies during a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// In an input of that number, as it is.
    Input(usize),
    /// In an output of that number, as it is.
    Output(usize),
    /// In the constants of the function.
    Constant,
    /// In packed weights.
    Packed,
    /// In scratch memory, from that byte on.
    Scratch(usize),
    /// Inside a segment, or with the host.
    Elsewhere,
}

/// What a segment reads from outside, and what others read of it.
#[derive(Clone, Debug, Default)]
pub struct Border {
    /// Values that it reads.
    pub reads: Vec<usize>,
    /// Values that it makes for others.
    pub writes: Vec<usize>,
}

/// The places of all values.
#[derive(Clone, Debug)]
pub struct Places {
    /// Per value.
    pub homes: Vec<Home>,
    /// Per step; of a step of the host nothing.
    pub borders: Vec<Border>,
    /// Bytes of scratch memory for values.
    pub bytes: usize,
}

/// Values start at multiples of it.
const ALIGNMENT: usize = 64;

/// The output that is a value as ggml makes it.
fn output(plan: &Plan, interface: &Interface, v: usize) -> Option<usize> {
    let made = plan.outputs.iter().map(|(_, v)| *v).chain(plan.updates.iter().map(|(_, new)| *new));
    let k = made.into_iter().position(|made| made == v)?;
    let is_same = plan.values[v].ty.is_some_and(|ty| ty.element.holds(interface.outputs[k].dtype));
    is_same.then_some(k)
}

/// Borders of all steps.
fn borders(plan: &Plan) -> Vec<Border> {
    let mut read_by_others: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); plan.values.len()];
    let results = plan.outputs.iter().map(|(_, v)| *v).chain(plan.updates.iter().map(|(_, new)| *new));
    for v in results {
        read_by_others[v].insert(usize::MAX);
    }
    for (s, step) in plan.steps.iter().enumerate() {
        match step {
            Step::Segment(calls) => {
                for v in calls.iter().flat_map(|c| &c.arguments).filter_map(plan::Argument::value) {
                    read_by_others[v].insert(s);
                }
            }
            Step::Host(host) => {
                for v in host.inputs.iter().filter_map(plan::HostInput::value) {
                    read_by_others[v].insert(usize::MAX);
                }
            }
        }
    }
    // What is made of a value is read by another step than the one that makes it.
    for value in &plan.values {
        if let Some(of) = value.source.of() {
            read_by_others[of].insert(usize::MAX);
        }
    }
    let mut found = Vec::with_capacity(plan.steps.len());
    for (s, step) in plan.steps.iter().enumerate() {
        let mut border = Border::default();
        if let Step::Segment(calls) = step {
            let made: BTreeSet<usize> = calls.iter().map(|c| c.result).collect();
            let mut seen = BTreeSet::new();
            for v in calls.iter().flat_map(|c| &c.arguments).filter_map(plan::Argument::value) {
                if !made.contains(&v) && seen.insert(v) {
                    border.reads.push(v);
                }
            }
            let leaves = |v: &usize| read_by_others[*v].iter().any(|&reader| reader != s);
            border.writes = calls.iter().map(|c| c.result).filter(leaves).collect();
        }
        found.push(border);
    }
    found
}

impl Places {
    /// Places for the values of a plan; fixed inputs may be packed if `pack`.
    pub fn new(plan: &Plan, interface: &Interface, blocks: &Blocks, pack: bool) -> Result<Self> {
        let borders = borders(plan);
        let mut places = Self { homes: Vec::with_capacity(plan.values.len()), borders, bytes: 0 };
        let is_fixed = |i: usize| pack && interface.fixed[i];
        for (v, value) in plan.values.iter().enumerate() {
            let is_read = places.borders.iter().any(|b| b.reads.contains(&v));
            let is_written = places.borders.iter().any(|b| b.writes.contains(&v));
            let of = value.source.of().map(|of| &plan.values[of].source);
            let is_other = |i: usize, element: Element| !element.holds(value.dtype) || blocks.of(i).is_some();
            if let Some(i) = blocks.whole(plan, value) {
                places.homes.push(Home::Input(i));
                continue;
            }
            let home = match (&value.source, &value.ty, of) {
                (Source::Input(i), Some(ty), _) if is_other(*i, ty.element) => {
                    match (is_read, is_fixed(*i)) {
                        (false, _) => Home::Elsewhere,
                        (true, true) => Home::Packed,
                        (true, false) => places.scratch(ty.bytes())?,
                    }
                }
                (Source::Input(i), ..) => Home::Input(*i),
                (Source::Constant(_), Some(_), _) | (_, Some(_), Some(Source::Constant(_))) => Home::Constant,
                (_, Some(_), Some(Source::Input(i))) if is_fixed(*i) => Home::Packed,
                (_, Some(ty), Some(_)) => places.scratch(ty.bytes())?,
                (Source::Host, Some(ty), _) if is_read => places.scratch(ty.bytes())?,
                (Source::Call, Some(ty), _) if is_written => match output(plan, interface, v) {
                    Some(k) => Home::Output(k),
                    _ => places.scratch(ty.elements() * ty.element.bytes())?,
                },
                _ => Home::Elsewhere,
            };
            places.homes.push(home);
        }
        Ok(places)
    }
    fn scratch(&mut self, bytes: i64) -> Result<Home> {
        let too_large = || Error::internal("a tensor of a plan is too large");
        let start = self.bytes;
        let bytes = usize::try_from(bytes).map_err(|_| too_large())?;
        let end = start.checked_add(bytes).ok_or_else(too_large)?;
        self.bytes = end.next_multiple_of(ALIGNMENT);
        Ok(Home::Scratch(start))
    }
    /// The graphs of all segments, in their order.
    pub fn graphs(&self, plan: &Plan) -> Result<Vec<Graph>> {
        let mut graphs = Vec::new();
        for (step, border) in plan.steps.iter().zip(&self.borders) {
            let Step::Segment(calls) = step else { continue };
            let mut context = Context::new()?;
            let mut tensors = HashMap::new();
            for &v in &border.reads {
                let ty = plan.values[v].ty.as_ref().ok_or_else(|| Error::internal("a value has no type"))?;
                let ty = Type::contiguous(ty.element, ty.sizes);
                tensors.insert(v, context.leaf(&ty)?);
            }
            let unknown = || Error::internal("a value is read before it is made");
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
                let made = match call.custom.as_deref() {
                    Some(op) => custom::add(&mut context, plan, call, op, &arguments)?,
                    None => context.call(call.function, &arguments)?,
                };
                tensors.insert(call.result, made);
            }
            let outputs = border.writes.iter().map(|v| tensors.get(v).copied().ok_or_else(unknown));
            graphs.push(context.finish(&outputs.collect::<Result<Vec<_>>>()?)?);
        }
        Ok(graphs)
    }
}
