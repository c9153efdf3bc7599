//! Prefetch hints across steps: a kernel asks for the packed weights with which the next one starts.

use crate::c::ir::program::{Program, Work};

/// Tells kernels which weights the step behind them reads first.
pub fn look_ahead(program: &mut Program) {
    for i in program.steps.ids().skip(1) {
        let Work::Kernel(next) = &program.steps[i].work else { continue };
        let ahead = next.kernel.first.as_ref().map(|first| Box::new((next.packed, **first)));
        if let Work::Kernel(k) = &mut program.steps[i - 1].work {
            k.ahead = ahead;
        }
    }
}
