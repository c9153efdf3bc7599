//! Releases intermediate results: `del` lines after their last use, so that memory holds what is still needed and
//! not every result up to the return.
//!
//! Results that nothing uses any more wait for each other, so that few lines are needed, but never so long that more
//! memory is taken at once than if each were released at its last use, and never many bytes of them.

use mithril_ir::{Dim, Graph, NodeId};
use rustc_hash::FxHashMap;

use super::prelude::words;

/// Shorter functions stay as they are where memory does not matter: they read better.
const LONG: usize = 40;
/// So many results that nothing uses any more are released by one `del` line.
const DEAD: usize = 4;
/// Functions that never hold more bytes than this take no notice of memory.
const SMALL: f64 = (1 << 20) as f64;
/// What a symbol of a size is taken for.
const TYPICAL: f64 = 16.0;
/// Such a share of the most that is held at once may wait: ops have temporary results of their own.
const WAITING: f64 = 0.25;
const MAX_LINE: usize = 100;

/// A line of a function, and the op it computes.
type Line = (String, Option<NodeId>);

/// Inserts `del` lines among the first `statements` lines, which are indented by `indent`; those after them return the
/// results. `bytes` says how large the results of an op are.
pub fn insert(lines: &mut Vec<Line>, statements: usize, indent: &str, bytes: impl Fn(NodeId) -> f64) {
    let lives = Lives::of(lines, indent, bytes);
    let most = lives.most();
    let (is_long, is_large) = (statements >= LONG, most > SMALL);
    if !is_long && !is_large {
        return;
    }
    let old = std::mem::take(lines);
    let mut dead: Vec<String> = Vec::new();
    let (mut held, mut waiting) = (0.0, 0.0);
    for (i, line) in old.into_iter().enumerate() {
        let full = is_large && (held + waiting + lives.born[i] > most || waiting > WAITING * most);
        let is_between = i < statements && !is_inner(&line.0, indent);
        if !dead.is_empty() && is_between && (full || is_long && dead.len() >= DEAD) {
            lines.extend(deletions(&std::mem::take(&mut dead), indent).map(|text| (text, None)));
            waiting = 0.0;
        }
        lines.push(line);
        held += lives.born[i];
        for (name, size) in &lives.dying[i] {
            dead.push(name.clone());
            held -= size;
            waiting += size;
        }
    }
}

/// When variables come into being and are read for the last time, line by line.
struct Lives {
    /// Bytes that a line computes.
    born: Vec<f64>,
    /// Names with their bytes, in the order of the alphabet.
    dying: Vec<Vec<(String, f64)>>,
}

impl Lives {
    fn of(lines: &[Line], indent: &str, bytes: impl Fn(NodeId) -> f64) -> Self {
        let mut last_use: FxHashMap<String, (usize, f64)> = FxHashMap::default();
        let mut born = vec![0.0; lines.len()];
        // What a loop reads is read until the line after it, and what it computes is none of ours.
        let mut ends: Vec<usize> = (0..lines.len()).collect();
        for i in (0..lines.len().saturating_sub(1)).rev().filter(|&i| is_inner(&lines[i].0, indent)) {
            ends[i] = ends[i + 1];
        }
        for (i, (text, node)) in lines.iter().enumerate() {
            for word in words(&variables(text)) {
                if let Some((last, _)) = last_use.get_mut(word) {
                    *last = ends[i];
                }
            }
            if let Some(node) = node.filter(|_| !is_inner(text, indent)) {
                let mut size = bytes(node);
                for name in targets(text) {
                    last_use.insert(name.to_owned(), (i, size));
                    born[i] += size;
                    // Several results of one op are counted once.
                    size = 0.0;
                }
            }
        }
        let mut dying: Vec<Vec<(String, f64)>> = vec![Vec::new(); lines.len()];
        for (name, i, size) in sorted(last_use) {
            dying[i].push((name, size));
        }
        Self { born, dying }
    }
    /// The largest number of bytes held at once if each result is released at its last use.
    fn most(&self) -> f64 {
        let (mut held, mut most) = (0.0, 0.0_f64);
        for (born, dying) in self.born.iter().zip(&self.dying) {
            held += born;
            most = most.max(held);
            held -= dying.iter().map(|(_, size)| size).sum::<f64>();
        }
        most
    }
}

/// Whether a line is part of a loop among statements that are indented by `indent`.
pub fn is_inner(text: &str, indent: &str) -> bool {
    text.strip_prefix(indent).is_some_and(|rest| rest.starts_with("    "))
}

/// Bytes that the results of an op take.
pub fn bytes(graph: &Graph, node: NodeId) -> f64 {
    let types = graph.node(node).outputs.iter().filter_map(|&v| graph.ty(v));
    types
        .map(|ty| {
            let sizes = ty.shape.iter().map(|d: &Dim| d.known().map_or(TYPICAL, |n| n as f64));
            sizes.product::<f64>() * ty.dtype.size() as f64
        })
        .sum()
}

/// The text without what stands in quotes or behind a dot, where a word is not a variable.
fn variables(text: &str) -> String {
    let (mut out, mut quote, mut is_escaped) = (String::with_capacity(text.len()), None, false);
    let mut is_attribute = false;
    for c in text.chars() {
        match quote {
            None => {
                is_attribute = c == '.' || is_attribute && (c.is_alphanumeric() || c == '_');
                if !is_attribute {
                    out.push(c);
                }
                quote = Some(c).filter(|c| matches!(c, '"' | '\''));
            }
            Some(_) if is_escaped => is_escaped = false,
            Some(_) if c == '\\' => is_escaped = true,
            Some(end) if c == end => quote = None,
            Some(_) => {}
        }
    }
    out
}

/// Names in the order of their last use, then of the alphabet.
fn sorted(last_use: FxHashMap<String, (usize, f64)>) -> Vec<(String, usize, f64)> {
    let mut all: Vec<_> = last_use.into_iter().map(|(name, (last, size))| (name, last, size)).collect();
    all.sort_by(|a, b| (a.1, &a.0).cmp(&(b.1, &b.0)));
    all
}

/// Variables that a statement assigns.
fn targets(text: &str) -> impl Iterator<Item = &str> {
    let left = text.split_once(" = ").map_or("", |(left, _)| left);
    left.split(',')
        .map(|name| name.trim_matches(|c: char| c.is_whitespace() || "()".contains(c)))
        .filter(|name| !name.is_empty() && *name != "_")
}

fn deletions(names: &[String], indent: &str) -> impl Iterator<Item = String> {
    let mut lines: Vec<String> = Vec::new();
    for name in names {
        match lines.last_mut() {
            Some(line) if line.len() + 2 + name.len() <= MAX_LINE => {
                line.push_str(", ");
                line.push_str(name);
            }
            _ => lines.push(format!("{indent}del {name}")),
        }
    }
    lines.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_functions_release_what_is_dead_and_nothing_else() {
        let node = Some(NodeId::new(0));
        let mut lines: Vec<Line> = vec![("def evaluate(params):".into(), None)];
        lines.push(("    x0 = params[\"x\"]".into(), node));
        for i in 1..60 {
            // Neither the string nor the attribute names a variable.
            lines.push((format!("    x{i} = x0.x1[\"x{}\\\"\"] + x{}", i / 2, i - 1), node));
        }
        let statements = lines.len();
        lines.push(("    return x59, x30".into(), None));
        insert(&mut lines, statements, "    ", |_| 0.0);
        let mut alive = std::collections::BTreeSet::new();
        let mut most = 0;
        for (text, _) in &lines[1..] {
            if let Some(names) = text.trim().strip_prefix("del ") {
                for name in names.split(", ") {
                    assert!(alive.remove(name), "{name} is deleted twice or too early");
                }
                continue;
            }
            let (left, right) = text.split_once(" = ").unwrap_or(("", text));
            let right = variables(right);
            for word in words(&right).filter(|w| w.starts_with('x') && w.len() > 1) {
                assert!(alive.contains(word), "{word} is read after its deletion: {text}");
            }
            if !left.is_empty() {
                alive.insert(left.trim());
            }
            most = most.max(alive.len());
        }
        assert!(most < 10, "{most}");
    }
    #[test]
    fn no_more_memory_is_taken_than_if_each_result_went_at_its_last_use() {
        let megabytes = [0.0, 1.0, 8.0, 8.0, 1.0, 4.0, 4.0, 1.0];
        let mut lines: Vec<Line> = vec![("def evaluate(params):".into(), None)];
        for i in 1..megabytes.len() {
            let earlier = if i == 1 { "params".into() } else { format!("x{}", i - 1) };
            lines.push((format!("    x{i} = f({earlier})"), Some(NodeId::new(i))));
        }
        let statements = lines.len();
        lines.push(("    return x7".into(), None));
        insert(&mut lines, statements, "    ", |node| megabytes[node.index()] * SMALL);
        let text: Vec<&str> = lines.iter().map(|(text, _)| text.trim()).collect();
        // 8 + 8 is the most: x1 must not stay beside them, all others may wait for the end.
        assert_eq!(text[3..6], ["del x1", "x3 = f(x2)", "del x2"], "{text:#?}");
    }
}
