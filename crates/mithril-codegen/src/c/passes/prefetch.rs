//! Prefetch hints across steps: a kernel asks for the packed weights with which the next one starts.

use crate::c::ir::program::{KernelProgram, KernelWork};

/// Tells kernels which weights the step behind them reads first.
pub fn look_ahead(program: &mut KernelProgram) {
    for i in program.steps.ids().skip(1) {
        let KernelWork::Kernel(next) = &program.steps[i].work else { continue };
        let ahead = next.kernel.first.as_ref().map(|first| Box::new((next.packed, **first)));
        if let KernelWork::Kernel(k) = &mut program.steps[i - 1].work {
            k.ahead = ahead;
        }
    }
}
