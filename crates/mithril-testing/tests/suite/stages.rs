//! The files in `tests/stages`: a graph, what is done to it, and what comes out.
//!
//! A file is
//!
//! ```text
//! # What it shows.
//! run: STAGE | STAGE ...
//! graph { ... }
//! ---
//! the text that comes out
//! ```
//!
//! with the stages `fold_constants`, `simplify`, `cse`, `dce`, `raise`, `precision DTYPE`, `differentiate OUTPUTS by INPUTS`, `recompute` (the same
//! with checkpoints), `legalize primitives`,
//! `legalize TARGET` and `emit TARGET` or
//! `checkpointed TARGET` (the last one), where targets are `numpy` and `torch`. With `UPDATE=1` in the environment the texts are rewritten:
//! read the difference before you keep it.

use std::fs;
use std::path::{Path, PathBuf};

use mithril::codegen::python::{
    EVALUATE, Function, NUMPY, PythonTarget, Results, TORCH, can_lower, emit, emit_checkpointed,
};
use mithril::compile::passes::differentiate::{Request, differentiate};
use mithril::compile::passes::legalize::legalize;
use mithril::compile::passes::precision::precision;
use mithril::compile::passes::raise::raise;
use mithril::compile::pipeline::OPTIMIZE;
use mithril::compile::segments::segments;
use mithril::ir::graph::Graph;
use mithril::ir::{DType, Result, text, verify};

const FLOAT: DType = DType::F32;

fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stages");
    let entries = fs::read_dir(folder).expect("the folder of stages").flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.sort();
    files
}

/// The text that the stages make of a graph.
fn run(stages: &str, graph: &str) -> Result<String> {
    let mut graph = text::parse(graph)?;
    verify::verify(&graph, FLOAT)?;
    for stage in stages.split('|') {
        let words: Vec<&str> = stage.split_whitespace().collect();
        if let ["emit", name] = words[..] {
            let function = Function {
                name: "evaluate",
                graph: &graph,
                arguments: EVALUATE,
                results: Results::Dict,
                donated: &[],
                foreach: false,
            };
            return Ok(emit(target(name), &[function])?.text);
        }
        if let ["checkpointed", name] = words[..] {
            let segments = segments(&graph, graph.nodes().len());
            return Ok(emit_checkpointed(target(name), &graph, &segments, "cpu")?.text);
        }
        graph = apply(&words, &graph)?;
        verify::verify(&graph, FLOAT)?;
    }
    Ok(text::print(&graph))
}

fn target(name: &str) -> &'static PythonTarget {
    [&NUMPY, &TORCH].into_iter().find(|target| target.name == name).expect("a target")
}

fn apply(words: &[&str], graph: &Graph) -> Result<Graph> {
    match *words {
        ["raise"] => raise(graph, FLOAT),
        ["legalize", "primitives"] => legalize(graph, FLOAT, &|g, n| g.node(n).op.expand.is_none()),
        ["legalize", name] => legalize(graph, FLOAT, &|g, n| can_lower(target(name), g, n)),
        [how @ ("differentiate" | "recompute"), ref names @ ..] => {
            let mut sides = names.split(|word| *word == "by");
            let mut side = || sides.next().unwrap_or_default().iter().map(|&name| name.into()).collect();
            let request = Request { outputs: side(), inputs: side(), recompute: how == "recompute" };
            differentiate(graph, &request, FLOAT)
        }
        ["precision", dtype] => precision(graph, FLOAT, DType::parse(dtype)?),
        [name] => OPTIMIZE.iter().find(|(known, _)| *known == name).expect("a stage").1(graph),
        _ => panic!("there is no stage {words:?}"),
    }
}

#[test]
fn stages_make_what_the_files_say() {
    let update = std::env::var_os("UPDATE").is_some();
    let mut failures = Vec::new();
    for path in files() {
        let file = fs::read_to_string(&path).expect("a file");
        let (source, expected) = file.split_once("\n---\n").expect("a line `---`");
        let start = source.find("run:").expect("a line `run:`");
        let (stages, graph) = source[start + "run:".len()..].split_once('\n').expect("a graph");
        let actual = run(stages, graph).unwrap_or_else(|error| format!("{error}\n"));
        if update {
            fs::write(&path, format!("{source}\n---\n{actual}")).expect("the file is written");
        } else if actual != expected {
            failures.push(format!("{}\n{actual}", path.display()));
        }
    }
    assert!(failures.is_empty(), "other texts come out, see `UPDATE` above:\n{}", failures.join("\n"));
}
