//! Names of weights that a model does not share: what the user says is called what, and what may be said.
//!
//! ```
//! use mithril_model::zoo::plan::{FileArray, ModelArray, plan};
//! let ours = [ModelArray { name: "fc.weight".into(), shape: Some(vec![10, 512]), optional: false }];
//! let theirs = [FileArray { name: "0.weight".into(), shape: vec![10, 512] }];
//! // Another name alone is never taken for the same array, but it is suggested.
//! let report = plan(&ours, &theirs, None, None, &[])?.report;
//! assert_eq!(report.renamed, [("fc".to_owned(), "0".to_owned())]);
//! let plan = plan(&ours, &theirs, None, None, &[("fc", "0")])?;
//! assert_eq!(plan.steps[0].theirs, ["0.weight"]);
//! # Ok::<(), mithril_ir::Error>(())
//! ```

use mithril_ir::error::nearest;
use mithril_ir::{Code, Error, Result};

use super::plan::{FileArray, ModelArray};

/// What a name of ours, or of a part of ours, is in the weights.
pub type Names<'a> = [(&'a str, &'a str)];

/// What comes behind a part in a name: the rest with its dot, or nothing if the part is all of it.
fn rest<'a>(name: &'a str, part: &str) -> Option<&'a str> {
    if part.is_empty() {
        return Some(name);
    }
    name.strip_prefix(part).filter(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// What the array of ours is called in the weights, if the names say so. The longest part counts.
pub fn renamed(names: &Names<'_>, ours: &str) -> Option<String> {
    let fitting = names.iter().filter_map(|(part, theirs)| Some((part.len(), theirs, rest(ours, part)?)));
    let (_, theirs, rest) = fitting.max_by_key(|(length, ..)| *length)?;
    Some(match (theirs.is_empty(), rest.starts_with('.')) {
        (true, _) => rest.trim_start_matches('.').to_owned(),
        (false, true) => format!("{theirs}{rest}"),
        (false, false) if rest.is_empty() => (*theirs).to_owned(),
        (false, false) => format!("{theirs}.{rest}"),
    })
}

/// Looks whether there is what names speak of.
pub fn check(names: &Names<'_>, ours: &[ModelArray], theirs: &[FileArray]) -> Result<()> {
    for (part, their_part) in names {
        known(part, ours.iter().map(|w| &*w.name), "the model")?;
        known(their_part, theirs.iter().map(|f| &*f.name), "the weights")?;
    }
    Ok(())
}

fn known<'a>(part: &str, all: impl Iterator<Item = &'a str> + Clone, what: &str) -> Result<()> {
    if all.clone().any(|name| rest(name, part).is_some()) {
        return Ok(());
    }
    let error = Error::new(Code::BadParameter, format!("`names` mentions {part:?}, which is not in {what}"));
    let mut candidates: Vec<&str> = all.flat_map(|name| [name, parent(name).0]).collect();
    candidates.dedup();
    if let Some(near) = nearest(part, candidates.iter().copied()) {
        return Err(error.help(format!("did you mean {near:?}?")));
    }
    let shown: Vec<_> = candidates.iter().filter(|name| !name.is_empty()).take(6).copied().collect();
    Err(error.help(format!("give names, or the prefix before a dot in some of them: {} …", shown.join(", "))))
}

/// What stands before the last dot, and what behind it.
fn parent(name: &str) -> (&str, &str) {
    name.rsplit_once('.').unwrap_or(("", name))
}

/// The arrays of a part, by the last piece of their names.
type Part<'a> = (&'a str, Vec<(&'a str, &'a [usize])>);

/// Arrays by the part that they are of; parts in the order in which they come first.
fn parts<'a>(arrays: impl Iterator<Item = (&'a str, &'a [usize])>) -> Vec<Part<'a>> {
    let mut by_part: indexmap::IndexMap<&str, Vec<_>> = indexmap::IndexMap::new();
    for (name, shape) in arrays {
        let (part, last) = parent(name);
        by_part.entry(part).or_default().push((last, shape));
    }
    by_part.values_mut().for_each(|arrays| arrays.sort_unstable());
    by_part.into_iter().collect()
}

/// Which part of ours is which in the weights, if both have as many, and one after the other they hold arrays of the
/// same last names and sizes. Files may be sorted by name: if their order and that of the numbers say different
/// things, it is nothing.
pub fn suggested(missing: &[&ModelArray], spare: &[&FileArray]) -> Vec<(String, String)> {
    let sized: Option<Vec<_>> = missing.iter().map(|w| Some((&*w.name, w.shape.as_deref()?))).collect();
    let Some(sized) = sized else { return Vec::new() };
    let ours = parts(sized.into_iter());
    let as_stored = parts(spare.iter().map(|f| (&*f.name, &*f.shape)));
    let mut by_number = as_stored.clone();
    by_number.sort_by_key(|(part, _)| numbered(part));
    let pairs = |theirs: &[Part<'_>]| {
        let fits = ours.len() == theirs.len() && ours.iter().zip(theirs).all(|(a, b)| a.1 == b.1);
        fits.then(|| {
            let names = ours.iter().zip(theirs).map(|(a, b)| (a.0.to_owned(), b.0.to_owned()));
            names.collect::<Vec<_>>()
        })
    };
    match (pairs(&as_stored), pairs(&by_number)) {
        (Some(shape), Some(other)) if shape != other => Vec::new(),
        (shape, other) => shape.or(other).unwrap_or_default(),
    }
}

/// The pieces of a name, where numbers are in the order of numbers: `2` before `10`.
fn numbered(name: &str) -> Vec<(u64, &str)> {
    name.split('.').map(|piece| (piece.parse().unwrap_or(u64::MAX), piece)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model_array(name: &str, shape: &[usize]) -> ModelArray {
        ModelArray { name: name.into(), shape: Some(shape.to_vec()), optional: false }
    }
    fn file_array(name: &str, shape: &[usize]) -> FileArray {
        FileArray { name: name.into(), shape: shape.to_vec() }
    }

    #[test]
    fn the_longest_part_counts_and_ends_at_a_dot() {
        let names = [("block", "0"), ("block.fc.weight", "w"), ("whole", "")];
        assert_eq!(renamed(&names, "block.fc.bias").as_deref(), Some("0.fc.bias"));
        assert_eq!(renamed(&names, "block.fc.weight").as_deref(), Some("w"));
        assert_eq!(renamed(&names, "blocks.fc.weight"), None);
        assert_eq!(renamed(&names, "whole.bias").as_deref(), Some("bias"));
        assert_eq!(renamed(&[("", "net")], "fc.bias").as_deref(), Some("net.fc.bias"));
    }

    #[test]
    fn names_that_are_not_there_are_errors() {
        let (ours, theirs) = ([model_array("linear.weight", &[2])], [file_array("0.weight", &[2])]);
        let text = |names: &Names<'_>| check(names, &ours, &theirs).expect_err("no such name").to_string();
        assert!(text(&[("linaer", "0")]).contains("did you mean \"linear\"?"));
        assert!(text(&[("linear", "layers")]).contains("0.weight"));
        assert!(check(&[("linear", "0"), ("linear.weight", "0.weight")], &ours, &theirs).is_ok());
    }

    #[test]
    fn parts_are_suggested_in_order_or_not_at_all() {
        let ours: Vec<_> =
            ["linear", "linear_1"].iter().map(|n| model_array(&format!("{n}.weight"), &[2])).collect();
        let ours: Vec<_> = ours.iter().collect();
        let suggest = |names: [&str; 2]| {
            let theirs = names.map(|name| file_array(&format!("{name}.weight"), &[2]));
            suggested(&ours, &theirs.iter().collect::<Vec<_>>())
        };
        let pair = |a: &str, b: &str| {
            vec![("linear".to_owned(), a.to_owned()), ("linear_1".to_owned(), b.to_owned())]
        };
        assert_eq!(suggest(["2", "10"]), pair("2", "10"));
        // A file that is sorted by name, whose sizes agree either way: which is first?
        assert_eq!(suggest(["10", "2"]), []);
        let (first, second) = (model_array("a.weight", &[2]), model_array("b.weight", &[3]));
        let (ten, two) = (file_array("10.weight", &[3]), file_array("2.weight", &[2]));
        let expected = [("a".to_owned(), "2".to_owned()), ("b".to_owned(), "10".to_owned())];
        assert_eq!(suggested(&[&first, &second], &[&ten, &two]), expected);
        assert_eq!(suggested(&[&first], &[&ten]), []);
        assert_eq!(suggested(&[&first], &[&two, &ten]), []);
    }
}
