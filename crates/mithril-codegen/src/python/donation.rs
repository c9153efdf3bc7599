//! Donation: where the caller gives an input away, an op that alone reads it may write its result into that memory.
//!
//! A value lives as long as something is going to read it. A donated input with one reader is dead behind that reader,
//! and nothing else can be a view of it, so the reader may take its memory over.

use mithril_ir::graph::Def;
use mithril_ir::{NodeId, ValueId};

use super::Function;
use super::function::reads;
use super::targets::PythonTarget;
use super::template::{self, Template};

/// Donated inputs that are read exactly once, by value.
pub struct Donations(Vec<bool>);

impl Donations {
    /// Those of a function whose live nodes these are.
    pub fn of(function: &Function<'_>, live: &[bool]) -> Self {
        let graph = function.graph;
        if function.donated.is_empty() {
            return Self(vec![false; graph.values().len()]);
        }
        let reads = reads(function, live);
        let is_donated = |v: ValueId| {
            let value = graph.value(v);
            let name = value.name.as_ref().filter(|_| matches!(value.def, Def::Input(_)));
            reads[v.index()] == 1 && name.is_some_and(|name| function.donated.contains(name))
        };
        Self(graph.values().map(|(v, _)| is_donated(v)).collect())
    }
    /// Whether this is one of them.
    pub fn has(&self, v: ValueId) -> bool {
        self.0[v.index()]
    }
    /// The template of a use of an op that may write into its first input; `None` if it may not, or cannot.
    pub fn lower(&self, target: &PythonTarget, function: &Function<'_>, id: NodeId) -> Option<Template> {
        let graph = function.graph;
        let node = graph.node(id);
        let (&first, &result) = (node.inputs.first()?, node.outputs.first()?);
        let fits = self.0[first.index()] && node.outputs.len() == 1 && graph.ty(first) == graph.ty(result);
        fits.then(|| template::lower_in_place(target, graph, id)).flatten()
    }
}
