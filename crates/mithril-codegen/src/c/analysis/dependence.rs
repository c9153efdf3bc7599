//! Dependences between steps.

use crate::c::ir::expr::BufferId;
use crate::c::ir::program::{KernelProgram, KernelStep};

/// Whether a step changes a state.
pub fn writes_state(program: &KernelProgram, step: &KernelStep) -> bool {
    step.writes().iter().any(|&b| program.buffers[b].is_state())
}

/// Whether a step has to stay behind another.
pub fn depends(step: &KernelStep, other: &KernelStep) -> bool {
    let meets = |a: &[BufferId], b: &[BufferId]| a.iter().any(|x| b.contains(x));
    let (reads, writes) = (step.reads(), step.writes());
    let (theirs, written) = (other.reads(), other.writes());
    meets(&reads, &written) || meets(&writes, &theirs) || meets(&writes, &written)
}
