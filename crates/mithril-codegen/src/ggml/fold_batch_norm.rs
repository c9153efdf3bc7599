//! Batch-norm folding: a convolution whose result is scaled by a number per filter that is known when weights are
//! packed (a batch norm) uses weights that are multiplied by the scale; what is then added becomes one number per
//! filter.
//!
//! The calls that this needs are put where the arithmetic ended; [`super::prepack`] moves those away that depend on
//! weights alone.

use mithril_ir::loops::Binary;
use rustc_hash::{FxHashMap, FxHashSet};

use super::emit::{CallId, Emitter, Item};
use super::functions::find;
use super::plan::{Argument, Call, Host, PlanValueId, Source, Value};
use super::types::Element;
use super::views::View;
use crate::affine::Affine;
use crate::ids::Table;

/// Functions whose filters are scaled.
const CONVOLUTIONS: &[&str] = &["ggml_conv_2d_direct", "ggml_conv_2d_dw_direct"];

/// The dimension of the filters in what a convolution returns, counted as ggml does; in weights it is the last.
const FILTER: usize = 2;

/// A convolution and the steps of arithmetic behind it, by their ids.
type Chain = Vec<CallId>;

/// Folds per-filter arithmetic into weights; `fixed` marks the values that are known when weights are packed.
pub(super) fn fold_batch_norms(
    emitter: &mut Emitter,
    hosts: &[Host],
    results: &[PlanValueId],
    fixed: &Table<PlanValueId, bool>,
) {
    let readers = emitter.readers(hosts, results);
    let calls = std::mem::take(&mut emitter.calls);
    emitter.forget_calls();
    let mut chains: FxHashMap<CallId, Chain> = FxHashMap::default();
    let mut gone = FxHashSet::default();
    for first in calls.ids() {
        if let Some(chain) = chain(emitter, &calls, first, &readers, fixed)
            && let Some(&last) = chain.last()
        {
            gone.extend(chain.iter().copied());
            chains.insert(last, chain);
        }
    }
    for (i, call) in calls.entries() {
        match chains.remove(&i) {
            Some(chain) => {
                let mark = emitter.mark();
                if scaled(emitter, &calls, &chain).is_err() {
                    // As it was.
                    emitter.reset(mark);
                    emitter.calls.extend(chain.iter().map(|&i| calls[i].clone()));
                }
            }
            None if gone.contains(&i) => {}
            None => {
                emitter.calls.push(call.clone());
            }
        }
    }
}

/// The arithmetic behind the convolution at a place, if its factor can go into the weights.
fn chain(
    emitter: &Emitter,
    calls: &Table<CallId, Call>,
    first: CallId,
    readers: &FxHashMap<PlanValueId, CallId>,
    fixed: &Table<PlanValueId, bool>,
) -> Option<Chain> {
    let call = &calls[first];
    let weight = call.arguments.first()?.value().filter(|_| CONVOLUTIONS.contains(&call.function))?;
    let is_plain = emitter.values[weight].ty.is_some_and(|ty| ty.element == Element::F32);
    if !is_plain || !fixed[weight] {
        return None;
    }
    let filters = emitter.values[call.result].ty?.sizes[FILTER];
    let is_per_filter = |v: PlanValueId| {
        let Some(ty) = emitter.values[v].ty.filter(|_| fixed[v]) else { return false };
        let mut sizes = ty.sizes;
        let own = std::mem::replace(&mut sizes[FILTER], 1);
        sizes == [1; 4] && (own == filters || own == 1)
    };
    let (mut chain, mut factors, mut terms) = (vec![first], 0, 0);
    let mut last = first;
    while let Some(&next) = readers.get(&calls[last].result) {
        let Some(steps) = arithmetic(&calls[next], calls[last].result) else { break };
        let is_known = |other: &Argument| other.value().is_none_or(is_per_filter);
        if !steps.iter().all(|(_, other)| is_known(other)) {
            break;
        }
        for (op, _) in steps {
            let is_factor = matches!(op, Binary::Multiply | Binary::Divide);
            *(if is_factor { &mut factors } else { &mut terms }) += 1;
        }
        chain.push(next);
        last = next;
    }
    (factors > 0 || terms > 1).then_some(chain)
}

/// A value or a number as an operand.
fn item(emitter: &Emitter, argument: Argument) -> Option<Item> {
    match argument {
        Argument::Value(v) => Some(Item::View(View::whole(v, &emitter.values[v].shape))),
        Argument::Number(x) => Some(Item::Number(x)),
        _ => None,
    }
}

/// What a call does to a value, as steps with another operand.
fn arithmetic(call: &Call, value: PlanValueId) -> Option<Vec<(Binary, Argument)>> {
    if call.arguments.first()?.value() != Some(value) {
        return None;
    }
    let other = call.arguments.get(1).copied();
    Some(match call.function {
        "ggml_add" => vec![(Binary::Add, other?)],
        "ggml_sub" => vec![(Binary::Subtract, other?)],
        "ggml_mul" | "ggml_scale" => vec![(Binary::Multiply, other?)],
        "ggml_div" => vec![(Binary::Divide, other?)],
        "ggml_scale_bias" => vec![(Binary::Multiply, other?), (Binary::Add, call.arguments.get(2).copied()?)],
        _ => return None,
    })
}

type Made<T> = Result<T, String>;

fn call(emitter: &mut Emitter, op: Binary, a: Item, b: Item) -> Made<Item> {
    let name = match op {
        Binary::Add => "ggml_add",
        Binary::Subtract => "ggml_sub",
        Binary::Multiply => "ggml_mul",
        Binary::Divide => "ggml_div",
        _ => return Err("no arithmetic of ggml".into()),
    };
    let function = find(name).ok_or("a function is missing")?;
    emitter.call(function, vec![a, b]).map(Item::View)
}

/// Makes the calls of a chain with its factor in the weights.
fn scaled(emitter: &mut Emitter, calls: &Table<CallId, Call>, chain: &[CallId]) -> Made<()> {
    let (first, last) = (&calls[chain[0]], &calls[chain[chain.len() - 1]]);
    let mut affine: Affine<Item> = Affine::default();
    let mut value = first.result;
    for &i in &chain[1..] {
        for (op, other) in arithmetic(&calls[i], value).ok_or("no arithmetic")? {
            let other = item(emitter, other).ok_or("no operand")?;
            let next = affine.then(op, other, |op, a, b| {
                let neutral = if matches!(op, Binary::Add | Binary::Subtract) { 0.0 } else { 1.0 };
                call(emitter, op, a.unwrap_or(Item::Number(neutral)), b).ok()
            });
            affine = next.ok_or("arithmetic that ggml lacks")?;
        }
        value = calls[i].result;
    }
    let mut arguments = first.arguments.clone();
    let weight = arguments[0].value().ok_or("no weight")?;
    if let Some(scale) = affine.scale {
        let scale = match scale {
            Item::View(view) => Item::View(along_filters(&view)?),
            scale => scale,
        };
        let weight_view = View::whole(weight, &four(&emitter.values[weight]));
        let Item::View(view) = call(emitter, Binary::Multiply, Item::View(weight_view), scale)? else {
            return Err("no tensor".into());
        };
        arguments[0] = Argument::Value(emitter.tensor(&view)?);
    }
    let function = find(first.function).ok_or("a function is missing")?;
    let mut result = emitter.push(function, arguments)?;
    if let Some(shift) = affine.shift {
        let whole = View::whole(result, &four(&emitter.values[result]));
        let Item::View(view) = call(emitter, Binary::Add, Item::View(whole), shift)? else {
            return Err("no tensor".into());
        };
        result = view.value;
    }
    // Those behind read what the chain ended with.
    let call = emitter.calls.last_mut().filter(|c| c.result == result).ok_or("nothing is made")?;
    call.result = last.result;
    if let (Source::Call, Some(a), Some(b)) =
        (&emitter.values[result].source, emitter.values[result].ty, emitter.values[last.result].ty)
        && a.sizes == b.sizes
    {
        return Ok(());
    }
    Err("another type".into())
}

/// All four sizes of a value, in the order of the graph.
fn four(value: &Value) -> Vec<i64> {
    let sizes = value.ty.map_or([1; 4], |ty| ty.sizes);
    sizes.iter().rev().copied().collect()
}

/// Numbers per filter along the weights.
fn along_filters(view: &View) -> Made<View> {
    let n = view.elements();
    view.reshaped(&[n, 1, 1, 1]).ok_or_else(|| "numbers per filter with gaps".into())
}
