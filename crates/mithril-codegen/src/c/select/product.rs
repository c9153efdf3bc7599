//! Matrix products among the contractions, recognized by which variables move which operand.

use std::cell::Cell;

use crate::c::analysis::affine::{affine, flat_loads};
use crate::c::analysis::collapse::collapse;
use crate::c::analysis::contraction::{stored, the_sum};
use crate::c::analysis::split::split;
use crate::c::ir::expr::{Binary, BufferId, Expr, Index, Var, non_unit};
use crate::c::ir::program::{KernelCall, KernelProgram, Nest, Start};
use crate::c::kernels::spec::epilogue::Epilogue;
use crate::c::kernels::spec::gemm::{Gemm, Packing};
use crate::c::kernels::spec::strides::{Stored, Strides};
use crate::c::select::context::{SelectionContext, call, is_fixed, operands};
use crate::c::select::quantize;
use crate::c::syntax::template::c_type;
use crate::c::target::Element;

/// Parts that are looked at, about.
const MOST_PARTS: i64 = 256;

/// Rows below which packing a matrix at every call costs more than it saves.
const LEAST_ROWS: usize = 4;

/// A factor of a product: where it starts, and how far apart its elements are along each variable.
#[derive(Clone)]
pub struct Side {
    start: Start,
    /// By how much each variable moves it.
    pub factors: Vec<usize>,
    stored: Stored,
}

/// A product by its variables: those of the result, then the one that is summed over, if there is one.
pub struct Product {
    /// The nest, with as few variables as possible.
    pub nest: Nest,
    k: Option<Var>,
    /// Its factors.
    pub sides: [Side; 2],
    /// Whether the second factor of the nest comes first.
    is_exchanged: bool,
    /// Factors of the result.
    out: Vec<usize>,
    /// The next number of a variable.
    pub next_var: u32,
}

impl Product {
    /// Reads a nest by flat positions, with as few loops as possible.
    pub fn read(program: &KernelProgram, nest: &Nest, at: &[Index], element: Element) -> Option<Self> {
        let buffers = &program.buffers;
        let mut value = flat_loads(&nest.value, buffers);
        let mut to = buffers[nest.to].position(at);
        let mut vars = non_unit(&nest.vars);
        let next = Cell::new(program.next_var);
        split(&mut vars, &mut value, &next, &mut |var, parts| {
            to = to.substitute(&|v| if v == var { parts.clone() } else { Index::var(v) });
        });
        let mut next = next.get();
        collapse(&mut vars, &mut to, &mut value, &mut next);
        let sum = the_sum(&value)?;
        let Expr::Reduce { vars: summed, body, .. } = sum else { return None };
        let Expr::Binary(Binary::Multiply, a, b) = &**body else { return None };
        let mut inner = non_unit(summed);
        let [(a, a_at, a_stored), (b, b_at, b_stored)] = [stored(a, element)?, stored(b, element)?];
        let mut positions = [a_at[0].clone(), b_at[0].clone()];
        join(&mut inner, &mut positions, &mut next);
        if inner.len() > 1 {
            return None;
        }
        let all: Vec<Var> = vars.iter().chain(&inner).copied().collect();
        let side = |buffer: BufferId, at: &Index, stored: Stored| {
            let (factors, base) = affine(at, &all)?;
            let is_summed = inner.is_empty() || *factors.last()? > 0;
            is_summed.then_some(Side { start: (buffer, base), factors, stored })
        };
        let sides = [side(a, &positions[0], a_stored)?, side(b, &positions[1], b_stored)?];
        let (out, _) = affine(&to, &vars).filter(|(_, base)| *base == 0)?;
        let nest = Nest { to: nest.to, vars, value };
        Some(Self { nest, k: inner.first().copied(), sides, is_exchanged: false, out, next_var: next })
    }
    /// The largest variable that moves one side only, and counts no parts.
    fn of_one(&self, mine: usize, parts: &[Var]) -> Option<usize> {
        let moves = |side: usize, i: usize| self.sides[side].factors[i] > 0;
        let is_own =
            |&i: &usize| moves(mine, i) && !moves(1 - mine, i) && !parts.contains(&self.nest.vars[i]);
        let own = (0..self.nest.vars.len()).filter(is_own);
        own.max_by_key(|&i| (self.nest.vars[i].size, self.out[i] == 1))
    }
    /// Row and column of the matrices. Columns lie together in the result; of a product with a vector they are the
    /// longer side.
    pub fn orient(&mut self, parts: &[Var]) -> (Option<usize>, Option<usize>) {
        let (row, column) = (self.of_one(0, parts), self.of_one(1, parts));
        let swap = match (row, column) {
            (Some(r), Some(c)) => self.out[c] != 1 && self.out[r] == 1,
            (Some(_), None) => true,
            _ => false,
        };
        if !swap {
            return (row, column);
        }
        self.sides.swap(0, 1);
        self.is_exchanged = true;
        (column, row)
    }
}

/// A matrix product that a nest is.
pub fn alone(
    program: &mut KernelProgram,
    nest: &Nest,
    element: Element,
    making: &mut SelectionContext<'_>,
) -> Option<KernelCall> {
    let coordinates: Vec<Index> = nest.vars.iter().map(|&v| Index::var(v)).collect();
    product(program, nest, &coordinates, None, element, making)
}

/// The matrix products that a nest is, which stores at these coordinates. Where each is a part by itself, `parts` are the
/// variables that count them.
pub fn product(
    program: &mut KernelProgram,
    nest: &Nest,
    at: &[Index],
    parts: Option<&[Var]>,
    element: Element,
    making: &mut SelectionContext<'_>,
) -> Option<KernelCall> {
    let mut p = Product::read(program, nest, at, element)?;
    let sides = p.sides.clone();
    let (row, column) = p.orient(parts.unwrap_or_default());
    let column = column?;
    let vars = &p.nest.vars;
    let size = |i: Option<usize>| i.map_or(1, |i| vars[i].size as usize);
    let [a, b] = p.sides.clone();
    let is_ahead = is_fixed(program, b.start.0, making.request);
    // Few rows need as long as reading the matrix takes: halves are less to read as they are, or in pairs.
    let is_read_fast = b.stored == Stored::Same
        || (making.library.target().has_bf16 && [a.stored, b.stored] == [Stored::BF16; 2]);
    if size(row) < LEAST_ROWS && !(is_ahead && is_read_fast) {
        return None;
    }
    let batch: Vec<usize> = (0..vars.len()).filter(|&i| Some(i) != row && i != column).collect();
    let strides = |factors: &[usize], row: usize, column: usize| Strides {
        batch: batch.iter().map(|&i| factors[i]).collect(),
        row,
        column,
    };
    let of = |factors: &[usize], i: Option<usize>| i.map_or(0, |i| factors[i]);
    let sum = the_sum(&p.nest.value)?;
    let epilogue = making.epilogues.add(&program.buffers, &p.nest, sum, &names(vars, row, column, &batch))?;
    let (operands, starts) = operands(&epilogue, |at| {
        let (factors, _) = affine(at, vars)?;
        Some(strides(&factors, of(&factors, row), factors[column]))
    })?;
    let k = p.k.map(|_| vars.len());
    let mut gemm = Gemm::new(element, size(row), size(Some(column)), p.k.map_or(1, |k| k.size as usize));
    gemm.batch = batch.iter().map(|&i| vars[i].size as usize).collect();
    gemm.a = strides(&a.factors, of(&a.factors, row), of(&a.factors, k));
    gemm.b = strides(&b.factors, of(&b.factors, k), b.factors[column]);
    gemm.stored = [a.stored, b.stored];
    gemm.out = strides(&p.out, of(&p.out, row), p.out[column]);
    c_type(program.buffers[nest.to].dtype).clone_into(&mut gemm.out_element);
    gemm.packing = if is_ahead { Packing::Ahead } else { Packing::Running };
    gemm.epilogue = Epilogue { operands, expression: epilogue.expression, vectors: epilogue.vectors };
    gemm.one_by_one = parts.is_some();
    if let Some(parts) = parts {
        let strides = if p.is_exchanged { [&gemm.b, &gemm.a] } else { [&gemm.a, &gemm.b] };
        let starts = [(sides[0].start.1, strides[0]), (sides[1].start.1, strides[1]), (0, &gemm.out)];
        let positions = positions(program, nest, at, element)?;
        if !counts(parts, &gemm.batch, &positions, &starts) {
            return None;
        }
    }
    let what = format!("{}x{}x{} product", gemm.m, gemm.n, gemm.k);
    let matrices = gemm.batch.iter().product::<usize>();
    let work = matrices * gemm.m * gemm.n * gemm.k;
    let mut factors = [a.start, b.start];
    let (kernel, exchanged) = quantize::product(program, factors, &gemm, making);
    if exchanged {
        factors.reverse();
    }
    program.next_var = p.next_var;
    Some(call(kernel, nest.to, factors, starts, what, work))
}

/// Where a product reads its two factors and stores its result.
fn positions(program: &KernelProgram, nest: &Nest, at: &[Index], element: Element) -> Option<[Index; 3]> {
    let value = flat_loads(&nest.value, &program.buffers);
    let Expr::Reduce { body, .. } = the_sum(&value)? else { return None };
    let Expr::Binary(Binary::Multiply, a, b) = &**body else { return None };
    let [(_, a, _), (_, b, _)] = [stored(a, element)?, stored(b, element)?];
    Some([a[0].clone(), b[0].clone(), program.buffers[nest.to].position(at)])
}

/// Whether matrix after matrix of a batch starts where part after part does.
fn counts(parts: &[Var], batch: &[usize], positions: &[Index; 3], starts: &[(usize, &Strides); 3]) -> bool {
    let count: i64 = parts.iter().map(|v| v.size).product();
    let step = (count / MOST_PARTS).max(1) as usize;
    // Digits of a number, the last running fastest.
    let coordinates = |mut n: i64, sizes: &[i64]| -> Vec<i64> {
        let mut coordinates: Vec<i64> = sizes.iter().rev().map(|size| (n % size, n /= size).0).collect();
        coordinates.reverse();
        coordinates
    };
    let [outer, matrices]: [Vec<i64>; 2] =
        [parts.iter().map(|v| v.size).collect(), batch.iter().map(|&n| n as i64).collect()];
    let starts_there = |n: i64| {
        let (part, matrix) = (coordinates(n, &outer), coordinates(n, &matrices));
        let value = |v: Var| parts.iter().position(|&w| w == v).map_or(0, |i| part[i]);
        positions.iter().zip(starts).all(|(position, (start, strides))| {
            let expected = position.substitute(&|v| Index::number(value(v))).known();
            let offset = matrix.iter().zip(&strides.batch).map(|(i, stride)| i * *stride as i64).sum::<i64>();
            expected == Some(*start as i64 + offset)
        })
    };
    matrices.iter().product::<i64>() == count && (0..count).step_by(step).all(starts_there)
}

/// How the epilogue calls the variables.
fn names(vars: &[Var], row: Option<usize>, column: usize, batch: &[usize]) -> Vec<(Var, String)> {
    let mut names = vec![(vars[column], "column".to_owned())];
    names.extend(row.map(|i| (vars[i], "row".to_owned())));
    let mut inner = 1;
    for (axis, &i) in batch.iter().enumerate().rev() {
        let quotient = if inner == 1 { "batch".to_owned() } else { format!("batch / {inner}") };
        let text = if axis == 0 { quotient } else { format!("{quotient} % {}", vars[i].size) };
        names.push((vars[i], text));
        inner *= vars[i].size;
    }
    names
}

/// One summation variable of two where both operands go straight through them.
fn join(inner: &mut Vec<Var>, sides: &mut [Index; 2], next: &mut u32) {
    let mut i = inner.len();
    while i >= 2 {
        i -= 1;
        let (a, b) = (inner[i - 1], inner[i]);
        let straight = |at: &Index| at.factor(a).zip(at.factor(b)).is_some_and(|(fa, fb)| fa == fb * b.size);
        if !sides.iter().all(straight) {
            continue;
        }
        let one = Var { id: *next, size: a.size * b.size };
        *next += 1;
        for at in sides.iter_mut() {
            *at = at.substitute(&|v| match v {
                v if v == a => Index::default(),
                v if v == b => Index::var(one),
                v => Index::var(v),
            });
        }
        inner[i - 1] = one;
        inner.remove(i);
    }
}
