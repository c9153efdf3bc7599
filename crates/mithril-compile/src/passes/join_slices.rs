//! Gradients of slices: what several slices of a tensor send back is a sum of zeros of which one part each is written.
//! Where the parts cover the tensor side by side, they are joined instead.

use mithril_ir::error::Result;
use mithril_ir::graph::{Graph, NodeId, ValueId};
use mithril_ir::interp::use_counts;
use mithril_ir::literal::Lit;
use mithril_ir::ops::{create, elementwise, joining, slicing};
use mithril_ir::{DType, Dim};

use crate::rewrite::Rewrite;

/// A part of a tensor along an axis.
#[derive(Debug)]
struct Part {
    axis: usize,
    start: i64,
    size: i64,
    value: ValueId,
}

/// Joins parts that cover a tensor.
pub fn join_slices(graph: &Graph, float: DType) -> Result<Graph> {
    let uses = use_counts(graph);
    let mut rewrite = Rewrite::new(graph, float);
    let mut changes = false;
    for (n, node) in graph.nodes() {
        match parts(graph, n, &uses) {
            Some(parts) => {
                rewrite.at(n);
                let mut args = vec![rewrite.builder.lit(Lit::int(parts[0].axis as i64))];
                for part in &parts {
                    args.push(rewrite.get(part.value)?);
                }
                let new = rewrite.builder.push(&joining::CONCAT, &args)?;
                rewrite.set_outputs(node, &new);
                changes = true;
            }
            None => {
                rewrite.copy(n)?;
            }
        }
    }
    if changes { super::dce::dce(&rewrite.finish()?) } else { rewrite.finish() }
}

/// The parts that a node adds up, in order, if they cover its result.
fn parts(graph: &Graph, n: NodeId, uses: &[u32]) -> Option<Vec<Part>> {
    let node = graph.node(n);
    if node.op != &elementwise::ADD {
        return None;
    }
    let mut slices = Vec::new();
    let mut rest = node.inputs.to_vec();
    while let Some(v) = rest.pop() {
        let inner = graph.node(graph.producer(v)?);
        if uses[v.index()] != 1 {
            return None;
        }
        if inner.op == &elementwise::ADD {
            rest.extend(inner.inputs.iter().copied());
        } else {
            slices.push(part(graph, v)?);
        }
    }
    let output = graph.ty(node.outputs[0])?;
    slices.sort_by_key(|part| part.start);
    let axis = slices.first()?.axis;
    let mut end = 0;
    for part in &slices {
        if part.axis != axis || part.start != end || graph.ty(part.value)?.dtype != output.dtype {
            return None;
        }
        end += part.size;
    }
    (output.shape.get(axis).and_then(Dim::known) == Some(end)).then_some(slices)
}

/// What a value is a part of zeros with.
fn part(graph: &Graph, v: ValueId) -> Option<Part> {
    let node = graph.node(graph.producer(v)?);
    if node.op != &slicing::SLICE_UPDATE || !is_zero(graph, node.inputs[0]) {
        return None;
    }
    let (whole, own) = (&graph.ty(v)?.shape, &graph.ty(node.inputs[1])?.shape);
    if whole.rank() != own.rank() {
        return None;
    }
    let bounds = |i: usize| match graph.lit(node.inputs[i])? {
        Lit::Tuple(all) => Some(all.clone()),
        _ => None,
    };
    let (starts, stops) = (bounds(2)?, bounds(3)?);
    match graph.lit(*node.inputs.get(4)?)? {
        Lit::None => {}
        Lit::Tuple(steps) if steps.iter().all(|step| *step == Lit::int(1) || step.is_none()) => {}
        _ => return None,
    }
    let mut slice = None;
    for axis in 0..whole.rank() {
        let bound = |all: &[Lit]| match all.get(axis) {
            Some(Lit::Int(at)) => Some(at.known()),
            _ => None,
        };
        let (start, stop) = (bound(&starts), bound(&stops));
        if whole[axis] == own[axis] {
            continue;
        }
        let size = own[axis].known()?;
        let start = start.map_or(Some(0), |at| at.filter(|at| *at >= 0))?;
        let end = stop.map_or(whole[axis].known(), |at| at.filter(|at| *at >= 0))?;
        if slice.is_some() || end.min(whole[axis].known()?) - start != size {
            return None;
        }
        slice = Some(Part { axis, start, size, value: node.inputs[1] });
    }
    slice
}

fn is_zero(graph: &Graph, v: ValueId) -> bool {
    if let Some(Lit::Tensor(t)) = graph.lit(v) {
        return (0..t.len()).all(|i| t.get(i).f64() == 0.0);
    }
    let Some(node) = graph.producer(v).map(|n| graph.node(n)) else { return false };
    let zero = |v: ValueId| match graph.lit(v) {
        Some(Lit::Float(x)) => *x == 0.0,
        Some(Lit::Int(n)) => n.is(0),
        _ => false,
    };
    node.op == &create::ZEROS || node.op == &create::FULL && zero(node.inputs[1])
}
