//! Products whose operands were flattened and transposed for them: matrix products over all leading axes, `linear`.
//!
//! Exporters flatten leading axes before a product of matrices, and restore them behind; `addmm` and `bmm` of PyTorch
//! take nothing else. Movements in a row become one.

use mithril_ir::graph::{Def, Node, NodeId, Role, ValueId};
use mithril_ir::literal::Lit;
use mithril_ir::ops::{elementwise as e, linalg, movement as m};
use mithril_ir::{Dim, shape};

use super::unify::Bound;
use super::view::View;

/// What stands instead of a node.
pub fn raised(view: &View<'_>, root: NodeId) -> Option<Bound> {
    let node = view.graph.node(root);
    match node.op {
        op if op == &linalg::MATMUL => linear(view, node),
        op if op == &e::ADD => with_bias(view, node),
        op if op == &m::RESHAPE => reshaped(view, node),
        op if op == &m::TRANSPOSE => transposed(view, node),
        _ => None,
    }
}

/// The order in which a node puts all axes of its operand.
pub fn order(view: &View<'_>, node: &Node) -> Option<Vec<usize>> {
    let rank = view.shape(*node.inputs.first()?)?.rank();
    let literal = |i: usize| node.inputs.get(i).and_then(|&v| view.graph.lit(v));
    let axis = |lit: &Lit| match lit {
        Lit::Int(d) => shape::normalize_axis(d.known()?, rank).ok(),
        _ => None,
    };
    let swapped = |a: usize, b: usize| {
        let mut order: Vec<usize> = (0..rank).collect();
        order.swap(a, b);
        order
    };
    match node.op {
        op if op == &m::TRANSPOSE => match literal(1)? {
            Lit::Tuple(axes) => axes.iter().map(axis).collect(),
            _ => Some((0..rank).rev().collect()),
        },
        op if op == &linalg::MATRIX_TRANSPOSE => Some(swapped(rank.checked_sub(2)?, rank - 1)),
        op if op == &m::SWAPAXES => Some(swapped(axis(literal(1)?)?, axis(literal(2)?)?)),
        _ => None,
    }
}

/// Whether an order exchanges the last two axes and nothing else.
pub fn is_matrix_transpose(order: &[usize]) -> bool {
    let n = order.len();
    n >= 2 && order[..n - 2].iter().copied().eq(0..n - 2) && order[n - 2..] == [n - 1, n - 2]
}

/// Whether a value is a parameter or a constant.
fn is_weight(view: &View<'_>, v: ValueId) -> bool {
    match &view.graph.value(v).def {
        Def::Input(role) => matches!(role, Role::Param | Role::State),
        Def::Const(_) => true,
        Def::Node(..) => view.use_of(v, &e::CAST).is_some_and(|(_, node)| is_weight(view, node.inputs[0])),
    }
}

/// `input @ weightᵀ`; a product of operands that are broadcast, which it does itself.
fn linear(view: &View<'_>, node: &Node) -> Option<Bound> {
    let matrices = |v: ValueId| view.shape(v).map(|shape| shape[shape.rank().saturating_sub(2)..].to_vec());
    let before = |v: ValueId| {
        let (_, broadcast) = view.use_of(v, &m::BROADCAST_TO)?;
        let source = broadcast.inputs[0];
        (view.shape(source)?.rank() >= 2 && matrices(source) == matrices(v)).then_some(source)
    };
    // If the other operand has all axes of the result; types are compared afterwards.
    if let Some((i, source)) = (0..2).find_map(|i| Some((i, before(node.inputs[i])?))) {
        let mut args: Vec<Bound> = node.inputs.iter().map(|&v| Bound::Value(v)).collect();
        args[i] = Bound::Value(source);
        return Some(Bound::Op(node.op, args));
    }
    let (_, transpose) = view.node(node.inputs[1])?;
    let order = order(view, transpose)?;
    let weight = *transpose.inputs.first()?;
    if order != [1, 0] || !is_weight(view, weight) {
        return None;
    }
    Some(Bound::Op(&linalg::LINEAR, vec![Bound::Value(node.inputs[0]), Bound::Value(weight)]))
}

/// `linear(input, weight) + bias`
fn with_bias(view: &View<'_>, node: &Node) -> Option<Bound> {
    (0..2).find_map(|i| {
        let (_, product) = view.use_of(node.inputs[i], &linalg::LINEAR)?;
        let [input, weight, bias] = product.inputs[..] else { return None };
        let is_bare = view.graph.lit(bias).is_some_and(Lit::is_none);
        if !is_bare || !view.is_private(node.inputs[i]) {
            return None;
        }
        let bias = bias_of(view, node.inputs[1 - i], &view.shape(weight)?[0])?;
        Some(Bound::Op(&linalg::LINEAR, vec![Bound::Value(input), Bound::Value(weight), bias]))
    })
}

/// A value as a vector of this size beside the last axis.
fn bias_of(view: &View<'_>, v: ValueId, size: &Dim) -> Option<Bound> {
    let shape = view.shape(v)?;
    let (last, front) = shape.split_last()?;
    if last != size || !front.iter().all(|d| d.is(1)) {
        return None;
    }
    let (vector, _) = view.before_moves(v);
    let is_vector = view.shape(vector).is_some_and(|shape| shape.rank() == 1 && shape[0] == *size);
    let as_vector = || Bound::reshaped(Bound::Value(v), std::slice::from_ref(size));
    Some(if is_vector { Bound::Value(vector) } else { as_vector() })
}

/// What a reshape restores the leading axes of.
fn reshaped(view: &View<'_>, node: &Node) -> Option<Bound> {
    let (source, target) = (node.inputs[0], view.shape(node.outputs[0])?);
    let (_, inner) = view.node(source)?;
    if !view.is_private(source) {
        return None;
    }
    match inner.op {
        op if op == &m::RESHAPE => {
            let first = inner.inputs[0];
            let is_same = view.shape(first)? == target;
            Some(if is_same { Bound::Value(first) } else { Bound::reshaped(Bound::Value(first), target) })
        }
        op if op == &linalg::LINEAR || op == &linalg::MATMUL => unflattened(view, inner, target),
        op if op == &e::ADD => (0..2).find_map(|i| {
            let (_, product) = view.use_of(inner.inputs[i], &linalg::MATMUL)?;
            let bias = bias_of(view, inner.inputs[1 - i], target.last()?)?;
            let product = unflattened(view, product, target).filter(|_| view.is_private(inner.inputs[i]))?;
            let is_bare = matches!(product, Bound::Op(op, _) if op == &linalg::MATMUL);
            is_bare.then(|| Bound::Op(&e::ADD, vec![product, bias]))
        }),
        _ => unflattened_transpose(view, inner, target),
    }
}

/// A transposition of matrices whose leading axes were flattened, without that, in the shape `target`.
fn unflattened_transpose(view: &View<'_>, transpose: &Node, target: &[Dim]) -> Option<Bound> {
    let flat = *transpose.inputs.first()?;
    let (_, reshape) = view.use_of(flat, &m::RESHAPE)?;
    let flat = view.shape(flat)?;
    let (n, rank) = (flat.rank(), target.len());
    let is_kept = n >= 2 && rank > n && target[rank - 2..] == [flat[n - 1].clone(), flat[n - 2].clone()];
    if !is_kept || !is_matrix_transpose(&order(view, transpose)?) {
        return None;
    }
    let mut sizes = target.to_vec();
    sizes.swap(rank - 2, rank - 1);
    let mut order: Vec<usize> = (0..rank).collect();
    order.swap(rank - 2, rank - 1);
    Some(Bound::transposed(Bound::reshaped(Bound::Value(reshape.inputs[0]), &sizes), &order))
}

/// A product over operands whose leading axes were flattened, without that, in the shape `target`.
fn unflattened(view: &View<'_>, product: &Node, target: &[Dim]) -> Option<Bound> {
    let before = |i: usize| {
        let (_, reshape) = view.use_of(product.inputs[i], &m::RESHAPE)?;
        Some((reshape.inputs[0], view.shape(reshape.inputs[0])?))
    };
    let (left, shape) = before(0)?;
    let (front, inner) = shape.split_at(shape.rank().checked_sub(1)?);
    let (flat, weight) = (view.shape(product.inputs[0])?, view.shape(product.inputs[1])?);
    let mut args: Vec<Bound> = product.inputs.iter().map(|&v| Bound::Value(v)).collect();
    args[0] = Bound::Value(left);
    let columns = if product.op == &linalg::LINEAR { weight.first() } else { weight.last() };
    if weight.rank() != 2 || flat.rank() != 2 {
        // Many products of matrices: both operands have the axes that the result gets.
        let (right, other) = before(1)?;
        let n = shape.rank();
        let is_stack = flat.rank() == 3 && weight.rank() == 3 && n >= 2 && n == other.rank();
        let is_flat = is_stack && shape[n - 2..] == flat[1..] && other[n - 2..] == weight[1..];
        if !is_flat || shape[..n - 2] != other[..n - 2] {
            return None;
        }
        args[1] = Bound::Value(right);
    } else if inner != &flat[1..] {
        return None;
    }
    let result: Vec<Dim> = front.iter().chain(columns).cloned().collect();
    let product = Bound::Op(product.op, args);
    Some(if result == target { product } else { Bound::reshaped(product, target) })
}

/// Two transpositions in a row as one.
fn transposed(view: &View<'_>, node: &Node) -> Option<Bound> {
    let (_, inner) = view.use_of(node.inputs[0], &m::TRANSPOSE)?;
    let (outer, first) = (order(view, node)?, order(view, inner)?);
    let both: Vec<usize> = outer.iter().map(|&axis| first[axis]).collect();
    let source = Bound::Value(inner.inputs[0]);
    if both.iter().copied().eq(0..both.len()) {
        return Some(source);
    }
    view.is_private(node.inputs[0]).then(|| Bound::transposed(source, &both))
}
