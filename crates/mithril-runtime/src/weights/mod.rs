//! Checkpoints: tensors by name, read from files of safetensors, of GGUF and of PyTorch without running code and
//! without copying, and written as safetensors or GGUF.
//!
//! [`Checkpoint::open`] maps the file into memory, and its tensors are views of that map. The map is copy-on-write:
//! what is written to it stays in this process. Nothing in a file is trusted; what does not hold together is an error
//! when opening. A file must not be cut while it is open, as with all memory-mapped files; [`save`] replaces files as
//! a whole and so leaves open ones intact.
//!
//! ```no_run
//! use mithril_runtime::weights::Checkpoint;
//! # use std::path::Path;
//! let checkpoint = Checkpoint::open(Path::new("resnet18.pth"))?;
//! for (name, weight) in checkpoint.iter() {
//!     println!("{name}: {} {:?}", weight.stored(), weight.shape());
//! }
//! let first = checkpoint.get("conv1.weight").expect("a ResNet").to_tensor()?;
//! # Ok::<(), mithril_ir::Error>(())
//! ```

mod blocks;
mod folder;
mod gguf;
mod gguf_write;
mod globals;
mod load;
mod mapping;
mod onnx;
mod pickle;
mod safetensors;
mod state_dict;
mod torch;
mod value;
mod weight;
mod write;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use indexmap::IndexMap;
use mithril_ir::error::nearest;
use mithril_ir::{Code, Error, Result};

pub use blocks::{BlockFormat, FORMATS};
pub use gguf_write::{GgufEntry, save_gguf};
use mapping::Mapping;
pub use onnx::{read_onnx, read_onnx_bytes};
pub use value::{List, Value};
pub use weight::{Stored, Weight};
pub use write::{Entry, save, save_streamed};
pub(crate) use write::{Part, resolved, streamed};

/// What a file holds.
#[derive(Debug, Default)]
struct Contents {
    tensors: IndexMap<String, Weight>,
    metadata: IndexMap<String, Value>,
}

/// Tensors by name, views of one or more files.
#[derive(Debug)]
pub struct Checkpoint {
    path: Option<PathBuf>,
    contents: Contents,
}

impl Checkpoint {
    /// Opens a file (`.safetensors`, `.gguf`, or `.pt`, `.pth`, `.bin` of PyTorch), an index of several (`*.index.json`), or a
    /// folder that holds one of these. What a file is, its content says.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_at(path, None)
    }
    /// As [`Self::open`], for files of PyTorch that hold several dicts of tensors: `key` names one, with dots between
    /// the keys of dicts within dicts.
    pub fn open_at(path: &Path, key: Option<&str>) -> Result<Self> {
        let resolved = if path.is_dir() { folder::find(path) } else { Ok(path.to_owned()) };
        let file = resolved.map_err(|e| within(&e, path))?;
        let contents =
            if folder::is_index(&file) { folder::read_index(&file, key) } else { read_file(&file, key) };
        Ok(Self { contents: contents.map_err(|e| within(&e, &file))?, path: Some(file) })
    }
    /// Reads a file that is in memory already.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        Ok(Self { contents: read(&Arc::new(Mapping::memory(bytes)?), None)?, path: None })
    }
    /// The file, or the index; `None` for bytes.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }
    /// A tensor.
    pub fn get(&self, name: &str) -> Option<&Weight> {
        self.contents.tensors.get(name)
    }
    /// A tensor whose values can be read.
    pub fn readable(&self, name: &str) -> Result<&Weight> {
        let weight = self.get(name).ok_or_else(|| {
            let error = Error::new(Code::UnknownName, format!("there is no tensor {name:?}"));
            match nearest(name, self.iter().map(|(name, _)| name)) {
                Some(near) => error.help(format!("did you mean {near:?}?")),
                None => error.help(format!("there are {} others", self.len())),
            }
        })?;
        weight.address().map_err(|e| about(&e, &format!("tensor {name:?}")))?;
        Ok(weight)
    }
    /// All tensors, in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Weight)> {
        self.contents.tensors.iter().map(|(name, weight)| (&**name, weight))
    }
    /// Number of tensors.
    pub fn len(&self) -> usize {
        self.contents.tensors.len()
    }
    /// Whether there is no tensor.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Values that describe the file, of safetensors (texts, in alphabetical order) and of GGUF.
    pub fn metadata(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.contents.metadata.iter().map(|(key, value)| (&**key, value))
    }
    /// Rows of a head of queries and keys, if a file of llama.cpp keeps them as pairs that the rotary embedding turns:
    /// those of its architecture `llama` do. What has no architecture is an error.
    pub fn pairs(&self) -> Result<Option<usize>> {
        let missing = |key: &str| {
            let message =
                format!("it does not say {key:?}, by which the rows of queries and keys are ordered");
            Error::new(Code::BadFile, message).help("load the file of GGUF itself, written by a current tool")
        };
        let architecture = self.value("general.architecture").and_then(Value::text);
        if architecture.ok_or_else(|| missing("general.architecture"))? != "llama" {
            return Ok(None);
        }
        let size = |key: &str| self.value(key).and_then(Value::size).ok_or_else(|| missing(key));
        let head = size("llama.attention.key_length").or_else(|_| {
            let (all, heads) = (size("llama.embedding_length")?, size("llama.attention.head_count")?);
            Ok(all.checked_div(heads).unwrap_or(0))
        })?;
        if head == 0 || head % 2 != 0 {
            return Err(missing("llama.attention.head_count"));
        }
        Ok(Some(head))
    }
    /// A value that describes the file.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.contents.metadata.get(key)
    }
}

fn read_file(path: &Path, key: Option<&str>) -> Result<Contents> {
    read(&Arc::new(Mapping::file(path)?), key)
}

fn read(map: &Arc<Mapping>, key: Option<&str>) -> Result<Contents> {
    let bytes = map.bytes();
    let one_dict = |form: &str| {
        let message = format!("a file of {form} holds one dict, and no key chooses in it");
        Err(Error::new(Code::BadArgument, message).help("leave out the key"))
    };
    match bytes {
        _ if torch::is_zip(bytes) => torch::read_zip(map, key),
        _ if gguf::is_one(bytes) => {
            if key.is_none() {
                gguf::read(map)
            } else {
                one_dict("GGUF")
            }
        }
        _ if safetensors::is_one(bytes) => {
            if key.is_none() {
                safetensors::read(map)
            } else {
                one_dict("safetensors")
            }
        }
        _ if torch::is_pickle(bytes) => torch::read_pickles(map, key),
        _ => {
            let message = "it is neither a file of safetensors, nor of GGUF, nor of PyTorch";
            if let Some((form, help)) = foreign(bytes) {
                return Err(Error::new(Code::BadFile, format!("{message}: it is {form}")).help(help));
            }
            let help = match bytes {
                _ if bytes.starts_with(b"version https://git-lfs") => {
                    "it is a pointer of Git LFS, which stands for the file: fetch that with `git lfs pull`"
                }
                _ if bytes.trim_ascii_start().starts_with(b"<") => {
                    "it is a page of the web, such as a server's answer: fetch the file itself"
                }
                _ => "it may be incomplete: fetch it again",
            };
            Err(Error::new(Code::BadFile, message).help(help))
        }
    }
}

/// What a file of another kind is by its first bytes, and how its arrays are loaded.
fn foreign(bytes: &[u8]) -> Option<(&'static str, &'static str)> {
    const H5: &str =
        "read it with h5py or Keras, and pass its arrays: ml.load_weights(model, {name: array, ...})";
    const ONNX: &str = "read it with its weights: model, params = ml.from_onnx(path); for a model of your own, pass \
                        them by its names: ml.load_weights(model, params, names={...})";
    match bytes {
        _ if bytes.starts_with(b"\x89HDF\r\n\x1a\n") => Some(("a file of HDF5, as Keras writes it", H5)),
        _ if bytes.starts_with(b"\x93NUMPY") => Some((
            "an array of NumPy without a name",
            "pass it with its name: ml.load_weights(model, {\"weight\": numpy.load(path)})",
        )),
        _ if is_onnx(bytes) => Some(("a model of ONNX", ONNX)),
        _ if bytes.starts_with(b"\x1f\x8b") => Some(("compressed by gzip", "unpack it first: gunzip")),
        _ if bytes.starts_with(b"BZh") => Some(("compressed by bzip2", "unpack it first: bunzip2")),
        _ if bytes.starts_with(b"\x28\xb5\x2f\xfd") => {
            Some(("compressed by zstd", "unpack it first: unzstd"))
        }
        _ => None,
    }
}

/// Whether a file is a message of protobuf that begins as a model of ONNX does: the version of its format, a small
/// number, then a text or the version of a set of operators.
fn is_onnx(bytes: &[u8]) -> bool {
    matches!(bytes, [0x08, 1..=64, 0x12 | 0x1a | 0x22 | 0x28 | 0x32 | 0x3a | 0x42, ..])
}

/// The error for a file that the system does not read.
fn unreadable(e: &std::io::Error) -> Error {
    Error::new(Code::Io, format!("it cannot be read: {e}")).help("check the path and its permissions")
}

/// An error of a file, with its path.
pub(crate) fn within(error: &Error, path: &Path) -> Error {
    about(error, &format!("{:?}", path.display().to_string()))
}

/// An error, with what it is about.
fn about(error: &Error, what: &str) -> Error {
    let told = Error::new(error.code(), format!("{what}: {}", error.message()));
    let told = error.notes().iter().fold(told, |told, note| told.note(note.clone()));
    match error.hint() {
        Some(help) => told.help(help),
        None => told,
    }
}
