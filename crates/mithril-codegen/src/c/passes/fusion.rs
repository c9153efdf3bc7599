//! Fusion: elementwise producers move into the loops of their consumers, so that they never go through memory; elementwise
//! consumers of a reduction are computed where it ends.
//!
//! - *Movement* (an element read from elsewhere, a conversion, padding) is recomputed wherever it is read.
//! - Other elementwise values move into their only consumer, if it does not read them more often than they have elements.
//! - A reduction moves into its only consumer if that is elementwise: its epilogue.
//!
//! A float is never computed in two places from the same values: a compiler may round them differently (`a·b + c` in one
//! step or two), and a comparison of the two would fail.

use std::collections::HashSet;

use mithril_ir::DType;

use crate::c::analysis::affine::flat_loads;
use crate::c::analysis::contraction::contraction;
use crate::c::analysis::convolution;
use crate::c::analysis::split::divisions;
use crate::c::ir::expr::{Binary, BufferId, Expr, Index, StepId, Var};
use crate::c::ir::program::{LoopBuffer, LoopProgram, LoopStep, LoopWork, Nest, Place, Work as _};
use crate::c::passes::in_place::rename;
use crate::ids::{Id as _, Table};

/// Largest number of expressions in one nest; more would only make registers short.
const LARGEST: usize = 160;

/// Most elements of a table of what is looked up in parameters.
const LARGEST_TABLE: i64 = 1 << 20;

/// Most conditions of a nest that a concatenation is fused into. Each element of what is joined again and again, as what is
/// written piece by piece, would else pass through all of them.
const MOST_CONDITIONS: usize = 6;

/// A reading of a buffer by a nest.
struct Site {
    /// Step that reads, and at which coordinates.
    step: StepId,
    at: Vec<Index>,
    /// How often an element is read while it runs.
    times: i64,
    /// Whether it is read inside a reduction.
    in_reduction: bool,
}

impl Site {
    /// Whether axes are read in another way than they lie: flattened, say.
    fn divides(&self) -> bool {
        divisions_of(&self.at) > 0
    }
}

/// Fuses the nests of a program. Movement whose result is read by several steps, or in a reduction, goes first: the tensor
/// that it moves keeps its order, and the readers index into it.
pub fn fuse(program: &mut LoopProgram) {
    rename_copies(program);
    // From the last step to the first, so that a chain of movement is judged by what reads its end.
    fuse_steps(program, program.steps.ids().rev(), |nest, sites| {
        is_movement(&nest.value) && sites.iter().any(|site| site.in_reduction || site.step != sites[0].step)
    });
    fuse_all(program);
    if keep_order_of_windows(program) {
        fuse_all(program);
    }
}

/// Fuses all nests that can be.
fn fuse_all(program: &mut LoopProgram) {
    fuse_steps(program, program.steps.ids(), |_, _| true);
}

/// Fuses those of the nests that `fits` accepts, by their value and where it is read.
fn fuse_steps(
    program: &mut LoopProgram,
    steps: impl Iterator<Item = StepId>,
    fits: fn(&Nest, &[Site]) -> bool,
) {
    let mut readers: Table<BufferId, Vec<StepId>> = Table::beside(&program.buffers, Vec::new());
    for (i, step) in program.steps.entries() {
        let is_call = !matches!(step.work, LoopWork::Nest(_));
        // What a call writes, and a nest filled before, is changed in place.
        let written = if is_call { step.writes() } else { Vec::new() };
        step.reads().into_iter().chain(written).for_each(|b| readers[b].push(i));
    }
    // Which steps have gone into their readers.
    let mut inlined: Table<StepId, bool> = Table::beside(&program.steps, false);
    for step in steps {
        let LoopWork::Nest(nest) = &program.steps[step].work else { continue };
        if !program.buffers[nest.to].is_temporary() {
            continue;
        }
        let mut mine = std::mem::take(&mut readers[nest.to]);
        mine.sort_unstable();
        mine.dedup();
        mine.retain(|&reader| !inlined[reader]);
        let Some(sites) = sites(program, nest.to, &mine) else { continue };
        let nest = nest.clone();
        if !fits(&nest, &sites) {
            continue;
        }
        if sites.is_empty() || allowed(program, &nest, &sites) {
            let reads = program.steps[step].reads();
            inline(program, &nest, &sites);
            inlined[step] = true;
            for b in reads {
                readers[b].extend(&mine);
            }
        }
    }
    let buffers = &program.buffers;
    let is_empty = |step: &LoopStep| step.work.nest().is_some_and(|nest| buffers[nest.to].count() == 0);
    program.steps.retain_entries(|id, step| !inlined[id] && !is_empty(step));
}

/// Moves elementwise functions before the reshapes and transpositions between them and a convolution, so that they can be
/// its epilogue: `gelu(transpose(convolution))` becomes `transpose(gelu(convolution))`. Returns whether there were any.
fn keep_order_of_windows(program: &mut LoopProgram) -> bool {
    let mut reads: Table<BufferId, usize> = Table::beside(&program.buffers, 0);
    for step in &program.steps {
        step.reads().into_iter().for_each(|b| reads[b] += 1);
    }
    let windows: HashSet<BufferId> = program
        .steps
        .iter()
        .filter_map(|step| step.work.nest())
        .filter(|nest| multiplies(&nest.value) && slides(&nest.value))
        .map(|nest| nest.to)
        .collect();
    let (mut step, mut is_changed) = (StepId::new(0), false);
    while let Some(current) = program.steps.get(step).cloned() {
        step = step.next();
        let Some(nest) = current.work.nest() else { continue };
        let Some((moved, rest)) = in_order_of_windows(program, nest, &windows, &reads) else { continue };
        program.steps[step - 1].work = LoopWork::Nest(moved);
        program.steps.insert(step, LoopStep { work: LoopWork::Nest(rest), ..current });
        step = step.next();
        is_changed = true;
    }
    is_changed
}

/// A nest that computes the same in the order of the convolution that it reads, and one that moves the result to where it
/// belongs; `None` if the nest does not read a convolution alone, or the order cannot be inverted.
fn in_order_of_windows(
    program: &mut LoopProgram,
    nest: &Nest,
    windows: &HashSet<BufferId>,
    reads: &Table<BufferId, usize>,
) -> Option<(Nest, Nest)> {
    if is_movement(&nest.value) || nest.value.reduces() || !program.buffers[nest.to].is_temporary() {
        return None;
    }
    let mut loads: Vec<(BufferId, Vec<Index>)> = Vec::new();
    nest.value.walk(&mut |e| {
        if let Expr::Load { from, at, .. } = e {
            loads.push((*from, at.clone()));
        }
    });
    // Other tensors would then be read in an order that is not theirs.
    let [(from, at)] = loads.as_slice() else { return None };
    let buffer = &program.buffers[*from];
    let is_single = windows.contains(from) && reads[*from] == 1 && buffer.is_temporary();
    if !is_single || divisions_of(at) == 0 || buffer.count() != program.buffers[nest.to].count() {
        return None;
    }
    let shape = buffer.shape.clone();
    let vars = program.fresh_vars(shape.iter().copied());
    let own: Vec<Index> = vars.iter().map(|&v| Index::var(v)).collect();
    let inverse = inverse(&nest.vars, at, &own)?;
    let index =
        |v: Var| nest.vars.iter().position(|&w| w == v).map_or_else(|| Index::var(v), |i| inverse[i].clone());
    let is_inverse = at.iter().map(|at| at.substitute(&index)).eq(own.iter().cloned());
    let is_inside = inverse.iter().zip(&nest.vars).all(|(index, var)| {
        let (low, high) = index.range();
        low >= 0 && high < var.size
    });
    if !is_inverse || !is_inside {
        return None;
    }
    let value = nest.value.substitute(&index);
    let to = &program.buffers[nest.to];
    let stored = to.dtype;
    let moved = LoopBuffer::temporary(to.name.clone(), stored, shape);
    let moved = program.buffers.push(moved);
    let rest = Nest { value: Expr::Load { from: moved, at: at.clone(), stored }, ..nest.clone() };
    Some((Nest { to: moved, vars, value }, rest))
}

/// The values of `vars` at which `at` is `own`, if `at` are mixed-radix digits of `vars`, as of reshapes and transpositions;
/// the caller verifies that. Each variable is the sum of the coordinates that depend on it, times their strides in it.
fn inverse(vars: &[Var], at: &[Index], own: &[Index]) -> Option<Vec<Index>> {
    let stride = |index: &Index, var: Var| {
        // The smallest step of the variable alone that changes the coordinate.
        let alone = index.substitute(&|v| if v == var { Index::var(v) } else { Index::default() });
        let value = |n: i64| alone.substitute(&|_| Index::number(n)).known();
        (0..var.size).find(|&n| value(n) != value(0))
    };
    vars.iter()
        .map(|&var| {
            let mut sum = Index::default();
            for (index, own) in at.iter().zip(own) {
                let mut is_read = false;
                index.each_var(&mut |v| is_read |= v == var);
                if is_read && var.size > 1 {
                    sum = sum + own.clone() * stride(index, var)?;
                }
            }
            Some(sum)
        })
        .collect()
}

/// The number of divisions in coordinates.
fn divisions_of(at: &[Index]) -> usize {
    at.iter().map(|index| divisions(&Expr::Index(Box::new(index.clone())))).sum()
}

/// Puts the value of a nest into those that read it.
fn inline(program: &mut LoopProgram, nest: &Nest, sites: &[Site]) {
    let values: Vec<(StepId, Expr)> = sites
        .iter()
        .filter_map(|site| {
            let reader = program.steps[site.step].work.nest()?;
            let put = |from, at, stored| with_value(program, nest, (from, at, stored));
            Some((site.step, reader.value.map_loads(&put)))
        })
        .collect();
    for (step, value) in values {
        if let LoopWork::Nest(reader) = &mut program.steps[step].work {
            reader.value = value;
        }
    }
}

/// What is loaded, with the value of a nest in the place of what it writes.
fn with_value(program: &LoopProgram, nest: &Nest, (from, at, stored): (BufferId, Vec<Index>, DType)) -> Expr {
    if from != nest.to {
        return Expr::Load { from, at, stored };
    }
    let dtype = program.buffers[nest.to].dtype;
    // What goes through half precision is rounded to it, unless it was.
    let is_exact = matches!(&nest.value, Expr::Load { stored, .. } if *stored == dtype)
        || matches!(&nest.value, Expr::Cast(_, to) if *to == dtype);
    let index = |v: Var| nest.vars.iter().position(|&w| w == v).map_or(Index::var(v), |i| at[i].clone());
    let value = nest.value.substitute(&index);
    let is_half = matches!(dtype, DType::F16 | DType::BF16);
    if is_half && !is_exact { Expr::Cast(Box::new(value), dtype) } else { value }
}

/// All readings of a buffer, by steps that are known to read it; `None` if somebody needs it in memory.
fn sites(program: &LoopProgram, buffer: BufferId, readers: &[StepId]) -> Option<Vec<Site>> {
    let mut sites = Vec::new();
    for &step in readers {
        let LoopWork::Nest(nest) = &program.steps[step].work else { return None };
        let times = nest.vars.iter().map(|v| v.size).product();
        find(&nest.value, buffer, step, times, false, &mut sites);
    }
    Some(sites)
}

fn find(e: &Expr, buffer: BufferId, step: StepId, times: i64, in_reduction: bool, sites: &mut Vec<Site>) {
    if let Expr::Load { from, at, .. } = e
        && *from == buffer
    {
        sites.push(Site { step, at: at.clone(), times, in_reduction });
    }
    for index in e.indices().into_iter().filter(|index| index.reads()) {
        // Values read inside of indices; `times` is that of the reading.
        let holder = Expr::Index(Box::new(index.clone()));
        holder.walk(&mut |e| {
            if let Expr::Load { from, at, .. } = e
                && *from == buffer
            {
                sites.push(Site { step, at: at.clone(), times, in_reduction: true });
            }
        });
    }
    let (times, in_reduction) = match e {
        Expr::Reduce { vars, .. } => (vars.iter().fold(times, |n, v| n.saturating_mul(v.size)), true),
        _ => (times, in_reduction),
    };
    for child in e.children() {
        find(child, buffer, step, times, in_reduction, sites);
    }
}

fn allowed(program: &LoopProgram, nest: &Nest, sites: &[Site]) -> bool {
    let size = |e: &Expr| {
        let mut n = 0;
        e.walk(&mut |_| n += 1);
        n
    };
    let reader = |site: &Site| match &program.steps[site.step].work {
        LoopWork::Nest(nest) => Some(&nest.value),
        LoopWork::Call(_) => None,
    };
    let cost = size(&nest.value);
    if sites.iter().any(|s| reader(s).is_none_or(|value| size(value) + cost > LARGEST)) {
        return false;
    }
    let is_crowded = |site: &Site| reader(site).is_some_and(|value| conditions(value) >= MOST_CONDITIONS);
    if joins(&nest.value) && sites.iter().any(is_crowded) {
        return false;
    }
    if cost <= 8 && is_movement(&nest.value) {
        let hides = |site: &Site| {
            site.in_reduction && reader(site).is_some_and(|value| hides_structure(program, nest, value, site))
        };
        return !sites.iter().any(hides);
    }
    if cost <= 8 && is_choice(&nest.value) {
        let count = program.buffers[nest.to].count();
        // What is read twice at one place of a nest is computed once there.
        let is_first = |(i, site): &(usize, &Site)| {
            sites[..*i].iter().all(|other| other.step != site.step || other.at != site.at)
        };
        let times = sites
            .iter()
            .enumerate()
            .filter(is_first)
            .fold(0_i64, |n, (_, site)| n.saturating_add(site.times));
        let is_factor = |site: &Site| site.in_reduction && reader(site).is_some_and(multiplies);
        if times <= count.saturating_mul(2) && !sites.iter().any(is_factor) {
            return true;
        }
    }
    // What joins tensors is no epilogue of what makes them, until those that read a part each have taken it.
    let divided = sites.len() > 1 && joins(&nest.value) && are_disjoint(sites);
    if divided && sites.iter().all(|site| !site.in_reduction) {
        let times = sites.iter().fold(0_i64, |n, site| n.saturating_add(site.times));
        return !nest.value.reduces() && times <= program.buffers[nest.to].count();
    }
    let [site] = sites else { return false };
    if site.times > program.buffers[nest.to].count() {
        return false;
    }
    if is_worth_packing(program, nest, site) {
        return false;
    }
    // A kernel does not write what it reads.
    let is_update = |site: &Site| {
        let to = program.steps[site.step].writes();
        program.updates.iter().any(|(_, new)| to.contains(new))
    };
    // Nobody wants a reduction inside of another, or two in one nest, nor to look for a convolution's axes in divisions.
    let hides = site.in_reduction || (slides(&nest.value) && site.divides());
    !nest.value.reduces()
        || (!hides && !is_update(site) && reader(site).is_some_and(|value| !value.reduces()))
}

/// Whether a nest depends on parameters alone, and is computed once, when these are packed: a factor, or what is looked up
/// in them.
fn is_worth_packing(program: &LoopProgram, nest: &Nest, site: &Site) -> bool {
    let is_fixed = |b: &BufferId| program.buffers[*b].is_fixed();
    let (reads, reader) = (nest.reads(), &program.steps[site.step]);
    if reads.is_empty() || !reads.iter().all(is_fixed) {
        return false;
    }
    let is_factor = site.in_reduction && reader.work.nest().is_some_and(|nest| multiplies(&nest.value));
    let is_table = looks_up(&nest.value) && program.buffers[nest.to].count() <= LARGEST_TABLE;
    is_factor || (is_table && !reader.reads().iter().all(|b| *b == nest.to || is_fixed(b)))
}

/// Whether no element is read at two sites.
fn are_disjoint(sites: &[Site]) -> bool {
    let differ = |a: &Site, b: &Site| {
        a.at.iter().zip(&b.at).any(|(a, b)| {
            let ((a_low, a_high), (b_low, b_high)) = (a.range(), b.range());
            a_high < b_low || b_high < a_low
        })
    };
    sites.iter().enumerate().all(|(i, a)| sites[..i].iter().all(|b| differ(a, b)))
}

/// Whether an expression moves elements and computes nothing.
fn is_movement(e: &Expr) -> bool {
    match e {
        Expr::Load { at, .. } => !at.iter().any(Index::reads),
        Expr::Number(..) | Expr::Index(_) => true,
        Expr::Cast(x, _) => is_movement(x),
        Expr::Select { when, yes, no } => {
            when.iter().all(|w| !w.index.reads()) && is_movement(yes) && is_movement(no)
        }
        _ => false,
    }
}

/// Whether an expression only chooses among elements, so that it is the same wherever it is computed, and takes less
/// time than reading it.
fn is_choice(e: &Expr) -> bool {
    match e {
        Expr::Load { .. } | Expr::Number(..) | Expr::Index(_) => is_movement(e),
        Expr::Cast(x, _) => is_choice(x),
        Expr::Select { when, yes, no } => {
            when.iter().all(|w| !w.index.reads()) && is_choice(yes) && is_choice(no)
        }
        Expr::Apply { text, args, dtype } => {
            let chooses = **text == *"{0} ? {1} : {2}" || calls_choices(text);
            (*dtype == DType::Bool || chooses) && args.iter().all(is_choice)
        }
        _ => false,
    }
}

/// Whether a text is calls of functions that return one of what they are given.
fn calls_choices(text: &str) -> bool {
    const PREFIX: &str = "mithril_";
    let is_choice = |rest: &str| ["minimum_", "maximum_", "relu_"].iter().any(|name| rest.starts_with(name));
    text.starts_with(PREFIX) && text.split(PREFIX).skip(1).all(is_choice)
}

/// Whether elements are read at positions that are read themselves.
fn looks_up(e: &Expr) -> bool {
    let mut looks_up = false;
    e.walk(&mut |e| looks_up |= e.indices().iter().any(|index| index.reads()));
    looks_up
}

/// Whether there is a sum of products, which may become a kernel.
fn multiplies(e: &Expr) -> bool {
    let mut multiplies = false;
    e.walk(&mut |e| {
        if let Expr::Reduce { body, .. } = e {
            multiplies |= matches!(**body, Expr::Binary(Binary::Multiply, ..));
        }
    });
    multiplies
}

/// Whether movement in the place of an operand would keep a kernel from seeing what a reduction is, or leave divisions
/// in its innermost loop. It is worth a copy where elements are read several times.
fn hides_structure(program: &LoopProgram, nest: &Nest, reader: &Expr, site: &Site) -> bool {
    if site.times <= program.buffers[nest.to].count() {
        return false;
    }
    let divides = divisions(&flat_loads(&nest.value, &program.buffers)) > 0;
    divides
        || joins(&nest.value)
        || (slides(reader) && (!keeps_axes(nest) || ends_convolution(program, nest, site)))
}

/// Whether a reader is a convolution, and were none if it read what a nest moves: a part of the channels, say.
fn ends_convolution(program: &LoopProgram, nest: &Nest, site: &Site) -> bool {
    let is_convolution =
        |reader: &Nest| contraction(reader).is_some_and(|c| convolution::is_convolution(program, reader, &c));
    let LoopWork::Nest(reader) = &program.steps[site.step].work else { return false };
    let mut moved = reader.clone();
    moved.value = reader.value.map_loads(&|from, at, stored| with_value(program, nest, (from, at, stored)));
    is_convolution(reader) && !is_convolution(&moved)
}

/// The number of conditions in an expression.
fn conditions(e: &Expr) -> usize {
    let mut count = 0;
    e.walk(&mut |e| count += usize::from(matches!(e, Expr::Select { .. })));
    count
}

/// Whether elements come from several tensors, as in a concatenation.
fn joins(e: &Expr) -> bool {
    let mut first = None;
    let mut joins = false;
    e.walk(&mut |e| {
        if let Expr::Load { from, .. } = e {
            joins |= *first.get_or_insert(*from) != *from;
        }
    });
    joins
}

/// Whether something is read at sums of loop variables, as a convolution does.
fn slides(e: &Expr) -> bool {
    let mut slides = false;
    e.walk(&mut |e| {
        if let Expr::Load { at, .. } = e {
            slides |= at.iter().any(|index| index.terms.len() > 1);
        }
    });
    slides
}

/// Whether every axis stays what it is, but for padding or a part that is cut out.
fn keeps_axes(nest: &Nest) -> bool {
    let value = match &nest.value {
        Expr::Select { yes, .. } => yes,
        value => value,
    };
    let Expr::Load { at, .. } = value else { return false };
    let is_own =
        |(index, var): (&Index, &Var)| index.clone() - Index::var(*var) == Index::number(index.constant);
    at.len() == nest.vars.len() && at.iter().zip(&nest.vars).all(is_own)
}

/// An output that is a temporary of a call as it is: the call writes the output.
fn rename_copies(program: &mut LoopProgram) {
    let calls = program.steps.iter().filter(|step| matches!(step.work, LoopWork::Call(_)));
    let mut written: HashSet<BufferId> = calls.flat_map(LoopStep::writes).collect();
    let mut step = StepId::new(0);
    while let Some(LoopStep { work, .. }) = program.steps.get(step) {
        match work.nest().and_then(|nest| copied(program, nest)).filter(|(from, _)| written.remove(from)) {
            Some((from, to)) => {
                program.steps.remove(step);
                rename(program, from, to);
                written.insert(to);
            }
            None => step = step.next(),
        }
    }
}

/// The temporary that a nest copies as it is, and the output that it copies it to.
fn copied(program: &LoopProgram, nest: &Nest) -> Option<(BufferId, BufferId)> {
    let Expr::Load { from, at, .. } = &nest.value else { return None };
    let is_whole = at.iter().eq(&nest.vars.iter().map(|&v| Index::var(v)).collect::<Vec<_>>());
    let (a, b) = (&program.buffers[*from], &program.buffers[nest.to]);
    let is_output = matches!(b.place, Place::Output(_)) && a.is_temporary();
    (is_whole && is_output && a.dtype == b.dtype && a.shape == b.shape).then_some((*from, nest.to))
}
