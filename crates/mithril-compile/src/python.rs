//! Targets that run generated Python.

use mithril_codegen::python::{self, PythonTarget};
use mithril_ir::graph::{Graph, NodeId};

use crate::pipeline::Target;

/// A Python target as the pipeline sees it.
#[derive(Clone, Copy, Debug)]
pub struct Python(pub &'static PythonTarget);

impl Target for Python {
    fn name(&self) -> &str {
        self.0.name
    }
    fn can_spell(&self, graph: &Graph, node: NodeId) -> bool {
        python::can_spell(self.0, graph, node)
    }
}
