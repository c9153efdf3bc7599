//! How a use of an op divides over the devices of one axis of a mesh, derived from its definition.
//!
//! The tensor expressions of an op ([`mithril_ir::loops`]) say which elements of the operands an element of the result
//! reads. Device `p` of `n` may compute a shard of the result from shards of the operands if the expression of the
//! whole op, with `p · chunk + i` for each divided variable `i`, is the expression of the same op on the shards. Both
//! are written out and compared with `p` a variable, which proves it for all devices. If a divided variable is that of
//! a reduction at the root, the results are partial: the devices' results have to be reduced. An op without such
//! expressions divides as its expansion does, node by node.

use std::cell::Cell;

use mithril_ir::build::Builder;
use mithril_ir::graph::{Def, Graph, Node, Role, TensorType, ValueId, Values};
use mithril_ir::loops::{Binary, Expr, Index, LoopArg, LoopCx, ReduceOp, Step, Var};
use mithril_ir::lowering::LoweringRule;
use mithril_ir::op::{Attr, Eval, OpDef, PortKind};
use mithril_ir::ops::collective;
use mithril_ir::shape::Shape;
use mithril_ir::{DType, Lit};
use rustc_hash::FxHashMap;

/// How devices' results come together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// Their sum.
    Sum,
    /// The largest.
    Max,
    /// The smallest.
    Min,
}

impl Reduction {
    /// Its name at the port `reduction` of `all_reduce`.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Sum => "SUM",
            Self::Max => "MAX",
            Self::Min => "MIN",
        }
    }
}

/// Where a tensor lies on the devices of one axis of a mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// Each device holds all of it.
    Replicate,
    /// Device `p` holds block `p` along this axis of the tensor.
    Shard(usize),
    /// The tensor is the reduction of what the devices hold.
    Partial(Reduction),
}

/// An argument of a use of an op.
#[derive(Clone, Debug, PartialEq)]
pub enum Arg {
    /// A tensor.
    Tensor(TensorType),
    /// A literal.
    Lit(Lit),
}

/// A use of an op whose sizes are numbers.
#[derive(Clone, Debug)]
pub struct Use {
    /// The op.
    pub op: &'static OpDef,
    /// Its arguments.
    pub args: Vec<Arg>,
    /// Types of the results.
    pub outputs: Vec<TensorType>,
}

/// What one device computes of a use.
#[derive(Clone, Debug)]
pub struct Local {
    /// The same op on shards.
    pub call: Use,
    /// Where its results lie.
    pub placements: Vec<Placement>,
}

impl Use {
    /// The use that a node is; `None` if sizes are unknown.
    pub fn of(graph: &Graph, node: &Node) -> Option<Self> {
        let mut args = Vec::new();
        for &v in &node.inputs {
            args.push(match (&graph.value(v).def, graph.ty(v)) {
                (Def::Const(lit), _) => Arg::Lit(lit.clone()),
                (_, Some(ty)) => {
                    ty.shape.known()?;
                    Arg::Tensor(ty.clone())
                }
                _ => return None,
            });
        }
        let outputs: Vec<TensorType> =
            node.outputs.iter().map(|&v| graph.ty(v).cloned()).collect::<Option<_>>()?;
        outputs.iter().all(|ty| ty.shape.known().is_some()).then_some(Self { op: node.op, args, outputs })
    }
    /// The default float with which the op gives these results.
    fn float(&self) -> DType {
        let floats = |ty: &&TensorType| ty.dtype.is_float();
        self.outputs.iter().find(floats).map_or(DType::F32, |ty| ty.dtype)
    }
    /// Whether an element of the result is a function of the elements of the operands at the same place.
    fn is_elementwise(&self) -> bool {
        let reads_elements = matches!(self.op.eval, Some(Eval::F1(_) | Eval::F2(..) | Eval::Scalar(_)));
        self.op.loops.is_none()
            && self.outputs.len() == 1
            && (reads_elements || matches!(self.op.lowering.c, LoweringRule::Template(_)))
    }
    fn loops(&self) -> Option<Loops> {
        let args: Vec<LoopArg> = self
            .args
            .iter()
            .map(|arg| match arg {
                Arg::Lit(lit) => LoopArg::Lit(lit.clone()),
                Arg::Tensor(ty) => LoopArg::Tensor(ty.dtype, sizes(ty)),
            })
            .collect();
        let outputs: Vec<(DType, Vec<i64>)> = self.outputs.iter().map(|ty| (ty.dtype, sizes(ty))).collect();
        let cx = LoopCx::new(self.op, &args, &outputs, 0);
        let values = match self.op.loops {
            Some(loops) => loops(&cx).ok()?,
            None if self.is_elementwise() => vec![cx.elementwise(self.op.name)],
            None => return None,
        };
        let (vars, temporaries, steps, _) = cx.finish();
        let mut computed = Vec::new();
        for step in steps {
            match step {
                Step::Compute { to, vars, value } => computed.push((to, vars, value)),
                // What a function of the prelude does is not known here.
                Step::Call(_) => return None,
            }
        }
        let shapes = temporaries.into_iter().map(|t| t.shape).collect();
        Some(Loops { vars, values, computed, temporaries: shapes })
    }
}

/// The tensor expressions of a use.
struct Loops {
    vars: Vec<Vec<Var>>,
    values: Vec<Expr>,
    computed: Vec<(usize, Vec<Var>, Expr)>,
    temporaries: Vec<Vec<i64>>,
}

impl Loops {
    fn each_expression(&self) -> impl Iterator<Item = (&[Var], &Expr)> {
        let temporaries = self.computed.iter().map(|(_, vars, value)| (vars.as_slice(), value));
        temporaries.chain(self.vars.iter().map(Vec::as_slice).zip(&self.values))
    }
}

fn sizes(ty: &TensorType) -> Vec<i64> {
    ty.shape.known().unwrap_or_default().into_iter().map(|n| n as i64).collect()
}

/// The type of a shard along an axis; `None` if it does not divide.
pub fn shard_type(ty: &TensorType, axis: Option<usize>, devices: i64) -> Option<TensorType> {
    let Some(axis) = axis else { return Some(ty.clone()) };
    let mut local = sizes(ty);
    let size = local.get_mut(axis)?;
    if *size == 0 || *size % devices != 0 {
        return None;
    }
    *size /= devices;
    Some(TensorType { dtype: ty.dtype, shape: Shape::of(local) })
}

/// What each of `devices` devices computes if the operands are divided along these axes (one entry for each argument);
/// `None` if it cannot be done, or is not known to be right.
pub fn local(call: &Use, shards: &[Option<usize>], devices: i64) -> Option<Local> {
    if shards.iter().all(Option::is_none) {
        let placements = vec![Placement::Replicate; call.outputs.len()];
        return Some(Local { call: call.clone(), placements });
    }
    if collective::is_collective(call.op) {
        return local_collective(call, shards, devices);
    }
    let by_loops = call.loops().and_then(|whole| {
        let rank = call.outputs.iter().map(|ty| ty.shape.rank()).max().unwrap_or(0);
        let candidates = (0..rank).map(Some).chain([None]);
        candidates.into_iter().find_map(|axis| by_expressions(call, &whole, shards, axis, devices))
    });
    by_loops.or_else(|| by_expansion(call, shards, devices))
}

/// A collective over one axis of the mesh leaves tensors divided along another one as they are.
fn local_collective(call: &Use, shards: &[Option<usize>], devices: i64) -> Option<Local> {
    let axis = shards[0]?;
    if let Some(Arg::Lit(Lit::Int(own))) = call.args.get(collective::AXIS)
        && own.known() == Some(axis as i64)
    {
        return None;
    }
    let outputs = vec![shard_type(&call.outputs[0], Some(axis), devices)?];
    let args = local_args(call, shards, devices, &outputs)?;
    Some(Local { call: Use { op: call.op, args, outputs }, placements: vec![Placement::Shard(axis)] })
}

/// The arguments of a device, with the sizes of its results where a literal says those of the whole.
fn local_args(
    call: &Use,
    shards: &[Option<usize>],
    devices: i64,
    outputs: &[TensorType],
) -> Option<Vec<Arg>> {
    let mut args = Vec::new();
    for (i, arg) in call.args.iter().enumerate() {
        args.push(match arg {
            Arg::Tensor(ty) => Arg::Tensor(shard_type(ty, shards.get(i).copied().flatten(), devices)?),
            Arg::Lit(lit) => {
                let is_shape =
                    call.op.port_of(i).is_some_and(|p| matches!(p.kind, PortKind::Attr(Attr::Shape)));
                let whole = Lit::tuple(sizes(&call.outputs[0]));
                let of_result = is_shape && *lit == whole;
                Arg::Lit(if of_result { Lit::tuple(sizes(&outputs[0])) } else { lit.clone() })
            }
        });
    }
    Some(args)
}

/// Adds a use to a graph whose tensors are inputs; the arguments and the results.
fn build(call: &Use, expand: bool) -> Option<(Graph, Values, Values)> {
    let mut builder = Builder::new(call.float());
    let args: Values = call
        .args
        .iter()
        .map(|arg| match arg {
            Arg::Lit(lit) => builder.lit(lit.clone()),
            Arg::Tensor(ty) => builder.graph.add_input("x", Role::Data, ty.clone()),
        })
        .collect();
    let outputs = if expand { builder.expand(call.op, &args) } else { builder.push(call.op, &args) }.ok()?;
    let graph = builder.graph;
    let agree = outputs.len() == call.outputs.len()
        && outputs.iter().zip(&call.outputs).all(|(&v, ty)| graph.ty(v) == Some(ty));
    agree.then_some((graph, args, outputs))
}

fn by_expressions(
    call: &Use,
    whole: &Loops,
    shards: &[Option<usize>],
    axis: Option<usize>,
    devices: i64,
) -> Option<Local> {
    let outputs: Vec<TensorType> =
        call.outputs.iter().map(|ty| shard_type(ty, axis, devices)).collect::<Option<_>>()?;
    let args = local_args(call, shards, devices, &outputs)?;
    let part = Use { op: call.op, args, outputs };
    // The op itself has to see it so.
    build(&part, false)?;
    let loops = part.loops()?;
    let comparison = Comparison::new(call, whole, &loops, shards, devices)?;
    let mut placements = Vec::new();
    for (whole, part) in whole.values.iter().zip(&loops.values) {
        let partial = comparison.equal(whole, part)?;
        placements.push(match (axis, partial) {
            (Some(axis), None) => Placement::Shard(axis),
            (None, None) => Placement::Replicate,
            (None, Some(reduction)) => Placement::Partial(reduction),
            (Some(_), Some(_)) => return None,
        });
    }
    Some(Local { call: part, placements })
}

/// Compares the expressions of the whole op with those of a shard.
struct Comparison {
    devices: i64,
    /// Which device it is.
    device: Var,
    /// Sizes of the variables on a device, by number.
    local: FxHashMap<u32, i64>,
    /// By tensor: the axis along which it is divided, and the size of a shard.
    shifts: FxHashMap<usize, (usize, i64)>,
    fails: Cell<bool>,
}

impl Comparison {
    fn new(call: &Use, whole: &Loops, part: &Loops, shards: &[Option<usize>], devices: i64) -> Option<Self> {
        let mut local = FxHashMap::default();
        for (vars, value) in part.each_expression() {
            local.extend(vars.iter().map(|v| (v.id, v.size)));
            value.walk(&mut |e| {
                if let Expr::Reduce { vars, .. } = e {
                    local.extend(vars.iter().map(|v| (v.id, v.size)));
                }
            });
        }
        let mut shifts = FxHashMap::default();
        for (i, (arg, axis)) in call.args.iter().zip(shards).enumerate() {
            if let (Arg::Tensor(ty), Some(axis)) = (arg, axis) {
                shifts.insert(i, (*axis, sizes(ty)[*axis] / devices));
            }
        }
        let device = Var { id: u32::MAX, size: devices };
        let mut comparison = Self { devices, device, local, shifts, fails: Cell::new(false) };
        let same_steps = whole.computed.len() == part.computed.len()
            && whole.temporaries.len() == part.temporaries.len()
            && whole.values.len() == part.values.len();
        if !same_steps {
            return None;
        }
        for ((to, _, whole_value), (part_to, _, part_value)) in whole.computed.iter().zip(&part.computed) {
            let i = to.checked_sub(call.args.len())?;
            if to != part_to || comparison.equal(whole_value, part_value)?.is_some() {
                return None;
            }
            if let Some(shift) = divided_axis(&whole.temporaries[i], &part.temporaries[i], devices)? {
                comparison.shifts.insert(*to, shift);
            }
        }
        Some(comparison)
    }
    /// A variable of the whole op, in terms of the device and its own variable.
    fn variable(&self, var: Var) -> Index {
        let local = self.local.get(&var.id).copied().unwrap_or(var.size);
        let own = Index::var(Var { id: var.id, size: local });
        if local == var.size {
            return own;
        }
        if local * self.devices != var.size {
            self.fails.set(true);
        }
        Index::var(self.device) * local + own
    }
    /// Whether both are the same, and how the results of the devices are reduced if they are partial.
    #[expect(clippy::option_option, reason = "different, the same, or the same but partial")]
    fn equal(&self, whole: &Expr, part: &Expr) -> Option<Option<Reduction>> {
        let part = part.map_loads(&|from, mut at, stored| {
            if let Some((axis, size)) = self.shifts.get(&from)
                && let Some(index) = at.get_mut(*axis)
            {
                *index = index.clone() + Index::var(self.device) * *size;
            }
            Expr::Load { from, at, stored }
        });
        let mut partial = None;
        let same = self.same(whole, &part, &mut Some(&mut partial));
        (same && !self.fails.get()).then_some(partial)
    }
    fn index(&self, whole: &Index, part: &Index) -> bool {
        whole.substitute(&|var| self.variable(var)) == *part
    }
    /// `root` is where a partial reduction is noted, as long as there is nothing around it but conversions.
    fn same(&self, whole: &Expr, part: &Expr, root: &mut Option<&mut Option<Reduction>>) -> bool {
        match (whole, part) {
            (Expr::Load { from, at, stored }, Expr::Load { from: other, at: place, stored: kind }) => {
                from == other
                    && stored == kind
                    && at.len() == place.len()
                    && at.iter().zip(place).all(|(a, b)| self.index(a, b))
            }
            (Expr::Number(..), _) => whole == part,
            (Expr::Index(a), Expr::Index(b)) => self.index(a, b),
            (Expr::Binary(op, a, b), Expr::Binary(other, c, d)) => {
                op == other && self.same(a, c, &mut None) && self.same(b, d, &mut None)
            }
            (Expr::Apply { text, args, dtype }, Expr::Apply { text: other, args: more, dtype: kind }) => {
                text == other
                    && dtype == kind
                    && args.len() == more.len()
                    && args.iter().zip(more).all(|(a, b)| self.same(a, b, &mut None))
            }
            (Expr::Cast(a, dtype), Expr::Cast(b, other)) => {
                // A sum of floats may be rounded before it is reduced, but not cut off.
                let keeps = a.dtype().is_float() && dtype.is_float() || a.dtype() == *dtype;
                dtype == other && if keeps { self.same(a, b, root) } else { self.same(a, b, &mut None) }
            }
            (Expr::Select { when, yes, no }, Expr::Select { when: tests, yes: then, no: other }) => {
                when.len() == tests.len()
                    && when
                        .iter()
                        .zip(tests)
                        .all(|(a, b)| self.index(&a.index, &b.index) && a.from == b.from && a.to == b.to)
                    && self.same(yes, then, &mut None)
                    && self.same(no, other, &mut None)
            }
            (Expr::Reduce { op, vars, body }, Expr::Reduce { op: other, vars: own, body: inner }) => {
                let paired =
                    op == other && vars.len() == own.len() && vars.iter().zip(own).all(|(a, b)| a.id == b.id);
                let divided = vars.iter().zip(own).filter(|(a, b)| a.size != b.size).count();
                if !paired || divided > 1 || (divided == 1 && !note(*op, root)) {
                    return false;
                }
                self.same(body, inner, &mut None)
            }
            _ => false,
        }
    }
}

/// Notes that results are to be reduced; whether they can be.
fn note(op: ReduceOp, root: &mut Option<&mut Option<Reduction>>) -> bool {
    let reduction = match op {
        ReduceOp::Sum => Reduction::Sum,
        ReduceOp::Max => Reduction::Max,
        ReduceOp::Min => Reduction::Min,
        _ => return false,
    };
    match root {
        Some(partial) => {
            **partial = Some(reduction);
            true
        }
        None => false,
    }
}

/// The axis along which a shape is divided and the size of a shard; the outer `None` if they differ otherwise.
#[expect(clippy::option_option, reason = "divided along an axis, not divided, or neither")]
fn divided_axis(whole: &[i64], part: &[i64], devices: i64) -> Option<Option<(usize, i64)>> {
    if whole.len() != part.len() {
        return None;
    }
    let mut differing = (0..whole.len()).filter(|&i| whole[i] != part[i]);
    match (differing.next(), differing.next()) {
        (None, _) => Some(None),
        (Some(axis), None) if part[axis] * devices == whole[axis] => Some(Some((axis, part[axis]))),
        _ => None,
    }
}

/// An op divides as its expansion does, if the expansion on shards is the same but for sizes.
fn by_expansion(call: &Use, shards: &[Option<usize>], devices: i64) -> Option<Local> {
    call.op.expand?;
    let (graph, args, outputs) = build(call, true)?;
    let mut placed: FxHashMap<ValueId, Placement> = FxHashMap::default();
    for (&v, shard) in args.iter().zip(shards) {
        placed.insert(v, shard.map_or(Placement::Replicate, Placement::Shard));
    }
    let mut parts = Vec::new();
    for (_, node) in graph.nodes() {
        let inner = Use::of(&graph, node)?;
        let mut shards = Vec::new();
        for v in &node.inputs {
            shards.push(match placed.get(v) {
                Some(Placement::Shard(axis)) => Some(*axis),
                Some(Placement::Partial(_)) => return None,
                _ => None,
            });
        }
        let part = local(&inner, &shards, devices)?;
        placed.extend(node.outputs.iter().copied().zip(part.placements.iter().copied()));
        parts.push(part.call);
    }
    let place = |v: &ValueId| placed.get(v).copied().unwrap_or(Placement::Replicate);
    let placements: Vec<Placement> = outputs.iter().map(place).collect();
    let types: Vec<TensorType> = call
        .outputs
        .iter()
        .zip(&placements)
        .map(|(ty, p)| match p {
            Placement::Shard(axis) => shard_type(ty, Some(*axis), devices),
            _ => Some(ty.clone()),
        })
        .collect::<Option<_>>()?;
    let part_args = local_args(call, shards, devices, &types)?;
    let part = Use { op: call.op, args: part_args, outputs: types };
    build(&part, false)?;
    let (local_graph, own_args, own_outputs) = build(&part, true)?;
    if local_graph.nodes().len() != graph.nodes().len() {
        return None;
    }
    let mut map: FxHashMap<ValueId, ValueId> = args.iter().copied().zip(own_args).collect();
    for (((_, whole), (_, own)), part) in graph.nodes().zip(local_graph.nodes()).zip(&parts) {
        let same = std::ptr::eq(whole.op, own.op)
            && whole.inputs.len() == own.inputs.len()
            && whole.inputs.iter().zip(&own.inputs).zip(&part.args).all(|((a, b), arg)| match arg {
                Arg::Lit(lit) => local_graph.lit(*b) == Some(lit),
                Arg::Tensor(ty) => map.get(a) == Some(b) && local_graph.ty(*b) == Some(ty),
            })
            && whole.outputs.len() == own.outputs.len()
            && own.outputs.iter().zip(&part.outputs).all(|(&v, ty)| local_graph.ty(v) == Some(ty));
        if !same {
            return None;
        }
        map.extend(whole.outputs.iter().copied().zip(own.outputs.iter().copied()));
    }
    let agree = outputs.iter().zip(&own_outputs).all(|(a, b)| map.get(a) == Some(b));
    agree.then_some(Local { call: part, placements })
}

/// The graph that a use expands to, with its tensors as inputs; `None` if it is not made of other ops.
pub fn expansion(call: &Use) -> Option<Graph> {
    call.op.expand?;
    let (mut graph, _, outputs) = build(call, true)?;
    for (i, v) in outputs.into_iter().enumerate() {
        graph.outputs.insert(i.to_string().into(), v);
    }
    Some(graph)
}

/// How many elements a use computes, those of sums included.
pub fn work(call: &Use) -> u64 {
    let product = |vars: &[Var]| vars.iter().fold(1_u64, |n, var| n.saturating_mul(var.size.max(0) as u64));
    if let Some(loops) = call.loops() {
        let of = |(vars, value): (&[Var], &Expr)| {
            let mut inner = 1;
            value.walk(&mut |e| {
                if let Expr::Reduce { vars, .. } = e {
                    inner = inner.max(product(vars));
                }
            });
            product(vars).saturating_mul(inner)
        };
        return loops.each_expression().map(of).fold(0, u64::saturating_add);
    }
    if call.op.expand.is_some()
        && let Some((graph, ..)) = build(call, true)
    {
        let inner = graph.nodes().map(|(_, node)| Use::of(&graph, node).map_or(0, |inner| work(&inner)));
        return inner.fold(0, u64::saturating_add);
    }
    let sizes = |ty: &TensorType| ty.shape.known().map_or(0, |sizes| sizes.iter().product::<usize>() as u64);
    call.outputs.iter().map(sizes).sum()
}

/// Arithmetic of a use: two operations for each product that a sum adds up, as contractions and convolutions do, else
/// one for each element. Ops that only move elements have none.
pub fn arithmetic(call: &Use) -> u64 {
    let product = |vars: &[Var]| vars.iter().fold(1_u64, |n, var| n.saturating_mul(var.size.max(0) as u64));
    if let Some(loops) = call.loops() {
        let of = |(vars, value): (&[Var], &Expr)| {
            if matches!(value, Expr::Load { .. } | Expr::Number(..)) {
                return 0;
            }
            let mut inner = 1;
            value.walk(&mut |e| {
                if let Expr::Reduce { vars, body, .. } = e {
                    let mut factors = 1;
                    body.walk(&mut |e| {
                        if matches!(e, Expr::Binary(Binary::Multiply, ..)) {
                            factors = 2;
                        }
                    });
                    inner = inner.max(product(vars).saturating_mul(factors));
                }
            });
            product(vars).saturating_mul(inner)
        };
        return loops.each_expression().map(of).fold(0, u64::saturating_add);
    }
    if call.op.expand.is_some()
        && let Some((graph, ..)) = build(call, true)
    {
        let inner =
            graph.nodes().map(|(_, node)| Use::of(&graph, node).map_or(0, |inner| arithmetic(&inner)));
        return inner.fold(0, u64::saturating_add);
    }
    work(call)
}

/// Whether an op only says how to read its operand: each element of the result is one of the operand.
pub fn is_view(call: &Use) -> bool {
    call.loops().is_some_and(|loops| {
        loops.computed.is_empty() && loops.values.iter().all(|value| matches!(value, Expr::Load { .. }))
    })
}

/// Ways to divide the other operands that may fit operand `operand` divided along `axis`; [`local`] says which do.
pub fn candidates(call: &Use, operand: usize, axis: usize) -> Vec<Vec<Option<usize>>> {
    let mut all: Vec<Vec<Option<usize>>> = Vec::new();
    let mut add = |mut shards: Vec<Option<usize>>| {
        shards[operand] = Some(axis);
        if !all.contains(&shards) {
            all.push(shards);
        }
    };
    if let Some(loops) = call.loops() {
        for var in variables(&loops, operand, axis) {
            let along = |i: usize| match &call.args[i] {
                Arg::Tensor(ty) => (0..ty.shape.rank()).find(|&k| variables(&loops, i, k).contains(&var)),
                Arg::Lit(_) => None,
            };
            add((0..call.args.len()).map(along).collect());
        }
    }
    let Some(Arg::Tensor(own)) = call.args.get(operand) else { return all };
    let (rank, size) = (own.shape.rank(), &own.shape.0[axis]);
    // Operands of equal sizes at the same place, from the back as they broadcast and from the front as batches lie.
    let aligned = |place: &dyn Fn(usize) -> Option<usize>| -> Vec<Option<usize>> {
        let of = |arg: &Arg| match arg {
            Arg::Tensor(ty) => place(ty.shape.rank()).filter(|&k| ty.shape.get(k) == Some(size)),
            Arg::Lit(_) => None,
        };
        call.args.iter().map(of).collect()
    };
    add(aligned(&|other| (axis + other).checked_sub(rank)));
    add(aligned(&|_| Some(axis)));
    add(vec![None; call.args.len()]);
    all
}

/// The variables in the index of an axis of an operand.
fn variables(loops: &Loops, operand: usize, axis: usize) -> Vec<Var> {
    let mut all = Vec::new();
    for (_, value) in loops.each_expression() {
        value.walk(&mut |e| {
            if let Expr::Load { from, at, .. } = e
                && *from == operand
                && let Some(index) = at.get(axis)
            {
                index.each_var(&mut |var| {
                    if !all.contains(&var) {
                        all.push(var);
                    }
                });
            }
        });
    }
    all
}
