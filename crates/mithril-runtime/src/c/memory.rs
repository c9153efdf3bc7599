//! Memory for generated code and for ggml: aligned to 64 bytes, in huge pages where it is large, and used again.

use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use memmap2::MmapMut;
use mithril_ir::{Code, Error, Result};

/// From this size on memory comes straight from the system, in huge pages where it gives them: fewer of them are to be
/// looked up.
const LARGE: usize = 256 << 10;

/// Size of a huge page. Memory starts at a multiple of it, since the system makes huge pages of whole ones only.
const HUGE: usize = 2 << 20;

/// So many arenas are kept for later calls; with more calls at a time, the others are made anew.
const KEPT: usize = 4;

#[repr(align(64))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line(#[expect(dead_code, reason = "only its size and alignment count")] [u8; 64]);

/// Memory at a multiple of 64.
#[derive(Debug)]
pub(crate) enum Memory {
    Small(Box<[Line]>),
    Large { map: MmapMut, start: usize },
}

impl Memory {
    /// Memory of zeros.
    pub fn new(bytes: usize) -> Result<Self> {
        if bytes < LARGE {
            return Ok(Self::Small(vec![Line([0; 64]); bytes.div_ceil(64)].into_boxed_slice()));
        }
        // What is never touched takes no memory.
        let whole = bytes.next_multiple_of(HUGE);
        let map = MmapMut::map_anon(whole + HUGE).map_err(|e| {
            Error::new(Code::OutOfMemory, format!("there is no memory for {bytes} bytes: {e}"))
                .help("make the batch smaller")
        })?;
        // Advice: where the system has no huge pages, it is as good as none.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        let start = map.as_ptr().align_offset(HUGE).min(HUGE);
        Ok(Self::Large { map, start })
    }
    pub fn start(&mut self) -> *mut c_void {
        match self {
            Self::Small(lines) => lines.as_mut_ptr().cast(),
            Self::Large { map, start } => map[*start..].as_mut_ptr().cast(),
        }
    }
    /// Writes a byte everywhere.
    pub fn fill(&mut self, byte: u8) {
        match self {
            Self::Small(lines) => lines.fill(Line([byte; 64])),
            Self::Large { map, start } => map[*start..].fill(byte),
        }
    }
    pub fn bytes(&self) -> &[u8] {
        match self {
            // SAFETY: a line is 64 bytes, all of which are numbers from the start on.
            Self::Small(lines) => unsafe {
                std::slice::from_raw_parts(lines.as_ptr().cast(), size_of_val(&**lines))
            },
            Self::Large { map, start } => &map[*start..],
        }
    }
    pub fn address(&self) -> *const c_void {
        match self {
            Self::Small(lines) => lines.as_ptr().cast(),
            Self::Large { map, start } => map[*start..].as_ptr().cast(),
        }
    }
}

/// Gives memory that was freed back to the system: the allocator of the C library keeps what lies between what is used.
pub(super) fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            fn malloc_trim(pad: usize) -> std::ffi::c_int;
        }
        // SAFETY: the function of glibc changes nothing that is in use, and may be called at any time by any thread.
        unsafe { malloc_trim(0) };
    }
}

/// Scratch memory of the calls of one function.
#[derive(Debug)]
pub(super) struct Arenas {
    bytes: usize,
    free: Mutex<Vec<Memory>>,
}

impl Arenas {
    pub fn new(bytes: usize) -> Self {
        Self { bytes, free: Mutex::default() }
    }
    /// Calls `work` with an arena that nobody else has.
    pub fn with<T>(&self, work: impl FnOnce(*mut c_void) -> T) -> Result<T> {
        let buffer = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut arena = match buffer {
            Some(arena) => arena,
            None => Memory::new(self.bytes)?,
        };
        let result = work(arena.start());
        self.keep(arena);
        Ok(result)
    }
    /// Makes an arena in which a byte is written everywhere, for the next call.
    pub fn fill(&self, byte: u8) -> Result<()> {
        let mut arena = Memory::new(self.bytes)?;
        arena.fill(byte);
        self.keep(arena);
        Ok(())
    }
    fn keep(&self, arena: Memory) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < KEPT {
            free.push(arena);
        }
    }
}
