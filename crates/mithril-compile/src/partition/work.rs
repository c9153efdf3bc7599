//! How much a use of an op computes, from its tensor expressions.

use mithril_ir::graph::TensorType;
use mithril_ir::loops::{Binary, Expr, Var};

use super::rule::{Arg, Use, build, sizes};

fn product(vars: &[Var]) -> u64 {
    vars.iter().fold(1_u64, |n, var| n.saturating_mul(var.size.max(0) as u64))
}

/// How many elements a use computes, those of sums included.
pub fn work(call: &Use) -> u64 {
    if let Some(loops) = call.loops() {
        let of = |(vars, value): (&[Var], &Expr)| {
            let mut inner = 1;
            value.walk(&mut |e| {
                if let Expr::Reduce { vars, .. } = e {
                    inner = inner.max(product(vars));
                }
            });
            product(vars).saturating_mul(inner)
        };
        return loops.each_expression().map(of).fold(0, u64::saturating_add);
    }
    if call.op.expand.is_some()
        && let Some((graph, ..)) = build(call, true)
    {
        let inner = graph.nodes().map(|(_, node)| Use::of(&graph, node).map_or(0, |inner| work(&inner)));
        return inner.fold(0, u64::saturating_add);
    }
    let sizes = |ty: &TensorType| ty.shape.known().map_or(0, |sizes| sizes.iter().product::<usize>() as u64);
    call.outputs.iter().map(sizes).sum()
}

/// Arithmetic of a use: two operations for each product that a sum adds up, as contractions and convolutions do, else
/// one for each element. Ops that only move elements have none.
pub fn arithmetic(call: &Use) -> u64 {
    if let Some(loops) = call.loops() {
        let of = |(vars, value): (&[Var], &Expr)| {
            if matches!(value, Expr::Load { .. } | Expr::Number(..)) {
                return 0;
            }
            let mut inner = 1;
            value.walk(&mut |e| {
                if let Expr::Reduce { vars, body, .. } = e {
                    let mut factors = 1;
                    body.walk(&mut |e| {
                        if matches!(e, Expr::Binary(Binary::Multiply, ..)) {
                            factors = 2;
                        }
                    });
                    inner = inner.max(product(vars).saturating_mul(factors));
                }
            });
            product(vars).saturating_mul(inner)
        };
        return loops.each_expression().map(of).fold(0, u64::saturating_add);
    }
    if call.op.expand.is_some()
        && let Some((graph, ..)) = build(call, true)
    {
        let inner =
            graph.nodes().map(|(_, node)| Use::of(&graph, node).map_or(0, |inner| arithmetic(&inner)));
        return inner.fold(0, u64::saturating_add);
    }
    work(call)
}

/// Whether an op only says how to read its operand: each element of the result is one of the operand.
pub fn is_view(call: &Use) -> bool {
    call.loops().is_some_and(|loops| {
        loops.computed.is_empty() && loops.values.iter().all(|value| matches!(value, Expr::Load { .. }))
    })
}

/// Whether a use multiplies, rather than touching each element a few times.
pub fn is_product(call: &Use) -> bool {
    let elements = |ty: &TensorType| sizes(ty).iter().product::<i64>() as u64;
    let tensors = call.args.iter().filter_map(|arg| match arg {
        Arg::Tensor(ty) => Some(elements(ty)),
        Arg::Lit(_) => None,
    });
    let largest = tensors.chain(call.outputs.iter().map(elements)).max().unwrap_or(0);
    work(call) >= largest.saturating_mul(4)
}
