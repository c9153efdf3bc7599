//! Files of ONNX: a model, and its parameters as views of the file and of the files beside it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use mithril_ir::{Code, Error, Result};
use mithril_model::Model;
use mithril_onnx::Options;

use super::mapping::Mapping;
use super::weight::{Stored, Weight};
use super::{Checkpoint, Contents, unreadable, within};

/// A map as the owner of bytes.
struct Owner(Arc<Mapping>);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

/// The files that are open.
struct Files {
    /// The file of the model, with no link left in its path; `None` for bytes.
    model: Option<PathBuf>,
    open: RefCell<HashMap<PathBuf, Arc<Mapping>>>,
}

/// Reads a file of ONNX: its model, and the parameters that it holds. They are views of the file, which is mapped into
/// memory, or of files in the same folder that it names.
///
/// ```no_run
/// use mithril_runtime::weights::read_onnx;
/// # use std::path::Path;
/// let (model, parameters) = read_onnx(Path::new("resnet18.onnx"), &Default::default())?;
/// println!("{}, {} parameters", model.summary(), parameters.len());
/// # Ok::<(), mithril_ir::Error>(())
/// ```
///
/// # Errors
/// When a file cannot be read, is not one of ONNX or contradicts itself; when it wants to read a file outside of its
/// folder; when ops, attributes or dtypes are not supported: one error that lists all of them.
pub fn read_onnx(path: &Path, options: &Options) -> Result<(Model, Checkpoint)> {
    let read = || {
        let map = Arc::new(Mapping::file(path)?);
        let real = path.canonicalize().map_err(|e| unreadable(&e))?;
        read(&map, Some(real), options)
    };
    let (model, contents) = read().map_err(|e| within(&e, path))?;
    Ok((model, Checkpoint { path: Some(path.to_owned()), contents }))
}

/// As [`read_onnx`], for a file that is in memory already.
///
/// # Errors
/// As there, and when its weights lie in other files.
pub fn read_onnx_bytes(bytes: &[u8], options: &Options) -> Result<(Model, Checkpoint)> {
    if bytes.is_empty() {
        return Err(Error::new(Code::BadFile, "the model of ONNX is empty").help("give the bytes of a file"));
    }
    let (model, contents) = read(&Arc::new(Mapping::memory(bytes)?), None, options)?;
    Ok((model, Checkpoint { path: None, contents }))
}

fn read(map: &Arc<Mapping>, model: Option<PathBuf>, options: &Options) -> Result<(Model, Contents)> {
    let files = Files { model, open: RefCell::default() };
    let bytes = Bytes::from_owner(Owner(map.clone()));
    let imported = mithril_onnx::read(&bytes, options, &|location, offset, length| {
        files.part(location, offset, length)
    })?;
    let maps: Vec<Arc<Mapping>> =
        std::iter::once(map.clone()).chain(files.open.into_inner().into_values()).collect();
    let mut contents = Contents::default();
    for (name, stored) in imported.parameters {
        let inside = maps.iter().find_map(|map| {
            let start = (stored.bytes.as_ptr() as usize).checked_sub(map.address())?;
            (start + stored.bytes.len() <= map.len()).then_some((map, start))
        });
        let (map, start) = match inside {
            Some((map, start)) => (map.clone(), start),
            None => (Arc::new(Mapping::memory(&stored.bytes)?), 0),
        };
        let range = start..start + stored.bytes.len();
        contents.tensors.insert(name, Weight::dense(map, range, Stored::Known(stored.dtype), stored.shape)?);
    }
    Ok((imported.model, contents))
}

impl Files {
    /// A part of a file beside the model.
    fn part(&self, location: &str, offset: u64, length: u64) -> Result<Bytes> {
        let Some(model) = &self.model else { return mithril_onnx::no_other_file(location, offset, length) };
        let refuse = || {
            let message = format!("it wants to read {location:?}, which lies outside of its folder");
            Error::new(Code::Refused, message)
                .help("put the file beside the model, and name it without a folder")
        };
        if !Path::new(location).components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir)) {
            return Err(refuse());
        }
        let folder = model.parent().unwrap_or(Path::new("."));
        let beside = folder.join(location);
        let about = |e: &Error| within(e, &beside);
        let real = beside.canonicalize().map_err(|e| about(&unreadable(&e)))?;
        if !real.starts_with(folder) {
            return Err(refuse());
        }
        let mut open = self.open.borrow_mut();
        let map = match open.get(&real) {
            Some(map) => map.clone(),
            None => open
                .entry(real.clone())
                .or_insert(Arc::new(Mapping::file(&real).map_err(|e| about(&e))?))
                .clone(),
        };
        let end =
            offset.checked_add(length).and_then(|n| usize::try_from(n).ok()).filter(|&n| n <= map.len());
        let Some(end) = end else {
            let message =
                format!("it has {} bytes, but bytes {offset} to {offset} + {length} are needed", map.len());
            return Err(about(
                &Error::new(Code::BadFile, message).help("it may be incomplete: fetch it again"),
            ));
        };
        Ok(Bytes::from_owner(Owner(map)).slice(offset as usize..end))
    }
}
