//! From a graph, whose sizes are numbers, to a plan.
//!
//! A node becomes, in this order: a view, where the loops of its row say that it moves elements and does nothing else;
//! the calls of its lowering (`Lowering.ggml`), where these pass the checks of [`super::functions`]; a custom op, which
//! is the reference evaluation of its row inside of the graph of ggml; or, where it has several results, no elements or
//! too many operands, a step of the host between two graphs. Integers and doubles are what views and custom ops alone
//! know. Movements in lowerings, in the order of dimensions of the graph:
//!
//! | | |
//! |---|---|
//! | `reshape(x, [2, 3])` | the same elements in another shape |
//! | `permute(x, [1, 0])` | with dimension 1 in place 0 and so on |
//! | `broadcast(x, [2, 3])` | repeated |
//! | `slice(x, axis, from, to)` | part of an axis |
//! | `positions(x, size)` | integers as rows of a table of that size: a custom op |
//! | `distinct(x, size)` | the same, where no row may occur twice |
//! | `causal(2, 3)` | the constant that is 0 where a column is not behind its row, else −inf |
//! | `outputs(x, y)` | the results of a row that has several |

use std::sync::Arc;

use mithril_ir::error::{Error, Result};
use mithril_ir::graph::Node;
use mithril_ir::loops::{Expr, Index, IndexTerm, LoopCx, Var};
use mithril_ir::lowering::LoweringCx;
use mithril_ir::lowering::LoweringRule;
use mithril_ir::{DType, Graph, Lit, NodeId, Scalar, Tensor, TensorType, ValueId};

use super::emit::{Emitter, Item, Weights, flat_type};
use super::functions::find;
use super::parallel_axis::parallel_axis;
use super::parse::{Tree, parse};
use super::plan::{Custom, Host, HostInput, Plan, PlanValueId, Source, UNNAMED, Value};
use super::schedule::{Ends, schedule};
use super::types::Element;
use super::views::{View, natural};
use crate::c::{arguments, is_fixed, sizes};
use crate::ids::{Id as _, InputId, Table};

/// The elements in which a weight of a name is to be kept.
pub type Choice = dyn Fn(&str) -> Option<Element>;

/// Most operands of a custom op (one less than `GGML_MAX_SRC`).
const OPERANDS: usize = 9;

/// What is asked of a plan.
#[derive(Default)]
pub struct Options<'a> {
    /// Whether weights may be kept otherwise than they are given: they do not change between calls.
    pub pack: bool,
    /// The elements in which a weight, by its name, is to be kept where a function takes them; needs `pack`.
    pub elements: Option<&'a Choice>,
    /// Names of inputs whose memory may be written, so that an output lies there.
    pub donated: &'a [Arc<str>],
}

impl std::fmt::Debug for Options<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options").field("pack", &self.pack).finish_non_exhaustive()
    }
}

/// Makes the plan of a graph that was lowered for ggml and whose sizes are numbers.
///
/// # Errors
/// If a size is not a number.
pub fn plan(graph: &Graph, options: &Options<'_>) -> Result<Plan> {
    let mut lowering = LoweringContext::new(graph, options)?;
    for (n, node) in graph.nodes() {
        lowering.node(n, node).map_err(|e| e.at(graph.place(n)))?;
    }
    lowering.finish(options.donated)
}

/// Whether ggml says a node as it is. What computes integers or doubles is left to a custom op in one piece.
pub fn can_lower(graph: &Graph, n: NodeId) -> bool {
    let node = graph.node(n);
    if !is_computed(graph, node) {
        return true;
    }
    let mut lowering = LoweringContext::empty(graph, Weights::default());
    for &v in &node.inputs {
        if graph.lit(v).is_none() && lowering.input(v, Source::Host).is_err() {
            return false;
        }
    }
    lowering.calls(n, node).is_ok()
}

/// Whether all results of a node are of dtypes that ggml computes with, and of some elements.
fn is_computed(graph: &Graph, node: &Node) -> bool {
    let fits = |v: &ValueId| {
        graph
            .ty(*v)
            .is_some_and(|ty| Element::of(ty.dtype).is_computed() && ty.shape.iter().all(|d| !d.is(0)))
    };
    node.outputs.iter().all(fits)
}

/// Where a value of the graph is.
#[derive(Clone, Debug)]
enum At {
    Ggml(View),
    Host(PlanValueId),
}

struct LoweringContext<'a> {
    graph: &'a Graph,
    emitter: Emitter,
    /// Where each value of the graph is.
    at: Vec<Option<At>>,
    hosts: Vec<Host>,
    inputs: Table<InputId, PlanValueId>,
}

type Made<T> = std::result::Result<T, String>;

impl<'a> LoweringContext<'a> {
    fn empty(graph: &'a Graph, weights: Weights) -> Self {
        let emitter = Emitter::new(weights);
        let at = vec![None; graph.values().len()];
        Self { graph, emitter, at, hosts: Vec::new(), inputs: Table::default() }
    }
    fn new(graph: &'a Graph, options: &Options<'_>) -> Result<Self> {
        let weights = Weights { pack: options.pack, ..Weights::default() };
        let mut lowering = Self::empty(graph, weights);
        for (i, &v) in graph.inputs.iter().enumerate() {
            let value = lowering.input(v, Source::Input(InputId::new(i)))?;
            lowering.inputs.push(value);
            if options.pack && is_fixed(graph, v) && lowering.emitter.values[value].ty.is_some() {
                let name = graph.value(v).name.as_deref().unwrap_or_default();
                let element = options.elements.and_then(|f| f(name)).unwrap_or(Element::F32);
                lowering.emitter.weights.elements.insert(value, element);
            }
        }
        Ok(lowering)
    }
    /// A value that comes from without: an input, or what the host made.
    fn input(&mut self, v: ValueId, source: Source) -> Result<PlanValueId> {
        let ty = self.graph.ty(v).ok_or_else(|| Error::internal("a value without a type is lowered"))?;
        let shape = sizes(ty)?;
        let value = self.emitter.add(self.value(v, ty, &shape, source));
        let at = self.emitter.values[value].ty;
        self.at[v.index()] =
            Some(if at.is_some() { At::Ggml(View::whole(value, &shape)) } else { At::Host(value) });
        Ok(value)
    }
    /// A value of the graph as one of the plan, without gaps.
    fn value(&self, v: ValueId, ty: &TensorType, shape: &[i64], source: Source) -> Value {
        let name = self.graph.value(v).name.clone().unwrap_or_else(|| UNNAMED.into());
        let at = shape.iter().all(|&n| n > 0).then(|| flat_type(Element::of(ty.dtype), shape));
        Value { name, dtype: ty.dtype, shape: shape.to_vec(), ty: at, source }
    }
    fn node(&mut self, n: NodeId, node: &Node) -> Result<()> {
        let is_empty = |v: &ValueId| self.graph.ty(*v).is_none_or(|ty| ty.shape.iter().any(|d| d.is(0)));
        let before = self.emitter.values.end();
        if !node.outputs.iter().any(is_empty)
            && let Ok(views) = self.calls(n, node)
        {
            for (&v, view) in node.outputs.iter().zip(views) {
                // What is only shown in another way has the name under which it was made.
                if view.value >= before && matches!(self.emitter.values[view.value].source, Source::Call) {
                    let own = self.graph.value(v).name.as_ref();
                    let name = own.or(self.graph.place(n).path.as_ref());
                    if let Some(name) = name {
                        self.emitter.values[view.value].name = name.clone();
                    }
                }
                self.at[v.index()] = Some(At::Ggml(view));
            }
            return Ok(());
        }
        self.evaluated(n, node)
    }
    /// The views that a node is in ggml, or why it is none.
    fn calls(&mut self, n: NodeId, node: &Node) -> Made<Vec<View>> {
        if let Some(views) = self.moved(node) {
            return Ok(views);
        }
        let text = match node.op.lowering.ggml {
            LoweringRule::None => return Err("ggml has no lowering of it".into()),
            LoweringRule::Template(text) => text.to_owned(),
            LoweringRule::Function(f) => {
                let args: Vec<String> = (0..node.inputs.len()).map(|i| format!("{{{i}}}")).collect();
                let cx = LoweringCx {
                    graph: self.graph,
                    node: self.graph.node(n),
                    args: &args,
                    xp: "",
                    dtypes: |_| "",
                    on_cpu: false,
                    donated: &[],
                };
                f(&cx).ok_or("ggml cannot express this use")?
            }
        };
        let tree = parse(&text, node.op)?;
        let trees = match tree {
            Tree::Call(name, items) if name == "outputs" => items,
            other => vec![other],
        };
        let mark = self.emitter.mark();
        let error = match self.results(&trees, node) {
            Ok(views) => return Ok(views),
            Err(reason) => format!("{} as {text}: {reason}", node.op.name),
        };
        self.emitter.reset(mark);
        for at in &mut self.at {
            // Constants that were seen for the first time.
            if matches!(at, Some(At::Ggml(view)) if view.value >= mark.values) {
                *at = None;
            }
        }
        Err(error)
    }
    /// The views of expressions that are the outputs of a node.
    fn results(&mut self, trees: &[Tree], node: &Node) -> Made<Vec<View>> {
        if trees.len() != node.outputs.len() {
            return Err(format!("{} results", trees.len()));
        }
        let mut views = Vec::new();
        for (tree, &v) in trees.iter().zip(&node.outputs) {
            let shape =
                sizes(self.graph.ty(v).ok_or("an output without a type")?).map_err(|e| e.to_string())?;
            let element = self.graph.ty(v).map(|ty| Element::of(ty.dtype));
            match self.item(tree, node)? {
                Item::View(view) if view.shape == shape && self.element(&view) == element => {
                    self.emitter.check(&view)?;
                    views.push(view);
                }
                other => return Err(format!("{other:?} is not {shape:?}")),
            }
        }
        Ok(views)
    }
    fn element(&self, view: &View) -> Option<Element> {
        self.emitter.values[view.value].ty.map(|ty| ty.element)
    }
    /// The views of a node that moves elements and does nothing else, as the loops of its row say.
    fn moved(&mut self, node: &Node) -> Option<Vec<View>> {
        let loops = node.op.loops?;
        let (args, types) = arguments(self.graph, node).ok()?;
        let cx = LoopCx::new(node.op, &args, &types, 0);
        let values = loops(&cx).ok()?;
        let (vars, temporaries, steps, _) = cx.finish();
        if !temporaries.is_empty() || !steps.is_empty() {
            return None;
        }
        let views = values.iter().zip(vars).zip(&types).map(|((value, vars), (dtype, shape))| {
            let Expr::Load { from, at, stored } = value else { return None };
            let view = self.view(*node.inputs.get(*from)?).ok().filter(|_| stored == dtype)?;
            seen_at(&view, at, &vars, shape).filter(|view| self.emitter.check(view).is_ok())
        });
        views.collect()
    }
    /// Where a value is.
    fn view(&mut self, v: ValueId) -> Made<View> {
        if let Some(Lit::Tensor(tensor)) = self.graph.lit(v)
            && self.at[v.index()].is_none()
        {
            if tensor.is_empty() {
                return Err("a constant without elements".into());
            }
            let shape: Vec<i64> = tensor.shape().iter().map(|&n| n as i64).collect();
            let value = self.emitter.constant("constant", tensor);
            self.at[v.index()] = Some(At::Ggml(View::whole(value, &shape)));
        }
        match &self.at[v.index()] {
            Some(At::Ggml(view)) => Ok(view.clone()),
            _ => Err("it has no elements, or is made by nothing".into()),
        }
    }
    fn item(&mut self, tree: &Tree, node: &Node) -> Made<Item> {
        Ok(match tree {
            Tree::Number(x) => Item::Number(*x),
            Tree::Null => Item::Null,
            Tree::List(list) => Item::List(list.clone()),
            Tree::Element(element) => Item::Element(*element),
            Tree::Input(i) => {
                let &v = node.inputs.get(*i).ok_or("an input is missing")?;
                match self.graph.lit(v) {
                    Some(Lit::None) => Item::Null,
                    Some(Lit::Tensor(t)) if t.rank() > 0 => Item::View(self.view(v)?),
                    Some(lit) => Item::Number(number(lit)?),
                    None => Item::View(self.view(v)?),
                }
            }
            Tree::Call(name, items) if name == "positions" || name == "distinct" => {
                Item::View(self.positions(items, node, name == "distinct")?)
            }
            Tree::Call(name, items) => {
                let items = items.iter().map(|t| self.item(t, node)).collect::<Made<Vec<_>>>()?;
                Item::View(self.call(name, items)?)
            }
        })
    }
    fn call(&mut self, name: &str, items: Vec<Item>) -> Made<View> {
        if let Some(function) = find(name) {
            return self.emitter.call(function, items);
        }
        let moved = match (name, items.as_slice()) {
            ("causal", [Item::Number(rows), Item::Number(columns)]) => {
                Some(self.causal(*rows as usize, *columns as usize))
            }
            ("reshape", [Item::View(x), Item::List(shape)]) => match x.reshaped(shape) {
                Some(view) => Some(view),
                None => self.emitter.contiguous(x)?.reshaped(shape),
            },
            ("permute", [Item::View(x), Item::List(axes)]) => x.permuted(axes),
            ("broadcast", [Item::View(x), Item::List(shape)]) => x.broadcast(shape),
            ("slice", [Item::View(x), Item::Number(axis), Item::Number(from), Item::Number(to)]) => {
                x.sliced(*axis as usize, *from as i64, *to as i64)
            }
            _ => None,
        };
        moved.ok_or_else(|| format!("{name} of {items:?} is not known"))
    }
    /// What is added to scores so that no query sees a key behind it.
    fn causal(&mut self, rows: usize, columns: usize) -> View {
        let at = |i: usize| if i % columns <= i / columns { 0.0 } else { f64::NEG_INFINITY };
        let tensor = Tensor::build(DType::F32, &[rows, columns], |i| Scalar::Float(at(i)));
        let shape = [rows as i64, columns as i64];
        let known = self.emitter.values.position(
            |v| matches!(&v.source, Source::Constant(t) if v.shape == shape && t.same_bits(&tensor)),
        );
        let value = known.unwrap_or_else(|| self.emitter.constant("causal", &Arc::new(tensor)));
        View::whole(value, &shape)
    }
    /// Integers of the host as rows of a table.
    fn positions(&mut self, items: &[Tree], node: &Node, distinct: bool) -> Made<View> {
        let [Tree::Input(i), Tree::Number(size)] = items else {
            return Err("positions are an input and a size".into());
        };
        let &v = node.inputs.get(*i).ok_or("an input is missing")?;
        let view = self.view(v)?;
        let rows = *size as i64;
        if i32::try_from(rows).is_err() || self.element(&view).is_none_or(Element::is_computed) {
            return Err(format!("{view:?} as positions below {rows}"));
        }
        let view = self.emitter.contiguous(&view)?;
        let ty = Some(flat_type(Element::I32, &view.shape));
        let shape = view.shape.clone();
        let source = Source::Call;
        let value = Value { name: "positions".into(), dtype: DType::I32, shape: shape.clone(), ty, source };
        let positions = self.emitter.custom(Custom::Positions { rows, distinct }, &[view.value], value);
        Ok(View::whole(positions, &shape))
    }
    /// A custom op, or a step of the host.
    fn evaluated(&mut self, n: NodeId, node: &Node) -> Result<()> {
        let refused = |e| Error::internal(format!("{} cannot be evaluated: {e}", node.op.name));
        let mut inputs = Vec::new();
        for &v in &node.inputs {
            inputs.push(match (self.graph.lit(v), self.at[v.index()].clone()) {
                (Some(lit), _) => HostInput::Literal(lit.clone()),
                (None, Some(At::Host(value))) => HostInput::Value(value, self.ty(v)?),
                (None, Some(At::Ggml(view))) => {
                    HostInput::Value(self.emitter.contiguous(&view).map_err(refused)?.value, self.ty(v)?)
                }
                (None, None) => return Err(Error::internal("a value is used before it is defined")),
            });
        }
        let types: Vec<TensorType> = node.outputs.iter().filter_map(|&v| self.graph.ty(v)).cloned().collect();
        let place = self.graph.place(n).clone();
        let mut host = Host {
            op: node.op,
            inputs,
            types,
            outputs: Vec::new(),
            parallel_axis: parallel_axis(self.graph, node),
            place,
        };
        let mut reads: Vec<PlanValueId> = host.inputs.iter().filter_map(HostInput::value).collect();
        reads.sort_unstable();
        reads.dedup();
        let has_type = |&v: &PlanValueId| self.emitter.values[v].ty.is_some();
        if let (&[v], [ty]) = (node.outputs.as_slice(), host.types.as_slice())
            && reads.len() <= OPERANDS
            && reads.iter().all(has_type)
        {
            let shape = sizes(ty)?;
            let value = self.value(v, ty, &shape, Source::Call);
            if value.ty.is_some() {
                host.outputs = vec![self.emitter.values.end()];
                let result = self.emitter.custom(Custom::Node(host), &reads, value);
                self.at[v.index()] = Some(At::Ggml(View::whole(result, &shape)));
                return Ok(());
            }
        }
        let outputs = node.outputs.iter().map(|&v| self.input(v, Source::Host));
        host.outputs = outputs.collect::<Result<_>>()?;
        self.hosts.push(host);
        Ok(())
    }
    fn ty(&self, v: ValueId) -> Result<TensorType> {
        self.graph.ty(v).cloned().ok_or_else(|| Error::internal("a value without a type is lowered"))
    }
    /// The value of an output, without gaps and in its shape.
    fn output(&mut self, v: ValueId) -> Result<PlanValueId> {
        let refused = |e| Error::internal(format!("an output cannot be copied: {e}"));
        match (self.at[v.index()].clone(), self.graph.lit(v)) {
            (Some(At::Host(value)), _) => Ok(value),
            (Some(At::Ggml(view)), _) => {
                let whole = self.emitter.contiguous(&view).map_err(refused)?;
                let fits = whole.shape.len() <= super::DIMENSIONS;
                if fits { self.emitter.tensor(&whole).map_err(refused) } else { Ok(whole.value) }
            }
            (None, Some(Lit::Tensor(tensor))) => Ok(self.emitter.constant("constant", tensor)),
            (None, Some(lit)) => {
                let tensor = Arc::new(mithril_ir::interp::number(lit, None)?);
                Ok(self.emitter.constant("constant", &tensor))
            }
            (None, None) => Err(Error::internal("an output is computed by no node")),
        }
    }
    fn finish(mut self, donated: &[Arc<str>]) -> Result<Plan> {
        let graph = self.graph;
        let outputs = graph.outputs.iter().map(|(name, &v)| Ok((name.clone(), self.output(v)?)));
        let outputs = outputs.collect::<Result<_>>()?;
        let mut updates = Vec::new();
        for &(old, new) in &graph.updates {
            let at = graph.inputs.iter().position(|&v| v == old);
            let old = at.ok_or_else(|| Error::internal("a state is not an input"))?;
            updates.push((self.inputs[InputId::new(old)], self.output(new)?));
        }
        let fixed = graph.inputs.iter().map(|&v| is_fixed(graph, v)).collect();
        let is_donated = |v: ValueId| graph.value(v).name.as_ref().is_some_and(|name| donated.contains(name));
        let donated = graph.inputs.iter().zip(&self.inputs).filter(|(v, _)| is_donated(**v));
        let donated = donated.map(|(_, &value)| value).collect();
        let Self { emitter, hosts, inputs, .. } = self;
        let fixed = emitter.weights.pack.then_some(fixed);
        schedule(emitter, &hosts, Ends { inputs, outputs, updates, fixed, donated })
    }
}

/// The part of a view that is read at positions that depend on variables alone, each a multiple of them.
fn seen_at(view: &View, at: &[Index], vars: &[Var], shape: &[i64]) -> Option<View> {
    let mut strides = vec![0; shape.len()];
    let mut offset = view.offset;
    for (index, &stride) in at.iter().zip(&view.strides) {
        offset += index.constant * stride;
        for (atom, factor) in &index.terms {
            let IndexTerm::Var(var) = atom else { return None };
            let i = vars.iter().position(|v| v == var)?;
            strides[i] += factor * stride;
        }
    }
    let gaps = natural(shape);
    for i in 0..shape.len() {
        if shape[i] == 1 {
            strides[i] = gaps[i];
        }
    }
    let fits = strides.iter().all(|&s| s >= 0) && at.len() == view.shape.len();
    fits.then(|| View { value: view.value, shape: shape.to_vec(), strides, offset })
}

fn number(lit: &Lit) -> Made<f64> {
    let tensor = mithril_ir::interp::number(lit, None).map_err(|e| e.to_string())?;
    if tensor.len() == 1 { Ok(tensor.get(0).f64()) } else { Err(format!("{lit} is not a number")) }
}
