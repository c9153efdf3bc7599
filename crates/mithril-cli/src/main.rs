//! The `mithril` command line: what can be done with a saved model and the registry without Python.

mod export;

use std::io::Write;
use std::process::ExitCode;

use mithril::ir::error::nearest;
use mithril::ir::{Code, Error, OpDef, Result, ops};
use mithril::model::Model;

const USAGE: &str = "\
Usage: mithril <COMMAND>

Commands:
  summary <FILE>   table of the layers of a saved model (ml.save)
  export <FILE> <FOLDER> (--weights FILE | --random-weights) [--shape NAME=SIZES] [--name OURS=THEIRS] [--prefix NAME]
                   a saved model as a folder of C, built and checked
  ops [NAME]       list of all ops, or the documentation of one
  version          version of Mithril
  help             this text
";

const COMMANDS: &[&str] = &["summary", "export", "ops", "version", "help"];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["summary", file] => summary(file),
        ["export", file, folder, options @ ..] => export::export(file, folder, options),
        ["ops"] => Ok(list_ops()),
        ["ops", name] => describe(name),
        ["version" | "--version" | "-V"] => Ok(format!("mithril {}\n", env!("CARGO_PKG_VERSION"))),
        [] | ["help" | "--help" | "-h"] => Ok(USAGE.to_owned()),
        [word, ..] => {
            let guess = match nearest(word, COMMANDS.iter().copied()) {
                Some(near) if near != *word => format!("; did you mean {near}?"),
                _ => String::new(),
            };
            // A closed standard error leaves nobody to tell.
            let _ = write!(std::io::stderr(), "mithril: what is `{}`?{guess}\n\n{USAGE}", words.join(" "));
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(text) => {
            let written = std::io::stdout().write_all(text.as_bytes());
            if written.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

fn summary(file: &str) -> Result<String> {
    Ok(load(file)?.summary() + "\n")
}

/// The model of a file.
fn load(file: &str) -> Result<Model> {
    let text = std::fs::read_to_string(file).map_err(|e| {
        Error::new(Code::Io, format!("{file:?} cannot be read: {e}")).help("give a file written by ml.save")
    })?;
    Model::from_json(&text)
}

fn list_ops() -> String {
    let line = |(family, rows): &(&str, &[&OpDef])| {
        let names: Vec<&str> = rows.iter().map(|op| op.name).collect();
        format!("{family}: {}\n", names.join(" "))
    };
    ops::FAMILIES.iter().map(line).collect()
}

fn describe(name: &str) -> Result<String> {
    let op = ops::find(name).ok_or_else(|| {
        let error = Error::new(Code::UnknownName, format!("there is no op {name:?}"));
        match nearest(name, ops::all().map(|op| op.name)) {
            Some(near) => error.help(format!("did you mean {near:?}?")),
            None => error.help("`mithril ops` lists all of them"),
        }
    })?;
    let ports: Vec<&str> = op.ports.iter().map(|p| p.name).collect();
    Ok(format!("{}({}) -> {}\n\n{}\n", op.name, ports.join(", "), op.outputs.join(", "), op.doc))
}
