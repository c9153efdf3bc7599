//! Unification of a pattern with a value of a graph.

use mithril_ir::forms::{Alignment, FormPattern, FormRule, Number};
use mithril_ir::graph::{NodeId, ValueId};
use mithril_ir::literal::Lit;
use mithril_ir::op::{Attr, OpDef, PortKind};
use mithril_ir::ops::{elementwise as e, movement, reduce};
use mithril_ir::{DType, Dim};

use super::view::{Depth, Nodes, Product, Sum, View};

/// What stands at a port, or instead of a node.
#[derive(Clone, Debug, PartialEq)]
pub enum Bound {
    /// A value of the graph.
    Value(ValueId),
    /// A literal.
    Lit(Lit),
    /// A use of an op.
    Op(&'static OpDef, Vec<Bound>),
}

impl Bound {
    /// A tensor in another shape.
    pub fn reshaped(tensor: Self, shape: &[Dim]) -> Self {
        Self::Op(&movement::RESHAPE, vec![tensor, Self::Lit(Lit::tuple(shape.iter().cloned()))])
    }
    /// A tensor with its axes in another order, if that is another one.
    pub fn transposed(tensor: Self, order: &[usize]) -> Self {
        if order.iter().copied().eq(0..order.len()) {
            return tensor;
        }
        Self::Op(&movement::TRANSPOSE, vec![tensor, Self::Lit(Lit::tuple(order.iter().copied()))])
    }
}

/// A pattern on its way over a graph.
#[derive(Debug)]
pub struct Match<'g, 'v> {
    view: &'v View<'g>,
    op: &'static OpDef,
    /// What stands at each port.
    pub ports: Vec<Option<Bound>>,
    /// The nodes that the pattern covers.
    pub nodes: Nodes,
    /// What is reduced.
    reduced: Vec<ValueId>,
    dtype: DType,
}

/// What a match had found, to return to.
type Mark = (Vec<Option<Bound>>, usize);

impl<'g, 'v> Match<'g, 'v> {
    /// Matches the pattern of a rule with the value that node `root` computes.
    pub fn new(view: &'v View<'g>, rule: &FormRule, root: NodeId) -> Option<Self> {
        let value = *view.graph.node(root).outputs.first()?;
        let dtype = view.graph.ty(value)?.dtype;
        let ports = vec![None; rule.op.ports.len()];
        let mut matched = Self { view, op: rule.op, ports, nodes: Nodes::new(), reduced: Vec::new(), dtype };
        let matches = matched.unify(&rule.pattern, 1.0, value)
            && matched.reduces_all()
            && view.are_private(&matched.nodes, root);
        matches.then_some(matched)
    }
    /// Whether reductions read tensors of the shape of `input`: what is broadcast before reduces to something else.
    fn reduces_all(&self) -> bool {
        let Some(Some(Bound::Value(input))) = self.ports.first() else { return self.reduced.is_empty() };
        let shape = self.view.shape(*input);
        self.reduced.iter().all(|v| self.view.shape(*v) == shape)
    }
    fn mark(&self) -> Mark {
        (self.ports.clone(), self.nodes.len())
    }
    fn back(&mut self, (ports, nodes): Mark) {
        self.ports = ports;
        self.nodes.truncate(nodes);
    }
    /// Whether two numbers are the same but for rounding in the dtype of the result.
    fn is_close(&self, a: f64, b: f64) -> bool {
        a == b || (a - b).abs() <= 4.0 * self.dtype.epsilon() * a.abs().max(b.abs())
    }
    fn bind(&mut self, port: usize, bound: Bound) -> bool {
        match &self.ports[port] {
            Some(before) => *before == bound,
            slot => {
                debug_assert!(slot.is_none());
                self.ports[port] = Some(bound);
                true
            }
        }
    }
    /// A number of the graph at a port; the shortest that is the same in the dtype.
    fn bind_number(&mut self, port: usize, x: f64) -> bool {
        let single = x as f32;
        let is_single = f64::from(single) == x && self.dtype != DType::F64;
        let short = if is_single { single.to_string().parse().unwrap_or(x) } else { x };
        match &self.ports[port] {
            Some(Bound::Lit(Lit::Float(before))) => self.is_close(*before, short),
            Some(_) => false,
            None => self.bind(port, Bound::Lit(Lit::Float(short))),
        }
    }
    fn takes_number(&self, port: usize) -> bool {
        matches!(self.op.ports[port].kind, PortKind::Attr(Attr::Float | Attr::OptFloat | Attr::Scalar))
    }
    fn is_number(&mut self, number: Number, x: f64) -> bool {
        match number {
            Number::Is(0.0) => x == 0.0,
            Number::Is(number) => self.is_close(number, x),
            Number::Port(port) => self.bind_number(port, x),
        }
    }
    /// Matches a pattern with `scale` times a value.
    fn unify(&mut self, pattern: &FormPattern, scale: f64, v: ValueId) -> bool {
        if matches!(pattern, FormPattern::Sum { .. } | FormPattern::Product { .. } | FormPattern::Call { .. })
            && let Some((n, node)) = self.view.use_of(v, &movement::BROADCAST_TO)
        {
            // Elementwise ops broadcast by themselves.
            self.nodes.push(n);
            return self.unify(pattern, scale, node.inputs[0]);
        }
        match pattern {
            FormPattern::Sum { constant, terms } => self.unify_sum(*constant, terms, scale, v),
            FormPattern::Product { coefficient, factors } => {
                self.unify_product(*coefficient, factors, scale, v)
            }
            FormPattern::Reduce { op, input, axes } => self.unify_reduction(op, input, *axes, scale, v),
            FormPattern::Absent => self.view.graph.lit(v).is_some_and(Lit::is_none),
            _ if !self.is_close(scale, 1.0) => {
                let (coefficient, inner, nodes) = self.view.scaled(v);
                self.nodes.extend(nodes);
                inner != v && self.is_close(scale * coefficient, 1.0) && self.unify(pattern, 1.0, inner)
            }
            FormPattern::Port(port) => self.unify_port(*port, v),
            FormPattern::Call { op, args } => self.unify_call(op, args, v),
            FormPattern::Clip { input, low, high } => {
                let (least, most, inner, nodes) = self.view.clip(v);
                let (low, high) = (Number::Is(*low), Number::Is(*high));
                self.nodes.extend(nodes);
                self.is_number(low, least) && self.is_number(high, most) && self.unify(input, 1.0, inner)
            }
            FormPattern::Aligned { inner, axes } => self.unify_aligned(inner, *axes, v),
        }
    }
    fn unify_port(&mut self, port: usize, v: ValueId) -> bool {
        let bound = match (self.op.ports[port].kind, self.view.graph.lit(v)) {
            (PortKind::Attr(_), Some(lit)) => Bound::Lit(lit.clone()),
            (PortKind::Attr(_), None) => return false,
            _ => Bound::Value(v),
        };
        if self.ports[port].as_ref().is_none_or(|before| *before == bound) {
            return self.bind(port, bound);
        }
        // `x + 0` is as good as `x`.
        let sum = self.view.sum(v, Depth::Private);
        match sum.terms[..] {
            [(1.0, inner)] if inner != v && sum.constant == 0.0 => {
                self.nodes.extend(sum.nodes);
                self.unify_port(port, inner)
            }
            _ => false,
        }
    }
    fn unify_sum(&mut self, constant: Number, terms: &[FormPattern], scale: f64, v: ValueId) -> bool {
        let (coefficient, inner, nodes) = self.view.scaled(v);
        let scale = scale * coefficient;
        self.nodes.extend(nodes);
        let mark = self.mark();
        if self.unify_terms(constant, terms, scale, &self.view.sum(inner, Depth::Private)) {
            return true;
        }
        self.back(mark);
        self.unify_terms(constant, terms, scale, &self.view.sum(inner, Depth::Operands))
    }
    fn unify_terms(&mut self, constant: Number, terms: &[FormPattern], scale: f64, sum: &Sum) -> bool {
        if sum.terms.len() != terms.len() || !self.is_number(constant, scale * sum.constant) {
            return false;
        }
        self.nodes.extend(&sum.nodes);
        let candidates: Vec<(f64, ValueId)> = sum.terms.iter().map(|(sign, v)| (scale * sign, *v)).collect();
        self.assign(terms, &mut vec![false; candidates.len()], &candidates)
    }
    /// Gives each of the patterns one of the candidates.
    fn assign(
        &mut self,
        patterns: &[FormPattern],
        used: &mut Vec<bool>,
        candidates: &[(f64, ValueId)],
    ) -> bool {
        let Some((pattern, rest)) = patterns.split_first() else { return true };
        for (i, (number, v)) in candidates.iter().enumerate() {
            if used[i] {
                continue;
            }
            let mark = self.mark();
            used[i] = true;
            if self.unify(pattern, *number, *v) && self.assign(rest, used, candidates) {
                return true;
            }
            used[i] = false;
            self.back(mark);
        }
        false
    }
    fn unify_product(
        &mut self,
        coefficient: Number,
        factors: &[(FormPattern, f64)],
        scale: f64,
        v: ValueId,
    ) -> bool {
        // A number times a sum or a reduction, which distribute.
        if let ([(inner, 1.0)], Number::Is(c)) = (factors, coefficient) {
            return self.unify(inner, scale / c, v);
        }
        let mark = self.mark();
        if self.unify_factors(coefficient, factors, scale, &self.view.product(v, Depth::Private)) {
            return true;
        }
        self.back(mark);
        self.unify_factors(coefficient, factors, scale, &self.view.product(v, Depth::Operands))
    }
    fn unify_factors(
        &mut self,
        coefficient: Number,
        factors: &[(FormPattern, f64)],
        scale: f64,
        product: &Product,
    ) -> bool {
        if product.factors.len() != factors.len() {
            return false;
        }
        let total = scale * product.coefficient;
        // A sum or a mean may hold a part of the coefficient: (0.5 + 0.5 x) for 0.5 (1 + x).
        let holds = |(p, exponent): &(FormPattern, f64)| {
            matches!(p, FormPattern::Sum { .. } | FormPattern::Reduce { .. }) && exponent.fract() == 0.0
        };
        let (ratio, open) = match (coefficient, factors.iter().position(holds)) {
            (Number::Is(c), Some(open)) if !self.is_close(c, total) && total / c > 0.0 => {
                ((total / c).powf(1.0 / factors[open].1), open)
            }
            _ if self.is_number(coefficient, total) => (1.0, usize::MAX),
            _ => return false,
        };
        self.nodes.extend(&product.nodes);
        let mut used = vec![false; factors.len()];
        self.assign_factors(factors, 0, (ratio, open), &mut used, &product.factors)
    }
    fn assign_factors(
        &mut self,
        patterns: &[(FormPattern, f64)],
        at: usize,
        (ratio, open): (f64, usize),
        used: &mut Vec<bool>,
        factors: &[(ValueId, f64)],
    ) -> bool {
        let Some((pattern, exponent)) = patterns.get(at) else { return true };
        let scale = if at == open { ratio } else { 1.0 };
        for (i, (v, power)) in factors.iter().enumerate() {
            if used[i] || power != exponent {
                continue;
            }
            let mark = self.mark();
            used[i] = true;
            let rest = (ratio, open);
            if self.unify(pattern, scale, *v) && self.assign_factors(patterns, at + 1, rest, used, factors) {
                return true;
            }
            used[i] = false;
            self.back(mark);
        }
        false
    }
    fn unify_call(&mut self, op: &'static OpDef, args: &[FormPattern], v: ValueId) -> bool {
        let Some((n, node)) = self.view.use_of(v, op) else { return false };
        if args.len() > node.inputs.len() {
            return false;
        }
        let has_default = |(port, &v): (&mithril_ir::op::Port, &ValueId)| {
            let default = port.default.lit();
            default.is_some() && self.view.graph.lit(v) == default.as_ref()
        };
        if !op.ports.iter().zip(&node.inputs).skip(args.len()).all(has_default) {
            return false;
        }
        self.nodes.push(n);
        let mark = self.mark();
        if args.iter().zip(&node.inputs).all(|(arg, &v)| self.unify_argument(arg, v)) {
            return true;
        }
        self.back(mark);
        let commutes = [&e::MAXIMUM, &e::MINIMUM].contains(&op);
        commutes && args.iter().rev().zip(&node.inputs).all(|(arg, &v)| self.unify_argument(arg, v))
    }
    /// An argument of a call: a number is one even where it is a literal.
    fn unify_argument(&mut self, pattern: &FormPattern, v: ValueId) -> bool {
        match (pattern, self.view.scalar(v)) {
            (FormPattern::Port(port), Some(x)) if self.takes_number(*port) => self.bind_number(*port, x),
            (FormPattern::Product { coefficient, factors }, Some(x)) if factors.is_empty() => {
                self.is_number(*coefficient, x)
            }
            (FormPattern::Product { factors, .. }, None) if factors.is_empty() => false,
            _ => self.unify(pattern, 1.0, v),
        }
    }
    fn unify_reduction(
        &mut self,
        op: &'static OpDef,
        input: &FormPattern,
        port: usize,
        scale: f64,
        v: ValueId,
    ) -> bool {
        let Some(reduction) = self.view.reduction(v) else { return false };
        let Some(shape) = self.view.shape(reduction.input) else { return false };
        let mut coefficient = scale * reduction.coefficient;
        if op == &reduce::MEAN && reduction.op == &reduce::SUM {
            // A sum that is divided by the number of elements.
            let count = reduction.axes.iter().fold(Dim::ONE, |n, &axis| &n * &shape[axis]);
            let Some(count) = count.known() else { return false };
            coefficient *= count as f64;
        } else if op != reduction.op {
            return false;
        }
        if !self.is_close(coefficient, 1.0) || !self.bind_axes(port, &reduction.axes, &shape.0) {
            return false;
        }
        self.nodes.extend(reduction.nodes);
        self.reduced.push(reduction.input);
        self.unify(input, 1.0, reduction.input)
    }
    /// The axes of a reduction as the argument of a port.
    fn bind_axes(&mut self, port: usize, axes: &[usize], shape: &[Dim]) -> bool {
        let rank = shape.len();
        let from_end = |axis: usize| axis as i64 - rank as i64;
        let lit = match (self.op.ports[port].kind, axes) {
            (PortKind::Attr(Attr::Int | Attr::Ints), [axis]) => Lit::int(from_end(*axis)),
            (PortKind::Attr(Attr::Ints), _) => Lit::tuple(axes.iter().map(|&axis| Lit::int(from_end(axis)))),
            (PortKind::Attr(Attr::OptInts), [first, ..]) if axes.iter().copied().eq(*first..rank) => {
                Lit::tuple(shape[*first..].iter().cloned())
            }
            _ => return false,
        };
        self.bind(port, Bound::Lit(lit))
    }
    /// Matches a small tensor that lies beside axes of `input`.
    fn unify_aligned(&mut self, inner: &FormPattern, axes: Alignment, v: ValueId) -> bool {
        let Some(Bound::Value(input)) = self.ports[0] else { return false };
        let Some((shape, of)) = self.view.shape(v).zip(self.view.shape(input)) else { return false };
        let axes_range = match axes {
            Alignment::Channels => 1..2,
            Alignment::Features => {
                let sizes = self.op.port("normalized_shape").and_then(|i| self.ports[i].as_ref());
                let Some(Bound::Lit(Lit::Tuple(sizes))) = sizes else { return false };
                of.rank().saturating_sub(sizes.len())..of.rank()
            }
        };
        let Some(front) = of.rank().checked_sub(shape.rank()) else { return false };
        if axes_range.start < front || axes_range.end > of.rank() {
            return false;
        }
        let fits = |axis: usize| {
            let size = &shape[axis - front];
            if axes_range.contains(&axis) { *size == of[axis] } else { size.is(1) }
        };
        if !(front..of.rank()).all(fits) {
            return false;
        }
        let sizes = of[axes_range].to_vec();
        let (before, nodes) = self.view.before_moves(v);
        let is_vector = self.view.shape(before).is_some_and(|shape| shape[..] == sizes[..]);
        match inner {
            FormPattern::Port(port) if is_vector => self.bind(*port, Bound::Value(before)),
            FormPattern::Port(port) if shape[..] == sizes[..] => self.bind(*port, Bound::Value(v)),
            FormPattern::Port(port) => self.bind(*port, Bound::reshaped(Bound::Value(v), &sizes)),
            _ => {
                self.nodes.extend(nodes);
                is_vector && self.unify(inner, 1.0, before)
            }
        }
    }
}
