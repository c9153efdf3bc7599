//! Contractions of two operands in Einstein notation, as JAX writes all products: matrix products, and attention over axes in
//! any order.

use mithril_ir::Dim;
use mithril_ir::graph::{Node, NodeId, ValueId};
use mithril_ir::literal::Lit;
use mithril_ir::ops::einsum::{EINSUM, Equation, Label};
use mithril_ir::ops::{linalg, movement as m};

use super::attention::{Operands, Scores};
use super::products::order;
use super::unify::Bound;
use super::view::View;

/// Two operands, labels of their axes, and those of the result.
pub struct Contraction {
    operands: [(ValueId, Vec<Label>); 2],
    result: Vec<Label>,
}

impl Contraction {
    /// An `einsum` or a matrix product whose operands have the same sizes under the same label.
    pub fn new(view: &View<'_>, node: &Node) -> Option<Self> {
        let contraction = if node.op == &EINSUM {
            let [equation, left, right] = node.inputs[..] else { return None };
            let Lit::Str(equation) = view.graph.lit(equation)? else { return None };
            let ranks = [view.shape(left)?.rank(), view.shape(right)?.rank()];
            let Equation { inputs, output } = Equation::parse(equation, &ranks).ok()?;
            let [of_left, of_right]: [Vec<Label>; 2] = inputs.try_into().ok()?;
            Self { operands: [(left, of_left), (right, of_right)], result: output }
        } else if node.op == &linalg::MATMUL {
            let [left, right] = node.inputs[..] else { return None };
            let rank = view.shape(left)?.rank();
            let front =
                rank.checked_sub(2).filter(|_| view.shape(right).is_some_and(|s| s.rank() == rank))?;
            let labels = |last: [usize; 2]| (0..front).chain(last).map(Label::Rest).collect();
            let [rows, columns, inner] = [front, front + 1, front + 2];
            let operands = [(left, labels([rows, inner])), (right, labels([inner, columns]))];
            Self { operands, result: labels([rows, columns]) }
        } else {
            return None;
        };
        contraction.is_plain(view)?.then_some(contraction)
    }
    /// Whether nothing is broadcast, no diagonal is taken, and nothing is summed before the product.
    fn is_plain(&self, view: &View<'_>) -> Option<bool> {
        let [(left, of_left), (right, of_right)] = &self.operands;
        let (sizes, other) = (view.shape(*left)?, view.shape(*right)?);
        let is_once = |labels: &[Label]| labels.iter().enumerate().all(|(i, l)| !labels[..i].contains(l));
        let is_same = |(i, l): (usize, &Label)| {
            of_right.iter().position(|r| r == l).map_or(self.result.contains(l), |at| sizes[i] == other[at])
        };
        let is_used = |l: &Label| of_left.contains(l) || self.result.contains(l);
        Some(
            is_once(of_left)
                && is_once(of_right)
                && of_left.iter().enumerate().all(is_same)
                && of_right.iter().all(is_used),
        )
    }
    /// The labels that both operands have and the result does not.
    fn contracted(&self) -> Vec<Label> {
        let [(_, left), (_, right)] = &self.operands;
        left.iter().filter(|l| right.contains(l) && !self.result.contains(l)).copied().collect()
    }
}

/// A matrix product that was written as an `einsum`.
pub fn raised(view: &View<'_>, node: &Node) -> Option<Bound> {
    if node.op != &EINSUM {
        return None;
    }
    let product = Contraction::new(view, node)?;
    let [inner] = product.contracted()[..] else { return None };
    let (front, [row, column]) = product.result.split_last_chunk()?;
    let term = |last: [Label; 2]| -> Vec<Label> { front.iter().copied().chain(last).collect() };
    let is_matmul = |left: usize| {
        product.operands[left].1 == term([*row, inner])
            && product.operands[1 - left].1 == term([inner, *column])
    };
    let left = (0..2).find(|&left| is_matmul(left))?;
    let operands = [left, 1 - left].map(|i| Bound::Value(product.operands[i].0));
    Some(Bound::Op(&linalg::MATMUL, operands.into()))
}

/// Whether a value is a product, of which scores of attention are made; its axes may have been put into another order.
pub fn is_product(view: &View<'_>, v: ValueId) -> bool {
    let Some((_, node)) = view.node(v) else { return false };
    if node.op == &m::TRANSPOSE {
        let (_, inner, _) = view.scaled(node.inputs[0]);
        return view.node(inner).is_some_and(|(_, node)| node.op != &m::TRANSPOSE) && is_product(view, inner);
    }
    node.op == &EINSUM || node.op == &linalg::MATMUL
}

/// Attention whose second product is a node, if one of its products is an `einsum`.
pub fn attention(view: &View<'_>, root: NodeId) -> Option<Bound> {
    let weighting = Contraction::new(view, view.graph.node(root))?;
    (0..2).find_map(|i| {
        let (weights, labels) = &weighting.operands[i];
        let (value, of_value) = &weighting.operands[1 - i];
        let mut scores = Scores::new();
        let weighted = scores.behind_softmax(view, *weights)?;
        let product = scores.behind_mask(view, weighted)?;
        let (n, mut node) = view.node(product)?;
        let mut moved = None;
        scores.nodes.push(n);
        if node.op == &m::TRANSPOSE {
            moved = Some(order(view, node)?);
            let inner = scores.behind_scale(view, node.inputs[0]);
            let (n, source) = view.node(inner)?;
            scores.nodes.push(n);
            node = source;
        }
        if node.op == &linalg::MATMUL && view.graph.node(root).op == &linalg::MATMUL && moved.is_none() {
            return None;
        }
        let mut scoring = Contraction::new(view, node)?;
        if let Some(order) = moved {
            scoring.result = order.iter().map(|&axis| scoring.result[axis]).collect();
        }
        if !view.are_private(&scores.nodes, root) {
            return None;
        }
        let axes = Axes::new(&scoring, labels, of_value, &weighting.result)?;
        axes.attention(view, scores, *value)
    })
}

/// The axes of attention: positions in the scores, whose last two axes are those of queries and keys.
struct Axes {
    /// The axes that query, key and value have, heads last.
    batch: Vec<usize>,
    /// Queries that share the heads of keys and values.
    group: Option<usize>,
    query: Operand,
    key: Operand,
    value: Vec<Option<usize>>,
    /// For each axis of the result, its place among batch, group, queries and features.
    result: Vec<usize>,
}

/// A value, and for each of its axes its place in the scores, or `None` for the features.
struct Operand {
    value: ValueId,
    axes: Vec<Option<usize>>,
}

impl Axes {
    fn new(scoring: &Contraction, weights: &[Label], value: &[Label], result: &[Label]) -> Option<Self> {
        let rank = weights.len();
        let [queries, keys] = [rank.checked_sub(2)?, rank - 1];
        let [_] = scoring.contracted()[..] else { return None };
        let has = |i: usize, at: usize| scoring.operands[i].1.contains(&scoring.result[at]);
        let q = (0..2).find(|&i| has(i, queries) && !has(1 - i, queries))?;
        if !has(1 - q, keys) || has(q, keys) || scoring.result.len() != rank {
            return None;
        }
        let operand = |i: usize| {
            let (value, labels) = &scoring.operands[i];
            let place = |label: &Label| scoring.result.iter().position(|l| l == label);
            Operand { value: *value, axes: labels.iter().map(place).collect() }
        };
        let (query, key) = (operand(q), operand(1 - q));
        let place = |label: &Label| weights.iter().position(|l| l == label);
        let value: Vec<Option<usize>> = value.iter().map(place).collect();
        // Batch axes that keys lack, values lack too.
        let lacks = |axes: &[Option<usize>]| -> Vec<usize> {
            (0..queries).filter(|at| !axes.contains(&Some(*at))).collect()
        };
        let group = match lacks(&key.axes)[..] {
            [] => None,
            [group] => Some(group),
            _ => return None,
        };
        let is_paired = lacks(&value) == lacks(&key.axes) && lacks(&query.axes).is_empty();
        let features = |axes: &[Option<usize>]| axes.iter().filter(|at| at.is_none()).count();
        let is_attention = is_paired && features(&value) == 1 && value.contains(&Some(keys));
        if !is_attention || value.contains(&Some(queries)) || group.is_some() && queries < 2 {
            return None;
        }
        let batch: Vec<usize> = (0..queries).filter(|at| group != Some(*at)).collect();
        let order: Vec<usize> = batch.iter().copied().chain(group).chain([queries]).collect();
        let target = |label: &Label| match place(label) {
            Some(at) => order.iter().position(|&other| other == at),
            None => Some(order.len()),
        };
        let result = result.iter().map(target).collect::<Option<Vec<_>>>()?;
        (result.len() == order.len() + 1).then_some(Self { batch, group, query, key, value, result })
    }
    /// The op between transpositions; queries of a group become heads in a row.
    fn attention(self, view: &View<'_>, mut scores: Scores, value: ValueId) -> Option<Bound> {
        let rank = self.batch.len() + usize::from(self.group.is_some()) + 2;
        let query_value = scores.unscaled(view, self.query.value);
        let key_value = scores.unscaled(view, self.key.value);
        let order = |axes: &[Option<usize>], group: Option<usize>, last: [Option<usize>; 2]| {
            let target = self.batch.iter().copied().chain(group).map(Some).chain(last);
            target.map(|at| axes.iter().position(|other| *other == at)).collect::<Option<Vec<usize>>>()
        };
        let (queries, keys) = (Some(rank - 2), Some(rank - 1));
        let of_query = order(&self.query.axes, self.group, [queries, None])?;
        let of_key = order(&self.key.axes, None, [keys, None])?;
        let of_value = order(&self.value, None, [keys, None])?;
        let sizes: Vec<Dim> = {
            let shape = view.shape(query_value)?;
            of_query.iter().map(|&axis| shape[axis].clone()).collect()
        };
        let mut query = Bound::transposed(Bound::Value(query_value), &of_query);
        let heads = self.batch.len().checked_sub(1);
        let group = self.group.and(heads).map(|heads| (heads, sizes[heads + 1].clone()));
        if let Some((heads, _)) = group {
            query = Bound::reshaped(query, &joined(&sizes, heads));
        }
        let mask = match scores.mask.take() {
            Some(mask) => Some(self.mask(view, &mask, group.as_ref())?),
            None => None,
        };
        let operands = Operands {
            query,
            key: Bound::transposed(Bound::Value(key_value), &of_key),
            value: Bound::transposed(Bound::Value(value), &of_value),
            mask,
            is_grouped: group.as_ref().is_some_and(|(_, times)| !times.is(1)),
        };
        let dtype = view.graph.ty(query_value)?.dtype;
        let mut result = scores.attention(operands, sizes.last()?, dtype);
        if group.is_some() {
            let mut split = sizes;
            let features = of_value.last().and_then(|&axis| view.shape(value)?.get(axis))?;
            *split.last_mut()? = features.clone();
            result = Bound::reshaped(result, &split);
        }
        Some(Bound::transposed(result, &self.result))
    }
    /// A mask of the scores for scores whose batch axes are in the order of the op.
    fn mask(&self, view: &View<'_>, mask: &Bound, group: Option<&(usize, Dim)>) -> Option<Bound> {
        let mut source = mask;
        while let Bound::Op(_, args) = source {
            source = args.first()?;
        }
        let Bound::Value(source) = *source else { return None };
        let shape = view.shape(source)?;
        let rank = self.batch.len() + usize::from(self.group.is_some()) + 2;
        let is_in_order = self.group.is_none() && self.batch.iter().copied().eq(0..self.batch.len());
        if shape.rank() <= 2 || is_in_order {
            return Some(mask.clone());
        }
        if shape.rank() != rank {
            return None;
        }
        let order: Vec<usize> =
            self.batch.iter().copied().chain(self.group).chain([rank - 2, rank - 1]).collect();
        let moved = Bound::transposed(mask.clone(), &order);
        let Some(&(heads, ref times)) = group else { return Some(moved) };
        let sizes: Vec<Dim> = order.iter().map(|&axis| shape[axis].clone()).collect();
        let can_join = times.is(1) || sizes[heads].is(1) == sizes[heads + 1].is(1);
        can_join.then(|| Bound::reshaped(moved, &joined(&sizes, heads)))
    }
}

/// Sizes with an axis and the next one joined.
fn joined(sizes: &[Dim], axis: usize) -> Vec<Dim> {
    let mut joined = sizes.to_vec();
    let inner = joined.remove(axis + 1);
    joined[axis] = &joined[axis] * &inner;
    joined
}
