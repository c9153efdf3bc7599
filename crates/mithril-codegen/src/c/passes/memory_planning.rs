//! Memory planning: temporaries get offsets in one arena. Two whose live ranges intersect do not overlap.

use crate::c::ir::expr::{BufferId, StepId};
use crate::c::ir::program::{
    ALIGNMENT, KernelBuffer, KernelBuffers, KernelMemory, KernelProgram, KernelWork, Place, Steps,
};
use crate::ids::Table;

/// Plans the memory: that of the packed parameters behind the weights of kernels, the scratch memory of packing, and the
/// arena.
pub fn plan(program: &mut KernelProgram) {
    for step in &program.steps {
        for b in step.reads() {
            let buffer = &mut program.buffers[b];
            if matches!(buffer.place, Place::Memory(KernelMemory::Packed(None))) {
                buffer.place = Place::Memory(KernelMemory::Packed(Some(program.info.packed_bytes)));
                program.info.packed_bytes += buffer.bytes().next_multiple_of(ALIGNMENT);
            }
        }
    }
    let is_scratch =
        |buffer: &KernelBuffer| matches!(buffer.place, Place::Memory(KernelMemory::Packed(None)));
    program.info.pack_bytes =
        arrange(&mut program.buffers, &program.prepacking, is_scratch, KernelMemory::Packing);
    let arena_bytes = arrange(&mut program.buffers, &program.steps, KernelBuffer::is_temporary, |at| {
        KernelMemory::Arena(Some(at))
    });
    program.info.arena_bytes = Some(arena_bytes);
}

/// Gives a place to every buffer of the steps that `is_mine`; bytes of the memory.
fn arrange(
    buffers: &mut KernelBuffers,
    steps: &Steps<KernelWork>,
    is_mine: impl Fn(&KernelBuffer) -> bool,
    place: impl Fn(usize) -> KernelMemory,
) -> usize {
    let lives = lives(buffers, steps, is_mine);
    // The largest first: what comes later fills the gaps.
    let mut order: Vec<BufferId> = buffers.ids().filter(|&b| lives[b].is_some()).collect();
    order.sort_by_key(|&b| (std::cmp::Reverse(buffers[b].bytes()), b));
    let mut placed: Vec<(usize, usize, BufferId)> = Vec::new();
    let mut end = 0;
    for buffer in order {
        let size = buffers[buffer].bytes().next_multiple_of(ALIGNMENT).max(ALIGNMENT);
        let Some((born, dead)) = lives[buffer] else { continue };
        let overlaps = |other: BufferId| lives[other].is_some_and(|(b, d)| b <= dead && born <= d);
        let mut at = 0;
        // Sorted by place, so that the first gap is the lowest.
        for &(start, stop, other) in &placed {
            if overlaps(other) && start < at + size && at < stop {
                at = stop;
            }
        }
        placed.push((at, at + size, buffer));
        placed.sort_unstable();
        buffers[buffer].place = Place::Memory(place(at));
        end = end.max(at + size);
    }
    end
}

/// Of each buffer the first and the last step that need it.
type Lives = Table<BufferId, Option<(StepId, StepId)>>;

/// The steps between which each of the buffers is needed.
fn lives(
    buffers: &KernelBuffers,
    steps: &Steps<KernelWork>,
    is_mine: impl Fn(&KernelBuffer) -> bool,
) -> Lives {
    let mut lives: Lives = Table::beside(buffers, None);
    for (i, step) in steps.entries() {
        for buffer in step.writes().into_iter().chain(step.reads()) {
            if is_mine(&buffers[buffer]) {
                let life = lives[buffer].get_or_insert((i, i));
                life.1 = i;
            }
        }
    }
    lives
}

#[cfg(test)]
mod tests {
    use mithril_ir::DType;

    use super::*;
    use crate::c::ir::expr::{Argument, Call};
    use crate::c::ir::program::KernelStep;
    use crate::ids::Id;

    #[test]
    fn a_place_is_used_again_when_nobody_needs_it() {
        let buffer = |n: i64| KernelBuffer::temporary(String::new(), DType::F32, vec![n]);
        let step = |read: usize, write: usize| KernelStep {
            name: String::new(),
            origin: String::new(),
            work: KernelWork::Call(Call {
                function: String::new(),
                args: vec![Argument::In(BufferId::new(read)), Argument::Out(BufferId::new(write))],
                scratch: 0,
            }),
        };
        let mut program = KernelProgram {
            buffers: vec![buffer(100), buffer(100), buffer(100), buffer(3)].into(),
            steps: vec![step(0, 1), step(1, 2), step(2, 3)].into(),
            ..KernelProgram::default()
        };
        plan(&mut program);
        assert_eq!(program.info.arena_bytes, Some(2 * 448));
        let at = |b: usize| match program.buffers[BufferId::new(b)].place {
            Place::Memory(KernelMemory::Arena(Some(at))) => at,
            _ => panic!("not placed"),
        };
        assert!(at(0) == at(2) && at(0) != at(1));
        assert!(at(3) != at(2));
    }
}
