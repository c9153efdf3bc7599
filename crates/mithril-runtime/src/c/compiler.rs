//! The C compiler of this machine: found, asked for its version, and run.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::available_parallelism;

use mithril_compile::c::{COptions, FLAGS, units};
use mithril_ir::{Code, Error, Result};

use super::private::write;

/// What makes all results wrong that hold a NaN, an infinity or a subnormal.
const FORBIDDEN: &[&str] = &["-ffast-math", "-Ofast", "-ffinite-math-only", "-funsafe-math-optimizations"];

/// Characters of a unit that are worth a process of the compiler.
const UNIT: usize = 30_000;

/// Units at most.
const MOST_UNITS: usize = 16;

/// How many units a file of so many characters is compiled as. That does not depend on the machine: what is inlined does
/// depend on what else there is in a unit, and with it the last bit of a result.
fn unit_count(length: usize) -> usize {
    (length / UNIT).clamp(1, MOST_UNITS)
}

/// Why units were not compiled.
enum Stopped {
    /// A file cannot be written.
    Io(Error),
    /// The compiler failed, with one of them at least.
    Compiler(Error),
}

/// Which compiler is wanted, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tool {
    /// The command, e.g. `gcc-13` or `ccache clang`; none: `$CC`, then `cc`, `gcc`, `clang`, then `ziglang`.
    pub command: Option<String>,
    /// Further flags.
    pub flags: Vec<String>,
    /// The Python interpreter that may have the package `ziglang`.
    pub python: Option<String>,
}

impl Tool {
    /// The one that options ask for.
    pub fn of(options: &COptions) -> Self {
        let COptions { cc, flags, python, .. } = options.clone();
        Self { command: cc, flags, python }
    }
}

/// A C compiler.
#[derive(Clone, Debug)]
pub struct Compiler {
    words: Vec<String>,
    flags: Vec<String>,
    version: String,
}

impl Compiler {
    /// Finds the compiler that is wanted.
    pub fn find(tool: &Tool) -> Result<Self> {
        if let Some(bad) = tool.flags.iter().find(|flag| FORBIDDEN.contains(&flag.as_str())) {
            return Err(Error::new(Code::BadArgument, format!("the flag {bad} is not allowed"))
                .note("it breaks NaN, infinities and subnormals in the whole process")
                .help("leave it out; sums are reordered and vectorized without it"));
        }
        let environment = std::env::var("CC").ok().filter(|text| !text.trim().is_empty());
        let (named, from) = match (&tool.command, &environment) {
            (Some(command), _) => (Some(command), "the option cc"),
            (None, path) => (path.as_ref(), "the environment variable CC"),
        };
        let path = match named {
            Some(command) => {
                let words = split(command);
                let version = version(&words).map_err(|reason| {
                    Error::new(
                        Code::Unavailable,
                        format!("the C compiler {command:?} does not run: {reason}"),
                    )
                    .note(format!("{from} names it"))
                    .help("name one that is installed, or leave it out to search for one")
                })?;
                Some((words, version))
            }
            None => {
                candidates(tool).into_iter().find_map(|words| Some((words.clone(), version(&words).ok()?)))
            }
        };
        let (words, version) = path.ok_or_else(|| {
            Error::new(Code::Unavailable, "there is no C compiler").note("searched: cc, gcc, clang, ziglang").help(
                "install one (apt install gcc, xcode-select --install, pip install ziglang), or name one by the \
                 environment variable CC",
            )
        })?;
        Ok(Self { words, flags: tool.flags.clone(), version })
    }
    /// The command as words.
    pub fn command(&self) -> &[String] {
        &self.words
    }
    /// First line of what `--version` prints.
    pub fn version(&self) -> &str {
        self.version.lines().next().unwrap_or_default()
    }
    /// Everything that a compiled object depends on besides the source.
    pub(super) fn identity(&self) -> String {
        [self.words.join(" "), self.version.clone(), self.arguments().join(" ")].join("\n")
    }
    /// All flags, in order.
    pub fn arguments(&self) -> Vec<&str> {
        let native = if cfg!(any(target_arch = "x86_64", target_arch = "x86", target_arch = "riscv64")) {
            "-march=native"
        } else {
            "-mcpu=native"
        };
        FLAGS.iter().copied().chain([native]).chain(self.flags.iter().map(String::as_str)).collect()
    }
    /// Compiles C into a shared library in a folder: long files as several units, as many at a time as there are
    /// processors.
    pub fn compile(&self, source: &str, folder: &Path) -> Result<PathBuf> {
        let target = folder.join("model.so");
        let processors = available_parallelism().map_or(1, usize::from);
        let units = units(source, unit_count(source.len()));
        let mut stopped = None;
        if units.len() > 1 {
            match self.compile_units(&units, processors, folder, &target) {
                Ok(()) => return Ok(target),
                Err(Stopped::Io(error)) => return Err(error),
                Err(Stopped::Compiler(error)) => stopped = Some(error),
            }
        }
        // The whole file says what is wrong, where a reader finds it.
        let file = write(folder, "model.c", source)?;
        self.build(&[file], &target, &["-fPIC", "-shared"], &["-lm"])?;
        if let Some(error) = stopped {
            log::warn!("generated code compiles, but not in units; please report it: {error}");
        }
        Ok(target)
    }
    /// Compiles units side by side, and links them.
    fn compile_units(
        &self,
        units: &[String],
        processors: usize,
        folder: &Path,
        target: &Path,
    ) -> std::result::Result<(), Stopped> {
        let next = AtomicUsize::new(0);
        let work = || {
            let mut objects = Vec::new();
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                let Some(unit) = units.get(i) else { return Ok(objects) };
                let file = write(folder, &format!("unit{i}.c"), unit).map_err(Stopped::Io)?;
                let object = folder.join(format!("unit{i}.o"));
                // After the first failure nobody needs the others.
                self.build(&[file], &object, &["-fPIC", "-c"], &[]).map_err(|error| {
                    next.store(units.len(), Ordering::Relaxed);
                    Stopped::Compiler(error)
                })?;
                objects.push(object);
            }
        };
        let done: Vec<_> = std::thread::scope(|scope| {
            let started: Vec<_> = (0..processors.min(units.len())).map(|_| scope.spawn(work)).collect();
            let lost = || Err(Stopped::Compiler(Error::internal("a thread that compiled has panicked")));
            started.into_iter().map(|thread| thread.join().unwrap_or_else(|_| lost())).collect()
        });
        let mut objects = Vec::new();
        for some in done {
            objects.extend(some?);
        }
        self.build(&objects, target, &["-fPIC", "-shared"], &["-lm"]).map_err(Stopped::Compiler)
    }
    /// Compiles files of C into one target, with further flags before the files and libraries behind them.
    pub fn build(
        &self,
        sources: &[PathBuf],
        target: &Path,
        flags: &[&str],
        libraries: &[&str],
    ) -> Result<()> {
        let mut command = start(&self.words);
        command.args(self.arguments()).args(flags).arg("-o").arg(target).args(sources).args(libraries);
        let output = command.output().map_err(|e| {
            Error::new(Code::Unavailable, format!("the C compiler does not run: {e}"))
                .note(format!("the command is {:?}", self.words.join(" ")))
        })?;
        if output.status.success() && target.exists() {
            return Ok(());
        }
        Err(self.refusal(sources, &output))
    }
    /// The error for a compilation that failed: the compiler's first message with the line that it is about.
    fn refusal(&self, sources: &[PathBuf], output: &Output) -> Error {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let is_error = |line: &&str| line.contains("error") || line.contains("undefined reference");
        let first = text.lines().find(is_error).or_else(|| text.lines().next()).unwrap_or("it says nothing");
        let name = |source: &PathBuf| source.file_name().map(|n| n.to_string_lossy().into_owned());
        let option = sources.iter().find_map(|source| {
            let name = name(source)?;
            Some((source, first.split_once(&format!("{name}:"))?.1, name))
        });
        let shown =
            option.as_ref().map_or_else(|| first.to_owned(), |(_, rest, name)| format!("{name}:{rest}"));
        let what = if output.status.success() {
            "the C compiler made nothing".to_owned()
        } else {
            format!("the C compiler stopped ({})", output.status)
        };
        let mut error = Error::new(Code::Compiler, what).note(shown);
        if let Some((source, rest, _)) = option
            && let Some(line) = rest.split(':').next().and_then(|n| n.parse::<usize>().ok())
            && let Ok(code) = std::fs::read_to_string(source)
            && let Some(generated) = line.checked_sub(1).and_then(|i| code.lines().nth(i))
        {
            error = error.note(format!("the generated line is: {}", generated.trim()));
        }
        error =
            error.note(format!("the command was {} {}", self.words.join(" "), self.arguments().join(" ")));
        // The compiler itself, or a program that it started.
        if output.status.code().is_none() || text.contains("Killed") {
            return error
                .help("it was killed, often because memory ran out: make room, or try flags=[\"-O1\"]");
        }
        if !self.flags.is_empty() {
            return error.help(format!("try without the flags that were given: {}", self.flags.join(" ")));
        }
        error.help("generated code should compile: please report it; another compiler (cc=) or flags=[\"-O1\"] may take it")
    }
}

/// Commands that are tried when none is named.
fn candidates(tool: &Tool) -> Vec<Vec<String>> {
    let mut commands: Vec<Vec<String>> =
        ["cc", "gcc", "clang"].iter().map(|name| vec![(*name).into()]).collect();
    if let Some(python) = &tool.python {
        commands.push([python.as_str(), "-m", "ziglang", "cc"].map(String::from).to_vec());
    }
    commands
}

/// The words of a command; a path of an existing file is one word, blanks and all.
fn split(command: &str) -> Vec<String> {
    if Path::new(command).is_file() {
        return vec![command.to_owned()];
    }
    command.split_whitespace().map(String::from).collect()
}

fn start(words: &[String]) -> Command {
    let mut command = Command::new(words.first().map_or("", String::as_str));
    // Messages in English, so that errors are recognized.
    command.args(words.iter().skip(1)).env("LC_ALL", "C").stdin(Stdio::null());
    command
}

/// What a compiler says of itself, asked once per process; the reason if it cannot be asked.
fn version(words: &[String]) -> Result<String, String> {
    static KNOWN: Mutex<Option<HashMap<Vec<String>, String>>> = Mutex::new(None);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.get_or_insert_default();
    if let Some(cached) = known.get(words) {
        return Ok(cached.clone());
    }
    let output = start(words).arg("--version").output().map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if !output.status.success() || text.is_empty() {
        return Err(format!("--version ends with {}", output.status));
    }
    known.insert(words.to_vec(), text.clone());
    Ok(text)
}
