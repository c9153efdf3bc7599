//! Calls in the argument order of other libraries: a library may have the same function with parameters in another order.
//!
//! A [`LibrarySignature`] has the name, the library, and its parameters in order. A call by position is matched with both
//! orders. If only one of them matches, it is used; if both match with different meanings, the call is an error that shows
//! both of them written with keywords. So no call silently differs from the library whose name it uses.

use crate::error::{Code, Error, Result};
use crate::literal::Lit;
use crate::op::{Attr, OpDef, PortKind};

/// The parameters of an op or layer in another library.
#[derive(Clone, Copy, Debug)]
pub struct LibrarySignature {
    /// The name of an op or a layer, or an alias.
    pub name: &'static str,
    /// The library.
    pub library: &'static str,
    /// Its parameters in order, separated by spaces: `name`, `name=ours` if ours has another name, `name:kind` if we have no
    /// such parameter (kinds: `bool`, `int`, `ints`, `pairs`, `float`, `tensor`, `any`, `kernel` for sizes that are only
    /// checked, and `never` for objects that no argument can be); a `?` at the end marks a default.
    pub params: &'static str,
    /// Whether the name has only this order: it is an alias that only the library uses.
    pub is_only: bool,
    /// If not empty, a call that matches only this order is an error with this reason.
    pub rejected: &'static str,
    /// What to write instead of parameters that we do not have.
    pub hint: &'static str,
}

/// A keyword that means something else in the function of the same name of another library. Only that library spells
/// the keyword so, so a call that uses it is written for the library.
#[derive(Clone, Copy, Debug)]
pub struct ForeignKeyword {
    /// Names of ops, or of layers that are not those of an op.
    pub names: &'static [&'static str],
    /// The keyword.
    pub keyword: &'static str,
    /// In which calls the meaning differs.
    pub when: When,
    /// What it means there and here.
    pub meaning: &'static str,
    /// What to write.
    pub help: &'static str,
}

/// In which calls a keyword of another library means something else.
#[derive(Clone, Copy, Debug)]
pub enum When {
    /// In every call.
    Always,
    /// With that argument.
    With(&'static str),
    /// Without that argument.
    Without(&'static str),
    /// If that argument is an integer.
    IsInt(&'static str),
    /// Unless that argument is an integer.
    IsNotInt(&'static str),
}

impl ForeignKeyword {
    /// Checks the keywords of a call of `name`; `kind_of` returns the kind of the argument for one of our parameters.
    ///
    /// # Errors
    /// If a keyword means something else in the library that spells it so.
    pub fn check(
        entries: &[Self],
        name: &str,
        keywords: &[&str],
        kind_of: &dyn Fn(&str) -> Option<ArgumentKind>,
    ) -> Result<()> {
        let differs = |when: When| match when {
            When::Always => true,
            When::With(parameter) => kind_of(parameter).is_some(),
            When::Without(parameter) => kind_of(parameter).is_none(),
            When::IsInt(parameter) => kind_of(parameter) == Some(ArgumentKind::Int),
            When::IsNotInt(parameter) => kind_of(parameter) != Some(ArgumentKind::Int),
        };
        let is_used = |entry: &&Self| entry.names.contains(&name) && keywords.contains(&entry.keyword);
        match entries.iter().find(|entry| is_used(entry) && differs(entry.when)) {
            None => Ok(()),
            Some(entry) => {
                let message = format!("{name} is called with `{}`: {}", entry.keyword, entry.meaning);
                Err(Error::new(Code::BadArgument, message).help(entry.help))
            }
        }
    }
}

/// Kind of an argument, as far as it decides between two orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgumentKind {
    /// An array or a connection.
    Tensor,
    /// An integer.
    Int,
    /// A tuple or list of integers, with its length.
    Ints(usize),
    /// A floating-point number.
    Float,
    /// A boolean.
    Bool,
    /// A text.
    Text,
    /// `none`.
    None,
    /// A literal that is not known yet, such as a size.
    Literal,
    /// Anything else.
    Other,
}

/// The meaning of a positional argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// Our parameter at this position.
    Parameter(usize),
    /// The sizes of the kernel, which the weight must have.
    Kernel,
    /// It is `none`, and ignored.
    Ignored,
}

impl ArgumentKind {
    /// Kind of a literal.
    #[must_use]
    pub fn of(lit: &Lit) -> Self {
        match lit {
            Lit::Int(_) => Self::Int,
            Lit::Float(_) => Self::Float,
            Lit::Bool(_) | Lit::Training => Self::Bool,
            Lit::Str(_) => Self::Text,
            Lit::None => Self::None,
            Lit::Tuple(items) if items.iter().all(|i| matches!(i, Lit::Int(_))) => Self::Ints(items.len()),
            _ => Self::Other,
        }
    }
}

/// One of our parameters.
#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    /// Name.
    pub name: &'static str,
    /// What it accepts.
    pub kind: PortKind,
    /// Whether it has no default.
    pub required: bool,
}

impl Parameter {
    /// The parameters of an op, without a variadic one.
    #[must_use]
    pub fn of_op(op: &'static OpDef) -> Vec<Self> {
        let ports = op.ports.iter().filter(|p| !matches!(p.kind, PortKind::Variadic(_)));
        ports
            .map(|p| {
                let required =
                    p.default == crate::op::DefaultLit::Required && !matches!(p.kind, PortKind::Optional(_));
                Self { name: p.name, kind: p.kind, required }
            })
            .collect()
    }
}

/// A parameter of the library.
struct LibraryParameter {
    name: &'static str,
    /// Position of our parameter with the same meaning.
    ours: Option<usize>,
    kind: &'static str,
    required: bool,
}

impl LibraryParameter {
    /// Whether an argument here has no counterpart in our parameters.
    fn is_unsupported(&self) -> bool {
        self.ours.is_none() && self.kind != "kernel"
    }
}

impl LibrarySignature {
    fn params(&self, ours: &[Parameter]) -> Vec<LibraryParameter> {
        self.params
            .split_whitespace()
            .map(|text| {
                let (text, required) = text.strip_suffix('?').map_or((text, true), |t| (t, false));
                let (name, kind) = text.split_once(':').unwrap_or((text, ""));
                let (name, own) = name.split_once('=').unwrap_or((name, name));
                let own = if kind.is_empty() { ours.iter().position(|o| o.name == own) } else { None };
                LibraryParameter { name, ours: own, kind, required }
            })
            .collect()
    }
    /// Names of the parameters, with the names of ours.
    #[must_use]
    pub fn names(&self) -> Vec<(&'static str, Option<&'static str>)> {
        let words = self.params.split_whitespace();
        words
            .map(|text| {
                let text = text.trim_end_matches('?');
                let (name, kind) = text.split_once(':').unwrap_or((text, ""));
                let (name, own) = name.split_once('=').unwrap_or((name, name));
                (name, kind.is_empty().then_some(own))
            })
            .collect()
    }
}

/// The meanings of positional arguments; `None` if they are in our order.
///
/// `named` are the names of our parameters with keyword arguments, `words` returns the arguments as text for messages.
///
/// # Errors
/// If both orders match with different meanings, or an argument has no counterpart in our parameters.
pub fn resolve(
    signature: &LibrarySignature,
    ours: &[Parameter],
    args: &[ArgumentKind],
    named: &[&str],
    words: &dyn Fn(usize) -> String,
) -> Result<Option<Vec<Slot>>> {
    let theirs = signature.params(ours);
    let ours_match = !signature.is_only
        && args.len() <= ours.len()
        && args.iter().zip(ours).all(|(a, o)| accepts(o.kind, *a))
        && ours.iter().enumerate().all(|(i, o)| !o.required || i < args.len() || named.contains(&o.name));
    let is_named = |t: &LibraryParameter| t.ours.is_some_and(|i| named.contains(&ours[i].name));
    let theirs_match = args.len() <= theirs.len()
        && args.iter().zip(&theirs).all(|(a, t)| match t.ours {
            Some(i) => accepts(ours[i].kind, *a) || (!t.required && *a == ArgumentKind::None),
            None => matches_kind(t.kind, *a) || (!t.required && *a == ArgumentKind::None),
        })
        && theirs.iter().enumerate().all(|(i, t)| !t.required || i < args.len() || is_named(t))
        // A keyword must be one of the remaining parameters.
        && named.iter().all(|n| theirs.iter().skip(args.len()).any(|t| t.ours.is_some_and(|i| ours[i].name == *n)));
    // `none` has the same meaning for any parameter.
    let differs =
        args.iter().zip(&theirs).enumerate().any(|(i, (a, t))| *a != ArgumentKind::None && t.ours != Some(i));
    let has_unsupported =
        args.iter().zip(&theirs).any(|(a, t)| *a != ArgumentKind::None && t.is_unsupported());
    let is_ours = !differs || !theirs_match;
    if !signature.is_only && is_ours {
        return Ok(None);
    }
    if theirs_match && !ours_match && !has_unsupported && signature.rejected.is_empty() {
        let slot = |(a, t): (&ArgumentKind, &LibraryParameter)| match t.ours {
            Some(i) if t.required || *a != ArgumentKind::None => Slot::Parameter(i),
            None if t.kind == "kernel" => Slot::Kernel,
            _ => Slot::Ignored,
        };
        return Ok(Some(args.iter().zip(&theirs).map(slot).collect()));
    }
    Err(mismatch(signature, ours, &theirs, args, (words, !named.is_empty()), [ours_match, theirs_match]))
}

#[cold]
fn mismatch(
    signature: &LibrarySignature,
    ours: &[Parameter],
    theirs: &[LibraryParameter],
    args: &[ArgumentKind],
    (words, more): (&dyn Fn(usize) -> String, bool),
    [ours_match, theirs_match]: [bool; 2],
) -> Error {
    let name = signature.name;
    // The first tensors have the same position in both orders.
    let first = args
        .iter()
        .zip(theirs)
        .enumerate()
        .take_while(|(i, (a, t))| **a == ArgumentKind::Tensor && t.ours == Some(*i))
        .count();
    let call = |names: &[&str], skip: usize| {
        let named = names.iter().zip(0..args.len()).skip(skip);
        let named = named
            .filter(|(_, i)| args[*i] != ArgumentKind::None)
            .map(|(n, i)| if i < first { words(i) } else { format!("{n}={}", words(i)) });
        let rest = more.then(|| "…".to_owned());
        format!("{name}({})", named.chain(rest).collect::<Vec<_>>().join(", "))
    };
    let own: Vec<&str> = ours.iter().map(|o| o.name).collect();
    let other: Vec<&str> = theirs.iter().map(|t| t.name).collect();
    let positional_call = format!("{name}({})", (0..args.len()).map(words).collect::<Vec<_>>().join(", "));
    let required = other.iter().zip(theirs).filter(|(_, t)| t.required).map(|(n, _)| *n).collect::<Vec<_>>();
    if !theirs_match {
        let message = format!(
            "{positional_call}: {name} takes its arguments as {} does: {name}({})",
            signature.library,
            other.join(", ")
        );
        return Error::new(Code::BadArgument, message)
            .help(format!("give {} in this order, or by keyword", required.join(", ")));
    }
    let theirs_call = call(&other, 0);
    let missing: Vec<&str> = args
        .iter()
        .zip(theirs)
        .filter(|(a, t)| **a != ArgumentKind::None && t.is_unsupported())
        .map(|(_, t)| t.name)
        .collect();
    let mut help = Vec::new();
    if !signature.rejected.is_empty() {
        help.push(call(&other, 1));
    }
    if missing.is_empty() {
        help.push(theirs_call.clone());
    } else if signature.hint.is_empty() {
        help.push(format!("it without `{}`, which Mithril does not have", missing.join("`, `")));
    }
    let mut message = format!("{positional_call} is {theirs_call} in {}", signature.library);
    if ours_match {
        let ours_call = call(&own, 0);
        message = format!("{message}, but {ours_call} in Mithril");
        help.push(ours_call);
    }
    if !signature.rejected.is_empty() {
        message = format!("{message}; {}", signature.rejected);
    }
    Error::new(Code::BadArgument, message).help(match (help.is_empty(), signature.hint) {
        (true, hint) => hint.to_owned(),
        (false, "") => format!("write {}", help.join(", or ")),
        (false, hint) => format!("write {}; {hint}", help.join(", or ")),
    })
}

/// Whether a port accepts an argument; numbers in place of tensors do not count here.
fn accepts(kind: PortKind, arg: ArgumentKind) -> bool {
    use ArgumentKind::{Bool, Float, Int, Ints, Literal, None, Other, Tensor, Text};
    match kind {
        PortKind::Tensor(_) | PortKind::Variadic(_) => matches!(arg, Tensor | Other),
        PortKind::Optional(_) => matches!(arg, Tensor | Other | None),
        PortKind::Attr(_) if arg == Literal => true,
        PortKind::Attr(attr) => match attr {
            Attr::Int => arg == Int,
            Attr::OptInt => matches!(arg, Int | None),
            Attr::Ints => matches!(arg, Int | Ints(_)),
            Attr::Shape | Attr::OptInts => matches!(arg, Int | Ints(_) | None),
            Attr::Float => matches!(arg, Int | Float),
            Attr::OptFloat => matches!(arg, Int | Float | None),
            Attr::Scalar => matches!(arg, Int | Float | Bool),
            Attr::Bool => arg == Bool,
            Attr::Choice(_) | Attr::Text => arg == Text,
            Attr::DType => matches!(arg, Text | Other | None),
            Attr::Any => arg != Tensor,
        },
    }
}

fn matches_kind(kind: &str, arg: ArgumentKind) -> bool {
    match kind {
        "bool" => arg == ArgumentKind::Bool,
        "int" => arg == ArgumentKind::Int,
        "ints" | "kernel" => matches!(arg, ArgumentKind::Int | ArgumentKind::Ints(_)),
        "pairs" => matches!(arg, ArgumentKind::Ints(n) if n > 0 && n % 2 == 0),
        "float" => matches!(arg, ArgumentKind::Int | ArgumentKind::Float),
        "tensor" => matches!(arg, ArgumentKind::Tensor | ArgumentKind::Other),
        "any" => true,
        _ => false,
    }
}
