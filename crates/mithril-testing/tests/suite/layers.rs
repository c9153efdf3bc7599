//! The structure of the C target: its folders depend in one direction, and its files do not import in a circle.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The folders and single files of `mithril-codegen` `c/`: each may import those in front of it.
const ORDER: &[&str] = &[
    "target", "options", "request", "prelude", "ir", "syntax", "lower", "kernels", "analysis", "select",
    "passes", "verify", "pipeline", "emit", "source", "batch",
];

/// The same for `c/kernels/`.
const KERNELS: &[&str] =
    &["spec", "common", "gemm", "quantized", "winograd", "conv", "blocked_conv", "weight_gradient"];

/// Modules by their path below `c`, which is empty for `c` itself, with what they import.
type Imports = BTreeMap<Vec<String>, BTreeSet<Vec<String>>>;

fn files(folder: &Path, paths: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            files(&path, paths);
        } else if path.extension().is_some_and(|e| e == "rs") && !path.ends_with("tests.rs") {
            paths.push(path);
        }
    }
}

/// The paths that a tree of `use` names, without `use` and the semicolon.
fn paths(tree: &str, prefix: &[String], trees: &mut Vec<Vec<String>>) {
    let (head, inner) = match tree.split_once('{') {
        Some((head, rest)) => (head, rest.trim_end().strip_suffix('}')),
        None => (tree, None),
    };
    let names = head.split(" as ").next().unwrap_or_default().split("::").map(str::trim);
    let path: Vec<String> =
        prefix.iter().cloned().chain(names.filter(|n| !n.is_empty()).map(str::to_owned)).collect();
    let Some(inner) = inner else { return trees.push(path) };
    let (mut depth, mut start) = (0, 0);
    for (i, c) in inner.char_indices().chain([(inner.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                if !inner[start..i].trim().is_empty() {
                    paths(inner[start..i].trim(), &path, trees);
                }
                start = i + 1;
            }
            _ => {}
        }
    }
}

/// What a file imports, outside of its tests.
fn uses(text: &str) -> Vec<Vec<String>> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let mut lines = code.lines();
    let mut list = Vec::new();
    while let Some(line) = lines.next() {
        let line = line.strip_prefix("pub ").or_else(|| line.strip_prefix("pub(crate) ")).unwrap_or(line);
        let Some(first) = line.strip_prefix("use ") else { continue };
        let mut tree = first.to_owned();
        while !tree.ends_with(';') {
            let Some(next) = lines.next() else { break };
            tree.push_str(next.trim());
        }
        paths(tree.trim_end_matches(';'), &[], &mut list);
    }
    list
}

fn module(root: &Path, file: &Path) -> Vec<String> {
    let path = file.strip_prefix(root).expect("a file below").with_extension("");
    let mut names: Vec<String> = path.iter().map(|n| n.to_string_lossy().into_owned()).collect();
    if names.last().is_some_and(|n| n == "mod") {
        names.pop();
    }
    names
}

/// The imports of the C target.
fn imports() -> Imports {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../mithril-codegen/src/c");
    let mut all = Vec::new();
    files(&root, &mut all);
    let modules: BTreeSet<Vec<String>> = all.iter().map(|file| module(&root, file)).collect();
    let mut imports = Imports::new();
    for file in &all {
        let own = module(&root, file);
        let text = fs::read_to_string(file).expect("a source file");
        let targets = imports.entry(own.clone()).or_default();
        for path in uses(&text) {
            let names: Vec<&str> = path.iter().map(String::as_str).collect();
            let mut target: Vec<String> = match names[..] {
                ["crate", "c", ref rest @ ..] => rest.iter().map(|n| (*n).to_owned()).collect(),
                ["super", ref rest @ ..] => {
                    let parent = own.split_last().map_or(&[][..], |(_, parent)| parent).iter().cloned();
                    parent.chain(rest.iter().map(|n| (*n).to_owned())).collect()
                }
                ["self", ref rest @ ..] => {
                    own.iter().cloned().chain(rest.iter().map(|n| (*n).to_owned())).collect()
                }
                [first, ..] if modules.contains(&[&own[..], &[first.to_owned()]].concat()) => {
                    own.iter().chain(&path).cloned().collect()
                }
                _ => continue,
            };
            while !modules.contains(&target) {
                target.pop();
            }
            if target != own {
                targets.insert(target);
            }
        }
    }
    imports
}

/// A module that reaches itself, with those on the way.
fn circle(imports: &Imports) -> Option<Vec<String>> {
    fn visit<'a>(
        imports: &'a Imports,
        at: &'a Vec<String>,
        path: &mut Vec<&'a Vec<String>>,
        done: &mut BTreeSet<&'a Vec<String>>,
    ) -> Option<Vec<String>> {
        if let Some(start) = path.iter().position(|other| *other == at) {
            return Some(path[start..].iter().map(|module| module.join("/")).collect());
        }
        if !done.insert(at) {
            return None;
        }
        path.push(at);
        let circle = imports.get(at).into_iter().flatten().find_map(|to| visit(imports, to, path, done));
        path.pop();
        circle
    }
    let mut done = BTreeSet::new();
    imports.keys().find_map(|module| visit(imports, module, &mut Vec::new(), &mut done))
}

#[test]
fn files_of_the_c_target_do_not_import_in_a_circle() {
    let imports = imports();
    let count: usize = imports.values().map(BTreeSet::len).sum();
    assert!(imports.len() > 70 && count > 300, "{} files with {count} imports", imports.len());
    assert_eq!(circle(&imports), None);
}

#[test]
fn circles_are_found() {
    let module = |name: &str| vec![name.to_owned()];
    let edges = [("a", "b"), ("b", "c"), ("c", "b")];
    let imports = edges.map(|(from, to)| (module(from), BTreeSet::from([module(to)])));
    assert_eq!(circle(&imports.into_iter().collect()), Some(vec!["b".to_owned(), "c".to_owned()]));
    let actual = uses("use a::{\n    self, b::{c, d as e},\n};\npub use f::g;\nfn h() {}\n");
    let actual: Vec<String> = actual.into_iter().map(|path| path.join("::")).collect();
    assert_eq!(actual, ["a::self", "a::b::c", "a::b::d", "f::g"]);
}

#[test]
fn folders_of_the_c_target_depend_in_one_direction() {
    let mut problems = Vec::new();
    let mut check = |order: &[&str], from: &[String], to: &[String], names: [&str; 2]| {
        let [a, b] = names.map(|name| order.iter().position(|known| *known == name));
        match (a, b) {
            (Some(a), Some(b)) if a >= b => {}
            (Some(_), Some(_)) => problems.push(format!("{} imports {}", from.join("/"), to.join("/"))),
            _ => problems.push(format!("{} or {} has no place in the order", names[0], names[1])),
        }
    };
    for (from, targets) in &imports() {
        for to in targets {
            // `mod.rs` of `c` and of `kernels` say what is seen from outside.
            let (Some(a), Some(b)) = (from.first(), to.first()) else { continue };
            check(ORDER, from, to, [a, b]);
            if let (true, Some(a), Some(b)) = (a == "kernels" && b == "kernels", from.get(1), to.get(1)) {
                check(KERNELS, from, to, [a, b]);
            }
        }
        for to in targets.iter().filter(|to| to.is_empty() && !from.is_empty()) {
            check(ORDER, from, to, [&from[0], "mod.rs"]);
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
