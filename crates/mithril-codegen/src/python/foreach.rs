//! Like ops on many tensors in one call: a step of an optimizer does the same to each parameter, and PyTorch has
//! functions that take lists (`torch._foreach_add`), which start a kernel for many tensors instead of one for each.
//!
//! Nodes form a group if they are the same op, at the same depth of the graph, with operands that are alike. Nodes at the
//! same depth do not depend on each other, so that a group can be computed at once, and groups on no group in a circle.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use mithril_ir::lowering::is_list;
use mithril_ir::{DType, Graph, Lit, NodeId, ValueId};
use rustc_hash::{FxHashMap, FxHashSet};

use super::donation::Donations;
use super::function::reads;
use super::loops::Loop;
use super::targets::PythonTarget;
use super::template::{self, Lists, Template};
use super::{Function, release};

/// On a CPU, what a call writes should still be in its caches when the next one reads it.
const CPU_BYTES: f64 = (1 << 19) as f64;
/// Elsewhere it is starting kernels that costs; a list takes no more memory than this.
const DEVICE_BYTES: f64 = (1 << 28) as f64;

/// What a statement computes.
#[derive(Debug)]
pub enum Step {
    /// A node by itself.
    Node(NodeId),
    /// Nodes in one call.
    Group(Group),
    /// Nodes in a loop.
    Loop(Box<Loop>),
}

/// Nodes that are computed in one call.
#[derive(Debug)]
pub struct Group {
    /// The nodes, in order of the graph.
    pub nodes: Vec<NodeId>,
    /// The call, written for the first of them.
    pub template: Template,
    /// Whether it may write into the list that is its first operand, which nothing else reads.
    pub in_place: bool,
    /// What is in the memory of the first result in the end, which gives the list its name.
    pub last: ValueId,
}

/// What an operand is to the nodes of a group.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Operand {
    /// One tensor for each node.
    List,
    /// A tensor without dimensions, the same for all.
    Shared(usize),
    /// A number.
    Literal(String),
}

/// What the nodes of a group have in common.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Signature {
    depth: usize,
    text: String,
    dtype: &'static str,
    operands: Vec<Operand>,
}

/// The order in which the live nodes of a function are computed, those that are alike in groups.
pub fn schedule(target: &PythonTarget, function: &Function<'_>, live: &[bool], device: &str) -> Vec<Step> {
    let graph = function.graph;
    let is_live = |id: &NodeId| live[id.index()];
    let mut templates: FxHashMap<NodeId, Template> = FxHashMap::default();
    let mut alike: BTreeMap<Signature, Vec<NodeId>> = BTreeMap::new();
    let depths = depths(graph);
    let on_cpu = device == "cpu";
    let donations = Donations::of(function, live);
    for id in graph.nodes().map(|(id, _)| id).filter(is_live) {
        let inputs = &graph.node(id).inputs;
        let donated: Vec<usize> = (0..inputs.len()).filter(|&i| donations.has(inputs[i])).collect();
        let lists = Lists { on_cpu, donated: &donated };
        let Some(template) = template::lower_foreach(target, graph, id, lists) else { continue };
        if let Some(signature) = signature(graph, id, &template, depths[id.index()]) {
            alike.entry(signature).or_default().push(id);
            templates.insert(id, template);
        }
    }
    let limit = if on_cpu { CPU_BYTES } else { DEVICE_BYTES };
    let several = alike.into_values().filter(|nodes| nodes.len() > 1);
    let mut groups: Vec<Vec<NodeId>> = several.flat_map(|nodes| pieces(graph, &nodes, limit)).collect();
    let grouped: FxHashSet<NodeId> = groups.iter().flatten().copied().collect();
    let count = groups.len();
    groups.extend(
        graph.nodes().map(|(id, _)| id).filter(is_live).filter(|id| !grouped.contains(id)).map(|id| vec![id]),
    );

    let reads = reads(function, live);
    let mut lists: FxHashSet<Vec<ValueId>> = FxHashSet::default();
    let mut steps = Vec::with_capacity(groups.len());
    for g in order(graph, &groups) {
        let nodes = std::mem::take(&mut groups[g]);
        let template = nodes.first().and_then(|first| templates.remove(first)).filter(|_| g < count);
        let Some(template) = template else {
            steps.extend(nodes.into_iter().map(Step::Node));
            continue;
        };
        let first = template.first_operand().map(|i| operands(graph, &nodes, i)).unwrap_or_default();
        let is_own = lists.contains(&first) && first.iter().all(|v| reads[v.index()] == 1);
        let is_free = is_own || !first.is_empty() && first.iter().all(|&v| donations.has(v));
        let in_place = is_free && template.starts_with_operand();
        lists.insert(nodes.iter().map(|id| graph.node(*id).outputs[0]).collect());
        let last = graph.node(nodes[0]).outputs[0];
        steps.push(Step::Group(Group { nodes, template, in_place, last }));
    }
    name_by_last(graph, &mut steps);
    steps
}

/// Notes what lists hold in the end, through all that is written into them.
fn name_by_last(graph: &Graph, steps: &mut [Step]) {
    let mut lasts: FxHashMap<ValueId, ValueId> = FxHashMap::default();
    for step in steps.iter_mut().rev() {
        let Step::Group(group) = step else { continue };
        group.last = lasts.get(&group.last).copied().unwrap_or(group.last);
        if let Some(i) = group.template.first_operand().filter(|_| group.in_place) {
            lasts.insert(graph.node(group.nodes[0]).inputs[i], group.last);
        }
    }
}

/// What input `i` of each node is.
pub fn operands(graph: &Graph, nodes: &[NodeId], i: usize) -> Vec<ValueId> {
    nodes.iter().map(|id| graph.node(*id).inputs[i]).collect()
}

/// How a node is alike to others; `None` if it cannot be computed with them: its operands broadcast or convert, or a
/// call for many would round otherwise than one for each, as it may for 16 bits.
fn signature(graph: &Graph, id: NodeId, template: &Template, depth: usize) -> Option<Signature> {
    let node = graph.node(id);
    let &[output] = node.outputs.as_slice() else { return None };
    let own = graph.ty(output).filter(|ty| ty.shape.rank() > 0)?;
    if !matches!(own.dtype, DType::F32 | DType::F64) {
        return None;
    }
    let operand = |(i, &v): (usize, &ValueId)| match graph.lit(v) {
        Some(Lit::Tensor(t)) if t.rank() > 0 => None,
        Some(lit) => Some(Operand::Literal(format!("{lit:?}"))),
        None => {
            let ty = graph.ty(v).filter(|ty| ty.dtype == own.dtype)?;
            let shared = Operand::Shared(v.index());
            if is_list(graph, node, i) {
                (ty.shape == own.shape).then_some(Operand::List)
            } else {
                Some(shared)
            }
        }
    };
    let operands = node.inputs.iter().enumerate().map(operand).collect::<Option<_>>()?;
    Some(Signature { depth, text: template.text().to_owned(), dtype: own.dtype.name(), operands })
}

/// How many nodes stand one behind the other before each node.
fn depths(graph: &Graph) -> Vec<usize> {
    let mut depths = vec![0; graph.nodes().len()];
    for (id, node) in graph.nodes() {
        let before = node.inputs.iter().filter_map(|&v| graph.producer(v));
        depths[id.index()] = before.map(|p| depths[p.index()] + 1).max().unwrap_or(0);
    }
    depths
}

/// The nodes in groups whose results take at most so many bytes.
fn pieces(graph: &Graph, nodes: &[NodeId], limit: f64) -> Vec<Vec<NodeId>> {
    let mut groups: Vec<Vec<NodeId>> = Vec::new();
    let mut held = 0.0;
    for &id in nodes {
        let bytes = release::bytes(graph, id);
        if groups.is_empty() || held + bytes > limit {
            groups.push(Vec::new());
            held = 0.0;
        }
        held += bytes;
        groups.last_mut().into_iter().for_each(|group| group.push(id));
    }
    groups
}

/// Positions of the groups in an order in which everything is computed before it is read; close to that of the graph, so
/// that what one piece of the parameters needs is computed together.
fn order(graph: &Graph, groups: &[Vec<NodeId>]) -> Vec<usize> {
    let mut group_of: FxHashMap<NodeId, usize> = FxHashMap::default();
    for (g, group) in groups.iter().enumerate() {
        group_of.extend(group.iter().map(|id| (*id, g)));
    }
    let mut readers: Vec<Vec<usize>> = vec![Vec::new(); groups.len()];
    let mut missing = vec![0_usize; groups.len()];
    for (g, group) in groups.iter().enumerate() {
        let inputs = group.iter().flat_map(|id| &graph.node(*id).inputs);
        let before: BTreeSet<usize> =
            inputs.filter_map(|&v| group_of.get(&graph.producer(v)?).copied()).collect();
        missing[g] = before.len();
        for p in before {
            readers[p].push(g);
        }
    }
    let entry = |g: usize| Reverse((groups[g].first().map_or(0, |id| id.index()), g));
    let mut ready: BinaryHeap<_> = (0..groups.len()).filter(|&g| missing[g] == 0).map(entry).collect();
    let mut order = Vec::with_capacity(groups.len());
    while let Some(Reverse((_, g))) = ready.pop() {
        order.push(g);
        for &reader in &readers[g] {
            missing[reader] -= 1;
            if missing[reader] == 0 {
                ready.push(entry(reader));
            }
        }
    }
    debug_assert_eq!(order.len(), groups.len(), "groups read each other");
    order
}

/// The statements by which a call writes into its list: of `f(g(xs, a), b)` they are `g_(xs, a)` and `f_(xs, b)`.
pub fn in_place(call: &str, list: &str) -> Vec<String> {
    let (names, mut rest) = call.split_once(&format!("({list}")).unwrap_or((call, ""));
    let statement = |name: &str| {
        let mut depth = 0_usize;
        let end = rest.find(|c| {
            let is_end = c == ')' && depth == 0;
            depth = if c == '(' { depth + 1 } else { depth - usize::from(c == ')' && !is_end) };
            is_end
        });
        let (arguments, behind) = rest.split_at(end.map_or(rest.len(), |at| at + 1));
        rest = behind;
        format!("{name}_({list}{arguments}")
    };
    names.rsplit('(').map(statement).collect()
}
