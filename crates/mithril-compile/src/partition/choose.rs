//! How a use of an op is divided, given where its operands lie: the cheapest way in bytes sent and work done.

use mithril_ir::error::{Error, Result};
use mithril_ir::graph::TensorType;

use super::halo;
use super::pass::bytes;
use super::rule::{self, Arg, Local, Placement, Reduction, Use};
use super::work;

/// What an operation costs in units of a byte sent. Real machines compute much more in the time of a byte; but what
/// was divided is asked to stay divided, also where batches are small, as they are when somebody tries a layout.
const COST_OF_WORK: u64 = 4;

/// How a use is divided.
#[derive(Debug)]
pub(super) struct Choice {
    /// Where each operand has to lie.
    pub(super) places: Vec<Placement>,
    pub(super) local: Local,
    pub(super) cost: u64,
    /// What of it is work.
    pub(super) work: u64,
    /// Whether operands are sent so that they lie there.
    pub(super) is_sent: bool,
}

impl Choice {
    /// Whether each device has a part of a result.
    pub(super) fn has_divided_result(&self) -> bool {
        divides(&self.local.placements)
    }
}

/// Whether one of these is a division.
pub(super) fn divides(places: &[Placement]) -> bool {
    places.iter().any(|place| place.axis().is_some())
}

/// In which forms an operand exists.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Operand {
    /// Each is the value.
    pub(super) forms: Vec<Placement>,
    /// Their sum is the value.
    pub(super) addends: Vec<Placement>,
    /// Whether it is zero, and so a part of any sum.
    pub(super) is_zero: bool,
    /// Whether it may lie as is best.
    pub(super) is_free: bool,
}

impl Operand {
    /// Whether it exists in partial form only, all of one reduction.
    fn partial(&self) -> Option<Placement> {
        let first = self.forms.first().copied().filter(|place| place.is_partial())?;
        (self.addends.is_empty() && self.forms.iter().all(|place| *place == first)).then_some(first)
    }
    /// Whether some of it has to be summed up.
    pub(super) fn is_unresolved(&self) -> bool {
        self.partial().is_some() || self.addends.iter().any(|place| place.is_partial())
    }
    /// Bytes that a device sends so that a tensor of a type lies somewhere; `None` if that cannot be.
    pub(super) fn cost(&self, ty: &TensorType, to: Placement, devices: u64) -> Option<u64> {
        if self.forms.contains(&to) || to == Placement::Partial(Reduction::Sum) && self.is_zero {
            return Some(0);
        }
        if to.is_partial() {
            return None;
        }
        if self.is_free {
            return Some(0);
        }
        let of = |from: &Placement| conversion(ty, *from, to, devices);
        if self.addends.is_empty() {
            return self.forms.iter().map(of).min();
        }
        Some(self.addends.iter().map(of).sum())
    }
}

/// What a use costs that one device computes.
fn cost_of_work(call: &Use) -> u64 {
    COST_OF_WORK.saturating_mul(work::work(call))
}

/// Bytes that a device sends to bring a tensor of a type from one form to another.
fn conversion(ty: &TensorType, from: Placement, to: Placement, devices: u64) -> u64 {
    let part = bytes(ty) * (devices - 1) / devices;
    match (from, to) {
        (Placement::Replicate, _) => 0,
        (Placement::Partial(Reduction::Sum), Placement::Shard(_) | Placement::Sections(..)) => part,
        (Placement::Partial(_), _) => 2 * part,
        (Placement::Shard(_), Placement::Shard(_)) if from != to => part / devices,
        _ if from == to => 0,
        _ => part,
    }
}

/// The way to divide a use that costs the least; `wanted` is where its result has to lie, if it is a result of the program.
pub(super) fn choose(
    call: &Use,
    operands: &[Operand],
    preferred: Option<Placement>,
    devices: usize,
) -> Result<Choice> {
    let n = devices as u64;
    let whole = vec![Placement::Replicate; operands.len()];
    let local =
        rule::local(call, &whole, devices as i64).ok_or_else(|| Error::internal("an op is not itself"))?;
    let work = cost_of_work(call);
    let sent = before(call, operands, &whole, n).unwrap_or(u64::MAX);
    // What is cut afterwards will be computed in parts.
    let is_cut = preferred.is_some_and(|to| to.axis().is_some() && way(call, to, devices).is_some());
    let own_work = if is_cut { work / n } else { work };
    let cost = sent.saturating_add(own_work);
    let mut best = Choice { places: whole.clone(), local, cost, work: own_work, is_sent: sent > 0 };
    let has_free = operands.iter().any(|operand| operand.is_free);
    let mut consider = |places: Vec<Placement>, work: u64, is_late: bool| {
        let Some((local, exchanged)) = divided(call, &places, devices as i64) else { return false };
        let Some(before) = before(call, operands, &places, n) else { return true };
        // A sum that begins with zeros is a gradient, which is reduced together with others.
        let begins =
            places.iter().zip(operands).any(|(place, operand)| place.is_partial() && operand.is_zero);
        let is_divided = preferred.is_some_and(|to| to.axis().is_some());
        let after = if begins && !is_divided { 0 } else { after(call, &local, preferred, n) };
        let mut sent = before.saturating_add(after).saturating_add(exchanged);
        if before > 0 && has_free {
            sent = sent.saturating_add(gathers(call, &local.placements, n));
        }
        let cost = sent.saturating_add(work);
        let is_whole = has_free && best.has_divided_result() && !divides(&local.placements);
        if cost < best.cost || cost == best.cost && (is_late || is_whole) {
            best = Choice { places, local, cost, work, is_sent: before + exchanged > 0 };
        }
        true
    };
    // What is linear in partial operands may be reduced later.
    let partial: Vec<Placement> =
        operands.iter().map(|operand| operand.partial().unwrap_or(Placement::Replicate)).collect();
    if partial != whole {
        consider(partial, work, true);
    }
    for (i, operand) in operands.iter().enumerate() {
        if matches!(call.args[i], Arg::Lit(_)) {
            continue;
        }
        let rank = match &call.args[i] {
            Arg::Tensor(ty) if operand.is_free => ty.shape.rank(),
            _ => 0,
        };
        let known = operand.forms.iter().chain(&operand.addends).copied();
        for place in known.chain((0..rank).map(Placement::Shard)) {
            for places in rule::candidates(call, i, place) {
                if consider(places.clone(), work / n, false) {
                    continue;
                }
                // A sum that begins with zeros may begin so on each device.
                let mut places = places;
                for (place, operand) in places.iter_mut().zip(operands) {
                    if operand.is_zero && *place == Placement::Replicate {
                        *place = Placement::Partial(Reduction::Sum);
                    }
                }
                consider(places, work / n, false);
            }
        }
    }
    Ok(best)
}

/// What a device computes of operands that lie so, and bytes that it sends for it.
fn divided(call: &Use, places: &[Placement], devices: i64) -> Option<(Local, u64)> {
    let local = rule::local(call, places, devices).or_else(|| halo::local(call, places, devices))?;
    let sent = halo::sent(call, &local, devices);
    Some((local, sent))
}

/// Bytes that a device sends so that the operands lie so; `None` if they cannot.
fn before(call: &Use, operands: &[Operand], places: &[Placement], devices: u64) -> Option<u64> {
    let mut sum = 0_u64;
    for ((arg, operand), place) in call.args.iter().zip(operands).zip(places) {
        let Arg::Tensor(ty) = arg else { continue };
        sum = sum.saturating_add(operand.cost(ty, *place, devices)?);
    }
    Some(sum)
}

/// Bytes that a device sends to reduce what is partial afterwards, or to bring a result to its place.
fn after(call: &Use, local: &Local, preferred: Option<Placement>, devices: u64) -> u64 {
    let results = call.outputs.iter().zip(&local.placements);
    let to = preferred.unwrap_or(Placement::Replicate);
    let moves = results.filter(|(_, placement)| placement.is_partial() || preferred.is_some());
    moves.map(|(ty, placement)| conversion(ty, *placement, to, devices)).sum()
}

/// Bytes that a device sends to gather divided results: those of a product that gathers its operand to multiply it by a
/// divided weight will have to be gathered, too.
pub(super) fn gathers(call: &Use, results: &[Placement], devices: u64) -> u64 {
    let divided = call.outputs.iter().zip(results).filter(|(_, place)| place.axis().is_some());
    divided.map(|(ty, place)| conversion(ty, *place, Placement::Replicate, devices)).sum()
}

/// How operands have to lie so that the result lies somewhere, with nothing sent but rows that cost less than the work that
/// is saved.
pub(super) fn way(call: &Use, to: Placement, devices: usize) -> Option<(Vec<Placement>, Local)> {
    if call.outputs.len() != 1 {
        return None;
    }
    for (i, arg) in call.args.iter().enumerate() {
        let Arg::Tensor(ty) = arg else { continue };
        for axis in 0..ty.shape.rank() {
            for places in rule::candidates(call, i, to.along(axis)) {
                let Some((local, sent)) = divided(call, &places, devices as i64) else { continue };
                let saved =
                    if sent > 0 { cost_of_work(call) / devices as u64 * (devices as u64 - 1) } else { 0 };
                if sent > saved {
                    continue;
                }
                if local.placements[0] == to && !places.iter().any(|place| place.is_partial()) {
                    return Some((places, local));
                }
            }
        }
    }
    let local = rule::spread(call, to.axis()?, devices as i64)?;
    Some((vec![Placement::Replicate; call.args.len()], local))
}
