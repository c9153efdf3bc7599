//! Isolation of steps: to measure the candidates of kernels, only the steps that run these kernels are kept.

use crate::c::ir::program::{KernelProgram, KernelWork};

/// Keeps the first step of each specification; all steps if there is none.
pub fn isolate(program: &mut KernelProgram, specifications: &[String]) {
    if specifications.is_empty() {
        return;
    }
    let mut remaining: Vec<&String> = specifications.iter().collect();
    program.steps.retain(|step| {
        let KernelWork::Kernel(k) = &step.work else { return false };
        let position = k.tuning_keys.first().and_then(|key| remaining.iter().position(|w| *w == key));
        position.map(|i| remaining.swap_remove(i)).is_some()
    });
}
