//! The options of the C target: the one place that says their names, defaults, meaning and what they may be.
//!
//! Python's `CBackend`, the command line and Rust programs fill in the same [`Options`], which reach the passes as they are.
//! Who has options by name, as Python and the command line do, goes through [`Options::ALL`].

use std::collections::BTreeMap;
use std::sync::Arc;

use mithril_ir::error::{Code, Error, Result};

/// What is asked of the C target.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "options, each by itself")]
pub struct Options {
    /// What the names of all symbols start with; an identifier of C.
    pub prefix: String,
    /// Whether parameters may be packed, once for many calls: they then must not change between calls.
    pub pack: bool,
    /// Whether new states are written into the memory of the old ones: the caller passes the same address for both.
    pub in_place: bool,
    /// Floats in a vector of the processor that the code is for: 16, 8, 4, or 1 for plain C; by default those of this one.
    pub lanes: Option<usize>,
    /// Vector registers of the processor that the code is for; by default as `lanes` suggest.
    pub registers: Option<usize>,
    /// Whether programs of all sizes pack weights alike, so that they can share them; a product of one row may be slower.
    pub packs_alike: bool,
    /// The command of the C compiler, e.g. `gcc-13` or `ccache clang`; by default one is searched for.
    pub cc: Option<String>,
    /// Further flags of the compiler.
    pub flags: Vec<String>,
    /// The Python interpreter that may have the package `ziglang`, which is searched for last.
    pub python: Option<String>,
    /// Threads of a call; `None`: as many as the system has for this process.
    pub threads: Option<usize>,
    /// Bytes that packed parameters and the scratch memory of a call may have together.
    pub memory_limit: Option<usize>,
    /// Whether the candidates of kernels are measured, rather than estimated.
    pub autotune: bool,
    /// Weights that are quantized; needs `pack`.
    pub quantize: Option<Quantize>,
    /// A size that is an argument of a call, rather than a number of each program.
    pub batch: Option<Arc<str>>,
    /// How many rows of the data are computed at a time, of which none may need another; where their number is fixed, a
    /// divisor of it. By default as many as are estimated to be quickest, and of those whose number is an argument at
    /// most 8.
    pub block: Option<usize>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            prefix: "model".to_owned(),
            pack: false,
            in_place: false,
            lanes: None,
            registers: None,
            packs_alike: false,
            cc: None,
            flags: Vec::new(),
            python: None,
            threads: Some(1),
            memory_limit: None,
            autotune: false,
            quantize: None,
            batch: None,
            block: None,
        }
    }
}

/// Rows that are computed at a time at most, where their number is an argument.
const MOST_ROWS: usize = 4096;

impl Options {
    /// All options that callers choose by name. `pack` follows from what is compiled.
    pub const ALL: &'static [OptionDef] = &[
        OptionDef { name: "prefix", field: Field::Prefix(|o| &mut o.prefix) },
        OptionDef { name: "in_place", field: Field::Switch(|o| &mut o.in_place) },
        OptionDef { name: "lanes", field: Field::Count("", usize::MAX, |o| &mut o.lanes) },
        OptionDef { name: "registers", field: Field::Count("", 1024, |o| &mut o.registers) },
        OptionDef { name: "packs_alike", field: Field::Switch(|o| &mut o.packs_alike) },
        OptionDef {
            name: "cc",
            field: Field::Text("the command of a C compiler, e.g. \"gcc\"", |o| &mut o.cc),
        },
        OptionDef { name: "flags", field: Field::Words("texts, e.g. flags=[\"-g\"]", |o| &mut o.flags) },
        OptionDef { name: "python", field: Field::Text("the path of an interpreter", |o| &mut o.python) },
        OptionDef { name: "threads", field: Field::Count("", 1024, |o| &mut o.threads) },
        OptionDef {
            name: "memory_limit",
            field: Field::Count(" of bytes", usize::MAX, |o| &mut o.memory_limit),
        },
        OptionDef { name: "autotune", field: Field::Switch(|o| &mut o.autotune) },
        OptionDef { name: "quantize", field: Field::Quantize(|o| &mut o.quantize) },
        OptionDef { name: "batch", field: Field::Size(|o| &mut o.batch) },
        OptionDef { name: "block", field: Field::Count(" of rows", 1 << 30, |o| &mut o.block) },
    ];

    /// The option of a name.
    pub fn named(name: &str) -> Option<&'static OptionDef> {
        Self::ALL.iter().find(|option| option.name == name)
    }
    /// Sets the option of a name. `written` is what the caller wrote, for the error.
    ///
    /// ```
    /// use mithril_codegen::c::{Options, Value};
    ///
    /// let mut options = Options::default();
    /// options.set("block", Value::Number(4), "block is 4")?;
    /// assert_eq!(options.block, Some(4));
    /// let error = options.set("block", Value::Number(0), "block is 0").unwrap_err();
    /// assert_eq!(error.hint(), Some("give a number of rows from 1 to 1073741824"));
    /// # Ok::<(), mithril_ir::Error>(())
    /// ```
    pub fn set(&mut self, name: &str, value: Value, written: &str) -> Result<()> {
        let Some(option) = Self::named(name) else {
            return Err(Error::internal(format!("the C target has no option {name:?}")));
        };
        option.field.set(self, value, written)
    }
    /// All options that callers choose by name, with their values.
    pub fn values(&self) -> Vec<(&'static str, Value)> {
        let mut own = self.clone();
        Self::ALL.iter().map(|option| (option.name, option.field.get(&mut own))).collect()
    }
    /// Refuses options that are wrong by themselves or do not go together.
    pub fn check(&self) -> Result<()> {
        check_prefix(&self.prefix)?;
        match self.block {
            Some(block) if self.batch.is_some() && block > MOST_ROWS => {
                Err(bad(&format!("block is {block}"), &count(" of rows", MOST_ROWS)))
            }
            _ => Ok(()),
        }
    }
    /// Threads of a call.
    pub fn threads(&self) -> usize {
        self.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
    }
}

/// An option as callers name it.
#[derive(Clone, Copy, Debug)]
pub struct OptionDef {
    /// Its name, that of the field.
    pub name: &'static str,
    field: Field,
}

/// What an option is, where callers have to know that to read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionKind {
    /// A [`Value::Number`].
    Count,
    /// A [`Value::Quantize`].
    Quantize,
    /// Any other value.
    Plain,
}

impl OptionDef {
    /// What it is.
    pub fn kind(&self) -> OptionKind {
        match self.field {
            Field::Count(..) => OptionKind::Count,
            Field::Quantize(_) => OptionKind::Quantize,
            _ => OptionKind::Plain,
        }
    }
}

/// A value of an option as callers write it.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Nothing: what is not limited, named or chosen.
    None,
    /// On or off.
    Switch(bool),
    /// A number.
    Number(i64),
    /// A text.
    Text(String),
    /// Several texts.
    Texts(Vec<String>),
    /// How weights are quantized.
    Quantize(Quantize),
    /// What no option is.
    Other,
}

/// What an option may be, and where it is kept. Texts say what to give instead of what is wrong.
#[derive(Clone, Copy, Debug)]
enum Field {
    Switch(fn(&mut Options) -> &mut bool),
    /// A number up to a largest one, and of what.
    Count(&'static str, usize, fn(&mut Options) -> &mut Option<usize>),
    Text(&'static str, fn(&mut Options) -> &mut Option<String>),
    Words(&'static str, fn(&mut Options) -> &mut Vec<String>),
    Prefix(fn(&mut Options) -> &mut String),
    Size(fn(&mut Options) -> &mut Option<Arc<str>>),
    Quantize(fn(&mut Options) -> &mut Option<Quantize>),
}

impl Field {
    fn set(self, options: &mut Options, value: Value, written: &str) -> Result<()> {
        let number = |n: i64, most: usize| usize::try_from(n).ok().filter(|n| (1..=most).contains(n));
        match (self, value) {
            (Self::Switch(of), Value::Switch(value)) => *of(options) = value,
            (Self::Count(.., of), Value::None) => *of(options) = None,
            (Self::Count(_, most, of), Value::Number(n)) if number(n, most).is_some() => {
                *of(options) = number(n, most);
            }
            (Self::Text(_, of), Value::None) => *of(options) = None,
            (Self::Text(_, of), Value::Text(text)) if !text.trim().is_empty() => *of(options) = Some(text),
            (Self::Words(_, of), Value::Text(text)) => {
                *of(options) = text.split_whitespace().map(str::to_owned).collect();
            }
            (Self::Words(_, of), Value::Texts(texts)) => *of(options) = texts,
            (Self::Prefix(of), Value::Text(text)) => *of(options) = text,
            (Self::Size(of), Value::None) => *of(options) = None,
            (Self::Size(of), Value::Text(text)) if !text.is_empty() => *of(options) = Some(text.into()),
            (Self::Quantize(of), Value::None) => *of(options) = None,
            (Self::Quantize(of), Value::Quantize(quantize)) => *of(options) = Some(quantize),
            _ => return Err(bad(written, &self.help())),
        }
        Ok(())
    }
    fn get(self, options: &mut Options) -> Value {
        match self {
            Self::Switch(of) => Value::Switch(*of(options)),
            Self::Count(.., of) => of(options).map_or(Value::None, |n| Value::Number(n as i64)),
            Self::Text(_, of) => of(options).clone().map_or(Value::None, Value::Text),
            Self::Words(_, of) => Value::Texts(of(options).clone()),
            Self::Prefix(of) => Value::Text(of(options).clone()),
            Self::Size(of) => of(options).as_deref().map_or(Value::None, |name| Value::Text(name.to_owned())),
            Self::Quantize(of) => of(options).clone().map_or(Value::None, Value::Quantize),
        }
    }
    /// What to give instead of what is wrong.
    fn help(self) -> String {
        match self {
            Self::Switch(_) => "give True or False".to_owned(),
            Self::Count(unit, most, _) => count(unit, most),
            Self::Text(what, _) | Self::Words(what, _) => format!("give {what}"),
            Self::Prefix(_) => "give a text".to_owned(),
            Self::Size(_) => "name a size, as in shapes={\"input\": [\"batch\", 3]}".to_owned(),
            Self::Quantize(_) => "give patterns of names and how their weights are kept".to_owned(),
        }
    }
}

/// Which numbers may be given.
fn count(unit: &str, most: usize) -> String {
    if most == usize::MAX {
        return format!("give a positive number{unit}");
    }
    format!("give a number{unit} from 1 to {most}")
}

fn bad(written: &str, help: &str) -> Error {
    Error::new(Code::BadArgument, written).help(help)
}

/// Which weights are quantized, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantize {
    /// Patterns of paths of weights, and how those are kept; `None`: as they are. The first that is the path counts; `*`
    /// stands for anything, `?` for one character.
    pub rules: Vec<(String, Option<Scheme>)>,
    /// Ranges of what weights of convolutions are multiplied by; those of others are found at every call.
    pub ranges: BTreeMap<String, [f32; 2]>,
    /// Whether a weight that cannot be quantized is an error.
    pub strict: bool,
}

/// How weights are quantized.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// 8 bits with a scale for each column; the other factor is quantized too, and the products are integers.
    Int8,
    /// 8 bits with a scale for each column.
    Int8Weights,
    /// 4 bits with a scale for each [`GROUP`](crate::c::kernels::GROUP) terms of a column.
    Int4Weights,
}

impl Scheme {
    /// Its name, which users write.
    pub fn name(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
            Self::Int8Weights => "int8_weights",
            Self::Int4Weights => "int4_weights",
        }
    }

    /// The scheme of a name.
    pub fn of(name: &str) -> Option<Self> {
        [Self::Int8, Self::Int8Weights, Self::Int4Weights].into_iter().find(|scheme| scheme.name() == name)
    }

    /// Weights in a word of 32 bits.
    pub(crate) fn fields(self) -> usize {
        match self {
            Self::Int8 | Self::Int8Weights => 4,
            Self::Int4Weights => 8,
        }
    }
}

/// Headers of systems: an export has a header that is called like its prefix, and would hide them.
const HEADERS: &[&str] = &[
    "assert",
    "complex",
    "ctype",
    "errno",
    "fenv",
    "float",
    "inttypes",
    "limits",
    "locale",
    "malloc",
    "math",
    "memory",
    "pthread",
    "sched",
    "setjmp",
    "signal",
    "stdalign",
    "stdarg",
    "stdatomic",
    "stdbool",
    "stddef",
    "stdint",
    "stdio",
    "stdlib",
    "stdnoreturn",
    "string",
    "strings",
    "tgmath",
    "threads",
    "time",
    "uchar",
    "unistd",
    "wchar",
    "wctype",
];

/// A prefix becomes part of names of C.
fn check_prefix(prefix: &str) -> Result<()> {
    // Generated code calls its own so, and an export has a file main.c.
    let is_taken = ["main", "mithril"].contains(&prefix) || HEADERS.contains(&&*prefix.to_ascii_lowercase());
    let is_word = !is_taken && prefix.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if is_word && prefix.starts_with(|c: char| c.is_ascii_alphabetic()) && prefix.len() <= 64 {
        return Ok(());
    }
    Err(Error::new(Code::BadName, format!("{prefix:?} cannot be a prefix of C function names"))
        .help("use at most 64 letters, digits and underscores, a letter first; neither main, nor mithril, nor a header of C"))
}
