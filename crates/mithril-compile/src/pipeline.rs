//! The pipeline: the passes in their order, from the typed graph of a model to what a target can write.
//!
//! | stage | what it does |
//! |---|---|
//! | `infer` | the flattened, typed graph of the model |
//! | `fold` | what depends on no input is evaluated |
//! | `simplify` | algebra that holds bit for bit |
//! | `merge` | equal nodes become one |
//! | `prune` | what nobody reads is left out |
//! | `precision` | (mixed precision) casts to the compute dtype and back |
//! | `differentiate` | (programs with gradients) the cotangent graph is added |
//! | `legalize` | what the target cannot spell is expanded |
//! | `finish` | fold, simplify, merge and prune once more, on the expansions |
//!
//! The passes are values in lists; the verifier runs after each in debug and test builds.

use mithril_ir::error::Result;
use mithril_ir::graph::{Graph, NodeId};
use mithril_ir::op::OpDef;
use mithril_ir::{DType, Lit, ValueId, text, verify};

use crate::passes::differentiate::{Request, differentiate_for};
use crate::passes::{fold, legalize, merge, precision, prune, simplify};

/// A pass: a new graph from an old one.
pub type Pass = fn(&Graph) -> Result<Graph>;

/// What is done to every graph before it meets a target.
pub static OPTIMIZE: &[(&str, Pass)] = &[
    ("fold", fold::fold),
    ("simplify", simplify::simplify),
    ("merge", merge::merge),
    ("prune", prune::prune),
];

/// Where a graph is going: what it can spell decides what is expanded.
pub trait Target {
    /// Name, for messages.
    fn name(&self) -> &str;
    /// Whether the target can write a node as it is.
    fn can_spell(&self, graph: &Graph, node: NodeId) -> bool;
    /// Whether a method of a user's backend may run an op: it then runs it when differentiating too, and the
    /// gradient is that of the expansion.
    fn has_method(&self, _op: &OpDef) -> bool {
        false
    }
    /// Whether a method of a user's backend runs a node.
    fn is_method(&self, _graph: &Graph, _node: NodeId) -> bool {
        false
    }
    /// Whether a function of the host program may give the gradient of an op.
    fn has_gradient_call(&self, _op: &OpDef) -> bool {
        false
    }
    /// Whether such a function gives the gradient of an op inside the expansion of this one, which then is what is
    /// differentiated.
    fn has_gradient_call_inside(&self, _graph: &Graph, _op: &'static OpDef, _inputs: &[ValueId]) -> bool {
        false
    }
    /// The function of the host program that gives the gradient of a node; none: the gradient is that of its row.
    fn gradient_call(&self, _graph: &Graph, _node: NodeId) -> Option<HostGradient> {
        None
    }
}

/// A function of the host program that gives the gradient of a use of an op.
#[derive(Clone, Debug)]
pub struct HostGradient {
    /// Its name in the table of host functions.
    pub function: String,
    /// Literal arguments of the op that it is given by name.
    pub options: Vec<(&'static str, Lit)>,
}

/// The reference interpreter: runs every row.
#[derive(Clone, Copy, Debug, Default)]
pub struct Interpreter;

impl Target for Interpreter {
    fn name(&self) -> &'static str {
        "interpreter"
    }
    fn can_spell(&self, _: &Graph, _: NodeId) -> bool {
        true
    }
}

/// Called with the name of each stage and its graph.
pub type Observer<'a> = dyn FnMut(&str, &Graph) + 'a;

/// Optimises the graph of a model; it is then the start of [`lower`] and [`differentiated`].
pub fn optimize(graph: Graph, float: DType, observe: &mut Observer<'_>) -> Result<Graph> {
    observe("infer", &graph);
    check("infer", &graph, float)?;
    let mut graph = graph;
    for (name, pass) in OPTIMIZE {
        graph = pass(&graph)?;
        check(name, &graph, float)?;
        observe(name, &graph);
    }
    Ok(graph)
}

/// Mixed precision: what is stored in `float` is computed in `compute`, where that is safe.
pub fn mixed(graph: &Graph, float: DType, compute: DType, observe: &mut Observer<'_>) -> Result<Graph> {
    let graph = precision::precision(graph, float, compute)?;
    check("precision", &graph, float)?;
    observe("precision", &graph);
    Ok(graph)
}

/// Adds gradients to an optimised graph.
pub fn differentiated(
    graph: &Graph,
    request: &Request,
    target: &dyn Target,
    float: DType,
    observe: &mut Observer<'_>,
) -> Result<Graph> {
    let graph = differentiate_for(target, graph, request, float)?;
    check("differentiate", &graph, float)?;
    observe("differentiate", &graph);
    Ok(graph)
}

/// Brings a graph to what the target can write.
pub fn lower(graph: &Graph, target: &dyn Target, float: DType, observe: &mut Observer<'_>) -> Result<Graph> {
    let mut graph = legalize::legalize_for(target, graph, float)?;
    check("legalize", &graph, float)?;
    observe("legalize", &graph);
    for (name, pass) in OPTIMIZE {
        graph = pass(&graph)?;
        check(name, &graph, float)?;
    }
    observe("finish", &graph);
    Ok(graph)
}

fn check(stage: &str, graph: &Graph, float: DType) -> Result<()> {
    if cfg!(debug_assertions) {
        verify::verify(graph, float)
            .map_err(|e| e.note(format!("after stage {stage}")).note(text::print(graph)))?;
    }
    Ok(())
}
