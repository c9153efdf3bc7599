//! Promotion: 16-bit floats that a convolution reads become float32 first, each tensor once, since every element is read many
//! times; so does a vector that is multiplied with a matrix. Larger matrix products convert 16-bit floats where they pack them,
//! everything else where it reads them. Where the processor multiplies pairs of bfloat16, products with a matrix that is
//! packed ahead read both factors as they are.

use std::collections::{BTreeSet, HashMap};

use mithril_ir::DType;

use crate::c::analysis::contraction::{Contraction, contraction};
use crate::c::analysis::convolution::is_convolution;
use crate::c::ir::expr::{BufferId, Expr, Index, StepId, Var};
use crate::c::ir::program::{Buffer, LoopProgram, LoopStep, LoopWork, Nest, Place};
use crate::c::options::Options;
use crate::ids::Id as _;

/// Products of an element from which on a small tensor is converted first.
const OFTEN: i64 = 1024;

/// Elements of a small tensor, at most.
const SMALL: i64 = 1 << 16;

/// Lets convolutions read float32, and other sums of products what is small.
pub fn promote(program: &mut LoopProgram, options: &Options) {
    let weights = if options.pack && options.target.has_bf16 { weights(program) } else { BTreeSet::new() };
    let mut wide: HashMap<BufferId, BufferId> = HashMap::new();
    let mut at = StepId::new(0);
    while let Some(step) = program.steps.get(at).cloned() {
        at = at.next();
        let LoopWork::Nest(nest) = &step.work else { continue };
        let Some(factors) = contraction(nest).map(|c| c.factors) else { continue };
        let mut halves = Vec::new();
        for factor in factors {
            factor.walk(&mut |e| {
                if let Expr::Load { from, stored: DType::F16 | DType::BF16, .. } = e {
                    halves.push(*from);
                }
            });
        }
        if halves.is_empty() {
            continue;
        }
        let known = program.buffers.end();
        let mut made = copies(program, &wide, &halves);
        let mut wider = reading(nest, &wide, &made);
        if !contraction(&wider).is_some_and(|c| is_convolution(program, &wider, &c)) {
            program.buffers.truncate(known);
            if contraction(nest).is_some_and(|c| is_of_pairs(&c, &weights)) {
                continue;
            }
            let work = contraction(nest)
                .map_or(0, |c| nest.vars.iter().chain(c.vars).fold(1_i64, |n, v| n.saturating_mul(v.size)));
            halves.retain(|&half| {
                let count = program.buffers[half].count();
                (1..=SMALL).contains(&count) && work / count >= OFTEN
            });
            made = copies(program, &wide, &halves);
            wider = reading(nest, &wide, &made);
        }
        program.steps[at - 1].work = LoopWork::Nest(wider);
        for &(half, to) in &made {
            let work = LoopWork::Nest(copy(program, half, to));
            program.steps.insert(at - 1, LoopStep { work, ..step.clone() });
            at = at.next();
        }
        wide.extend(made);
    }
}

/// Tensors that depend on parameters alone.
fn weights(program: &LoopProgram) -> BTreeSet<BufferId> {
    let is_fixed = |b: &Buffer| b.is_param || matches!(b.place, Place::Constant(_));
    let mut found: BTreeSet<BufferId> =
        (program.buffers.ids()).filter(|&b| is_fixed(&program.buffers[b])).collect();
    for step in &program.steps {
        let reads = step.reads();
        if !reads.is_empty() && reads.iter().all(|b| found.contains(b)) {
            found.extend(step.writes());
        }
    }
    found
}

/// Whether both factors are bfloat16, and one of them is a weight.
fn is_of_pairs(c: &Contraction<'_>, weights: &BTreeSet<BufferId>) -> bool {
    let read = |factor: &Expr| match factor {
        Expr::Load { from, stored: DType::BF16, .. } => Some(*from),
        _ => None,
    };
    let read: Option<Vec<BufferId>> = c.factors.iter().map(|factor| read(factor)).collect();
    read.is_some_and(|read| read.iter().any(|b| weights.contains(b)))
}

/// New tensors for the halves that have no wide copy yet, in pairs.
fn copies(
    program: &mut LoopProgram,
    wide: &HashMap<BufferId, BufferId>,
    halves: &[BufferId],
) -> Vec<(BufferId, BufferId)> {
    let mut made: Vec<(BufferId, BufferId)> = Vec::new();
    for &half in halves {
        if !wide.contains_key(&half) && made.iter().all(|(known, _)| *known != half) {
            let place = Place::Arena(None);
            let buffer =
                Buffer { dtype: DType::F32, place, is_param: false, ..program.buffers[half].clone() };
            made.push((half, program.buffers.push(buffer)));
        }
    }
    made
}

/// The nest that reads wide copies inside of its sum.
fn reading(nest: &Nest, wide: &HashMap<BufferId, BufferId>, made: &[(BufferId, BufferId)]) -> Nest {
    let new = |half: BufferId| made.iter().find(|(known, _)| *known == half).map(|(_, to)| *to);
    let of = |half: BufferId| wide.get(&half).copied().or_else(|| new(half));
    Nest { value: widened(&nest.value, false, &of), ..nest.clone() }
}

/// The nest that fills a tensor with the elements of another one.
fn copy(program: &mut LoopProgram, from: BufferId, to: BufferId) -> Nest {
    let Buffer { shape, dtype, .. } = &program.buffers[from];
    let vars: Vec<Var> = shape.iter().zip(program.next_var..).map(|(&size, id)| Var { id, size }).collect();
    program.next_var += vars.len() as u32;
    let at = vars.iter().map(|&v| Index::var(v)).collect();
    Nest { to, value: Expr::Load { from, at, stored: *dtype }, vars }
}

/// The expression that reads the wide copies inside of its sum.
fn widened(e: &Expr, inside: bool, of: &dyn Fn(BufferId) -> Option<BufferId>) -> Expr {
    let inside = inside || matches!(e, Expr::Reduce { .. });
    match e {
        Expr::Load { from, at, stored: DType::F16 | DType::BF16 } if inside && of(*from).is_some() => {
            Expr::Load { from: of(*from).unwrap_or(*from), at: at.clone(), stored: DType::F32 }
        }
        e => e.map(&Index::clone, &|child| widened(child, inside, of)),
    }
}
