//! Split reduction: a reduction of very many elements to very few, the sum of a whole tensor for example, is done in two
//! stages, so that threads can share the work: first parts, then the results of the parts. The number of parts depends on
//! sizes alone, so that the result is the same for any number of threads.

use mithril_ir::DType;

use crate::c::analysis::contraction::replaced;
use crate::c::ir::expr::{Expr, Index, ReduceOp, StepId, Var, arithmetic};
use crate::c::ir::program::{LoopBuffer, LoopProgram, LoopStep, LoopWork, Nest};
use crate::ids::Id as _;

/// Elements of one result from which on it is worth it.
const LEAST: i64 = 1 << 17;

/// So few results leave threads without work.
const FEW: i64 = 4;

/// Numbers of parts, the best first: one has to divide a size.
const PARTS: &[i64] = &[16, 12, 10, 18, 20, 14, 15, 8, 9, 24, 25, 32, 22, 21, 11, 13, 17, 19, 7, 6, 5, 4];

/// Puts such parts into tensors of their own.
pub fn split_reductions(program: &mut LoopProgram) {
    let mut at = StepId::new(0);
    while let Some(step) = program.steps.get(at).cloned() {
        at = at.next();
        let LoopWork::Nest(nest) = &step.work else { continue };
        if count(&nest.vars) >= FEW {
            continue;
        }
        // One by one: what holds one of them comes later.
        while let Some(partial) = split(program, at - 1) {
            program.steps.insert(at - 1, LoopStep { work: LoopWork::Nest(partial), ..step.clone() });
            at = at.next();
        }
    }
}

fn count(vars: &[Var]) -> i64 {
    vars.iter().fold(1, |n, v| n.saturating_mul(v.size))
}

/// A large reduction without another one inside, the variable to divide, and into how many parts. What is computed on
/// one side of a choice only stays there.
fn innermost(e: &Expr) -> Option<(&Expr, Var, i64)> {
    if matches!(e, Expr::Select { .. }) {
        return None;
    }
    if let Some(inner) = e.children().into_iter().find_map(innermost) {
        return Some(inner);
    }
    let Expr::Reduce { op, vars, body } = e else { return None };
    let is_whole = !matches!(op, ReduceOp::ArgMax | ReduceOp::ArgMin) && !body.reduces();
    if !is_whole || count(vars) < LEAST {
        return None;
    }
    let divided = |v: &Var| PARTS.iter().find(|&&n| v.size % n == 0).map(|&n| (*v, n));
    let (var, parts) = vars.iter().find_map(divided)?;
    Some((e, var, parts))
}

/// Makes the nest of the parts of a reduction, and lets the step bring them together; `None` if there is none to divide.
fn split(program: &mut LoopProgram, step: StepId) -> Option<Nest> {
    let LoopWork::Nest(nest) = &program.steps[step].work else { return None };
    let (reduction, var, parts) = innermost(&nest.value)?;
    let Expr::Reduce { op, vars, body } = reduction else { return None };
    let mut next = program.next_var;
    let mut fresh = |size: i64| {
        next += 1;
        Var { id: next - 1, size }
    };
    let (part, inner, part_index) = (fresh(parts), fresh(var.size / parts), fresh(parts));
    let own: Vec<Var> = nest.vars.iter().map(|v| fresh(v.size)).collect();
    // A variable has one meaning in a program.
    let summed: Vec<Var> = vars.iter().map(|&v| if v == var { inner } else { fresh(v.size) }).collect();
    let index = |v: Var| match (vars.iter().position(|&w| w == v), nest.vars.iter().position(|&w| w == v)) {
        _ if v == var => Index::var(part) * inner.size + Index::var(inner),
        (Some(i), _) => Index::var(summed[i]),
        (None, Some(i)) => Index::var(own[i]),
        (None, None) => Index::var(v),
    };
    let dtype = reduction.dtype();
    let stored = if dtype == DType::Bool { dtype } else { arithmetic(dtype) };
    let value = Expr::Reduce { op: *op, vars: summed.clone(), body: Box::new(body.substitute(&index)) };
    let to = program.buffers.end();
    let at = std::iter::once(part_index).chain(nest.vars.iter().copied()).map(Index::var).collect();
    let body = Box::new(Expr::Load { from: to, at, stored });
    let together = Expr::Reduce { op: *op, vars: vec![part_index], body };
    let nest = Nest { value: replaced(&nest.value, reduction, &together), ..nest.clone() };
    let shape = std::iter::once(parts).chain(own.iter().map(|v| v.size)).collect();
    program.buffers.push(LoopBuffer::temporary("parts", stored, shape));
    program.steps[step].work = LoopWork::Nest(nest);
    program.next_var = next;
    Some(Nest { to, vars: std::iter::once(part).chain(own).collect(), value })
}
