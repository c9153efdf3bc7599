//! Which model a command is about, and the weights that it brings along: a file of `ml.save`, a file of ONNX, or a name of
//! the zoo.

use std::path::Path;
use std::sync::Arc;

use clap::ArgMatches;
use mithril::ir::{Code, Error, Result};
use mithril::model::{Model, Size, zoo};
use mithril::onnx;
use mithril::runtime::weights::Checkpoint;

/// A model as a command names it.
pub struct Source {
    /// The model.
    pub model: Model,
    /// Its weights, if its file holds them.
    pub weights: Option<Checkpoint>,
}

/// Opens what MODEL names.
pub fn open(name: &str) -> Result<Source> {
    let path = Path::new(name);
    if !path.is_dir() && is_onnx(name) {
        let (model, weights) = onnx::read_onnx(path, &onnx::Options::default())?;
        eprintln!("model: {name}: a file of ONNX, with its weights");
        return Ok(Source { model, weights: Some(weights) });
    }
    if path.extension().is_none() && !path.exists() && zoo::find(name).is_some() {
        return Ok(Source { model: zoo::build(name, vec![], vec![])?, weights: None });
    }
    let text = std::fs::read_to_string(path).map_err(|e| {
        Error::new(Code::Io, format!("{name:?} cannot be read: {e}"))
            .help("give a file of ml.save, a file of ONNX, or the name of a model of the zoo; other files and folders need the Python package")
    })?;
    Ok(Source { model: Model::from_json(&text)?, weights: None })
}

/// Whether a file is one of ONNX, by its name.
pub fn is_onnx(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|ending| ending.eq_ignore_ascii_case("onnx"))
}

/// Shapes of inputs by `--shape`: numbers, and names for sizes that stay open.
pub fn shapes(matches: &ArgMatches) -> Result<Vec<(Arc<str>, Vec<Size>)>> {
    let mut shapes: Vec<(Arc<str>, Vec<Size>)> = Vec::new();
    for text in matches.get_many::<String>("shape").into_iter().flatten() {
        let (name, sizes) = shape(text)?;
        if shapes.iter().any(|(known, _)| *known == name) {
            let error = Error::new(Code::BadArgument, format!("--shape gives {name:?} twice"));
            return Err(error.help("give each input once"));
        }
        shapes.push((name, sizes));
    }
    Ok(shapes)
}

fn shape(text: &str) -> Result<(Arc<str>, Vec<Size>)> {
    let wrong = |help: String| Error::new(Code::BadArgument, format!("--shape is {text:?}")).help(help);
    let Some((name, sizes)) = text.split_once('=').filter(|(name, _)| !name.trim().is_empty()) else {
        return Err(wrong("write it as NAME=SIZES: --shape input=1,3,224,224".into()));
    };
    let words = sizes.split(',').map(str::trim).filter(|word| !word.is_empty());
    let sizes_or_none: Option<Vec<Size>> = words.map(size).collect();
    sizes_or_none.map(|sizes| (name.trim().into(), sizes)).ok_or_else(|| {
        let names: Vec<&str> =
            sizes.split(|c: char| !c.is_ascii_digit()).filter(|word| !word.is_empty()).collect();
        let usual = if names.is_empty() { "1,3,224,224".to_owned() } else { names.join(",") };
        wrong(format!("sizes are numbers or names, separated by commas: --shape {name}={usual}"))
    })
}

/// A number, or a name; `3x4` is neither.
fn size(word: &str) -> Option<Size> {
    if let Ok(n) = word.parse::<u32>() {
        return Some(Size::from(i64::from(n)));
    }
    let starts = word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let is_joined =
        word.strip_prefix(['x', 'X']).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    let is_name = starts && !is_joined && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    is_name.then(|| Size::from(word))
}
