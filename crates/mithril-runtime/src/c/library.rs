//! A loaded library of generated C: its functions, found by the prefix of their names.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;

use mithril_ir::{Code, Error, Result};

use super::pool::RawPool;

type ArenaBytes = unsafe extern "C" fn(c_int) -> usize;
type Bytes = unsafe extern "C" fn() -> usize;
type PackPart = unsafe extern "C" fn(c_int, *const *const c_void, *mut c_void, *mut c_void) -> c_int;
type Run = unsafe extern "C" fn(
    *const *const c_void,
    *const *mut c_void,
    *const c_void,
    *mut c_void,
    *const RawPool,
) -> c_int;
type RunBatch = unsafe extern "C" fn(
    *const *const c_void,
    *const *mut c_void,
    i64,
    *const c_void,
    *mut c_void,
    *const RawPool,
) -> c_int;
type Message = unsafe extern "C" fn(c_int) -> *const c_char;

/// The functions of one generated file.
#[derive(Debug)]
pub struct Library {
    arena_bytes: ArenaBytes,
    packed_bytes: Bytes,
    pack_bytes: Bytes,
    pack_part: PackPart,
    run: Run,
    run_batch: Option<RunBatch>,
    message: Message,
    // The functions above are its code.
    _loaded: libloading::Library,
}

impl Library {
    /// Loads a library that was compiled from generated C.
    /// `is_batched`: the number of rows is an argument.
    pub fn open(path: &Path, prefix: &str, is_batched: bool) -> Result<Self> {
        // SAFETY: a library of generated C has no initializers, so that loading it runs no code; that the file is such
        // a library is what the checksum in its name says.
        let loaded = unsafe { libloading::Library::new(path) }.map_err(|e| {
            Error::new(Code::Io, format!("the compiled object cannot be loaded: {e}"))
                .help("was it compiled for another machine, or is its folder mounted noexec?")
        })?;
        let name = |function: &str| format!("{prefix}_{function}");
        let missing = |_| Error::internal(format!("the compiled object lacks functions of {prefix}"));
        // SAFETY: the emitter writes each of these functions with exactly this type; see the header it writes beside.
        // The pointers are used while `loaded` lives, which is in the same struct.
        unsafe {
            let arena = if is_batched { "batch_arena_bytes" } else { "arena_bytes" };
            let arena_bytes = *loaded.get::<ArenaBytes>(name(arena)).map_err(missing)?;
            let packed_bytes = *loaded.get::<Bytes>(name("packed_bytes")).map_err(missing)?;
            let pack_bytes = *loaded.get::<Bytes>(name("pack_bytes")).map_err(missing)?;
            let pack_part = *loaded.get::<PackPart>(name("pack_part")).map_err(missing)?;
            let run = *loaded.get::<Run>(name("run")).map_err(missing)?;
            let run_batch = if is_batched {
                Some(*loaded.get::<RunBatch>(name("run_batch")).map_err(missing)?)
            } else {
                None
            };
            let message = *loaded.get::<Message>(name("error")).map_err(missing)?;
            Ok(Self {
                arena_bytes,
                packed_bytes,
                pack_bytes,
                pack_part,
                run,
                run_batch,
                message,
                _loaded: loaded,
            })
        }
    }
    /// Bytes of scratch memory that a call on so many threads needs.
    pub fn arena_bytes(&self, threads: c_int) -> usize {
        // SAFETY: the function takes a number and computes another.
        unsafe { (self.arena_bytes)(threads) }
    }
    /// Bytes of the packed parameters; 0: there is nothing to pack.
    pub fn packed_bytes(&self) -> usize {
        // SAFETY: the function returns a number.
        unsafe { (self.packed_bytes)() }
    }
    /// Bytes of scratch memory while parameters are packed.
    pub fn pack_bytes(&self) -> usize {
        // SAFETY: the function returns a number.
        unsafe { (self.pack_bytes)() }
    }
    /// Does a part of packing parameters; an error code, or 0.
    ///
    /// # Safety
    /// `inputs` has an element for every input of the graph: where this part reads it, its address, valid for reading in
    /// its whole size. `packed` and `scratch` are valid for writing `packed_bytes` and `pack_bytes`, at multiples of 64.
    pub unsafe fn pack_part(
        &self,
        part: c_int,
        inputs: &[*const c_void],
        packed: *mut c_void,
        scratch: *mut c_void,
    ) -> c_int {
        // SAFETY: by the contract of this function.
        unsafe { (self.pack_part)(part, inputs.as_ptr(), packed, scratch) }
    }
    /// Runs the graph; an error code, or 0.
    ///
    /// # Safety
    /// Every input is valid for reading and every output for writing, in its whole size and aligned to its element,
    /// and no output overlaps anything else; `packed` is what all parts of [`Library::pack_part`] wrote, or null where there is nothing
    /// to pack; `arena` is valid for writing as many bytes as [`Library::arena_bytes`] says for the threads of `pool`
    /// (null: 1), at a multiple of 64.
    pub unsafe fn run(
        &self,
        inputs: &[*const c_void],
        outputs: &[*mut c_void],
        packed: *const c_void,
        arena: *mut c_void,
        pool: *const RawPool,
        rows: Option<usize>,
    ) -> c_int {
        let (inputs, outputs) = (inputs.as_ptr(), outputs.as_ptr());
        match (self.run_batch, rows) {
            // SAFETY: by the contract of this function; what has rows has so many.
            (Some(run), Some(rows)) => unsafe { run(inputs, outputs, rows as i64, packed, arena, pool) },
            // SAFETY: by the contract of this function.
            _ => unsafe { (self.run)(inputs, outputs, packed, arena, pool) },
        }
    }
    /// What an error code means.
    pub fn message(&self, code: c_int) -> String {
        // SAFETY: the function returns null or a text that is part of the library, ended by a zero byte.
        let text = unsafe {
            let text = (self.message)(code);
            if text.is_null() { None } else { Some(CStr::from_ptr(text).to_string_lossy().into_owned()) }
        };
        text.unwrap_or_else(|| format!("error {code}"))
    }
}
