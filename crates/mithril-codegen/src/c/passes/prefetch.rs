//! Prefetch: kernels prefetch the packed weights that the next step starts with.

use crate::c::ir::program::{KernelProgram, KernelWork};

/// Sets the weights that each kernel prefetches.
pub fn prefetch(program: &mut KernelProgram) {
    for i in program.steps.ids().skip(1) {
        let KernelWork::Kernel(next) = &program.steps[i].work else { continue };
        let weights = next.kernel.panel_start.as_ref().map(|start| Box::new((next.packed, **start)));
        if let KernelWork::Kernel(k) = &mut program.steps[i - 1].work {
            k.next_weights = weights;
        }
    }
}
