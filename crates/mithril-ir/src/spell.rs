//! What a spelling function sees of a use of an op: expressions, literals and types as a target needs them.

use crate::graph::{Graph, Node, TensorType};
use crate::literal::Lit;
use crate::op::OpDef;
use crate::rules::Attrs;

/// Argument of [`crate::op::Text::F`].
#[derive(Debug)]
pub struct SpellCx<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// The node.
    pub node: &'a Node,
    /// Expressions of the inputs, in brackets where needed.
    pub args: &'a [String],
    /// The array module (`np`, `torch`, `jnp`, `mx`).
    pub xp: &'a str,
}

impl Attrs for SpellCx<'_> {
    fn op(&self) -> &'static OpDef {
        self.node.op
    }
    fn lit(&self, i: usize) -> Lit {
        self.node.inputs.get(i).and_then(|&v| self.graph.lit(v)).cloned().unwrap_or(Lit::None)
    }
}

impl SpellCx<'_> {
    /// Expression of input `i`.
    pub fn arg(&self, i: usize) -> &str {
        self.args.get(i).map_or("None", String::as_str)
    }
    /// Type of input `i`, if it is a tensor.
    pub fn ty(&self, i: usize) -> Option<&TensorType> {
        self.node.inputs.get(i).and_then(|&v| self.graph.ty(v))
    }
    /// Type of output `i`.
    pub fn out(&self, i: usize) -> Option<&TensorType> {
        self.node.outputs.get(i).and_then(|&v| self.graph.ty(v))
    }
}
