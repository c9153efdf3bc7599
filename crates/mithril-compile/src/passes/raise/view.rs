//! How `raise` looks at values: as sums and products whatever nodes write them, as reductions whose axes stay, as
//! constants whatever their shape.

use mithril_ir::graph::{Def, Graph, Node, NodeId, ValueId};
use mithril_ir::literal::Lit;
use mithril_ir::op::OpDef;
use mithril_ir::ops::{create, elementwise as e, function as f, movement as m, reduce};
use mithril_ir::{Dim, Shape, Tensor};
use rustc_hash::FxHashSet;
use smallvec::SmallVec;

/// Nodes that a match has looked through.
pub type Nodes = Vec<NodeId>;

/// Constants of more elements are not looked at element by element.
const MOST_ELEMENTS: usize = 1 << 16;

/// A graph, and who uses its values.
#[derive(Debug)]
pub struct View<'g> {
    /// The graph.
    pub graph: &'g Graph,
    users: Vec<SmallVec<[NodeId; 2]>>,
    results: FxHashSet<ValueId>,
}

/// How far sums and products are taken apart.
#[derive(Clone, Copy, Debug)]
pub enum Depth {
    /// Through values that nothing else uses.
    Private,
    /// Also through operands of the last node that something else uses.
    Operands,
}

impl Depth {
    fn is_open(self, is_private: bool, level: usize) -> bool {
        level == 0 || is_private || (matches!(self, Self::Operands) && level == 1)
    }
}

/// A product: a coefficient, and factors with their exponents.
#[derive(Debug)]
pub struct Product {
    /// What the powers are multiplied by.
    pub coefficient: f64,
    /// The powers.
    pub factors: SmallVec<[(ValueId, f64); 4]>,
    /// The nodes that compute it.
    pub nodes: Nodes,
}

/// A sum: a constant, and terms with their signs.
#[derive(Debug)]
pub struct Sum {
    /// What is added to the terms.
    pub constant: f64,
    /// The terms.
    pub terms: SmallVec<[(f64, ValueId); 4]>,
    /// The nodes that compute it.
    pub nodes: Nodes,
}

/// A reduction that lies beside its input: its axes stayed, or came back.
#[derive(Debug)]
pub struct Reduction {
    /// The op.
    pub op: &'static OpDef,
    /// What is reduced.
    pub input: ValueId,
    /// The axes, in order.
    pub axes: Vec<usize>,
    /// What the result is multiplied by.
    pub coefficient: f64,
    /// The nodes that compute it.
    pub nodes: Nodes,
}

impl<'g> View<'g> {
    /// Looks at a graph.
    pub fn new(graph: &'g Graph) -> Self {
        let mut users = vec![SmallVec::new(); graph.values().len()];
        for (n, node) in graph.nodes() {
            for v in &node.inputs {
                users[v.index()].push(n);
            }
        }
        let updates = graph.updates.iter().map(|&(_, value)| value);
        let results = graph.outputs.values().copied().chain(updates).collect();
        Self { graph, users, results }
    }
    /// The node that computes a value.
    pub fn node(&self, v: ValueId) -> Option<(NodeId, &'g Node)> {
        match self.graph.value(v).def {
            Def::Node(n, 0) => Some((n, self.graph.node(n))),
            _ => None,
        }
    }
    /// The node, if it uses this op.
    pub fn use_of(&self, v: ValueId, op: &OpDef) -> Option<(NodeId, &'g Node)> {
        self.node(v).filter(|(_, node)| node.op == op)
    }
    /// The shape of a tensor.
    pub fn shape(&self, v: ValueId) -> Option<&'g Shape> {
        self.graph.ty(v).map(|ty| &ty.shape)
    }
    /// Whether a value is used once, and not a result of the graph.
    pub fn is_private(&self, v: ValueId) -> bool {
        self.users[v.index()].len() == 1 && !self.results.contains(&v)
    }
    /// Whether what these nodes compute is used by them and by `root` alone.
    pub fn are_private(&self, nodes: &[NodeId], root: NodeId) -> bool {
        let inside = |n: &NodeId| *n == root || nodes.contains(n);
        let is_private = |v: &ValueId| !self.results.contains(v) && self.users[v.index()].iter().all(inside);
        nodes.iter().filter(|n| **n != root).all(|n| self.graph.node(*n).outputs.iter().all(is_private))
    }
    /// The number that a value holds everywhere.
    pub fn scalar(&self, v: ValueId) -> Option<f64> {
        match self.graph.lit(v) {
            Some(Lit::Float(x)) => return Some(*x),
            Some(Lit::Int(dim)) => return dim.known().map(|n| n as f64),
            Some(Lit::Tensor(t)) => return uniform(t),
            Some(_) => return None,
            None => {}
        }
        let (_, node) = self.node(v)?;
        if node.op == &create::FULL {
            return self.scalar(*node.inputs.get(1)?);
        }
        let is_movement = [&m::RESHAPE, &m::BROADCAST_TO, &m::EXPAND_DIMS, &m::SQUEEZE].contains(&node.op);
        if is_movement { self.scalar(*node.inputs.first()?) } else { None }
    }
    /// A value as a product, which may be of one factor.
    pub fn product(&self, v: ValueId, depth: Depth) -> Product {
        let mut product = Product { coefficient: 1.0, factors: SmallVec::new(), nodes: Nodes::new() };
        self.multiply(v, 1.0, (depth, 0), &mut product);
        product.factors.retain(|(_, exponent)| *exponent != 0.0);
        product
    }
    fn multiply(&self, v: ValueId, exponent: f64, (depth, level): (Depth, usize), product: &mut Product) {
        if let Some(x) = self.scalar(v) {
            let power = x.powf(exponent);
            if power.is_finite() {
                product.coefficient *= power;
                return;
            }
        }
        if let Some((n, node)) = self.use_of(v, &e::NEGATIVE).filter(|_| exponent.fract() == 0.0) {
            product.coefficient *= if exponent % 2.0 == 0.0 { 1.0 } else { -1.0 };
            product.nodes.push(n);
            self.multiply(node.inputs[0], exponent, (depth, level), product);
            return;
        }
        if let Some((n, node)) = self.node(v)
            && let Some(parts) = self.parts_of_product(node)
        {
            // What is used elsewhere too stays one factor, unless it is a power of one.
            let is_power = parts.iter().filter(|(part, _)| self.scalar(*part).is_none()).count() < 2;
            // A root of a product is a product of roots for positive numbers alone.
            let is_whole = exponent.fract() == 0.0;
            let is_open = is_power || depth.is_open(self.is_private(v), level);
            let inner_is_root = parts.iter().any(|(_, e)| e.fract() != 0.0);
            if is_open && is_whole && (exponent > 0.0 || !inner_is_root || is_power) {
                product.nodes.push(n);
                for (part, inner) in parts {
                    self.multiply(part, exponent * inner, (depth, level + 1), product);
                }
                return;
            }
        }
        match product.factors.iter_mut().find(|(factor, _)| *factor == v) {
            Some((_, sum)) => *sum += exponent,
            None => product.factors.push((v, exponent)),
        }
    }
    /// Operands and their exponents, of a node that multiplies.
    fn parts_of_product(&self, node: &Node) -> Option<SmallVec<[(ValueId, f64); 2]>> {
        let first = *node.inputs.first()?;
        let second = || node.inputs.get(1).copied();
        let one = |exponent| Some(SmallVec::from_slice(&[(first, exponent)]));
        let is = |op: &OpDef| node.op == op;
        if is(&e::MULTIPLY) {
            Some(SmallVec::from_slice(&[(first, 1.0), (second()?, 1.0)]))
        } else if is(&e::DIVIDE) {
            Some(SmallVec::from_slice(&[(first, 1.0), (second()?, -1.0)]))
        } else if is(&e::POWER) {
            one(self.scalar(second()?)?)
        } else if is(&f::SQUARE) {
            one(2.0)
        } else if is(&f::SQRT) {
            one(0.5)
        } else if is(&f::RSQRT) {
            one(-0.5)
        } else if is(&f::RECIPROCAL) {
            one(-1.0)
        } else {
            None
        }
    }
    /// A value as a number times another value, and the nodes between.
    pub fn scaled(&self, v: ValueId) -> (f64, ValueId, Nodes) {
        let (mut coefficient, mut at, mut nodes) = (1.0, v, Nodes::new());
        while let Some((n, node)) = self.node(at) {
            let scalar = |i: usize| node.inputs.get(i).and_then(|&v| self.scalar(v));
            let (factor, rest) = if node.op == &e::NEGATIVE {
                (-1.0, 0)
            } else if node.op == &e::MULTIPLY {
                match (scalar(0), scalar(1)) {
                    (_, Some(x)) => (x, 0),
                    (Some(x), _) => (x, 1),
                    _ => break,
                }
            } else if node.op == &e::DIVIDE {
                match scalar(1) {
                    Some(x) if x != 0.0 => (1.0 / x, 0),
                    _ => break,
                }
            } else {
                break;
            };
            coefficient *= factor;
            at = node.inputs[rest];
            nodes.push(n);
        }
        (coefficient, at, nodes)
    }
    /// A value as a sum, whose terms may be one.
    pub fn sum(&self, v: ValueId, depth: Depth) -> Sum {
        let mut sum = Sum { constant: 0.0, terms: SmallVec::new(), nodes: Nodes::new() };
        self.add(v, 1.0, (depth, 0), &mut sum);
        sum
    }
    fn add(&self, v: ValueId, sign: f64, (depth, level): (Depth, usize), sum: &mut Sum) {
        if let Some(x) = self.scalar(v).filter(|x| x.is_finite()) {
            sum.constant += sign * x;
            return;
        }
        let is_open = depth.is_open(self.is_private(v), level);
        if let Some((n, node)) = self.node(v).filter(|_| is_open) {
            let signs: &[f64] = match node.op {
                op if op == &e::ADD => &[1.0, 1.0],
                op if op == &e::SUBTRACT => &[1.0, -1.0],
                op if op == &e::NEGATIVE => &[-1.0],
                _ => &[],
            };
            if !signs.is_empty() {
                sum.nodes.push(n);
                for (&part, inner) in node.inputs.iter().zip(signs) {
                    self.add(part, sign * inner, (depth, level + 1), sum);
                }
                return;
            }
        }
        sum.terms.push((sign, v));
    }
    /// A value held between two numbers, by as many nodes as there are.
    pub fn clip(&self, v: ValueId) -> (f64, f64, ValueId, Nodes) {
        let (mut low, mut high, mut at, mut nodes) = (f64::NEG_INFINITY, f64::INFINITY, v, Nodes::new());
        while let Some((n, node)) = self.node(at).filter(|_| at == v || self.is_private(at)) {
            let scalar = |i: usize| node.inputs.get(i).and_then(|&v| self.scalar(v));
            let other = |i: usize| node.inputs.get(1 - i).copied();
            let number = (0..2).find_map(|i| Some((scalar(i)?, other(i)?)));
            // The outer bound wins where the bounds cross, which none of the forms do.
            (low, high, at) = match (node.op, number) {
                (op, Some((x, rest))) if op == &e::MAXIMUM => (low.max(x), high, rest),
                (op, Some((x, rest))) if op == &e::MINIMUM => (low, high.min(x), rest),
                (op, _) if op == &e::CLIP => {
                    let bound = |i: usize, none: f64| match node.inputs.get(i) {
                        Some(&v) if !self.graph.lit(v).is_some_and(Lit::is_none) => self.scalar(v),
                        _ => Some(none),
                    };
                    let bounds = bound(1, f64::NEG_INFINITY).zip(bound(2, f64::INFINITY));
                    let Some((least, most)) = bounds else { break };
                    (low.max(least), high.min(most), node.inputs[0])
                }
                _ => break,
            };
            nodes.push(n);
        }
        (low, high, at, nodes)
    }
    /// What a value is before axes of size 1 came and went, and sizes of 1 were broadcast.
    pub fn before_moves(&self, v: ValueId) -> (ValueId, Nodes) {
        let (mut at, mut nodes) = (v, Nodes::new());
        while let Some((n, node)) = self.node(at) {
            let Some((from, to)) = self.shape(node.inputs[0]).zip(self.shape(at)) else { break };
            let is_move = [&m::RESHAPE, &m::EXPAND_DIMS, &m::SQUEEZE].contains(&node.op);
            if !(is_move && large(from).eq(large(to))) {
                break;
            }
            nodes.push(n);
            at = node.inputs[0];
        }
        (at, nodes)
    }
    /// A value as a reduction beside its input.
    pub fn reduction(&self, v: ValueId) -> Option<Reduction> {
        let (mut at, mut nodes, mut moves) = (v, Nodes::new(), Vec::new());
        let mut coefficient = 1.0;
        loop {
            let (factor, inner, scaling) = self.scaled(at);
            // A number may have axes, but none of another size.
            if large(self.shape(inner)?).ne(large(self.shape(at)?)) {
                return None;
            }
            if self.shape(inner)?.rank() != self.shape(at)?.rank() {
                moves.push(at);
            }
            coefficient *= factor;
            nodes.extend(scaling);
            at = inner;
            let (n, node) = self.node(at)?;
            nodes.push(n);
            let is = |op: &OpDef| node.op == op;
            if is(&reduce::SUM) || is(&reduce::MEAN) || is(&reduce::MAX) {
                let input = *node.inputs.first()?;
                let rank = self.shape(input)?.rank();
                let axes = self.axes(node, rank)?;
                let keeps = node.inputs.get(2).and_then(|&v| self.graph.lit(v)) == Some(&Lit::Bool(true));
                self.lies_beside(at, input, &axes, keeps, &moves)?;
                return Some(Reduction { op: node.op, input, axes, coefficient, nodes });
            }
            // A maximum that is subtracted and added again has no gradient to stop.
            let passes = is(&e::STOP_GRADIENT);
            let is_move =
                [&m::RESHAPE, &m::EXPAND_DIMS, &m::SQUEEZE, &m::BROADCAST_TO].iter().any(|op| is(op));
            if !passes && !is_move {
                return None;
            }
            if is_move {
                moves.push(at);
            }
            at = *node.inputs.first()?;
        }
    }
    /// The axes over which a node reduces, in order.
    pub fn axes(&self, node: &Node, rank: usize) -> Option<Vec<usize>> {
        let index = |lit: &Lit| match lit {
            Lit::Int(d) => mithril_ir::shape::normalize_axis(d.known()?, rank).ok(),
            _ => None,
        };
        let mut axes = match node.inputs.get(1).and_then(|&v| self.graph.lit(v))? {
            Lit::None => (0..rank).collect(),
            Lit::Tuple(items) => items.iter().map(index).collect::<Option<Vec<_>>>()?,
            lit => vec![index(lit)?],
        };
        axes.sort_unstable();
        Some(axes)
    }
    /// Whether the result of a reduction of `input`, after movements (the last one first), stands beside `input`
    /// with every axis in its place.
    fn lies_beside(
        &self,
        reduced: ValueId,
        input: ValueId,
        axes: &[usize],
        keeps: bool,
        moves: &[ValueId],
    ) -> Option<()> {
        let of = self.shape(input)?;
        // Which axis of the input each axis came from; `None` for those of size 1.
        let mut from: Vec<Option<usize>> = (0..of.rank())
            .filter(|axis| keeps || !axes.contains(axis))
            .map(|axis| (!axes.contains(&axis) && !of[axis].is(1)).then_some(axis))
            .collect();
        let mut shape = self.shape(reduced)?;
        for &moved in moves.iter().rev() {
            let next = self.shape(moved)?;
            let is_broadcast = self.node(moved).is_some_and(|(_, node)| node.op == &m::BROADCAST_TO);
            from = if is_broadcast {
                let front = next.rank().checked_sub(shape.rank())?;
                (0..next.rank()).map(|i| i.checked_sub(front).and_then(|i| from[i])).collect()
            } else {
                let is_repeated = shape.iter().zip(&from).any(|(d, axis)| !d.is(1) && axis.is_none());
                if is_repeated || large(shape).ne(large(next)) {
                    return None;
                }
                let mut left = from.into_iter().flatten();
                next.iter().map(|d| if d.is(1) { None } else { left.next() }).collect()
            };
            shape = next;
        }
        let front = of.rank().checked_sub(from.len())?;
        let fits = |axis: usize| {
            let source = axis.checked_sub(front).and_then(|i| from[i]);
            source == Some(axis) || (source.is_none() && (axes.contains(&axis) || of[axis].is(1)))
        };
        (0..of.rank()).all(fits).then_some(())
    }
}

/// The sizes that are not 1.
fn large(shape: &Shape) -> impl Iterator<Item = &Dim> {
    shape.iter().filter(|d| !d.is(1))
}

/// The number that all elements are.
fn uniform(t: &Tensor) -> Option<f64> {
    let count: usize = t.shape().iter().product();
    if count == 0 || count > MOST_ELEMENTS || t.dtype() == mithril_ir::DType::Bool {
        return None;
    }
    let first = t.get(0).f64();
    (1..count).all(|i| t.get(i).f64() == first).then_some(first)
}
