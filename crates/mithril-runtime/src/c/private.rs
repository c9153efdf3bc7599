//! Folders and files that nobody but this user can write: what is loaded and run comes from such ones alone.
//!
//! A folder is *private* when it belongs to this user or to root, nobody else may write in it, and the same holds for
//! every folder on the way to it, so that nobody can put another one in its place. A folder on the way may be open to
//! all if it is sticky, as `/tmp` is: there only the owner of an entry can replace it. Symbolic links are followed under
//! the same conditions. Within a private folder there is no race between a check and a use: whoever could change a file
//! in between could run code as this user anyway.

use std::io;
use std::path::{Path, PathBuf};

use mithril_ir::{Code, Error, Result};
use tempfile::TempDir;

/// Why a folder is not private, and what would make it so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Exposure {
    /// Who can change what lies there, e.g. "other users can write to /shared (mode 0777)".
    pub reason: String,
    /// What to do.
    pub remedy: String,
}

/// Makes a folder, and those on the way that are missing, for this user alone; an error if it is there and not private.
pub(super) fn create_folder(path: &Path) -> io::Result<()> {
    system::create_folder(path)?;
    // Where all may write, somebody else may have been quicker.
    match exposure(path) {
        None => Ok(()),
        Some(problem) => Err(io::Error::new(io::ErrorKind::PermissionDenied, problem.reason)),
    }
}

/// The folder of the cache, instead of the platform's.
pub const FOLDER: &str = "MITHRIL_CACHE_DIR";

/// Writes generated C into a folder for the compiler; where it lies.
pub(super) fn write(folder: &Path, name: &str, source: &str) -> Result<PathBuf> {
    let file = folder.join(name);
    std::fs::write(&file, source).map_err(|e| {
        Error::new(Code::Io, format!("generated C cannot be written: {e}"))
            .help(format!("free some space, or let {FOLDER} or TMPDIR name a folder that can be written"))
    })?;
    Ok(file)
}

/// A new temporary folder of this user alone; it is removed when it is dropped.
pub(super) fn temporary_folder() -> Result<TempDir> {
    let folder = system::temporary().tempdir().map_err(|e| {
        Error::new(Code::Io, format!("a temporary folder cannot be made: {e}"))
            .help("free some space, or let TMPDIR name a folder that can be written")
    })?;
    match exposure(folder.path()) {
        None => Ok(folder),
        Some(problem) => Err(Error::new(
            Code::Io,
            format!("code is not compiled in the temporary folder {}", folder.path().display()),
        )
        .note(format!("{}, and could put other code in its place", problem.reason))
        .help(format!("{}, or let TMPDIR name a folder that only you can write", problem.remedy))),
    }
}

/// A new folder of this user alone in a private folder; it is removed when it is dropped.
pub(super) fn temporary_folder_in(folder: &Path) -> io::Result<TempDir> {
    system::temporary().tempdir_in(folder)
}

#[cfg(unix)]
mod unix {
    use std::collections::VecDeque;
    use std::ffi::OsString;
    use std::fs::{DirBuilder, File, Metadata, Permissions};
    use std::io;
    use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
    use std::path::{Component, Path, PathBuf};

    use rustix::fs::OFlags;
    use rustix::process::geteuid;

    use super::Exposure;

    const STICKY: u32 = 0o1000;
    /// Write permission of the group and of all others. Access-control lists show in that of the group.
    const OTHERS_WRITE: u32 = 0o022;
    /// As many symbolic links as Linux follows.
    const MOST_LINKS: usize = 40;

    /// Temporary folders of this user alone; what a mask of 002 leaves would be open to the group.
    pub fn temporary() -> tempfile::Builder<'static, 'static> {
        let mut builder = tempfile::Builder::new();
        builder.permissions(Permissions::from_mode(0o700));
        builder
    }

    /// Takes all rights to a file from other users.
    pub fn restrict(file: &Path) -> io::Result<()> {
        std::fs::set_permissions(file, Permissions::from_mode(0o700))
    }

    /// Makes a folder, and those on the way that are missing, for this user alone.
    pub fn create_folder(path: &Path) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)
    }

    /// Who besides this user and root could change what lies in a folder; `None`: nobody. What does not exist yet is
    /// made for this user alone.
    pub fn exposure(folder: &Path) -> Option<Exposure> {
        let absolute = match std::path::absolute(folder) {
            Ok(metadata) => metadata,
            Err(error) => return Some(unreadable(folder, &error)),
        };
        let mut rest: VecDeque<OsString> = words(&absolute);
        let mut place = PathBuf::from("/");
        let mut links = 0;
        while let Some(word) = rest.pop_front() {
            if word == ".." {
                place.pop();
                continue;
            }
            place.push(&word);
            let about = match place.symlink_metadata() {
                Ok(metadata) => metadata,
                // It cannot be read, by this user; what is made there is made for this user alone.
                Err(error) if is_closed(&error) => return None,
                Err(error) => return Some(unreadable(&place, &error)),
            };
            if !is_ours(&about) {
                return Some(Exposure {
                    reason: format!("{} belongs to another user (number {})", place.display(), about.uid()),
                    remedy: format!("make it your own (chown {} {})", geteuid().as_raw(), place.display()),
                });
            }
            if about.is_symlink() {
                links += 1;
                let target = match place.read_link() {
                    Ok(target) if links <= MOST_LINKS => target,
                    Ok(_) => return Some(unreadable(&place, &"too many symbolic links")),
                    Err(error) => return Some(unreadable(&place, &error)),
                };
                place.pop();
                if target.is_absolute() {
                    place = PathBuf::from("/");
                }
                let mut target = words(&target);
                target.append(&mut rest);
                rest = target;
                continue;
            }
            let is_guarded = about.mode() & STICKY != 0 && !rest.is_empty();
            if about.mode() & OTHERS_WRITE != 0 && !is_guarded {
                let mode = about.mode() & 0o7777;
                return Some(Exposure {
                    reason: format!("other users can write to {} (mode {mode:04o})", place.display()),
                    remedy: remedy(&place, rest.is_empty()),
                });
            }
        }
        None
    }

    /// Opens a file that nobody besides this user and root could have written.
    pub fn open(path: &Path) -> io::Result<File> {
        // A pipe would wait for a writer; a symbolic link may lead anywhere.
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC).bits();
        let file = File::options().read(true).custom_flags(flags.cast_signed()).open(path)?;
        let about = file.metadata()?;
        if !about.is_file() || !is_ours(&about) || about.mode() & OTHERS_WRITE != 0 {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "other users may have written it"));
        }
        Ok(file)
    }

    /// What was put into a folder while others could write there stays: it has to go as well.
    fn remedy(place: &Path, is_last: bool) -> String {
        if is_last {
            return format!("remove it (rm -r {}): it is made anew for you alone", place.display());
        }
        format!("take the right from them (chmod go-w {})", place.display())
    }

    fn is_closed(error: &io::Error) -> bool {
        use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied};
        matches!(error.kind(), NotFound | NotADirectory | PermissionDenied)
    }

    fn is_ours(about: &Metadata) -> bool {
        about.uid() == geteuid().as_raw() || about.uid() == 0
    }

    fn words(path: &Path) -> VecDeque<OsString> {
        let parts = path.components().filter_map(|part| match part {
            Component::Normal(word) => Some(word.to_owned()),
            Component::ParentDir => Some("..".into()),
            _ => None,
        });
        parts.collect()
    }

    fn unreadable(place: &Path, error: &dyn std::fmt::Display) -> Exposure {
        Exposure {
            reason: format!("who can write to {} is not known: {error}", place.display()),
            remedy: "check the path and its permissions".into(),
        }
    }
}

#[cfg(not(unix))]
mod other {
    use std::fs::File;
    use std::io;
    use std::path::Path;

    use super::Exposure;

    /// Temporary folders.
    pub fn temporary() -> tempfile::Builder<'static, 'static> {
        tempfile::Builder::new()
    }

    /// A file has the access-control list of its folder.
    pub fn restrict(_file: &Path) -> io::Result<()> {
        Ok(())
    }

    /// Makes a folder, and those on the way that are missing.
    pub fn create_folder(path: &Path) -> io::Result<()> {
        std::fs::create_dir_all(path)
    }

    /// Folders of a user are that user's alone by the access-control lists that they inherit.
    pub fn exposure(_folder: &Path) -> Option<Exposure> {
        None
    }

    /// Opens a file.
    pub fn open(path: &Path) -> io::Result<File> {
        File::open(path)
    }
}

#[cfg(not(unix))]
use other as system;
pub(super) use system::{exposure, open, restrict};
#[cfg(unix)]
use unix as system;
