//! Update fusion: new states that are computed element by element from the same tensors, such as the slots of an optimizer and
//! the parameter itself, are written in one pass that reads each of these once.

use crate::c::analysis::dependence::{depends, writes_state};
use crate::c::ir::expr::{BufferId, Expr, Index, StepId, Var};
use crate::c::ir::program::{KernelProgram, KernelStep, KernelWork, Nest, Rows};
use crate::ids::Id as _;

/// Steps at most before which others are not done, so that these can be done together later.
const MOST_PASSED: usize = 6;

/// Joins the steps of a program.
pub fn fuse(program: &mut KernelProgram) {
    let mut start = StepId::new(0);
    while start < program.steps.end() {
        let members = gather(program, start);
        if members.len() > 1 {
            replace(program, &members);
        } else {
            start = start.next();
        }
    }
}

/// The steps that can be one pass with the first of them, in order.
fn gather(program: &KernelProgram, start: StepId) -> Vec<StepId> {
    let mut members = Vec::new();
    for step in start.until(program.steps.end()) {
        let Some(nest) = update(program, step) else {
            if step == start {
                break;
            }
            continue;
        };
        let nests: Vec<&Nest> = members.iter().filter_map(|&i| update(program, i)).collect();
        if fits(program, &nests, nest) {
            members.push(step);
            if place(program, &members).is_none() {
                members.pop();
            }
        }
    }
    members
}

/// The nest that a step is, if it computes a new state element by element.
fn update(program: &KernelProgram, step: StepId) -> Option<&Nest> {
    let step = &program.steps[step];
    let KernelWork::Nest(nest) = &step.work else { return None };
    let mut reads_positions = false;
    nest.value.walk(&mut |e| reads_positions |= e.indices().iter().any(|index| index.reads()));
    let is_plain = !nest.value.reduces() && !reads_positions && program.buffers[nest.to].blocks.is_none();
    (is_plain && program.buffers[nest.to].count() > 0 && writes_state(program, step)).then_some(nest)
}

/// Whether a nest goes through the same elements as others, reads a whole tensor that they read or write, and whatever one
/// of them writes is read by all at the element in hand only.
fn fits(program: &KernelProgram, members: &[&Nest], new: &Nest) -> bool {
    let Some(first) = members.first() else { return true };
    let sizes = |nest: &Nest| nest.vars.iter().map(|v| v.size).collect::<Vec<_>>();
    let count = program.buffers[new.to].count();
    let is_common =
        |b: BufferId| program.buffers[b].count() == count && members.iter().any(|m| touches(m, b));
    let mut is_connected = false;
    new.value.walk(&mut |e| is_connected |= matches!(e, Expr::Load { from, .. } if is_common(*from)));
    let all = || members.iter().copied().chain([new]);
    is_connected
        && sizes(first) == sizes(new)
        && members.iter().all(|m| m.to != new.to)
        && all().all(|writer| all().all(|reader| reads_own(reader, writer.to)))
}

fn touches(nest: &Nest, buffer: BufferId) -> bool {
    let mut touches = nest.to == buffer;
    nest.value.walk(&mut |e| touches |= matches!(e, Expr::Load { from, .. } if *from == buffer));
    touches
}

/// Whether a nest reads a buffer, if it does, only at its own coordinates.
fn reads_own(nest: &Nest, buffer: BufferId) -> bool {
    let own = coordinates(&nest.vars);
    let mut reads_own = true;
    nest.value.walk(&mut |e| {
        if let Expr::Load { from, at, .. } = e {
            reads_own &= *from != buffer || *at == own;
        }
    });
    reads_own
}

/// Where members can be done together: in the place of the first of them, else of the last.
fn place(program: &KernelProgram, members: &[StepId]) -> Option<StepId> {
    let (&first, &last) = (members.first()?, members.last()?);
    let between: Vec<StepId> = first.until(last).filter(|i| !members.contains(i)).collect();
    let is_free = |&i: &StepId, member: StepId| !depends(&program.steps[member], &program.steps[i]);
    if members.iter().all(|&m| between.iter().filter(|i| **i < m).all(|i| is_free(i, m))) {
        return Some(first);
    }
    // What they need has to stay in memory until then.
    let is_near = between.len() <= MOST_PASSED;
    let is_last =
        is_near && members.iter().all(|&m| between.iter().filter(|i| **i > m).all(|i| is_free(i, m)));
    is_last.then_some(last)
}

fn coordinates(vars: &[Var]) -> Vec<Index> {
    vars.iter().map(|&v| Index::var(v)).collect()
}

/// Puts one step in the place of the first member.
fn replace(program: &mut KernelProgram, members: &[StepId]) {
    let Some(place) = place(program, members) else { return };
    let (first, last) = (members[0], members[members.len() - 1]);
    let vars = update(program, first).map_or_else(Vec::new, |nest| nest.vars.clone());
    let common = |nest: &Nest| {
        let index = |v: Var| {
            nest.vars.iter().position(|w| *w == v).map_or_else(|| Index::var(v), |i| Index::var(vars[i]))
        };
        Nest { to: nest.to, vars: vars.clone(), value: nest.value.substitute(&index) }
    };
    let nests =
        members.iter().filter_map(|&i| update(program, i)).map(|nest| (common(nest), coordinates(&vars)));
    let rows = Rows { nests: nests.collect(), vars: vars.clone(), part_vars: 0, scratch_bytes: 0 };
    let step = KernelStep { work: KernelWork::Rows(rows), ..program.steps[last].clone() };
    program.steps.insert(place + 1, step);
    for &i in members.iter().rev() {
        program.steps.remove(i + usize::from(i > place));
    }
}
