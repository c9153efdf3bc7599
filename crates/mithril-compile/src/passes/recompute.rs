//! Recompute: what the backward half of a gradient reads in the place of intermediate results (gradient
//! checkpointing).
//!
//! The forward half is cut into [`segments`]. When the backward half comes to a segment, it computes it once more
//! from what crosses the cuts, so that everything else can be forgotten after its use in the forward half. What
//! is computed again starts from [`BARRIER`]s behind the cotangent that enters the segment: no pass takes it for
//! equal to the first computation, and no framework moves it forward. Random ops give the same numbers again,
//! since their keys are inputs. The last segment is not computed again: its gradient comes first.

use std::ops::Range;

use mithril_ir::build::Builder;
use mithril_ir::error::Result;
use mithril_ir::graph::{Def, Graph, Node, NodeId, Role, ValueId, Values};
use mithril_ir::ops::order::BARRIER;
use rustc_hash::FxHashMap;

use crate::rewrite::types;
use crate::segments::segments;

/// What is computed again.
#[derive(Debug, Default)]
pub struct Recompute {
    segments: Vec<Range<usize>>,
    /// Whether a value crosses a cut or is an output.
    kept: Vec<bool>,
    /// Position of the segment that the backward half is in.
    current: Option<usize>,
    /// The cotangent that entered it.
    after: Option<ValueId>,
    /// Values of the forward half, and what stands for them in the current segment.
    copies: FxHashMap<ValueId, ValueId>,
}

impl Recompute {
    /// For a graph that is a forward half.
    pub fn new(graph: &Graph) -> Self {
        let mut segments = segments(graph, graph.nodes().len());
        segments.pop();
        let mut kept = vec![false; graph.values().len()];
        for v in graph.outputs.values().chain(graph.updates.iter().map(|(_, v)| v)) {
            kept[v.index()] = true;
        }
        let segment = |n: usize| segments.partition_point(|s| s.end <= n);
        for (n, node) in graph.nodes() {
            for &v in &node.inputs {
                let producer = graph.producer(v);
                kept[v.index()] |=
                    producer.is_some_and(|producer| segment(producer.index()) != segment(n.index()));
            }
        }
        Self { segments, kept, ..Self::default() }
    }

    /// Comes to the gradient of node `n`, of which one output has the cotangent `after`.
    pub fn enter(&mut self, b: &mut Builder, n: NodeId, after: ValueId) -> Result<()> {
        let segment = self.segments.iter().position(|s| s.contains(&n.index()));
        if segment == self.current {
            return Ok(());
        }
        self.copies.clear();
        (self.current, self.after) = (segment, segment.map(|_| after));
        let Some(range) = segment.map(|i| self.segments[i].clone()) else { return Ok(()) };
        for i in range {
            self.copy(b, NodeId::new(i))?;
        }
        Ok(())
    }

    /// Computes a node again, unless its results are kept or depend on parameters and constants alone.
    fn copy(&mut self, b: &mut Builder, n: NodeId) -> Result<()> {
        let node: Node = b.graph.node(n).clone();
        if node.outputs.iter().all(|v| self.kept[v.index()]) {
            return Ok(());
        }
        let inputs = node.inputs.iter().map(|&v| self.read(b, v)).collect::<Result<Values>>()?;
        if inputs == node.inputs {
            return Ok(());
        }
        let place = b.graph.place(n).clone();
        b.set_origin(place);
        let types = types(&b.graph, &node);
        let outputs = b.push_typed(node.op, inputs, types);
        let copied = node.outputs.iter().zip(outputs).filter(|(v, _)| !self.kept[v.index()]);
        self.copies.extend(copied.map(|(&old, new)| (old, new)));
        Ok(())
    }

    /// What stands for a value of the forward half.
    pub fn read(&mut self, b: &mut Builder, v: ValueId) -> Result<ValueId> {
        let Some(after) = self.after else { return Ok(v) };
        if let Some(&copy) = self.copies.get(&v) {
            return Ok(copy);
        }
        let is_made_again = match b.graph.value(v).def {
            Def::Const(_) | Def::Input(Role::Param) => false,
            Def::Input(_) => true,
            Def::Node(..) => self.is_kept(v),
        };
        if !is_made_again {
            return Ok(v);
        }
        let barrier = b.push(&BARRIER, &[v, after])?[0];
        self.copies.insert(v, barrier);
        Ok(barrier)
    }

    fn is_kept(&self, v: ValueId) -> bool {
        self.kept.get(v.index()).copied().unwrap_or(false)
    }
}
