//! Phase decomposition: the gradient of a strided convolution slides over an image with zeros between its pixels, and so does
//! a transposed convolution. Results a stride apart, a *phase*, meet every stride-th weight and no zeros: each phase becomes a
//! convolution of its own, and what reads the sums interleaves them.

use mithril_ir::{DType, Scalar};

use crate::c::analysis::contraction::{contraction, is_zero};
use crate::c::ir::expr::{Atom, Binary, BufferId, Expr, Index, ReduceOp, StepId, Var, Within};
use crate::c::ir::program::{LoopBuffer, LoopMemory, LoopProgram, LoopStep, LoopWork, Nest, Place};
use crate::c::passes::dead_code::eliminate;
use crate::ids::Id as _;

/// Splits sums of products over images with zeros between their pixels.
pub fn decompose(program: &mut LoopProgram) {
    let mut at = StepId::new(0);
    let mut is_changed = false;
    while let Some(step) = program.steps.get(at).cloned() {
        at = at.next();
        let LoopWork::Nest(nest) = &step.work else { continue };
        let Some((value, steps)) = in_phases(program, &step, nest) else { continue };
        is_changed = true;
        program.steps[at - 1].work = LoopWork::Nest(Nest { value, ..nest.clone() });
        let count = steps.len();
        program.steps.splice(at - 1..at - 1, steps);
        at = at + count;
    }
    if is_changed {
        eliminate(program);
    }
}

/// An axis of the image with zeros between its pixels.
struct Axis {
    /// The axis of the result, by its variable, and that of the weights, if there is more than one.
    result: Var,
    weight: Option<Var>,
    /// Pixels are so far apart.
    step: i64,
    /// What is added to the sum of both variables.
    constant: i64,
}

impl Axis {
    /// Number of results of a phase.
    fn results(&self, phase: i64) -> i64 {
        (self.result.size - phase + self.step - 1) / self.step
    }
    /// The first weight that meets no zeros, and how many there are.
    fn weights(&self, phase: i64) -> (i64, i64) {
        let first = (-phase - self.constant).rem_euclid(self.step);
        let count = (self.weight.map_or(1, |v| v.size) - first + self.step - 1) / self.step;
        (first, count.max(0))
    }
}

/// The factors of a sum: an image with zeros between its pixels, as it was before, and weights.
struct Factors<'a> {
    axes: Vec<Axis>,
    /// Tests of where the image is read, and coordinates there.
    tests: &'a [Within],
    at: &'a [Index],
    maker: Nest,
    weights: &'a Expr,
}

/// The value of a nest whose sum is split into phases, and the steps that compute these before it.
fn in_phases(program: &mut LoopProgram, like: &LoopStep, nest: &Nest) -> Option<(Expr, Vec<LoopStep>)> {
    let c = contraction(nest)?;
    let factors = factors(program, nest, c.vars, c.factors).or_else(|| {
        let [a, b] = c.factors;
        factors(program, nest, c.vars, [b, a])
    })?;
    let dtype = c.factors[0].dtype();
    let count: i64 = factors.axes.iter().map(|axis| axis.step).product();
    let mut steps = Vec::new();
    let mut value = Expr::Number(Scalar::Float(0.0), dtype);
    for number in (0..count).rev() {
        let mut rest = number;
        let digit = |axis: &Axis| {
            let digit = rest % axis.step;
            rest /= axis.step;
            digit
        };
        let phase: Vec<i64> = factors.axes.iter().map(digit).collect();
        let Some(sums) = sums(program, like, nest, c.vars, &factors, &phase, &mut steps) else { continue };
        let place = |v: &Var| match factors.axes.iter().find(|axis| axis.result == *v) {
            Some(axis) => Index::var(*v).floor_div(axis.step),
            None => Index::var(*v),
        };
        let load = Expr::Load { from: sums, at: nest.vars.iter().map(place).collect(), stored: dtype };
        let is_own = |(axis, &phase): (&Axis, &i64)| {
            Within::new(Index::var(axis.result).modulo(axis.step), phase, phase + 1)
        };
        value = load.within(factors.axes.iter().zip(&phase).map(is_own).collect(), value);
    }
    Some((with_sum(&nest.value, &value), steps))
}

/// Reads a sum: its image is made of another one by zeros between pixels, and is read one pixel further for each result and
/// for each weight.
fn factors<'a>(
    program: &LoopProgram,
    nest: &Nest,
    summed: &[Var],
    [image, weights]: [&'a Expr; 2],
) -> Option<Factors<'a>> {
    let (tests, image) = match image {
        Expr::Select { when, yes, no } if is_zero(no) => (when.as_slice(), &**yes),
        other => (&[][..], other),
    };
    let Expr::Load { from, at, .. } = image else { return None };
    let mut makers = program.steps.iter().filter(|step| step.writes().contains(from));
    let (Some(maker), None) = (makers.next(), makers.next()) else { return None };
    let LoopWork::Nest(maker) = &maker.work else { return None };
    let mut axes = Vec::new();
    for (var, step) in zeros_between(program, maker)? {
        let index = &at[maker.vars.iter().position(|v| *v == var)?];
        let of = |vars: &[Var]| vars.iter().copied().find(|v| index.factor(*v).is_some_and(|f| f == 1));
        let (result, weight) = (of(&nest.vars)?, of(summed));
        let known = Index::var(result) + weight.map_or_else(Index::default, Index::var);
        let constant = (index.clone() - known).known()?;
        axes.push(Axis { result, weight, step, constant });
    }
    let mut is_apart = true;
    weights.each_free_var(&mut |v| is_apart &= axes.iter().all(|axis| axis.result != v));
    let is_load = matches!(weights, Expr::Load { .. });
    (is_apart && is_load).then(|| Factors { axes, tests, at, maker: maker.clone(), weights })
}

/// The variables of a nest along which it puts zeros between elements, and how far these are apart then.
fn zeros_between(program: &LoopProgram, nest: &Nest) -> Option<Vec<(Var, i64)>> {
    let Expr::Select { when, yes, no } = &nest.value else { return None };
    let Expr::Load { from, at, .. } = &**yes else { return None };
    let is_kept = matches!(
        program.buffers[*from].place,
        Place::Memory(LoopMemory::Temporary) | Place::Input(_) | Place::Constant(_)
    );
    if !is_zero(no) || !is_kept || at.iter().any(Index::reads) || !program.buffers[nest.to].is_temporary() {
        return None;
    }
    let axis = |test: &Within| {
        let [(Atom::Mod(inner, step), 1)] = test.index.terms.as_slice() else { return None };
        let var = nest.vars.iter().find(|v| Index::var(**v) == **inner)?;
        (test.index.constant == 0 && (test.from, test.to) == (0, 1)).then_some((*var, *step))
    };
    when.iter().map(axis).collect()
}

/// Makes a tensor of the sums of a phase; `None` if there are none to make, since no weight meets a pixel.
fn sums(
    program: &mut LoopProgram,
    like: &LoopStep,
    nest: &Nest,
    summed: &[Var],
    factors: &Factors<'_>,
    phase: &[i64],
    steps: &mut Vec<LoopStep>,
) -> Option<BufferId> {
    let mut fresh = |size: i64| {
        program.next_var += 1;
        Var { id: program.next_var - 1, size }
    };
    // What becomes of each variable: a new one, of which there are fewer in the phase.
    let (mut known, mut vars, mut inner) = (Vec::new(), Vec::new(), Vec::new());
    for &var in &nest.vars {
        let axis = factors.axes.iter().zip(phase).find(|(axis, _)| axis.result == var);
        let new = fresh(axis.map_or(var.size, |(axis, &phase)| axis.results(phase)));
        let (step, first) = axis.map_or((1, 0), |(axis, &phase)| (axis.step, phase));
        known.push((var, Index::var(new) * step + Index::number(first)));
        vars.push(new);
    }
    for &var in summed {
        let axis = factors.axes.iter().zip(phase).find(|(axis, _)| axis.weight == Some(var));
        let (first, count) = axis.map_or((0, var.size), |(axis, &phase)| axis.weights(phase));
        let new = fresh(count);
        known.push((var, Index::var(new) * axis.map_or(1, |(axis, _)| axis.step) + Index::number(first)));
        inner.push(new);
    }
    let is_met = |(axis, &phase): (&Axis, &i64)| {
        let (first, count) = axis.weights(phase);
        count > 0 && (axis.weight.is_some() || first == 0)
    };
    if vars.iter().any(|v| v.size <= 0) || !factors.axes.iter().zip(phase).all(is_met) {
        return None;
    }
    let index = |v: Var| {
        known.iter().find(|(old, _)| *old == v).map_or_else(|| Index::var(v), |(_, new)| new.clone())
    };
    let image = image(factors, &index);
    let weights = if factors.axes.iter().any(|axis| axis.weight.is_some()) {
        weights(program, like, factors.weights, &index, steps)
    } else {
        factors.weights.substitute(&index)
    };
    let dtype = image.dtype();
    let body = Expr::Binary(Binary::Multiply, Box::new(image), Box::new(weights));
    let value = Expr::Reduce { op: ReduceOp::Sum, vars: inner, body: Box::new(body) };
    let shape = vars.iter().map(|v| v.size).collect();
    let to = temporary(program, "phase", dtype, shape);
    let work = LoopWork::Nest(Nest { to, vars, value });
    steps.push(LoopStep { work, ..like.clone() });
    Some(to)
}

/// The pixels of a phase: where the image with zeros has pixels, those before there were zeros.
fn image(factors: &Factors<'_>, index: &dyn Fn(Var) -> Index) -> Expr {
    let at: Vec<Index> = factors.at.iter().map(|i| i.substitute(index)).collect();
    let own = |v: Var| {
        factors.maker.vars.iter().position(|w| *w == v).map_or_else(|| Index::var(v), |i| at[i].clone())
    };
    // Its own tests pass for all pixels of the phase.
    let Expr::Select { yes, no, .. } = &factors.maker.value else {
        return factors.maker.value.substitute(&own);
    };
    let test = |test: &Within| {
        let index = test.index.substitute(index);
        // Only every so many-th number occurs: the test of the quotient says the same.
        let step = factors.axes.iter().map(|axis| axis.step).find(|&step| {
            index.constant % step == 0 && index.terms.iter().all(|(_, factor)| factor % step == 0)
        });
        let up = |n: i64, by: i64| (n + by - 1).div_euclid(by);
        match step {
            Some(by) => Within::new(index.floor_div(by), up(test.from, by), up(test.to, by)),
            None => Within { index, ..*test },
        }
    };
    yes.substitute(&own).within(factors.tests.iter().map(test).collect(), no.substitute(&own))
}

/// The weights of a phase, in a tensor of their own: there are fewer of them.
fn weights(
    program: &mut LoopProgram,
    like: &LoopStep,
    weights: &Expr,
    index: &dyn Fn(Var) -> Index,
    steps: &mut Vec<LoopStep>,
) -> Expr {
    let read = weights.substitute(index);
    let Expr::Load { from, at, stored } = &read else { return read };
    let mut used: Vec<Option<Var>> = Vec::new();
    for i in at {
        let mut vars = Vec::new();
        i.each_var(&mut |v| vars.push(v));
        match vars.as_slice() {
            [] => used.push(None),
            [v] if used.iter().all(|known| *known != Some(*v)) => used.push(Some(*v)),
            _ => return read,
        }
    }
    let own: Vec<Var> = used
        .iter()
        .zip(program.next_var..)
        .map(|(v, id)| Var { id, size: v.map_or(1, |v| v.size) })
        .collect();
    program.next_var += own.len() as u32;
    let renamed = |v: Var| {
        used.iter().position(|u| *u == Some(v)).map_or_else(|| Index::var(v), |i| Index::var(own[i]))
    };
    let coordinates: Vec<Index> = at.iter().map(|i| i.substitute(&renamed)).collect();
    let moved = movement(program, *from, &coordinates);
    let value = moved.unwrap_or(Expr::Load { from: *from, at: coordinates, stored: *stored });
    let to = temporary(program, "weights", *stored, own.iter().map(|v| v.size).collect());
    steps.push(LoopStep { work: LoopWork::Nest(Nest { to, vars: own, value }), ..like.clone() });
    let at = used.iter().map(|v| v.map_or_else(Index::default, Index::var)).collect();
    Expr::Load { from: to, at, stored: *stored }
}

/// An element of a copy, as an element of what was copied.
fn movement(program: &LoopProgram, buffer: BufferId, at: &[Index]) -> Option<Expr> {
    let mut makers = program.steps.iter().filter(|step| step.writes().contains(&buffer));
    let (maker, None) = (makers.next()?, makers.next()) else { return None };
    let LoopWork::Nest(maker) = &maker.work else { return None };
    let Expr::Load { from, stored, .. } = &maker.value else { return None };
    let is_same = *stored == program.buffers[buffer].dtype && program.buffers[buffer].is_temporary();
    let is_kept = matches!(
        program.buffers[*from].place,
        Place::Memory(LoopMemory::Temporary) | Place::Input(_) | Place::Constant(_)
    );
    let own =
        |v: Var| maker.vars.iter().position(|w| *w == v).map_or_else(|| Index::var(v), |i| at[i].clone());
    (is_same && is_kept).then(|| maker.value.substitute(&own))
}

fn temporary(program: &mut LoopProgram, name: &str, dtype: DType, shape: Vec<i64>) -> BufferId {
    program.buffers.push(LoopBuffer::temporary(name, dtype, shape))
}

/// The expression with another value in the place of its sum.
fn with_sum(e: &Expr, value: &Expr) -> Expr {
    match e {
        Expr::Reduce { .. } => value.clone(),
        e => e.map(&Index::clone, &|child| with_sum(child, value)),
    }
}
