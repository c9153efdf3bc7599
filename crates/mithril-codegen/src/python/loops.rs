//! Finds statements that repeat: the steps of a recurrent network, for instance, which are then written as one loop.
//!
//! A *loop* is a stretch of nodes that is the same code over and over. An operand of an iteration may be
//!
//! - computed in the same iteration, or the same for all iterations;
//! - *carried*: what the iteration before computed, and for the first iteration a value from before the loop;
//! - an *item* of a sequence: a part of an axis, an output of a node of several, or what an earlier loop computed, at an
//!   index that grows or falls by a constant from one iteration to the next.
//!
//! Nothing is assumed about where a loop comes from: it is found in the nodes of the function, and every operand of every
//! iteration is compared.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use mithril_ir::graph::{Def, Node, Role, Values};
use mithril_ir::ops::getitem::axis_index;
use mithril_ir::ops::slicing::{AxisPart, axis_part};
use mithril_ir::{Graph, Lit, NodeId, ValueId};
use rustc_hash::{FxHashMap, FxHashSet, FxHasher};

use super::Function;
use super::foreach::Step;
use super::formulas::Formulas;
use super::function::results;
use super::targets::{Iteration, PythonTarget};
use super::template::Template;

/// A loop spares at least so many statements.
const SPARED: usize = 12;
/// Distances to the next node of the same kind that are tried as a period.
const PERIODS: usize = 4;
/// Nodes compared for each node of the function, at most: beyond, statements stay as they are.
const EFFORT: usize = 64;

/// Statements that repeat.
#[derive(Debug)]
pub struct Loop {
    /// The nodes of each iteration.
    pub iterations: Vec<Vec<NodeId>>,
    /// Where the nodes of the first iteration are in it.
    positions: FxHashMap<NodeId, usize>,
    /// Operands of the first iteration that are carried or items, by node and input.
    pub reads: BTreeMap<(NodeId, usize), Read>,
    /// What is carried: the result of the first iteration that the second reads, and what the first reads in its place.
    pub carried: Vec<(ValueId, ValueId)>,
    /// Nodes of the first iteration whose results are items of a sequence, and are not computed in the loop.
    pub items: Vec<NodeId>,
    /// Results of the first iteration of which all iterations' are read after the loop.
    pub collected: Vec<ValueId>,
    /// Results of the first iteration of which only the last iteration's is read after the loop.
    pub last: Vec<ValueId>,
}

/// An operand that differs between iterations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Read {
    /// What the iteration before computed: a position in [`Loop::carried`].
    Carried(usize),
    /// An item of a sequence, at index `first + step · iteration`.
    Item(Item),
}

/// An item of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Item {
    /// The sequence.
    pub of: Sequence,
    /// Index in the first iteration.
    pub first: i64,
    /// By which the index grows: 1 or −1.
    pub step: i64,
}

/// What an item is one of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sequence {
    /// Parts of an axis of a value.
    Parts(Parts),
    /// Outputs of a node whose code is one call.
    Outputs(NodeId),
    /// Results of an earlier loop: what its first iteration computed.
    Collected(ValueId),
}

/// Parts of an axis, one after the other: part `i` begins at index `offset + i · length`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Parts {
    /// What they are parts of.
    pub source: ValueId,
    /// The axis.
    pub axis: usize,
    /// The number of its indices in a part.
    pub length: i64,
    /// The first index of part 0.
    pub offset: i64,
    /// Whether each is one index, and lacks the axis.
    pub drops_axis: bool,
}

impl Loop {
    /// How often it runs.
    pub fn count(&self) -> usize {
        self.iterations.len()
    }
    /// The nodes that one iteration computes.
    pub fn body(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.iterations[0].iter().copied().filter(|id| !self.items.contains(id))
    }
    /// Values from before the loop that all iterations read, and what sequences consist of.
    pub fn invariants(&self, graph: &Graph) -> Vec<ValueId> {
        let inside = |v: ValueId| graph.producer(v).is_some_and(|id| self.positions.contains_key(&id));
        let (mut all, mut known) = (Vec::new(), FxHashSet::default());
        for id in self.body() {
            for (i, &v) in graph.node(id).inputs.iter().enumerate() {
                let v = match self.reads.get(&(id, i)) {
                    None if graph.lit(v).is_none() && !inside(v) => v,
                    Some(Read::Item(Item { of: Sequence::Parts(Parts { source, .. }), .. })) => *source,
                    _ => continue,
                };
                if known.insert(v) {
                    all.push(v);
                }
            }
        }
        all
    }
    /// The nodes of all iterations whose results are items.
    fn all_items(&self) -> impl Iterator<Item = NodeId> + '_ {
        let positions = || self.items.iter().filter_map(|id| self.positions.get(id));
        self.iterations.iter().flat_map(move |nodes| positions().map(|&at| nodes[at]))
    }
    /// What the iteration `k` has in the place of a result of the first.
    fn result(&self, graph: &Graph, v: ValueId, k: usize) -> Option<ValueId> {
        let id = graph.producer(v)?;
        let output = graph.node(id).outputs.iter().position(|o| *o == v)?;
        graph.node(self.iterations[k][*self.positions.get(&id)?]).outputs.get(output).copied()
    }
    /// That result of each iteration.
    pub fn results(&self, graph: &Graph, v: ValueId) -> Vec<ValueId> {
        (0..self.count()).filter_map(|k| self.result(graph, v, k)).collect()
    }
}

/// The statements of a function, with loops where they repeat.
pub fn schedule(
    target: &PythonTarget,
    function: &Function<'_>,
    live: &[bool],
    templates: &[Option<Template>],
) -> Vec<Step> {
    let graph = function.graph;
    let plain = || graph.nodes().map(|(id, _)| Step::Node(id)).collect();
    if target.overlay.is_some() {
        return plain();
    }
    let is_result = returned(function);
    let formulas = Formulas::of(graph, target, &is_result);
    let mut finder = Finder::new(target, graph, live, templates, &formulas);
    if !finder.has_repeats() {
        return plain();
    }
    finder.find();
    let Finder { mut loops, .. } = finder;
    keep_results(graph, live, &is_result, &mut loops);

    let mut place: FxHashMap<NodeId, usize> = FxHashMap::default();
    for (l, one) in loops.iter().enumerate() {
        place.extend(one.iterations.iter().flatten().map(|id| (*id, l)));
    }
    let last: Vec<NodeId> = loops.iter().filter_map(|l| l.iterations.last()?.last().copied()).collect();
    let mut loops: Vec<Option<Box<Loop>>> = loops.into_iter().map(|l| Some(Box::new(l))).collect();
    let mut steps = Vec::with_capacity(graph.nodes().len());
    for (id, _) in graph.nodes() {
        match place.get(&id) {
            // Constants among the nodes of a loop, and what is an item of a sequence, come before it.
            Some(&l) if last[l] == id => {
                if let Some(one) = loops[l].take() {
                    steps.extend(one.all_items().map(Step::Node));
                    steps.push(Step::Loop(one));
                }
            }
            Some(_) => {}
            None => steps.push(Step::Node(id)),
        }
    }
    steps
}

/// Which values a function returns.
fn returned(function: &Function<'_>) -> Vec<bool> {
    let mut is_result = vec![false; function.graph.values().len()];
    let (dicts, states) = results(function);
    for (_, v) in dicts.iter().flatten().chain(&states) {
        is_result[v.index()] = true;
    }
    is_result
}

/// Notes which results of loops are read after them.
fn keep_results(graph: &Graph, live: &[bool], is_result: &[bool], loops: &mut [Loop]) {
    let mut home: FxHashMap<NodeId, (usize, usize)> = FxHashMap::default();
    for (l, one) in loops.iter().enumerate() {
        for (k, nodes) in one.iterations.iter().enumerate() {
            home.extend(nodes.iter().map(|id| (*id, (l, k))));
        }
    }
    let before: FxHashSet<NodeId> = loops.iter().flat_map(Loop::all_items).collect();
    let mut outside = is_result.to_vec();
    let mut collected: Vec<ValueId> = Vec::new();
    let mut read = |v: ValueId, own: Option<usize>| {
        let producer = graph.producer(v).and_then(|id| home.get(&id));
        if producer.is_some_and(|(l, _)| Some(*l) != own) {
            outside[v.index()] = true;
        }
    };
    for (id, node) in graph.nodes().filter(|(id, _)| live[id.index()]) {
        let own = home.get(&id).filter(|_| !before.contains(&id));
        if own.is_some_and(|(_, k)| *k > 0) {
            // What later iterations read is what the first one reads, carried or an item.
            continue;
        }
        let own = own.map(|(l, _)| *l);
        for (i, &v) in node.inputs.iter().enumerate() {
            match own.and_then(|l| loops[l].reads.get(&(id, i))) {
                Some(Read::Item(Item { of: Sequence::Collected(result), .. })) => collected.push(*result),
                Some(Read::Item(Item { of: Sequence::Parts(Parts { source, .. }), .. })) => {
                    read(*source, own);
                }
                Some(Read::Item(Item { of: Sequence::Outputs(_), .. })) => {}
                Some(Read::Carried(_)) | None => read(v, own),
            }
        }
    }
    for one in loops.iter_mut() {
        let results: Values = one.body().flat_map(|id| graph.node(id).outputs.iter().copied()).collect();
        for v in results {
            let all = one.results(graph, v);
            let Some((last, others)) = all.split_last() else { continue };
            if collected.contains(&v) || others.iter().any(|v| outside[v.index()]) {
                one.collected.push(v);
            } else if outside[last.index()] {
                one.last.push(v);
            }
        }
    }
}

/// Looks for loops, from the first node to the last.
struct Finder<'a> {
    target: &'a PythonTarget,
    graph: &'a Graph,
    templates: &'a [Option<Template>],
    /// The nodes that are statements, in order.
    nodes: Vec<NodeId>,
    /// Where a node is among them.
    position: Vec<Option<usize>>,
    /// What a node computes, whatever its operands are.
    keys: Vec<u64>,
    /// For each node the next ones that compute the same.
    next: Vec<Option<usize>>,
    /// What nodes take that are parts of an axis.
    parts: FxHashMap<NodeId, AxisPart>,
    /// Of results of loops: that of the first iteration, and the iteration.
    items: FxHashMap<ValueId, (ValueId, i64)>,
    loops: Vec<Loop>,
    effort: usize,
}

impl<'a> Finder<'a> {
    fn new(
        target: &'a PythonTarget,
        graph: &'a Graph,
        live: &[bool],
        templates: &'a [Option<Template>],
        formulas: &Formulas,
    ) -> Self {
        let is_statement =
            |(id, node): &(NodeId, &Node)| live[id.index()] && !node.outputs.iter().any(|v| formulas.has(*v));
        let mut is_fixed: Vec<bool> = graph
            .values()
            .map(|(_, value)| matches!(value.def, Def::Const(_) | Def::Input(Role::Param)))
            .collect();
        let mut parts: FxHashMap<NodeId, AxisPart> = FxHashMap::default();
        let mut keyed: Vec<(NodeId, u64, bool)> = Vec::new();
        for (id, node) in graph.nodes().filter(is_statement) {
            let fixed = node.inputs.iter().all(|v| is_fixed[v.index()]);
            node.outputs.iter().for_each(|v| is_fixed[v.index()] = fixed);
            parts.extend(part_of(graph, node).map(|part| (id, part)));
            keyed.push((id, key(graph, id, templates, parts.get(&id)), fixed));
        }
        // What follows from parameters alone is the same for all iterations, and may stand in the first one; but the first
        // iteration may compute from constants what others compute from what is carried.
        let varying: FxHashSet<u64> =
            keyed.iter().filter(|(.., fixed)| !fixed).map(|(_, key, _)| *key).collect();
        // Nothing that reads what a loop computes may stand before it.
        let mut is_kept = vec![false; graph.values().len()];
        keyed.retain(|(id, key, fixed)| {
            let node = graph.node(*id);
            let keeps = !fixed || varying.contains(key) || node.inputs.iter().any(|v| is_kept[v.index()]);
            node.outputs.iter().for_each(|v| is_kept[v.index()] = keeps);
            keeps
        });
        let nodes: Vec<NodeId> = keyed.iter().map(|(id, ..)| *id).collect();
        let keys: Vec<u64> = keyed.iter().map(|(_, key, _)| *key).collect();
        let mut position = vec![None; graph.nodes().len()];
        for (at, id) in nodes.iter().enumerate() {
            position[id.index()] = Some(at);
        }
        let mut next = vec![None; nodes.len()];
        let mut latest: FxHashMap<u64, usize> = FxHashMap::default();
        for (at, key) in keys.iter().enumerate().rev() {
            next[at] = latest.insert(*key, at);
        }
        let effort = EFFORT * nodes.len();
        Self {
            target,
            graph,
            templates,
            nodes,
            position,
            keys,
            next,
            parts,
            items: FxHashMap::default(),
            loops: Vec::new(),
            effort,
        }
    }
    /// Whether enough nodes are alike for a loop.
    fn has_repeats(&self) -> bool {
        self.next.iter().flatten().count() >= SPARED
    }
    fn find(&mut self) {
        let mut at = 0;
        while at < self.nodes.len() && self.effort > 0 {
            let Some((period, end)) = self.longest(at) else {
                at += 1;
                continue;
            };
            // Parts alone are no statements of a loop.
            if self.nodes[at..end].iter().all(|id| self.parts.contains_key(id)) {
                at = end;
                continue;
            }
            match self.within(at, period, end) {
                Some((one, end)) => {
                    self.accept(one);
                    at = end;
                }
                None => at += 1,
            }
        }
    }
    fn accept(&mut self, one: Loop) {
        for (k, nodes) in one.iterations.iter().enumerate() {
            for (first, id) in one.iterations[0].iter().zip(nodes) {
                let pairs = self.graph.node(*first).outputs.iter().zip(&self.graph.node(*id).outputs);
                self.items.extend(pairs.map(|(first, v)| (*v, (*first, k as i64))));
            }
        }
        self.loops.push(one);
    }
    /// How often iterations have to run for a loop.
    fn fewest(&self) -> usize {
        match self.target.iteration {
            Iteration::Statement => 4,
            // Compilers do more with the code of a few iterations.
            Iteration::Scan => 16,
        }
    }
    /// The period with which most nodes from `start` on repeat, and where they cease to.
    fn longest(&mut self, start: usize) -> Option<(usize, usize)> {
        let mut best: Option<(usize, usize)> = None;
        let mut other = self.next[start];
        for _ in 0..PERIODS {
            let Some(at) = other else { break };
            let period = at - start;
            let mut end = start;
            while end + period < self.nodes.len() && self.repeats(start, end, period) {
                end += 1;
            }
            self.effort = self.effort.saturating_sub(end - start + 1);
            end += period;
            let count = (end - start) / period;
            let spared = (count.saturating_sub(1)) * period;
            let is_better = best.is_none_or(|(p, e)| (e - start) / p * p < count * period);
            if count >= self.fewest() && spared >= SPARED && is_better {
                best = Some((period, end));
            }
            other = self.next[at];
        }
        best
    }
    /// Whether the node a period after `at` computes the same from corresponding operands.
    fn repeats(&self, start: usize, at: usize, period: usize) -> bool {
        if self.keys[at] != self.keys[at + period] {
            return false;
        }
        let (a, b) = (self.graph.node(self.nodes[at]), self.graph.node(self.nodes[at + period]));
        let is_part = self.parts.contains_key(&self.nodes[at]);
        let is_alike = |(&x, &y): (&ValueId, &ValueId)| {
            let (lit, other) = (self.graph.lit(x), self.graph.lit(y));
            if x == y || is_part && lit.is_some() || lit.is_some() && lit == other {
                return true;
            }
            let (from, to) = (self.place(x), self.place(y));
            let is_shifted = match (from, to) {
                (Some((p, i)), Some((q, j))) => i == j && q == p + period,
                _ => false,
            };
            // What the first iteration reads in the place of an earlier one's result.
            let is_first =
                at < start + period && to.is_some_and(|(q, _)| (start..start + period).contains(&q));
            is_shifted || is_first || self.sequence_pair(x, y).is_some()
        };
        a.inputs.len() == b.inputs.len() && a.inputs.iter().zip(&b.inputs).all(is_alike)
    }
    /// Position of the node that computes a value, and which of its outputs it is.
    fn place(&self, v: ValueId) -> Option<(usize, usize)> {
        let id = self.graph.producer(v)?;
        let output = self.graph.node(id).outputs.iter().position(|o| *o == v)?;
        Some((self.position[id.index()]?, output))
    }
    /// The sequence of which two values are neighbouring items, with their indices.
    fn sequence_pair(&self, x: ValueId, y: ValueId) -> Option<(Sequence, i64, i64)> {
        if self.graph.ty(x) != self.graph.ty(y) {
            return None;
        }
        let (m, n) = (self.graph.producer(x)?, self.graph.producer(y)?);
        self.parts_pair(m, n).or_else(|| self.outputs_pair(x, y)).or_else(|| {
            let (a, i) = self.items.get(&x)?;
            let (b, j) = self.items.get(&y)?;
            (a == b && (j - i).abs() == 1).then_some((Sequence::Collected(*a), *i, *j))
        })
    }
    fn parts_pair(&self, m: NodeId, n: NodeId) -> Option<(Sequence, i64, i64)> {
        let (a, b) = (self.parts.get(&m)?, self.parts.get(&n)?);
        let source = *self.graph.node(m).inputs.first()?;
        let is_same = self.graph.node(n).inputs.first() == Some(&source) && a.is_like(b);
        if !is_same || a.length == 0 || (b.start - a.start).abs() != a.length {
            return None;
        }
        let AxisPart { axis, length, drops_axis, .. } = *a;
        let offset = a.start.rem_euclid(length);
        let of = Sequence::Parts(Parts { source, axis, length, offset, drops_axis });
        Some((of, a.start.div_euclid(length), b.start.div_euclid(length)))
    }
    fn outputs_pair(&self, x: ValueId, y: ValueId) -> Option<(Sequence, i64, i64)> {
        let node = self.graph.producer(x).filter(|m| self.graph.producer(y) == Some(*m))?;
        let (i, j) = (self.place(x)?.1 as i64, self.place(y)?.1 as i64);
        let outputs = self.graph.node(node).outputs.len();
        let is_call = self.templates[node.index()].as_ref()?.items(outputs).is_none();
        (is_call && (j - i).abs() == 1).then_some((Sequence::Outputs(node), i, j))
    }
    /// The longest loop with this period among the nodes from `start` to `end`, and where it ends.
    fn within(&mut self, start: usize, period: usize, end: usize) -> Option<(Loop, usize)> {
        let mut best: Option<(Loop, usize)> = None;
        for phase in 0..period {
            let first = start + phase;
            let mut count = (end - first) / period;
            let mut begin = first;
            // Iterations that differ from the others can only be the first or the last ones.
            while count >= self.fewest() && (count - 1) * period >= SPARED && self.effort > 0 {
                self.effort = self.effort.saturating_sub(count * period / 8);
                match self.looped(begin, period, count) {
                    Ok(one) if one.body().next().is_none() => break,
                    Ok(one) => {
                        let rank = |l: &Loop| (l.count(), std::cmp::Reverse(l.carried.len()));
                        if best.as_ref().is_none_or(|(known, _)| rank(known) < rank(&one)) {
                            best = Some((one, begin + count * period));
                        }
                        break;
                    }
                    Err(k) if k * 2 <= count => {
                        begin += (k + 1) * period;
                        count -= k + 1;
                    }
                    Err(k) => count = k,
                }
            }
        }
        best
    }
    /// The loop of `count` iterations from a node on, or the first iteration that reads otherwise than the others.
    fn looped(&self, start: usize, period: usize, count: usize) -> Result<Loop, usize> {
        let graph = self.graph;
        let node = |k: usize, q: usize| graph.node(self.nodes[start + k * period + q]);
        let mut one = Loop {
            iterations: (0..count)
                .map(|k| self.nodes[start + k * period..start + (k + 1) * period].to_vec())
                .collect(),
            positions: FxHashMap::default(),
            reads: BTreeMap::new(),
            carried: Vec::new(),
            items: Vec::new(),
            collected: Vec::new(),
            last: Vec::new(),
        };
        for q in 0..period {
            if let Some(k) = (1..count).find(|&k| !self.is_same_code(start + q, start + k * period + q)) {
                return Err(k);
            }
            let id = one.iterations[0][q];
            if self.parts.contains_key(&id) {
                let v = node(0, q).outputs[0];
                let all: Vec<ValueId> = (0..count).map(|k| node(k, q).outputs[0]).collect();
                if self.item(start, v, &all).is_ok() {
                    one.items.push(id);
                    continue;
                }
                let bounds = |k: usize| self.parts.get(&one.iterations[k][q]).map(|part| part.start);
                if let Some(k) = (1..count).find(|&k| bounds(k) != bounds(0)) {
                    return Err(k);
                }
            }
            let is_part = self.parts.contains_key(&id);
            for i in 0..node(0, q).inputs.len() {
                if is_part && i > 0 {
                    continue;
                }
                let all: Vec<ValueId> =
                    (0..count).filter_map(|k| node(k, q).inputs.get(i).copied()).collect();
                if all.len() < count {
                    return Err(1);
                }
                if let Some(read) = self.read(start, period, &all, &mut one.carried)? {
                    one.reads.insert((id, i), read);
                }
            }
        }
        one.positions = one.iterations[0].iter().enumerate().map(|(at, id)| (*id, at)).collect();
        Ok(one)
    }
    /// Whether two nodes are the same code, but for what their operands are and where parts begin.
    fn is_same_code(&self, a: usize, b: usize) -> bool {
        let (a, b) = (self.nodes[a], self.nodes[b]);
        let (x, y) = (self.graph.node(a), self.graph.node(b));
        let types = |values: &Values| -> Vec<_> { values.iter().map(|v| self.graph.ty(*v)).collect() };
        let text = |id: NodeId| self.templates[id.index()].as_ref().map(Template::text);
        let is_same_text = match (self.parts.get(&a), self.parts.get(&b)) {
            (Some(a), Some(b)) => a.is_like(b),
            (None, None) => text(a) == text(b),
            _ => false,
        };
        x.op == y.op && is_same_text && types(&x.outputs) == types(&y.outputs)
    }
    /// How the iterations read an operand, given its values; `None` if it is written as the first one's.
    fn read(
        &self,
        start: usize,
        period: usize,
        all: &[ValueId],
        carried: &mut Vec<(ValueId, ValueId)>,
    ) -> Result<Option<Read>, usize> {
        let graph = self.graph;
        let first_wrong =
            |is_right: &dyn Fn(usize) -> bool| (0..all.len()).find(|&k| !is_right(k)).map_or(Ok(()), Err);
        if graph.lit(all[1]).is_some() {
            first_wrong(&|k| graph.lit(all[k]) == graph.lit(all[1]))?;
            return Ok(None);
        }
        // The second and third iteration show what it is.
        let (x, y) = (all[1], all[2]);
        if x == y {
            let is_before = self.place(x).is_none_or(|(at, _)| at < start);
            first_wrong(&|k| is_before && all[k] == x)?;
            return Ok(None);
        }
        if let Ok(item) = self.item(start, all[0], all) {
            return Ok(Some(Read::Item(item)));
        }
        if self.sequence_pair(x, y).is_some() {
            return self.item(start, all[0], all).map(|item| Some(Read::Item(item)));
        }
        let Some((at, output)) = self.place(x) else { return Err(1) };
        let of = |k: usize| start + k * period;
        if (of(1)..of(2)).contains(&at) {
            first_wrong(&|k| self.place(all[k]) == Some((at + k * period - period, output)))?;
            return Ok(None);
        }
        if !(of(0)..of(1)).contains(&at) {
            return Err(1);
        }
        let initial = all[0];
        // A number has no size of its own.
        let is_array = graph.lit(initial).is_none_or(|lit| matches!(lit, Lit::Tensor(t) if t.rank() > 0));
        let is_initial = is_array
            && graph.ty(initial) == graph.ty(x)
            && self.place(initial).is_none_or(|(at, _)| at < start);
        first_wrong(&|k| match k {
            0 => is_initial,
            k => self.place(all[k]) == Some((at + (k - 1) * period, output)),
        })?;
        let pair = (x, initial);
        let known = carried.iter().position(|c| *c == pair);
        Ok(Some(Read::Carried(known.unwrap_or_else(|| {
            carried.push(pair);
            carried.len() - 1
        }))))
    }
    /// The items that these values are, or the first one that is none.
    fn item(&self, start: usize, first: ValueId, all: &[ValueId]) -> Result<Item, usize> {
        let (of, i, j) = self.sequence_pair(all[1], all[2]).ok_or(1_usize)?;
        let step = j - i;
        let is_before = match of {
            Sequence::Parts(Parts { source, .. }) => self.place(source).is_none_or(|(at, _)| at < start),
            Sequence::Outputs(node) => {
                let is_inside = self.graph.node(node).outputs.iter().any(|v| self.items.contains_key(v));
                !is_inside && self.position[node.index()].is_some_and(|at| at < start)
            }
            Sequence::Collected(_) => true,
        };
        if !is_before {
            return Err(1);
        }
        let (_, index, _) =
            self.sequence_pair(first, all[1]).filter(|(o, a, b)| *o == of && b - a == step).ok_or(0_usize)?;
        for (k, pair) in all.windows(2).enumerate().skip(1) {
            let fits = self.sequence_pair(pair[0], pair[1]).is_some_and(|(o, a, b)| o == of && b - a == step);
            if !fits {
                return Err(k + 1);
            }
        }
        Ok(Item { of, first: index, step })
    }
}

/// What a node takes of one axis.
fn part_of(graph: &Graph, node: &Node) -> Option<AxisPart> {
    axis_part(graph, node).or_else(|| axis_index(graph, node))
}

/// What a node computes, whatever its operands are; of parts of an axis also whatever their bounds are.
fn key(graph: &Graph, id: NodeId, templates: &[Option<Template>], part: Option<&AxisPart>) -> u64 {
    let node = graph.node(id);
    let mut hasher = FxHasher::default();
    (std::ptr::from_ref(node.op), node.inputs.len()).hash(&mut hasher);
    match part {
        Some(part) => {
            (part.axis, part.length, part.drops_axis).hash(&mut hasher);
            node.inputs.first().and_then(|v| graph.ty(*v)).hash(&mut hasher);
        }
        None => templates[id.index()].as_ref().map(Template::text).hash(&mut hasher),
    }
    for &v in &node.outputs {
        graph.ty(v).hash(&mut hasher);
    }
    hasher.finish()
}
