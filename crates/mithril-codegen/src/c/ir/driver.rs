//! What the function that runs a program says: statements, in phases between which threads may have to wait. Each says what
//! it reads and writes, so that `verify` can go through them.

use std::fmt::Write as _;

use crate::c::ir::expr::{BufferId, StepId};
use crate::c::ir::kernel::{Argument, Call};
use crate::c::ir::program::KernelCall;

/// Calls between which nobody has to wait.
#[derive(Default, Clone, Debug)]
pub struct Phase {
    /// What they compute, as a comment; empty where the names say it.
    pub title: String,
    /// The statements.
    pub calls: Vec<Statement>,
    /// Whether every thread makes them and does its part; else the first thread does all.
    pub everyone: bool,
}

/// A statement of C.
#[derive(Clone, Debug)]
pub struct Statement {
    /// Its text.
    pub text: String,
    /// What it does.
    pub does: Does,
}

/// What a statement does.
#[derive(Clone, Debug)]
pub enum Does {
    /// It calls a function.
    Call(Effect),
    /// It begins the loop over parts.
    Begin,
    /// It ends that loop.
    End,
}

/// What a call reads and writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effect {
    /// KernelBuffers that are read, and that are not written by the same call before.
    pub reads: Vec<BufferId>,
    /// KernelBuffers that are written.
    pub writes: Vec<BufferId>,
    /// Where the packed weights start that are read.
    pub weights: Option<usize>,
    /// Where the weights start that are packed.
    pub packs: Option<usize>,
    /// Whether each thread does a share of the work, by its number.
    pub divided: bool,
}

impl Phase {
    /// Adds its comment.
    pub fn head(&self, out: &mut String) {
        if !self.title.is_empty() {
            let _ = writeln!(out, "    {}", self.title);
        }
    }
}

impl Statement {
    /// A call.
    pub fn call(text: String, effect: Effect) -> Self {
        Self { text, does: Does::Call(effect) }
    }
}

impl Effect {
    /// That of a call of a kernel's phase of this number.
    pub fn of(k: &KernelCall, phase: usize, call: &Call) -> Self {
        let mut effect = Self { reads: k.reads(call).collect(), ..Self::default() };
        for argument in &call.arguments {
            match argument {
                Argument::Out => effect.writes.push(k.to),
                Argument::Packed => effect.weights = Some(k.packed),
                // Every phase may leave something there for the next.
                Argument::Shared | Argument::SharedAt(_) => {
                    effect.writes.extend(k.shared);
                    effect.reads.extend(k.shared.filter(|_| phase > 0));
                }
                _ => {}
            }
        }
        effect
    }
}

/// A line of the function that runs a program.
#[derive(Debug)]
pub enum Line<'a> {
    /// All threads wait for each other.
    Wait,
    /// Text that touches no buffer.
    Text(String),
    /// A statement, whether every thread makes it or the first alone, and of which step and phase.
    Statement {
        /// The statement.
        statement: &'a Statement,
        /// Whether every thread makes it.
        everyone: bool,
        /// Numbers of the step and of the phase.
        at: (StepId, usize),
    },
}
