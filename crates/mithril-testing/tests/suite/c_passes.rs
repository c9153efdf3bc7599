//! The files in `tests/c_passes`: a program of loops, the passes of the C target that are run, and the program after them.
//!
//! A file is
//!
//! ```text
//! # What it shows.
//! run: PASS PASS ...
//! options: OPTION OPTION ...
//! the program, as `compiled.stages` shows it
//! ---
//! the program after the passes
//! ```
//!
//! with passes by their names in `pipeline.rs`, and these options, if any:
//!
//! - `pack`, `in_place`, `donated=INPUT`, `block=ROWS`, `threads=N`, `lanes=N` (8 by default);
//! - `bytes`: the processor multiplies bytes faster than floats;
//! - `pairs`: it multiplies pairs of bfloat16;
//! - `int8`: all weights are quantized (`int8=2`: strictly); before it, `range=WEIGHT`: what the weight is multiplied by lies
//!   between -1 and 1;
//! - `only=TUNING+KEY`.
//!
//! With `UPDATE=1` in the environment the programs after the passes are rewritten: read the difference before you keep it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use mithril::codegen::c::ir::program::LoopProgram;
use mithril::codegen::c::pipeline::{passes, run_program};
use mithril::compile::c::{CRequest, Id as _, InputId, Quantize, Scheme, target};

fn request(words: &str) -> CRequest {
    let mut request = CRequest { target: target(Some(8)).expect("a target"), ..CRequest::default() };
    let mut ranges = BTreeMap::new();
    for word in words.split_whitespace() {
        let (name, value) = word.split_once('=').unwrap_or((word, "1"));
        if name == "only" {
            request.only.push(value.replace('+', " "));
            continue;
        }
        if name == "range" {
            ranges.insert(value.to_owned(), [-1.0, 1.0]);
            continue;
        }
        let value: usize = value.parse().expect("a number");
        match name {
            "pack" => request.options.pack = true,
            "in_place" => request.options.in_place = true,
            "donated" => request.donated.push(InputId::new(value)),
            "lanes" => request.target = target(Some(value)).expect("a target"),
            "bytes" => request.target.has_bytes = true,
            "pairs" => request.target.has_bf16 = true,
            "threads" => request.target.threads = value,
            "block" => request.options.block = Some(value),
            "int8" => {
                let rules = vec![("*".to_owned(), Some(Scheme::Int8))];
                let ranges = std::mem::take(&mut ranges);
                request.options.quantize = Some(Quantize { rules, ranges, strict: value > 1 });
            }
            _ => panic!("there is no option {name}"),
        }
    }
    request
}

/// The text of the program in a file after the passes that the file names.
fn run(file: &str) -> String {
    let (_, file) = file.split_once("run:").expect("a line `run:`");
    let (names, mut program) = file.split_once('\n').expect("a program");
    let mut words = "";
    if let Some(rest) = program.strip_prefix("options:") {
        (words, program) = rest.split_once('\n').expect("a program");
    }
    let names: Vec<&str> = names.split_whitespace().collect();
    let program = LoopProgram::parse(program, &[]);
    let after = program.and_then(|program| run_program(program, &request(words), &names));
    after.unwrap_or_else(|error| format!("{error}\n"))
}

#[test]
fn passes_make_what_the_files_say() {
    let update = std::env::var_os("UPDATE").is_some();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c_passes");
    let mut texts = String::new();
    let mut failures = Vec::new();
    for entry in fs::read_dir(folder).expect("the folder of passes").flatten() {
        let path = entry.path();
        let file = fs::read_to_string(&path).expect("a file");
        let (input, expected) = file.split_once("\n---\n").expect("a line `---`");
        let after = run(input);
        if update {
            fs::write(&path, format!("{input}\n---\n{after}")).expect("the file is written");
        } else if after != expected {
            failures.push(format!("{}\n{after}", path.display()));
        }
        texts.push_str(input);
    }
    assert!(failures.is_empty(), "other programs come out, see `UPDATE` above:\n{}", failures.join("\n"));
    let runs: Vec<&str> = texts.lines().filter_map(|line| line.strip_prefix("run:")).collect();
    let untested = |name: &&str| !runs.iter().any(|run| run.split_whitespace().any(|pass| pass == *name));
    let untested: Vec<&str> = passes().map(|(name, _)| name).filter(untested).collect();
    assert!(untested.is_empty(), "passes without a file: {untested:?}");
}
