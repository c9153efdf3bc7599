//! Dead code elimination: removes nests whose results nothing reads.

use crate::c::ir::expr::BufferId;
use crate::c::ir::program::{Program, Work};
use crate::ids::Table;

/// Leaves out what is computed element by element and read by nobody.
pub fn remove_unread<W: Work>(program: &mut Program<W>) {
    let mut is_read: Table<BufferId, bool> = Table::beside(&program.buffers, false);
    for step in program.steps.iter().chain(&program.prepared) {
        // What a call writes, and a nest filled before, is changed in place.
        let changed = if step.work.nest().is_some() { Vec::new() } else { step.writes() };
        step.reads().into_iter().chain(changed).for_each(|b| is_read[b] = true);
    }
    let buffers = &program.buffers;
    program.steps.retain(|step| {
        let Some(nest) = step.work.nest() else { return true };
        let mut is_kept = is_read[nest.to] || !buffers[nest.to].is_temporary() || nest.value.reduces();
        nest.value.walk(&mut |e| is_kept |= e.indices().iter().any(|index| index.reads()));
        is_kept
    });
}
