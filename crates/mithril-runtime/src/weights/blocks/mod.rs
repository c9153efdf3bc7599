//! Quantized weights: rows cut into low-bit blocks per value, in the forms of ggml.
//!
//! A form is a row of [`FORMATS`]. Every form can be read, those with `write` can be made; what they make is what
//! ggml's own reference makes, bit by bit.
//!
//! ```
//! use mithril_runtime::weights::BlockFormat;
//! let format = BlockFormat::find("q8_0").expect("it is known");
//! let values: Vec<f32> = (0..64).map(|i| i as f32 / 64.0).collect();
//! let blocks = format.quantize(&values)?;
//! assert_eq!(blocks.len(), 2 * 34);
//! let mut back = vec![0.0; 64];
//! format.dequantize(&blocks, &mut back)?;
//! assert!(values.iter().zip(&back).all(|(x, y)| (x - y).abs() < 0.004));
//! # Ok::<(), mithril_ir::Error>(())
//! ```

mod grids;
mod importance;
mod superblock;
mod superblock_write;
mod uniform;
mod uniform_write;

use std::fmt;
use std::num::NonZero;
use std::thread;

use mithril_ir::error::nearest;
use mithril_ir::{Code, Error, Result};

/// Reads a block.
type Read = fn(&[u8], &mut [f32]);
/// Makes a block.
type Write = fn(&[f32], &mut [u8]);

/// One form of blocks.
pub struct BlockFormat {
    /// Its name, in small letters: `q4_k`.
    pub name: &'static str,
    /// Its number in files of GGUF.
    pub id: u32,
    /// Values of a block; rows are cut into whole blocks.
    pub values: usize,
    /// Bytes of a block.
    pub bytes: usize,
    read: Read,
    write: Option<Write>,
}

const fn format(
    name: &'static str,
    id: u32,
    sizes: (usize, usize),
    read: Read,
    write: Option<Write>,
) -> BlockFormat {
    BlockFormat { name, id, values: sizes.0, bytes: sizes.1, read, write }
}

/// Every form, in the order of their numbers.
pub static FORMATS: &[BlockFormat] = &[
    format("q4_0", 2, (32, 18), uniform::q4_0, Some(uniform_write::q4_0)),
    format("q4_1", 3, (32, 20), uniform::q4_1, Some(uniform_write::q4_1)),
    format("q5_0", 6, (32, 22), uniform::q5_0, Some(uniform_write::q5_0)),
    format("q5_1", 7, (32, 24), uniform::q5_1, Some(uniform_write::q5_1)),
    format("q8_0", 8, (32, 34), uniform::q8_0, Some(uniform_write::q8_0)),
    format("q8_1", 9, (32, 36), uniform::q8_1, None),
    format("q2_k", 10, (256, 84), superblock::q2_k, Some(superblock_write::q2_k)),
    format("q3_k", 11, (256, 110), superblock::q3_k, Some(superblock_write::q3_k)),
    format("q4_k", 12, (256, 144), superblock::q4_k, Some(superblock_write::q4_k)),
    format("q5_k", 13, (256, 176), superblock::q5_k, Some(superblock_write::q5_k)),
    format("q6_k", 14, (256, 210), superblock::q6_k, Some(superblock_write::q6_k)),
    format("q8_k", 15, (256, 292), superblock::q8_k, None),
    format("iq2_xxs", 16, (256, 66), importance::iq2_xxs, None),
    format("iq2_xs", 17, (256, 74), importance::iq2_xs, None),
    format("iq3_xxs", 18, (256, 98), importance::iq3_xxs, None),
    format("iq1_s", 19, (256, 50), importance::iq1_s, None),
    format("iq4_nl", 20, (32, 18), uniform::iq4_nl, None),
    format("iq3_s", 21, (256, 110), importance::iq3_s, None),
    format("iq2_s", 22, (256, 82), importance::iq2_s, None),
    format("iq4_xs", 23, (256, 136), superblock::iq4_xs, None),
    format("iq1_m", 29, (256, 56), importance::iq1_m, None),
    format("tq1_0", 34, (256, 54), uniform::tq1_0, Some(uniform_write::tq1_0)),
    format("tq2_0", 35, (256, 66), uniform::tq2_0, Some(uniform_write::tq2_0)),
    format("mxfp4", 39, (32, 17), uniform::mxfp4, Some(uniform_write::mxfp4)),
    format("nvfp4", 40, (64, 36), uniform::nvfp4, Some(uniform_write::nvfp4)),
    format("q1_0", 41, (128, 18), uniform::q1_0, Some(uniform_write::q1_0)),
    format("q2_0", 42, (64, 18), uniform::q2_0, Some(uniform_write::q2_0)),
];

/// Values from which on several threads work.
const LARGE: usize = 1 << 16;

impl BlockFormat {
    /// The form of that name, in letters of any size; `None` if there is none.
    pub fn find(name: &str) -> Option<&'static Self> {
        FORMATS.iter().find(|f| f.name.eq_ignore_ascii_case(name))
    }
    /// The form of that number in files of GGUF.
    pub fn of_id(id: u32) -> Option<&'static Self> {
        FORMATS.iter().find(|f| f.id == id)
    }
    /// The form of that name, which must be one that can be made.
    pub fn writable(name: &str) -> Result<&'static Self> {
        let makes = || FORMATS.iter().filter(|f| f.write.is_some()).map(|f| f.name);
        match Self::find(name) {
            Some(known) if known.write.is_some() => Ok(known),
            Some(known) => {
                let message = format!("{} can be read, and is not made here", known.name);
                Err(Error::new(Code::BadArgument, message)
                    .help(format!("take one of {}", makes().collect::<Vec<_>>().join(", "))))
            }
            None => {
                let error =
                    Error::new(Code::BadArgument, format!("there is no block format called {name:?}"));
                Err(match nearest(name, makes()) {
                    Some(near) => error.help(format!("did you mean {near:?}?")),
                    None => error.help(format!("available: {}", makes().collect::<Vec<_>>().join(", "))),
                })
            }
        }
    }
    /// Whether it can be made.
    pub fn is_writable(&self) -> bool {
        self.write.is_some()
    }
    /// Bytes of so many values; `None` unless they are whole blocks, or if that is not a number.
    pub fn size(&self, values: usize) -> Option<usize> {
        values.is_multiple_of(self.values).then(|| (values / self.values).checked_mul(self.bytes)).flatten()
    }
    /// The values of blocks.
    pub fn dequantize(&self, blocks: &[u8], values: &mut [f32]) -> Result<()> {
        self.check(values.len(), blocks.len())?;
        let read = |blocks: &[u8], values: &mut [f32]| {
            for (block, values) in blocks.chunks_exact(self.bytes).zip(values.chunks_exact_mut(self.values)) {
                (self.read)(block, values);
            }
        };
        let each = self.each_thread(values.len());
        thread::scope(|scope| {
            let parts = blocks.chunks(each * self.bytes).zip(values.chunks_mut(each * self.values));
            in_parallel(scope, parts, |(blocks, values)| read(blocks, values));
        });
        Ok(())
    }
    /// Blocks that hold values as well as they can.
    pub fn quantize(&self, values: &[f32]) -> Result<Vec<u8>> {
        let write = Self::writable(self.name)?.write.ok_or_else(|| Error::internal("it cannot be made"))?;
        let size = self.size(values.len()).ok_or_else(|| self.uneven(values.len()))?;
        let mut blocks = vec![0; size];
        let make = |values: &[f32], blocks: &mut [u8]| {
            for (values, block) in values.chunks_exact(self.values).zip(blocks.chunks_exact_mut(self.bytes)) {
                write(values, block);
            }
        };
        let each = self.each_thread(values.len());
        thread::scope(|scope| {
            let parts = values.chunks(each * self.values).zip(blocks.chunks_mut(each * self.bytes));
            in_parallel(scope, parts, |(values, blocks)| make(values, blocks));
        });
        Ok(blocks)
    }
    /// Blocks for each thread.
    fn each_thread(&self, values: usize) -> usize {
        let threads =
            if values < LARGE { 1 } else { thread::available_parallelism().map_or(1, NonZero::get) };
        (values / self.values).div_ceil(threads).max(1)
    }
    fn check(&self, values: usize, bytes: usize) -> Result<()> {
        match self.size(values) {
            Some(size) if size == bytes => Ok(()),
            Some(size) => {
                let message = format!("{values} values of {} are {size} bytes, not {bytes}", self.name);
                Err(Error::new(Code::BadArgument, message))
            }
            None => Err(self.uneven(values)),
        }
    }
    fn uneven(&self, values: usize) -> Error {
        let message = format!("{values} values cannot be cut into blocks of {}", self.values);
        Error::new(Code::BadArgument, message).help("use a format with smaller blocks, such as q8_0")
    }
}

impl PartialEq for BlockFormat {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for BlockFormat {}

impl fmt::Debug for BlockFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Works on the parts at the same time; on a single one in this thread.
fn in_parallel<'scope, T: Send + 'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    parts: impl Iterator<Item = T>,
    work: impl Fn(T) + Send + Copy + 'scope,
) {
    let mut parts = parts.peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_some() {
            scope.spawn(move || work(part));
        } else {
            work(part);
        }
    }
}

/// The number of 16 bits at byte `at`.
fn half(bytes: &[u8], at: usize) -> f32 {
    half::f16::from_bits(word(bytes, at)).to_f32()
}

/// Puts a number of 16 bits at byte `at`, and returns what it became.
fn put_half(bytes: &mut [u8], at: usize, value: f32) -> f32 {
    let rounded = half::f16::from_f32(value);
    bytes[at..at + 2].copy_from_slice(&rounded.to_le_bytes());
    rounded.to_f32()
}

/// The unsigned integer of 16 bits at byte `at`.
fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// The unsigned integer of 32 bits at byte `at`.
fn long(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
