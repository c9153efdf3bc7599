//! Parameters of experts: stacks of matrices, one for each expert, that products take one by one.

use mithril_ir::graph::{Def, Graph, Node, Role, ValueId};
use mithril_ir::ops::{einsum, elementwise, linalg, movement};

use super::rule::{self, Arg, Placement, Use};

/// How many ops may lie between a parameter and the product: transposes, conversions.
const DEPTH: usize = 4;

/// Whether an input is a parameter of three axes or more whose first axis goes through a product of matrices: each of
/// its blocks can be multiplied on a device of its own, and the result is divided, not summed.
pub fn is_of_experts(graph: &Graph, input: usize) -> bool {
    let v = graph.inputs[input];
    let has_stack = |v| graph.ty(v).is_some_and(|ty| ty.shape.rank() >= 3 && !ty.shape[0].is(1));
    matches!(graph.value(v).def, Def::Input(Role::Param)) && has_stack(v) && multiplies(graph, v, 0, DEPTH)
}

/// Whether an axis of a value goes through the first product that reads it.
fn multiplies(graph: &Graph, v: ValueId, axis: usize, depth: usize) -> bool {
    if depth == 0 {
        return false;
    }
    graph.nodes().filter(|(_, node)| node.inputs.contains(&v)).any(|(_, node)| {
        let is_product = node.op == &linalg::MATMUL || node.op == &einsum::EINSUM;
        let is_moved = node.op == &elementwise::CAST || movement::OPS.contains(&node.op);
        match divided(graph, node, v, axis) {
            Some(Placement::Shard(_)) if is_product => true,
            Some(Placement::Shard(axis)) if is_moved => multiplies(graph, node.outputs[0], axis, depth - 1),
            _ => false,
        }
    })
}

/// Where the result of a node lies if an axis of an operand is divided as often as it can be.
fn divided(graph: &Graph, node: &Node, v: ValueId, axis: usize) -> Option<Placement> {
    let call = Use::of(graph, node)?;
    let at = node.inputs.iter().position(|&input| input == v)?;
    let Arg::Tensor(ty) = &call.args[at] else { return None };
    let devices = ty.shape.get(axis)?.known()?;
    let ways = rule::candidates(&call, at, Placement::Shard(axis));
    ways.iter().find_map(|places| Some(rule::local(&call, places, devices)?.placements[0]))
}
