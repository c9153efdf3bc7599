//! Dead code elimination (DCE): removes nodes whose results are not used.

use mithril_ir::error::Result;
use mithril_ir::graph::Graph;

use crate::rewrite::Rewrite;

/// Removes dead nodes. Inputs stay, so that the calling convention does not depend on which of them are used.
pub fn dce(graph: &Graph) -> Result<Graph> {
    let mut live = vec![false; graph.values().len()];
    for &v in graph.outputs.values().chain(graph.updates.iter().map(|(_, value)| value)) {
        live[v.index()] = true;
    }
    let mut keep = vec![false; graph.nodes().len()];
    for (n, node) in graph.nodes().rev() {
        if node.outputs.iter().any(|v| live[v.index()]) {
            keep[n.index()] = true;
            for v in &node.inputs {
                live[v.index()] = true;
            }
        }
    }
    let mut rewrite = Rewrite::new(graph, mithril_ir::DType::F32);
    for (n, _) in graph.nodes().filter(|(n, _)| keep[n.index()]) {
        rewrite.copy(n)?;
    }
    rewrite.finish()
}
