//! How messages of the verifier name buffers and steps.

use crate::c::ir::expr::{BufferId, StepId};
use crate::c::ir::program::{KernelProgram, KernelStep, KernelWork};
use crate::c::ir::text::kernel_step;

/// A buffer, for messages.
pub fn named(program: &KernelProgram, buffer: BufferId) -> String {
    match program.buffers.get(buffer) {
        Some(b) => format!("x{buffer} `{}` {:?}", b.name, b.shape),
        None => format!("x{buffer}, which there is not"),
    }
}

/// What is wrong with a step, with its number and what it does.
pub fn in_step(program: &KernelProgram, number: StepId, step: &KernelStep, text: &str) -> String {
    let kind = match &step.work {
        KernelWork::Nest(_) => "loops".to_owned(),
        KernelWork::Call(call) => call.function.clone(),
        KernelWork::Kernel(k) => k.what.clone(),
        KernelWork::Rows(_) => "rows".to_owned(),
        KernelWork::Pack(p) => p.call.function.clone(),
        KernelWork::Parts(parts) => format!("{} parts", parts.count),
    };
    let place = if step.origin.is_empty() { String::new() } else { format!(" in {}", step.origin) };
    let lines = kernel_step(step, &program.buffers);
    format!("step {number}, `{}`{place} ({kind}), {text}\n{lines}", step.name)
}
