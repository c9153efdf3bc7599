//! Files of PyTorch: the zip of version 1.6 and later, and the row of pickles before it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::{Cursor, Read};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use indexmap::IndexMap;
use mithril_ir::{Code, Error, Result};
use zip::{CompressionMethod, ZipArchive};

use super::Contents;
use super::mapping::Mapping;
use super::pickle::{Described, Object, Objects, Storage, Value, malformed};
use super::state_dict;
use super::weight::{Stored, Weight};

/// The number at the begin of an old file, as a pickle writes it.
const MAGIC: &[u8] = &[0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];
/// Longest pickle: it holds names and sizes, not values.
const MAX_PICKLE: u64 = 1 << 28;
/// How much deflate can shrink what is most regular.
const MAX_RATIO: u64 = 1032;

/// Whether bytes can be the begin of a zip.
pub(super) fn is_zip(bytes: &[u8]) -> bool {
    bytes.starts_with(b"PK\x03\x04")
}

/// Says of archives of other programs what they are, and how their arrays are loaded.
fn refuse_foreign(zip: &ZipArchive<Cursor<&[u8]>>) -> Result<()> {
    let names: Vec<String> = zip.file_names().flatten().map(|name| name.into_owned()).collect();
    let (form, help) = if !names.is_empty()
        && names.iter().all(|name| Path::new(name).extension().is_some_and(|e| e == "npy"))
    {
        (
            "an archive of arrays of NumPy (.npz)",
            "pass its arrays: ml.load_weights(model, dict(numpy.load(path)))",
        )
    } else if names.iter().any(|name| name.ends_with("model.weights.h5")) {
        (
            "a model of Keras",
            "read it with Keras, and pass its arrays: ml.load_weights(model, {name: array, ...})",
        )
    } else {
        return Ok(());
    };
    let message = "it is neither a file of safetensors, nor of GGUF, nor of PyTorch";
    Err(Error::new(Code::BadFile, format!("{message}: it is {form}")).help(help))
}

/// Whether bytes can be the begin of a pickle.
pub(super) fn is_pickle(bytes: &[u8]) -> bool {
    matches!(bytes, [0x80, 2..=5, ..] | [b'(' | b'c' | b'}' | b']', ..])
}

/// A part of a map that holds a storage.
type Part = (Arc<Mapping>, Range<usize>);

// --- zip ----------------------------------------------------------------------------------------------------------

/// The tensors of a zip.
pub(super) fn read_zip(map: &Arc<Mapping>, key: Option<&str>) -> Result<Contents> {
    let mut zip = ZipArchive::new(Cursor::new(map.bytes())).map_err(unzipped)?;
    if zip.has_duplicate_names() || zip.has_overlapping_files().map_err(unzipped)? {
        return Err(bad("entries of its zip archive share a name or overlap"));
    }
    refuse_foreign(&zip)?;
    let prefix = prefix(&zip)?;
    if zip.index_for_name(&format!("{prefix}constants.pkl")).is_some() {
        let message = "it is a TorchScript program, which is code";
        return Err(Error::new(Code::Refused, message).help("save the state dict alone"));
    }
    if small(&mut zip, &format!("{prefix}byteorder"))?.is_some_and(|order| order != b"little") {
        return Err(bad("it is big-endian"));
    }
    let Some(pickle) = small(&mut zip, &format!("{prefix}data.pkl"))? else {
        return Err(bad("it is a zip without a data.pkl, and no file of PyTorch"));
    };
    let mut objects = Objects::default();
    let (root, _) = objects.load(&pickle)?;
    let mut parts: HashMap<String, Part> = HashMap::new();
    build(&objects, root, key, |storage| {
        let part = match parts.entry(storage.key.to_string()) {
            Entry::Occupied(occupied) => occupied.get().clone(),
            Entry::Vacant(place) => {
                let name = format!("{prefix}data/{}", storage.key);
                place.insert(record(map, &mut zip, &name)?).clone()
            }
        };
        let size = storage.stored.as_ref().map_or(Some(1), Stored::size).unwrap_or(0);
        if storage.count.checked_mul(size).is_none_or(|n| n > part.1.len()) {
            let message = format!(
                "storage {:?} has {} bytes, and is to hold {} elements",
                storage.key,
                part.1.len(),
                storage.count
            );
            return Err(bad(message));
        }
        Ok(part)
    })
}

type Zip<'a> = ZipArchive<Cursor<&'a [u8]>>;

/// What stands before all names: PyTorch puts everything into one folder.
fn prefix(zip: &Zip<'_>) -> Result<String> {
    let first = zip.file_names().filter_map(Result::ok).find_map(|name| {
        let (folder, rest) = name.split_once('/')?;
        (rest == "data.pkl").then(|| format!("{folder}/"))
    });
    first.ok_or_else(|| bad("it is a zip without a data.pkl, and no file of PyTorch"))
}

/// A small entry as a whole, its checksum verified.
fn small(zip: &mut Zip<'_>, name: &str) -> Result<Option<Vec<u8>>> {
    let Some(index) = zip.index_for_name(name) else { return Ok(None) };
    let mut file = zip.by_index(index).map_err(unzipped)?;
    let mut content = Vec::new();
    let unreadable = |e| bad(format!("{name:?} in its zip cannot be read: {e}"));
    file.by_ref().take(MAX_PICKLE + 1).read_to_end(&mut content).map_err(unreadable)?;
    if content.len() as u64 > MAX_PICKLE {
        return Err(bad(format!("{name:?} in its zip has more than {MAX_PICKLE} bytes")));
    }
    Ok(Some(content))
}

/// Where the bytes of an entry are; those that are compressed are unpacked.
fn record(map: &Arc<Mapping>, zip: &mut Zip<'_>, name: &str) -> Result<Part> {
    let missing = || bad(format!("{name:?} is not in its zip"));
    let index = zip.index_for_name(name).ok_or_else(missing)?;
    let mut file = zip.by_index(index).map_err(unzipped)?;
    let (method, packed, size) = (file.compression(), file.compressed_size(), file.size());
    let wrong = || bad(format!("{name:?} in its zip has a wrong size"));
    if method == CompressionMethod::Stored {
        let start = file.data_start().and_then(|n| usize::try_from(n).ok()).ok_or_else(wrong)?;
        let end = usize::try_from(size).ok().and_then(|n| start.checked_add(n)).ok_or_else(wrong)?;
        if packed != size || end > map.len() {
            return Err(wrong());
        }
        return Ok((map.clone(), start..end));
    }
    if size > packed.saturating_mul(MAX_RATIO) {
        return Err(wrong());
    }
    let size = usize::try_from(size).map_err(|_| wrong())?;
    Ok((Arc::new(Mapping::stream(size, &mut file)?), 0..size))
}

#[allow(clippy::needless_pass_by_value, reason = "as `map_err` hands it over")]
fn unzipped(error: zip::result::ZipError) -> Error {
    bad(format!("its zip cannot be read: {error}"))
}

// --- before version 1.6 -------------------------------------------------------------------------------------------

/// The tensors of an old file: pickles of a magic number, a version, the machine, the values and the keys of the
/// storages; then the storages.
pub(super) fn read_pickles(map: &Arc<Mapping>, key: Option<&str>) -> Result<Contents> {
    let bytes = map.bytes();
    let mut objects = Objects::default();
    let mut at = 0;
    let mut next = |objects: &mut Objects| {
        let rest = &bytes[at..];
        let limited = &rest[..rest.len().min(MAX_PICKLE as usize)];
        let (value, length) = objects.load(limited)?;
        at += length;
        Ok::<_, Error>((value, at))
    };
    let (magic, _) = next(&mut objects)?;
    if !matches!(objects.get(magic), Some(Object::Bytes(content)) if **content == *MAGIC) {
        return Err(bad("it is a pickle, but no file of PyTorch").help("save the state dict with torch.save"));
    }
    let (version, _) = next(&mut objects)?;
    if version != Value::Int(1001) {
        return Err(bad("it is of an unknown version"));
    }
    let (machine, _) = next(&mut objects)?;
    if item(&objects, machine, "little_endian") == Some(Value::Bool(false)) {
        return Err(bad("it is big-endian"));
    }
    let (root, _) = next(&mut objects)?;
    let (keys, end) = next(&mut objects)?;
    let storages = storages(&objects, keys, bytes, end)?;
    build(&objects, root, key, |storage| {
        let range = storages.get(&*storage.key).ok_or_else(malformed)?.clone();
        let size = storage.stored.as_ref().map_or(Some(1), Stored::size).unwrap_or(0);
        let first = storage.first.checked_mul(size).and_then(|n| range.start.checked_add(n));
        let end = storage.count.checked_mul(size).zip(first).and_then(|(n, first)| first.checked_add(n));
        match first.zip(end) {
            Some((first, end)) if end <= range.end => Ok((map.clone(), first..end)),
            _ => Err(bad(format!("storage {:?} has {} bytes, too few", storage.key, range.len()))),
        }
    })
}

fn item(objects: &Objects, dict: Value, key: &str) -> Option<Value> {
    let Some(Object::Dict(pairs)) = objects.get(dict) else { return None };
    pairs.iter().find(|(k, _)| objects.text(*k) == Some(key)).map(|(_, v)| *v)
}

/// Where each storage lies, in the order of `keys`: its number of elements, then these.
fn storages<'a>(
    objects: &'a Objects,
    keys: Value,
    bytes: &[u8],
    mut at: usize,
) -> Result<HashMap<&'a str, Range<usize>>> {
    let Some(Object::List(keys)) = objects.get(keys) else { return Err(malformed()) };
    let sizes: HashMap<&str, &Storage> = objects
        .0
        .iter()
        .filter_map(|o| if let Object::Storage(s) = o { Some((&*s.key, s)) } else { None })
        .collect();
    let mut records = HashMap::new();
    for &key in keys {
        let storage = *objects.text(key).and_then(|key| sizes.get(key)).ok_or_else(malformed)?;
        let size = storage.stored.as_ref().map_or(Some(1), Stored::size);
        let size = size.ok_or_else(|| bad("it holds elements of a dtype that Mithril does not support"))?;
        let early = || bad(format!("it ends before storage {:?} does", storage.key));
        let (count, rest) = bytes[at..].split_first_chunk::<8>().ok_or_else(early)?;
        let count = usize::try_from(u64::from_le_bytes(*count)).map_err(|_| early())?;
        let length = count.checked_mul(size).filter(|&n| n <= rest.len()).ok_or_else(early)?;
        let start = at + 8;
        at = start + length;
        if records.insert(&*storage.key, start..at).is_some() {
            return Err(bad(format!("storage {:?} occurs twice", storage.key)));
        }
    }
    Ok(records)
}

// --- both ---------------------------------------------------------------------------------------------------------

/// The tensors of a state dict as views of their storages.
fn build(
    objects: &Objects,
    root: Value,
    key: Option<&str>,
    mut part: impl FnMut(&Storage) -> Result<Part>,
) -> Result<Contents> {
    let mut tensors = IndexMap::new();
    for (name, described) in state_dict::find(objects, root, key)? {
        let Some(Object::Storage(storage)) = objects.0.get(described.storage) else {
            return Err(malformed());
        };
        let weight = part(storage).and_then(|(map, range)| view(map, range, described));
        let weight = weight.map_err(|e| super::about(&e, &format!("tensor {name:?}")))?;
        tensors.insert(name.to_owned(), weight);
    }
    Ok(Contents { tensors, metadata: IndexMap::new() })
}

fn view(map: Arc<Mapping>, range: Range<usize>, described: &Described) -> Result<Weight> {
    let Described { stored, offset, shape, strides, .. } = described;
    Weight::view(map, range, *offset, stored.clone(), shape.clone(), strides.clone())
}

fn bad(message: impl Into<String>) -> Error {
    Error::new(Code::BadFile, message).help("it may be incomplete: fetch it again")
}
