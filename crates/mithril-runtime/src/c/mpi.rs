//! MPI of this machine: what its compiler adds to the one that is used, and what starts its programs.

use std::path::{Path, PathBuf};
use std::process::Command;

use mithril_ir::{Code, Error, Result};

use super::compiler::Tool;

/// An installation of MPI.
#[derive(Clone, Debug)]
pub struct Mpi {
    /// Flags that programs of MPI are compiled and linked with.
    pub flags: Vec<String>,
    /// The command that starts programs.
    pub launcher: PathBuf,
}

impl Mpi {
    /// Finds the one beside the Python interpreter, where the package `mpich` puts it, or else that of the system.
    ///
    /// # Errors
    /// If there is none.
    pub fn find(tool: &Tool) -> Result<Self> {
        let python = tool.python.as_deref().and_then(|python| Path::new(python).parent()).map(Path::to_owned);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders: Vec<PathBuf> = python.into_iter().chain(std::env::split_paths(&path)).collect();
        let program = |names: &[&str]| {
            folders
                .iter()
                .flat_map(|folder| names.iter().map(move |name| folder.join(name)))
                .find(|p| p.is_file())
        };
        let missing = |name: &str| {
            Error::new(Code::Unavailable, format!("there is no {name}, which programs of several ranks need"))
                .note("searched: the folder of Python, and PATH")
                .help("install MPI: pip install mpich on Linux, or apt install mpich, brew install open-mpi")
        };
        let compiler = program(&["mpicc"]).ok_or_else(|| missing("mpicc"))?;
        let launcher = program(&["mpiexec", "mpirun"]).ok_or_else(|| missing("mpiexec"))?;
        let output =
            Command::new(&compiler).arg("-show").output().ok().filter(|output| output.status.success());
        let output = output.ok_or_else(|| {
            Error::new(Code::Unavailable, format!("{} -show does not run", compiler.display()))
                .help("reinstall MPI: pip install --force-reinstall mpich")
        })?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let flags =
            text.split_whitespace().skip_while(|word| !word.starts_with('-')).map(str::to_owned).collect();
        Ok(Self { flags, launcher })
    }
    /// A command that starts so many ranks of a program.
    pub fn command(&self, ranks: usize, program: &Path) -> Command {
        let mut command = Command::new(&self.launcher);
        command.args(["-n", &ranks.to_string()]).arg(program);
        // By default, Open MPI refuses to start more ranks than there are processors, or any as root.
        for (name, value) in [
            ("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"),
            ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
            ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
            ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        ] {
            command.env(name, value);
        }
        command
    }
}
