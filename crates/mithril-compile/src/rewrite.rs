//! Rewriting: every pass copies the old graph into a new one and changes what it came to change.

use mithril_ir::build::Builder;
use mithril_ir::error::{Error, Result};
use mithril_ir::graph::{Def, Graph, Node, NodeId, Role, TensorType, ValueId, Values};
use mithril_ir::literal::Lit;
use mithril_ir::op::OpDef;
use mithril_ir::{DType, Place};

/// An old graph on its way into a new one.
#[derive(Debug)]
pub struct Rewrite<'g> {
    old: &'g Graph,
    /// Builds the new graph.
    pub builder: Builder,
    map: Vec<Option<ValueId>>,
}

impl<'g> Rewrite<'g> {
    /// Starts with the inputs of the old graph, in the same order.
    pub fn new(old: &'g Graph, float: DType) -> Self {
        let mut rewrite = Self { old, builder: Builder::new(float), map: vec![None; old.values().len()] };
        for &v in &old.inputs {
            let value = old.value(v);
            if let (Def::Input(role), Some(ty)) = (&value.def, &value.ty) {
                let name = value.name.clone().unwrap_or_else(|| "input".into());
                let new = rewrite.builder.graph.add_input(name, *role, ty.clone());
                rewrite.map[v.index()] = Some(new);
            }
        }
        rewrite
    }
    /// The new value of an old one.
    pub fn get(&mut self, v: ValueId) -> Result<ValueId> {
        if let Some(new) = self.map[v.index()] {
            return Ok(new);
        }
        match self.old.lit(v) {
            Some(lit) => {
                let new = self.builder.graph.add_literal(lit.clone());
                self.map[v.index()] = Some(new);
                Ok(new)
            }
            None => Err(Error::internal(format!("value {} is used before it is rewritten", v.index()))),
        }
    }
    /// The new values of the inputs of an old node.
    pub fn inputs(&mut self, node: &Node) -> Result<Values> {
        node.inputs.iter().map(|&v| self.get(v)).collect()
    }
    /// Says what stands for an old value from now on. The new value inherits its name.
    pub fn set(&mut self, old: ValueId, new: ValueId) {
        if let Some(name) = &self.old.value(old).name
            && self.builder.graph.lit(new).is_none()
        {
            self.builder.graph.name_value(new, name.clone());
        }
        self.map[old.index()] = Some(new);
    }
    /// Says what stands for the outputs of an old node.
    pub fn set_outputs(&mut self, node: &Node, new: &[ValueId]) {
        for (&old, &new) in node.outputs.iter().zip(new) {
            self.set(old, new);
        }
    }
    /// Makes nodes that follow belong to the place of an old node.
    pub fn at(&mut self, n: NodeId) {
        let place: &Place = self.old.place(n);
        self.builder.set_origin(place.clone());
    }
    /// Copies an old node as it is.
    pub fn copy(&mut self, n: NodeId) -> Result<Values> {
        self.at(n);
        let node = self.old.node(n);
        let inputs = self.inputs(node)?;
        let outputs = self.builder.push_typed(node.op, inputs, types(self.old, node));
        self.set_outputs(node, &outputs);
        Ok(outputs)
    }
    /// Outputs and updates of the old graph, and the new graph is done.
    pub fn finish(mut self) -> Result<Graph> {
        for (name, &v) in &self.old.outputs {
            let new = self.get(v)?;
            self.builder.graph.outputs.insert(name.clone(), new);
        }
        for &(input, value) in &self.old.updates {
            let update = (self.get(input)?, self.get(value)?);
            self.builder.graph.updates.push(update);
        }
        Ok(self.builder.graph)
    }
}

/// Types of the outputs of a node.
pub fn types(graph: &Graph, node: &Node) -> Vec<TensorType> {
    node.outputs.iter().filter_map(|&v| graph.ty(v)).cloned().collect()
}

/// Adds a node of an expansion: op, inputs and the types of the outputs.
pub type AddNode<'a> =
    dyn FnMut(&mut Builder, &'static OpDef, Values, Vec<TensorType>) -> Result<Values> + 'a;

/// Adds the expansion of a use of `op`; what it expands to is added by `place`, which may expand further.
pub fn inline(
    builder: &mut Builder,
    op: &'static OpDef,
    inputs: &[ValueId],
    place: &mut AddNode<'_>,
) -> Result<Values> {
    let mut scratch = Builder::new(builder.float);
    let args: Values = inputs
        .iter()
        .map(|&v| match (builder.graph.lit(v), builder.graph.ty(v)) {
            (None, Some(ty)) => scratch.graph.add_input("x", Role::Data, ty.clone()),
            (lit, _) => scratch.graph.add_literal(lit.cloned().unwrap_or(Lit::None)),
        })
        .collect();
    let results = scratch.expand(op, &args)?;
    let graph = scratch.graph;
    let mut map: Vec<Option<ValueId>> = vec![None; graph.values().len()];
    for (arg, &v) in args.iter().zip(inputs) {
        map[arg.index()] = Some(v);
    }
    let get = |builder: &mut Builder, map: &[Option<ValueId>], v: ValueId| {
        map[v.index()]
            .or_else(|| graph.lit(v).map(|lit| builder.graph.add_literal(lit.clone())))
            .ok_or_else(|| Error::internal(format!("the expansion of {} uses a value too early", op.name)))
    };
    for (_, node) in graph.nodes() {
        let inputs = node.inputs.iter().map(|&v| get(builder, &map, v)).collect::<Result<Values>>()?;
        let outputs = place(builder, node.op, inputs, types(&graph, node))?;
        for (&old, &new) in node.outputs.iter().zip(&outputs) {
            map[old.index()] = Some(new);
        }
    }
    results.iter().map(|&v| get(builder, &map, v)).collect()
}
