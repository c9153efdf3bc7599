//! `mithril export`: a model as a folder of C, or as a file of ONNX.

use std::path::Path;

use clap::ArgMatches;
use clap::parser::ValueSource;
use mithril::ir::graph::Role;
use mithril::ir::interp::Symbols;
use mithril::ir::{Code, DType, Error, Result, Shape, Tensor};
use mithril::model::FlattenOptions;
use mithril::onnx::{OnnxOptions, save_onnx};
use mithril::runtime::c::export::{Export, export as write};
use mithril::runtime::c::{EntryPoint, OptionKind, Options, Program, Value};
use mithril::runtime::interpreter::{Executable, Tensors, tensors};
use mithril::runtime::weights::Checkpoint;
use serde_json::json;

use crate::{source, table};

/// Options of the command that are done here; the others need Python.
const OPTIONS: &[&str] =
    &["MODEL", "FOLDER", "json", "shape", "weights", "random-weights", "name", "precision", "target"];
/// Options of the C target that are done here, and have its names.
const OF_C: &[&str] = &["prefix", "lanes", "threads", "cc", "flags"];
/// Further options that only folders of C take.
const OF_FOLDERS: &[&str] = &["weights-inside", "no-weights-inside"];
/// Options that only files of ONNX take.
const OF_FILES: &[&str] = &["opset", "external-data"];

/// Exports a model with its weights.
pub fn export(matches: &ArgMatches) -> Result<String> {
    let target = target(matches)?;
    refuse(matches, target)?;
    let (file, out) = (crate::required(matches, "MODEL"), crate::required(matches, "FOLDER"));
    let precision = text(matches, "precision").map(DType::parse).transpose()?;
    let options = FlattenOptions {
        training: false,
        shapes: source::shapes(matches)?,
        precision,
        ..FlattenOptions::default()
    };
    let pairs = matches.get_many::<String>("name").into_iter().flatten().map(|text| {
        text.split_once('=').ok_or_else(|| {
            let error = Error::new(Code::BadArgument, format!("--name is {text:?}"));
            error.help("write it as OURS=THEIRS: fc=0, or fc.weight=0.weight")
        })
    });
    let names: Vec<(&str, &str)> = pairs.collect::<Result<_>>()?;
    let (weights, is_random) = (text(matches, "weights"), matches.get_flag("random-weights"));
    if let (Some(path), true) = (weights, is_random) {
        let message = format!("--weights {path} and --random-weights contradict each other");
        return Err(Error::new(Code::ConflictingOptions, message).help("leave one of them out"));
    }
    let c_options = options_of(matches)?;
    let source = source::open(file)?;
    let program = Executable::new(&source.model, &options)?;
    let values = match (weights, &source.weights) {
        (Some(path), _) => program.load(&Checkpoint::open(Path::new(path))?, None, &names)?.0,
        (None, Some(own)) if !is_random => program.load_named(own)?,
        (None, _) => {
            if !is_random && program.compiled().inputs_of(Role::Param).count() > 0 {
                let message = format!("{file:?} holds a model without weights");
                return Err(Error::new(Code::BadParameter, message)
                    .help("give them: --weights FILE, or ask for random numbers: --random-weights"));
            }
            program.initial(0)?
        }
    };
    let is_random = is_random && program.compiled().inputs_of(Role::Param).count() > 0;
    let model = Loaded { program, values, is_random };
    match target {
        "onnx" => onnx(matches, model, &source.model.to_string(), out),
        _ => c(matches, model, c_options, file, out),
    }
}

/// A compiled model and its weights.
struct Loaded {
    program: Executable,
    values: Tensors,
    is_random: bool,
}

const DRAWN: &str = " Its weights are random numbers: nothing was trained or loaded.";

/// A folder of C; the outputs that it is compared with are those of the reference interpreter.
fn c(matches: &ArgMatches, model: Loaded, options: Options, file: &str, folder: &str) -> Result<String> {
    let Loaded { program, mut values, is_random } = model;
    for input in &program.compiled().inputs {
        if values.contains_key(&input.name) {
            continue;
        }
        let Some(sizes) = input.ty.shape.known() else {
            return Err(Error::new(
                Code::UnknownShape,
                format!("the shape of {:?} is {}", input.name, input.ty.shape),
            )
            .help(format!("give numbers: --shape {}={}", input.name, numbers(&input.ty.shape))));
        };
        values.extend(tensors([(&input.name, sample(input.ty.dtype, &sizes))]));
    }
    let expected = program.evaluate(&[&values])?.outputs;
    let c = Program::new(program.compiled().clone(), EntryPoint::Outputs, options);
    let drawn = if is_random { DRAWN } else { "" };
    let title = format!("A model in C, made by Mithril of {file}.{drawn}");
    let report = write(
        &c,
        &Symbols::default(),
        &Export { title: &title, values: &values, expected, calls: 1, inside: inside(matches) },
        Path::new(folder),
    )?;
    let names: Vec<String> = report.files.iter().map(|path| path.display().to_string()).collect();
    if matches.get_flag("json") {
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

/// A shape with numbers in the places of symbols, as it could be.
fn numbers(shape: &Shape) -> String {
    let sizes = shape.iter().map(|dim| dim.known().unwrap_or(1).to_string());
    sizes.collect::<Vec<_>>().join(",")
}

/// A file of ONNX.
fn onnx(matches: &ArgMatches, model: Loaded, title: &str, file: &str) -> Result<String> {
    let Loaded { program, values, is_random } = model;
    let opset = match text(matches, "opset") {
        None => OnnxOptions::default().opset,
        Some(text) => text.parse().map_err(|_| {
            Error::new(Code::BadArgument, format!("--opset is {text:?}")).help("give a number: --opset 18")
        })?,
    };
    let title = if is_random { format!("{title}.{DRAWN}") } else { title.to_owned() };
    let options = OnnxOptions { opset, title, ..OnnxOptions::default() };
    let exported = mithril::onnx::onnx(program.compiled(), &options)?;
    let parameters: Vec<_> = exported.parameters.iter().map(|p| (p.name.clone(), p.dtype)).collect();
    let is_external = matches.get_flag("external-data").then_some(true);
    let is_external = save_onnx(Path::new(file), exported, is_external, |place, out| {
        let (name, dtype) = &parameters[place];
        let value = values.get(name).ok_or_else(|| std::io::Error::other("it has no value"))?;
        out.write_all(&value.cast(*dtype).to_bytes())
    })?;
    let beside = is_external.then(|| format!("{file}.data"));
    if matches.get_flag("json") {
        let names: Vec<&str> = std::iter::once(file).chain(beside.as_deref()).collect();
        return crate::printed(&json!({
            "schema": "mithril.export/1",
            "target": "onnx",
            "folder": null,
            "files": names,
            "is_random": is_random,
        }));
    }
    let beside = beside.map_or_else(String::new, |name| format!(", with its weights in {name}"));
    let drawn = if is_random { format!("\n{}", DRAWN.trim_start()) } else { String::new() };
    Ok(format!("wrote {file}{beside}{drawn}\n"))
}

fn text<'a>(matches: &'a ArgMatches, name: &str) -> Option<&'a str> {
    matches.get_one::<String>(name).map(String::as_str)
}

/// What is written: `c` or `onnx`, by the option or by the name of the file.
fn target(matches: &ArgMatches) -> Result<&'static str> {
    let Some(target) = text(matches, "target") else {
        return Ok(if source::is_onnx(crate::required(matches, "FOLDER")) { "onnx" } else { "c" });
    };
    if let Some(own) = ["c", "onnx"].into_iter().find(|own| *own == target) {
        return Ok(own);
    }
    let known = table::rows().into_iter().filter(|row| row.name == "export").flat_map(|row| row.options);
    let known: Vec<String> =
        known.filter(|o| o.flags.iter().any(|f| f == "--target")).flat_map(|o| o.choices).collect();
    if known.iter().any(|name| name == target) {
        return Err(crate::needs_python(&format!("--target {target}"), "export"));
    }
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    let error = Error::new(Code::BadArgument, format!("--target is {target:?}"));
    Err(error.help(crate::guess(target, &known)))
}

/// Raises what needs Python, and options of the other target.
fn refuse(matches: &ArgMatches, target: &str) -> Result<()> {
    let written = |name: &str| matches.value_source(name) == Some(ValueSource::CommandLine);
    for name in matches.ids().map(clap::Id::as_str).filter(|name| written(name)) {
        if ![OPTIONS, OF_C, OF_FOLDERS, OF_FILES].iter().any(|names| names.contains(&name)) {
            return Err(crate::needs_python(&format!("--{name}"), "export"));
        }
        let conflict = |message: &str, help: &str| {
            Err(Error::new(Code::ConflictingOptions, format!("--{name} is for {message}")).help(help))
        };
        if target == "onnx" && [OF_C, OF_FOLDERS].iter().any(|names| names.contains(&name)) {
            return conflict("C, and the target is onnx", "leave it out");
        }
        if target != "onnx" && OF_FILES.contains(&name) {
            return conflict("files of ONNX", "add --format onnx, or leave it out");
        }
    }
    Ok(())
}

/// Whether weights are written into the C file.
fn inside(matches: &ArgMatches) -> Option<bool> {
    match (matches.get_flag("weights-inside"), matches.get_flag("no-weights-inside")) {
        (false, false) => None,
        (is_inside, _) => Some(is_inside),
    }
}

/// How the program is made.
fn options_of(matches: &ArgMatches) -> Result<Options> {
    let mut options = Options { pack: true, ..Options::default() };
    for name in OF_C {
        let (Some(text), Some(option)) = (text(matches, name), Options::named(name)) else { continue };
        let value = match option.kind() {
            OptionKind::Count => text.parse().map_or(Value::Other, Value::Number),
            _ => Value::Text(text.to_owned()),
        };
        options.set(name, value, &format!("--{name} is {text:?}"))?;
    }
    Ok(options)
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
