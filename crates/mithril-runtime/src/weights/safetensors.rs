//! Files of the safetensors form: an official header of JSON, then the bytes of the tensors without a gap.

use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use indexmap::IndexMap;
use mithril_ir::{Code, DType, Error, Result};
use safetensors::{Dtype, SafeTensors};
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::Value as Json;

use super::Contents;
use super::mapping::Mapping;
use super::value::Value;
use super::weight::{Stored, Weight};

/// Bytes before the header.
const LENGTH: usize = 8;
/// Longest header, as in the official library.
const MAX_HEADER: u64 = 100_000_000;

/// Pairs of a JSON object whose keys all differ.
pub(super) struct Unique<T>(pub Vec<(String, T)>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Unique<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Pairs<T> {
            type Value = Unique<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                let (mut pairs, mut seen) = (Vec::new(), HashSet::new());
                while let Some((key, value)) = map.next_entry::<String, T>()? {
                    if !seen.insert(key.clone()) {
                        return Err(M::Error::custom(format!("{key:?} occurs twice")));
                    }
                    pairs.push((key, value));
                }
                Ok(Unique(pairs))
            }
        }
        deserializer.deserialize_map(Pairs(PhantomData))
    }
}

/// Whether bytes can be the begin of such a file.
pub(super) fn is_one(bytes: &[u8]) -> bool {
    bytes.get(LENGTH) == Some(&b'{')
}

/// The tensors of a file, in the order of their bytes.
pub(super) fn read(map: &Arc<Mapping>) -> Result<Contents> {
    let bytes = map.bytes();
    let Json::Object(raw) = header(bytes)? else { return Err(bad("its header is not a JSON object")) };
    let (length, official) = SafeTensors::read_metadata(bytes).map_err(|e| bad(e.to_string()))?;
    let data = LENGTH + length;
    let mut tensors = IndexMap::with_capacity(raw.len());
    for name in official.offset_keys() {
        let Some(info) = official.info(&name) else { continue };
        let range = data + info.data_offsets.0..data + info.data_offsets.1;
        let weight = Weight::dense(map.clone(), range, stored(info.dtype), info.shape.clone())?;
        tensors.insert(name, weight);
    }
    let texts = official.metadata().iter().flatten();
    let mut metadata: IndexMap<_, _> = texts.map(|(k, v)| (k.clone(), Value::Text(v.clone()))).collect();
    metadata.sort_keys();
    Ok(Contents { tensors, metadata })
}

/// The header, after the checks that the official library leaves out: keys that stand twice, sums that overflow.
fn header(bytes: &[u8]) -> Result<Json> {
    let Some((length, rest)) = bytes.split_first_chunk::<LENGTH>() else {
        return Err(bad(format!("it has {} bytes and no header", bytes.len())));
    };
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER.min(rest.len() as u64) {
        let message =
            format!("it says that its header has {length} bytes, but holds only {} more", rest.len());
        return Err(bad(message));
    }
    let (text, data) = rest.split_at(length as usize);
    let unreadable = |e: serde_json::Error| bad(format!("its header cannot be read: {e}"));
    let Unique(pairs) = serde_json::from_slice::<Unique<Json>>(text).map_err(unreadable)?;
    for (name, info) in pairs.iter().filter(|(name, _)| name != "__metadata__") {
        let ends = info.get("data_offsets").and_then(Json::as_array).map_or(&[][..], Vec::as_slice);
        if let Some(end) = ends.iter().filter_map(Json::as_u64).find(|&end| end > data.len() as u64) {
            let message = format!("tensor {name:?} ends at byte {end} of {} bytes of data", data.len());
            return Err(bad(message));
        }
    }
    Ok(Json::Object(pairs.into_iter().collect()))
}

fn stored(dtype: Dtype) -> Stored {
    Stored::Known(match dtype {
        Dtype::BOOL => DType::Bool,
        Dtype::U8 => DType::U8,
        Dtype::U16 => DType::U16,
        Dtype::U32 => DType::U32,
        Dtype::U64 => DType::U64,
        Dtype::I8 => DType::I8,
        Dtype::I16 => DType::I16,
        Dtype::I32 => DType::I32,
        Dtype::I64 => DType::I64,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        Dtype::F32 => DType::F32,
        Dtype::F64 => DType::F64,
        other => return Stored::Other(other.to_string()),
    })
}

/// The official name of a dtype.
pub(super) fn official(dtype: DType) -> Dtype {
    match dtype {
        DType::Bool => Dtype::BOOL,
        DType::U8 => Dtype::U8,
        DType::U16 => Dtype::U16,
        DType::U32 => Dtype::U32,
        DType::U64 => Dtype::U64,
        DType::I8 => Dtype::I8,
        DType::I16 => Dtype::I16,
        DType::I32 => Dtype::I32,
        DType::I64 => Dtype::I64,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
    }
}

fn bad(message: impl Into<String>) -> Error {
    Error::new(Code::BadFile, message).help("it may be incomplete: fetch it again")
}
