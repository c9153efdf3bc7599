//! `mithril export`: a saved model as a folder of C.

use std::path::Path;

use mithril::ir::graph::Role;
use mithril::ir::interp::Symbols;
use mithril::ir::{Code, DType, Error, Result, Tensor};
use mithril::model::{FlattenOptions, Size};
use mithril::runtime::c::export::{Export, export as write};
use mithril::runtime::c::{EntryPoint, Options, Program};
use mithril::runtime::interpreter::{Executable, tensors};
use mithril::runtime::weights::Checkpoint;

/// Exports a model; the outputs that it is compared with are those of the reference interpreter.
pub fn export(file: &str, folder: &str, given: &[&str]) -> Result<String> {
    let mut options = FlattenOptions { training: false, ..FlattenOptions::default() };
    let (mut prefix, mut weights, mut names) = ("model", None, Vec::new());
    let is_random = given.contains(&"--random-weights");
    let given: Vec<&str> = given.iter().copied().filter(|word| *word != "--random-weights").collect();
    for pair in given.chunks(2) {
        match pair {
            ["--shape", text] => options.shapes.push(shape(text)?),
            ["--prefix", text] => prefix = text,
            ["--weights", text] => weights = Some(*text),
            ["--name", text] => names.push(text.split_once('=').ok_or_else(|| {
                let error = Error::new(Code::BadArgument, format!("--name is {text:?}"));
                error.help("write it as OURS=THEIRS: fc=0, or fc.weight=0.weight")
            })?),
            _ => {
                return Err(Error::new(Code::BadArgument, format!("export does not take {:?}", pair[0]))
                    .help(
                        "it takes --shape NAME=SIZES, --weights FILE, --random-weights, --name OURS=THEIRS and --prefix NAME",
                    ));
            }
        }
    }
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
    let made = Options { prefix: prefix.into(), pack: true, ..Options::default() };
    let c = Program::new(program.compiled().clone(), EntryPoint::Outputs, made);
    let drawn =
        if is_random { " Its weights are random numbers: nothing was trained or loaded." } else { "" };
    let title = format!("A model in C, made by Mithril of {file}.{drawn}");
    let report = write(
        &c,
        &Symbols::default(),
        &Export { title: &title, values: &values, expected, calls: 1, inside: None },
        Path::new(folder),
    )?;
    let names: Vec<String> = report.files.iter().map(|path| path.display().to_string()).collect();
    Ok(format!("wrote {}\n{}{}", names.join(", "), report.check, drawn.trim_start()))
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
    let wrong = || {
        Error::new(Code::BadArgument, format!("--shape is {text:?}")).help("write it as input=1,3,224,224")
    };
    let (name, sizes) = text.split_once('=').ok_or_else(wrong)?;
    let sizes = sizes.split(',').map(|n| n.trim().parse::<i64>().map(Size::from).map_err(|_| wrong()));
    Ok((name.into(), sizes.collect::<Result<_>>()?))
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
