//! Sums of products apart from what is made of them ("unfusing"), where together no kernel computes them well: the sums
//! fill a temporary, and what is made of them is a step behind it.
//!
//! - Where what is stored is rearranged, rows that lie together in a factor may lie apart in the result, and no kernel
//!   finds enough of them side by side: the temporary has the order of the factors.
//! - Where no kernel takes the sum with its epilogue (that reads at positions which are data, say), one may take the sum.

use std::cell::Cell;

use crate::c::analysis::affine::flat_loads;
use crate::c::analysis::contraction::{Contraction, replaced, stored, the_sum};
use crate::c::analysis::split::split;
use crate::c::ir::expr::{Binary, Expr, Index, ReduceOp, Var, non_unit};
use crate::c::ir::program::{KernelBuffer, KernelProgram, KernelStep, KernelWork, Nest};
use crate::c::select::product::Product;

/// Rows or columns from which on kernels are fast.
const ENOUGH: i64 = 24;

/// How many times more rows or columns there have to be in the order of the factors.
const LEAST_GAIN: i64 = 4;

/// Products below which nothing is gained.
const LEAST_WORK: i64 = 1 << 20;

/// The nest that fills a temporary with the sums, and the step that makes the result of them; `None` where the nest is
/// as good as it is.
pub fn separate(
    program: &mut KernelProgram,
    name: &KernelStep,
    nest: &Nest,
    c: &Contraction<'_>,
) -> Option<(Nest, KernelStep)> {
    let coordinates: Vec<Index> = nest.vars.iter().map(|&v| Index::var(v)).collect();
    let mut product = Product::read(program, nest, &coordinates, c.element)?;
    let work = nest.vars.iter().chain(c.vars).fold(1_i64, |n, v| n.saturating_mul(v.size));
    if work < LEAST_WORK || !is_improved(&mut product) {
        return None;
    }
    let sum = the_sum(&nest.value)?;
    let next = Cell::new(product.next_var);
    // The variables of the result, as coordinates of which each factor is read in order.
    let mut flat = flat_loads(&nest.value, &program.buffers);
    let mut vars = non_unit(&nest.vars);
    let mut coordinates: Vec<(Var, Index)> = Vec::new();
    split(&mut vars, &mut flat, &next, &mut |var, of| {
        for (_, index) in &mut coordinates {
            *index = index.substitute(&|v| if v == var { of.clone() } else { Index::var(v) });
        }
        if nest.vars.contains(&var) {
            coordinates.push((var, of.clone()));
        }
    });
    let whole =
        |v: Var| coordinates.iter().find(|(var, _)| *var == v).map_or(Index::var(v), |(_, of)| of.clone());
    let [first, second] = sides(&flat, &vars, c)?;
    let mut order: Vec<(usize, i64, Var)> = Vec::new();
    for (i, &v) in vars.iter().enumerate() {
        // Variables of both factors count matrices; the others stand by the factor that they move.
        let (group, step) = match (first[i], second[i]) {
            (0, step) => (2, step),
            (step, 0) => (1, step),
            (step, _) => (0, step),
        };
        order.push((group, -step, v));
    }
    order.sort_by_key(|&(group, step, _)| (group, step));
    let inner: Vec<Var> = order.iter().map(|(_, _, v)| *v).collect();
    program.next_var = next.get();
    // Where the element of the result finds its sum, in the variables of the product.
    let at = inner
        .iter()
        .map(|&coordinate| place(coordinate, &nest.vars, &coordinates))
        .collect::<Option<Vec<Index>>>()?;
    Some(parted(program, name, nest, (sum, inner, sum.substitute(&whole)), at))
}

/// The nest that fills a temporary with the sums in the order of images, and the step that makes the result of them;
/// `None` if nothing is made of them.
pub fn unfuse(program: &mut KernelProgram, name: &KernelStep, nest: &Nest) -> Option<(Nest, KernelStep)> {
    let (work, sum) = largest_sum(&nest.value, nest.vars.iter().fold(1, |n, v| n.saturating_mul(v.size)))?;
    if work < LEAST_WORK || nest.value == *sum {
        return None;
    }
    let Expr::Reduce { body, .. } = sum else { return None };
    let Expr::Binary(_, a, b) = &**body else { return None };
    // Images, filters, and the pixels that a window slides over.
    let group = |v: &Var| {
        let (mut moves, mut slides) = ([false; 2], false);
        for (factor, moves) in [a, b].into_iter().zip(&mut moves) {
            factor.walk(&mut |e| {
                for index in e.indices() {
                    index.each_var(&mut |w| *moves |= w == *v);
                    slides |= index.terms.len() > 1 && index.factor(*v).is_some_and(|f| f != 0);
                }
            });
        }
        (usize::from(moves[1] && !moves[0]) + 2 * usize::from(slides), moves)
    };
    let mut inner = nest.vars.clone();
    inner.sort_by_key(|v| group(v).0);
    // A variable has one meaning in a program.
    let own: Vec<Var> =
        inner.iter().zip(program.next_var..).map(|(v, id)| Var { id, size: v.size }).collect();
    program.next_var += own.len() as u32;
    let index = |v: Var| inner.iter().position(|&w| w == v).map_or(Index::var(v), |i| Index::var(own[i]));
    let at = inner.iter().map(|&v| Index::var(v)).collect();
    Some(parted(program, name, nest, (sum, own.clone(), sum.substitute(&index)), at))
}

/// The sum of the most products that is computed for every element, and how many these are.
fn largest_sum(e: &Expr, times: i64) -> Option<(i64, &Expr)> {
    match e {
        Expr::Reduce { op: ReduceOp::Sum, vars, body }
            if matches!(**body, Expr::Binary(Binary::Multiply, ..)) =>
        {
            Some((vars.iter().fold(times, |n, v| n.saturating_mul(v.size)), e))
        }
        Expr::Reduce { .. } | Expr::Select { .. } => None,
        _ => e.children().into_iter().filter_map(|child| largest_sum(child, times)).max_by_key(|(n, _)| *n),
    }
}

/// The nest that fills a temporary with the sums, and the step that reads them at these coordinates.
fn parted(
    program: &mut KernelProgram,
    name: &KernelStep,
    nest: &Nest,
    (sum, vars, sums): (&Expr, Vec<Var>, Expr),
    at: Vec<Index>,
) -> (Nest, KernelStep) {
    let (to, stored) = (program.buffers.end(), sums.dtype());
    program.buffers.push(KernelBuffer::temporary("products", stored, vars.iter().map(|v| v.size).collect()));
    let load = Expr::Load { from: to, at, stored };
    let rest = Nest { value: replaced(&nest.value, sum, &load), ..nest.clone() };
    (Nest { to, vars, value: sums }, KernelStep { work: KernelWork::Nest(rest), ..name.clone() })
}

/// Whether rows or columns that are few in the order of the result are many in that of the factors.
fn is_improved(product: &mut Product) -> bool {
    let (row, column) = product.orient(&[]);
    let sizes: Vec<i64> = product.nest.vars.iter().map(|v| v.size).collect();
    let moved = |side: usize, i: usize| product.sides[side].factors[i] as i64;
    [(0, row), (1, column)].into_iter().any(|(side, chosen)| {
        let Some(chosen) = chosen.filter(|&i| sizes[i] < ENOUGH) else { return false };
        let mut own: Vec<usize> =
            (0..sizes.len()).filter(|&i| moved(side, i) > 0 && moved(1 - side, i) == 0).collect();
        own.sort_by_key(|&i| std::cmp::Reverse(moved(side, i)));
        let is_one = own.windows(2).all(|pair| moved(side, pair[0]) == moved(side, pair[1]) * sizes[pair[1]]);
        let all = own.iter().fold(1_i64, |n, &i| n.saturating_mul(sizes[i]));
        is_one && all >= sizes[chosen].saturating_mul(LEAST_GAIN)
    })
}

/// How far each variable moves the two factors.
fn sides(flat: &Expr, vars: &[Var], c: &Contraction<'_>) -> Option<[Vec<i64>; 2]> {
    let Expr::Reduce { body, .. } = the_sum(flat)? else { return None };
    let Expr::Binary(_, a, b) = &**body else { return None };
    let side = |e: &Expr| {
        let (_, at, _) = stored(e, c.element)?;
        vars.iter().map(|&v| at[0].factor(v)).collect::<Option<Vec<i64>>>()
    };
    Some([side(a)?, side(b)?])
}

/// A coordinate of the result.
fn place(coordinate: Var, vars: &[Var], coordinates: &[(Var, Index)]) -> Option<Index> {
    if vars.contains(&coordinate) {
        return Some(Index::var(coordinate));
    }
    coordinates.iter().find_map(|(var, of)| {
        let factor = of.factor(coordinate).filter(|f| *f > 0)?;
        Some(Index::var(*var).floor_div(factor).modulo(coordinate.size))
    })
}
