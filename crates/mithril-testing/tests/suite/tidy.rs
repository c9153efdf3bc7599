//! The structure that ARCHITECTURE.md promises: crate edges, file sizes, module docs, who may name what.

use std::fs;
use std::path::{Path, PathBuf};

/// Which of our crates a crate may depend on.
const EDGES: &[(&str, &[&str])] = &[
    ("mithril-ir", &[]),
    ("mithril-solve", &["mithril-ir"]),
    ("mithril-model", &["mithril-ir", "mithril-solve"]),
    ("mithril-onnx", &["mithril-ir", "mithril-model"]),
    ("mithril-codegen", &["mithril-ir"]),
    ("mithril-compile", &["mithril-ir", "mithril-model", "mithril-codegen"]),
    ("mithril-ggml", &["mithril-ir", "mithril-codegen"]),
    (
        "mithril-runtime",
        &[
            "mithril-ir",
            "mithril-model",
            "mithril-onnx",
            "mithril-codegen",
            "mithril-compile",
            "mithril-ggml",
        ],
    ),
    (
        "mithril",
        &[
            "mithril-ir",
            "mithril-solve",
            "mithril-model",
            "mithril-onnx",
            "mithril-codegen",
            "mithril-compile",
            "mithril-runtime",
        ],
    ),
    ("mithril-py", &["mithril"]),
    ("mithril-cli", &["mithril"]),
    ("mithril-testing", &["mithril"]),
];

const MAX_LINES: usize = 700;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn files(folder: &Path, extension: &str, paths: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let name = entry.file_name();
        if path.is_dir() && !["target", ".venv", "__pycache__", "_generated"].iter().any(|n| name == *n) {
            files(&path, extension, paths);
        } else if path.extension().is_some_and(|e| e == extension) {
            paths.push(path);
        }
    }
    paths.sort();
}

fn sources(extension: &str) -> Vec<(PathBuf, String)> {
    let mut paths = Vec::new();
    for folder in ["crates", "python", "examples", "bench", "tools"] {
        files(&root().join(folder), extension, &mut paths);
    }
    paths.into_iter().map(|p| (p.clone(), fs::read_to_string(&p).expect("a source file"))).collect()
}

#[test]
fn crates_depend_in_one_direction() {
    for (name, allowed) in EDGES {
        let manifest = fs::read_to_string(root().join("crates").join(name).join("Cargo.toml")).expect(name);
        let dependencies = manifest.split("[dependencies]").nth(1).unwrap_or_default();
        let dependencies = dependencies.split("\n[").next().unwrap_or_default();
        for line in dependencies.lines() {
            let other = line.split([' ', '=', '.']).next().unwrap_or_default();
            if other.starts_with("mithril") {
                assert!(allowed.contains(&other), "{name} must not depend on {other}");
            }
        }
    }
}

#[test]
fn files_are_small_and_say_what_they_are_for() {
    let mut problems = Vec::new();
    for (extension, opening) in [("rs", "//!"), ("py", "\"\"\"")] {
        for (path, text) in sources(extension) {
            let lines = text.lines().count();
            if lines > MAX_LINES {
                problems.push(format!("{} has {lines} lines", path.display()));
            }
            let documented =
                text.starts_with(opening) || text.starts_with("#!") || text.starts_with("#![doc");
            if !documented && !text.trim().is_empty() {
                problems.push(format!("{} does not say what it is for", path.display()));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn only_the_python_crate_names_pyo3_and_only_the_runtime_and_ggml_are_unsafe() {
    for (path, text) in sources("rs") {
        let name = path.to_string_lossy().into_owned();
        if name.ends_with("tidy.rs") {
            continue;
        }
        assert!(!text.contains("pyo3") || name.contains("mithril-py"), "{name} names PyO3");
        let is_unsafe =
            text.contains("unsafe {") || text.contains("unsafe fn") || text.contains("unsafe impl");
        let may_be = ["mithril-runtime", "mithril-ggml"].iter().any(|allowed| name.contains(allowed));
        assert!(!is_unsafe || may_be, "{name} has unsafe code");
    }
}

/// Names of the fields that a struct of `file` declares, in order.
fn declared_fields(file: &str, name: &str) -> Vec<String> {
    let text = fs::read_to_string(root().join(file)).expect(file);
    let body = text.split(&format!("pub struct {name} {{\n")).nth(1).expect(name);
    let lines = body.lines().take_while(|line| *line != "}");
    lines
        .filter_map(|line| line.trim().strip_prefix("pub ")?.split_once(':'))
        .map(|f| f.0.to_owned())
        .collect()
}

/// The struct literals of that type in a formatted file: what stands before each of them on its line, and its fields.
fn literals<'t>(text: &'t str, name: &str) -> Vec<(&'t str, Vec<&'t str>)> {
    let opening = format!("{name} {{");
    let mut literals: Vec<(&str, Vec<&str>)> = Vec::new();
    // Indentation of the fields of the literals that are open.
    let mut open: Vec<(usize, usize)> = Vec::new();
    for line in text.lines() {
        let code = line.trim_start();
        let indentation = line.len() - code.len();
        open.retain(|&(_, fields)| indentation + 4 > fields);
        let field =
            code.split_once(':').map(|(field, _)| field).filter(|field| !field.contains([' ', '(', '.']));
        if let (Some(field), Some(&(literal, _))) = (field, open.iter().find(|(_, f)| *f == indentation)) {
            literals[literal].1.push(field);
        }
        if let Some(before) = code.strip_suffix(&opening).filter(|before| !before.starts_with("pub struct")) {
            open.push((literals.len(), indentation + 4));
            literals.push((before, Vec::new()));
        }
    }
    literals
}

#[test]
fn op_definitions_have_one_order_of_fields() {
    let order = [
        ("OpDef", declared_fields("crates/mithril-ir/src/op.rs", "OpDef")),
        ("Lowering", declared_fields("crates/mithril-ir/src/lowering.rs", "Lowering")),
    ];
    let mut problems = Vec::new();
    let mut count = 0;
    for (path, text) in
        sources("rs").iter().filter(|(path, _)| path.components().any(|c| c.as_os_str() == "ops"))
    {
        for (name, order) in &order {
            for (before, fields) in literals(text, name) {
                let place = |field: &&str| order.iter().position(|known| known == field);
                let is_static = *name == "OpDef" && before.starts_with("pub static");
                count += usize::from(is_static);
                if !fields.is_sorted_by_key(place) || is_static && !fields.starts_with(&["name", "doc"]) {
                    problems.push(format!(
                        "{}: `{before}{name}` has the fields {}; write them in the order in which the struct declares them: {}",
                        path.display(),
                        fields.join(", "),
                        order.join(", ")
                    ));
                }
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(count >= mithril::ir::ops::all().count(), "only {count} definitions of ops were read");
}

#[test]
fn the_architecture_names_every_crate_and_stage() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    for (name, _) in EDGES {
        assert!(text.contains(&format!("`{name}`")), "ARCHITECTURE.md does not name {name}");
    }
    for (stage, _) in mithril::compile::pipeline::OPTIMIZE {
        assert!(text.contains(&format!("**{stage}**")), "ARCHITECTURE.md does not name the stage {stage}");
    }
    for (name, _) in mithril::codegen::c::pipeline::passes() {
        assert!(text.contains(&format!("**{name}**")), "ARCHITECTURE.md does not name the pass {name} of C");
    }
}
