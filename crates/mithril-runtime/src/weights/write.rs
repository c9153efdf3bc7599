//! Writing safetensors: one tensor after the other, into a file that replaces the old one as a whole. Links are followed;
//! devices and pipes are written to as they are.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use mithril_ir::{Code, DType, Error, Result, Tensor};
use safetensors::tensor::{Metadata, TensorInfo};
use serde_json::Value;
use tempfile::NamedTempFile;

use super::safetensors::official;
use super::within;

/// A tensor to be written, without its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Its dtype.
    pub dtype: DType,
    /// Its sizes.
    pub shape: Vec<usize>,
}

impl Entry {
    fn bytes(&self) -> Result<usize> {
        self.shape.iter().try_fold(self.dtype.size(), |n, &d| n.checked_mul(d)).ok_or_else(|| {
            Error::new(
                Code::BadSize,
                format!("{:?} has shape {:?}, which is too large", self.name, self.shape),
            )
        })
    }
}

/// Writes tensors by name, with texts that describe them.
///
/// ```
/// # use mithril_ir::Tensor;
/// # use mithril_runtime::weights::{Checkpoint, save};
/// # let folder = std::env::temp_dir().join(format!("mithril-save-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder).unwrap();
/// let path = folder.join("model.safetensors");
/// save(&path, &[("bias", &Tensor::from_parts(&[2], vec![1.0_f32, 2.0]))], &[("format", "pt")])?;
/// assert_eq!(Checkpoint::open(&path)?.get("bias").unwrap().to_tensor()?.to_f64s(), [1.0, 2.0]);
/// # std::fs::remove_dir_all(&folder).unwrap();
/// # Ok::<(), mithril_ir::Error>(())
/// ```
pub fn save(path: &Path, tensors: &[(&str, &Tensor)], metadata: &[(&str, &str)]) -> Result<()> {
    let entries: Vec<_> = tensors
        .iter()
        .map(|(name, t)| Entry { name: (*name).to_owned(), dtype: t.dtype(), shape: t.shape().to_vec() })
        .collect();
    let metadata = metadata.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    save_streamed(path, &entries, &metadata, |i, file| file.write_all(&tensors[i].1.to_bytes()))
}

/// As [`save`], with values that are made when they are written: `write` is given the place of a tensor among
/// `entries`, and writes its elements as little-endian bytes. One tensor at a time is in memory.
pub fn save_streamed(
    path: &Path,
    entries: &[Entry],
    metadata: &BTreeMap<String, String>,
    write: impl FnMut(usize, &mut dyn Write) -> io::Result<()>,
) -> Result<()> {
    into_file(path, entries, metadata, write).map_err(|e| within(&e, path))
}

fn into_file(
    path: &Path,
    entries: &[Entry],
    metadata: &BTreeMap<String, String>,
    write: impl FnMut(usize, &mut dyn Write) -> io::Result<()>,
) -> Result<()> {
    let order = order(entries);
    let header = header(entries, &order, metadata)?;
    let mut start = (header.len() as u64).to_le_bytes().to_vec();
    start.extend(header);
    let parts = order.into_iter().map(|place| {
        let entry = &entries[place];
        Ok(Part { place, name: &entry.name, bytes: entry.bytes()?, padding: 0 })
    });
    streamed(path, &start, &parts.collect::<Result<Vec<_>>>()?, write)
}

/// A tensor in a file that is written.
pub(crate) struct Part<'a> {
    /// Its place among what the caller gave.
    pub place: usize,
    pub name: &'a str,
    pub bytes: usize,
    /// Zeros that follow.
    pub padding: usize,
}

/// Writes a header, then part by part; the file replaces the old one as a whole, or not at all.
pub(crate) fn streamed(
    path: &Path,
    header: &[u8],
    parts: &[Part<'_>],
    mut write: impl FnMut(usize, &mut dyn Write) -> io::Result<()>,
) -> Result<()> {
    let bytes = header.len() + parts.iter().map(|part| part.bytes + part.padding).sum::<usize>();
    let unwritable = |error| unwritable(error, bytes);
    let path = &resolved(path).map_err(unwritable)?;
    if is_special(path) {
        let mut file = fs::OpenOptions::new().write(true).open(path).map_err(unwritable)?;
        return write_parts(&mut file, header, parts, &mut write, &unwritable);
    }
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut new = temporary().tempfile_in(folder).map_err(unwritable)?;
    write_parts(new.as_file_mut(), header, parts, &mut write, &unwritable)?;
    replace(path, new).map_err(unwritable)
}

fn write_parts(
    file: &mut fs::File,
    header: &[u8],
    parts: &[Part<'_>],
    write: &mut impl FnMut(usize, &mut dyn Write) -> io::Result<()>,
    unwritable: &impl Fn(io::Error) -> Error,
) -> Result<()> {
    let mut file = BufWriter::with_capacity(1 << 20, file);
    file.write_all(header).map_err(unwritable)?;
    for part in parts {
        let mut counted = Counted { file: &mut file, left: part.bytes };
        write(part.place, &mut counted).map_err(unwritable)?;
        if counted.left != 0 {
            let message = format!("{:?} lacks {} of its bytes", part.name, counted.left);
            return Err(Error::new(Code::BadParameter, message));
        }
        file.write_all(&vec![0; part.padding]).map_err(unwritable)?;
    }
    file.flush().map_err(unwritable)
}

/// The file that a path means: where a link leads, also to a file that is not there yet.
pub(crate) fn resolved(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    // As many as Linux follows.
    for _ in 0..40 {
        if !fs::symlink_metadata(&path).is_ok_and(|about| about.is_symlink()) {
            return Ok(path);
        }
        let target = fs::read_link(&path)?;
        path = path.parent().unwrap_or(Path::new("")).join(target);
    }
    Err(io::Error::other("too many levels of symbolic links"))
}

/// Whether a path is a device or a pipe: there is nothing to replace, and what is written goes through it.
fn is_special(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|about| !about.is_file() && !about.is_dir())
}

fn replace(path: &Path, new: NamedTempFile) -> io::Result<()> {
    // The file keeps the rights of the one that it replaces.
    if let Ok(about) = fs::metadata(path) {
        new.as_file().set_permissions(about.permissions())?;
    }
    new.as_file().sync_all()?;
    new.persist(path).map_err(|e| e.error)?;
    Ok(())
}

fn temporary() -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".mithril-");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // What every new file gets: the rights that the user's mask leaves.
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    builder
}

/// The order of the official library: the widest dtypes first, so that all are aligned.
fn order(entries: &[Entry]) -> Vec<usize> {
    let mut order: Vec<_> = (0..entries.len()).collect();
    order.sort_by(|&a, &b| {
        let key = |i: usize| official(entries[i].dtype);
        key(b).cmp(&key(a)).then_with(|| entries[a].name.cmp(&entries[b].name))
    });
    order
}

fn header(entries: &[Entry], order: &[usize], metadata: &BTreeMap<String, String>) -> Result<Vec<u8>> {
    let (mut start, mut infos, mut seen) = (0_usize, Vec::with_capacity(entries.len()), HashSet::new());
    for entry in order.iter().map(|&i| &entries[i]) {
        if entry.name == "__metadata__" || !seen.insert(&entry.name) {
            let message = format!("two tensors cannot be called {:?}", entry.name);
            return Err(Error::new(Code::BadName, message).help("\"__metadata__\" is taken, too"));
        }
        let end = start
            .checked_add(entry.bytes()?)
            .ok_or_else(|| Error::new(Code::BadSize, "the tensors are too large for one file"))?;
        let info = TensorInfo {
            dtype: official(entry.dtype),
            shape: entry.shape.clone(),
            data_offsets: (start, end),
        };
        infos.push((entry.name.clone(), info));
        start = end;
    }
    let texts: HashMap<_, _> = metadata.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
    let unusual = |e: &dyn std::fmt::Display| Error::internal(format!("a header cannot be written: {e}"));
    let official = Metadata::new((!texts.is_empty()).then_some(texts), infos).map_err(|e| unusual(&e))?;
    let mut value = serde_json::to_value(&official).map_err(|e| unusual(&e))?;
    if let Some(Value::Object(texts)) = value.get_mut("__metadata__") {
        texts.sort_keys();
    }
    let mut text = value.to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    Ok(text)
}

/// Takes as many bytes as a tensor has.
struct Counted<'a, W> {
    file: &'a mut W,
    left: usize,
}

impl<W: Write> Write for Counted<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.left {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a tensor has more bytes than its shape",
            ));
        }
        let written = self.file.write(bytes)?;
        self.left -= written;
        Ok(written)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[allow(clippy::needless_pass_by_value, reason = "as `map_err` hands it over")]
fn unwritable(error: io::Error, bytes: usize) -> Error {
    use io::ErrorKind::{FileTooLarge, NotFound, QuotaExceeded, StorageFull};
    let error_text = format!("it cannot be written: {error}");
    match error.kind() {
        NotFound => Error::new(Code::Io, error_text).help("the folder must exist"),
        FileTooLarge | QuotaExceeded | StorageFull => Error::new(Code::Io, error_text)
            .note(format!("the file has {bytes} bytes; the previous file is unchanged"))
            .help("free some space, or choose another folder"),
        _ => Error::new(Code::Io, error_text).help("check the folder and its permissions"),
    }
}
