//! Which tensor of a checkpoint goes where: the plan, made from names and shapes alone, and the report about it.
//!
//! ```
//! use mithril_model::zoo::plan::{FileArray, ModelArray, plan};
//! let ours = [ModelArray { name: "fc.weight".into(), shape: Some(vec![10, 512]), optional: false }];
//! let theirs = [FileArray { name: "module.fc.weight".into(), shape: vec![10, 512] }];
//! let plan = plan(&ours, &theirs, None, None, &[])?;
//! assert_eq!(plan.steps[0].theirs, ["module.fc.weight"]);
//! assert!(plan.report.is_complete());
//! # Ok::<(), mithril_ir::Error>(())
//! ```

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use mithril_ir::error::nearest;
use mithril_ir::{Code, Error, Result};

use super::layout::{Layout, Rule};
use super::names::{self, Names};

/// What training programs put before all names.
const WRAPPERS: &[&str] = &["module.", "_orig_mod.", "model."];
/// Names in files of any kind that hold nothing a model needs.
const IGNORED: &[&str] = &["*.num_batches_tracked"];
/// How many missing names are compared with how many others to find what was meant.
const COMPARED: (usize, usize) = (64, 1024);
/// How deep in a model a part is looked for that a file may be of, and how many parts are tried.
const NESTED: (usize, usize) = (3, 64);
/// Longest name in a file that is compared with patterns.
const MAX_NAME: usize = 1024;

/// An array of the model: a parameter or a running statistic.
#[derive(Clone, Debug)]
pub struct ModelArray {
    /// Our name.
    pub name: String,
    /// Its sizes; `None` as long as they are not known.
    pub shape: Option<Vec<usize>>,
    /// Whether it may stay as it is, such as the state of random numbers.
    pub optional: bool,
}

/// An array of a checkpoint.
#[derive(Clone, Debug)]
pub struct FileArray {
    /// Its name in the file.
    pub name: String,
    /// Its sizes in the file.
    pub shape: Vec<usize>,
}

/// Where the values of one of our arrays come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Our name.
    pub ours: String,
    /// Names in the file; several are joined along axis 0, each after it was transposed.
    pub theirs: Vec<String>,
    /// Whether their matrices stand the other way round.
    pub transposed: bool,
    /// Whether the rows of each head may be pairs, as [`Rule::paired`] says: files of llama.cpp tell by their
    /// architecture.
    pub paired: bool,
}

/// Arrays of different shapes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MisShaped {
    /// Where it would go, and from where.
    pub step: Step,
    /// Our shape.
    pub expected: Vec<usize>,
    /// Theirs, after transposing and joining; before it, if that is not possible.
    pub actual: Vec<usize>,
}

/// What does not fit.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The layout, by who publishes it; `None` if the names are ours as they are.
    pub layout: Option<&'static str>,
    /// The part of the model that the file is of: what stands before its names, without the dot; mostly empty.
    pub prefix: String,
    /// Ours that the file lacks, and names in the file that may be meant.
    pub missing: Vec<(String, Option<String>)>,
    /// Names in the file that have no place in the model.
    pub unexpected: Vec<String>,
    /// Arrays of different shapes.
    pub mis_shaped: Vec<MisShaped>,
    /// Names in the file that hold nothing the model needs.
    pub ignored: Vec<String>,
    /// Parts of ours that are missing, and what they may be called in the file: their order and sizes agree.
    pub renamed: Vec<(String, String)>,
}

impl Report {
    /// Whether every array of the model gets its values, and nothing in the file is left over.
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.unexpected.is_empty() && self.mis_shaped.is_empty()
    }
}

/// Which array of the checkpoint is loaded into which array of the model.
#[derive(Clone, Debug, Default)]
pub struct LoadPlan {
    /// What is loaded.
    pub steps: Vec<Step>,
    /// What is not.
    pub report: Report,
}

/// Plans with the layout of that source, or with the one of all in the zoo that fits best. With a prefix, only what the
/// model has below it is loaded; without one, the part of the model that the file is of is looked for. `names` say what
/// arrays of ours, or parts of the model, are called in the file.
pub fn plan(
    ours: &[ModelArray],
    theirs: &[FileArray],
    source: Option<&str>,
    prefix: Option<&str>,
    names: &Names<'_>,
) -> Result<LoadPlan> {
    if prefix.is_some() && !names.is_empty() {
        return Err(Error::new(Code::BadArgument, "`names` and `prefix` are both given").help(
            "leave `prefix` out: `names` are those of the whole model, with \"\" for all of the weights",
        ));
    }
    names::check(names, ours, theirs)?;
    let plain = Layout::of("");
    let mut candidates = layouts(source)?;
    if source.is_none() {
        candidates.insert(0, &plain);
    }
    let files = Files::new(theirs);
    let best_of = |ours: &[ModelArray]| {
        let plans = candidates.iter().map(|layout| files.plan(ours, layout, names));
        // Of equal ones the first: names as they are.
        plans.reduce(|best, next| if score(&next) > score(&best) { next } else { best }).unwrap_or_default()
    };
    let mut best = match prefix.map(|prefix| prefix.trim_end_matches('.')).filter(|prefix| !prefix.is_empty())
    {
        Some(prefix) => best_of(&below(ours, prefix)?).behind(prefix),
        None => best_of(ours),
    };
    if prefix.is_none()
        && names.is_empty()
        && !best.report.missing.is_empty()
        && !best.report.unexpected.is_empty()
    {
        for prefix in parts(ours) {
            let inner = below(ours, &prefix)?;
            if inner.len() <= best.steps.len() {
                continue;
            }
            let mut next = best_of(&inner).behind(&prefix);
            if score(&next) > score(&best) {
                let outer = ours.iter().filter(|w| !is_below(&w.name, &prefix) && !w.optional);
                next.report.missing.extend(outer.map(|w| (w.name.clone(), None)));
                best = next;
            }
        }
    }
    best.report.layout = best.report.layout.filter(|source| !source.is_empty());
    suggest(&mut best.report, ours, theirs);
    let missing: HashSet<&str> = best.report.missing.iter().map(|(name, _)| &**name).collect();
    let missing: Vec<_> = ours.iter().filter(|w| missing.contains(&*w.name)).collect();
    let spare: HashSet<&str> = best.report.unexpected.iter().map(String::as_str).collect();
    let spare: Vec<_> = theirs.iter().filter(|f| spare.contains(&*f.name)).collect();
    best.report.renamed = names::suggested(&missing, &spare);
    Ok(best)
}

fn is_below(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('.'))
}

/// What a part of the model wants, by the names that it has there.
fn below(ours: &[ModelArray], prefix: &str) -> Result<Vec<ModelArray>> {
    let inside = ours.iter().filter(|w| is_below(&w.name, prefix));
    let arrays: Vec<ModelArray> =
        inside.map(|w| ModelArray { name: w.name[prefix.len() + 1..].to_owned(), ..w.clone() }).collect();
    if arrays.is_empty() {
        let error = Error::new(Code::BadArgument, format!("there is no part of the model called {prefix:?}"));
        let known = parts(ours);
        return Err(match nearest(prefix, known.iter().map(String::as_str)) {
            Some(near) => error.help(format!("did you mean {near:?}?")),
            None => error.help(format!("parts are {}", known.join(", "))),
        });
    }
    Ok(arrays)
}

/// Names of the parts of a model, outer ones first.
fn parts(ours: &[ModelArray]) -> Vec<String> {
    let mut prefixes: Vec<String> = Vec::new();
    for depth in 1..=NESTED.0 {
        for array in ours {
            let mut ends = array.name.match_indices('.').map(|(at, _)| at);
            let Some(part) = ends.nth(depth - 1).map(|end| &array.name[..end]) else { continue };
            if prefixes.len() < NESTED.1 && !prefixes.iter().any(|known| known == part) {
                prefixes.push(part.to_owned());
            }
        }
    }
    prefixes
}

impl LoadPlan {
    /// The plan of a part as one of the whole.
    fn behind(mut self, prefix: &str) -> Self {
        let long = |name: &mut String| name.insert_str(0, &format!("{prefix}."));
        self.steps.iter_mut().for_each(|step| long(&mut step.ours));
        self.report.mis_shaped.iter_mut().for_each(|m| long(&mut m.step.ours));
        self.report.missing.iter_mut().for_each(|(name, _)| long(name));
        prefix.clone_into(&mut self.report.prefix);
        self
    }
}

/// The tensors of a checkpoint in a published layout: per name in the file which of ours it is, or which part of it.
///
/// The parts that the file splits an array into are of equal size.
pub fn publish(ours: &[&str], source: &str) -> Result<Vec<Published>> {
    let candidates = layouts(Some(source))?;
    let fits = |layout: &&Layout| {
        ours.iter().filter(|name| layout.rules.iter().any(|r| matches(r.ours, name).is_some())).count()
    };
    let Some(layout) = candidates.into_iter().rev().max_by_key(fits) else { return Ok(vec![]) };
    let mut published = Vec::new();
    for name in ours {
        let step = step(name, layout, &[]);
        let parts = step.theirs.len();
        published.extend(step.theirs.into_iter().enumerate().map(|(part, theirs)| Published {
            theirs,
            ours: (*name).to_owned(),
            transposed: step.transposed,
            paired: step.paired,
            part,
            parts,
        }));
    }
    Ok(published)
}

/// A tensor of a checkpoint to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// Name in the file.
    pub theirs: String,
    /// Our name.
    pub ours: String,
    /// Which part along axis 0.
    pub part: usize,
    /// Of how many.
    pub parts: usize,
    /// Whether it is the other way round, after it is taken out.
    pub transposed: bool,
    /// Whether the rows of each head may have to be paired, as in [`Step::paired`].
    pub paired: bool,
}

/// Every layout of the zoo, or those of a source.
fn layouts(source: Option<&str>) -> Result<Vec<&'static Layout>> {
    let mut layouts: Vec<&'static Layout> = Vec::new();
    for layout in super::all().iter().flat_map(|entry| entry.definition.layouts) {
        // Models of a family have one table.
        if !layouts.iter().any(|known| std::ptr::eq(*known, layout)) {
            layouts.push(layout);
        }
    }
    let Some(source) = source else { return Ok(layouts) };
    let mut known: Vec<_> = layouts.iter().map(|layout| layout.source).collect();
    known.sort_unstable();
    known.dedup();
    layouts.retain(|layout| layout.source == source);
    if layouts.is_empty() {
        let message = format!("there is no layout called {source:?}");
        return Err(Error::new(Code::BadArgument, message).help(format!("available: {}", known.join(", "))));
    }
    Ok(layouts)
}

/// More loaded, more found by name, fewer reasons why shapes differ, fewer left over.
fn score(plan: &LoadPlan) -> (usize, usize, Reverse<(usize, usize)>) {
    let report = &plan.report;
    let pairs = report.mis_shaped.iter().flat_map(|m| {
        if m.expected.len() == m.actual.len() {
            m.expected.iter().copied().zip(m.actual.iter().copied()).collect()
        } else {
            vec![(m.expected.len(), usize::MAX - m.actual.len())]
        }
    });
    // Of a model of other sizes, each size of ours is one of theirs; matrices the wrong way round say more.
    let reasons: HashSet<(usize, usize)> = pairs.filter(|(ours, theirs)| ours != theirs).collect();
    let matched = plan.steps.len() + report.mis_shaped.len();
    (plan.steps.len(), matched, Reverse((reasons.len(), report.unexpected.len())))
}

/// Where the values of one of ours are in a file of that layout, if no name is given.
fn step(ours: &str, layout: &Layout, names: &Names<'_>) -> Step {
    if let Some(theirs) = names::renamed(names, ours) {
        return Step { ours: ours.to_owned(), theirs: vec![theirs], transposed: false, paired: false };
    }
    let rule = layout.rules.iter().find_map(|rule| Some((rule, matches(rule.ours, ours)?)));
    let ours = ours.to_owned();
    match rule {
        Some((Rule { theirs, transposed, paired, .. }, captures)) => {
            let theirs = theirs.iter().map(|pattern| fill(pattern, &captures)).collect();
            Step { ours, theirs, transposed: *transposed, paired: *paired }
        }
        None => Step { theirs: vec![ours.clone()], ours, transposed: false, paired: false },
    }
}

/// The names of a file.
struct Files<'a> {
    all: &'a [FileArray],
    by_name: HashMap<&'a str, usize>,
    wrapper: String,
}

impl<'a> Files<'a> {
    fn new(all: &'a [FileArray]) -> Self {
        let mut wrapper = String::new();
        while let Some(next) = WRAPPERS.iter().find(|next| {
            !all.is_empty()
                && all
                    .iter()
                    .all(|f| f.name.strip_prefix(&*wrapper).is_some_and(|rest| rest.starts_with(**next)))
        }) {
            wrapper.push_str(next);
        }
        Self { all, by_name: all.iter().enumerate().map(|(i, f)| (&*f.name, i)).collect(), wrapper }
    }

    /// The file's name for one of a layout: as it is, behind a prefix, or without one.
    fn find(&self, name: &str, layout: &Layout) -> Option<usize> {
        let look = |name: &str| {
            self.by_name.get(name).or_else(|| self.by_name.get(&*format!("{}{name}", self.wrapper))).copied()
        };
        look(name).or_else(|| {
            let prefixes = || layout.prefixes.iter();
            prefixes()
                .find_map(|prefix| look(&format!("{prefix}{name}")))
                .or_else(|| prefixes().find_map(|prefix| look(name.strip_prefix(prefix)?)))
        })
    }

    fn plan(&self, ours: &[ModelArray], layout: &Layout, names: &Names<'_>) -> LoadPlan {
        let mut plan = LoadPlan::default();
        plan.report.layout = Some(layout.source);
        let mut used = HashSet::new();
        for array in ours {
            let mut step = step(&array.name, layout, names);
            let positions: Vec<_> = step.theirs.iter().filter_map(|name| self.find(name, layout)).collect();
            if positions.len() < step.theirs.len() {
                if !array.optional {
                    plan.report.missing.push((array.name.clone(), None));
                }
                continue;
            }
            step.theirs = positions.iter().map(|&i| self.all[i].name.clone()).collect();
            let shapes: Vec<_> = positions.iter().map(|&i| &*self.all[i].shape).collect();
            used.extend(positions);
            match (joined(&shapes, step.transposed), &array.shape) {
                (Some(actual), Some(shape)) if actual != *shape => {
                    plan.report.mis_shaped.push(MisShaped { step, expected: shape.clone(), actual });
                }
                (None, shape) => {
                    let (expected, actual) = (shape.clone().unwrap_or_default(), shapes[0].to_vec());
                    plan.report.mis_shaped.push(MisShaped { step, expected, actual });
                }
                _ => plan.steps.push(step),
            }
        }
        for (i, left_over) in self.all.iter().enumerate().filter(|(i, _)| !used.contains(i)) {
            let list = if self.is_ignored(i, layout) {
                &mut plan.report.ignored
            } else {
                &mut plan.report.unexpected
            };
            list.push(left_over.name.clone());
        }
        plan
    }

    fn is_ignored(&self, i: usize, layout: &Layout) -> bool {
        let name = &*self.all[i].name;
        if name.len() > MAX_NAME {
            return false;
        }
        let bare = name.strip_prefix(&*self.wrapper).unwrap_or(name);
        let short = layout.prefixes.iter().filter_map(|prefix| bare.strip_prefix(prefix));
        [name, bare]
            .into_iter()
            .chain(short)
            .any(|name| layout.ignored.iter().chain(IGNORED).any(|pattern| matches(pattern, name).is_some()))
    }
}

/// The shape of arrays that are transposed and joined along axis 0; `None` if they cannot be.
fn joined(shapes: &[&[usize]], transposed: bool) -> Option<Vec<usize>> {
    let mut turned = shapes.iter().map(|shape| {
        let mut shape = shape.to_vec();
        if transposed {
            shape.reverse();
        }
        shape
    });
    let mut whole = turned.next()?;
    for part in turned {
        if whole.is_empty() || part.get(1..) != whole.get(1..) {
            return None;
        }
        whole[0] = whole[0].checked_add(part[0])?;
    }
    Some(whole)
}

/// What each `*` of a pattern stands for, if the name fits.
fn matches<'a>(pattern: &str, name: &'a str) -> Option<Vec<&'a str>> {
    let Some((head, rest)) = pattern.split_once('*') else {
        return (pattern == name).then(Vec::new);
    };
    let tail = name.strip_prefix(head)?;
    // The shortest first: `h.*.attn` means one part of the name.
    let ends = tail.char_indices().map(|(i, c)| i + c.len_utf8());
    ends.into_iter().find_map(|end| {
        let mut captures = matches(rest, &tail[end..])?;
        captures.insert(0, &tail[..end]);
        Some(captures)
    })
}

fn fill(pattern: &str, captures: &[&str]) -> String {
    let mut parts = pattern.split('*');
    let mut name = parts.next().unwrap_or_default().to_owned();
    for (i, part) in parts.enumerate() {
        name.push_str(captures.get(i).copied().unwrap_or("*"));
        name.push_str(part);
    }
    name
}

/// Names in the file that may be meant by missing ones: alike, and of the same shape.
fn suggest(report: &mut Report, ours: &[ModelArray], theirs: &[FileArray]) {
    let shapes: HashMap<&str, &[usize]> =
        ours.iter().filter_map(|w| Some((&*w.name, w.shape.as_deref()?))).collect();
    let theirs: HashMap<&str, &[usize]> = theirs.iter().map(|f| (&*f.name, &*f.shape)).collect();
    // A layout may ignore what is meant for another part of a model.
    let spare: Vec<&String> = report.unexpected.iter().chain(&report.ignored).collect();
    for (name, near) in report.missing.iter_mut().take(COMPARED.0) {
        let expected = shapes.get(&**name);
        let same = |other: &&&String| expected.is_none_or(|shape| theirs.get(&****other) == Some(shape));
        let candidates = spare.iter().filter(same).take(COMPARED.1).map(|name| name.as_str());
        *near = nearest(name, candidates).map(str::to_owned);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zoo::layout::{renamed, transposed};

    static LAYOUT: Layout = Layout {
        source: "test",
        prefixes: &["transformer."],
        ignored: &["*.attn.bias"],
        rules: &[
            renamed("h.*.in.weight", &["h.*.q.weight", "h.*.k.weight"]),
            transposed("h.*.*.out", &["h.*.*.projection"]),
        ],
    };

    fn file_array(name: &str, shape: &[usize]) -> FileArray {
        FileArray { name: name.into(), shape: shape.to_vec() }
    }
    fn model_array(name: &str, shape: &[usize]) -> ModelArray {
        ModelArray { name: name.into(), shape: Some(shape.to_vec()), optional: false }
    }

    #[test]
    fn rules_rename_join_and_transpose_behind_prefixes() {
        let ours = [
            model_array("h.3.in.weight", &[5, 2]),
            model_array("h.0.mlp.out", &[4, 3]),
            model_array("ln.weight", &[2]),
        ];
        let theirs = [
            file_array("transformer.h.3.q.weight", &[3, 2]),
            file_array("transformer.h.3.k.weight", &[2, 2]),
            file_array("transformer.h.0.mlp.projection", &[3, 4]),
            file_array("ln.weight", &[2]),
            file_array("transformer.h.0.attn.bias", &[1]),
        ];
        let plan = Files::new(&theirs).plan(&ours, &LAYOUT, &[]);
        assert!(plan.report.is_complete(), "{:?}", plan.report);
        assert_eq!(plan.steps[0].theirs, ["transformer.h.3.q.weight", "transformer.h.3.k.weight"]);
        assert!(plan.steps[1].transposed && !plan.steps[2].transposed);
        assert_eq!(plan.report.ignored, ["transformer.h.0.attn.bias"]);
    }

    #[test]
    fn what_does_not_fit_is_told() {
        let ours =
            [model_array("trunk.weight", &[4, 3]), model_array("head.weight", &[3]), model_array("x", &[1])];
        let theirs =
            [file_array("trunk.wieght", &[4, 3]), file_array("head.weight", &[2]), file_array("x", &[1])];
        let report = plan(&ours, &theirs, None, None, &[]).expect("a plan").report;
        assert_eq!(report.missing, [("trunk.weight".into(), Some("trunk.wieght".into()))]);
        assert_eq!(report.unexpected, ["trunk.wieght"]);
        assert_eq!((&*report.mis_shaped[0].expected, &*report.mis_shaped[0].actual), (&[3][..], &[2][..]));
        assert_eq!(report.layout, None);
        // Here a layout ignores it: the encoder belongs to another model.
        let theirs = [file_array("encoder.wieght", &[4, 3]), file_array("x", &[1])];
        let report =
            plan(&[model_array("encoder.weight", &[4, 3]), model_array("x", &[1])], &theirs, None, None, &[])
                .expect("a plan")
                .report;
        assert_eq!(report.missing, [("encoder.weight".into(), Some("encoder.wieght".into()))]);
        assert!(
            plan(&ours, &theirs, Some("nobody"), None, &[]).unwrap_err().to_string().contains("torchvision")
        );
    }

    /// A model of other sizes, whose names stand in a layout: it is that layout, and matrices are turned.
    #[test]
    fn other_sizes_are_told_from_other_names() {
        let ours = ["transformer.h.0.attn.c_attn.weight", "transformer.h.0.mlp.c_fc.weight"];
        let ours = [model_array(ours[0], &[96, 32]), model_array(ours[1], &[128, 32])];
        let theirs =
            [file_array("h.0.attn.c_attn.weight", &[48, 144]), file_array("h.0.mlp.c_fc.weight", &[48, 192])];
        let plan = plan(&ours, &theirs, None, None, &[]).expect("a plan");
        assert_eq!((plan.steps.len(), plan.report.layout), (0, Some("transformers")));
        assert_eq!(plan.report.mis_shaped[0].actual, [144, 48]);
        assert!(plan.report.missing.is_empty() && plan.report.unexpected.is_empty());
    }

    #[test]
    fn a_file_of_a_part_is_found_or_said() {
        let ours = ["net.back.a", "net.back.b", "net.head.w"].map(|name| model_array(name, &[2]));
        let theirs = [file_array("a", &[2]), file_array("b", &[2])];
        let loaded = plan(&ours, &theirs, None, None, &[]).expect("a plan");
        assert_eq!((&*loaded.report.prefix, &*loaded.steps[1].ours), ("net.back", "net.back.b"));
        assert_eq!(loaded.report.missing, [("net.head.w".to_owned(), None)]);
        let loaded = plan(&ours, &theirs, None, Some("net.back"), &[]).expect("a plan");
        assert!(loaded.report.is_complete() && loaded.steps.len() == 2);
        let error = plan(&ours, &theirs, None, Some("net.bck"), &[]).unwrap_err();
        assert!(error.to_string().contains("net.back"), "{error}");
    }

    #[test]
    fn wrappers_go_only_if_every_name_has_them() {
        let ours = [model_array("a", &[]), model_array("b", &[])];
        let both = [file_array("module.model.a", &[]), file_array("module.model.b", &[])];
        assert!(plan(&ours, &both, None, None, &[]).expect("a plan").report.is_complete());
        let one = [file_array("module.a", &[]), file_array("b", &[])];
        assert_eq!(plan(&ours, &one, None, None, &[]).expect("a plan").report.missing.len(), 1);
    }

    #[test]
    fn patterns_capture_one_or_more_characters() {
        assert_eq!(matches("h.*.w", "h.12.w"), Some(vec!["12"]));
        assert_eq!(matches("h.*.w", "h..w"), None);
        assert_eq!(matches("*.*", "a.b.c"), Some(vec!["a", "b.c"]));
        assert_eq!(matches("*é", "éé"), Some(vec!["é"]));
        assert_eq!(fill("x.*.y.*", &["1", "2"]), "x.1.y.2");
    }
}
