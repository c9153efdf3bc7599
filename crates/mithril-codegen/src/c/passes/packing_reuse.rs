//! Packing reuse: products by the same factor pack it once.
//!
//! Weights that change with every call, as in a training step, are packed by the kernels that read them. Where several do, such
//! as the steps of a recurrent layer or layers that share a weight, the later ones read what the first has packed.

use crate::c::ir::expr::BufferId;
use crate::c::ir::kernel::{Argument, Call};
use crate::c::ir::program::{KernelCall, KernelProgram, KernelWork, Start};

/// Lets kernels read what an earlier one has packed.
pub fn reuse_packing(program: &mut KernelProgram) {
    let mut packed: Vec<(Call, Start, BufferId)> = Vec::new();
    for step in program.steps.ids() {
        if let KernelWork::Kernel(k) = &mut program.steps[step].work
            && let Some((call, shared)) = packing(k)
        {
            let same = packed.iter().find(|(other, factor, _)| *other == call && *factor == k.inputs[1]);
            match same.map(|(_, _, at)| *at) {
                Some(at) => read_packed(k, at),
                None => packed.push((call, k.inputs[1], shared)),
            }
        }
        let written = program.steps[step].writes();
        packed.retain(|(_, factor, _)| !written.contains(&factor.0));
    }
}

/// The call that packs the second factor of a kernel, and the memory that it fills, if the kernel does no more there than read
/// it.
fn packing(k: &KernelCall) -> Option<(Call, BufferId)> {
    let [first, second] = k.kernel.phases.as_slice() else { return None };
    let [call] = first.as_slice() else { return None };
    let packs = |argument: &Argument| {
        matches!(argument, Argument::Thread | Argument::Threads | Argument::B | Argument::Shared)
    };
    let is_packing = call.arguments.iter().all(packs) && call.arguments.contains(&Argument::B);
    let mut later = second.iter().flat_map(|call| &call.arguments);
    let only_reads = !later.any(|argument| matches!(argument, Argument::B | Argument::SharedAt(_)));
    (is_packing && only_reads).then_some((call.clone(), k.shared?))
}

/// The kernel without its packing, which reads what lies there.
fn read_packed(k: &mut KernelCall, at: BufferId) {
    k.kernel.phases.remove(0);
    for argument in k.kernel.phases.iter_mut().flatten().flat_map(|call| &mut call.arguments) {
        if *argument == Argument::Shared {
            *argument = Argument::PackedB;
        }
    }
    k.kernel.shared_bytes = 0;
    k.shared = None;
    k.inputs[1] = (at, 0);
}
