//! Stage `memory`: temporaries get places in one arena. Two that are needed at the same time do not overlap.

use super::program::{Place, Program};

/// Places start at multiples of this: a cache line, and the widest vector.
pub const ALIGNMENT: usize = 64;

/// Plans the arena; its size in bytes.
pub fn plan(program: &mut Program) -> usize {
    let lives = lives(program);
    // The largest first: what comes later fills the gaps.
    let mut order: Vec<usize> = (0..program.buffers.len()).filter(|&b| lives[b].is_some()).collect();
    order.sort_by_key(|&b| (std::cmp::Reverse(program.buffers[b].bytes()), b));
    let mut placed: Vec<(usize, usize, usize)> = Vec::new();
    let mut end = 0;
    for buffer in order {
        let size = program.buffers[buffer].bytes().next_multiple_of(ALIGNMENT).max(ALIGNMENT);
        let Some((born, dead)) = lives[buffer] else { continue };
        let overlaps = |other: usize| lives[other].is_some_and(|(b, d)| b <= dead && born <= d);
        let mut at = 0;
        // Sorted by place, so that the first gap is the lowest.
        for &(start, stop, other) in &placed {
            if overlaps(other) && start < at + size && at < stop {
                at = stop;
            }
        }
        placed.push((at, at + size, buffer));
        placed.sort_unstable();
        program.buffers[buffer].place = Place::Arena(Some(at));
        end = end.max(at + size);
    }
    end
}

/// The steps between which each temporary is needed.
fn lives(program: &Program) -> Vec<Option<(usize, usize)>> {
    let mut lives: Vec<Option<(usize, usize)>> = vec![None; program.buffers.len()];
    for (i, step) in program.steps.iter().enumerate() {
        for buffer in step.writes().into_iter().chain(step.reads()) {
            if program.buffers[buffer].is_temporary() {
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
    use mithril_ir::loops::{Argument, Call};

    use super::super::program::{Buffer, Step, Work};
    use super::*;

    #[test]
    fn a_place_is_used_again_when_nobody_needs_it() {
        let buffer = |n: i64| Buffer {
            name: String::new(),
            dtype: DType::F32,
            shape: vec![n],
            place: Place::Arena(None),
            is_param: false,
            blocks: None,
        };
        let step = |read: usize, write: usize| Step {
            name: String::new(),
            origin: String::new(),
            work: Work::Call(Call {
                function: String::new(),
                args: vec![Argument::In(read), Argument::Out(write)],
                scratch: 0,
            }),
        };
        let mut program = Program {
            buffers: vec![buffer(100), buffer(100), buffer(100), buffer(3)],
            steps: vec![step(0, 1), step(1, 2), step(2, 3)],
            ..Program::default()
        };
        assert_eq!(plan(&mut program), 2 * 448);
        let at = |b: usize| match program.buffers[b].place {
            Place::Arena(Some(at)) => at,
            _ => panic!("not placed"),
        };
        assert!(at(0) == at(2) && at(0) != at(1));
        assert!(at(3) != at(2));
    }
}
