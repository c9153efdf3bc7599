//! Prepacking: what depends on weights and constants alone is computed once, when weights are packed.
//!
//! A view, or a value that is repeated, is made where it is read, since that costs less than to keep it; so is a copy
//! that is written over.

use rustc_hash::{FxHashMap, FxHashSet};

use super::plan::{Argument, Call, Custom, Host, HostInput, PlanValueId, Source, Value};
use super::schedule::{Work, WorkId};
use crate::ids::{InputId, Table};

/// What is done when weights are packed, and what is done at each call.
pub(super) struct Parts {
    pub prepared: Table<WorkId, Work>,
    pub run: Table<WorkId, Work>,
}

/// Functions that cost less than to keep what they make.
const CHEAP: &[&str] = &["ggml_reshape_4d", "ggml_view_4d", "ggml_permute", "ggml_repeat_4d"];

/// Which work is done where its results are read: what is cheap, and copies that are written over.
fn repeated(work: &Table<WorkId, Work>) -> Table<WorkId, bool> {
    let calls = work.iter().filter_map(|item| if let Work::Call(call) = item { Some(call) } else { None });
    let written: FxHashSet<PlanValueId> =
        calls.filter(|c| c.function == "ggml_set_rows").filter_map(|c| c.arguments[0].value()).collect();
    let is_repeated = |item: &Work| match item {
        Work::Call(call) => CHEAP.contains(&call.function) || written.contains(&call.result),
        Work::Host(_) => false,
    };
    work.iter().map(is_repeated).collect()
}

/// Splits work by what it depends on; `fixed` says which inputs of the graph are the same at every call.
pub(super) fn split(
    work: &Table<WorkId, Work>,
    values: &mut Table<PlanValueId, Value>,
    fixed: &Table<InputId, bool>,
    results: &[PlanValueId],
) -> Parts {
    let fixed = unchanging(work, values, fixed);
    let mut maker: Table<PlanValueId, Option<WorkId>> = Table::beside(values, None);
    for (i, item) in work.entries() {
        item.results().iter().for_each(|&v| maker[v] = Some(i));
    }
    let repeated = repeated(work);
    let is_kept = |v: PlanValueId| maker[v].is_some_and(|i| fixed[v] && !repeated[i]);
    let with_sources = |v: PlanValueId| [Some(v), values[v].source.of()].into_iter().flatten();
    // From the results backwards: calls stop where something is kept, and from there on it is prepared.
    let mut needed: [Vec<PlanValueId>; 2] =
        [results.iter().copied().flat_map(with_sources).collect(), Vec::new()];
    let mut is_in = [Table::beside(work, false), Table::beside(work, false)];
    let (mut seen, mut kept) = (FxHashSet::default(), Vec::new());
    while let Some(v) = needed[0].pop() {
        if !seen.insert(v) {
            continue;
        }
        if is_kept(v) {
            kept.push(v);
        } else if let Some(i) = maker[v] {
            is_in[0][i] = true;
            needed[0].extend(work[i].reads(values));
        }
    }
    needed[1] = kept;
    while let Some(v) = needed[1].pop() {
        if let Some(i) = maker[v]
            && !std::mem::replace(&mut is_in[1][i], true)
        {
            needed[1].extend(work[i].reads(values));
        }
    }
    let [in_run, in_prepared] = is_in;
    let both: Vec<bool> = in_run.iter().zip(&in_prepared).map(|(a, b)| *a && *b).collect();
    let pick = |is_in: &Table<WorkId, bool>| {
        let chosen = work.iter().zip(is_in).filter(|(_, is_in)| **is_in);
        chosen.map(|(item, _)| item.clone()).collect::<Table<WorkId, _>>()
    };
    let (mut prepared, run) = (pick(&in_prepared), pick(&in_run));
    let twice = work.iter().zip(&both).filter(|(_, both)| **both).flat_map(|(item, _)| item.results());
    rename(&mut prepared, values, &twice.copied().collect::<Vec<_>>());
    Parts { prepared: unshared(prepared, values), run }
}

/// Gives each call that reads a repeated number or another view of what is given a copy of its own: otherwise all weights
/// that are divided by the same number would be one graph.
fn unshared(work: Table<WorkId, Work>, values: &mut Table<PlanValueId, Value>) -> Table<WorkId, Work> {
    let results: FxHashSet<PlanValueId> =
        work.iter().flat_map(|item| item.results().iter().copied()).collect();
    let is_of_leaves =
        |call: &Call| call.arguments.iter().all(|a| a.value().is_none_or(|v| !results.contains(&v)));
    let mut shared: FxHashMap<PlanValueId, Call> = FxHashMap::default();
    let mut new_work = Table::default();
    for mut item in work {
        match &mut item {
            Work::Call(call) if CHEAP.contains(&call.function) && is_of_leaves(call) => {
                shared.insert(call.result, call.clone());
                continue;
            }
            Work::Call(call) if call.custom.is_none() => {
                for argument in &mut call.arguments {
                    if let Some(of) = argument.value().and_then(|v| shared.get(&v)) {
                        let result = values.push(values[of.result].clone());
                        *argument = Argument::Value(result);
                        new_work.push(Work::Call(Call { result, ..of.clone() }));
                    }
                }
            }
            // Those name what they read twice.
            Work::Call(_) | Work::Host(_) => {
                let read: Vec<PlanValueId> = item.reads(values);
                new_work.extend(read.iter().filter_map(|v| shared.remove(v)).map(Work::Call));
            }
        }
        new_work.push(item);
    }
    new_work
}

/// Which values are the same at every call.
pub(super) fn unchanging(
    work: &Table<WorkId, Work>,
    values: &Table<PlanValueId, Value>,
    inputs: &Table<InputId, bool>,
) -> Table<PlanValueId, bool> {
    let mut fixed: Table<PlanValueId, bool> = values
        .iter()
        .map(|value| match value.source {
            Source::Input(i) => inputs[i],
            _ => true,
        })
        .collect();
    loop {
        let before = fixed.clone();
        for (v, value) in values.entries() {
            fixed[v] &= value.source.of().is_none_or(|of| fixed[of]);
        }
        for item in work {
            let is_fixed = item.reads(values).iter().all(|&v| fixed[v]);
            item.results().iter().for_each(|&v| fixed[v] &= is_fixed);
        }
        if fixed == before {
            return fixed;
        }
    }
}

/// Gives values that both parts make names of their own in the prepared one.
fn rename(prepared: &mut Table<WorkId, Work>, values: &mut Table<PlanValueId, Value>, twice: &[PlanValueId]) {
    let mut names: FxHashMap<PlanValueId, PlanValueId> = FxHashMap::default();
    for &v in twice {
        names.insert(v, values.push(values[v].clone()));
    }
    let change = |v: &mut PlanValueId| *v = names.get(v).copied().unwrap_or(*v);
    let change_inputs = |host: &mut Host| {
        for input in &mut host.inputs {
            if let HostInput::Value(v, _) = input {
                change(v);
            }
        }
    };
    for item in prepared {
        match item {
            Work::Call(call) => {
                change(&mut call.result);
                for argument in &mut call.arguments {
                    if let Argument::Value(v) = argument {
                        change(v);
                    }
                }
                if let Some(Custom::Node(node)) = call.custom.as_deref_mut() {
                    change_inputs(node);
                }
            }
            Work::Host(host) => change_inputs(host),
        }
    }
}
