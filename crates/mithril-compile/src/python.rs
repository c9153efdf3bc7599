//! Targets that run generated Python.

use mithril_codegen::python::{self, PythonTarget};
use mithril_ir::graph::{Graph, NodeId};
use mithril_ir::op::OpDef;
use mithril_ir::{DType, ValueId};

use crate::pipeline::{HostGradient, Target};

/// A Python target as the pipeline sees it.
#[derive(Clone, Copy, Debug)]
pub struct Python<'a>(pub &'a PythonTarget);

impl Target for Python<'_> {
    fn name(&self) -> &str {
        self.0.name
    }
    fn keeps_formulas(&self) -> bool {
        self.0.overlay.is_none() && !self.0.xp.is_empty()
    }
    fn can_lower(&self, graph: &Graph, node: NodeId) -> bool {
        python::can_lower(self.0, graph, node)
    }
    fn computed_as(&self, dtype: DType) -> DType {
        (self.0.computed_as)(dtype)
    }
    fn has_method(&self, op: &OpDef) -> bool {
        self.0.overlay.as_ref().is_some_and(|overlay| overlay.methods.contains_key(op.name))
    }
    fn is_method(&self, graph: &Graph, node: NodeId) -> bool {
        self.0.overlay.as_ref().is_some_and(|overlay| overlay.runs(graph, graph.node(node)))
    }
    fn has_gradient_call(&self, op: &OpDef) -> bool {
        self.0.overlay.as_ref().is_some_and(|overlay| overlay.backwards.contains_key(op.name))
    }
    fn has_gradient_call_inside(&self, graph: &Graph, op: &'static OpDef, inputs: &[ValueId]) -> bool {
        self.0.overlay.as_ref().is_some_and(|overlay| overlay.gradient_inside(graph, op, inputs))
    }
    fn gradient_call(&self, graph: &Graph, node: NodeId) -> Option<HostGradient> {
        let (function, options) = self.0.overlay.as_ref()?.backward(graph, graph.node(node))?;
        Some(HostGradient { function: function.to_owned(), options })
    }
}
