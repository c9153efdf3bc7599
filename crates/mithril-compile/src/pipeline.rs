//! The pipeline: the passes in order, from the typed graph of a model to a graph that the target supports.
//!
//! | stage | what it does |
//! |---|---|
//! | `infer` | flattens the model into one typed graph |
//! | `fold_constants` | evaluates nodes that depend on no input |
//! | `simplify` | applies algebraic identities that hold bit for bit |
//! | `cse` | common subexpression elimination: equal nodes become one |
//! | `dce` | dead code elimination: removes nodes whose results are not used |
//! | `raise` | recognizes ops that are computed in small pieces |
//! | `precision` | (mixed precision) casts to the compute dtype and back |
//! | `quantize` | (weights in 8 bits) computes products with parameters from quantized weights |
//! | `differentiate` | (programs with gradients) adds the cotangent graph |
//! | `partition` | (several devices) writes the program of each device, with collectives |
//! | `join_products` | computes sums of thin products as one product |
//! | `legalize` | expands ops that the target does not support |
//! | `cleanup` | constant folding, simplification, CSE and DCE once more, on the expansions |
//!
//! Passes are values in lists; the verifier runs after each of them in debug and test builds. A stage that is renamed
//! keeps its old name as an alias for a release: the table is `RENAMED` in `python/mithril/compiled/stages.py`.

use mithril_ir::error::Result;
use mithril_ir::graph::{Graph, NodeId};
use mithril_ir::op::OpDef;
use mithril_ir::{DType, Lit, ValueId, text, verify};

use crate::compiled::gradient_of;
use crate::partition::{Layout, Partitioned, partition};
use crate::passes::differentiate::{Request, differentiate_for};
use crate::passes::quantize::{Decision, Schemes};
use crate::passes::{
    cse, dce, fold_constants, join_products, join_slices, legalize, precision, quantize as quantize_pass,
    raise, simplify,
};

/// A pass: a new graph from an old one.
pub type Pass = fn(&Graph) -> Result<Graph>;

/// The target-independent passes.
pub static OPTIMIZE: &[(&str, Pass)] = &[
    ("fold_constants", fold_constants::fold_constants),
    ("simplify", simplify::simplify),
    ("cse", cse::cse),
    ("dce", dce::dce),
];

/// The same, where constants that follow from a formula stay formulas.
static KEEP_FORMULAS: &[(&str, Pass)] = &[
    ("fold_constants", fold_constants::fold_small),
    ("simplify", simplify::simplify),
    ("cse", cse::cse),
    ("dce", dce::dce),
];

fn passes(keeps_formulas: bool) -> &'static [(&'static str, Pass)] {
    if keeps_formulas { KEEP_FORMULAS } else { OPTIMIZE }
}

/// A compilation target: the nodes that it cannot lower are expanded.
pub trait Target {
    /// Name, for messages.
    fn name(&self) -> &str;
    /// Whether constants that follow from a formula are written as that.
    fn keeps_formulas(&self) -> bool {
        false
    }
    /// Whether the target supports a node without expanding it.
    fn can_lower(&self, graph: &Graph, node: NodeId) -> bool;
    /// The dtype in which the target computes values of a dtype that it only stores and converts; the dtype itself
    /// where it computes with it. The other one is wider and holds all of its numbers.
    fn computed_as(&self, dtype: DType) -> DType {
        dtype
    }
    /// Whether a user-defined backend may have a method for an op. The method then runs in gradients too, and the
    /// gradient is that of the expansion.
    fn has_method(&self, _op: &OpDef) -> bool {
        false
    }
    /// Whether a method of a user-defined backend runs a node.
    fn is_method(&self, _graph: &Graph, _node: NodeId) -> bool {
        false
    }
    /// Whether a function of the host program may compute the gradient of an op.
    fn has_gradient_call(&self, _op: &OpDef) -> bool {
        false
    }
    /// Whether such a function computes the gradient of an op inside the expansion of this one, so that the expansion
    /// must be differentiated.
    fn has_gradient_call_inside(&self, _graph: &Graph, _op: &'static OpDef, _inputs: &[ValueId]) -> bool {
        false
    }
    /// The function of the host program that computes the gradient of a node; `None`: the gradient formula of the op.
    fn gradient_call(&self, _graph: &Graph, _node: NodeId) -> Option<HostGradient> {
        None
    }
}

/// A function of the host program that computes the gradient of one use of an op.
#[derive(Clone, Debug)]
pub struct HostGradient {
    /// Its name in the table of host functions.
    pub function: String,
    /// Literal arguments of the op, which are passed by name.
    pub options: Vec<(&'static str, Lit)>,
}

/// The reference interpreter, which supports every op.
#[derive(Clone, Copy, Debug, Default)]
pub struct Interpreter;

impl Target for Interpreter {
    fn name(&self) -> &'static str {
        "interpreter"
    }
    fn can_lower(&self, _: &Graph, _: NodeId) -> bool {
        true
    }
}

/// Called with the name of each stage and its graph.
pub type Observer<'a> = dyn FnMut(&str, &Graph) + 'a;

/// Optimizes the graph of a model, which [`lower`] and [`differentiated`] start from.
pub fn optimize(graph: Graph, float: DType, observe: &mut Observer<'_>) -> Result<Graph> {
    optimize_for(graph, float, false, observe)
}

/// As [`optimize`], for a target that may keep formulas ([`Target::keeps_formulas`]).
pub fn optimize_for(
    graph: Graph,
    float: DType,
    keeps_formulas: bool,
    observe: &mut Observer<'_>,
) -> Result<Graph> {
    observe("infer", &graph);
    check("infer", &graph, float)?;
    let mut graph = graph;
    for (name, pass) in passes(keeps_formulas) {
        graph = pass(&graph)?;
        check(name, &graph, float)?;
        observe(name, &graph);
    }
    // Once: expansions, which the passes see again, are to stay what they are.
    graph = raise::raise(&graph, float)?;
    check("raise", &graph, float)?;
    observe("raise", &graph);
    Ok(graph)
}

/// Mixed precision: computes values stored as `float` in the dtype `compute`, where that is safe.
pub fn mixed(graph: &Graph, float: DType, compute: DType, observe: &mut Observer<'_>) -> Result<Graph> {
    let graph = precision::precision(graph, float, compute)?;
    check("precision", &graph, float)?;
    observe("precision", &graph);
    Ok(graph)
}

/// Keeps weights of products in 8 bits.
pub fn quantize(
    graph: &Graph,
    float: DType,
    schemes: &Schemes,
    observe: &mut Observer<'_>,
) -> Result<(Graph, Vec<Decision>)> {
    let (graph, decisions) = quantize_pass::quantize(graph, float, schemes)?;
    check("quantize", &graph, float)?;
    observe("quantize", &graph);
    Ok((graph, decisions))
}

/// Adds gradients to an optimized graph.
pub fn differentiated(
    graph: &Graph,
    request: &Request,
    target: &dyn Target,
    float: DType,
    observe: &mut Observer<'_>,
) -> Result<Graph> {
    let graph = join_slices::join_slices(&differentiate_for(target, graph, request, float)?, float)?;
    check("differentiate", &graph, float)?;
    observe("differentiate", &graph);
    Ok(graph)
}

/// Divides a graph over the devices of a mesh.
pub fn divided(
    graph: &Graph,
    layout: &Layout,
    float: DType,
    observe: &mut Observer<'_>,
) -> Result<Partitioned> {
    let owner = |name: &str| gradient_of(name).map(ToOwned::to_owned);
    let program = partition(graph, layout, float, &owner)?;
    check("partition", &program.graph, float)?;
    observe("partition", &program.graph);
    Ok(program)
}

/// Joins products whose results are added up.
pub fn join(graph: &Graph, float: DType, observe: &mut Observer<'_>) -> Result<Graph> {
    let graph = join_products::join_products(graph, float)?;
    check("join_products", &graph, float)?;
    observe("join_products", &graph);
    Ok(graph)
}

/// Lowers a graph to ops that the target supports.
pub fn lower(graph: &Graph, target: &dyn Target, float: DType, observe: &mut Observer<'_>) -> Result<Graph> {
    let mut graph = legalize::legalize_for(target, graph, float)?;
    check("legalize", &graph, float)?;
    observe("legalize", &graph);
    for (name, pass) in passes(target.keeps_formulas()) {
        graph = pass(&graph)?;
        check(name, &graph, float)?;
    }
    observe("cleanup", &graph);
    Ok(graph)
}

/// Verifies a graph after a stage, in debug and test builds.
pub(crate) fn check(stage: &str, graph: &Graph, float: DType) -> Result<()> {
    if cfg!(debug_assertions) {
        verify::verify(graph, float)
            .map_err(|e| e.note(format!("after stage {stage}")).note(text::print(graph)))?;
    }
    Ok(())
}
