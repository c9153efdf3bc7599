//! The error type of the compiler: a code, the place, the reason and a help.
//!
//! Every failure that a user can cause has a [`Code`]. The message says what is wrong, [`Error::notes`] why (one reason per
//! line), [`Error::help`] what to do. `Display` prints all of them:
//!
//! ```text
//! error[M0301]: incompatible shapes in `block.add`
//!   left   [batch, 64]   because `block.fc1.weight` is [64, 784]        model.py:12
//!   help: Linear(dimension=64) there would make them agree
//! ```

use std::fmt;
use std::sync::Arc;

/// Result of operations that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A line of the user's source.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Line {
    /// File name in the host language.
    pub file: Arc<str>,
    /// Line, counted from 1.
    pub line: u32,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// The origin of a part of a model: its path and the user's source line, as far as they are known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Place {
    /// Path in the model, e.g. `h.0.attn.c_attn`; empty for the model itself.
    pub path: Option<Arc<str>>,
    /// The user's line.
    pub line: Option<Line>,
}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $class:ident;)*) => {
        /// The kind of an error, with a stable code that the documentation explains.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Code { $($(#[$doc])* $name,)* }
        impl Code {
            /// Every code, in order.
            pub const ALL: &'static [Code] = &[$(Code::$name,)*];
            /// The stable text of the code, e.g. `M0301`.
            pub const fn text(self) -> &'static str { match self { $(Code::$name => $text,)* } }
            /// The class of the error, which decides the Python exception.
            pub const fn class(self) -> Class { match self { $(Code::$name => Class::$class,)* } }
        }
    };
}

/// The class of an error; each corresponds to an exception class in Python.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Class {
    /// `ShapeError(MithrilError, ValueError)`
    Shape,
    /// `TypeInferenceError(MithrilError, TypeError)`
    Type,
    /// `KeyNotFoundError(MithrilError, KeyError)`
    Key,
    /// `ValueError` of the API: a wrong option or literal. `InvalidValueError(MithrilError, ValueError)`
    Value,
    /// `ConnectionError_` family: names and wiring. `WiringError(MithrilError, ValueError)`
    Wiring,
    /// `UnsupportedOpError(MithrilError, NotImplementedError)`
    Unsupported,
    /// `ParameterError(MithrilError, ValueError)`
    Parameter,
    /// `UnresolvedShapeError(ShapeError)`
    Unresolved,
    /// `ModelFileError(MithrilError, ValueError)`
    File,
    /// `NumericsError(MithrilError, ArithmeticError)`
    Numerics,
    /// `BackendUnavailableError(MithrilError, ImportError, RuntimeError)`
    Unavailable,
    /// `CompilerError(MithrilError, RuntimeError)`
    Compiler,
    /// `OutOfMemoryError(MithrilError, MemoryError)`
    Memory,
    /// A defect of Mithril itself. `InternalError(MithrilError, RuntimeError)`
    Internal,
}

codes! {
    /// A name is empty, taken, or not allowed.
    BadName = "M0101", Wiring;
    /// A name does not exist.
    UnknownName = "M0102", Key;
    /// Two outputs are connected to each other, or a connection has two sources.
    TwoSources = "M0103", Wiring;
    /// A connection depends on itself.
    Cycle = "M0104", Wiring;
    /// An input that needs a value has none.
    Unconnected = "M0105", Wiring;
    /// The model has nothing to compute.
    EmptyModel = "M0106", Wiring;
    /// A connection of another model, or a part of a value where all of it is needed.
    BadConnection = "M0107", Wiring;
    /// Shapes are inconsistent.
    ShapeMismatch = "M0301", Shape;
    /// The number of dimensions is wrong.
    RankMismatch = "M0302", Shape;
    /// A size is negative, too large, or the tensor would not fit in memory.
    BadSize = "M0303", Shape;
    /// A shape is needed but not known.
    UnknownShape = "M0304", Unresolved;
    /// A dtype does not match.
    DTypeMismatch = "M0401", Type;
    /// A dtype has an unknown name, or is not supported there.
    BadDType = "M0402", Type;
    /// An argument (axis, stride, mode …) has a value that is not allowed.
    BadArgument = "M0501", Value;
    /// An argument must be known at compile time but is not.
    UnknownArgument = "M0502", Value;
    /// Two options contradict each other.
    ConflictingOptions = "M0503", Value;
    /// An index is out of range.
    IndexOutOfRange = "M0504", Value;
    /// The target cannot run the op or dtype.
    Unsupported = "M0601", Unsupported;
    /// The op has no gradient.
    NoGradient = "M0602", Unsupported;
    /// The C compiler rejects generated code.
    Compiler = "M0603", Compiler;
    /// A parameter or input is missing, superfluous or of the wrong shape.
    BadParameter = "M0701", Parameter;
    /// A saved model, a checkpoint or a text is malformed.
    BadFile = "M0801", File;
    /// A file could not be read or written.
    Io = "M0802", File;
    /// A file tries to run code, or to read outside of its folder.
    Refused = "M0803", File;
    /// A number is not finite or not representable.
    Numerics = "M0901", Numerics;
    /// A compiler, framework or device is not available.
    Unavailable = "M1001", Unavailable;
    /// There is not enough memory.
    OutOfMemory = "M1002", Memory;
    /// A defect of Mithril; please report it.
    Internal = "M0999", Internal;
}

/// An error: what is wrong, where, why, and what to do.
#[derive(Clone, Debug)]
pub struct Error(Box<Inner>);

#[derive(Clone, Debug)]
struct Inner {
    code: Code,
    message: String,
    place: Place,
    notes: Vec<String>,
    help: Option<String>,
}

impl Error {
    /// A new error of that code; `message` is one sentence without a full stop.
    #[cold]
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            code,
            message: message.into(),
            place: Place::default(),
            notes: Vec::new(),
            help: None,
        }))
    }
    /// A bug in Mithril.
    #[cold]
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(Code::Internal, message).help("this is a bug in Mithril; please report it")
    }
    /// Adds a reason of one line.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.0.notes.push(note.into());
        self
    }
    /// Sets what to do instead.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.0.help = Some(help.into());
        self
    }
    /// Completes the place with what is not known yet.
    #[must_use]
    pub fn at(mut self, place: &Place) -> Self {
        let own = &mut self.0.place;
        own.path = own.path.take().or_else(|| place.path.clone());
        own.line = own.line.take().or_else(|| place.line.clone());
        self
    }
    /// The code.
    pub fn code(&self) -> Code {
        self.0.code
    }
    /// What is wrong, in one sentence.
    pub fn message(&self) -> &str {
        &self.0.message
    }
    /// The place in the model.
    pub fn place(&self) -> &Place {
        &self.0.place
    }
    /// The reasons, one per line.
    pub fn notes(&self) -> &[String] {
        &self.0.notes
    }
    /// What to do instead.
    pub fn hint(&self) -> Option<&str> {
        self.0.help.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let e = &*self.0;
        write!(f, "error[{}]: {}", e.code.text(), e.message)?;
        if let Some(path) = e.place.path.as_deref().filter(|p| !p.is_empty() && !e.message.contains(*p)) {
            write!(f, " in `{path}`")?;
        }
        if let Some(line) = &e.place.line {
            write!(f, "\n  at {line}")?;
        }
        for note in &e.notes {
            write!(f, "\n  {note}")?;
        }
        if let Some(help) = &e.help {
            write!(f, "\n  help: {help}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

/// The candidate nearest to `word`, for "did you mean" helps.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Two edits make anything of a word of three letters.
    let letters = word.chars().count();
    let limit = if letters <= 3 { 1 } else { (letters / 3).max(1) + 1 };
    candidates
        .into_iter()
        .map(|c| (edit_distance(&word.to_lowercase(), &c.to_lowercase()), c))
        .filter(|(d, _)| *d <= limit)
        .min_by_key(|(d, _)| *d)
        .map(|(_, c)| c)
}

fn edit_distance(a: &str, b: &str) -> usize {
    // Bounded, so that huge names do not make an error message slow.
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().take(64).collect(), b.chars().take(64).collect());
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let cost = diagonal + usize::from(ca != cb);
            diagonal = row[j + 1];
            row[j + 1] = cost.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_every_part() {
        let e = Error::new(Code::ShapeMismatch, "incompatible shapes").note("left [2]").help("transpose it");
        assert_eq!(e.to_string(), "error[M0301]: incompatible shapes\n  left [2]\n  help: transpose it");
    }

    #[test]
    fn nearest_corrects_typos_only() {
        assert_eq!(nearest("inptu", ["output", "input"]), Some("input"));
        assert_eq!(nearest("weights", ["input", "zebra"]), None);
        assert_eq!(nearest("foo", ["bool", "int8"]), None);
        assert_eq!(nearest("int", ["bool", "int8"]), Some("int8"));
    }

    #[test]
    fn codes_are_unique() {
        let mut texts: Vec<_> = Code::ALL.iter().map(|c| c.text()).collect();
        texts.sort_unstable();
        texts.dedup();
        assert_eq!(texts.len(), Code::ALL.len());
    }
}
