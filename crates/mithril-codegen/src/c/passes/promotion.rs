//! Promotion: 16-bit floats that a convolution, or the gradient of its weights, reads become float32 first, each tensor once,
//! since every element is read many times; so does a vector that is multiplied with a matrix. Larger matrix products convert
//! 16-bit floats where they pack them, everything else where it reads them. Where the processor multiplies pairs of bfloat16,
//! products with a matrix that is packed ahead read both factors as they are. `half_layout.rs` takes the copies away from
//! convolutions that need none.

use std::collections::{BTreeSet, HashMap};

use mithril_ir::DType;

use crate::c::analysis::contraction::{Contraction, contraction};
use crate::c::analysis::convolution::is_convolution;
use crate::c::ir::expr::{BufferId, Expr, Index, StepId};
use crate::c::ir::program::{LoopBuffer, LoopProgram, LoopStep, LoopWork, Nest, Place};
use crate::c::request::Request;
use crate::c::select::weight_gradient::is_weight_gradient;
use crate::ids::Id as _;

/// Products of an element from which on a small tensor is converted first.
const OFTEN: i64 = 1024;

/// Elements of a small tensor, at most.
const SMALL: i64 = 1 << 16;

/// Lets convolutions read float32, and other sums of products what is small.
pub fn promote(program: &mut LoopProgram, request: &Request) {
    let weights =
        if request.options.pack && request.target.has_bf16 { weights(program) } else { BTreeSet::new() };
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
        let mut converted = copies(program, &wide, &halves);
        let mut wider = reading(nest, &wide, &converted);
        if !contraction(&wider).is_some_and(|c| {
            is_convolution(program, &wider, &c) || is_weight_gradient(program, &wider, &c, &request.target)
        }) {
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
            converted = copies(program, &wide, &halves);
            wider = reading(nest, &wide, &converted);
        }
        program.steps[at - 1].work = LoopWork::Nest(wider);
        for &(half, to) in &converted {
            let work = LoopWork::Nest(copy(program, half, to));
            program.steps.insert(at - 1, LoopStep { work, ..step.clone() });
            at = at.next();
        }
        wide.extend(converted);
    }
}

/// Tensors that depend on parameters alone.
fn weights(program: &LoopProgram) -> BTreeSet<BufferId> {
    let is_fixed = |b: &LoopBuffer| b.is_param || matches!(b.place, Place::Constant(_));
    let mut weights: BTreeSet<BufferId> =
        (program.buffers.ids()).filter(|&b| is_fixed(&program.buffers[b])).collect();
    for step in &program.steps {
        let reads = step.reads();
        if !reads.is_empty() && reads.iter().all(|b| weights.contains(b)) {
            weights.extend(step.writes());
        }
    }
    weights
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
    let mut converted: Vec<(BufferId, BufferId)> = Vec::new();
    for &half in halves {
        if !wide.contains_key(&half) && converted.iter().all(|(known, _)| *known != half) {
            let LoopBuffer { name, shape, .. } = program.buffers[half].clone();
            converted.push((half, program.buffers.push(LoopBuffer::temporary(name, DType::F32, shape))));
        }
    }
    converted
}

/// The nest that reads wide copies inside of its sum.
fn reading(nest: &Nest, wide: &HashMap<BufferId, BufferId>, converted: &[(BufferId, BufferId)]) -> Nest {
    let new = |half: BufferId| converted.iter().find(|(known, _)| *known == half).map(|(_, to)| *to);
    let of = |half: BufferId| wide.get(&half).copied().or_else(|| new(half));
    Nest { value: widened(&nest.value, false, &of), ..nest.clone() }
}

/// The nest that fills a tensor with the elements of another one.
fn copy(program: &mut LoopProgram, from: BufferId, to: BufferId) -> Nest {
    let LoopBuffer { shape, dtype, .. } = program.buffers[from].clone();
    let vars = program.fresh_vars(shape);
    let at = vars.iter().map(|&v| Index::var(v)).collect();
    Nest { to, value: Expr::Load { from, at, stored: dtype }, vars }
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
