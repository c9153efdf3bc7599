//! Releases intermediate results in long functions: `del` lines after their last use, so that memory holds what
//! is still needed and not every result up to the return.

use mithril_ir::NodeId;
use rustc_hash::FxHashMap;

use super::prelude::words;

/// Shorter functions stay as they are: they read better, and their results live hardly longer.
const LONG: usize = 40;
/// So many results that nobody reads any more are released by one `del` line.
const DEAD: usize = 4;
const MAX_LINE: usize = 100;

/// A line of a function, and the op it computes.
type Line = (String, Option<NodeId>);

/// Inserts `del` lines among the first `statements` lines; those after them return the results.
pub fn insert(lines: &mut Vec<Line>, statements: usize) {
    if statements < LONG {
        return;
    }
    let mut last_use: FxHashMap<String, usize> = FxHashMap::default();
    for (i, (text, node)) in lines.iter().enumerate() {
        for word in words(&without_strings(text)) {
            if let Some(last) = last_use.get_mut(word) {
                *last = i;
            }
        }
        if node.is_some() {
            for name in targets(text) {
                last_use.insert(name.to_owned(), i);
            }
        }
    }
    let mut dying: Vec<Vec<String>> = vec![Vec::new(); lines.len()];
    for (name, i) in sorted(last_use) {
        dying[i].push(name);
    }
    let old = std::mem::take(lines);
    let mut dead: Vec<String> = Vec::new();
    for (i, line) in old.into_iter().enumerate() {
        lines.push(line);
        dead.append(&mut dying[i]);
        if dead.len() >= DEAD && i + 1 < statements {
            lines.extend(deletions(&std::mem::take(&mut dead)).map(|text| (text, None)));
        }
    }
}

/// The text without what stands in quotes, where a word is no name.
fn without_strings(text: &str) -> String {
    let (mut out, mut quote, mut is_escaped) = (String::with_capacity(text.len()), None, false);
    for c in text.chars() {
        match quote {
            None => {
                out.push(c);
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
fn sorted(last_use: FxHashMap<String, usize>) -> Vec<(String, usize)> {
    let mut all: Vec<(String, usize)> = last_use.into_iter().collect();
    all.sort_by(|a, b| (a.1, &a.0).cmp(&(b.1, &b.0)));
    all
}

/// Variables that a statement assigns.
fn targets(text: &str) -> impl Iterator<Item = &str> {
    let left = text.split_once(" = ").map_or("", |(left, _)| left);
    left.split(',').map(str::trim).filter(|name| !name.is_empty() && *name != "_")
}

fn deletions(names: &[String]) -> impl Iterator<Item = String> {
    let mut lines: Vec<String> = Vec::new();
    for name in names {
        match lines.last_mut() {
            Some(line) if line.len() + 2 + name.len() <= MAX_LINE => {
                line.push_str(", ");
                line.push_str(name);
            }
            _ => lines.push(format!("    del {name}")),
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
            // The string names no variable.
            lines.push((format!("    x{i} = x0[\"x{}\\\"\"] + x{}", i / 2, i - 1), node));
        }
        let statements = lines.len();
        lines.push(("    return x59, x30".into(), None));
        insert(&mut lines, statements);
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
            let right = without_strings(right);
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
}
