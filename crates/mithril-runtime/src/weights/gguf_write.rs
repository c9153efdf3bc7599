//! Writing GGUF: one tensor after the other, into a file that replaces the old one as a whole.

use std::io::{self, Write};
use std::path::Path;

use mithril_ir::{Code, Error, Result};

use super::gguf::{ALIGNMENT_KEY, MAGIC, MAX_AXES, PLAIN, VERSION, alignment, twice};
use super::value::{List, Value};
use super::weight::{Stored, size};
use super::within;
use super::write::{Part, streamed};

/// Bytes of a name that ggml takes.
const MAX_NAME: usize = 63;

/// A tensor to be written, without its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GgufEntry {
    /// Its name.
    pub name: String,
    /// What its elements are in the file.
    pub stored: Stored,
    /// Its sizes.
    pub shape: Vec<usize>,
}

/// Writes tensors and values by name, in the order that is given. `write` is given the place of a tensor among
/// `entries`, and writes its elements, or its blocks, as little-endian bytes; one tensor at a time is in memory.
///
/// ```
/// use mithril_ir::DType;
/// use mithril_runtime::weights::{Checkpoint, GgufEntry, Stored, Value, save_gguf};
/// # let folder = std::env::temp_dir().join(format!("mithril-gguf-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder).unwrap();
/// let path = folder.join("model.gguf");
/// let values = [("general.architecture".to_owned(), Value::Text("gpt2".into()))];
/// let entry = GgufEntry { name: "bias".into(), stored: Stored::Known(DType::F32), shape: vec![2] };
/// save_gguf(&path, &values, &[entry], |_, file| file.write_all(&[0, 0, 128, 63, 0, 0, 0, 64]))?;
///
/// let found = Checkpoint::open(&path)?;
/// assert_eq!(found.get("bias").unwrap().to_tensor()?.to_f64s(), [1.0, 2.0]);
/// assert_eq!(found.value("general.architecture").and_then(Value::text), Some("gpt2"));
/// # std::fs::remove_dir_all(&folder).unwrap();
/// # Ok::<(), mithril_ir::Error>(())
/// ```
pub fn save_gguf(
    path: &Path,
    metadata: &[(String, Value)],
    entries: &[GgufEntry],
    write: impl FnMut(usize, &mut dyn Write) -> io::Result<()>,
) -> Result<()> {
    let written = (|| {
        let header = header(metadata, entries)?;
        let parts = header.sizes.iter().zip(entries).enumerate();
        let parts = parts.map(|(i, (&bytes, entry))| Part {
            place: i,
            name: &entry.name,
            bytes,
            padding: bytes.next_multiple_of(header.alignment) - bytes,
        });
        streamed(path, &header.bytes, &parts.collect::<Vec<_>>(), write)
    })();
    written.map_err(|e| within(&e, path))
}

struct Header {
    bytes: Vec<u8>,
    /// Bytes of each tensor.
    sizes: Vec<usize>,
    alignment: usize,
}

fn header(metadata: &[(String, Value)], entries: &[GgufEntry]) -> Result<Header> {
    let names = || entries.iter().map(|e| &*e.name);
    if let Some(name) = twice(names()).or_else(|| twice(metadata.iter().map(|(key, _)| &**key))) {
        return Err(Error::new(Code::BadName, format!("{name:?} occurs twice")));
    }
    let alignment = alignment(metadata.iter().find(|(key, _)| key == ALIGNMENT_KEY).map(|(_, v)| v))?;
    let mut out = MAGIC.to_vec();
    out.extend(VERSION.to_le_bytes());
    out.extend((entries.len() as u64).to_le_bytes());
    out.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        put_text(&mut out, key);
        out.extend(value.kind().to_le_bytes());
        put_value(&mut out, value);
    }
    let (mut sizes, mut offset) = (Vec::with_capacity(entries.len()), 0_usize);
    for entry in entries {
        put_info(&mut out, entry, offset)?;
        let size = size(&entry.stored, &entry.shape);
        let end =
            size.and_then(|n| offset.checked_add(n)).and_then(|n| n.checked_next_multiple_of(alignment));
        let (Some(size), Some(end)) = (size, end) else {
            let message =
                format!("{:?} of shape {:?} cannot be written as {}", entry.name, entry.shape, entry.stored);
            return Err(Error::new(Code::BadSize, message).help("rows must be whole blocks"));
        };
        sizes.push(size);
        offset = end;
    }
    out.resize(out.len().next_multiple_of(alignment), 0);
    Ok(Header { bytes: out, sizes, alignment })
}

fn put_info(out: &mut Vec<u8>, entry: &GgufEntry, offset: usize) -> Result<()> {
    let GgufEntry { name, stored, shape } = entry;
    if name.is_empty() || name.len() > MAX_NAME {
        let message = format!("a tensor of GGUF cannot be called {name:?}");
        return Err(Error::new(Code::BadName, message)
            .help(format!("readers take names of 1 to {MAX_NAME} bytes: give it a shorter one")));
    }
    if shape.len() > MAX_AXES {
        let message = format!("{name:?} has {} axes, and a tensor of GGUF at most {MAX_AXES}", shape.len());
        return Err(Error::new(Code::BadSize, message).help("reshape it, or save it as *.safetensors"));
    }
    let id = match stored {
        Stored::Known(dtype) => PLAIN.iter().find(|(_, known)| known == dtype).map(|(id, _)| *id),
        Stored::Blocks(format) => Some(format.id),
        Stored::Other(_) => None,
    };
    let id = id.ok_or_else(|| {
        let known: Vec<_> = PLAIN.iter().map(|(_, dtype)| dtype.name()).collect();
        Error::new(Code::BadDType, format!("{name:?} is of dtype {stored}, which GGUF does not support"))
            .help(format!("convert it to one of {}", known.join(", ")))
    })?;
    put_text(out, name);
    out.extend((shape.len() as u32).to_le_bytes());
    for size in shape.iter().rev() {
        out.extend((*size as u64).to_le_bytes());
    }
    out.extend(id.to_le_bytes());
    out.extend((offset as u64).to_le_bytes());
    Ok(())
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(n) => out.push(*n),
        Value::I8(n) => out.extend(n.to_le_bytes()),
        Value::U16(n) => out.extend(n.to_le_bytes()),
        Value::I16(n) => out.extend(n.to_le_bytes()),
        Value::U32(n) => out.extend(n.to_le_bytes()),
        Value::I32(n) => out.extend(n.to_le_bytes()),
        Value::F32(n) => out.extend(n.to_le_bytes()),
        Value::Bool(b) => out.push((*b).into()),
        Value::Text(text) => put_text(out, text),
        Value::List(list) => put_list(out, list),
        Value::U64(n) => out.extend(n.to_le_bytes()),
        Value::I64(n) => out.extend(n.to_le_bytes()),
        Value::F64(n) => out.extend(n.to_le_bytes()),
    }
}

fn put_list(out: &mut Vec<u8>, list: &List) {
    out.extend(list.kind().to_le_bytes());
    out.extend((list.len() as u64).to_le_bytes());
    match list {
        List::U8(items) => out.extend(items),
        List::I8(items) => out.extend(items.iter().flat_map(|n| n.to_le_bytes())),
        List::U16(items) => out.extend(items.iter().flat_map(|n| n.to_le_bytes())),
        List::I16(items) => out.extend(items.iter().flat_map(|n| n.to_le_bytes())),
        List::U32(items) => out.extend(items.iter().flat_map(|n| n.to_le_bytes())),
        List::I32(items) => out.extend(items.iter().flat_map(|n| n.to_le_bytes())),
        List::F32(items) => out.extend(items.iter().flat_map(|n| n.to_le_bytes())),
        List::Bool(items) => out.extend(items.iter().map(|b| u8::from(*b))),
        List::Text(items) => items.iter().for_each(|text| put_text(out, text)),
        List::List(items) => items.iter().for_each(|list| put_list(out, list)),
        List::U64(items) => out.extend(items.iter().flat_map(|n| n.to_le_bytes())),
        List::I64(items) => out.extend(items.iter().flat_map(|n| n.to_le_bytes())),
        List::F64(items) => out.extend(items.iter().flat_map(|n| n.to_le_bytes())),
    }
}
