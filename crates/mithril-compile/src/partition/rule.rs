//! How a use of an op divides over the devices of one axis of a mesh, derived from its definition.
//!
//! The tensor expressions of an op ([`mithril_ir::loops`]) say which elements of the operands an element of the result
//! reads. Device `p` of `n` may compute a shard of the result from shards of the operands if the expression of the
//! whole op, with `p · chunk + i` for each divided variable `i`, is the expression of the same op on the shards. Both
//! are written out and compared with `p` a variable, which proves it for all devices. If a divided variable is that of
//! a reduction at the root, the results are partial: the devices' results have to be reduced. An op without such
//! expressions divides as its expansion does, node by node.

use mithril_ir::build::Builder;
use mithril_ir::graph::{Def, Graph, Node, Role, TensorType, Values};
use mithril_ir::loops::{Expr, LoopArg, LoopCx, Step, Var};
use mithril_ir::lowering::LoweringRule;
use mithril_ir::op::{Attr, Eval, OpDef, PortKind};
use mithril_ir::ops::collective;
use mithril_ir::shape::Shape;
use mithril_ir::{DType, Lit};

use super::compare::{Comparison, Loops, is_zero_number};
use super::expansion;
use super::halo::Halo;
use super::indexed::{self, Lookup};
use super::sections::Sections;

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
    /// As the port `reduction` of `all_reduce` spells it.
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
    /// Device `p` holds block `p` of each section of this axis of the tensor, one behind another.
    Sections(usize, Sections),
    /// The tensor is the reduction of what the devices hold.
    Partial(Reduction),
}

impl Placement {
    /// The axis that is divided.
    pub const fn axis(self) -> Option<usize> {
        match self {
            Self::Shard(axis) | Self::Sections(axis, _) => Some(axis),
            Self::Replicate | Self::Partial(_) => None,
        }
    }
    /// Whether what the devices hold has to be reduced.
    pub const fn is_partial(self) -> bool {
        matches!(self, Self::Partial(_))
    }
    /// The same division of another axis, or of another tensor.
    #[must_use]
    pub const fn along(self, axis: usize) -> Self {
        match self {
            Self::Sections(_, sections) => Self::Sections(axis, sections),
            _ => Self::Shard(axis),
        }
    }
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
    /// What is done around the op.
    pub around: Around,
}

/// What a device does around an op on shards.
#[derive(Clone, Debug, PartialEq)]
pub enum Around {
    /// Nothing.
    Nothing,
    /// Positions that lie on other devices are masked.
    Lookup(Lookup),
    /// Operands are extended by rows of the neighbors.
    Halo(Vec<(usize, Halo)>),
    /// The op is written as slices of its first tensor: for each result the starts and sizes.
    Slices(Vec<(Vec<i64>, Vec<i64>)>),
}

impl Use {
    /// The use that a node is; `None` if sizes are unknown.
    pub fn of(graph: &Graph, node: &Node) -> Option<Self> {
        let mut args = Vec::new();
        for (i, &v) in node.inputs.iter().enumerate() {
            args.push(match (&graph.value(v).def, graph.ty(v)) {
                // A constant with axes is divided like any tensor.
                (Def::Const(Lit::Tensor(t)), Some(ty)) if t.rank() > 0 && node.op.takes_tensor(i) => {
                    Arg::Tensor(ty.clone())
                }
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
    /// Whether an element of the result is a function of the elements of the operands at the same place: an op without
    /// loops that has a lowering to C.
    fn is_elementwise(&self) -> bool {
        let reads_elements = matches!(self.op.eval, Some(Eval::F1(_) | Eval::F2(..) | Eval::Scalar(_)));
        let is_lowered = !matches!(self.op.lowering.c, LoweringRule::None);
        self.op.loops.is_none() && self.outputs.len() == 1 && (reads_elements || is_lowered)
    }
    /// The operands, as tensor expressions read them.
    pub(super) fn loop_args(&self) -> Vec<LoopArg> {
        let arg = |arg: &Arg| match arg {
            Arg::Lit(lit) => LoopArg::Lit(lit.clone()),
            Arg::Tensor(ty) => LoopArg::Tensor(ty.dtype, sizes(ty)),
        };
        self.args.iter().map(arg).collect()
    }
    pub(super) fn loops(&self) -> Option<Loops> {
        let args = self.loop_args();
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

pub(super) fn sizes(ty: &TensorType) -> Vec<i64> {
    ty.shape.known().unwrap_or_default().into_iter().map(|n| n as i64).collect()
}

/// The type of what a device holds of a tensor; `None` if it does not divide.
pub fn shard_type(ty: &TensorType, placement: Placement, devices: i64) -> Option<TensorType> {
    let Some(axis) = placement.axis() else { return Some(ty.clone()) };
    let mut local = sizes(ty);
    let size = local.get_mut(axis)?;
    if *size == 0 || *size % devices != 0 {
        return None;
    }
    if let Placement::Sections(_, sections) = placement
        && (sections.total() != *size || sections.iter().any(|section| section.size % devices != 0))
    {
        return None;
    }
    *size /= devices;
    Some(TensorType { dtype: ty.dtype, shape: Shape::of(local) })
}

/// What each of `devices` devices computes if the operands lie so (one entry for each argument); `None` if it cannot be
/// done, or is not known to be right.
pub fn local(call: &Use, places: &[Placement], devices: i64) -> Option<Local> {
    if places.iter().all(|place| *place == Placement::Replicate) {
        let placements = vec![Placement::Replicate; call.outputs.len()];
        return Some(Local { call: call.clone(), placements, around: Around::Nothing });
    }
    if collective::is_collective(call.op) {
        return local_collective(call, places, devices);
    }
    for (arg, place) in call.args.iter().zip(places) {
        if let Arg::Tensor(ty) = arg {
            shard_type(ty, *place, devices)?;
        }
    }
    same_op(call, places, devices)
        .or_else(|| indexed::local(call, places, devices))
        .or_else(|| by_slices(call, places, devices))
}

/// The same where it is the same op on shards, with nothing around it.
pub(super) fn same_op(call: &Use, places: &[Placement], devices: i64) -> Option<Local> {
    let Some(whole) = call.loops().or_else(|| indexed::loops(call)) else {
        return expansion::local(call, places, devices, false);
    };
    let rank = call.outputs.iter().map(|ty| ty.shape.rank()).max().unwrap_or(0);
    let is_fused = places.iter().any(|place| matches!(place, Placement::Sections(..)));
    let plain = || (0..rank).map(Some).chain([None]).map(|axis| axis.map(|axis| (axis, None)));
    let sectioned = || {
        let axes = (0..rank).filter(|_| is_fused || whole.only_moves());
        axes.filter_map(|axis| {
            Some(Some((axis, Some(result_sections(call, &whole, places, axis, devices)?))))
        })
    };
    let divided = |result| by_expressions(call, &whole, places, result, devices);
    plain()
        .find_map(divided)
        .or_else(|| sectioned().find_map(divided))
        .or_else(|| expansion::local(call, places, devices, false))
}

/// A collective over one axis of the mesh leaves tensors divided along another one as they are.
fn local_collective(call: &Use, places: &[Placement], devices: i64) -> Option<Local> {
    let place = *places.first()?;
    if let Some(axis) = place.axis() {
        let is_own = |port: usize| match call.args.get(port) {
            Some(Arg::Lit(Lit::Int(own))) => own.known() == Some(axis as i64),
            _ => false,
        };
        if collective::axes_of(call.op).any(is_own) {
            return None;
        }
    } else if place != Placement::Partial(Reduction::Sum) {
        return None;
    }
    let is_reduction =
        |arg: &Arg| matches!(arg, Arg::Lit(Lit::Str(kind)) if matches!(&**kind, "MAX" | "MIN"));
    if place.is_partial() && call.args.iter().any(is_reduction) {
        return None;
    }
    let outputs = vec![shard_type(&call.outputs[0], place, devices)?];
    let args = local_args(call, places, devices, &outputs)?;
    let call = Use { op: call.op, args, outputs };
    Some(Local { call, placements: vec![place], around: Around::Nothing })
}

/// The arguments of a device, with the sizes of its results where a literal says those of the whole.
pub(super) fn local_args(
    call: &Use,
    places: &[Placement],
    devices: i64,
    outputs: &[TensorType],
) -> Option<Vec<Arg>> {
    let mut args = Vec::new();
    for (i, arg) in call.args.iter().enumerate() {
        args.push(match arg {
            Arg::Tensor(ty) => Arg::Tensor(shard_type(ty, places[i], devices)?),
            Arg::Lit(lit) => {
                let whole = Lit::tuple(sizes(&call.outputs[0]));
                let of_result = is_shape(call.op, i) && *lit == whole;
                Arg::Lit(if of_result { Lit::tuple(sizes(&outputs[0])) } else { lit.clone() })
            }
        });
    }
    Some(args)
}

/// Whether a port of an op holds a shape.
pub(super) fn is_shape(op: &OpDef, port: usize) -> bool {
    op.port_of(port).is_some_and(|p| matches!(p.kind, PortKind::Attr(Attr::Shape)))
}

/// Adds a use to a graph whose tensors are inputs; the arguments and the results.
pub(super) fn build(call: &Use, expand: bool) -> Option<(Graph, Values, Values)> {
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
    places: &[Placement],
    result: Option<(usize, Option<Sections>)>,
    devices: i64,
) -> Option<Local> {
    let place = match result {
        None => Placement::Replicate,
        Some((axis, None)) => Placement::Shard(axis),
        Some((axis, Some(sections))) => Placement::Sections(axis, sections),
    };
    let outputs: Vec<TensorType> =
        call.outputs.iter().map(|ty| shard_type(ty, place, devices)).collect::<Option<_>>()?;
    let args = local_args(call, places, devices, &outputs)?;
    let part = Use { op: call.op, args, outputs };
    // The op itself has to see it so.
    build(&part, false)?;
    let loops = part.loops().or_else(|| indexed::loops(&part))?;
    let comparison = Comparison::new(call, whole, &loops, places, result, devices)?;
    let mut placements = Vec::new();
    for (whole, part) in whole.values.iter().zip(&loops.values) {
        let partial = comparison.equal(whole, part)?;
        placements.push(match (place, partial) {
            (place, None) => place,
            (Placement::Replicate, Some(reduction)) => Placement::Partial(reduction),
            (_, Some(_)) => return None,
        });
    }
    Some(Local { call: part, placements, around: Around::Nothing })
}

/// Sections into which an axis of the result falls if each device computes what it has: found by looking which device
/// holds the elements along the axis, at the first of all others. It is proved afterwards.
fn result_sections(
    call: &Use,
    whole: &Loops,
    places: &[Placement],
    axis: usize,
    devices: i64,
) -> Option<Sections> {
    let size = *sizes(&call.outputs[0]).get(axis)?;
    let var = *whole.vars.first()?.get(axis)?;
    if whole.values.len() != 1 || size == 0 || size % devices != 0 {
        return None;
    }
    // Devices change at multiples of the unit.
    let mut unit = size / devices;
    for (arg, place) in call.args.iter().zip(places) {
        let (Arg::Tensor(ty), Some(axis)) = (arg, place.axis()) else { continue };
        let own = *sizes(ty).get(axis)?;
        unit = greatest_divisor(unit, own / devices);
        if let Placement::Sections(_, sections) = place {
            unit = sections.iter().fold(unit, |unit, section| greatest_divisor(unit, section.size / devices));
        }
    }
    whole.values[0].walk(&mut |e| {
        if let Expr::Select { when, .. } = e {
            for test in when {
                for bound in [test.from, test.to] {
                    let edge = bound.saturating_sub(test.index.constant);
                    if edge.unsigned_abs() < size.unsigned_abs() {
                        unit = greatest_divisor(unit, edge);
                    }
                }
            }
        }
    });
    if unit == 0 || size / unit > 1 << 16 {
        return None;
    }
    let owner = |at: i64| {
        let value =
            whole.values[0].substitute(&|v| mithril_ir::loops::Index::number(if v == var { at } else { 0 }));
        owner(&value, call, places, devices)
    };
    let (mut lengths, mut runs): (Vec<i64>, Vec<(i64, i64)>) = (Vec::new(), Vec::new());
    for at in (0..size).step_by(unit as usize) {
        let device = owner(at)?;
        match runs.last_mut() {
            Some((last, length)) if *last == device => *length += unit,
            _ => runs.push((device, unit)),
        }
    }
    for section in runs.chunks(devices as usize) {
        let length = section[0].1;
        let is_whole = section.len() == devices as usize;
        let in_order = section.iter().enumerate().all(|(p, run)| *run == (p as i64, length));
        if !is_whole || !in_order {
            return None;
        }
        lengths.push(length * devices);
    }
    (lengths.len() > 1).then(|| Sections::new(&lengths, devices))?
}

/// Which device holds the element that an expression without variables moves.
fn owner(value: &Expr, call: &Use, places: &[Placement], devices: i64) -> Option<i64> {
    let mut device = None;
    value.walk(&mut |e| {
        let Expr::Load { from, at, .. } = e else { return };
        let (Some(Arg::Tensor(ty)), Some(place)) = (call.args.get(*from), places.get(*from)) else { return };
        let Some(axis) = place.axis() else { return };
        let Some(at) = at[axis].known() else { return };
        let holder = match place {
            Placement::Sections(_, sections) => {
                let section = sections.iter().find(|s| s.start <= at && at < s.start + s.size);
                section.map(|s| (at - s.start) / (s.size / devices))
            }
            _ => Some(at / (sizes(ty)[axis] / devices)),
        };
        device = device.or(holder);
    });
    device
}

const fn greatest_divisor(a: i64, b: i64) -> i64 {
    let (mut a, mut b) = (a.abs(), b.abs());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Results that are slices of a divided tensor: each device takes them from what it holds.
#[expect(clippy::too_many_lines, reason = "one proof, with what its steps share")]
fn by_slices(call: &Use, places: &[Placement], devices: i64) -> Option<Local> {
    let tensors = || call.args.iter().enumerate().filter(|(_, arg)| matches!(arg, Arg::Tensor(_)));
    let (input, _) = tensors().next()?;
    let (Arg::Tensor(ty), Some(axis), 1) = (&call.args[input], places[input].axis(), tensors().count())
    else {
        return None;
    };
    let sections: Vec<_> = match places[input] {
        Placement::Sections(_, sections) => sections.iter().collect(),
        _ => vec![super::sections::Section { start: 0, size: sizes(ty)[axis] }],
    };
    let whole = call.loops().filter(|loops| loops.computed.is_empty())?;
    let (mut slices, mut placements, mut outputs) = (Vec::new(), Vec::new(), Vec::new());
    for ((value, vars), output) in whole.values.iter().zip(&whole.vars).zip(&call.outputs) {
        let Expr::Load { from, at, .. } = value else { return None };
        if *from != input {
            return None;
        }
        let (mut starts, mut lengths, mut next, mut place) = (Vec::new(), Vec::new(), 0, None);
        for (k, index) in at.iter().enumerate() {
            // A constant, or the next axis of the result that has more than one element, shifted.
            let mut own = None;
            index.each_var(&mut |var| own = Some(var));
            let length = match own {
                None => index.known().map(|_| 1)?,
                Some(var) => {
                    let at = vars[next..].iter().position(|v| *v == var)? + next;
                    (index.factor(var) == Some(1) && index.terms.len() == 1).then_some(())?;
                    next = at + 1;
                    if k == axis {
                        place = Some(at);
                    }
                    var.size
                }
            };
            let start = index.constant;
            if k != axis {
                starts.push(start);
                lengths.push(length);
                continue;
            }
            let taken: Vec<i64> = sections
                .iter()
                .filter(|s| start <= s.start && s.start + s.size <= start + length)
                .map(|s| s.size)
                .collect();
            if taken.iter().sum::<i64>() != length || start % devices != 0 {
                return None;
            }
            starts.push(start / devices);
            lengths.push(length / devices);
            let place = place?;
            placements.push(match taken.as_slice() {
                [_] => Placement::Shard(place),
                all => Placement::Sections(place, Sections::new(all, devices)?),
            });
        }
        outputs.push(shard_type(output, *placements.last()?, devices)?);
        slices.push((starts, lengths));
    }
    let args = local_args(call, places, devices, &outputs)?;
    let call = Use { op: call.op, args, outputs };
    Some(Local { call, placements, around: Around::Slices(slices) })
}

/// What each device computes of whole operands so that the result is divided; `None` if it cannot be done so.
pub(super) fn spread(call: &Use, axis: usize, devices: i64) -> Option<Local> {
    let whole = vec![Placement::Replicate; call.args.len()];
    if let Some(loops) = call.loops() {
        return by_expressions(call, &loops, &whole, Some((axis, None)), devices);
    }
    // Another name of an op, such as `zeros`.
    let inner = only_op(call)?;
    let part = spread(&inner, axis, devices)?;
    let args = local_args(call, &whole, devices, &part.call.outputs)?;
    let own = Use { op: call.op, args, outputs: part.call.outputs.clone() };
    build(&own, false)?;
    let agrees = only_op(&own).is_some_and(|own| own.op == part.call.op && own.args == part.call.args);
    agrees.then_some(Local { call: own, placements: part.placements, around: Around::Nothing })
}

/// Whether a use makes zeros.
pub(super) fn is_zero(call: &Use) -> bool {
    if call.outputs.len() != 1 || call.args.iter().any(|arg| matches!(arg, Arg::Tensor(_))) {
        return false;
    }
    let inner = if call.loops().is_none() { only_op(call) } else { Some(call.clone()) };
    let values = inner.and_then(|call| call.loops()).map(|loops| loops.values);
    values.is_some_and(|values| values.iter().all(is_zero_number))
}

/// The only op that a use without tensors expands to.
fn only_op(call: &Use) -> Option<Use> {
    call.op.expand?;
    let (graph, _, outputs) = build(call, true)?;
    let mut nodes = graph.nodes();
    let (_, node) = nodes.next()?;
    let is_alone = nodes.next().is_none() && node.outputs.as_slice() == outputs.as_slice();
    let reads_none = node.inputs.iter().all(|&v| graph.lit(v).is_some());
    (is_alone && reads_none).then(|| Use::of(&graph, node))?
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

/// Ways to divide the other operands that may fit operand `operand` in its place; [`local`] says which do.
pub fn candidates(call: &Use, operand: usize, place: Placement) -> Vec<Vec<Placement>> {
    let Some(axis) = place.axis() else { return Vec::new() };
    let mut all: Vec<Vec<Placement>> = Vec::new();
    let mut add = |axes: Vec<Option<usize>>| {
        let mut places: Vec<Placement> = axes
            .into_iter()
            .map(|axis| axis.map_or(Placement::Replicate, |axis| place.along(axis)))
            .collect();
        places[operand] = place;
        if !all.contains(&places) {
            all.push(places);
        }
    };
    if let Some(mut loops) = call.loops().or_else(|| indexed::loops(call)) {
        // What is read of other operands by a variable is seen without temporaries alone.
        if call.op.on_rows.is_some()
            && let Some(inlined) = call.loops().and_then(Loops::inlined)
        {
            loops = inlined;
        }
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
pub(super) fn variables(loops: &Loops, operand: usize, axis: usize) -> Vec<Var> {
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
