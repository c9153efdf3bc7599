//! Which dict of a pickle is the state dict: the one that holds tensors by name.

use std::collections::HashSet;

use mithril_ir::{Code, Error, Result};

use super::pickle::{Described, Object, Objects, Value};

/// Keys under which training programs keep a state dict, the likeliest first.
const USUAL: &[&str] =
    &["state_dict", "model_state_dict", "model_state", "model", "module", "net", "network", "params"];
/// Dicts within dicts that are looked into.
const MAX_DEPTH: usize = 8;
/// Keys that an error message shows.
const SHOWN: usize = 10;

/// The tensors of the state dict: the one at `key` (dots between the keys of nested dicts), or the one that is meant.
pub(super) fn find<'a>(
    objects: &'a Objects,
    root: Value,
    key: Option<&str>,
) -> Result<Vec<(&'a str, &'a Described)>> {
    let mut dict = dict(objects, root).ok_or_else(|| match objects.get(root) {
        Some(Object::Tensor(_)) => bad("it holds a single tensor, not a dict"),
        _ => bad("it does not hold a dict of tensors"),
    })?;
    if let Some(key) = key {
        dict = descend(objects, dict, key)?;
    }
    for _ in 0..MAX_DEPTH {
        let usual = USUAL.iter().find_map(|name| inner(objects, dict, name).filter(|d| holds(objects, d)));
        match usual {
            Some(nested) => dict = nested,
            None if has_tensors(objects, dict) => return tensors(objects, dict),
            None => dict = only(objects, dict)?,
        }
    }
    Err(bad("its dicts are nested too deeply"))
}

type Pairs = Vec<(Value, Value)>;

fn dict(objects: &Objects, value: Value) -> Option<&Pairs> {
    match objects.get(value) {
        Some(Object::Dict(pairs)) => Some(pairs),
        _ => None,
    }
}

fn inner<'a>(objects: &'a Objects, pairs: &Pairs, key: &str) -> Option<&'a Pairs> {
    let (_, value) = pairs.iter().find(|(k, _)| objects.text(*k) == Some(key))?;
    dict(objects, *value)
}

fn descend<'a>(objects: &'a Objects, mut dict: &'a Pairs, key: &str) -> Result<&'a Pairs> {
    for part in key.split('.') {
        dict = inner(objects, dict, part).ok_or_else(|| {
            bad(format!("there is no dict {part:?}")).help(format!("available: {}", keys(objects, dict)))
        })?;
    }
    Ok(dict)
}

fn tensor(objects: &Objects, value: Value) -> Option<&Described> {
    match objects.get(value) {
        Some(Object::Tensor(tensor)) => Some(tensor),
        _ => None,
    }
}

fn has_tensors(objects: &Objects, pairs: &Pairs) -> bool {
    pairs.iter().any(|(k, v)| objects.text(*k).is_some() && tensor(objects, *v).is_some())
}

/// Whether tensors are in a dict, or in one of the usual dicts in it.
fn holds(objects: &Objects, pairs: &Pairs) -> bool {
    has_tensors(objects, pairs)
        || USUAL.iter().any(|name| inner(objects, pairs, name).is_some_and(|d| has_tensors(objects, d)))
}

/// The only dict in a dict that holds tensors.
fn only<'a>(objects: &'a Objects, pairs: &Pairs) -> Result<&'a Pairs> {
    let entries: Vec<_> =
        pairs.iter().filter_map(|(_, v)| dict(objects, *v)).filter(|d| holds(objects, d)).collect();
    match entries[..] {
        [one] => Ok(one),
        [] => Err(bad("it does not hold a dict of tensors by name")
            .help(format!("available: {}", keys(objects, pairs)))),
        _ => Err(bad("several of its dicts hold tensors")
            .help(format!("choose one with key=…; available: {}", keys(objects, pairs)))),
    }
}

fn keys(objects: &Objects, pairs: &Pairs) -> String {
    let mut names: Vec<_> = pairs.iter().filter_map(|(k, _)| objects.text(*k)).collect();
    if names.is_empty() {
        return "no names".to_owned();
    }
    let more = names.len().saturating_sub(SHOWN);
    names.truncate(SHOWN);
    let shown: Vec<_> =
        names.iter().map(|n| format!("{:?}", n.chars().take(60).collect::<String>())).collect();
    shown.join(", ") + &if more > 0 { format!(" and {more} more") } else { String::new() }
}

fn tensors<'a>(objects: &'a Objects, pairs: &Pairs) -> Result<Vec<(&'a str, &'a Described)>> {
    let mut seen = HashSet::new();
    let mut entries = Vec::new();
    for (key, value) in pairs {
        let (Some(name), Some(tensor)) = (objects.text(*key), tensor(objects, *value)) else { continue };
        if !seen.insert(name) {
            return Err(bad(format!("{name:?} occurs twice")));
        }
        entries.push((name, tensor));
    }
    Ok(entries)
}

fn bad(message: impl Into<String>) -> Error {
    Error::new(Code::BadFile, message).help("save the state dict alone: torch.save(model.state_dict(), path)")
}
