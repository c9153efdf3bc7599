//! Halo exchange: an op that slides windows over a divided axis reads its own rows and some of its neighbors' (the halo).
//!
//! The index of an operand in the tensor expressions of an op says which rows an element of the result reads. With
//! `p · chunk + i` for the divided variable it is `p · step + k`, and the range of `k` says which rows device `p` needs:
//! those of its own block if `step` is the size of a block, plus some before and after it. Devices exchange these rows, and
//! the op is computed on the extended block. Where the tensor ends, a row holds what the op takes for its padding.
//! If `step` is another number, what a device needs moves away from its block by the difference for each device: a longer
//! block is exchanged, and each device takes its own rows of it.
//!
//! What the literals of an op say of rows that are not there changes with the block: `on_rows` of its definition has those of
//! a part. As everywhere, that the parts are those of the whole result is proved, here row by row ([`super::compare`]).

use mithril_ir::Lit;
use mithril_ir::build::Builder;
use mithril_ir::dim::Dim;
use mithril_ir::error::{Place, Result};
use mithril_ir::formula::{Cx, V};
use mithril_ir::graph::{Graph, TensorType, ValueId};
use mithril_ir::loops::{Expr, Index, LoopCx, Var, Within};
use mithril_ir::ops::collective;
use mithril_ir::ops::compare::{LESS, LESS_EQUAL, WHERE};
use mithril_ir::ops::index::TAKE;
use mithril_ir::ops::movement::TRANSPOSE;
use mithril_ir::ops::slicing::SLICE;
use mithril_ir::shape::Shape;
use mithril_ir::tensor::Scalar;

use super::compare::{Comparison, Loops};
use super::expansion;
use super::rows::{self, Guarded};
use super::rule::{self, Arg, Around, Local, Placement, Use, build, local_args, shard_type, sizes};

/// The rows that a device reads of a tensor whose blocks lie on the devices.
#[derive(Clone, Debug, PartialEq)]
pub struct Halo {
    /// The axis of the tensor.
    pub(super) axis: usize,
    /// Rows of a block.
    pub(super) own: i64,
    /// The first row of device 0, counted from its block.
    pub(super) start: i64,
    /// By how many rows that of the next device is farther from its block.
    pub(super) drift: i64,
    /// How many rows.
    pub(super) count: i64,
    /// What is read where the tensor has no row; `None` if nothing is.
    pub(super) fill: Option<Scalar>,
}

impl Halo {
    /// Rows in front of the block and behind it that some device reads.
    fn reach(&self, devices: i64) -> [i64; 2] {
        let starts = [self.start, self.start + (devices - 1) * self.drift];
        let before = starts.into_iter().map(|start| -start).max().unwrap_or(0);
        let after = starts.into_iter().map(|start| start + self.count - self.own).max().unwrap_or(0);
        [before.max(0), after.max(0)]
    }
    /// How many rows come from a device that is so many places away.
    const fn rows(&self, reach: i64, hop: i64) -> i64 {
        let rest = reach - (hop - 1) * self.own;
        if rest < self.own { rest } else { self.own }
    }
    /// How many devices away the farthest rows lie.
    const fn hops(&self, reach: i64) -> i64 {
        (reach + self.own - 1) / self.own
    }
    /// The row of the tensor that is row 0 of the extended block of device 0, and how many rows on that of the next device is.
    pub(super) const fn origin(&self) -> (i64, i64) {
        (self.start, self.own + self.drift)
    }
    /// An operand with the rows that are read.
    pub(super) fn extended(&self, arg: &Arg) -> Option<Arg> {
        let Arg::Tensor(ty) = arg else { return None };
        let mut sizes = sizes(ty);
        *sizes.get_mut(self.axis)? = self.count;
        Some(Arg::Tensor(TensorType { dtype: ty.dtype, shape: Shape::of(sizes) }))
    }
    /// Rows that a device sends.
    fn sent_rows(&self, devices: i64) -> i64 {
        self.reach(devices).into_iter().map(|reach| reach.min((devices - 1) * self.own)).sum()
    }
    /// Bytes that a device sends.
    fn sent(&self, ty: &TensorType, devices: i64) -> u64 {
        let sizes = sizes(ty);
        let row = sizes.iter().product::<i64>() / sizes[self.axis].max(1);
        self.sent_rows(devices).saturating_mul(row) as u64 * ty.dtype.size() as u64
    }
}

/// Bytes that a device sends around an op.
pub(super) fn sent(call: &Use, local: &Local, devices: i64) -> u64 {
    let Around::Halo(halos) = &local.around else { return 0 };
    let bytes = |(i, halo): &(usize, Halo)| match &call.args[*i] {
        Arg::Tensor(ty) => halo.sent(ty, devices),
        Arg::Lit(_) => 0,
    };
    halos.iter().map(bytes).fold(0, u64::saturating_add)
}

/// Where a program gathers divided axes that windows move over, and why: the places of the model, each with a reason.
pub fn gathered(graph: &Graph) -> Vec<(Place, String)> {
    let mut all: Vec<(Place, String)> = Vec::new();
    let mut seen: Vec<ValueId> = Vec::new();
    for (n, node) in graph.nodes().filter(|(_, node)| node.op.on_rows.is_some()) {
        let Some(source) = graph.producer(node.inputs[0]).map(|n| graph.node(n)) else { continue };
        let is_new = source.op == &collective::ALL_GATHER && !seen.contains(&node.inputs[0]);
        let (true, Some(axis), Some((mesh_axis, devices))) =
            (is_new, collective::axis_of(graph, source), collective::mesh_axis_of(graph, source))
        else {
            continue;
        };
        seen.push(node.inputs[0]);
        let rows = graph.ty(node.outputs[0]).map(sizes).and_then(|sizes| sizes.get(axis).copied());
        let Some(rows) = rows.filter(|_| axis > 1) else { continue };
        let reason = if rows % devices == 0 {
            format!("its windows read more than the {devices} devices along `{mesh_axis}` exchange")
        } else {
            format!(
                "{rows} elements along axis {axis} of its result do not divide among {devices} devices along `{mesh_axis}`"
            )
        };
        let entry = (graph.place(n).clone(), reason);
        if !all.contains(&entry) {
            all.push(entry);
        }
    }
    all
}

/// What each device computes if it exchanges rows with its neighbors before; `None` if that is not enough, or not known to
/// be right.
pub fn local(call: &Use, places: &[Placement], devices: i64) -> Option<Local> {
    call.op.on_rows?;
    let is_block = |place: &Placement| matches!(place, Placement::Replicate | Placement::Shard(_));
    if !places.iter().all(is_block) {
        return None;
    }
    for (arg, place) in call.args.iter().zip(places) {
        if let Arg::Tensor(ty) = arg {
            shard_type(ty, *place, devices)?;
        }
    }
    let Some(whole) = call.loops() else { return expansion::local(call, places, devices, true) };
    let whole = whole.inlined()?;
    let cut = places.iter().position(|place| place.axis().is_some())?;
    let axis = places[cut].axis()?;
    let vars = rule::variables(&whole, cut, axis);
    vars.into_iter().find_map(|var| by_variable(call, &whole, places, var, devices))
}

/// The same if this variable is divided.
fn by_variable(call: &Use, whole: &Loops, places: &[Placement], var: Var, devices: i64) -> Option<Local> {
    if var.size == 0 || var.size % devices != 0 {
        return None;
    }
    let is_result = whole.vars.first()?.iter().position(|own| *own == var);
    let result = is_result.map_or(Placement::Replicate, Placement::Shard);
    let outputs: Vec<TensorType> =
        call.outputs.iter().map(|ty| shard_type(ty, result, devices)).collect::<Option<_>>()?;
    let reads = reads(whole, places, var, devices)?;
    // With all rows of the block, and with those alone that are read.
    [false, true].into_iter().find_map(|is_tight| {
        let mut args = local_args(call, places, devices, &outputs)?;
        let mut halos = Vec::new();
        for (i, read) in reads.iter().enumerate() {
            let (Some(read), Some(axis), Arg::Tensor(ty)) = (read, places[i].axis(), &args[i]) else {
                continue;
            };
            let own = sizes(ty)[axis];
            let is_aligned = read.step == own;
            let is_whole = is_aligned && !is_tight;
            let start = if is_whole { read.low.min(0) } else { read.low };
            let end = if is_whole { read.high.max(own - 1) } else { read.high };
            let (drift, count) = (read.step - own, end - start + 1);
            let halo = Halo { axis, own, start, drift, count, fill: read.fill };
            // All rows are gathered rather than sent one after another.
            if halo.sent_rows(devices) > (devices - 1) * own {
                return None;
            }
            args[i] = halo.extended(&args[i])?;
            halos.push((i, halo));
        }
        let args = on_rows(call, args, &outputs, places, &halos)?;
        let part = Use { op: call.op, args, outputs: outputs.clone() };
        build(&part, false)?;
        let loops = part.loops()?.inlined()?;
        let comparison = Comparison::new(call, whole, &loops, places, None, devices)?.with_halos(&halos);
        let mut placements = Vec::new();
        for (whole, part) in whole.values.iter().zip(&loops.values) {
            placements.push(match (result, comparison.equal(whole, part)?) {
                (place, None) => place,
                (Placement::Replicate, Some(reduction)) => Placement::Partial(reduction),
                _ => return None,
            });
        }
        Some(Local { call: part, placements, around: Around::Halo(halos) })
    })
}

/// The arguments of a part, with the literals that belong to its rows.
pub(super) fn on_rows(
    call: &Use,
    mut args: Vec<Arg>,
    outputs: &[TensorType],
    places: &[Placement],
    halos: &[(usize, Halo)],
) -> Option<Vec<Arg>> {
    let axis = places.first()?.axis()?;
    let before = halos.iter().find(|(i, _)| *i == 0).map_or(0, |(_, halo)| -halo.start);
    let part = Use { op: call.op, args: args.clone(), outputs: outputs.to_vec() };
    let of = |call: &Use| -> (Vec<_>, Vec<_>) {
        (call.loop_args(), call.outputs.iter().map(|ty| (ty.dtype, sizes(ty))).collect())
    };
    let ((whole_args, whole_outputs), (part_args, part_outputs)) = (of(call), of(&part));
    let whole = LoopCx::new(call.op, &whole_args, &whole_outputs, 0);
    let part = LoopCx::new(call.op, &part_args, &part_outputs, 0);
    for (port, lit) in (call.op.on_rows?)(&whole, &part, axis, before).ok()? {
        args[port] = Arg::Lit(lit);
    }
    Some(args)
}

/// Which rows of an operand a device reads: from `p · step + low` to `p · step + high`.
struct Read {
    step: i64,
    low: i64,
    high: i64,
    fill: Option<Scalar>,
}

/// What is read of each operand if a variable is divided; `None` if that is not so for all devices alike.
fn reads(whole: &Loops, places: &[Placement], var: Var, devices: i64) -> Option<Vec<Option<Read>>> {
    let chunk = var.size / devices;
    let device = Var { id: u32::MAX, size: devices };
    let divided = |v: Var| {
        if v == var {
            Index::var(device) * chunk + Index::var(Var { id: v.id, size: chunk })
        } else {
            Index::var(v)
        }
    };
    let mut all: Vec<Option<Read>> = places.iter().map(|_| None).collect();
    let mut fits = true;
    for value in &whole.values {
        each_read(value, &mut |read| {
            let (from, fill) = (read.from, read.other.map(|(number, _)| number));
            for (k, index) in read.at.iter().enumerate() {
                let index: Index = index.substitute(&divided);
                let Some(step) = index.factor(device).filter(|_| !index.reads()) else {
                    fits = false;
                    return;
                };
                if places[from].axis() != Some(k) {
                    fits &= step == 0;
                    continue;
                }
                let tests = read
                    .tests
                    .iter()
                    .map(|test| Within::new(test.index.substitute(&divided), test.from, test.to));
                let tests: Vec<Within> = tests.filter(|test| test.index.factor(device) == Some(0)).collect();
                let (low, high) = rows::range(&(index - Index::var(device) * step), &tests);
                match &mut all[from] {
                    Some(read) => {
                        fits &=
                            read.step == step && (read.fill == fill || fill.is_none() || read.fill.is_none());
                        (read.low, read.high) = (read.low.min(low), read.high.max(high));
                        read.fill = read.fill.or(fill);
                    }
                    none => *none = Some(Read { step, low, high, fill }),
                }
            }
        });
    }
    fits.then_some(all)
}

/// Calls `f` with each element that is read.
fn each_read(e: &Expr, f: &mut dyn FnMut(&Guarded<'_>)) {
    match Guarded::of(e) {
        Some(read) => f(&read),
        None => e.children().into_iter().for_each(|inner| each_read(inner, f)),
    }
}

/// Writes the extended block of a device.
pub(super) fn write(
    builder: &mut Builder,
    axis: &str,
    devices: i64,
    halo: &Halo,
    block: ValueId,
) -> Result<ValueId> {
    // Rows of a transposed tensor are those of the tensor itself: what is exchanged for a convolution serves its gradient, and
    // between them only these rows are kept.
    let (source, order) =
        transposed(&builder.graph, block).map_or((block, None), |(v, order)| (v, Some(order)));
    let along = order.as_ref().map_or(halo.axis, |order| order[halo.axis]);
    let results = builder.formula(|cx| {
        let (x, source) = (cx.value(block), cx.value(source));
        let (mesh, count) = (cx.lit(Lit::text(axis)), cx.lit(Lit::int(devices)));
        let index = || cx.call(&collective::MESH_INDEX, &[mesh, count]);
        let [before, after] = halo.reach(devices);
        let mut parts = Vec::new();
        let received = |reach: i64, hop: i64, is_before: bool| {
            let rows = halo.rows(reach, hop);
            if hop >= devices {
                return filled(cx, x, halo, rows);
            }
            let first = if is_before { halo.own - rows } else { 0 };
            let own = slice(source, along, first, first + rows);
            let pair = |i: i64| if is_before { (i, i + hop) } else { (i + hop, i) };
            let pairs = (0..devices - hop).map(pair).map(|(from, to)| (from as usize, to as usize));
            let pairs = cx.lit(collective::pairs_literal(pairs));
            let neighbors = own.op(&collective::COLLECTIVE_PERMUTE, &[mesh, count, pairs]);
            // Nobody sends to the first or last devices, which have zeros.
            let rows = match halo.fill.filter(|fill| fill.f64() != 0.0) {
                None => neighbors,
                Some(fill) => {
                    let is_there = if is_before {
                        cx.lit(Lit::int(hop)).op(&LESS_EQUAL, &[index()])
                    } else {
                        index().op(&LESS, &[cx.lit(Lit::int(devices - hop))])
                    };
                    is_there.op(&WHERE, &[neighbors, cx.lit(number(fill))])
                }
            };
            match &order {
                Some(order) => rows.transpose(order.clone()),
                None => rows,
            }
        };
        parts.extend((1..=halo.hops(before)).rev().map(|hop| received(before, hop, true)));
        // Of its own rows those that are read.
        let is_aligned = halo.drift == 0;
        let first = if is_aligned { halo.start.max(0) } else { 0 };
        let last = if is_aligned { (halo.start + halo.count).min(halo.own) } else { halo.own };
        if first < last {
            parts.push(if first == 0 && last == halo.own { x } else { slice(x, halo.axis, first, last) });
        }
        parts.extend((1..=halo.hops(after)).map(|hop| received(after, hop, false)));
        let joined = if let [only] = parts.as_slice() { *only } else { cx.concat(halo.axis as i64, &parts) };
        if is_aligned {
            return vec![joined];
        }
        let first = index() * cx.lit(Lit::int(halo.drift)) + cx.lit(Lit::int(before + halo.start));
        let at = cx.arange(halo.count) + first;
        vec![joined.op(&TAKE, &[at, cx.lit(Lit::int(halo.axis as i64))])]
    })?;
    Ok(results[0])
}

/// What a tensor is a transposed form of, and which of its axes each axis is.
fn transposed(graph: &Graph, v: ValueId) -> Option<(ValueId, Vec<usize>)> {
    let node = graph.node(graph.producer(v)?);
    if node.op != &TRANSPOSE {
        return None;
    }
    let Some(Lit::Tuple(order)) = graph.lit(*node.inputs.get(1)?) else { return None };
    let axis = |lit: &Lit| match lit {
        Lit::Int(axis) => usize::try_from(axis.known()?).ok(),
        _ => None,
    };
    Some((node.inputs[0], order.iter().map(axis).collect::<Option<Vec<usize>>>()?))
}

fn number(fill: Scalar) -> Lit {
    match fill {
        Scalar::Float(x) => Lit::Float(x),
        Scalar::Int(n) => Lit::int(i64::try_from(n).unwrap_or(i64::MAX)),
        Scalar::Bool(b) => Lit::Bool(b),
    }
}

/// Rows that no device has.
fn filled<'a>(cx: &'a Cx, x: V<'a>, halo: &Halo, rows: i64) -> V<'a> {
    let mut shape = x.shape();
    shape.0[halo.axis] = Dim::Const(rows);
    let fill = halo.fill.map_or(Lit::int(0), number);
    cx.full(shape.0.to_vec(), fill, x.dtype())
}

/// Some rows.
fn slice(x: V<'_>, axis: usize, start: i64, stop: i64) -> V<'_> {
    let bound = |at: i64| {
        let whole = std::iter::repeat_n(Lit::None, axis);
        x.lit(Lit::Tuple(whole.chain([Lit::int(at)]).collect()))
    };
    x.op(&SLICE, &[bound(start), bound(stop)])
}
