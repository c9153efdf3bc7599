//! Attention, from products, scales, masks and a softmax.

use mithril_ir::dtype::Kind;
use mithril_ir::graph::{Node, NodeId, ValueId};
use mithril_ir::literal::Lit;
use mithril_ir::ops::{attention, compare, elementwise as e, linalg, movement as m, reduce, softmax};
use mithril_ir::{DType, Dim, Tensor};

use super::einsum::is_product;
use super::products::{is_matrix_transpose, order};
use super::unify::Bound;
use super::view::{Nodes, View};

/// Scores of forbidden keys: nothing is left of their exponentials.
const FORBIDDEN: f64 = -1e30;

/// Scores on their way from the softmax back to the product.
#[derive(Debug)]
pub struct Scores {
    scale: f64,
    /// What is added to scores, or which of them stay.
    pub mask: Option<Bound>,
    is_causal: bool,
    /// Whether a causal mask or truth values forbid by a number that is not minus infinity.
    forbids_by_number: bool,
    /// Whether the mask is known to forbid keys, not only to add numbers.
    mask_forbids: bool,
    /// The nodes behind the product.
    pub nodes: Nodes,
}

/// What attention is of.
pub struct Operands {
    /// `[*b, q, d]`
    pub query: Bound,
    /// `[*b, k, d]`
    pub key: Bound,
    /// `[*b, k, v]`
    pub value: Bound,
    /// A mask that broadcasts to `[*b, q, k]`.
    pub mask: Option<Bound>,
    /// Whether several heads of queries share one of keys and values.
    pub is_grouped: bool,
}

/// `softmax(query · keyᵀ · scale + mask) · value` instead of a node.
pub fn raised(view: &View<'_>, root: NodeId) -> Option<Bound> {
    let node = view.graph.node(root);
    if node.op != &linalg::MATMUL {
        return None;
    }
    let mut scores = Scores::new();
    let weighted = scores.behind_softmax(view, node.inputs[0])?;
    let product = scores.behind_mask(view, weighted)?;
    let (query, key) = scores.operands(view, product)?;
    if !view.are_private(&scores.nodes, root) {
        return None;
    }
    let (key, value, is_grouped) = match (&key, before_repeat(view, node.inputs[1])) {
        (Bound::Value(k), Some((value, times)))
            if before_repeat(view, *k).is_some_and(|(_, n)| n == times) =>
        {
            (Bound::Value(before_repeat(view, *k)?.0), value, true)
        }
        _ => (key, node.inputs[1], false),
    };
    let (size, dtype) = (view.shape(query)?.last()?, view.graph.ty(query)?.dtype);
    let operands = Operands {
        query: Bound::Value(query),
        key,
        value: Bound::Value(value),
        mask: scores.mask.take(),
        is_grouped,
    };
    Some(scores.attention(operands, size, dtype))
}

impl Scores {
    /// Scores as the softmax reads them.
    pub fn new() -> Self {
        Self {
            scale: 1.0,
            mask: None,
            is_causal: false,
            forbids_by_number: false,
            mask_forbids: false,
            nodes: Nodes::new(),
        }
    }
    /// The op with these scores, for queries with `size` features.
    pub fn attention(&self, operands: Operands, size: &Dim, dtype: DType) -> Bound {
        let default = size.known().map(|d| 1.0 / (d.max(1) as f64).sqrt());
        let is_default = default.is_some_and(|d| (d - self.scale).abs() <= 4.0 * dtype.epsilon() * d);
        let args = vec![
            operands.query,
            operands.key,
            operands.value,
            operands.mask.unwrap_or(Bound::Lit(Lit::None)),
            Bound::Lit(Lit::Bool(self.is_causal)),
            Bound::Lit(if is_default { Lit::None } else { Lit::Float(self.scale) }),
            Bound::Lit(Lit::Bool(operands.is_grouped)),
        ];
        Bound::Op(&attention::SCALED_DOT_PRODUCT_ATTENTION, args)
    }
    /// What the softmax over the last axis is of.
    pub fn behind_softmax(&mut self, view: &View<'_>, v: ValueId) -> Option<ValueId> {
        let v = self.behind_casts(view, v);
        let (n, node) = view.node(v)?;
        if node.op == &compare::WHERE {
            self.nodes.push(n);
            return self.behind_guard(view, node);
        }
        if node.op != &softmax::SOFTMAX
            || view.axes(node, view.shape(v)?.rank())? != [view.shape(v)?.rank() - 1]
        {
            return None;
        }
        self.nodes.push(n);
        Some(node.inputs[0])
    }
    /// A softmax that is 0 where all scores are minus infinity: where no score is above minus infinity, as PyTorch writes it,
    /// with or without other scores inside of the softmax, which keep its gradient finite; or, in ONNX files, where
    /// the softmax is NaN.
    fn behind_guard(&mut self, view: &View<'_>, node: &Node) -> Option<ValueId> {
        if view.scalar(node.inputs[1])? != 0.0 {
            return None;
        }
        if let Some((n, is_nan)) = view.use_of(node.inputs[0], &compare::ISNAN) {
            self.nodes.push(n);
            return self.behind_softmax(view, node.inputs[2]).filter(|_| is_nan.inputs[0] == node.inputs[2]);
        }
        let guarded = self.all_forbidden(view, node.inputs[0])?;
        let scores = self.behind_softmax(view, node.inputs[2])?;
        if scores == guarded {
            return Some(scores);
        }
        let (n, inner) = view.use_of(scores, &compare::WHERE)?;
        let is_replaced = inner.inputs[0] == node.inputs[0] && view.scalar(inner.inputs[1])?.is_finite();
        self.nodes.push(n);
        (is_replaced && inner.inputs[2] == guarded).then_some(guarded)
    }
    /// The scores that a truth value for each row says to be all minus infinity.
    fn all_forbidden(&mut self, view: &View<'_>, v: ValueId) -> Option<ValueId> {
        let mut used = Nodes::new();
        let mut inside = |v: ValueId, op| {
            let (n, node) = view.use_of(v, op)?;
            used.push(n);
            Some(node)
        };
        let (rows, is_forbidden) = if let Some(all) = inside(v, &reduce::ALL) {
            (all, all.inputs[0])
        } else {
            let is_open = inside(v, &compare::LOGICAL_NOT)?;
            let any = inside(is_open.inputs[0], &reduce::ANY)?;
            (any, inside(any.inputs[0], &compare::LOGICAL_NOT)?.inputs[0])
        };
        let equal = inside(is_forbidden, &compare::EQUAL)?;
        let rank = view.shape(rows.inputs[0])?.rank();
        let is_row = view.axes(rows, rank)? == [rank - 1];
        let is_lowest = view.scalar(equal.inputs[1])? == f64::NEG_INFINITY;
        self.nodes.extend(used);
        (is_row && is_lowest).then_some(equal.inputs[0])
    }
    /// Through conversions between floats: the op computes in float32 at least.
    fn behind_casts(&mut self, view: &View<'_>, mut v: ValueId) -> ValueId {
        while let Some((n, node)) = view.use_of(v, &e::CAST)
            && view.graph.ty(node.inputs[0]).is_some_and(|ty| ty.dtype.is_float())
        {
            self.nodes.push(n);
            v = node.inputs[0];
        }
        v
    }
    /// The product below masks and scales.
    pub fn behind_mask(&mut self, view: &View<'_>, v: ValueId) -> Option<ValueId> {
        let v = self.behind_casts(view, v);
        let (n, node) = view.node(v)?;
        if node.op == &e::ADD {
            let is_scores = |&i: &usize| ends_in_product(view, node.inputs[i]);
            let side = (0..2).find(is_scores)?;
            let inner = node.inputs[side];
            self.nodes.push(n);
            self.add_mask(view, node.inputs[1 - side], inner)?;
            return self.behind_mask(view, inner);
        }
        if node.op == &compare::WHERE {
            self.nodes.push(n);
            let is_fill = |i: usize| view.scalar(node.inputs[i]).is_some_and(|x| is_forbidden(view, v, x));
            let (inner, is_allowed) = match (is_fill(1), is_fill(2)) {
                (_, true) => (node.inputs[1], true),
                (true, _) => (node.inputs[2], false),
                _ => return None,
            };
            let fill = view.scalar(node.inputs[if is_allowed { 2 } else { 1 }])?;
            self.allow(view, node.inputs[0], is_allowed, fill)?;
            return self.behind_mask(view, inner).filter(|_| view.shape(inner) == view.shape(v));
        }
        let inner = self.behind_scale(view, v);
        let inner = self.behind_casts(view, inner);
        (is_product(view, inner) && self.keeps_means()).then_some(inner)
    }
    /// Whether the op makes the same of a query for which the masks together leave no key. Where a number forbids, the pieces
    /// make a mean of what is forbidden; one mask alone leaves a key then, but of two nobody knows.
    fn keeps_means(&self) -> bool {
        !(self.forbids_by_number && self.is_causal && self.mask_forbids)
    }
    /// What a value is a multiple of.
    pub fn behind_scale(&mut self, view: &View<'_>, v: ValueId) -> ValueId {
        let (scale, inner, nodes) = view.scaled(v);
        self.scale *= scale;
        self.nodes.extend(nodes);
        inner
    }
    /// A mask of numbers that are added.
    fn add_mask(&mut self, view: &View<'_>, mask: ValueId, scores: ValueId) -> Option<()> {
        let is_causal = view.graph.lit(mask).is_some_and(|lit| match lit {
            Lit::Tensor(t) => is_causal(t, |x| x == 0.0, |x| is_forbidden(view, scores, x)),
            _ => false,
        });
        if is_causal {
            self.is_causal = true;
            self.forbids_by_number |= any_number(view, mask, |x| x != 0.0 && x.is_finite());
            return Some(());
        }
        // One number for all scores is not a mask.
        let has_axes = view.shape(mask)?.rank() > 0;
        self.mask_forbids |= any_number(view, mask, |x| is_forbidden(view, scores, x));
        (self.mask.is_none() && has_axes).then(|| self.mask = Some(Bound::Value(mask)))
    }
    /// A mask of truth values: where scores stay, or where they do not.
    fn allow(&mut self, view: &View<'_>, mask: ValueId, is_allowed: bool, fill: f64) -> Option<()> {
        self.forbids_by_number |= fill != f64::NEG_INFINITY;
        let constant = match view.graph.lit(mask) {
            Some(Lit::Tensor(t)) => Some(t),
            _ => None,
        };
        let allows = |x: f64| (x != 0.0) == is_allowed;
        if constant.is_some_and(|t| is_causal(t, allows, |x| !allows(x))) {
            self.is_causal = true;
            return Some(());
        }
        // Of a query without any key a finite number makes a mean, minus infinity NaN, and the op zeros.
        let has_keys = constant.is_some_and(|t| every_row(t, allows));
        let has_axes = view.shape(mask).is_some_and(|shape| shape.rank() > 0);
        if self.mask.is_some() || !has_axes || !(fill == f64::NEG_INFINITY || has_keys) {
            return None;
        }
        self.mask_forbids = true;
        let mask = Bound::Value(mask);
        self.mask = Some(if is_allowed { mask } else { Bound::Op(&compare::LOGICAL_NOT, vec![mask]) });
        Some(())
    }
    /// Query and key of a product, with their scales in the scale of the scores.
    fn operands(&mut self, view: &View<'_>, product: ValueId) -> Option<(ValueId, Bound)> {
        let (n, node) = view.use_of(product, &linalg::MATMUL)?;
        self.nodes.push(n);
        let query = self.unscaled(view, node.inputs[0]);
        let transposed = self.unscaled(view, node.inputs[1]);
        let (_, transpose) = view.node(transposed)?;
        let mut order = order(view, transpose)?;
        let source = transpose.inputs[0];
        if is_matrix_transpose(&order) {
            return Some((query, Bound::Value(self.unscaled(view, source))));
        }
        let n = order.len();
        order.swap(n.checked_sub(2)?, n - 1);
        Some((query, Bound::transposed(Bound::Value(source), &order)))
    }
    /// An operand of the product, with its scale in that of the scores.
    pub fn unscaled(&mut self, view: &View<'_>, v: ValueId) -> ValueId {
        // Constants are not operands: a product with them is theirs.
        let (scale, inner, _) = view.scaled(v);
        if view.shape(inner) != view.shape(v) {
            return v;
        }
        self.scale *= scale;
        inner
    }
}

/// Whether a value is a product, scaled and masked.
fn ends_in_product(view: &View<'_>, v: ValueId) -> bool {
    let (_, inner, _) = view.scaled(v);
    if is_product(view, inner) {
        return true;
    }
    let Some((_, node)) = view.node(inner) else { return false };
    let input = |i: usize| ends_in_product(view, node.inputs[i]);
    match node.op {
        op if op == &e::CAST => input(0),
        op if op == &e::ADD => input(0) || input(1),
        op if op == &compare::WHERE => input(1) || input(2),
        _ => false,
    }
}

/// Whether nothing is left of the exponential of a score.
fn is_forbidden(view: &View<'_>, scores: ValueId, x: f64) -> bool {
    let lowest = view.graph.ty(scores).map_or(f64::NEG_INFINITY, |ty| match ty.dtype.kind() {
        Kind::Float if ty.dtype.size() == 2 => -6e4,
        _ => FORBIDDEN,
    });
    x <= lowest
}

/// Whether a constant mask allows query `i` the keys up to `i`.
fn is_causal(t: &Tensor, allows: impl Fn(f64) -> bool, forbids: impl Fn(f64) -> bool) -> bool {
    let [.., queries, keys] = *t.shape() else { return false };
    if queries < 2 || keys < 2 {
        return false;
    }
    (0..t.len()).all(|at| {
        let (query, key) = (at / keys % queries, at % keys);
        let x = t.get(at).f64();
        if key <= query { allows(x) } else { forbids(x) }
    })
}

/// Whether a mask is a constant with such a number.
fn any_number(view: &View<'_>, mask: ValueId, is_such: impl Fn(f64) -> bool) -> bool {
    let Some(Lit::Tensor(t)) = view.graph.lit(mask) else { return false };
    (0..t.len()).any(|at| is_such(t.get(at).f64()))
}

/// Whether a constant mask allows every query a key.
fn every_row(t: &Tensor, allows: impl Fn(f64) -> bool) -> bool {
    let keys = t.shape().last().copied().unwrap_or(1).max(1);
    (0..t.len() / keys).all(|row| (0..keys).any(|key| allows(t.get(row * keys + key).f64())))
}

/// Heads before each of them was repeated for a group of queries, and how often: `[*b, h, s, d]` for
/// `[*b, h · times, s, d]`.
fn before_repeat(view: &View<'_>, v: ValueId) -> Option<(ValueId, Dim)> {
    let (_, joined) = view.use_of(v, &m::RESHAPE)?;
    let (_, repeated) = view.use_of(joined.inputs[0], &m::BROADCAST_TO)?;
    let (_, split) = view.node(repeated.inputs[0])?;
    let heads = *split.inputs.first().filter(|_| [&m::RESHAPE, &m::EXPAND_DIMS].contains(&split.op))?;
    let (few, all) = (view.shape(heads)?, view.shape(v)?);
    let (one, many) = (view.shape(repeated.inputs[0])?, view.shape(joined.inputs[0])?);
    let at = few.rank().checked_sub(3)?;
    let times = many.get(at + 1)?.clone();
    let mut expected = few.clone();
    expected.0.insert(at + 1, Dim::ONE);
    let is_split = *one == expected;
    expected.0[at + 1] = times.clone();
    let is_repeated = *many == expected;
    let mut expected = few.clone();
    expected.0[at] = &few[at] * &times;
    (is_split && is_repeated && *all == expected).then_some((heads, times))
}
