//! The folder of an export: its files are written, then built and run.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

use mithril_ir::{Code, Error, Result};

use super::mesh::MeshExport;
use crate::c::compiler::Compiler;

/// Writes the files into a folder, and copies into another one; their paths in the folder.
pub(super) fn write(files: Vec<(String, Vec<u8>)>, folder: &Path, copies: &Path) -> Result<Vec<PathBuf>> {
    fs::create_dir_all(folder).map_err(|e| unwritable(folder, &e))?;
    for name in ["main.c", "Makefile", "CMakeLists.txt", "README.md"] {
        refuse_foreign(&folder.join(name))?;
    }
    let mut paths = Vec::new();
    for (name, bytes) in files {
        for path in [copies.join(&name), folder.join(&name)] {
            fs::write(&path, &bytes).map_err(|e| unwritable(&path, &e))?;
        }
        paths.push(folder.join(name));
    }
    Ok(paths)
}

pub(super) fn unwritable(path: &Path, error: &io::Error) -> Error {
    let help = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            "free some space, or choose another folder; what was written there is not whole"
        }
        io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => {
            "name a folder: a file of this name is there"
        }
        _ => "name a folder, new or not, in which files may be made",
    };
    Error::new(Code::Io, format!("{} cannot be written: {error}", path.display())).help(help)
}

/// A file of that name which somebody else wrote is not replaced: ours say whose they are.
fn refuse_foreign(path: &Path) -> Result<()> {
    let Ok(content) = fs::read(path) else { return Ok(()) };
    if String::from_utf8_lossy(&content).contains("by Mithril") {
        return Ok(());
    }
    Err(Error::new(Code::Io, format!("{} already exists and is not part of an export", path.display()))
        .help("choose an empty folder, or move that file away"))
}

/// Builds the checking program in a temporary folder, where its sources are, and runs it on the files of a folder; what
/// it printed.
pub(super) fn build_and_run(
    compiler: &Compiler,
    work: &Path,
    folder: &Path,
    prefix: &str,
    threads: usize,
    mesh: Option<&MeshExport>,
) -> Result<String> {
    let program = work.join("check");
    let mut sources = vec![work.join("main.c"), work.join(format!("{prefix}.c"))];
    let mut libraries = vec!["-lm", "-lpthread"];
    if let Some(mesh) = mesh {
        sources.push(work.join(format!("{prefix}_mpi.c")));
        libraries.extend(mesh.mpi.flags.iter().map(String::as_str));
    }
    compiler.build(&sources, &program, &["-Wall", "-Wextra", "-Werror"], &libraries)?;
    let mut command =
        mesh.map_or_else(|| Command::new(&program), |mesh| mesh.mpi.command(mesh.ranks(), &program));
    command.arg(threads.to_string());
    match mesh {
        Some(_) => command.arg(folder),
        None => {
            command.arg(folder.join(format!("{prefix}.weights"))).arg(folder.join(format!("{prefix}.check")))
        }
    };
    let output = command
        .output()
        .map_err(|e| Error::new(Code::Io, format!("the exported model was built but does not run: {e}")))?;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(printed);
    }
    let mut error = Error::new(Code::Numerics, "the exported model does not reproduce the recorded results")
        .note(format!("the program {} ends with {}", folder.join("main.c").display(), output.status));
    for line in printed.lines().chain(String::from_utf8_lossy(&output.stderr).lines()) {
        error = error.note(line);
    }
    Err(error.help("the files are kept; please report this with the model"))
}
