//! The text form of programs.

use std::fmt;

use crate::c::ir::expr::{Argument, Call, Var};
use crate::c::ir::program::{Apart, KernelStep, KernelWork, LoopStep, LoopWork, Nest, Place, Program, Step};

/// Variables with their sizes.
fn listed(vars: &[Var]) -> String {
    vars.iter().map(|v| format!("i{} < {}", v.id, v.size)).collect::<Vec<_>>().join(", ")
}

impl<W> fmt::Display for Program<W>
where
    Step<W>: fmt::Display,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(bytes) = self.arena_bytes {
            writeln!(f, "arena: {bytes} bytes")?;
        }
        for (i, buffer) in self.buffers.entries() {
            let place = match &buffer.place {
                Place::Input(n) => format!("input {n}"),
                Place::Output(n) => format!("output {n}"),
                Place::State { input, output } => format!("input {input}, output {output}"),
                Place::Constant(_) => "constant".to_owned(),
                Place::Arena(Some(at)) => format!("arena {at}"),
                Place::Scratch(at) => format!("scratch {at}"),
                Place::Packed(Some(at)) => format!("packed {at}"),
                Place::Packed(None) => "packed".to_owned(),
                Place::Packing(at) => format!("packing {at}"),
                Place::Arena(None) if buffer.blocks.is_none() => continue,
                Place::Arena(None) => "temporary".to_owned(),
            };
            let blocks = buffer.blocks.map(|blocks| blocks.to_string()).unwrap_or_default();
            writeln!(f, "x{i}: {}{:?} {place}{blocks} \"{}\"", buffer.dtype, buffer.shape, buffer.name)?;
        }
        if let Some(Apart { times, inputs }) = &self.apart {
            let inputs: Vec<String> = inputs.iter().map(|n| format!("input {n}")).collect();
            writeln!(f, "{times} times, with parts of {}:", inputs.join(", "))?;
        }
        if !self.prepared.is_empty() {
            writeln!(f, "once:")?;
            self.prepared.iter().try_for_each(|step| write!(f, "{step}"))?;
            writeln!(f, "at every call:")?;
        }
        self.steps.iter().try_for_each(|step| write!(f, "{step}"))
    }
}

/// The part of the model that a step belongs to, behind the step.
fn belonging(origin: &str) -> String {
    if origin.is_empty() { String::new() } else { format!(" \"{origin}\"") }
}

fn write_nest(f: &mut fmt::Formatter<'_>, nest: &Nest, origin: &str) -> fmt::Result {
    writeln!(f, "x{}[{}] = {}{}", nest.to, listed(&nest.vars), nest.value, belonging(origin))
}

fn write_call(f: &mut fmt::Formatter<'_>, call: &Call, origin: &str) -> fmt::Result {
    let argument = |argument: &Argument| match argument {
        Argument::In(b) => format!("x{b}"),
        Argument::Out(b) => format!("out x{b}"),
        Argument::Int(n) => n.to_string(),
        Argument::Float(x) => format!("{x:?}"),
        Argument::Ints(list) => format!("{list:?}"),
    };
    let arguments: Vec<String> = call.args.iter().map(argument).collect();
    writeln!(f, "{}({}){}", call.function, arguments.join(", "), belonging(origin))
}

impl fmt::Display for LoopStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.work {
            LoopWork::Nest(nest) => write_nest(f, nest, &self.origin),
            LoopWork::Call(call) => write_call(f, call, &self.origin),
        }
    }
}

impl fmt::Display for KernelStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = belonging(&self.origin);
        match &self.work {
            KernelWork::Nest(nest) => write_nest(f, nest, &self.origin)?,
            KernelWork::Parts(parts) => {
                writeln!(f, "for each of {} parts{place}", parts.count)?;
                for step in &parts.steps {
                    for line in step.to_string().lines() {
                        writeln!(f, "    {line}")?;
                    }
                }
            }
            KernelWork::Rows(rows) => {
                writeln!(f, "for [{}]{place}", listed(&rows.vars))?;
                for (nest, _) in &rows.nests {
                    let inner = &nest.vars[rows.vars.len()..];
                    writeln!(f, "    x{}[{}] = {}", nest.to, listed(inner), nest.value)?;
                }
            }
            KernelWork::Call(call) => write_call(f, call, &self.origin)?,
            KernelWork::Kernel(k) => {
                let [(a, _), (b, _)] = k.inputs;
                let operands: Vec<String> = k.operands.iter().map(|(b, _)| format!(", x{b}")).collect();
                writeln!(f, "x{} = {}(x{a}, x{b}{}){place}", k.to, k.what, operands.concat())?;
            }
            KernelWork::Pack(p) => {
                let read: Vec<String> = self.reads().iter().map(|b| format!("x{b}")).collect();
                writeln!(f, "packed {} = {}({})", p.packed, p.call.function, read.join(", "))?;
            }
        }
        Ok(())
    }
}
