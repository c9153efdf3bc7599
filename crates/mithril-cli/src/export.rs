//! `mithril export`: a saved model as a folder of C.

use std::path::Path;

use clap::ArgMatches;
use clap::parser::ValueSource;
use mithril::ir::graph::Role;
use mithril::ir::interp::Symbols;
use mithril::ir::{Code, DType, Error, Result, Tensor};
use mithril::model::{FlattenOptions, Size};
use mithril::runtime::c::export::{Export, export as write};
use mithril::runtime::c::{EntryPoint, Options, Program, Tool};
use mithril::runtime::interpreter::{Executable, tensors};
use mithril::runtime::weights::Checkpoint;
use serde_json::json;

use crate::table;

/// Options of the command that are done here; the others need Python.
const OPTIONS: &[&str] = &[
    "MODEL",
    "FOLDER",
    "json",
    "shape",
    "weights",
    "random-weights",
    "name",
    "target",
    "prefix",
    "lanes",
    "threads",
    "cc",
    "flags",
    "weights-inside",
    "no-weights-inside",
];

/// Exports a model; the outputs that it is compared with are those of the reference interpreter.
pub fn export(given: &ArgMatches) -> Result<String> {
    refuse(given)?;
    let (file, folder) = (crate::required(given, "MODEL"), crate::required(given, "FOLDER"));
    let mut options = FlattenOptions { training: false, ..FlattenOptions::default() };
    for text in given.get_many::<String>("shape").into_iter().flatten() {
        options.shapes.push(shape(text)?);
    }
    let pairs = given.get_many::<String>("name").into_iter().flatten().map(|text| {
        text.split_once('=').ok_or_else(|| {
            let error = Error::new(Code::BadArgument, format!("--name is {text:?}"));
            error.help("write it as OURS=THEIRS: fc=0, or fc.weight=0.weight")
        })
    });
    let names: Vec<(&str, &str)> = pairs.collect::<Result<_>>()?;
    let (weights, is_random) = (text(given, "weights"), given.get_flag("random-weights"));
    let made = made(given)?;
    let program = Executable::new(&crate::load(file)?, &options)?;
    let mut values = program.initial(0)?;
    check_weights(file, weights, is_random, program.compiled().inputs_of(Role::Param).count() > 0)?;
    if let Some(path) = weights {
        values.extend(program.load(&Checkpoint::open(Path::new(path))?, None, &names)?.0);
    }
    let kept: Vec<String> = values.keys().map(|name| name.to_string()).collect();
    for input in program.compiled().inputs.iter().filter(|i| !kept.iter().any(|name| **name == *i.name)) {
        let Some(sizes) = input.ty.shape.known() else {
            return Err(Error::new(
                Code::UnknownShape,
                format!("the shape of {:?} is {}", input.name, input.ty.shape),
            )
            .help(format!("give numbers: --shape {}=1,3,224,224", input.name)));
        };
        values.extend(tensors([(&input.name, sample(input.ty.dtype, &sizes))]));
    }
    let expected = program.evaluate(&[&values])?.outputs;
    let c = Program::new(program.compiled().clone(), EntryPoint::Outputs, made);
    let drawn =
        if is_random { " Its weights are random numbers: nothing was trained or loaded." } else { "" };
    let title = format!("A model in C, made by Mithril of {file}.{drawn}");
    let report = write(
        &c,
        &Symbols::default(),
        &Export { title: &title, values: &values, expected, calls: 1, inside: inside(given) },
        Path::new(folder),
    )?;
    let names: Vec<String> = report.files.iter().map(|path| path.display().to_string()).collect();
    if given.get_flag("json") {
        return crate::printed(&json!({
            "schema": "mithril.export/1",
            "target": "c",
            "folder": folder,
            "files": names,
            "weight_bytes": report.weight_bytes,
            "packed_bytes": report.packed_bytes,
            "pack_bytes": report.pack_bytes,
            "arena_bytes": report.arena_bytes,
            "check": report.check,
            "is_random": is_random,
        }));
    }
    Ok(format!("wrote {}\n{}{}\n", names.join(", "), report.check, drawn.trim_start()))
}

fn text<'a>(given: &'a ArgMatches, name: &str) -> Option<&'a str> {
    given.get_one::<String>(name).map(String::as_str)
}

fn number(given: &ArgMatches, name: &str) -> Result<Option<usize>> {
    let Some(text) = text(given, name) else { return Ok(None) };
    match text.parse() {
        Ok(n) if n > 0 => Ok(Some(n)),
        _ => {
            Err(Error::new(Code::BadArgument, format!("--{name} is {text:?}")).help("give a positive number"))
        }
    }
}

/// Raises what needs Python, and targets that nobody has.
fn refuse(given: &ArgMatches) -> Result<()> {
    let further = given.ids().map(clap::Id::as_str).filter(|name| !OPTIONS.contains(name));
    for name in further {
        if given.value_source(name) == Some(ValueSource::CommandLine) {
            return Err(crate::needs_python(&format!("--{name}"), "export"));
        }
    }
    match text(given, "target") {
        None | Some("c") => {}
        Some(target) => {
            let known =
                table::rows().into_iter().filter(|row| row.name == "export").flat_map(|row| row.options);
            let known: Vec<String> =
                known.filter(|o| o.flags.iter().any(|f| f == "--target")).flat_map(|o| o.choices).collect();
            if known.iter().any(|name| name == target) {
                return Err(crate::needs_python(&format!("--target {target}"), "export"));
            }
            let known: Vec<&str> = known.iter().map(String::as_str).collect();
            let error = Error::new(Code::BadArgument, format!("--target is {target:?}"));
            return Err(error.help(crate::guess(target, &known)));
        }
    }
    Ok(())
}

/// Whether weights are written into the C file.
fn inside(given: &ArgMatches) -> Option<bool> {
    match (given.get_flag("weights-inside"), given.get_flag("no-weights-inside")) {
        (false, false) => None,
        (is_inside, _) => Some(is_inside),
    }
}

/// How the program is made.
fn made(given: &ArgMatches) -> Result<Options> {
    let tool = Tool {
        command: text(given, "cc").map(str::to_owned),
        flags: text(given, "flags").unwrap_or_default().split_whitespace().map(str::to_owned).collect(),
        ..Tool::default()
    };
    Ok(Options {
        prefix: text(given, "prefix").unwrap_or("model").into(),
        pack: true,
        lanes: number(given, "lanes")?,
        threads: number(given, "threads")?.unwrap_or(1),
        tool,
        ..Options::default()
    })
}

/// Weights are given, or random numbers are asked for: nobody takes one for the other.
fn check_weights(file: &str, weights: Option<&str>, is_random: bool, has_parameters: bool) -> Result<()> {
    if let (Some(path), true) = (weights, is_random) {
        let message = format!("--weights {path} and --random-weights contradict each other");
        return Err(Error::new(Code::ConflictingOptions, message).help("leave one of them out"));
    }
    if weights.is_none() && !is_random && has_parameters {
        return Err(Error::new(Code::BadParameter, format!("{file:?} holds a model without weights"))
            .help("give them: --weights FILE, or ask for random numbers: --random-weights"));
    }
    Ok(())
}

fn shape(text: &str) -> Result<(std::sync::Arc<str>, Vec<Size>)> {
    let wrong = |help: String| Error::new(Code::BadArgument, format!("--shape is {text:?}")).help(help);
    let Some((name, sizes)) = text.split_once('=').filter(|(name, _)| !name.is_empty()) else {
        return Err(wrong("write it as NAME=SIZES: --shape input=1,3,224,224".into()));
    };
    let words: Vec<&str> = sizes.split(',').map(str::trim).filter(|word| !word.is_empty()).collect();
    let numbers: Option<Vec<Size>> =
        words.iter().map(|word| word.parse::<u32>().ok().map(|n| Size::from(i64::from(n)))).collect();
    numbers.map(|sizes| (name.into(), sizes)).ok_or_else(|| {
        let found: Vec<&str> =
            sizes.split(|c: char| !c.is_ascii_digit()).filter(|word| !word.is_empty()).collect();
        let usual = if found.is_empty() { "1,3,224,224".to_owned() } else { found.join(",") };
        wrong(format!("sizes are numbers, separated by commas: --shape {name}={usual}"))
    })
}

/// Data to record: numbers of both signs; 0 and 1 for integers, which may be indices.
fn sample(dtype: DType, sizes: &[usize]) -> Tensor {
    let count = sizes.iter().product::<usize>();
    let value = |i: usize| {
        let mixed = (i as u64).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        if dtype.is_float() { mixed as f64 / f64::from(1 << 23) - 1.0 } else { (mixed & 1) as f64 }
    };
    Tensor::from_f64s(dtype, sizes, &(0..count).map(value).collect::<Vec<_>>())
}
