//! Stage `widen`: halves that a convolution reads become float32 first, each tensor once, since every element is read many
//! times. Matrix products convert them where they pack them, all else where it reads them.

use std::collections::HashMap;

use mithril_ir::DType;
use mithril_ir::loops::{Expr, Index, Var};

use super::contract::contraction;
use super::convolve::is_convolution;
use super::program::{Buffer, Nest, Place, Program, Step, Work};

/// Lets convolutions read float32.
pub fn widen(program: &mut Program) {
    let mut wide: HashMap<usize, usize> = HashMap::new();
    let mut at = 0;
    while let Some(step) = program.steps.get(at).cloned() {
        at += 1;
        let Work::Nest(nest) = &step.work else { continue };
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
        let known = program.buffers.len();
        let mut copies = HashMap::new();
        for half in halves {
            if !wide.contains_key(&half) && !copies.contains_key(&half) {
                let place = Place::Arena(None);
                let buffer =
                    Buffer { dtype: DType::F32, place, is_param: false, ..program.buffers[half].clone() };
                program.buffers.push(buffer);
                copies.insert(half, program.buffers.len() - 1);
            }
        }
        let of = |half: usize| wide.get(&half).or_else(|| copies.get(&half)).copied();
        let value = widened(&nest.value, false, &of);
        let wider = Nest { value, ..nest.clone() };
        if !contraction(&wider).is_some_and(|c| is_convolution(program, &wider, &c)) {
            program.buffers.truncate(known);
            continue;
        }
        program.steps[at - 1].work = Work::Nest(wider);
        let mut copies: Vec<(usize, usize)> = copies.into_iter().collect();
        copies.sort_unstable();
        for &(half, to) in &copies {
            let work = Work::Nest(copy(program, half, to));
            program.steps.insert(at - 1, Step { work, ..step.clone() });
            at += 1;
        }
        wide.extend(copies);
    }
}

/// The nest that fills a tensor with the elements of another one.
fn copy(program: &mut Program, from: usize, to: usize) -> Nest {
    let Buffer { shape, dtype, .. } = &program.buffers[from];
    let vars: Vec<Var> = shape.iter().zip(program.next_var..).map(|(&size, id)| Var { id, size }).collect();
    program.next_var += vars.len() as u32;
    let at = vars.iter().map(|&v| Index::var(v)).collect();
    Nest { to, value: Expr::Load { from, at, stored: *dtype }, vars }
}

/// The expression that reads the wide copies inside of its sum.
fn widened(e: &Expr, inside: bool, of: &dyn Fn(usize) -> Option<usize>) -> Expr {
    let inside = inside || matches!(e, Expr::Reduce { .. });
    match e {
        Expr::Load { from, at, stored: DType::F16 | DType::BF16 } if inside && of(*from).is_some() => {
            Expr::Load { from: of(*from).unwrap_or(*from), at: at.clone(), stored: DType::F32 }
        }
        e => e.map(&Index::clone, &|child| widened(child, inside, of)),
    }
}
