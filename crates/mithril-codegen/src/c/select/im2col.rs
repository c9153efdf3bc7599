//! Operands laid out as matrices ("im2col"): a sum of products whose operands no kernel can walk through reads copies
//! that hold the elements in the order in which they are multiplied, and so is a matrix product.

use crate::c::analysis::affine::{affine, flat_loads};
use crate::c::analysis::contraction::{Contraction, stored};
use crate::c::ir::expr::{Binary, Expr, Index, Var, non_unit};
use crate::c::ir::program::{KernelBuffer, KernelProgram, KernelStep, KernelWork, Nest};

/// Multiplications for each element copied, below which a copy costs more than it saves.
const LEAST_USE: i64 = 8;

/// Elements of the largest copy.
const LARGEST: i64 = 1 << 26;

/// Elements that lie together, from which on their order is kept.
const LEAST_TOGETHER: i64 = 16;

/// The nest over copies of those operands that have to be copied, and the steps that make them; `None` if that is
/// not worth it.
pub fn lay_out(
    program: &mut KernelProgram,
    name: &KernelStep,
    nest: &Nest,
    c: &Contraction<'_>,
) -> Option<(Nest, Vec<KernelStep>)> {
    let work = sizes(&nest.vars).saturating_mul(sizes(c.vars));
    let moves = |e: &Expr, v: Var| {
        let mut reads = false;
        e.each_free_var(&mut |w| reads |= w == v);
        reads
    };
    let mut copies = Vec::new();
    let mut sides = Vec::new();
    for (mine, other) in [(0, 1), (1, 0)] {
        let factor = c.factors[mine];
        if is_matrix(program, nest, c, factor) {
            sides.push(factor.clone());
            continue;
        }
        let [own, others] = [mine, other].map(|i| move |v: &Var| moves(c.factors[i], *v));
        let batch = nest.vars.iter().copied().filter(|v| own(v) && others(v));
        let mut vars: Vec<Var> = batch.collect();
        let rows: Vec<Var> = nest.vars.iter().copied().filter(|v| own(v) && !others(v)).collect();
        // What lies together stays together: kernels take either order, and a copy across is slow.
        let lies_along = rows.iter().any(|&v| v.size >= LEAST_TOGETHER && are_together(program, factor, v));
        let [outer, inner] = if lies_along { [c.vars, &rows] } else { [&rows[..], c.vars] };
        vars.extend(outer.iter().chain(inner));
        vars.retain(|v| v.size != 1);
        let elements = sizes(&vars);
        if elements > LARGEST || work / elements.max(1) < LEAST_USE {
            return None;
        }
        sides.push(copy(program, name, factor, &vars, &mut copies));
    }
    let [a, b] = <[Expr; 2]>::try_from(sides).ok()?;
    let product = Expr::Binary(Binary::Multiply, Box::new(a), Box::new(b));
    let value = replaced(&nest.value, &product);
    (!copies.is_empty()).then(|| (Nest { value, ..nest.clone() }, copies))
}

/// Whether everything that an expression reads lies together along a variable.
fn are_together(program: &KernelProgram, e: &Expr, var: Var) -> bool {
    let (mut any, mut all) = (false, true);
    flat_loads(e, &program.buffers).walk(&mut |e| {
        if let Expr::Load { at, .. } = e {
            any = true;
            all &= at[0].factor(var) == Some(1);
        }
    });
    any && all
}

fn sizes(vars: &[Var]) -> i64 {
    vars.iter().fold(1, |n, v| n.saturating_mul(v.size))
}

/// Whether a factor is an element of a tensor at multiples of the variables, where those summed over are one in row-major order.
fn is_matrix(program: &KernelProgram, nest: &Nest, c: &Contraction<'_>, factor: &Expr) -> bool {
    let flat = flat_loads(factor, &program.buffers);
    let Some((_, at, _)) = stored(&flat, c.element) else { return false };
    let all: Vec<Var> = nest.vars.iter().chain(c.vars).copied().collect();
    if affine(&at[0], &all).is_none() {
        return false;
    }
    let summed = non_unit(c.vars);
    let step = |v: Var| at[0].factor(v).unwrap_or(0);
    summed.windows(2).all(|pair| step(pair[0]) == step(pair[1]) * pair[1].size)
        && summed.last().is_none_or(|&v| step(v) > 0)
}

/// The element of a new tensor over `vars` that holds the values of an expression.
fn copy(
    program: &mut KernelProgram,
    like: &KernelStep,
    value: &Expr,
    vars: &[Var],
    copies: &mut Vec<KernelStep>,
) -> Expr {
    // Elements that are stored in 16 bits stay so: products read them as they are.
    let dtype = match value {
        Expr::Load { stored, .. } => *stored,
        _ => value.dtype(),
    };
    let to = program.buffers.end();
    let shape = vars.iter().map(|v| v.size).collect();
    program.buffers.push(KernelBuffer::temporary("columns", dtype, shape));
    // A variable has one meaning in a program.
    let own: Vec<Var> = vars.iter().zip(program.next_var..).map(|(v, id)| Var { id, size: v.size }).collect();
    program.next_var += own.len() as u32;
    let index = |v: Var| vars.iter().position(|&w| w == v).map_or(Index::var(v), |i| Index::var(own[i]));
    let nest = Nest { to, vars: own.clone(), value: value.substitute(&index) };
    copies.push(KernelStep { name: "columns".to_owned(), work: KernelWork::Nest(nest), ..like.clone() });
    Expr::Load { from: to, at: vars.iter().map(|&v| Index::var(v)).collect(), stored: dtype }
}

/// The expression with another body of its sum.
fn replaced(e: &Expr, body: &Expr) -> Expr {
    match e {
        Expr::Reduce { op, vars, .. } => {
            Expr::Reduce { op: *op, vars: vars.clone(), body: Box::new(body.clone()) }
        }
        e => e.map(&Index::clone, &|child| replaced(child, body)),
    }
}
