//! Checkpoints of several files: folders, and the index that says which file holds which tensor.

use std::fs;
use std::path::{Component, Path, PathBuf};

use indexmap::IndexMap;
use mithril_ir::{Code, Error, Result};
use serde::Deserialize;

use super::safetensors::Unique;
use super::{Contents, about, read_file, unreadable};

/// What a folder is searched for, in this order.
const USUAL: &[&str] = &[
    "model.safetensors",
    "model.safetensors.index.json",
    "diffusion_pytorch_model.safetensors",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
];
/// Endings of files that hold tensors, the best first.
const ENDINGS: &[&[&str]] = &[&["safetensors"], &["bin", "pt", "pth"], &["gguf"]];
/// Longest index.
const MAX_INDEX: u64 = 100_000_000;

/// The file of a folder that holds its weights.
pub(super) fn find(folder: &Path) -> Result<PathBuf> {
    if let Some(file) = USUAL.iter().map(|name| folder.join(name)).find(|path| path.is_file()) {
        return Ok(file);
    }
    let entries = fs::read_dir(folder).map_err(|e| unreadable(&e))?;
    let mut files: Vec<_> = entries.flatten().map(|e| e.path()).filter(|p| p.is_file()).collect();
    files.sort();
    for endings in ENDINGS {
        let fits = |p: &&PathBuf| p.extension().is_some_and(|e| endings.iter().any(|ending| e == *ending));
        match files.iter().filter(fits).collect::<Vec<_>>()[..] {
            [] => {}
            [one] => return Ok(one.clone()),
            [first, second, ..] => {
                let (first, second) = (first.display(), second.display());
                let message = format!("several files hold weights, as {first} and {second}");
                return Err(Error::new(Code::BadFile, message).help("name one, or the index of its parts"));
            }
        }
    }
    Err(Error::new(Code::BadFile, "no file in this folder holds weights")
        .help(format!("looked for {}", USUAL.join(", "))))
}

#[derive(Deserialize)]
struct Index {
    weight_map: Unique<String>,
}

/// Whether a file is an index, by its name.
pub(super) fn is_index(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "json")
}

/// The tensors that an index lists.
pub(super) fn read_index(path: &Path, key: Option<&str>) -> Result<Contents> {
    let metadata = fs::metadata(path).map_err(|e| unreadable(&e))?;
    if !metadata.is_file() || metadata.len() > MAX_INDEX {
        return Err(bad("it is not an index of weights"));
    }
    let text = fs::read(path).map_err(|e| unreadable(&e))?;
    let Index { weight_map: Unique(map) } =
        serde_json::from_slice(&text).map_err(|e| bad(format!("it is not an index of weights: {e}")))?;
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut files: IndexMap<&str, Contents> = IndexMap::new();
    let mut merged = Contents::default();
    for (name, file) in &map {
        if !files.contains_key(&**file) {
            let part = confined(folder, file)?;
            let contents = read_file(&part, key).map_err(|e| about(&e, &format!("{file:?}")))?;
            files.insert(file, contents);
        }
        let Some(weight) = files[&**file].tensors.get(name) else {
            return Err(bad(format!("{file:?} does not hold {name:?}, which the index puts there")));
        };
        merged.tensors.insert(name.clone(), weight.clone());
    }
    merged.metadata = files.into_values().next().map(|c| c.metadata).unwrap_or_default();
    Ok(merged)
}

/// The path of a file that an index names, which must be in its folder.
fn confined(folder: &Path, name: &str) -> Result<PathBuf> {
    let outside = || {
        Error::new(Code::Refused, format!("it names {name:?}, which is outside of its folder"))
            .help("the parts of a checkpoint are beside its index")
    };
    let is_plain = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    if name.is_empty() || !is_plain || name.contains(['\\', '\0']) {
        return Err(outside());
    }
    let path = folder.join(name);
    let missing = |e: std::io::Error| Error::new(Code::Io, format!("its part {name:?} cannot be read: {e}"));
    let (target, root) = (path.canonicalize().map_err(missing)?, folder.canonicalize().map_err(missing)?);
    // The cache of the Hugging Face hub keeps files in `blobs`, and in `snapshots/<revision>` links to them.
    let blobs =
        root.parent().filter(|p| p.ends_with("snapshots")).and_then(Path::parent).map(|p| p.join("blobs"));
    if target.starts_with(&root) || blobs.is_some_and(|blobs| target.starts_with(blobs)) {
        return Ok(path);
    }
    Err(outside())
}

fn bad(message: impl Into<String>) -> Error {
    Error::new(Code::BadFile, message).help("it may be incomplete: fetch it again")
}
