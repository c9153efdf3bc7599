//! Ops that consist of others divide as these do, if what they consist of on shards is the same but for sizes.

use mithril_ir::graph::{Graph, TensorType, ValueId};
use rustc_hash::FxHashMap;

use super::halo::{self, Halo};
use super::rule::{self, Arg, Around, Local, Placement, Use, build, local_args, shard_type};

/// An op divides as its expansion does, if the expansion on shards is the same but for sizes; perhaps with a halo exchange
/// before it.
pub(super) fn local(call: &Use, places: &[Placement], devices: i64, with_halo: bool) -> Option<Local> {
    call.op.expand?;
    let (graph, args, outputs) = build(call, true)?;
    let mut placed: FxHashMap<ValueId, Placement> =
        args.iter().copied().zip(places.iter().copied()).collect();
    let mut parts = Vec::new();
    let mut halos: Vec<(usize, Halo)> = Vec::new();
    for (_, node) in graph.nodes() {
        let inner = Use::of(&graph, node)?;
        let place = |v: &ValueId| placed.get(v).copied().unwrap_or(Placement::Replicate);
        let places: Vec<Placement> = node.inputs.iter().map(place).collect();
        let is_whole = places.iter().all(|place| *place == Placement::Replicate);
        let part = if is_whole {
            rule::local(&inner, &places, devices)
        } else {
            let own = rule::same_op(&inner, &places, devices);
            own.or_else(|| if with_halo { halo::local(&inner, &places, devices) } else { None })
        }?;
        if let Around::Halo(inner) = &part.around {
            for (i, halo) in inner {
                // The rows are exchanged before the op itself, for all that reads the operand.
                let operand = args.iter().position(|v| *v == node.inputs[*i])?;
                let readers = graph.nodes().filter(|(_, node)| node.inputs.contains(&args[operand]));
                (readers.count() == 1).then(|| halos.push((operand, halo.clone())))?;
            }
        }
        placed.extend(node.outputs.iter().copied().zip(part.placements.iter().copied()));
        parts.push(part.call);
    }
    let place = |v: &ValueId| placed.get(v).copied().unwrap_or(Placement::Replicate);
    let placements: Vec<Placement> = outputs.iter().map(place).collect();
    let types: Vec<TensorType> = call
        .outputs
        .iter()
        .zip(&placements)
        .map(|(ty, place)| shard_type(ty, *place, devices))
        .collect::<Option<_>>()?;
    let mut part_args = local_args(call, places, devices, &types)?;
    if with_halo {
        for (i, halo) in &halos {
            part_args[*i] = halo.extended(&part_args[*i])?;
        }
        part_args = halo::on_rows(call, part_args, &types, places, &halos)?;
    }
    let part = Use { op: call.op, args: part_args, outputs: types };
    build(&part, false)?;
    if !is_expansion(&part, &parts, &graph, &args, &outputs)? {
        return None;
    }
    let around = if with_halo { Around::Halo(halos) } else { Around::Nothing };
    Some(Local { call: part, placements, around })
}

/// Whether a use expands to these parts of the nodes of a graph.
fn is_expansion(
    call: &Use,
    parts: &[Use],
    graph: &Graph,
    args: &[ValueId],
    outputs: &[ValueId],
) -> Option<bool> {
    let (own_graph, own_args, own_outputs) = build(call, true)?;
    if own_graph.nodes().len() != graph.nodes().len() {
        return None;
    }
    let mut map: FxHashMap<ValueId, ValueId> = args.iter().copied().zip(own_args).collect();
    for (((_, whole), (_, own)), part) in graph.nodes().zip(own_graph.nodes()).zip(parts) {
        let same = whole.op == own.op
            && whole.inputs.len() == own.inputs.len()
            && whole.inputs.iter().zip(&own.inputs).zip(&part.args).all(|((a, b), arg)| match arg {
                Arg::Lit(lit) => own_graph.lit(*b) == Some(lit),
                Arg::Tensor(ty) => map.get(a) == Some(b) && own_graph.ty(*b) == Some(ty),
            })
            && whole.outputs.len() == own.outputs.len()
            && own.outputs.iter().zip(&part.outputs).all(|(&v, ty)| own_graph.ty(v) == Some(ty));
        if !same {
            return None;
        }
        map.extend(whole.outputs.iter().copied().zip(own.outputs.iter().copied()));
    }
    Some(outputs.iter().zip(&own_outputs).all(|(a, b)| map.get(a) == Some(b)))
}
