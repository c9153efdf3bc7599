//! The `mithril` command line: what can be done with a model and the registry without Python.

mod export;
mod source;
mod table;

use std::io::Write;
use std::process::ExitCode;

use clap::ArgMatches;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap_complete::{Shell, generate};
use mithril::ir::error::nearest;
use mithril::ir::{Code, Error, OpDef, Result, ops};
use mithril::model::FlattenOptions;
use serde_json::{Value, json};

/// How the package that has all commands is installed and called.
const PYTHON: &str = "install the Python package, `pip install mithril-compiler`, and run `python -m mithril";

fn main() -> ExitCode {
    let mut program = table::program(true);
    if std::env::args().len() < 2 {
        // Without a terminal nobody is left to tell.
        return if program.print_help().is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let matches = match program.try_get_matches_from_mut(std::env::args_os()) {
        Ok(matches) => matches,
        Err(error) => return misused(&program, &error),
    };
    let Some((name, options)) = matches.subcommand() else { return ExitCode::from(2) };
    let result = match name {
        "summary" => summary(options),
        "export" => export::export(options),
        "ops" => described(options),
        "completions" => completions(options),
        "version" => version(options),
        "help" => return help(&mut program, options),
        other => Err(needs_python(&format!("the command {other}"), other)),
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

/// The error for what only the Python package does.
fn needs_python(what: &str, command: &str) -> Error {
    let own = table::COMMANDS.join(", ");
    Error::new(Code::Unsupported, format!("{what} needs Python"))
        .help(format!("{PYTHON} {command} ...`; this program runs {own}"))
}

/// Prints what is wrong with the arguments, in the words of the Python program; or the help, if it was asked for.
fn misused(program: &clap::Command, error: &clap::Error) -> ExitCode {
    let word = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.clone()),
        _ => None,
    };
    let text = match error.kind() {
        ErrorKind::InvalidSubcommand => word(ContextKind::InvalidSubcommand).map(|word| {
            let names: Vec<&str> = program.get_subcommands().map(clap::Command::get_name).collect();
            format!("there is no command {word:?}; {}", guess(&word, &names))
        }),
        ErrorKind::UnknownArgument => word(ContextKind::InvalidArg).map(|word| {
            let name = std::env::args().nth(1).unwrap_or_default();
            let command = program.find_subcommand(&name);
            let longs =
                command.into_iter().flat_map(clap::Command::get_arguments).filter_map(clap::Arg::get_long);
            let flags: Vec<String> = longs.map(|long| format!("--{long}")).collect();
            let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
            format!("there is no option {word}; {}", guess(&word, &flags))
        }),
        _ => None,
    };
    // A closed stream leaves nobody to tell.
    let _ = match text {
        Some(text) => writeln!(std::io::stderr(), "mithril: error: {text}"),
        None => error.print(),
    };
    if error.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS }
}

/// The nearest name, and all of them.
pub fn guess(word: &str, known: &[&str]) -> String {
    let all = known.join(", ");
    match nearest(word, known.iter().copied()) {
        Some(near) if near != word => format!("did you mean {near}? Available: {all}"),
        _ => format!("available: {all}"),
    }
}

/// Whether JSON is asked for.
fn is_json(matches: &ArgMatches) -> bool {
    matches.get_flag("json")
}

/// JSON as the Python program prints it.
pub fn printed(value: &Value) -> Result<String> {
    let text = serde_json::to_string_pretty(value);
    text.map(|text| text + "\n").map_err(|e| Error::new(Code::Io, e.to_string()))
}

fn summary(matches: &ArgMatches) -> Result<String> {
    let shapes = source::shapes(matches)?;
    let has_shapes = !shapes.is_empty();
    let model = source::open(required(matches, "MODEL"))?.model;
    let options = FlattenOptions { shapes, ..FlattenOptions::default() };
    if !is_json(matches) {
        return Ok(if has_shapes { model.summary_with(&options)? } else { model.summary() } + "\n");
    }
    let rows = if has_shapes { model.summary_rows_with(&options)? } else { model.summary_rows() };
    let count = |row: &mithril::model::SummaryRow| match &row.parameters {
        None => Value::Null,
        Some(n) => n.known().map_or_else(|| json!(n.to_string()), |n| json!(n)),
    };
    let top: Vec<Value> = rows.iter().filter(|row| row.depth == 1).map(count).collect();
    let total: Option<i64> = top.iter().map(Value::as_i64).sum();
    let rows: Vec<Value> = rows
        .iter()
        .map(|row| {
            json!({
                "path": row.path,
                "depth": row.depth,
                "layer": row.class,
                "output_shape": row.shape,
                "parameters": count(row),
            })
        })
        .collect();
    let model = model.to_string();
    printed(&json!({"schema": "mithril.summary/1", "model": model, "parameters": total, "rows": rows}))
}

/// An argument that the table requires.
pub fn required<'a>(matches: &'a ArgMatches, name: &str) -> &'a str {
    matches.get_one::<String>(name).map_or("", String::as_str)
}

fn described(matches: &ArgMatches) -> Result<String> {
    let Some(name) = matches.get_one::<String>("NAME") else { return list_ops(is_json(matches)) };
    let (family, op) = ops::FAMILIES
        .iter()
        .find_map(|(family, rows)| {
            let is_it = |op: &&&OpDef| op.name == name || op.aliases.contains(&name.as_str());
            rows.iter().find(is_it).map(|op| (family, *op))
        })
        .ok_or_else(|| {
            let error = Error::new(Code::UnknownName, format!("unknown op {name:?}"));
            match nearest(name, ops::all().map(|op| op.name)) {
                Some(near) => error.help(format!("did you mean {near:?}?")),
                None => error.help("`mithril ops` lists all of them"),
            }
        })?;
    let ports: Vec<&str> = op.ports.iter().map(|p| p.name).collect();
    if !is_json(matches) {
        return Ok(format!("{}({}) -> {}\n\n{}\n", op.name, ports.join(", "), op.outputs.join(", "), op.doc));
    }
    printed(&json!({
        "schema": "mithril.op/1",
        "name": op.name,
        "family": family,
        "inputs": ports,
        "outputs": op.outputs,
        "aliases": op.aliases,
        "doc": op.doc,
    }))
}

fn list_ops(is_json: bool) -> Result<String> {
    let names = |rows: &&[&OpDef]| rows.iter().map(|op| op.name).collect::<Vec<_>>();
    if is_json {
        let families: serde_json::Map<String, Value> =
            ops::FAMILIES.iter().map(|(family, rows)| ((*family).to_owned(), json!(names(rows)))).collect();
        return printed(&json!({"schema": "mithril.ops/1", "families": families}));
    }
    let lines = ops::FAMILIES.iter().map(|(family, rows)| format!("{family}: {}", names(rows).join(" ")));
    Ok(lines.collect::<Vec<_>>().join("\n") + "\n")
}

fn completions(matches: &ArgMatches) -> Result<String> {
    let shell = match required(matches, "SHELL") {
        "zsh" => Shell::Zsh,
        "fish" => Shell::Fish,
        _ => Shell::Bash,
    };
    let mut out = Vec::new();
    generate(shell, &mut table::program(false), "mithril", &mut out);
    String::from_utf8(out).map_err(|e| Error::new(Code::Io, e.to_string()))
}

fn version(matches: &ArgMatches) -> Result<String> {
    let version = env!("CARGO_PKG_VERSION");
    if is_json(matches) {
        return printed(&json!({"schema": "mithril.version/1", "version": version}));
    }
    Ok(format!("mithril {version}\n"))
}

fn help(program: &mut clap::Command, matches: &ArgMatches) -> ExitCode {
    let Some(topic) = matches.get_one::<String>("COMMAND") else {
        return if program.print_help().is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    };
    let mut whole = table::program(false).bin_name("mithril");
    whole.build();
    let names: Vec<&str> = program.get_subcommands().map(clap::Command::get_name).collect();
    let Some(command) = whole.find_subcommand_mut(topic) else {
        let _ = writeln!(
            std::io::stderr(),
            "mithril: error: there is no command {topic:?}; {}",
            guess(topic, &names)
        );
        return ExitCode::from(2);
    };
    if command.print_help().is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
