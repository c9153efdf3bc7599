//! The commands and options of both programs: a table that the Python package writes from its parser, as commands of clap.

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, Command};
use serde::Deserialize;

/// `make generate` writes it.
const TABLE: &str = include_str!("commands.json");

/// What this program runs by itself.
pub const COMMANDS: &[&str] = &["summary", "export", "ops", "completions", "version", "help"];

/// A command.
#[derive(Deserialize)]
pub struct Row {
    pub name: String,
    pub help: String,
    pub arguments: Vec<Positional>,
    pub options: Vec<Named>,
}

/// An argument without a name.
#[derive(Deserialize)]
pub struct Positional {
    pub name: String,
    pub help: String,
    pub choices: Vec<String>,
    pub is_required: bool,
}

/// An option; without a `value` a switch.
#[derive(Deserialize)]
pub struct Named {
    pub flags: Vec<String>,
    pub value: Option<String>,
    pub help: String,
    pub choices: Vec<String>,
    pub is_repeated: bool,
}

/// The table.
pub fn rows() -> Vec<Row> {
    serde_json::from_str(TABLE).expect("generated")
}

/// The program with all commands, so that help and completions are those of both.
///
/// `is_run` leaves out what commands take that need Python: whatever is said to them, the answer is how to get it.
pub fn program(is_run: bool) -> Command {
    let about = "Runs what needs no Python: saved models and the registry of ops. The Python package runs all commands.";
    let program = Command::new("mithril").about(about).version(env!("CARGO_PKG_VERSION"));
    let program = program.disable_help_subcommand(true).subcommand_required(true);
    program.subcommands(rows().into_iter().map(|row| command(row, is_run)))
}

fn command(row: Row, is_run: bool) -> Command {
    let is_own = COMMANDS.contains(&row.name.as_str());
    let help = if is_own { row.help } else { format!("{} (needs Python)", row.help) };
    let mut command = Command::new(row.name.clone()).about(help);
    if is_run && !is_own {
        let rest = Arg::new("arguments").num_args(0..).trailing_var_arg(true).allow_hyphen_values(true);
        return command.disable_help_flag(true).arg(rest.hide(true));
    }
    for argument in row.arguments {
        let mut arg = Arg::new(argument.name).help(argument.help).required(argument.is_required);
        if !argument.choices.is_empty() && row.name != "help" {
            arg = arg.value_parser(PossibleValuesParser::new(argument.choices));
        }
        command = command.arg(arg);
    }
    command.args(row.options.iter().flat_map(named))
}

/// An option as clap has it; nothing for `--help`, which clap adds by itself.
fn named(option: &Named) -> Vec<Arg> {
    let longs: Vec<&str> = option.flags.iter().filter_map(|flag| flag.strip_prefix("--")).collect();
    let Some((&first, others)) = longs.split_first() else { return Vec::new() };
    if first == "help" {
        return Vec::new();
    }
    let mut arg = Arg::new(first.to_owned()).long(first.to_owned()).help(option.help.clone());
    if let Some(short) = option.flags.iter().find_map(|flag| flag.strip_prefix('-').filter(|f| f.len() == 1))
    {
        arg = arg.short(short.chars().next());
    }
    let Some(value) = &option.value else {
        // A switch with an opposite is two that override each other.
        let (opposites, aliases): (Vec<&str>, Vec<&str>) =
            others.iter().partition(|name| name.strip_prefix("no-") == Some(first));
        let switches = opposites.iter().map(|name| {
            let switch = Arg::new((*name).to_owned()).long((*name).to_owned()).action(ArgAction::SetTrue);
            switch.help(format!("the opposite of --{first}")).overrides_with(first.to_owned())
        });
        let switches: Vec<Arg> = switches.collect();
        let names: Vec<String> = aliases.into_iter().map(str::to_owned).collect();
        return [vec![arg.visible_aliases(names).action(ArgAction::SetTrue)], switches].concat();
    };
    let action = if option.is_repeated { ArgAction::Append } else { ArgAction::Set };
    let names: Vec<String> = others.iter().map(|&name| name.to_owned()).collect();
    arg = arg.visible_aliases(names).value_name(value.clone()).action(action).allow_hyphen_values(true);
    // What several names may stand in, and what the message can say more of, is looked at later.
    let is_open = first == "target" || option.is_repeated || option.choices.is_empty();
    vec![if is_open { arg } else { arg.value_parser(PossibleValuesParser::new(option.choices.clone())) }]
}
