//! Compiled objects on disk, found by the content of what they were made of.
//!
//! An object lies at `KEY/CHECKSUM.so`: the key is the hash of source, flags, compiler, version and processor; the
//! checksum is that of the object. So one atomic rename publishes object and checksum together, two writers cannot
//! harm each other, and an object that was damaged does not fit its own name and is made again. Where nothing can be
//! written (read-only or full disk), objects are made in a temporary folder, and are gone when they are loaded.
//!
//! What is loaded runs in this process, and a checksum says nothing about who wrote the object. So the cache is made for
//! its user alone, and one in which others can write is not used: neither read nor written (see [`Cache::refusal`]).

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use mithril_ir::{Code, Error, Result};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::compiler::Compiler;
use super::private;
use super::processor::processor;

pub use super::private::FOLDER;

/// Largest size of all objects together, in bytes; the oldest go first.
const LIMIT: u64 = 1 << 30;

/// An object that can be loaded. It may be gone when this is dropped.
#[derive(Debug)]
pub struct Object {
    /// Where it lies.
    pub path: PathBuf,
    /// Whether it was compiled now.
    pub is_new: bool,
    _folder: Option<TempDir>,
}

/// A folder of compiled objects.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: Option<PathBuf>,
    limit: u64,
}

impl Default for Cache {
    /// The cache of this user.
    fn default() -> Self {
        let own = std::env::var_os(FOLDER).filter(|text| !text.is_empty()).map(PathBuf::from);
        let folder = own.or_else(|| Some(dirs::cache_dir()?.join("mithril").join("c")));
        Self { folder, limit: LIMIT }
    }
}

impl Cache {
    /// A cache in a folder, which need not exist yet.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: Some(folder.into()), limit: LIMIT }
    }
    /// The same cache with another bound in bytes.
    #[must_use]
    pub fn bounded(self, limit: u64) -> Self {
        Self { limit, ..self }
    }
    /// The folder, if there is one.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }
    /// Why the folder is not used, and how to mend that; `None` if it is, or if there is none.
    ///
    /// ```
    /// # use mithril_runtime::c::Cache;
    /// let folder = tempfile::tempdir().unwrap();
    /// let cache = Cache::at(folder.path().join("cache"));
    /// assert!(cache.refusal().is_none());
    /// ```
    pub fn refusal(&self) -> Option<Error> {
        let folder = self.folder.as_deref()?;
        Some(refusal(folder, &private::exposure(folder)?))
    }
    /// A folder in that of the cache, unless others can write in one of them, which is logged.
    fn trusted(&self, name: &str) -> Option<PathBuf> {
        let folder = self.folder.as_ref()?;
        let inner = folder.join(name);
        for place in [folder, &inner] {
            if let Some(exposure) = private::exposure(place) {
                log::warn!("{}", refusal(place, &exposure));
                return None;
            }
        }
        Some(inner)
    }
    /// The object of a source, compiled unless it is there.
    pub fn object(&self, compiler: &Compiler, source: &str) -> Result<Object> {
        let folder = self.trusted(&key(&[&compiler.identity(), processor(), source]));
        if let Some(path) = folder.as_deref().and_then(intact) {
            return Ok(Object { path, is_new: false, _folder: None });
        }
        match folder.as_deref().map(|folder| self.add(compiler, source, folder)) {
            Some(Ok(Some(path))) => Ok(Object { path, is_new: true, _folder: None }),
            Some(Err(error)) => Err(error),
            None | Some(Ok(None)) => temporary(compiler, source),
        }
    }
    /// A text that was kept for this processor under these parts of a key; `None` if there is none, or it was damaged.
    pub fn text(&self, parts: &[&str]) -> Option<String> {
        let mut kept = String::new();
        private::open(&self.place(parts)?).ok()?.read_to_string(&mut kept).ok()?;
        let (checksum, text) = kept.split_once('\n')?;
        (checksum == hexadecimal(&Sha256::digest(text))).then(|| text.to_owned())
    }
    /// Keeps a text; where nothing can be written, it is made anew by who needs it.
    pub fn keep_text(&self, parts: &[&str], text: &str) {
        let Some(path) = self.place(parts) else { return };
        let Some(folder) = path.parent() else { return };
        let write = || -> io::Result<()> {
            private::create_folder(folder)?;
            let mut file = tempfile::NamedTempFile::new_in(folder)?;
            write!(file, "{}\n{text}", hexadecimal(&Sha256::digest(text)))?;
            file.persist(&path)?;
            Ok(())
        };
        let _ = write();
    }
    fn place(&self, parts: &[&str]) -> Option<PathBuf> {
        let all: Vec<&str> = parts.iter().copied().chain([processor()]).collect();
        Some(self.trusted("texts")?.join(key(&all)))
    }
    /// Compiles into the cache; `None` if that cannot be written.
    fn add(&self, compiler: &Compiler, source: &str, folder: &Path) -> Result<Option<PathBuf>> {
        let root = folder.parent().unwrap_or(folder);
        let Ok(work) = private::create_folder(root).and_then(|()| private::temporary_folder_in(root)) else {
            return Ok(None);
        };
        let Ok(object) = compiler.compile(source, work.path()).map_or_else(
            // A compiler that fails on a full disk is asked again elsewhere; its other errors are final.
            |error| if is_full(work.path()) { Err(()) } else { Ok(Err(error)) },
            |path| Ok(Ok(path)),
        ) else {
            return Ok(None);
        };
        let object = object?;
        let publish = || -> io::Result<PathBuf> {
            let target = folder.join(format!("{}.so", hexadecimal(&Sha256::digest(fs::read(&object)?))));
            private::create_folder(folder)?;
            private::restrict(&object)?;
            fs::rename(&object, &target)?;
            Ok(target)
        };
        let Ok(target) = publish() else { return Ok(None) };
        self.trim(root, &target);
        Ok(Some(target))
    }
    /// Removes the oldest objects until the rest is within the bound.
    fn trim(&self, root: &Path, keep: &Path) {
        let entries = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path());
        let mut objects: Vec<(SystemTime, u64, PathBuf)> = entries(root)
            .flat_map(|key| entries(&key).collect::<Vec<_>>())
            .filter_map(|path| {
                let about = path.metadata().ok()?;
                Some((about.modified().ok()?, about.len(), path))
            })
            .collect();
        objects.sort();
        let mut total: u64 = objects.iter().map(|(_, size, _)| size).sum();
        for (_, size, path) in objects {
            if total <= self.limit {
                break;
            }
            // Another process may have removed it already; one that has it loaded keeps what it has.
            if path != keep && fs::remove_file(&path).is_ok() {
                total -= size;
                let _ = path.parent().map(fs::remove_dir);
            }
        }
    }
}

/// The hash of all parts.
fn key(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hexadecimal(&hash.finalize())
}

/// The object of a private folder that fits its name and that only this user could have written; others are removed.
fn intact(folder: &Path) -> Option<PathBuf> {
    for entry in fs::read_dir(folder).ok()?.flatten() {
        let path = entry.path();
        let bytes = private::open(&path).and_then(|mut file| {
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).map(|_| bytes)
        });
        if let Ok(bytes) = bytes
            && path.file_stem().is_some_and(|name| name == hexadecimal(&Sha256::digest(&bytes)).as_str())
        {
            // What was used last is removed last; where times cannot be written, order is by age.
            let _ =
                fs::File::options().append(true).open(&path).and_then(|f| f.set_modified(SystemTime::now()));
            return Some(path);
        }
        let _ = fs::remove_file(&path);
    }
    None
}

fn temporary(compiler: &Compiler, source: &str) -> Result<Object> {
    let folder = private::temporary_folder()?;
    let path = compiler.compile(source, folder.path())?;
    Ok(Object { path, is_new: true, _folder: Some(folder) })
}

/// Whether a folder may be too full for an object: a compiler that fails removes what it wrote.
fn is_full(folder: &Path) -> bool {
    let probe = folder.join("probe");
    let full = fs::write(&probe, vec![0_u8; 16 << 20]).is_err();
    let _ = fs::remove_file(probe);
    full
}

fn refusal(folder: &Path, exposure: &private::Exposure) -> Error {
    let private::Exposure { reason, remedy } = exposure;
    Error::new(Code::Io, format!("the cache of compiled code in {} is not used", folder.display()))
        .note(format!("{reason}, and code loaded from there runs in this process"))
        .note("code is compiled in a private temporary folder instead, again in each process")
        .help(format!("{remedy}, or let {FOLDER} name a folder that only you can write"))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().take(16).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
