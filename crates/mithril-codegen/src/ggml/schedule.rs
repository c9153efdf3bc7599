//! The order of the steps of a plan: what the host can do without ggml comes first, so that ggml has few segments; what
//! nothing needs is left out.

use std::collections::BTreeMap;
use std::sync::Arc;

use mithril_ir::{Error, Result};
use rustc_hash::FxHashMap;

use super::donation::donate;
use super::emit::Emitter;
use super::fold_batch_norm::fold_batch_norms;
use super::plan::{Argument, Call, Custom, Host, HostInput, Plan, PlanValueId, Source, Step, Value};
use super::prepack::{Parts, split, unchanging};
use crate::ids::{Id as _, InputId, Table, id};

id!(
    /// A call of ggml or a step of the host, before they are put in order.
    WorkId
);

/// What goes into a plan, and what comes out of it.
pub struct Ends {
    /// Values of the inputs.
    pub inputs: Table<InputId, PlanValueId>,
    /// Values of the outputs, by name.
    pub outputs: Vec<(Arc<str>, PlanValueId)>,
    /// Values of old states with those of the new ones.
    pub updates: Vec<(PlanValueId, PlanValueId)>,
    /// Where weights are packed: per input, whether it is the same at every call.
    pub fixed: Option<Table<InputId, bool>>,
    /// Values of inputs whose memory may be written.
    pub donated: Vec<PlanValueId>,
}

/// Puts calls and steps of the host in order; what depends on fixed inputs and constants alone comes into a part of its
/// own.
pub fn schedule(mut emitter: Emitter, hosts: &[Host], ends: Ends) -> Result<Plan> {
    let Ends { inputs, outputs, updates, fixed, donated } = ends;
    let results: Vec<PlanValueId> = outputs.iter().map(|o| o.1).chain(updates.iter().map(|u| u.1)).collect();
    let all = |calls: &Table<_, Call>, hosts: &[Host]| -> Table<WorkId, Work> {
        calls.iter().cloned().map(Work::Call).chain(hosts.iter().cloned().map(Work::Host)).collect()
    };
    if let Some(inputs) = &fixed {
        let fixed = unchanging(&all(&emitter.calls, hosts), &emitter.values, inputs);
        fold_batch_norms(&mut emitter, hosts, &results, &fixed);
    }
    let donated = donate(&mut emitter, hosts, &results, &donated);
    let Emitter { mut values, calls, weights, .. } = emitter;
    let mut work = all(&calls, hosts);
    let is_needed = needed(&values, &work, &results);
    work.retain(|w| w.results().iter().any(|&v| is_needed[v]));
    let Parts { prepared, run } = match &fixed {
        Some(fixed) => split(&work, &mut values, fixed, &results),
        None => Parts { prepared: Table::default(), run: work },
    };
    let mut done: Table<PlanValueId, bool> =
        values.iter().map(|v| !matches!(v.source, Source::Call | Source::Host)).collect();
    let mut keep = needed(&values, &run, &results);
    for item in &prepared {
        item.results().iter().chain(&item.reads(&values)).for_each(|&v| keep[v] = true);
    }
    let prepared = order(prepared, &values, &mut done)?.into_iter().flat_map(connected_components).collect();
    let steps = order(run, &values, &mut done)?;
    let mut plan =
        Plan { values, inputs, outputs, updates, donated, prepared, steps, refused: weights.refused };
    renumber(&mut plan, &keep);
    Ok(plan)
}

/// A call stands behind those whose results it reads, and so does a step of the host: one pass of each kind takes all
/// that is ready.
fn order(
    mut work: Table<WorkId, Work>,
    values: &Table<PlanValueId, Value>,
    done: &mut Table<PlanValueId, bool>,
) -> Result<Vec<Step>> {
    let mut steps: Vec<Step> = Vec::new();
    while !work.is_empty() {
        let before = work.len();
        for on_host in [true, false] {
            let mut rest = Table::default();
            let mut segment = Vec::new();
            for item in work {
                let ready = item.reads(values).iter().all(|&v| done[v]);
                if !ready || matches!(item, Work::Host(_)) != on_host {
                    rest.push(item);
                    continue;
                }
                item.results().iter().for_each(|&v| done[v] = true);
                match item {
                    Work::Host(host) => steps.push(Step::Host(host)),
                    Work::Call(call) => segment.push(call),
                }
            }
            if !segment.is_empty() {
                steps.push(Step::Segment(segment));
            }
            work = rest;
        }
        if work.len() == before {
            return Err(Error::internal("steps of a plan wait for each other"));
        }
    }
    Ok(steps)
}

/// Splits a segment into its connected components: what one reads can be released before the next one runs.
fn connected_components(step: Step) -> Vec<Step> {
    let Step::Segment(calls) = step else { return vec![step] };
    // Union-find: the component that defines a value; of joined components, the first is the root.
    let mut segment: FxHashMap<PlanValueId, usize> = FxHashMap::default();
    let mut roots: Vec<usize> = Vec::with_capacity(calls.len());
    let first = |roots: &[usize], mut s: usize| {
        while roots[s] != s {
            s = roots[s];
        }
        s
    };
    for (own, call) in calls.iter().enumerate() {
        roots.push(own);
        for other in call.arguments.iter().filter_map(|a| segment.get(&a.value()?)) {
            let (a, b) = (first(&roots, *other), first(&roots, own));
            roots[a.max(b)] = a.min(b);
        }
        segment.insert(call.result, own);
    }
    let mut segments: BTreeMap<usize, Vec<Call>> = BTreeMap::new();
    for (own, call) in calls.into_iter().enumerate() {
        segments.entry(first(&roots, own)).or_default().push(call);
    }
    segments.into_values().map(Step::Segment).collect()
}

/// A call of ggml, or a step of the host.
#[derive(Clone)]
pub(super) enum Work {
    Call(Call),
    Host(Host),
}

impl Work {
    pub fn results(&self) -> &[PlanValueId] {
        match self {
            Self::Call(call) => std::slice::from_ref(&call.result),
            Self::Host(host) => &host.outputs,
        }
    }
    /// What must be there before, through what is made of it outside.
    pub fn reads(&self, values: &Table<PlanValueId, Value>) -> Vec<PlanValueId> {
        let direct: Vec<PlanValueId> = match self {
            Self::Call(call) => call.arguments.iter().filter_map(Argument::value).collect(),
            Self::Host(host) => host.inputs.iter().filter_map(HostInput::value).collect(),
        };
        let of = |v: PlanValueId| values[v].source.of().unwrap_or(v);
        direct.iter().copied().chain(direct.iter().map(|&v| of(v))).collect()
    }
}

/// Which values lead to results.
fn needed(
    values: &Table<PlanValueId, Value>,
    work: &Table<WorkId, Work>,
    results: &[PlanValueId],
) -> Table<PlanValueId, bool> {
    let mut maker = Table::beside(values, None);
    for (i, item) in work.entries() {
        item.results().iter().for_each(|&v| maker[v] = Some(i));
    }
    let mut needed = Table::beside(values, false);
    let mut open: Vec<PlanValueId> = results.to_vec();
    while let Some(v) = open.pop() {
        if std::mem::replace(&mut needed[v], true) {
            continue;
        }
        open.extend(values[v].source.of());
        if let Some(i) = maker[v] {
            open.extend(work[i].reads(values));
        }
    }
    needed
}

impl Host {
    fn renumber(&mut self, number: &Table<PlanValueId, PlanValueId>) {
        self.outputs.iter_mut().for_each(|v| *v = number[*v]);
        for input in &mut self.inputs {
            if let HostInput::Value(v, _) = input {
                *v = number[*v];
            }
        }
    }
}

/// Leaves out values that nothing needs, apart from inputs and from results of steps that are done anyway.
fn renumber(plan: &mut Plan, needed: &Table<PlanValueId, bool>) {
    let mut keep = needed.clone();
    plan.inputs.iter().for_each(|&v| keep[v] = true);
    for step in plan.prepared.iter().chain(&plan.steps) {
        if let Step::Host(host) = step {
            host.outputs.iter().for_each(|&v| keep[v] = true);
        }
    }
    let mut number = Table::beside(&keep, PlanValueId::new(0));
    for (new, (v, _)) in keep.entries().filter(|(_, keep)| **keep).enumerate() {
        number[v] = PlanValueId::new(new);
    }
    plan.values.retain_entries(|v, _| keep[v]);
    for value in &mut plan.values {
        if let Source::Permuted { of, .. } = &mut value.source {
            *of = number[*of];
        }
    }
    for step in plan.prepared.iter_mut().chain(&mut plan.steps) {
        match step {
            Step::Segment(calls) => {
                for call in calls {
                    call.result = number[call.result];
                    for argument in &mut call.arguments {
                        if let Argument::Value(v) = argument {
                            *v = number[*v];
                        }
                    }
                    if let Some(Custom::Node(node)) = call.custom.as_deref_mut() {
                        node.renumber(&number);
                    }
                }
            }
            Step::Host(host) => host.renumber(&number),
        }
    }
    plan.inputs.iter_mut().for_each(|v| *v = number[*v]);
    plan.outputs.iter_mut().for_each(|o| o.1 = number[o.1]);
    plan.updates.iter_mut().for_each(|u| *u = (number[u.0], number[u.1]));
    plan.donated.iter_mut().for_each(|d| d.0 = number[d.0]);
    plan.refused.retain(|r| keep[r.0]);
    plan.refused.iter_mut().for_each(|r| r.0 = number[r.0]);
}
