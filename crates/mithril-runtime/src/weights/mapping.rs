//! Memory that tensors are views of: a file mapped copy-on-write, or memory of our own.

use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::Path;

use memmap2::{MmapMut, MmapOptions, MmapRaw};
use mithril_ir::{Code, Error, Result};

use super::unreadable;
use crate::pages;

/// The system maps files by as much at a time: what is given back starts and ends at multiples of it.
const WINDOW: usize = 64 << 10;

/// Bytes at a fixed address. What is written there stays in this process: the file does not change.
#[derive(Debug)]
pub(super) struct Mapping(MmapRaw);

impl Mapping {
    /// Maps a file; nothing is read yet.
    pub fn file(path: &Path) -> Result<Self> {
        let about = path.metadata().map_err(|e| unreadable(&e))?;
        // Opening a pipe would wait for its other end.
        if !about.is_file() {
            return Err(Error::new(Code::Io, "it is not a file"));
        }
        let file = File::open(path).map_err(|e| unreadable(&e))?;
        if about.len() == 0 {
            return Err(Error::new(Code::BadFile, "it is empty").help("it may be incomplete: fetch it again"));
        }
        // SAFETY: the map is private, so that no write of ours reaches the file. That nobody cuts the file while it
        // is mapped is asked of the user, as every reader of memory-mapped weights does; files that we write replace
        // others as a whole, which leaves maps of the old file intact.
        let map =
            unsafe { MmapOptions::new().no_reserve_swap().map_copy(&file) }.map_err(|e| unreadable(&e))?;
        Ok(Self(map.into()))
    }
    /// A copy of bytes.
    pub fn memory(bytes: &[u8]) -> Result<Self> {
        Self::filled(bytes.len(), |target| {
            target.copy_from_slice(bytes);
            Ok(())
        })
    }
    /// `len` bytes that come from a stream, which has to end there.
    pub fn stream(len: usize, mut source: impl Read) -> Result<Self> {
        let wrong = |e: std::io::Error| Error::new(Code::BadFile, format!("a part cannot be unpacked: {e}"));
        let map = Self::filled(len, |target| source.read_exact(target).map_err(wrong))?;
        if source.read(&mut [0]).map_err(wrong)? != 0 {
            return Err(Error::new(Code::BadFile, "a part is longer than the file says"));
        }
        Ok(map)
    }
    fn filled(len: usize, fill: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<Self> {
        let mut memory = MmapMut::map_anon(len)
            .map_err(|_| Error::new(Code::OutOfMemory, format!("there is no memory for {len} bytes")))?;
        fill(&mut memory[..])?;
        Ok(Self(memory.into()))
    }
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: address and length are those of a map that lives as long as `self`. Who writes there (through
        // `address`) does so while no slice is in use, see `Weight::address`.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), self.0.len()) }
    }
    pub fn len(&self) -> usize {
        self.0.len()
    }
    pub fn address(&self) -> usize {
        self.0.as_mut_ptr() as usize
    }
    /// Gives the pages of a part of a file back: who reads them again reads the file again. What was written stays.
    pub fn release(&self, range: Range<usize>) {
        let start = range.start / WINDOW * WINDOW;
        let end = range.end.next_multiple_of(WINDOW).min(self.len());
        pages::release(self.bytes().get(start..end).unwrap_or_default());
    }
}
