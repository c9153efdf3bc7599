//! Looking inside a compiled model: all its values, its gradients as one program, its ops one by one, and how a
//! target runs each of them. The tools that compare backends and search for errors are made of these.
//!
//! Values have the names `0`, `1`, … here, their positions in the graph.

use std::sync::Arc;

use mithril_codegen::python::{PythonTarget, Support, can_lower, is_referred, support};
use mithril_ir::build::Builder;
use mithril_ir::error::Result;
use mithril_ir::graph::{Def, Graph, Node, NodeId, Role, TensorType, ValueId, Values};
use mithril_ir::lowering::LoweringRule;
use mithril_ir::op::OpDef;
use mithril_ir::ops;
use mithril_ir::{DType, Error, Lit, Tensor};
use mithril_model::{Init, Input};

use crate::compiled::Compiled;
use crate::passes::differentiate::{COTANGENT, Request};
use crate::passes::quantize::Schemes;
use crate::pipeline::{Interpreter, Target, differentiated, lower};
use crate::python::Python;

/// How a target runs one use of an op.
#[derive(Clone, Debug)]
pub struct Use {
    /// The use.
    pub node: NodeId,
    /// By itself, by other ops (which may run on the host), or not.
    pub support: Support,
    /// What it is made of, if it is expanded: the ops and how often, in order of the first.
    pub parts: Vec<(&'static str, usize)>,
    /// The ops among them, or the op itself, that the target lacks, with a dtype of theirs.
    pub missing: Vec<(&'static str, Option<DType>)>,
    /// The ops among them, or the op itself, that the reference runs on the host.
    pub referred: Vec<&'static str>,
}

impl Compiled {
    /// The program with all values that somebody reads as outputs, in order.
    #[must_use]
    pub fn exposed(&self) -> Self {
        let mut graph = self.graph.clone();
        let mut is_read = vec![false; graph.values().len()];
        let results = graph.outputs.values().chain(graph.updates.iter().map(|(_, new)| new));
        for v in graph.nodes().flat_map(|(_, node)| &node.inputs).chain(results) {
            is_read[v.index()] = true;
        }
        let outputs: Vec<ValueId> = graph.nodes().flat_map(|(_, node)| node.outputs.clone()).collect();
        graph.outputs.clear();
        for v in outputs.into_iter().filter(|v| is_read[v.index()]) {
            graph.outputs.insert(v.index().to_string().into(), v);
        }
        Self { graph, ..self.clone() }
    }
    /// The program with gradients as one that is evaluated: cotangents are data with the prefix [`COTANGENT`].
    pub fn with_gradients(&self, outputs: &[Arc<str>], inputs: &[Arc<str>]) -> Result<Self> {
        let request = Request { outputs: outputs.to_vec(), inputs: inputs.to_vec(), recompute: false };
        let mut graph = differentiated(&self.graph, &request, &Interpreter, self.float, &mut |_, _| {})?;
        let mut all = self.inputs.clone();
        for v in graph.inputs.clone() {
            let value = graph.value(v);
            if let (Def::Input(Role::Cotangent), Some(name), Some(ty)) = (&value.def, &value.name, &value.ty)
            {
                let name: Arc<str> = format!("{COTANGENT}{name}").into();
                all.push(Input {
                    name: name.clone(),
                    role: Role::Data,
                    ty: ty.clone(),
                    init: Init::Zeros,
                    is_frozen: false,
                });
                graph.change_input(v, name, Role::Data);
            }
        }
        Ok(Self {
            graph,
            inputs: all,
            float: self.float,
            checkpoint: false,
            donated: Vec::new(),
            is_optimizer_step: false,
            schemes: Schemes::new(),
            layout: None,
            limits: self.limits.clone(),
        })
    }
    /// A program of one node: its tensors are the inputs `x0`, `x1`, …, floats as parameters and the others as
    /// data. With `is_wide`, floats are float64, and what the literals say is rounded as in the node. Places are left
    /// out, so that equal uses are equal programs.
    pub fn single(&self, n: NodeId, is_wide: bool) -> Result<Self> {
        let node = self.graph.node(n);
        let float = if is_wide { DType::F64 } else { self.float };
        let mut builder = Builder::new(float);
        let args = (0..node.inputs.len())
            .map(|i| self.argument(&mut builder, node, i, is_wide))
            .collect::<Result<Values>>()?;
        let outputs = if is_wide {
            builder.push(node.op, &args)?
        } else {
            builder.push_typed(node.op, args, crate::rewrite::types(&self.graph, node))
        };
        for (i, &v) in outputs.iter().enumerate() {
            builder.graph.outputs.insert(format!("y{i}").into(), v);
        }
        let graph = builder.graph;
        let input = |&v: &ValueId| {
            let value = graph.value(v);
            let (Def::Input(role), Some(ty)) = (&value.def, &value.ty) else { return None };
            Some(Input {
                name: value.name.clone()?,
                role: *role,
                ty: ty.clone(),
                init: Init::Zeros,
                is_frozen: false,
            })
        };
        let inputs = graph.inputs.iter().filter_map(input).collect();
        Ok(Self {
            graph,
            inputs,
            float,
            checkpoint: false,
            donated: Vec::new(),
            is_optimizer_step: false,
            schemes: Schemes::new(),
            layout: None,
            limits: Vec::new(),
        })
    }
    fn argument(&self, builder: &mut Builder, node: &Node, i: usize, is_wide: bool) -> Result<ValueId> {
        let v = node.inputs[i];
        let widened = |dtype: DType| if is_wide && dtype.is_float() { DType::F64 } else { dtype };
        if let Some(lit) = self.graph.lit(v) {
            let lit = match lit {
                Lit::Tensor(t) if is_wide => Lit::Tensor(Arc::new(t.cast(widened(t.dtype())))),
                Lit::Float(_) if is_wide && node.op.takes_tensor(i) => self.rounded(node, lit),
                // That of the node's own dtype, not of float64.
                Lit::None if is_wide && node.op.ports[i].name == "eps" => self.epsilon(node),
                lit => lit.clone(),
            };
            return Ok(builder.graph.add_literal(lit));
        }
        let ty = self.graph.ty(v).ok_or_else(|| Error::internal("a tensor without a type"))?;
        let role = if ty.dtype.is_float() { Role::Param } else { Role::Data };
        let ty = TensorType { dtype: widened(ty.dtype), shape: ty.shape.clone() };
        Ok(builder.graph.add_input(format!("x{i}"), role, ty))
    }
    /// The first float dtype among the inputs of a node.
    fn float_of(&self, node: &Node) -> Option<DType> {
        let types = node.inputs.iter().filter_map(|&v| self.graph.ty(v));
        types.map(|ty| ty.dtype).find(|dtype| dtype.is_float())
    }
    /// What `eps` of a node is if it is not given.
    fn epsilon(&self, node: &Node) -> Lit {
        self.float_of(node).map_or(Lit::None, |dtype| Lit::Float(ops::norm::computed_epsilon(dtype)))
    }
    /// A number beside float tensors, as it counts there.
    fn rounded(&self, node: &Node, lit: &Lit) -> Lit {
        match (lit, self.float_of(node)) {
            (Lit::Float(x), Some(dtype)) => Lit::Tensor(Arc::new(Tensor::scalar(dtype, *x).cast(DType::F64))),
            _ => lit.clone(),
        }
    }
    /// How a target runs each node of the graph.
    pub fn uses(&self, target: &PythonTarget) -> Result<Vec<Use>> {
        self.graph.nodes().map(|(n, _)| self.use_of(n, target)).collect()
    }
    /// As [`Compiled::uses`], for a target that runs no Python.
    pub fn uses_by(&self, target: &dyn Target) -> Result<Vec<Use>> {
        self.graph.nodes().map(|(n, _)| self.use_by(n, target)).collect()
    }
    /// Uses of ops that a method of a user's backend does not run, although there is one: the node, the argument that the
    /// method cannot be given, and whether it has no parameter for that.
    pub fn passed_over(&self, target: &PythonTarget) -> Result<Vec<(NodeId, &'static str, bool)>> {
        let Some(overlay) = target.overlay.as_deref() else { return Ok(Vec::new()) };
        let mut rows = Vec::new();
        for (n, node) in self.graph.nodes() {
            let Some((argument, is_absent)) = overlay.obstacle(&self.graph, node) else { continue };
            let lowered = lower(&self.single(n, false)?.graph, &Python(target), self.float, &mut |_, _| {})?;
            if !lowered.nodes().any(|(_, part)| part.op.name == node.op.name && overlay.runs(&lowered, part))
            {
                rows.push((n, argument, is_absent));
            }
        }
        Ok(rows)
    }
    fn use_by(&self, n: NodeId, target: &dyn Target) -> Result<Use> {
        let mut used =
            Use { node: n, support: Support::Native, parts: vec![], missing: vec![], referred: vec![] };
        if target.can_lower(&self.graph, n) {
            return Ok(used);
        }
        used.support = Support::Expanded;
        let lowered = lower(&self.single(n, false)?.graph, target, self.float, &mut |_, _| {})?;
        for (part, node) in lowered.nodes() {
            let op = node.op.name;
            match used.parts.iter_mut().find(|(name, _)| *name == op) {
                Some((_, count)) => *count += 1,
                None => used.parts.push((op, 1)),
            }
            let missing = (op, first_dtype(&lowered, node));
            if !target.can_lower(&lowered, part) && !used.missing.contains(&missing) {
                used.missing.push(missing);
                used.support = Support::Missing;
            }
        }
        Ok(used)
    }
    fn use_of(&self, n: NodeId, target: &PythonTarget) -> Result<Use> {
        let how = support(target, &self.graph, n);
        let mut used =
            Use { node: n, support: how, parts: Vec::new(), missing: Vec::new(), referred: Vec::new() };
        let lowered = match how {
            Support::Native => return Ok(used),
            Support::Missing => self.single(n, false)?.graph,
            Support::Expanded => {
                lower(&self.single(n, false)?.graph, &Python(target), self.float, &mut |_, _| {})?
            }
        };
        for (part, node) in lowered.nodes() {
            let op = node.op.name;
            match used.parts.iter_mut().find(|(name, _)| *name == op) {
                Some((_, count)) => *count += 1,
                None => used.parts.push((op, 1)),
            }
            if is_referred(target, &lowered, part) {
                if !used.referred.contains(&op) {
                    used.referred.push(op);
                }
            } else if !can_lower(target, &lowered, part) {
                let missing = (op, first_dtype(&lowered, node));
                if !used.missing.contains(&missing) {
                    used.missing.push(missing);
                }
            }
        }
        if !used.missing.is_empty() {
            used.support = Support::Missing;
        } else if used.support == Support::Missing {
            used.support = Support::Expanded;
        }
        Ok(used)
    }
}

/// How C runs an op, according to its definition.
pub fn op_support_in_c(op: &OpDef) -> Support {
    match op.expand {
        _ if op.loops.is_some() || !matches!(op.lowering.c, LoweringRule::None) => Support::Native,
        Some(_) => Support::Expanded,
        None => Support::Missing,
    }
}

/// How ggml runs an op, as its definition says: an op with neither lowering nor expansion runs on the host.
pub fn op_support_in_ggml(op: &OpDef) -> Support {
    // What only moves elements is a view.
    let is_view = || ops::movement::OPS.iter().any(|moving| moving.name == op.name);
    match op.expand {
        _ if !matches!(op.lowering.ggml, LoweringRule::None) || is_view() => Support::Native,
        Some(_) => Support::Expanded,
        None => Support::Missing,
    }
}

/// Dtype of the first tensor of a node.
pub fn first_dtype(graph: &Graph, node: &Node) -> Option<DType> {
    node.inputs.iter().chain(&node.outputs).find_map(|&v| graph.ty(v)).map(|ty| ty.dtype)
}
