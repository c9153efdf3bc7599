//! Row-wise fusion: nests over the same rows become one step, which computes all of them for a row before the next. A softmax,
//! a norm, a loss, and their gradients then read every row once, and intermediate values of a row stay in scratch memory of
//! the thread.
//!
//! Recognized by their variables: a *row variable* of a nest is one by which every consumer in the step reads what the nest
//! fills, at its own row variable and nothing else.

use std::cell::Cell;
use std::collections::HashMap;

use crate::c::analysis::cost;
use crate::c::analysis::dependence::writes_state;
use crate::c::analysis::split::split;
use crate::c::ir::expr::{BufferId, Expr, Index, StepId, Var, non_unit};
use crate::c::ir::program::{
    ALIGNMENT, KernelMemory, KernelProgram, KernelStep, KernelWork, Nest, Place, Rows,
};
use crate::ids::Id as _;

/// Steps that have nothing to do with a group, at most, that are done before it.
const MOST_PASSED: usize = 6;

/// Nests in a group at most: what a step costs grows with them, and a recurrence has the same rows all along.
const MOST_MEMBERS: usize = 48;

/// Bytes of scratch memory, at most, for one row.
const LARGEST_ROW: usize = 128 << 10;

/// Rows that are enough to be divided between threads.
const LEAST_ROWS: i64 = 8;

/// Groups the nests of a program.
pub fn fuse(program: &mut KernelProgram) {
    let readers = readers(program);
    let mut start = StepId::new(0);
    while start < program.steps.end() {
        if let Some(group) = Group::gather(program, start, &readers) {
            let at = group.passed.len();
            apply(&group, program, start);
            start = start + at;
        }
        start = start.next();
    }
}

/// How many steps read each buffer.
pub fn readers(program: &KernelProgram) -> HashMap<BufferId, usize> {
    let mut readers = HashMap::new();
    for step in &program.steps {
        let mut reads = step.reads();
        reads.sort_unstable();
        reads.dedup();
        for b in reads {
            *readers.entry(b).or_insert(0) += 1;
        }
    }
    readers
}

/// A nest in a group.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its step.
    pub step: StepId,
    /// The buffer that it fills.
    pub to: BufferId,
    /// Its variables, with as few divisions as possible.
    pub vars: Vec<Var>,
    /// Where it stores.
    pub at: Vec<Index>,
    /// What it stores.
    pub value: Expr,
    /// Which of its variables are the row variables, in an order common to all members.
    pub rows: Vec<Var>,
}

impl Member {
    /// The member that a step is, if it may be in a group.
    fn of(program: &KernelProgram, step: StepId, next: &Cell<u32>) -> Option<Self> {
        let KernelWork::Nest(nest) = &program.steps[step].work else { return None };
        let buffer = &program.buffers[nest.to];
        let is_state = buffer.is_state();
        if buffer.blocks.is_some() || buffer.count() == 0 || is_state {
            return None;
        }
        let (mut vars, mut value) = (nest.vars.clone(), nest.value.clone());
        let mut at: Vec<Index> = vars.iter().map(|&v| Index::var(v)).collect();
        split(&mut vars, &mut value, next, &mut |var, digits| {
            for index in &mut at {
                *index = index.substitute(&|v| if v == var { digits.clone() } else { Index::var(v) });
            }
        });
        let rows = non_unit(&vars);
        Some(Self { step, to: nest.to, vars, at, value, rows })
    }
    /// The axis of what is filled that a variable is.
    pub fn axis(&self, var: Var) -> Option<usize> {
        self.at.iter().position(|at| *at == Index::var(var))
    }
    /// The number of a row variable along which it reads or writes neighbours while its inner loops do not.
    fn across(&self, program: &KernelProgram) -> Option<usize> {
        let mut positions = vec![program.buffers[self.to].position(&self.at)];
        self.value.walk(&mut |e| {
            if let Expr::Load { from, at, .. } = e {
                positions.push(program.buffers[*from].position(at));
            }
        });
        (0..self.rows.len()).find(|&i| {
            positions.iter().any(|at| {
                let mut moves_inside = false;
                at.each_var(&mut |v| moves_inside |= !self.rows.contains(&v));
                moves_inside && at.factor(self.rows[i]).is_some_and(|f| f.abs() == 1)
            })
        })
    }
    /// Number of elements of one row.
    pub fn inner(&self) -> i64 {
        self.vars.iter().filter(|v| !self.rows.contains(v)).map(|v| v.size).product()
    }
    /// As a nest with common variables, of which `common` says what stands for each row variable; `local` are the
    /// coordinates that remain of a local buffer.
    pub fn nest(
        &self,
        common: &[Var],
        index: &dyn Fn(Var) -> Index,
        local: &dyn Fn(BufferId, Vec<Index>) -> Vec<Index>,
    ) -> (Nest, Vec<Index>) {
        let value = self.value.substitute(index).map_loads(&|from, at, stored| Expr::Load {
            from,
            at: local(from, at),
            stored,
        });
        let at = local(self.to, self.at.iter().map(|at| at.substitute(index)).collect());
        let inner = self.vars.iter().copied().filter(|v| !self.rows.contains(v));
        (Nest { to: self.to, vars: common.iter().copied().chain(inner).collect(), value }, at)
    }
}

/// Nests with common rows.
#[derive(Clone, Debug)]
pub struct Group {
    /// They, in order.
    pub members: Vec<Member>,
    /// Steps between them that are done before.
    pub passed: Vec<StepId>,
    /// What only members read.
    pub locals: Vec<BufferId>,
    /// The next number of a variable.
    pub next: Cell<u32>,
}

impl Group {
    /// A group of one step.
    pub fn of(program: &KernelProgram, start: StepId) -> Option<Self> {
        let next = Cell::new(program.next_var);
        let first = Member::of(program, start, &next)?;
        Some(Self { members: vec![first], passed: Vec::new(), locals: Vec::new(), next })
    }
    /// The group that starts with a step, if there is one.
    fn gather(program: &KernelProgram, start: StepId, readers: &HashMap<BufferId, usize>) -> Option<Self> {
        let mut group = Self::of(program, start)?;
        for step in start.next().until(program.steps.end()) {
            if let Some(joined) = group.join(program, step).and_then(|members| as_loops(program, members)) {
                group.members = joined;
            } else if !group.pass(program, step) {
                break;
            }
        }
        group.close(program, readers);
        (group.members.len() > 1 && !group.locals.is_empty()).then_some(group)
    }
    /// Leaves a step to be done before, if it may be; else the group is over.
    pub fn pass(&mut self, program: &KernelProgram, step: StepId) -> bool {
        let fits = self.passed.len() < MOST_PASSED && self.may_pass(program, step);
        if fits {
            self.passed.push(step);
        }
        fits
    }
    /// Ends with the last member: what comes after stays where it is.
    pub fn close(&mut self, program: &KernelProgram, readers: &HashMap<BufferId, usize>) {
        let last = self.members.last().map(|m| m.step);
        self.passed.retain(|&step| Some(step) < last);
        let is_local = |&b: &BufferId| {
            let inside = self.members.iter().filter(|m| program.steps[m.step].reads().contains(&b)).count();
            program.buffers[b].is_temporary() && readers.get(&b).is_some_and(|&n| n == inside)
        };
        self.locals = self.members.iter().map(|m| m.to).filter(is_local).collect();
    }
    /// Whether a step may be done before the members, which stand before it.
    fn may_pass(&self, program: &KernelProgram, step: StepId) -> bool {
        let writes: Vec<BufferId> = self.members.iter().map(|m| m.to).collect();
        let reads = |b| self.members.iter().any(|m| program.steps[m.step].reads().contains(b));
        let step = &program.steps[step];
        // States are written when all has been done that can fail.
        !writes_state(program, step)
            && !step.reads().iter().any(|b| writes.contains(b))
            && !step.writes().iter().any(|b| reads(b) || writes.contains(b))
    }
    /// The members with a further one, if it goes through the same rows.
    pub fn join(&self, program: &KernelProgram, step: StepId) -> Option<Vec<Member>> {
        if self.members.len() >= MOST_MEMBERS {
            return None;
        }
        let mut new = Member::of(program, step, &self.next)?;
        let is_used = |m: &Member| m.to == new.to || program.steps[m.step].reads().contains(&new.to);
        if self.members.iter().any(is_used) {
            return None;
        }
        let count = self.members[0].rows.len();
        let mut own: Vec<Option<Var>> = vec![None; count];
        let (mut kept, mut is_connected) = (vec![true; count], false);
        new.value.walk(&mut |e| {
            let Expr::Load { from, at, .. } = e else { return };
            let Some(writer) = self.members.iter().find(|m| m.to == *from) else { return };
            is_connected = true;
            for (i, row) in writer.rows.iter().enumerate() {
                let read = writer.axis(*row).map(|axis| &at[axis]);
                let var =
                    new.vars.iter().copied().find(|&v| v.size == row.size && read == Some(&Index::var(v)));
                kept[i] &= var.is_some_and(|v| own[i].is_none_or(|o| o == v));
                own[i] = var;
            }
        });
        new.rows = own.iter().map(|v| v.unwrap_or(Var { id: u32::MAX, size: 0 })).collect();
        let mut members = self.members.clone();
        members.push(new);
        keep(&mut members, |i| kept[i]);
        is_connected.then_some(members)
    }
    /// The steps from `start` on: those that were passed, then `work`, then the others up to the last member.
    pub fn replace(&self, program: &mut KernelProgram, start: StepId, work: KernelWork) {
        let last = self.members[self.members.len() - 1].step;
        let named = program.steps[last].clone();
        let mut steps: Vec<KernelStep> = self.passed.iter().map(|&i| program.steps[i].clone()).collect();
        steps.push(KernelStep { work, ..named });
        program.steps.splice(start..last.next(), steps);
    }
}

/// The members if loops go through their rows well: without row variables along which neighbours lie.
fn as_loops(program: &KernelProgram, mut members: Vec<Member>) -> Option<Vec<Member>> {
    while let Some(bad) = members.iter().find_map(|m| m.across(program)) {
        keep(&mut members, |i| i != bad);
    }
    let work = members.iter().map(|m| cost::of_value(&m.vars, &m.value)).fold(0, i64::saturating_add);
    let rows: i64 = members[0].rows.iter().map(|v| v.size).product();
    let is_divided = rows >= LEAST_ROWS || work < cost::LEAST_WORK;
    let bytes = |m: &Member| m.inner() as usize * program.buffers[m.to].dtype.size();
    (is_divided && members.iter().map(bytes).sum::<usize>() <= LARGEST_ROW).then_some(members)
}

fn keep(members: &mut [Member], is_kept: impl Fn(usize) -> bool) {
    for member in members {
        let mut i = 0;
        member.rows.retain(|_| {
            i += 1;
            is_kept(i - 1)
        });
    }
}

/// Replaces the steps of a group.
fn apply(group: &Group, program: &mut KernelProgram, start: StepId) {
    program.next_var = group.next.get();
    let rows: Vec<Var> = group.members[0].rows.iter().map(|v| program.fresh_var(v.size)).collect();
    let mut axes: HashMap<BufferId, Vec<bool>> = HashMap::new();
    let mut scratch_bytes = 0;
    for member in group.members.iter().filter(|m| group.locals.contains(&m.to)) {
        let of_rows: Vec<Option<usize>> = member.rows.iter().map(|&v| member.axis(v)).collect();
        let kept: Vec<bool> = (0..member.at.len()).map(|axis| !of_rows.contains(&Some(axis))).collect();
        let buffer = &mut program.buffers[member.to];
        let mut is_kept = kept.iter();
        buffer.shape.retain(|_| is_kept.next() == Some(&true));
        buffer.place = Place::Memory(KernelMemory::Scratch(scratch_bytes));
        if !buffer.is_constant() {
            scratch_bytes += buffer.bytes().next_multiple_of(ALIGNMENT);
        }
        axes.insert(member.to, kept);
    }
    let local = |buffer: BufferId, at: Vec<Index>| match axes.get(&buffer) {
        Some(kept) => at.into_iter().zip(kept).filter(|(_, kept)| **kept).map(|(at, _)| at).collect(),
        None => at,
    };
    let nests = group.members.iter().map(|member| {
        let index = |v: Var| {
            let row = member.rows.iter().position(|&w| w == v);
            row.map_or(Index::var(v), |i| Index::var(rows[i]))
        };
        member.nest(&rows, &index, &local)
    });
    let nests = nests.collect();
    group.replace(program, start, KernelWork::Rows(Rows { vars: rows, part_vars: 0, nests, scratch_bytes }));
}
