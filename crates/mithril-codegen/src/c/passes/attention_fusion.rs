//! Attention fusion: two contractions and the nests between them (scaling, masks, a softmax) run for one block of rows after
//! another, whose scores stay in the cache instead of going through memory. Recognized by structure: the second product
//! reads, row by row, what the nests between make of the first.

use std::collections::{BTreeMap, HashMap};

use mithril_ir::DType;

use crate::c::analysis::contraction::{contraction, the_sum};
use crate::c::ir::expr::{Binary, BufferId, Expr, Index, ReduceOp, StepId, Var};
use crate::c::ir::program::{
    ALIGNMENT, KernelBuffer, KernelCall, KernelMemory, KernelProgram, KernelStep, KernelWork, Nest, Parts,
    Place, Rows,
};
use crate::c::kernels::common::library::{Library, LibraryMark};
use crate::c::passes::row_fusion::{Group, Member, readers};
use crate::c::request::Request;
use crate::c::select::context::SelectionContext;
use crate::c::select::epilogue::EpilogueFunctions;
use crate::c::select::product::product;
use crate::ids::Id as _;

/// Rows of a block, at least.
const LEAST_ROWS: i64 = 16;

/// Parts that keep the threads busy.
const MANY_PARTS: i64 = 8;

/// The exponential, as its op writes it, and the one that is 0 where the largest of the weights beside it is 1 and it does
/// not count: processors take a hundred times as long for products with subnormal numbers, which masks such as -100 make.
const EXPONENTIAL: &str = "mithril_exp_{t}({0})";

const WEIGHT: &str = "mithril_exp_weight_{t}({0})";

/// Replaces two products and what is between them.
pub fn fuse(
    program: &mut KernelProgram,
    request: &Request,
    library: &mut Library,
    epilogues: &mut EpilogueFunctions,
) {
    let readers = readers(program);
    let mut start = StepId::new(0);
    while start < program.steps.end() {
        let candidates = find(program, start, &readers);
        for (group, row) in
            candidates.iter().flat_map(|(group, rows)| rows.iter().map(move |row| (group, *row)))
        {
            let before = Before::of(program, group, library, epilogues);
            // Neither factor is a weight, which could be quantized.
            let decisions = &mut Vec::new();
            let mut making =
                SelectionContext { request, library: &mut *library, epilogues: &mut *epilogues, decisions };
            if let Some(parts) = divide(program, group, row, &mut making) {
                group.replace(program, start, KernelWork::Parts(parts));
                start = start + group.passed.len();
                break;
            }
            before.restore(program, group, library, epilogues);
        }
        start = start.next();
    }
}

/// What a trial changes, to undo one that fails.
struct Before {
    /// Of the members of the group, in order.
    buffers: Vec<KernelBuffer>,
    end: BufferId,
    next_var: u32,
    library: LibraryMark,
    epilogues: usize,
}

impl Before {
    fn of(program: &KernelProgram, group: &Group, library: &Library, epilogues: &EpilogueFunctions) -> Self {
        Self {
            buffers: group.members.iter().map(|m| program.buffers[m.to].clone()).collect(),
            end: program.buffers.end(),
            next_var: program.next_var,
            library: library.mark(),
            epilogues: epilogues.len(),
        }
    }
    fn restore(
        self,
        program: &mut KernelProgram,
        group: &Group,
        library: &mut Library,
        epilogues: &mut EpilogueFunctions,
    ) {
        for (member, buffer) in group.members.iter().zip(self.buffers) {
            program.buffers[member.to] = buffer;
        }
        program.buffers.truncate(self.end);
        program.next_var = self.next_var;
        library.rollback(self.library);
        epilogues.truncate(self.epilogues);
    }
}

/// Products with what is between them, the first at `start`; and the numbers of the row variables that may be no batch, the
/// best first.
fn find(
    program: &KernelProgram,
    start: StepId,
    readers: &HashMap<BufferId, usize>,
) -> Option<(Group, Vec<usize>)> {
    let is_product = |step: StepId| match &program.steps[step].work {
        KernelWork::Nest(nest) => contraction(nest).is_some(),
        _ => false,
    };
    if !is_product(start) {
        return None;
    }
    let mut group = Group::of(program, start)?;
    for step in start.next().until(program.steps.end()) {
        if let Some(joined) = group.join(program, step) {
            group.members = joined;
            if is_product(step) {
                break;
            }
        } else if !group.pass(program, step) {
            return None;
        }
    }
    group.close(program, readers);
    let (last, others) = group.members.split_last()?;
    let is_checked = |m: &Member| {
        let mut reads = false;
        m.value.walk(&mut |e| reads |= e.indices().iter().any(|index| index.reads()));
        reads
    };
    let fits = is_product(last.step)
        && others.len() > 1
        && others.iter().all(|m| group.locals.contains(&m.to) && program.buffers[m.to].dtype == DType::F32)
        && !group.members.iter().any(is_checked);
    let rows = own_rows(&group.members[0])?;
    fits.then_some((group, rows))
}

/// The row variables that move one factor only, as those of the queries do, the longest first.
fn own_rows(member: &Member) -> Option<Vec<usize>> {
    let Expr::Reduce { body, .. } = the_sum(&member.value)? else { return None };
    let Expr::Binary(Binary::Multiply, a, b) = &**body else { return None };
    let moves = |e: &Expr, v: Var| {
        let mut reads = false;
        e.each_free_var(&mut |w| reads |= w == v);
        reads
    };
    let is_of_one = |&i: &usize| moves(a, member.rows[i]) != moves(b, member.rows[i]);
    let mut rows: Vec<usize> = (0..member.rows.len()).rev().filter(is_of_one).collect();
    rows.sort_by_key(|&i| std::cmp::Reverse(member.rows[i].size));
    Some(rows)
}

/// The variables of the parts, and what stands for the rows of the members.
struct Division {
    /// Those that count the parts.
    outer: Vec<Var>,
    /// The rows of a part.
    row: Var,
    /// Of each common row variable.
    indices: Vec<Index>,
}

impl Division {
    fn new(program: &mut KernelProgram, group: &Group, row: usize, cache: usize) -> Self {
        let first = &group.members[0];
        let (mut outer, mut indices) = (Vec::new(), vec![Index::default(); first.rows.len()]);
        for (i, v) in first.rows.iter().enumerate().filter(|(i, _)| *i != row) {
            let var = program.fresh_var(v.size);
            outer.push(var);
            indices[i] = Index::var(var);
        }
        let (size, count) = (first.rows[row].size, outer.iter().map(|v| v.size).product::<i64>());
        let fits = |rows: &i64| {
            let bytes = rows * first.inner() * 4;
            bytes as usize <= cache / 4 && count * (size / rows) >= MANY_PARTS
        };
        let divisors = || (LEAST_ROWS..=size).rev().filter(|rows| size % rows == 0);
        // Rows that nothing divides stay together.
        let rows = divisors().find(fits).or_else(|| divisors().next_back()).unwrap_or(size);
        let (block, own) = (program.fresh_var(size / rows), program.fresh_var(rows));
        if block.size > 1 {
            outer.push(block);
        }
        indices[row] = Index::var(block) * rows + Index::var(own);
        Self { outer, row: own, indices }
    }
    fn count(&self) -> i64 {
        self.outer.iter().map(|v| v.size).product()
    }
}

/// The steps of the parts, if both products are kernels that work part by part.
fn divide(
    program: &mut KernelProgram,
    group: &Group,
    row: usize,
    making: &mut SelectionContext<'_>,
) -> Option<Parts> {
    program.next_var = group.next.get();
    let division = Division::new(program, group, row, making.library.target().cache);
    let [first, between @ .., last] = &group.members[..] else { return None };
    // Of what the products hand over, the rows of a part are kept; of the rest one row.
    let is_read = |member: &Member, buffer: BufferId| program.steps[member.step].reads().contains(&buffer);
    let stays = |m: &Member| m.to == first.to || is_read(last, m.to);
    let axes: BTreeMap<BufferId, Vec<Axis>> =
        group.members.iter().filter(|m| m.to != last.to).map(|m| (m.to, axes(m, row, stays(m)))).collect();
    for (buffer, axes) in &axes {
        let shape = std::mem::take(&mut program.buffers[*buffer].shape);
        let size = |(n, axis): (i64, &Axis)| match axis {
            Axis::Kept => Some(n),
            Axis::Row => Some(division.row.size),
            Axis::Gone => None,
        };
        program.buffers[*buffer].shape = shape.into_iter().zip(axes).filter_map(size).collect();
        program.buffers[*buffer].place = Place::Memory(KernelMemory::Scratch(0));
    }
    let common: Vec<Var> = division.outer.iter().copied().chain([division.row]).collect();
    let weighted = |member: &Member| match weight(&group.members, &member.value) {
        Some(value) => Member { value, ..member.clone() },
        None => member.clone(),
    };
    let nests: Vec<(Nest, Vec<Index>)> =
        group.members.iter().map(|m| shared_nest(&weighted(m), &division, &common, &axes)).collect();
    let [a, b] = [(first, &nests[0]), (last, nests.last()?)]
        .map(|(member, (nest, at))| kernel(program, member, nest, at, &division.outer, making));
    let (a, b) = (a?, b?);
    // What a kernel packs in front of the parts has to be there by then.
    let is_made = |buffer: BufferId| group.members.iter().any(|m| m.to == buffer);
    if [&a, &b].into_iter().any(|k| k.reads_before().any(is_made)) {
        return None;
    }
    let mut scratch_bytes = a.kernel.scratch_bytes.max(b.kernel.scratch_bytes).next_multiple_of(ALIGNMENT);
    for member in &group.members[..group.members.len() - 1] {
        let buffer = &mut program.buffers[member.to];
        buffer.place = Place::Memory(KernelMemory::Scratch(scratch_bytes));
        if !buffer.is_constant() {
            scratch_bytes += buffer.bytes().next_multiple_of(ALIGNMENT);
        }
    }
    let inner = nests[1..nests.len() - 1].to_vec();
    let rows = Rows { part_vars: division.outer.len(), vars: common, nests: inner, scratch_bytes: 0 };
    let named = |member: &Member, work: KernelWork| KernelStep { work, ..program.steps[member.step].clone() };
    let middle = named(between.last()?, KernelWork::Rows(rows));
    let steps = vec![named(first, KernelWork::Kernel(a)), middle, named(last, KernelWork::Kernel(b))];
    Some(Parts { count: division.count(), steps, scratch_bytes })
}

/// The value as a weight of a softmax, if it is the exponential of the scores of a row less the largest of them.
fn weight(members: &[Member], value: &Expr) -> Option<Expr> {
    let Expr::Apply { text, args, dtype: dtype @ DType::F32 } = value else { return None };
    let [Expr::Binary(Binary::Subtract, scores, largest)] = args.as_slice() else { return None };
    let (Expr::Load { from: scores, .. }, Expr::Load { from: largest, .. }) = (&**scores, &**largest) else {
        return None;
    };
    let of = |buffer: BufferId| members.iter().find(|m| m.to == buffer);
    let Expr::Reduce { op: ReduceOp::Max, vars, body } = &of(*largest)?.value else { return None };
    let is_of_row = matches!(&**body, Expr::Load { from, .. } if from == scores)
        && vars.iter().map(|v| v.size).product::<i64>() == of(*scores)?.inner();
    (**text == *EXPONENTIAL && is_of_row).then(|| Expr::Apply {
        text: WEIGHT.into(),
        args: args.clone(),
        dtype: *dtype,
    })
}

/// What becomes of an axis of a tensor that is kept for a part only.
enum Axis {
    Kept,
    /// The rows of the part.
    Row,
    Gone,
}

/// The axes of what a member fills, of which the rows of a part are kept or only one row.
fn axes(member: &Member, row: usize, rows_stay: bool) -> Vec<Axis> {
    let own: Vec<Option<usize>> = member.rows.iter().map(|&v| member.axis(v)).collect();
    let axis = |axis: usize| match own.iter().position(|own| *own == Some(axis)) {
        None => Axis::Kept,
        Some(i) if i == row && rows_stay => Axis::Row,
        Some(_) => Axis::Gone,
    };
    (0..member.at.len()).map(axis).collect()
}

fn shared_nest(
    member: &Member,
    division: &Division,
    common: &[Var],
    axes: &BTreeMap<BufferId, Vec<Axis>>,
) -> (Nest, Vec<Index>) {
    let index = |v: Var| {
        let row = member.rows.iter().position(|&w| w == v);
        row.map_or(Index::var(v), |i| division.indices[i].clone())
    };
    let local = |buffer: BufferId, at: Vec<Index>| {
        let Some(axes) = axes.get(&buffer) else { return at };
        let coordinate = |(at, axis): (Index, &Axis)| match axis {
            Axis::Kept => Some(at),
            Axis::Row => Some(Index::var(division.row)),
            Axis::Gone => None,
        };
        at.into_iter().zip(axes).filter_map(coordinate).collect()
    };
    member.nest(common, &index, &local)
}

/// A product as a kernel whose matrices are those of the parts, which `outer` counts.
fn kernel(
    program: &mut KernelProgram,
    member: &Member,
    nest: &Nest,
    at: &[Index],
    outer: &[Var],
    making: &mut SelectionContext<'_>,
) -> Option<KernelCall> {
    let KernelWork::Nest(whole) = &program.steps[member.step].work else { return None };
    let element = contraction(whole)?.element;
    let mut call = product(program, nest, at, Some(outer), element, making)?;
    // One phase packs, in front of the parts; the other is the work of a part.
    if call.kernel.pack.is_some() || call.kernel.phases.len() > 2 {
        return None;
    }
    if call.kernel.shared_bytes > 0 {
        call.shared = Some(program.buffers.push(KernelBuffer::workspace(call.kernel.shared_bytes)));
    }
    Some(call)
}
