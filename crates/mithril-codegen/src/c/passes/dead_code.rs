//! Dead code elimination: removes nests whose results nothing reads.

use crate::c::ir::expr::BufferId;
use crate::c::ir::program::{Level, Program, Work as _};
use crate::ids::Table;

/// Removes elementwise nests that fill temporaries which nothing reads.
pub fn eliminate<L: Level>(program: &mut Program<L>) {
    let mut is_read: Table<BufferId, bool> = Table::beside(&program.buffers, false);
    for step in program.steps.iter().chain(&program.prepacking) {
        // A call may update in place what a nest has filled before.
        let updated = if step.work.nest().is_some() { Vec::new() } else { step.writes() };
        step.reads().into_iter().chain(updated).for_each(|b| is_read[b] = true);
    }
    let buffers = &program.buffers;
    program.steps.retain(|step| {
        let Some(nest) = step.work.nest() else { return true };
        let mut is_kept = is_read[nest.to] || !buffers[nest.to].is_temporary() || nest.value.reduces();
        // Indices that are read from a tensor are checked.
        nest.value.walk(&mut |e| is_kept |= e.indices().iter().any(|index| index.reads()));
        is_kept
    });
}
