//! Common subexpression elimination (CSE): nodes that apply the same op to the same values become one.

use rustc_hash::FxHashMap;

use mithril_ir::error::Result;
use mithril_ir::graph::{Graph, Values};

use crate::rewrite::Rewrite;

/// Merges equal nodes, including random ops: equal keys give equal numbers.
pub fn cse(graph: &Graph) -> Result<Graph> {
    let mut rewrite = Rewrite::new(graph, mithril_ir::DType::F32);
    let mut seen: FxHashMap<(*const mithril_ir::OpDef, Values), Values> = FxHashMap::default();
    for (n, node) in graph.nodes() {
        let key = (std::ptr::from_ref(node.op), rewrite.inputs(node)?);
        if let Some(outputs) = seen.get(&key) {
            rewrite.set_outputs(node, outputs);
        } else {
            let outputs = rewrite.copy(n)?;
            seen.insert(key, outputs);
        }
    }
    rewrite.finish()
}
