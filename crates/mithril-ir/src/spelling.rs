//! Calls as other libraries write them: under one name a library may take its arguments in another order than Mithril.
//!
//! A [`Spelling`] is a row: the name, the library, and its parameters in order. A call by position is read both ways.
//! What only one reading fits means that; what both fit, with different meanings, is refused with both of them
//! written by keyword. So no call means something else than in the library whose name it uses.

use crate::error::{Code, Error, Result};
use crate::literal::Lit;
use crate::op::{Attr, OpDef, PortKind};

/// How another library takes the arguments of a name.
#[derive(Clone, Copy, Debug)]
pub struct Spelling {
    /// The name: of an op or a layer, or an alias.
    pub name: &'static str,
    /// The library.
    pub library: &'static str,
    /// Its parameters in order, separated by spaces: `name`, `name=ours` where ours is called otherwise, `name:kind` where
    /// there is none of ours (kinds: `bool`, `int`, `ints`, `pairs`, `float`, `tensor`, `any`, `kernel` for sizes that are
    /// checked only, and `never` for what no argument of ours can be); `?` at the end: has a default.
    pub params: &'static str,
    /// Whether the name has this order alone: it is an alias that only the library uses.
    pub only: bool,
    /// Whether a call that only this order fits is refused nevertheless, with this reason.
    pub refused: &'static str,
    /// What to write for arguments that there are not here.
    pub hint: &'static str,
}

/// What an argument is, as far as that decides between two orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given {
    /// An array or a connection.
    Tensor,
    /// An integer.
    Int,
    /// A tuple or list of integers, with its length.
    Ints(usize),
    /// A number with a fraction.
    Float,
    /// A boolean.
    Bool,
    /// A text.
    Text,
    /// Nothing.
    None,
    /// A literal that is known later: a size.
    Literal,
    /// Anything else.
    Other,
}

/// What an argument by position is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// A parameter of ours.
    Ours(usize),
    /// The sizes of the kernel, which the weight must have.
    Kernel,
    /// Nothing: it is `none`.
    Nothing,
}

impl Given {
    /// What a literal is.
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

/// A parameter of ours.
#[derive(Clone, Copy, Debug)]
pub struct Ours {
    /// Name.
    pub name: &'static str,
    /// What it takes.
    pub kind: PortKind,
    /// Whether it must be given.
    pub required: bool,
}

impl Ours {
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
struct Theirs {
    name: &'static str,
    /// Ours that it is, by place.
    ours: Option<usize>,
    kind: &'static str,
    required: bool,
}

impl Theirs {
    /// Whether what is given here has no place in ours.
    fn is_lost(&self) -> bool {
        self.ours.is_none() && self.kind != "kernel"
    }
}

impl Spelling {
    fn params(&self, ours: &[Ours]) -> Vec<Theirs> {
        self.params
            .split_whitespace()
            .map(|text| {
                let (text, required) = text.strip_suffix('?').map_or((text, true), |t| (t, false));
                let (name, kind) = text.split_once(':').unwrap_or((text, ""));
                let (name, own) = name.split_once('=').unwrap_or((name, name));
                let own = if kind.is_empty() { ours.iter().position(|o| o.name == own) } else { None };
                Theirs { name, ours: own, kind, required }
            })
            .collect()
    }
    /// Names of the parameters, and what each is called here.
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

/// What the arguments by position are; `None`: as they stand.
///
/// `named` are the names of ours that are given by keyword, `words` the arguments as text for messages.
///
/// # Errors
/// If both orders fit and mean different things, or the library's takes something that there is not here.
pub fn read(
    spelling: &Spelling,
    ours: &[Ours],
    given: &[Given],
    named: &[&str],
    words: &dyn Fn(usize) -> String,
) -> Result<Option<Vec<Slot>>> {
    let theirs = spelling.params(ours);
    let ours_fits = !spelling.only
        && given.len() <= ours.len()
        && given.iter().zip(ours).all(|(g, o)| fits(o.kind, *g))
        && ours.iter().enumerate().all(|(i, o)| !o.required || i < given.len() || named.contains(&o.name));
    let is_named = |t: &Theirs| t.ours.is_some_and(|i| named.contains(&ours[i].name));
    let theirs_fits = given.len() <= theirs.len()
        && given.iter().zip(&theirs).all(|(g, t)| match t.ours {
            Some(i) => fits(ours[i].kind, *g) || (!t.required && *g == Given::None),
            None => fits_kind(t.kind, *g) || (!t.required && *g == Given::None),
        })
        && theirs.iter().enumerate().all(|(i, t)| !t.required || i < given.len() || is_named(t))
        // What is named must be a parameter of theirs that stands behind.
        && named.iter().all(|n| theirs.iter().skip(given.len()).any(|t| t.ours.is_some_and(|i| ours[i].name == *n)));
    // `none` says the same at any place.
    let differs =
        given.iter().zip(&theirs).enumerate().any(|(i, (g, t))| *g != Given::None && t.ours != Some(i));
    let lost = given.iter().zip(&theirs).any(|(g, t)| *g != Given::None && t.is_lost());
    let stands = !differs || !theirs_fits;
    if !spelling.only && stands {
        return Ok(None);
    }
    if theirs_fits && !ours_fits && !lost && spelling.refused.is_empty() {
        let slot = |(g, t): (&Given, &Theirs)| match t.ours {
            Some(i) if t.required || *g != Given::None => Slot::Ours(i),
            None if t.kind == "kernel" => Slot::Kernel,
            _ => Slot::Nothing,
        };
        return Ok(Some(given.iter().zip(&theirs).map(slot).collect()));
    }
    Err(refusal(spelling, ours, &theirs, given, (words, !named.is_empty()), [ours_fits, theirs_fits]))
}

#[cold]
fn refusal(
    spelling: &Spelling,
    ours: &[Ours],
    theirs: &[Theirs],
    given: &[Given],
    (words, more): (&dyn Fn(usize) -> String, bool),
    [ours_fits, theirs_fits]: [bool; 2],
) -> Error {
    let name = spelling.name;
    // The first tensors stand by position in both.
    let first = given
        .iter()
        .zip(theirs)
        .enumerate()
        .take_while(|(i, (g, t))| **g == Given::Tensor && t.ours == Some(*i))
        .count();
    let call = |names: &[&str], skip: usize| {
        let args = names.iter().zip(0..given.len()).skip(skip);
        let args = args
            .filter(|(_, i)| given[*i] != Given::None)
            .map(|(n, i)| if i < first { words(i) } else { format!("{n}={}", words(i)) });
        let rest = more.then(|| "…".to_owned());
        format!("{name}({})", args.chain(rest).collect::<Vec<_>>().join(", "))
    };
    let own: Vec<&str> = ours.iter().map(|o| o.name).collect();
    let other: Vec<&str> = theirs.iter().map(|t| t.name).collect();
    let given_call = format!("{name}({})", (0..given.len()).map(words).collect::<Vec<_>>().join(", "));
    let signature = other.iter().zip(theirs).filter(|(_, t)| t.required).map(|(n, _)| *n).collect::<Vec<_>>();
    if !theirs_fits {
        let message = format!(
            "{given_call}: {name} takes its arguments as {} does: {name}({})",
            spelling.library,
            other.join(", ")
        );
        return Error::new(Code::BadArgument, message)
            .help(format!("give {} in this order, or by keyword", signature.join(", ")));
    }
    let theirs_call = call(&other, 0);
    let missing: Vec<&str> = given
        .iter()
        .zip(theirs)
        .filter(|(g, t)| **g != Given::None && t.is_lost())
        .map(|(_, t)| t.name)
        .collect();
    let mut help = Vec::new();
    if !spelling.refused.is_empty() {
        help.push(call(&other, 1));
    }
    if missing.is_empty() {
        help.push(theirs_call.clone());
    } else if spelling.hint.is_empty() {
        help.push(format!("it without `{}`, which there is not here", missing.join("`, `")));
    }
    let mut message = format!("{given_call} is {theirs_call} in {}", spelling.library);
    if ours_fits {
        let ours_call = call(&own, 0);
        message = format!("{message}, but {ours_call} in Mithril");
        help.push(ours_call);
    }
    if !spelling.refused.is_empty() {
        message = format!("{message}; {}", spelling.refused);
    }
    Error::new(Code::BadArgument, message).help(match (help.is_empty(), spelling.hint) {
        (true, hint) => hint.to_owned(),
        (false, "") => format!("write {}", help.join(", or ")),
        (false, hint) => format!("write {}; {hint}", help.join(", or ")),
    })
}

/// Whether a port takes it. A number stands for a tensor nowhere where orders are told apart.
fn fits(kind: PortKind, given: Given) -> bool {
    use Given::{Bool, Float, Int, Ints, Literal, None, Other, Tensor, Text};
    match kind {
        PortKind::Tensor(_) | PortKind::Variadic(_) => matches!(given, Tensor | Other),
        PortKind::Optional(_) => matches!(given, Tensor | Other | None),
        PortKind::Attr(_) if given == Literal => true,
        PortKind::Attr(attr) => match attr {
            Attr::Int => given == Int,
            Attr::OptInt => matches!(given, Int | None),
            Attr::Ints => matches!(given, Int | Ints(_)),
            Attr::Shape | Attr::OptInts => matches!(given, Int | Ints(_) | None),
            Attr::Float => matches!(given, Int | Float),
            Attr::OptFloat => matches!(given, Int | Float | None),
            Attr::Scalar => matches!(given, Int | Float | Bool),
            Attr::Bool => given == Bool,
            Attr::Choice(_) | Attr::Text => given == Text,
            Attr::DType => matches!(given, Text | Other | None),
            Attr::Any => given != Tensor,
        },
    }
}

fn fits_kind(kind: &str, given: Given) -> bool {
    match kind {
        "bool" => given == Given::Bool,
        "int" => given == Given::Int,
        "ints" | "kernel" => matches!(given, Given::Int | Given::Ints(_)),
        "pairs" => matches!(given, Given::Ints(n) if n > 0 && n % 2 == 0),
        "float" => matches!(given, Given::Int | Given::Float),
        "tensor" => matches!(given, Given::Tensor | Given::Other),
        "any" => true,
        _ => false,
    }
}
