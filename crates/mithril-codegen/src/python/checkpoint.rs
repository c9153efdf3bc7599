//! Gradient checkpointing by the framework: segments of a graph become functions of their own, which the framework
//! calls again when it differentiates, so that it need not keep what they compute on the way.
//!
//! ```python
//! def segment_1(input_, weight):
//!     return torch.tanh(input_ @ weight),
//!
//! def evaluate(params, data, state):
//!     hidden, = torch.utils.checkpoint.checkpoint(segment_1, data["input"], params["weight"], ...)
//! ```

use std::ops::Range;
use std::sync::Arc;

use mithril_ir::dim::Symbol;
use mithril_ir::graph::{Def, Role, TensorType, Values};
use mithril_ir::lowering::LoweringCx;
use mithril_ir::lowering::{Lowering, LoweringRule};
use mithril_ir::op::{Attr, BLANK, DefaultLit, OpDef, attr, variadic};
use mithril_ir::rules::Attrs;
use mithril_ir::{Dim, Error, Graph, Lit, NodeId, Place, Result, ValueId};
use rustc_hash::{FxHashMap, FxHashSet};

use super::targets::PythonTarget;
use super::template::{self, Template};
use super::{EVALUATE, Function, Results, Source, writer};

/// A call of a segment. Writers alone know it: it stands in no graph that a pass sees.
static CALL: OpDef = OpDef {
    name: "checkpoint",
    doc: "The results of the function `function`, which is called again when it is differentiated.",
    ports: &[attr("function", Attr::Text, DefaultLit::Required), variadic("inputs")],
    outputs: &["first", "further"],
    lowering: Lowering {
        torch: LoweringRule::Function(|c| {
            let (name, inputs) = call(c)?;
            // Random numbers of ours follow from keys.
            let options = "use_reentrant=False, preserve_rng_state=False";
            Some(format!("torch.utils.checkpoint.checkpoint({name}, {inputs}, {options})"))
        }),
        jax: LoweringRule::Function(|c| {
            call(c).map(|(name, inputs)| format!("jax.checkpoint({name})({inputs})"))
        }),
        mlx: LoweringRule::Function(|c| {
            call(c).map(|(name, inputs)| format!("mx.checkpoint({name})({inputs})"))
        }),
        ..Lowering::NONE
    },
    ..BLANK
};

fn call(c: &LoweringCx<'_>) -> Option<(String, String)> {
    let Lit::Str(name) = c.lit(0) else { return None };
    Some((name.to_string(), c.args[1..].join(", ")))
}

/// Writes `evaluate` with all segments but the last checkpointed; they come before it in the module. `segments`
/// cover the nodes of the graph.
pub fn module(
    target: &PythonTarget,
    graph: &Graph,
    segments: &[Range<usize>],
    device: &str,
) -> Result<Source> {
    let whole = evaluate(graph);
    // A lowering may depend on who reads the results, which a segment does not know.
    let mut lowered = writer::lower_all(target, std::slice::from_ref(&whole))?.pop().unwrap_or_default();
    let readers = readers(graph);
    let mut main = Copied::new(graph);
    for &v in &graph.inputs {
        main.input(v);
    }
    let mut parts: Vec<(String, Graph)> = Vec::new();
    let mut templates: Vec<Vec<Option<Template>>> = Vec::new();
    let last = segments.last().cloned().unwrap_or_default();
    let rest = lowered.split_off(last.start);
    let mut lowered = lowered.into_iter();
    for segment in &segments[..segments.len().saturating_sub(1)] {
        let name = format!("segment_{}", parts.len() + 1);
        let (inputs, outputs) = (read_by(graph, segment), results_of(graph, segment, &readers));
        main.call(&name, &inputs, &outputs)?;
        parts.push((name, part(graph, segment, &inputs, &outputs)?));
        templates.push(lowered.by_ref().take(segment.len()).collect());
    }
    let calls = main.new.nodes().map(|(call, _)| template::lower(target, &main.new, call));
    templates.push(calls.chain(rest).collect());
    main.finish(last)?;
    let part = |(name, graph)| Function {
        name,
        graph,
        arguments: &[],
        results: Results::Tuple,
        donated: &[],
        foreach: false,
    };
    let mut functions: Vec<Function<'_>> = parts.iter().map(|(name, graph)| part((name, graph))).collect();
    functions.push(evaluate(&main.new));
    writer::written(target, &functions, templates, device)
}

fn evaluate(graph: &Graph) -> Function<'_> {
    Function {
        name: "evaluate",
        graph,
        arguments: EVALUATE,
        results: Results::Dict,
        donated: &[],
        foreach: false,
    }
}

/// The graph of a segment as a function of what it reads.
fn part(graph: &Graph, segment: &Range<usize>, inputs: &[ValueId], outputs: &[ValueId]) -> Result<Graph> {
    let mut copied = Copied::new(graph);
    for &v in inputs {
        copied.input(v);
    }
    for n in segment.clone() {
        copied.node(NodeId::new(n))?;
    }
    for (i, &v) in outputs.iter().enumerate() {
        let new = copied.get(v)?;
        copied.new.name_value(new, copied.name(v));
        copied.new.outputs.insert(i.to_string().into(), new);
    }
    Ok(copied.new)
}

/// For each value the last node that reads it; outputs are read after all nodes.
fn readers(graph: &Graph) -> Vec<usize> {
    let mut readers = vec![0; graph.values().len()];
    for (n, node) in graph.nodes() {
        for v in &node.inputs {
            readers[v.index()] = n.index();
        }
    }
    for v in graph.outputs.values().chain(graph.updates.iter().map(|(_, value)| value)) {
        readers[v.index()] = usize::MAX;
    }
    readers
}

/// What nodes of a segment make and others read.
fn results_of(graph: &Graph, segment: &Range<usize>, readers: &[usize]) -> Vec<ValueId> {
    let outputs = segment.clone().flat_map(|n| graph.node(NodeId::new(n)).outputs.iter().copied());
    outputs.filter(|v| readers[v.index()] >= segment.end).collect()
}

/// What a segment reads and does not make, in order, with inputs that tell the sizes it speaks of.
fn read_by(graph: &Graph, segment: &Range<usize>) -> Vec<ValueId> {
    let is_inside = |v| graph.producer(v).is_some_and(|n| segment.contains(&n.index()));
    let nodes = || segment.clone().map(|n| graph.node(NodeId::new(n)));
    let mut read: Vec<ValueId> = Vec::new();
    for &v in nodes().flat_map(|node| &node.inputs) {
        if graph.lit(v).is_none() && !is_inside(v) && !read.contains(&v) {
            read.push(v);
        }
    }
    let mut told: FxHashSet<Symbol> = FxHashSet::default();
    for &v in &read {
        told.extend(plain_symbols(graph, v));
    }
    let mut spoken: Vec<Symbol> = Vec::new();
    for shape in nodes().flat_map(|node| &node.outputs).filter_map(|&v| graph.ty(v)).map(|ty| &ty.shape) {
        shape.iter().for_each(|d| d.each_symbol(&mut |s| spoken.push(s.clone())));
    }
    for symbol in spoken {
        if told.contains(&symbol) {
            continue;
        }
        let teller = graph.inputs.iter().find(|&&v| plain_symbols(graph, v).any(|s| s == symbol));
        if let Some(&v) = teller {
            told.extend(plain_symbols(graph, v));
            read.push(v);
        }
    }
    read
}

fn plain_symbols(graph: &Graph, v: ValueId) -> impl Iterator<Item = Symbol> + '_ {
    graph.ty(v).into_iter().flat_map(|ty| ty.shape.iter()).filter_map(Dim::as_symbol).cloned()
}

/// A part of an old graph, copied.
struct Copied<'g> {
    old: &'g Graph,
    new: Graph,
    map: FxHashMap<ValueId, ValueId>,
}

impl<'g> Copied<'g> {
    fn new(old: &'g Graph) -> Self {
        Self { old, new: Graph::new(), map: FxHashMap::default() }
    }
    /// Makes a value an input: of its role, or data if it is computed.
    fn input(&mut self, v: ValueId) {
        let role = if let Def::Input(role) = self.old.value(v).def { role } else { Role::Data };
        if let Some(ty) = self.old.ty(v) {
            let new = self.new.add_input(self.name(v), role, ty.clone());
            self.map.insert(v, new);
        }
    }
    fn get(&mut self, v: ValueId) -> Result<ValueId> {
        match (self.map.get(&v), self.old.lit(v)) {
            (Some(&new), _) => Ok(new),
            (None, Some(lit)) => Ok(self.new.add_literal(lit.clone())),
            (None, None) => Err(Error::internal(format!("value {} is in no segment", v.index()))),
        }
    }
    fn node(&mut self, n: NodeId) -> Result<()> {
        let node = self.old.node(n);
        let inputs = node.inputs.iter().map(|&v| self.get(v)).collect::<Result<Values>>()?;
        self.add(node.op, inputs, &node.outputs, self.old.place(n).clone());
        Ok(())
    }
    /// Adds the last segment, outputs and updates.
    fn finish(&mut self, last: Range<usize>) -> Result<()> {
        for n in last {
            self.node(NodeId::new(n))?;
        }
        for (name, &v) in &self.old.outputs {
            let new = self.get(v)?;
            self.new.outputs.insert(name.clone(), new);
        }
        for &(state, value) in &self.old.updates {
            let update = (self.get(state)?, self.get(value)?);
            self.new.updates.push(update);
        }
        Ok(())
    }
    /// Adds a call of a segment.
    fn call(&mut self, name: &str, inputs: &[ValueId], outputs: &[ValueId]) -> Result<()> {
        let mut args = Values::from_slice(&[self.new.add_literal(Lit::text(name))]);
        for &v in inputs {
            args.push(self.get(v)?);
        }
        self.add(&CALL, args, outputs, Place::default());
        Ok(())
    }
    fn add(&mut self, op: &'static OpDef, inputs: Values, outputs: &[ValueId], place: Place) {
        let origin = self.new.add_origin(place);
        let types: Vec<TensorType> = outputs.iter().filter_map(|&v| self.old.ty(v)).cloned().collect();
        let node = self.new.add_node(op, inputs, types, origin);
        let results = self.new.node(node).outputs.clone();
        for (&old, new) in outputs.iter().zip(results) {
            if let Some(name) = &self.old.value(old).name {
                self.new.name_value(new, name.clone());
            } else if op == &CALL {
                self.new.name_value(new, self.name(old));
            }
            self.map.insert(old, new);
        }
    }
    /// The name of a value, or one that says what it is.
    fn name(&self, v: ValueId) -> Arc<str> {
        let value = self.old.value(v);
        let named = value.name.clone();
        named.unwrap_or_else(|| match self.old.producer(v) {
            Some(n) => {
                let path = self.old.place(n).path.as_deref().unwrap_or_default();
                format!("{path}.{}", self.old.node(n).op.name).into()
            }
            None => "value".into(),
        })
    }
}
