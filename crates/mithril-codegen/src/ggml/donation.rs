//! Donation: an output that is a donated input with some rows changed, such as a cache with a new entry, is written
//! in place of that input. Nothing else may read the input.

use rustc_hash::FxHashMap;

use super::emit::{CallId, Emitter};
use super::plan::{Argument, Host, PlanValueId, Source};
use crate::ids::{Id as _, OutputId};

/// Lets rows be set in the memory of donated inputs (given by their values) instead of in copies of it: which inputs,
/// each with the result that lies there.
pub(super) fn donate(
    emitter: &mut Emitter,
    hosts: &[Host],
    results: &[PlanValueId],
    donated: &[PlanValueId],
) -> Vec<(PlanValueId, OutputId)> {
    let readers = emitter.readers(hosts, results);
    let maker: FxHashMap<PlanValueId, CallId> = emitter.calls.entries().map(|(i, c)| (c.result, i)).collect();
    let mut donations = Vec::new();
    let mut copies = Vec::new();
    for &input in donated {
        let Some(&copy) = readers.get(&input) else { continue };
        let Some(&write) = readers.get(&emitter.calls[copy].result) else { continue };
        let is_copy = emitter.calls[copy].function == "ggml_cont";
        let is_write = emitter.calls[write].function == "ggml_set_rows"
            && emitter.calls[write].arguments[0].value() == Some(emitter.calls[copy].result);
        let new = emitter.calls[write].result;
        let Some(output) = results.iter().position(|&v| v == new).filter(|_| is_copy && is_write) else {
            continue;
        };
        let (old, value) = (&emitter.values[input], &emitter.values[new]);
        let is_same =
            matches!(old.source, Source::Input(_)) && old.dtype == value.dtype && old.ty == value.ty;
        if is_same && maker.get(&new) == Some(&write) {
            emitter.calls[write].arguments[0] = Argument::Value(input);
            copies.push(copy);
            donations.push((input, OutputId::new(output)));
        }
    }
    emitter.calls.retain_entries(|i, _| !copies.contains(&i));
    donations
}
