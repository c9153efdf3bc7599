//! Raising: recognizes ops that a graph computes in small pieces, as importers of decomposed models leave them.
//!
//! Op definitions list the formulas of an op in smaller ops ([`mithril_ir::forms`]). A form is matched by structure, never by
//! names: [`view`] shows values as sums, products and reductions whichever nodes write them, [`unify`] matches patterns
//! with them. Ops that are more than a formula (products whose operands are transposed and reshaped, attention) have
//! rules of their own ([`products`], [`attention`], [`einsum`]).
//!
//! A match is taken if nothing else uses what it covers, and if the op has the dtype and the shape of the pieces. It
//! computes the same for all inputs up to rounding, with two exceptions that are documented in `docs/import.md`: what
//! rounds or cancels in pieces may come out more exact, and a query of attention that may attend to nothing gives zeros
//! instead of NaN.

mod attention;
mod einsum;
mod products;
mod unify;
mod view;

use mithril_ir::DType;
use mithril_ir::error::{Error, Result};
use mithril_ir::forms::{FormPattern, FormRule, rules};
use mithril_ir::graph::{Graph, NodeId, ValueId, Values};
use mithril_ir::literal::Lit;
use mithril_ir::op::OpDef;
use mithril_ir::ops::{elementwise as e, function as f, movement};
use rustc_hash::{FxHashMap, FxHashSet};

use self::unify::{Bound, Match};
use self::view::View;
use super::dce::dce;
use crate::rewrite::Rewrite;

/// What is raised may be a piece of something larger: layers of pieces in the largest of the forms, and some.
const MOST_SWEEPS: usize = 12;

/// Replaces the pieces of ops by the ops.
pub fn raise(graph: &Graph, float: DType) -> Result<Graph> {
    let mut raised = None;
    for _ in 0..MOST_SWEEPS {
        match sweep(raised.as_ref().unwrap_or(graph), float)? {
            Some(next) => raised = Some(dce(&next)?),
            None => break,
        }
    }
    Ok(raised.unwrap_or_else(|| graph.clone()))
}

/// The rules whose ops a graph has, by the op of the node that the form ends in.
fn candidates(graph: &Graph) -> FxHashMap<*const OpDef, Vec<&'static FormRule>> {
    let ops: FxHashSet<*const OpDef> = graph.nodes().map(|(_, node)| std::ptr::from_ref(node.op)).collect();
    let is_there = |op: &&OpDef| ops.contains(&std::ptr::from_ref(*op));
    let mut by_root: FxHashMap<*const OpDef, Vec<&'static FormRule>> = FxHashMap::default();
    for rule in rules().iter().filter(|rule| rule.needs.iter().all(is_there)) {
        for root in roots(&rule.pattern) {
            by_root.entry(std::ptr::from_ref(root)).or_default().push(rule);
        }
    }
    by_root
}

/// The ops of nodes that a pattern can end in.
fn roots(pattern: &FormPattern) -> Vec<&'static OpDef> {
    match pattern {
        FormPattern::Sum { .. } => vec![&e::ADD, &e::SUBTRACT],
        FormPattern::Product { .. } => {
            vec![
                &e::MULTIPLY,
                &e::DIVIDE,
                &e::NEGATIVE,
                &e::POWER,
                &f::SQUARE,
                &f::SQRT,
                &f::RSQRT,
                &f::RECIPROCAL,
            ]
        }
        FormPattern::Call { op, .. } | FormPattern::Reduce { op, .. } => vec![op],
        FormPattern::Clip { .. } => vec![&e::CLIP, &e::MAXIMUM, &e::MINIMUM],
        FormPattern::Port(_) | FormPattern::Absent | FormPattern::Aligned { .. } => Vec::new(),
    }
}

/// Raises what can be seen in a graph; `None` if that is nothing.
fn sweep(graph: &Graph, float: DType) -> Result<Option<Graph>> {
    let rules = candidates(graph);
    let view = View::new(graph);
    let mut matches = FxHashMap::default();
    for (n, node) in graph.nodes() {
        let rules = rules.get(&std::ptr::from_ref(node.op)).map_or(&[][..], Vec::as_slice);
        if let Some(plan) = largest(&view, rules, n) {
            matches.insert(n, plan);
        }
    }
    if matches.is_empty() {
        return Ok(None);
    }
    let mut rewrite = Rewrite::new(graph, float);
    let mut is_changed = false;
    for (n, node) in graph.nodes() {
        if let Some(plan) = matches.get(&n)
            && let Some(value) = build(&mut rewrite, graph, n, plan)
        {
            rewrite.set(node.outputs[0], value);
            is_changed = true;
        } else {
            rewrite.copy(n)?;
        }
    }
    if is_changed { rewrite.finish().map(Some) } else { Ok(None) }
}

/// The match that covers most nodes, of the forms and the rules that are more than a formula.
fn largest(view: &View<'_>, rules: &[&'static FormRule], root: NodeId) -> Option<Bound> {
    let value = *view.graph.node(root).outputs.first()?;
    if !view.graph.ty(value)?.dtype.is_float() {
        return None;
    }
    let matches = rules.iter().filter_map(|rule| Some((Match::new(view, rule, root)?, *rule)));
    let Some((matched, rule)) = matches.max_by_key(|(matched, _)| matched.nodes.len()) else {
        return products::raised(view, root)
            .or_else(|| attention::raised(view, root))
            .or_else(|| einsum::attention(view, root))
            .or_else(|| einsum::raised(view, view.graph.node(root)));
    };
    let argument = |(i, bound): (usize, Option<Bound>)| {
        let port = &rule.op.ports[i];
        let with = rule.form.with.iter().find(|(name, _)| *name == port.name).map(|(_, lit)| *lit);
        bound.or_else(|| with.unwrap_or(port.default).lit().map(Bound::Lit))
    };
    let ports = matched.ports.into_iter().enumerate().map(argument).collect::<Option<Vec<_>>>()?;
    Some(Bound::Op(rule.op, ports))
}

/// Adds what stands instead of a node; `None` if that does not compute what the node does.
fn build(rewrite: &mut Rewrite<'_>, graph: &Graph, n: NodeId, plan: &Bound) -> Option<ValueId> {
    rewrite.at(n);
    // The shape rules of the ops are the last word: sizes may be such that the pieces broadcast and the op does not.
    let value = add(rewrite, plan).ok()?;
    (rewrite.builder.graph.ty(value) == graph.ty(graph.node(n).outputs[0])).then_some(value)
}

fn add(rewrite: &mut Rewrite<'_>, bound: &Bound) -> Result<ValueId> {
    match bound {
        Bound::Value(v) => rewrite.get(*v),
        Bound::Lit(lit) => Ok(rewrite.builder.lit(lit.clone())),
        Bound::Op(op, args) => {
            if let Some(constant) = reshaped_constant(rewrite, op, args) {
                return Ok(constant);
            }
            let args = args.iter().map(|arg| add(rewrite, arg)).collect::<Result<Values>>()?;
            let outputs = rewrite.builder.push(op, &args)?;
            outputs.first().copied().ok_or_else(|| Error::internal("an op without a result"))
        }
    }
}

/// A constant in another shape: raised graphs are not folded again.
fn reshaped_constant(rewrite: &mut Rewrite<'_>, op: &OpDef, args: &[Bound]) -> Option<ValueId> {
    let [Bound::Value(v), Bound::Lit(shape)] = args else { return None };
    let v = rewrite.get(*v).ok()?;
    let (Some(Lit::Tensor(t)), Lit::Tuple(dims)) = (rewrite.builder.graph.lit(v), shape) else { return None };
    let size = |lit: &Lit| match lit {
        Lit::Int(d) => d.known().and_then(|n| usize::try_from(n).ok()),
        _ => None,
    };
    let dims: Vec<usize> = dims.iter().map(size).collect::<Option<_>>()?;
    let reshaped = (op == &movement::RESHAPE).then(|| t.reshaped(&dims))?;
    Some(rewrite.builder.lit(reshaped))
}
