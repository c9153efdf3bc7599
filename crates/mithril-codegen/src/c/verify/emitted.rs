//! Whether the calls, in the order in which they are written to the file, read what was written before, and whether threads
//! wait where one needs what others make.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::c::ir::driver::{Does, Effect, Line, Phase, Statement};
use crate::c::ir::expr::{BufferId, StepId};
use crate::c::ir::program::{KernelMemory, KernelProgram, KernelWork, PackCall, Place};
use crate::c::verify::memory::Memory;
use crate::c::verify::messages::named;

/// What is there after packing.
#[derive(Clone, Debug, Default)]
pub struct Packed {
    buffers: BTreeSet<BufferId>,
    weights: BTreeSet<usize>,
}

/// Goes through the parts of packing, each of which has to do without the others; what they leave.
pub fn packing(program: &KernelProgram, parts: &[Vec<Phase>]) -> Result<Packed, String> {
    check_places(program)?;
    let mut packed = Packed::default();
    for (number, part) in parts.iter().enumerate() {
        let mut memory = Memory::new(program);
        for statement in part.iter().flat_map(|phase| &phase.calls) {
            let Does::Call(effect) = &statement.does else { continue };
            effect
                .reads
                .iter()
                .try_for_each(|&b| memory.read(b))
                .map_err(|text| format!("part {number} of packing, `{}`, {text}", statement.text))?;
            effect.writes.iter().for_each(|&b| memory.write(b));
            let is_packed =
                |b: &&BufferId| matches!(program.buffers[**b].place, Place::Memory(KernelMemory::Packed(_)));
            packed.buffers.extend(effect.writes.iter().filter(is_packed));
            packed.weights.extend(effect.packs);
        }
    }
    Ok(packed)
}

/// What is packed lies at places of its own.
fn check_places(program: &KernelProgram) -> Result<(), String> {
    let mut places: Vec<(Range<usize>, String)> = Vec::new();
    for (b, buffer) in program.buffers.entries() {
        if let Place::Memory(KernelMemory::Packed(Some(at))) = buffer.place {
            places.push((at..at + buffer.bytes(), named(program, b)));
        }
    }
    let mut weights: BTreeMap<usize, PackCall> = BTreeMap::new();
    for step in &program.steps {
        let KernelWork::Kernel(k) = &step.work else { continue };
        let Some(pack) = k.pack() else { continue };
        // Kernels may share what is packed in the same way from the same weights.
        if !weights.get(&k.packed).is_some_and(|other| other.does_as(&pack)) {
            places.push((k.packed..k.packed + k.kernel.packed_bytes, format!("weights of the {}", k.what)));
            weights.insert(k.packed, pack);
        }
    }
    places.sort_by_key(|(place, _)| (place.start, place.end));
    for pair in places.windows(2) {
        if pair[1].0.start < pair[0].0.end && !pair[1].0.is_empty() {
            return Err(format!("{} and {} are packed to one place", pair[0].1, pair[1].1));
        }
    }
    match places.iter().find(|(place, _)| place.end > program.info.packed_bytes) {
        Some((_, name)) => Err(format!("{name} lies behind the {} packed bytes", program.info.packed_bytes)),
        None => Ok(()),
    }
}

/// Goes through the lines of a call; of several threads if they share the work.
pub fn running(
    program: &KernelProgram,
    packed: &Packed,
    lines: &[Line<'_>],
    threads: bool,
) -> Result<(), String> {
    let mut memory = Memory::new(program);
    packed.buffers.iter().for_each(|&b| memory.write(b));
    let mut run = Running { program, memory, packed, part: None, since: threads.then(Vec::new) };
    // What one time leaves must not be in the way of the next.
    for _ in 0..program.tiles().min(2) {
        for line in lines {
            match line {
                Line::Wait => run.since.iter_mut().for_each(Vec::clear),
                Line::Text(_) => {}
                Line::Statement { statement, everyone, at } => {
                    run.statement(statement, *everyone, *at).map_err(|text| {
                        let step = &program.steps[at.0];
                        format!(
                            "step {}, `{}` in {}, `{}`, {text}",
                            at.0, step.name, step.origin, statement.text
                        )
                    })?;
                }
            }
        }
    }
    Ok(())
}

/// What is known in front of a line.
struct Running<'a> {
    program: &'a KernelProgram,
    memory: Memory<'a>,
    packed: &'a Packed,
    /// What has been written in the part in hand, inside of the loop over parts.
    part: Option<BTreeSet<BufferId>>,
    /// With threads: calls since they waited the last time.
    since: Option<Vec<Since<'a>>>,
}

/// A call since the threads waited.
struct Since<'a> {
    effect: &'a Effect,
    everyone: bool,
    at: (StepId, usize),
}

impl<'a> Running<'a> {
    fn statement(
        &mut self,
        statement: &'a Statement,
        everyone: bool,
        at: (StepId, usize),
    ) -> Result<(), String> {
        match &statement.does {
            Does::Begin => self.part = Some(BTreeSet::new()),
            Does::End => {
                self.part = None;
                self.forget_own();
            }
            Does::Call(effect) => {
                self.call(effect)?;
                self.wait(Since { effect, everyone, at })?;
            }
        }
        Ok(())
    }
    fn forget_own(&mut self) {
        self.memory.forget(|place| matches!(place, Place::Memory(KernelMemory::Scratch(_))));
    }
    fn call(&mut self, effect: &Effect) -> Result<(), String> {
        if self.part.is_some() && effect.divided {
            return Err(
                "divides between threads what a part consists of, which one thread computes".to_owned()
            );
        }
        for &b in &effect.reads {
            self.memory.read(b)?;
            let is_own = matches!(self.program.buffers[b].place, Place::Memory(KernelMemory::Scratch(_)));
            if !is_own && self.part.as_ref().is_some_and(|written| written.contains(&b)) {
                return Err(format!("reads {}, of which other parts fill some", named(self.program, b)));
            }
        }
        if let Some(at) = effect.weights.filter(|at| !self.packed.weights.contains(at)) {
            return Err(format!("reads weights at {at}, where none are packed"));
        }
        for &to in &effect.writes {
            let other = effect.reads.iter().find(|b| **b != to && self.memory.overlap(to, **b));
            if let Some(&b) = other {
                let [to, b] = [to, b].map(|b| named(self.program, b));
                return Err(format!("writes {to} over {b}, which it reads"));
            }
            self.memory.write(to);
        }
        match &mut self.part {
            Some(written) => written.extend(&effect.writes),
            None => self.forget_own(),
        }
        Ok(())
    }
    /// Whether what other threads may still do leaves a call alone. Calls of a phase know of each other.
    fn wait(&mut self, new: Since<'a>) -> Result<(), String> {
        let Some(since) = &mut self.since else { return Ok(()) };
        let meets = |a: &[BufferId], b: &[BufferId]| {
            a.iter().find(|a| b.iter().any(|b| self.memory.overlap(**a, *b))).copied()
        };
        for old in since.iter().filter(|old| old.at != new.at && (old.everyone || new.everyone)) {
            let [(reads, writes), (new_reads, new_writes)] =
                [old, &new].map(|call| (&call.effect.reads[..], &call.effect.writes[..]));
            let met = meets(new_reads, writes).or(meets(new_writes, writes)).or(meets(new_writes, reads));
            if let Some(b) = met {
                let text = named(self.program, b);
                return Err(format!("does not wait for step {}, which touches {text}, too", old.at.0));
            }
        }
        since.push(new);
        Ok(())
    }
}
