//! What follows from constants alone (masks, positions, tables): it is computed once, when the module is loaded.

use mithril_ir::dim::Dim;
use mithril_ir::graph::Node;
use mithril_ir::ops::host::HOST_CALL;
use mithril_ir::{Graph, Lit, ValueId};

use super::targets::PythonTarget;

/// Arrays with more elements are computed in each call rather than kept.
const LARGEST: usize = 1 << 22;

/// The values of a function that follow from constants alone.
#[derive(Debug, Default)]
pub struct Formulas {
    is_formula: Vec<bool>,
    /// Those that others read.
    is_read: Vec<bool>,
}

impl Formulas {
    /// Looks for them. What is returned is not among them, and nothing that it is made of: callers may write into it.
    pub fn of(graph: &Graph, target: &PythonTarget, is_result: &[bool]) -> Self {
        let none = vec![false; graph.values().len()];
        if target.is_lazy || target.overlay.is_some() || target.xp.is_empty() {
            return Self { is_formula: none.clone(), is_read: none };
        }
        let is_fixed = |known: &[bool], node: &Node| {
            node.inputs.iter().all(|v| known[v.index()] || graph.lit(*v).is_some_and(is_known))
        };
        let mut is_constant = none.clone();
        for (_, node) in graph.nodes() {
            if let ([v], true) = (&node.outputs[..], is_row(node) && is_fixed(&is_constant, node)) {
                let sizes = graph.ty(*v).and_then(|ty| ty.shape.known());
                is_constant[v.index()] =
                    sizes.is_some_and(|sizes| sizes.iter().product::<usize>() <= LARGEST);
            }
        }
        // What is made of something that is returned may share its memory.
        let mut is_open = is_result.to_vec();
        for (_, node) in graph.nodes().rev() {
            if node.outputs.iter().any(|v| is_constant[v.index()] && is_open[v.index()]) {
                node.inputs.iter().for_each(|v| is_open[v.index()] = true);
            }
        }
        let mut is_formula = none.clone();
        for (_, node) in graph.nodes() {
            if let [v] = &node.outputs[..] {
                let is_inner = is_constant[v.index()] && !is_open[v.index()];
                is_formula[v.index()] = is_inner && is_fixed(&is_formula, node);
            }
        }
        let (mut is_used, mut is_read) = (none.clone(), none);
        for (_, node) in graph.nodes().rev() {
            let mut is_inner = false;
            if let [v] = &node.outputs[..] {
                // A creation is as short as a name.
                let creates = node.inputs.iter().all(|v| graph.ty(*v).is_none());
                is_formula[v.index()] &= !creates || is_used[v.index()];
                is_inner = is_formula[v.index()];
            }
            for v in &node.inputs {
                let readers = if is_inner { &mut is_used } else { &mut is_read };
                readers[v.index()] = true;
            }
        }
        Self { is_formula, is_read }
    }
    /// Whether a value is one of them.
    pub fn has(&self, v: ValueId) -> bool {
        self.is_formula.get(v.index()).copied().unwrap_or(false)
    }
    /// Whether it is one that is read by what is none.
    pub fn is_read(&self, v: ValueId) -> bool {
        self.has(v) && self.is_read[v.index()]
    }
}

/// Whether a node is a use of an op that is the same at every call.
fn is_row(node: &Node) -> bool {
    node.op != &HOST_CALL && (node.op.eval.is_some() || node.op.expand.is_some())
}

/// Whether a literal has no size that is open.
fn is_known(lit: &Lit) -> bool {
    match lit {
        Lit::Int(dim) => matches!(dim, Dim::Const(_)),
        Lit::Tuple(items) => items.iter().all(is_known),
        Lit::Slice(parts) => parts.iter().all(is_known),
        _ => true,
    }
}
