//! The verifier of programs of loops: what a stage got wrong is an error that names the stage, the step and the buffers,
//! instead of numbers that are wrong.
//!
//! | file | what it looks at | when |
//! |---|---|---|
//! | `bounds` | every element that is read or stored exists; a nest fills all of its buffer | after every stage, in debug builds |
//! | `order` | what is read was written before: by earlier steps, in the same part, in the same row; memory is not given away too soon | the same |
//! | `text` | the text of a program of loops parses, to the same program | the same |
//! | `values` | steps that are moved, joined or done in place still read the values that they read before | around the stages that do that, in debug builds |
//! | `emitted` | the calls in the order in which they are written to the file, with the places where threads wait | whenever C is written |
//!
//! Nothing is refused because it could not be proved: an index that intervals do not settle is computed at some places, and
//! one of these has to lie outside.

use mithril_ir::error::{Error, Result};
use values::Values;

use crate::c::ir::driver::{Line, Phase};
use crate::c::ir::program::{KernelProgram, Level, LoopProgram, Program};

mod bounds;
mod emitted;
mod index;
mod memory;
mod messages;
mod order;
mod rows;
#[cfg(test)]
mod tests;
mod values;

/// Whether programs are looked at between the stages, too.
const BETWEEN: bool = cfg!(debug_assertions);

/// Looks at the program that a stage has made.
pub fn after<L: Level>(stage: &str, program: &Program<L>) -> Result<()>
where
    Program<L>: Clone + Into<KernelProgram>,
{
    if !BETWEEN {
        return Ok(());
    }
    let program = program.clone().into();
    bounds::check(&program).and_then(|()| order::check(&program)).map_err(|text| wrong(stage, &text))
}

/// Whether the text form of a program of loops parses to the same program.
pub fn round_trip(stage: &str, program: &LoopProgram, text: &str) -> Result<()> {
    if !BETWEEN {
        return Ok(());
    }
    let parsed = LoopProgram::parse(text, &program.elided_constants())?;
    if parsed.to_string() == text {
        Ok(())
    } else {
        Err(wrong(stage, &format!("the text of the program parses to another one\n{text}\n{parsed}")))
    }
}

/// What the results of a program are made of, before a stage that moves steps.
pub fn values<L: Level>(program: &Program<L>) -> Option<Values>
where
    Program<L>: Clone + Into<KernelProgram>,
{
    BETWEEN.then(|| Values::of(&program.clone().into()))
}

/// Looks whether they are made of the same after it.
pub fn still<L: Level>(before: Option<Values>, stage: &str, program: &Program<L>) -> Result<()>
where
    Program<L>: Clone + Into<KernelProgram>,
{
    before.map_or(Ok(()), |before| before.check(&program.clone().into()).map_err(|text| wrong(stage, &text)))
}

/// Looks at the calls that are written to the file: those of packing, and the lines of a call, of threads or of one.
pub fn written(
    program: &KernelProgram,
    packing: &[Vec<Phase>],
    lines: &[Line<'_>],
    threads: bool,
) -> Result<()> {
    let packed = emitted::packing(program, packing);
    packed
        .and_then(|packed| emitted::running(program, &packed, lines, threads))
        .map_err(|text| wrong("emit", &text))
}

/// The error for what a stage got wrong.
fn wrong(stage: &str, text: &str) -> Error {
    Error::internal(format!("pass `{stage}` of C: {text}"))
}
