//! How messages of the verifier name buffers and steps.

use crate::c::ir::expr::{BufferId, StepId};
use crate::c::ir::program::{Program, Step, Work};

/// A buffer, for messages.
pub fn named(program: &Program, buffer: BufferId) -> String {
    match program.buffers.get(buffer) {
        Some(b) => format!("x{buffer} `{}` {:?}", b.name, b.shape),
        None => format!("x{buffer}, which there is not"),
    }
}

/// What is wrong with a step, with its number and what it does.
pub fn in_step(number: StepId, step: &Step, text: &str) -> String {
    let kind = match &step.work {
        Work::Nest(_) => "loops".to_owned(),
        Work::Call(call) => call.function.clone(),
        Work::Kernel(k) => k.what.clone(),
        Work::Rows(_) => "rows".to_owned(),
        Work::Pack(p) => p.call.function.clone(),
        Work::Parts(parts) => format!("{} parts", parts.count),
    };
    let place = if step.origin.is_empty() { String::new() } else { format!(" in {}", step.origin) };
    format!("step {number}, `{}`{place} ({kind}), {text}\n{step}", step.name)
}
