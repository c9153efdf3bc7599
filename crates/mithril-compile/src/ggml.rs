//! The ggml target: a graph whose sizes are numbers becomes a plan of calls and of steps of the host.

pub use mithril_codegen::ggml::plan::Plan;
pub use mithril_codegen::ggml::{Choice, Element, Options, Type, plan};
use mithril_ir::graph::{Graph, NodeId};

use crate::pipeline::Target;

/// The ggml target as the pipeline sees it. Ops without a lowering are expanded; what is left then runs on the host.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ggml;

impl Target for Ggml {
    fn name(&self) -> &'static str {
        "ggml"
    }
    fn can_lower(&self, graph: &Graph, node: NodeId) -> bool {
        mithril_codegen::ggml::can_lower(graph, node)
    }
}
