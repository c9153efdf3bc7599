//! What the results of a program are made of: which values each step reads, by the steps that made them. Where steps are
//! moved, joined or done in place, that stays as it is.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use crate::c::ir::expr::{Argument, BufferId, Expr};
use crate::c::ir::program::{KernelProgram, KernelStep, KernelWork, Nest};
use crate::c::verify::messages::named;
use crate::ids::{OutputId, Table};

/// A value: what it was computed from.
type Value = u64;

/// The value of each output.
#[derive(Clone, Debug)]
pub struct Values(BTreeMap<OutputId, Value>);

impl Values {
    /// Those of a program.
    pub fn of(program: &KernelProgram) -> Self {
        let mut values: Table<BufferId, Value> = program.buffers.ids().map(|b| hash(("given", b))).collect();
        for step in program.prepacking.iter().chain(&program.steps) {
            take(program, step, &mut values);
        }
        let output = |(buffer, &value): (BufferId, &Value)| Some((program.buffers[buffer].output()?, value));
        Self(values.entries().filter_map(output).collect())
    }
    /// Whether those of the program are the same.
    pub fn check(&self, program: &KernelProgram) -> Result<(), String> {
        let after = Self::of(program);
        let changed = self.0.iter().find(|(n, value)| after.0.get(n) != Some(value));
        let Some((n, _)) = changed else { return Ok(()) };
        let buffer = program.buffers.position(|b| b.output() == Some(*n));
        let name = buffer.map_or_else(|| format!("output {n}"), |b| named(program, b));
        Err(format!(
            "{name} is made of other values than before: a step reads what another has not written yet, or has overwritten\n{program}"
        ))
    }
}

fn hash(of: impl Hash) -> Value {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// The values after a step.
fn take(program: &KernelProgram, step: &KernelStep, values: &mut Table<BufferId, Value>) {
    match &step.work {
        KernelWork::Nest(nest) => take_nest(program, nest, values),
        KernelWork::Rows(rows) => rows.nests.iter().for_each(|(nest, _)| take_nest(program, nest, values)),
        KernelWork::Parts(parts) => parts.steps.iter().for_each(|step| take(program, step, values)),
        KernelWork::Kernel(k) => {
            let reads = k.inputs.iter().chain(&k.operands).map(|(b, _)| *b).collect();
            make(program, k.to, reads, values);
        }
        KernelWork::Call(call) => {
            let arguments: Vec<(bool, Value)> = call
                .args
                .iter()
                .filter_map(|arg| match arg {
                    Argument::In(b) => Some((false, values[*b])),
                    Argument::Out(b) => Some((true, values[*b])),
                    _ => None,
                })
                .collect();
            for b in step.writes() {
                values[b] = hash((&call.function, called(program, b), &arguments));
            }
        }
        KernelWork::Pack(_) => {}
    }
}

/// The values after a nest. Moved elements stay what they are.
fn take_nest(program: &KernelProgram, nest: &Nest, values: &mut Table<BufferId, Value>) {
    if let Some(from) = moved(program, nest) {
        values[nest.to] = values[from];
        return;
    }
    let mut reads = Vec::new();
    nest.value.walk(&mut |e| {
        if let Expr::Load { from, .. } = e {
            reads.push(*from);
        }
    });
    make(program, nest.to, reads, values);
}

/// A buffer is filled from others.
fn make(program: &KernelProgram, to: BufferId, reads: Vec<BufferId>, values: &mut Table<BufferId, Value>) {
    let mut from: Vec<Value> = reads.into_iter().map(|b| values[b]).collect();
    from.sort_unstable();
    from.dedup();
    values[to] = hash((called(program, to), from));
}

/// What stands for a buffer that is written: a new state that takes the place of the old one is still the new one.
fn called(program: &KernelProgram, to: BufferId) -> BufferId {
    let is_state = program.buffers[to].is_state();
    let update = program.updates.iter().find(|(old, _)| is_state && *old == to);
    update.map_or(to, |(_, new)| *new)
}

/// The buffer whose elements a nest moves, as they are.
fn moved(program: &KernelProgram, nest: &Nest) -> Option<BufferId> {
    match &nest.value {
        Expr::Load { from, stored, .. } if *stored == program.buffers[nest.to].dtype => Some(*from),
        _ => None,
    }
}
