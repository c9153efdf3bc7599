//! Stage `rows`: nests that go through the same rows one after the other become one step, which does all of them for a
//! row before the next. A softmax, a norm, a loss, and their gradients then read every row once, and what only they need
//! of it is scratch memory of the thread.
//!
//! They are recognised by their variables: a *row variable* of a nest is one by which every reader in the step reads
//! what the nest fills, at its own row variable and nothing else.

use std::collections::HashMap;

use mithril_ir::loops::{Expr, Index, Var};

use super::memory::ALIGNMENT;
use super::nest;
use super::program::{Nest, Place, Program, Rows, Step, Work};
use super::state::writes_state;

/// Steps that have nothing to do with a group, at most, that are done before it.
const MOST_PASSED: usize = 6;

/// Bytes of scratch memory, at most, for one row.
const LARGEST_ROW: usize = 128 << 10;

/// Rows that are enough to be divided between threads.
const LEAST_ROWS: i64 = 8;

/// Groups the nests of a program.
pub fn group(program: &mut Program) {
    let readers = readers(program);
    let mut start = 0;
    while start < program.steps.len() {
        if let Some(group) = Group::gather(program, start, &readers) {
            let at = group.passed.len();
            group.apply(program, start);
            start += at;
        }
        start += 1;
    }
}

/// How many steps read each buffer.
pub fn readers(program: &Program) -> HashMap<usize, usize> {
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

/// Nests with common rows.
#[derive(Clone, Debug)]
struct Group {
    /// Their steps, and which of their variables are the row variables, in an order common to all.
    members: Vec<(usize, Vec<Var>)>,
    /// Steps between them that are done before.
    passed: Vec<usize>,
    /// What only members read.
    locals: Vec<usize>,
}

impl Group {
    /// The group that starts with a step, if there is one.
    fn gather(program: &Program, start: usize, readers: &HashMap<usize, usize>) -> Option<Self> {
        let first = eligible(program, start)?;
        let rows = first.vars.iter().copied().filter(|v| v.size != 1).collect();
        let mut group = Self { members: vec![(start, rows)], passed: Vec::new(), locals: Vec::new() };
        for step in start + 1..program.steps.len() {
            if let Some(joined) = group.join(program, step) {
                group.members = joined;
            } else if group.passed.len() == MOST_PASSED || !group.may_pass(program, step) {
                break;
            } else {
                group.passed.push(step);
            }
        }
        // Those after the last member stay where they are.
        let last = group.members.last()?.0;
        group.passed.retain(|&step| step < last);
        group.locals = group.locals(program, readers);
        (group.members.len() > 1 && !group.locals.is_empty()).then_some(group)
    }
    fn reads(&self, program: &Program) -> Vec<usize> {
        self.members.iter().flat_map(|(step, _)| program.steps[*step].reads()).collect()
    }
    fn writes(&self, program: &Program) -> Vec<usize> {
        self.members.iter().flat_map(|(step, _)| program.steps[*step].writes()).collect()
    }
    /// Whether a step may be done before the members, which stand before it.
    fn may_pass(&self, program: &Program, step: usize) -> bool {
        let (reads, writes) = (self.reads(program), self.writes(program));
        let step = &program.steps[step];
        // States are written when all has been done that can fail.
        !writes_state(program, step)
            && !step.reads().iter().any(|b| writes.contains(b))
            && !step.writes().iter().any(|b| reads.contains(b) || writes.contains(b))
    }
    /// The members with a further one, if it goes through the same rows.
    fn join(&self, program: &Program, step: usize) -> Option<Vec<(usize, Vec<Var>)>> {
        let nest = eligible(program, step)?;
        if self.reads(program).contains(&nest.to) || self.writes(program).contains(&nest.to) {
            return None;
        }
        let count = self.members[0].1.len();
        let mut own: Vec<Option<Var>> = vec![None; count];
        let (mut kept, mut is_connected) = (vec![true; count], false);
        nest.value.walk(&mut |e| {
            let Expr::Load { from, at, .. } = e else { return };
            let Some((writer, rows)) = self.members.iter().find(|(m, _)| to(program, *m) == *from) else {
                return;
            };
            is_connected = true;
            for (i, row) in rows.iter().enumerate() {
                let axis = of(program, *writer).vars.iter().position(|v| v == row);
                let own_var =
                    axis.and_then(|axis| nest.vars.iter().copied().find(|&v| at[axis] == Index::var(v)));
                kept[i] &= own_var.is_some_and(|v| v.size == row.size && own[i].is_none_or(|o| o == v));
                own[i] = own_var;
            }
        });
        let mut members = self.members.clone();
        members.push((step, own.iter().map(|v| v.unwrap_or(Var { id: u32::MAX, size: 0 })).collect()));
        let keep = |members: &mut Vec<(usize, Vec<Var>)>, kept: &[bool]| {
            for (_, rows) in members {
                let mut i = 0;
                rows.retain(|_| {
                    i += 1;
                    kept[i - 1]
                });
            }
        };
        keep(&mut members, &kept);
        while let Some(bad) = across(program, &members) {
            let kept: Vec<bool> = (0..members[0].1.len()).map(|i| i != bad).collect();
            keep(&mut members, &kept);
        }
        let work = members.iter().map(|(m, _)| nest::work(of(program, *m))).fold(0, i64::saturating_add);
        let rows: i64 = members[0].1.iter().map(|v| v.size).product();
        let is_divided = rows >= LEAST_ROWS || work < nest::LEAST_WORK;
        let scratch: usize = members.iter().map(|(m, rows)| row_bytes(program, of(program, *m), rows)).sum();
        (is_connected && is_divided && scratch <= LARGEST_ROW).then_some(members)
    }
    fn locals(&self, program: &Program, readers: &HashMap<usize, usize>) -> Vec<usize> {
        let is_local = |&b: &usize| {
            let inside = self.members.iter().filter(|(m, _)| program.steps[*m].reads().contains(&b)).count();
            program.buffers[b].is_temporary() && readers.get(&b).is_some_and(|&n| n == inside)
        };
        self.writes(program).into_iter().filter(is_local).collect()
    }
    /// Replaces the steps from `start` on by those that were passed, the group, and what comes after.
    fn apply(&self, program: &mut Program, start: usize) {
        let rows: Vec<Var> = self.members[0].1.iter().map(|v| fresh(program, v.size)).collect();
        let axes: HashMap<usize, Vec<bool>> = self
            .locals
            .iter()
            .map(|&b| {
                let (m, own) = self.members.iter().find(|(m, _)| to(program, *m) == b).expect("a local");
                (b, of(program, *m).vars.iter().map(|v| !own.contains(v)).collect())
            })
            .collect();
        let nests = self.members.iter().map(|(m, own)| member(of(program, *m), own, &rows, &axes)).collect();
        let mut own_bytes = 0;
        for &b in &self.locals {
            let buffer = &mut program.buffers[b];
            let mut kept = axes[&b].iter();
            buffer.shape.retain(|_| kept.next() == Some(&true));
            buffer.place = Place::Own(own_bytes);
            if !buffer.is_constant() {
                own_bytes += buffer.bytes().next_multiple_of(ALIGNMENT);
            }
        }
        let last = self.members[self.members.len() - 1].0;
        let named = program.steps[last].clone();
        let work = Work::Rows(Rows { vars: rows, nests, own_bytes });
        let mut steps: Vec<Step> = self.passed.iter().map(|&i| program.steps[i].clone()).collect();
        steps.push(Step { work, ..named });
        let is_member = |i: &usize| self.members.iter().any(|(m, _)| m == i) || self.passed.contains(i);
        steps.extend((start..=last).filter(|i| !is_member(i)).map(|i| program.steps[i].clone()));
        program.steps.splice(start..=last, steps);
    }
}

/// A nest with the common row variables, and where it stores; what is local has no rows.
fn member(nest: &Nest, own: &[Var], rows: &[Var], axes: &HashMap<usize, Vec<bool>>) -> (Nest, Vec<Index>) {
    let index = |v: Var| own.iter().position(|&w| w == v).map_or(Index::var(v), |i| Index::var(rows[i]));
    let without_rows = |buffer: usize, at: Vec<Index>| match axes.get(&buffer) {
        Some(kept) => at.into_iter().zip(kept).filter(|(_, kept)| **kept).map(|(at, _)| at).collect(),
        None => at,
    };
    let value = nest.value.substitute(&index).map_loads(&|from, at, stored| Expr::Load {
        from,
        at: without_rows(from, at),
        stored,
    });
    let at = without_rows(nest.to, nest.vars.iter().map(|&v| index(v)).collect());
    let inner = nest.vars.iter().copied().filter(|v| !own.contains(v));
    (Nest { to: nest.to, vars: rows.iter().copied().chain(inner).collect(), value }, at)
}

/// The number of a row variable along which a member reads or writes neighbours while its inner loops do not.
fn across(program: &Program, members: &[(usize, Vec<Var>)]) -> Option<usize> {
    (0..members[0].1.len()).find(|&i| {
        members.iter().any(|(m, rows)| {
            let nest = of(program, *m);
            let coordinates: Vec<Index> = nest.vars.iter().map(|&v| Index::var(v)).collect();
            let mut positions = vec![program.buffers[nest.to].position(&coordinates)];
            nest.value.walk(&mut |e| {
                if let Expr::Load { from, at, .. } = e {
                    positions.push(program.buffers[*from].position(at));
                }
            });
            positions.iter().any(|at| {
                let mut moves_inside = false;
                at.each_var(&mut |v| moves_inside |= !rows.contains(&v));
                moves_inside && at.factor(rows[i]).is_some_and(|f| f.abs() == 1)
            })
        })
    })
}

/// Bytes of what a nest fills for one row.
fn row_bytes(program: &Program, nest: &Nest, rows: &[Var]) -> usize {
    let inner = nest.vars.iter().filter(|v| !rows.contains(v)).map(|v| v.size.max(1) as usize);
    inner.product::<usize>() * program.buffers[nest.to].dtype.size()
}

fn fresh(program: &mut Program, size: i64) -> Var {
    program.next_var += 1;
    Var { id: program.next_var - 1, size }
}

/// The nest that a step is, if it may be in a group.
fn eligible(program: &Program, step: usize) -> Option<&Nest> {
    let Work::Nest(nest) = &program.steps[step].work else { return None };
    let buffer = &program.buffers[nest.to];
    let is_state = matches!(buffer.place, Place::State { .. });
    (buffer.blocks.is_none() && buffer.count() > 0 && !is_state).then_some(nest)
}

/// The nest of a member.
fn of(program: &Program, step: usize) -> &Nest {
    match &program.steps[step].work {
        Work::Nest(nest) => nest,
        _ => unreachable!("members are nests"),
    }
}

/// What a member fills.
fn to(program: &Program, step: usize) -> usize {
    of(program, step).to
}
