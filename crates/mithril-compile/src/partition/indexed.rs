//! Ops that read, or add, at positions of a table whose places are divided.
//!
//! A device looks up the positions that lie in its block, at 0 for all others, whose results are zeros: the sum over
//! the devices is the result. What is added at positions of other devices is zero. So a table is never gathered.

use mithril_ir::build::Builder;
use mithril_ir::dim::Dim;
use mithril_ir::error::Result;
use mithril_ir::formula::V;
use mithril_ir::graph::ValueId;
use mithril_ir::loops::{LoopCx, ReduceOp, Within};
use mithril_ir::op::{Effect, Indexed};
use mithril_ir::ops::collective;
use mithril_ir::ops::compare::{LESS, LESS_EQUAL, LOGICAL_AND, WHERE};
use mithril_ir::ops::movement::RESHAPE;
use mithril_ir::shape::normalize_axis;
use mithril_ir::{DType, Lit};

use super::compare::Loops;
use super::rule::{Arg, Around, Local, Placement, Reduction, Use, build, local_args, shard_type, sizes};

/// A table whose places are divided, and positions that each device holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// The argument with the positions.
    positions: usize,
    /// What is added at them.
    source: Option<usize>,
    /// Places on all devices together.
    places: i64,
    /// The axis of the result, or of what is added, where those of the positions begin.
    axis: usize,
}

/// The table of a use and its axis of places.
fn table(call: &Use) -> Option<(Indexed, usize)> {
    let indexed = call.op.indexed?;
    let Arg::Tensor(ty) = call.args.get(indexed.table)? else { return None };
    let axis = match indexed.axis.map(|i| &call.args[i]) {
        None => 0,
        Some(Arg::Lit(Lit::Int(axis))) => normalize_axis(axis.known()?, ty.shape.rank()).ok()?,
        Some(Arg::Lit(Lit::None)) if ty.shape.rank() == 1 => 0,
        Some(_) => return None,
    };
    Some((indexed, axis))
}

/// What each device computes if the table is divided along its places.
pub(super) fn local(call: &Use, places: &[Placement], devices: i64) -> Option<Local> {
    let (indexed, axis) = table(call)?;
    let others = places.iter().enumerate().filter(|(i, _)| *i != indexed.table);
    let is_divided = places[indexed.table] == Placement::Shard(axis);
    if !is_divided || others.clone().any(|(_, place)| *place != Placement::Replicate) {
        return None;
    }
    let (Arg::Tensor(ty), Arg::Tensor(_)) = (&call.args[indexed.table], &call.args[indexed.indices]) else {
        return None;
    };
    let (source, placement) = match indexed.effect {
        Effect::Read => (None, Placement::Partial(Reduction::Sum)),
        Effect::Add(source) => (Some(source), Placement::Shard(axis)),
        Effect::Change(_) => return None,
    };
    let outputs = vec![shard_type(call.outputs.first()?, placement, devices)?];
    if matches!(outputs[0].dtype, DType::Bool) {
        return None;
    }
    let args = local_args(call, places, devices, &outputs)?;
    let part = Use { op: call.op, args, outputs };
    build(&part, false)?;
    let lookup = Lookup { positions: indexed.indices, source, places: sizes(ty)[axis], axis };
    Some(Local { call: part, placements: vec![placement], around: Around::Lookup(lookup) })
}

/// Writes a lookup: positions of other devices are masked.
pub(super) fn write(
    builder: &mut Builder,
    axis: &str,
    devices: i64,
    part: &Local,
    lookup: &Lookup,
    inputs: &[ValueId],
) -> Result<ValueId> {
    let (own, call) = (lookup.places / devices, &part.call);
    let results = builder.formula(|cx| {
        let at = cx.value(inputs[lookup.positions]);
        let (zero, size) = (cx.lit(Lit::int(0)), cx.lit(Lit::int(lookup.places)));
        let from_front = at.op(&LESS, &[zero]).op(&WHERE, &[at + size, at]);
        let index = cx.call(&collective::MESH_INDEX, &[cx.lit(Lit::text(axis)), cx.lit(Lit::int(devices))]);
        let place = from_front - index.cast(at.dtype()) * cx.lit(Lit::int(own));
        let below = |x: V<'_>, end: i64| {
            let x = cx.value(x.id());
            zero.op(&LESS_EQUAL, &[x]).op(&LOGICAL_AND, &[x.op(&LESS, &[cx.lit(Lit::int(end))])])
        };
        let is_here = below(place, own);
        // A position that is on no device stays one that the op refuses.
        let elsewhere = below(from_front, lookup.places).op(&WHERE, &[zero, size]);
        let safe = is_here.op(&WHERE, &[place, elsewhere.cast(at.dtype())]);
        // The mask along the axes of the positions.
        let masked = |x: V<'_>| {
            let (x, many) = (cx.value(x.id()), at.rank());
            let mask = if many == x.rank() {
                is_here
            } else {
                let mut line = vec![Dim::ONE; x.rank()];
                line[lookup.axis..lookup.axis + many].clone_from_slice(&at.shape().0);
                is_here.op(&RESHAPE, &[cx.lit(line)])
            };
            mask.op(&WHERE, &[x, cx.lit(Lit::int(0))])
        };
        let mut args: Vec<V<'_>> = inputs.iter().map(|&v| cx.value(v)).collect();
        args[lookup.positions] = safe;
        if let Some(source) = lookup.source {
            args[source] = masked(args[source]);
        }
        let looked_up = cx.call(call.op, &args);
        vec![if lookup.source.is_some() { looked_up } else { masked(looked_up) }]
    })?;
    Ok(results[0])
}

/// The tensor expressions of additions at positions, which are written as functions elsewhere.
pub(super) fn loops(call: &Use) -> Option<Loops> {
    let (indexed, axis) = table(call)?;
    let Effect::Add(source) = indexed.effect else { return None };
    let (Arg::Tensor(ty), Arg::Tensor(at), Arg::Tensor(_)) =
        (&call.args[indexed.table], &call.args[indexed.indices], &call.args[source])
    else {
        return None;
    };
    let args = call.loop_args();
    let outputs = [(call.outputs[0].dtype, sizes(&call.outputs[0]))];
    let cx = LoopCx::new(call.op, &args, &outputs, 0);
    let (places, is_line) = (sizes(ty)[axis], at.shape.rank() == 1);
    let count = sizes(at)[if is_line { 0 } else { axis }];
    // output[.., i, ..] = input[.., i, ..] + Σ_j (indices[.., j, ..] = i ? source[.., j, ..] : 0)
    let value = cx.output(0, |i| {
        let sum = cx.reduce(ReduceOp::Sum, &[count], |j| {
            let mut from = i.to_vec();
            from[axis] = j[0].clone();
            let read = if is_line {
                cx.load(indexed.indices, [j[0].clone()])
            } else {
                cx.load(indexed.indices, from.clone())
            };
            let place = cx.value(read, places, true);
            let is_here = Within::new(place - i[axis].clone(), 0, 1);
            cx.load(source, from).within(vec![is_here], cx.number(0.0, call.outputs[0].dtype))
        });
        cx.load(indexed.table, i.to_vec()) + sum
    });
    let (vars, ..) = cx.finish();
    Some(Loops { vars, values: vec![value], computed: Vec::new(), temporaries: Vec::new() })
}
