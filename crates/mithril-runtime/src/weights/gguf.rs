//! Files of GGUF, the form of ggml and llama.cpp: values by name, a list of the tensors, then their bytes.
//!
//! Nothing in a file is trusted: every count and length is compared with the bytes that are left before memory is taken
//! for it, sums and products that are too large for a number are errors, and tensors have to lie one behind the other,
//! as ggml asks, so that none overlaps another.

use std::collections::HashSet;
use std::sync::Arc;

use indexmap::IndexMap;
use mithril_ir::{Code, DType, Error, Result};

use super::Contents;
use super::blocks::BlockFormat;
use super::mapping::Mapping;
use super::value::{LIST, List, Value};
use super::weight::{Stored, Weight, size};

/// What files begin with.
pub(super) const MAGIC: &[u8; 4] = b"GGUF";
/// The version that is written; the one before differs in nothing that is read.
pub(super) const VERSION: u32 = 3;
/// To what tensors are aligned, unless `general.alignment` says otherwise.
pub(super) const ALIGNMENT: usize = 32;
/// The name of the value that says so.
pub(super) const ALIGNMENT_KEY: &str = "general.alignment";
/// Axes that a tensor may have.
pub(super) const MAX_AXES: usize = 4;
/// Lists within lists.
const MAX_DEPTH: usize = 4;
/// The bytes that a value and a tensor take at least in the list of them.
const LEAST: (usize, usize) = (8 + 4 + 1, 8 + 4 + 4 + 8);

/// Numbers of the types whose elements Mithril has.
pub(super) const PLAIN: &[(u32, DType)] = &[
    (0, DType::F32),
    (1, DType::F16),
    (24, DType::I8),
    (25, DType::I16),
    (26, DType::I32),
    (27, DType::I64),
    (28, DType::F64),
    (30, DType::BF16),
];

/// Whether bytes can be the begin of such a file.
pub(super) fn is_one(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// The tensors and values of a file.
pub(super) fn read(map: &Arc<Mapping>) -> Result<Contents> {
    let mut reader = Reader { bytes: map.bytes(), at: MAGIC.len() };
    let version = reader.u32()?;
    if version != 0 && version.trailing_zeros() >= 16 {
        let message = "it is big-endian";
        return Err(Error::new(Code::BadFile, message).help("convert it to little-endian, as most files are"));
    }
    if !(2..=VERSION).contains(&version) {
        let message = format!("it is of version {version} of GGUF, and versions 2 and 3 are supported");
        return Err(Error::new(Code::BadFile, message).help("convert it with the current tools of llama.cpp"));
    }
    let (tensors, values) = (reader.u64()?, reader.u64()?);
    let values = reader.fits(values, LEAST.0, "values")?;
    let mut metadata = IndexMap::with_capacity(values);
    for _ in 0..values {
        let key = reader.text()?;
        let kind = reader.u32()?;
        let value = reader.value(kind).map_err(|e| super::about(&e, &format!("value {key:?}")))?;
        if metadata.insert(key.clone(), value).is_some() {
            return Err(bad(format!("the value {key:?} occurs twice")));
        }
    }
    let alignment = alignment(metadata.get(ALIGNMENT_KEY))?;
    let tensors = reader.fits(tensors, LEAST.1, "tensors")?;
    let infos = (0..tensors).map(|_| reader.info()).collect::<Result<Vec<_>>>()?;
    let start = reader.at.checked_next_multiple_of(alignment);
    Ok(Contents { tensors: place(map, infos, start, alignment)?, metadata })
}

/// The alignment that a value says: a power of two.
pub(super) fn alignment(value: Option<&Value>) -> Result<usize> {
    match value {
        None => Ok(ALIGNMENT),
        Some(Value::U32(n)) if n.is_power_of_two() => Ok(*n as usize),
        Some(_) => {
            let message = format!("{ALIGNMENT_KEY} is not a power of two, as an unsigned integer of 32 bits");
            Err(Error::new(Code::BadFile, message))
        }
    }
}

/// A tensor in the list of them.
struct Info {
    name: String,
    stored: Stored,
    shape: Vec<usize>,
    offset: u64,
}

/// The tensors, each of which has to begin where the one before ends.
fn place(
    map: &Arc<Mapping>,
    infos: Vec<Info>,
    start: Option<usize>,
    alignment: usize,
) -> Result<IndexMap<String, Weight>> {
    let mut tensors = IndexMap::with_capacity(infos.len());
    let too_large = || bad("its tensors are too large for one file");
    let mut next = 0_usize;
    for Info { name, stored, shape, offset } in infos {
        let size = size(&stored, &shape)
            .ok_or_else(|| bad(format!("tensor {name:?} of shape {shape:?} cannot be of type {stored}")))?;
        if usize::try_from(offset) != Ok(next) {
            let message = format!("tensor {name:?} begins at byte {offset} of the data, and not at {next}");
            return Err(bad(message));
        }
        let first = start.and_then(|start| start.checked_add(next)).ok_or_else(too_large)?;
        let end = first.checked_add(size).ok_or_else(too_large)?;
        // An empty tensor at the end of a file needs no padding before it.
        if size > 0 && end > map.len() {
            let message = format!("tensor {name:?} ends at byte {end} of {}", map.len());
            return Err(bad(message));
        }
        let range = if size == 0 { 0..0 } else { first..end };
        let weight = match stored {
            Stored::Blocks(format) => Weight::blocks(map.clone(), range, format, shape)?,
            stored => Weight::dense(map.clone(), range, stored, shape)?,
        };
        next = next
            .checked_add(size)
            .and_then(|n| n.checked_next_multiple_of(alignment))
            .ok_or_else(too_large)?;
        if tensors.contains_key(&name) {
            return Err(bad(format!("tensor {name:?} occurs twice")));
        }
        tensors.insert(name, weight);
    }
    Ok(tensors)
}

/// What is read next.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let end = self.at.checked_add(count).filter(|end| *end <= self.bytes.len());
        let end = end.ok_or_else(|| {
            bad(format!(
                "it ends at byte {}, in the middle of its list of values and tensors",
                self.bytes.len()
            ))
        })?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }
    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| Error::internal("as many bytes as asked for"))
    }
    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }
    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }
    /// A count of what takes `least` bytes each at least, compared with the bytes that are left.
    fn fits(&self, count: u64, least: usize, what: &str) -> Result<usize> {
        let left = self.bytes.len() - self.at;
        usize::try_from(count)
            .ok()
            .filter(|n| n.checked_mul(least).is_some_and(|n| n <= left))
            .ok_or_else(|| bad(format!("it says that {count} {what} follow, but only {left} bytes are left")))
    }
    fn text(&mut self) -> Result<String> {
        let length = self.u64()?;
        let length = self.fits(length, 1, "bytes of a text")?;
        let text = std::str::from_utf8(self.take(length)?).map_err(|_| bad("a string is not valid UTF-8"))?;
        Ok(text.to_owned())
    }
    fn bool(&mut self) -> Result<bool> {
        match self.take(1)? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(bad("a boolean is neither 0 nor 1")),
        }
    }
    fn value(&mut self, kind: u32) -> Result<Value> {
        Ok(match kind {
            0 => Value::U8(u8::from_le_bytes(self.array()?)),
            1 => Value::I8(i8::from_le_bytes(self.array()?)),
            2 => Value::U16(u16::from_le_bytes(self.array()?)),
            3 => Value::I16(i16::from_le_bytes(self.array()?)),
            4 => Value::U32(u32::from_le_bytes(self.array()?)),
            5 => Value::I32(i32::from_le_bytes(self.array()?)),
            6 => Value::F32(f32::from_le_bytes(self.array()?)),
            7 => Value::Bool(self.bool()?),
            8 => Value::Text(self.text()?),
            LIST => Value::List(self.list(0)?),
            10 => Value::U64(u64::from_le_bytes(self.array()?)),
            11 => Value::I64(i64::from_le_bytes(self.array()?)),
            12 => Value::F64(f64::from_le_bytes(self.array()?)),
            _ => return Err(unknown_kind(kind)),
        })
    }
    fn list(&mut self, depth: usize) -> Result<List> {
        let kind = self.u32()?;
        Ok(match kind {
            0 => List::U8(self.numbers(u8::from_le_bytes)?),
            1 => List::I8(self.numbers(i8::from_le_bytes)?),
            2 => List::U16(self.numbers(u16::from_le_bytes)?),
            3 => List::I16(self.numbers(i16::from_le_bytes)?),
            4 => List::U32(self.numbers(u32::from_le_bytes)?),
            5 => List::I32(self.numbers(i32::from_le_bytes)?),
            6 => List::F32(self.numbers(f32::from_le_bytes)?),
            7 => List::Bool(self.items(1, Self::bool)?),
            8 => List::Text(self.items(8, Self::text)?),
            LIST if depth == MAX_DEPTH => return Err(bad("lists are nested too deeply")),
            LIST => List::List(self.items(12, |reader| reader.list(depth + 1))?),
            10 => List::U64(self.numbers(u64::from_le_bytes)?),
            11 => List::I64(self.numbers(i64::from_le_bytes)?),
            12 => List::F64(self.numbers(f64::from_le_bytes)?),
            _ => return Err(unknown_kind(kind)),
        })
    }
    fn numbers<T, const N: usize>(&mut self, number: fn([u8; N]) -> T) -> Result<Vec<T>> {
        let count = self.u64()?;
        let count = self.fits(count, N, "numbers")?;
        let (numbers, _) = self.take(count * N)?.as_chunks::<N>();
        Ok(numbers.iter().map(|bytes| number(*bytes)).collect())
    }
    fn items<T>(&mut self, least: usize, item: impl Fn(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let count = self.u64()?;
        let count = self.fits(count, least, "items of a list")?;
        (0..count).map(|_| item(self)).collect()
    }
    /// A tensor in the list of them. Sizes stand in the file the other way round.
    fn info(&mut self) -> Result<Info> {
        let name = self.text()?;
        let axes = self.u32()? as usize;
        if axes > MAX_AXES {
            let message = format!("tensor {name:?} has {axes} axes, and {MAX_AXES} are the most");
            return Err(bad(message));
        }
        let mut shape = Vec::with_capacity(axes);
        for _ in 0..axes {
            let size = self.u64()?;
            let size = usize::try_from(size).ok().filter(|n| isize::try_from(*n).is_ok());
            shape.push(size.ok_or_else(|| bad(format!("tensor {name:?} is too large")))?);
        }
        shape.reverse();
        let id = self.u32()?;
        let stored = stored(id).ok_or_else(|| {
            let message = format!("tensor {name:?} is of type {id}, which is not known");
            Error::new(Code::BadFile, message).help("it may be of a newer version of GGUF, or damaged")
        })?;
        Ok(Info { name, stored, shape, offset: self.u64()? })
    }
}

fn stored(id: u32) -> Option<Stored> {
    let plain = PLAIN.iter().find(|(known, _)| *known == id).map(|(_, dtype)| Stored::Known(*dtype));
    plain.or_else(|| BlockFormat::of_id(id).map(Stored::Blocks))
}

/// Names of tensors that are there twice.
pub(super) fn twice<'a>(names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let mut seen = HashSet::new();
    names.into_iter().find(|name| !seen.insert(*name))
}

fn unknown_kind(kind: u32) -> Error {
    bad(format!("it is of kind {kind}, which is not known"))
}

fn bad(message: impl Into<String>) -> Error {
    Error::new(Code::BadFile, message).help("it may be incomplete: fetch it again")
}
