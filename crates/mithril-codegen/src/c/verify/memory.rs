//! Which buffers hold what was written to them, from call to call: memory that is given to another buffer holds nothing of
//! the first any more.

use std::collections::BTreeMap;

use crate::c::ir::expr::BufferId;
use crate::c::ir::program::{KernelBuffer, KernelMemory, KernelPlace, KernelProgram, Place};
use crate::c::verify::messages::named;
use crate::ids::Table;

/// What a buffer holds.
#[derive(Clone, Copy, Debug)]
enum Holds {
    Nothing,
    Everything,
    /// Another buffer was written to its memory.
    Overwritten(BufferId),
}

/// The memory of a program while its calls are gone through.
#[derive(Clone, Debug)]
pub struct Memory<'a> {
    program: &'a KernelProgram,
    holds: Table<BufferId, Holds>,
    /// KernelBuffers that hold something, in the arena and in the scratch memory of packing, by where they start.
    places: [BTreeMap<usize, BufferId>; 2],
}

impl<'a> Memory<'a> {
    /// Before the first call: what is given is there.
    pub fn new(program: &'a KernelProgram) -> Self {
        let is_there = |b: &KernelBuffer| {
            let is_external = matches!(b.place, Place::Input(_) | Place::Constant(_) | Place::State { .. });
            // What has no elements need not be filled.
            if is_external || b.count() == 0 { Holds::Everything } else { Holds::Nothing }
        };
        let holds = program.buffers.iter().map(is_there).collect();
        Self { program, holds, places: [BTreeMap::new(), BTreeMap::new()] }
    }
    /// Whether a buffer holds what was written to it.
    pub fn holds(&self, buffer: BufferId) -> bool {
        matches!(self.holds[buffer], Holds::Everything)
    }
    /// Why a buffer may not be read.
    pub fn read(&self, buffer: BufferId) -> Result<(), String> {
        let of = || named(self.program, buffer);
        match self.holds[buffer] {
            Holds::Everything => Ok(()),
            Holds::Nothing => Err(format!("reads {} before it is written", of())),
            Holds::Overwritten(by) => {
                Err(format!("reads {}, whose memory {} has taken", of(), named(self.program, by)))
            }
        }
    }
    /// A buffer is filled.
    pub fn write(&mut self, buffer: BufferId) {
        if let Some((space, start, end)) = self.extent(buffer) {
            let places = &mut self.places[space];
            let over = |(&at, &other): (&usize, &BufferId)| {
                let bytes = self.program.buffers[other].bytes();
                (other != buffer && start < at + bytes).then_some((at, other))
            };
            let lost: Vec<(usize, BufferId)> = places.range(..end).filter_map(over).collect();
            for (at, other) in lost {
                places.remove(&at);
                self.holds[other] = Holds::Overwritten(buffer);
            }
            if end > start {
                places.insert(start, buffer);
            }
        }
        self.holds[buffer] = Holds::Everything;
    }
    /// What lies in the memory of a thread, or among the scratch memory of packing, is gone.
    pub fn forget(&mut self, is_gone: impl Fn(&KernelPlace) -> bool) {
        for (buffer, holds) in self.program.buffers.iter().zip(&mut self.holds) {
            if is_gone(&buffer.place) && buffer.count() > 0 {
                *holds = Holds::Nothing;
            }
        }
    }
    /// Whether two buffers share memory.
    pub fn overlap(&self, a: BufferId, b: BufferId) -> bool {
        let is_own =
            |b: BufferId| matches!(self.program.buffers[b].place, Place::Memory(KernelMemory::Scratch(_)));
        match (self.extent(a), self.extent(b)) {
            _ if a == b => !is_own(a),
            (Some((space, start, end)), Some((other, from, to))) => {
                space == other && start < to && from < end
            }
            _ => false,
        }
    }
    /// The memory of a buffer whose place is chosen: which, from where to where.
    fn extent(&self, buffer: BufferId) -> Option<(usize, usize, usize)> {
        let b = &self.program.buffers[buffer];
        match b.place {
            Place::Memory(KernelMemory::Arena(Some(at))) => Some((0, at, at + b.bytes())),
            Place::Memory(KernelMemory::Packing(at)) => Some((1, at, at + b.bytes())),
            _ => None,
        }
    }
}
