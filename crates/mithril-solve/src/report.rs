//! Messages about contradictions: the incompatible shapes, dtypes or values, each with its reason.

use std::fmt::Write;

use mithril_ir::dtype::Kinds;
use mithril_ir::error::Class;
use mithril_ir::{Code, DType, Error, Lit};

use crate::relation::{Relation, Rule};
use crate::store::{Slot, Store};
use crate::term::{Size, Term, plain};
use crate::why::{Why, WhyId};

/// The fact or relation from which something is derived.
#[derive(Clone, Debug, Default)]
pub(crate) enum Context {
    /// None.
    #[default]
    Nothing,
    /// A declared fact about a slot.
    Declared(Slot, WhyId),
    /// The connection of two slots.
    Equal(Slot, Slot, WhyId),
    /// A relation, by its position.
    Relation(usize),
}

/// A contradiction, from which a message is made.
#[derive(Debug)]
pub(crate) enum Clash {
    /// Sizes that must be equal but differ.
    Sizes(Size, Size),
    /// Sizes that do not broadcast, and the distance of their axis from the right end.
    Axis(Size, Size, usize),
    /// Shapes of different rank.
    Ranks(Term, Term),
    /// Different dtypes.
    DTypes((DType, WhyId), (DType, WhyId)),
    /// A dtype, and allowed kinds that do not include it.
    Kinds((DType, WhyId), (Kinds, WhyId)),
    /// Kinds without a common one.
    NoKind((Kinds, WhyId), (Kinds, WhyId)),
    /// Different literals.
    Literals((Lit, WhyId), (Lit, WhyId)),
    /// The tensor input at that position is invalid.
    Input(usize, Error),
    /// Any other error.
    Error(Error),
}

/// Result of a derivation.
pub(crate) type Step<T = ()> = Result<T, Box<Clash>>;

/// A line of a message: a name, its value, and the reason.
struct Line {
    what: String,
    value: String,
    why: WhyId,
}

impl Store {
    /// The error for a contradiction.
    #[cold]
    pub fn explain(&self, clash: Clash, context: &Context) -> Error {
        let error = match clash {
            Clash::Sizes(a, b) => self.explain_sizes(&a, &b, context),
            Clash::Axis(a, b, axis) => self.explain_axis(&a, &b, axis, context),
            Clash::Ranks(a, b) => self.explain_ranks(&a, &b, context),
            Clash::DTypes(a, b) => {
                let lines = [a, b].map(|(d, why)| Line { what: String::new(), value: d.name().into(), why });
                let error = Error::new(Code::DTypeMismatch, self.headline("dtypes", context));
                self.with_lines(error, &lines).help("convert one of them with cast")
            }
            Clash::Kinds(a, b) => {
                let dtype = Line { what: "it is".into(), value: a.0.name().into(), why: a.1 };
                let kinds = Line { what: "allowed".into(), value: b.0.to_string(), why: b.1 };
                let error = Error::new(Code::DTypeMismatch, self.headline("dtypes", context));
                self.with_lines(error, &[dtype, kinds]).help("convert it with cast")
            }
            Clash::NoKind(a, b) => {
                let lines = [a, b].map(|(k, why)| Line { what: String::new(), value: k.to_string(), why });
                let error = Error::new(Code::DTypeMismatch, self.headline("dtypes", context));
                self.with_lines(error, &lines).help("convert with cast between the two uses")
            }
            Clash::Literals(a, b) => {
                let lines = [a, b].map(|(l, why)| Line { what: String::new(), value: l.to_string(), why });
                let error = Error::new(Code::ConflictingOptions, self.headline("values", context));
                self.with_lines(error, &lines).help("give one value only")
            }
            Clash::Input(i, error) => self.explain_input(i, error, context),
            Clash::Error(error) => self.explain_error(error, context),
        };
        match self.reason(context) {
            Some(why) => error.at(&why.place),
            None => error,
        }
    }
    fn reason(&self, context: &Context) -> Option<&Why> {
        match context {
            Context::Nothing => None,
            Context::Declared(_, why) | Context::Equal(_, _, why) => Some(self.why(*why)),
            Context::Relation(r) => self.relations.get(*r).map(|relation| self.why(relation.1)),
        }
    }
    /// "incompatible shapes in `block.add`"
    fn headline(&self, what: &str, context: &Context) -> String {
        match context {
            Context::Nothing => format!("incompatible {what}"),
            Context::Declared(s, _) => format!("incompatible {what} of `{}`", self.name(*s)),
            Context::Equal(a, b, _) => {
                format!("incompatible {what} of `{}` and `{}`", self.name(*a), self.name(*b))
            }
            Context::Relation(r) => format!("incompatible {what} in `{}`", self.relation_name(*r)),
        }
    }
    fn relation_name(&self, r: usize) -> String {
        let Some(relation) = self.relations.get(r) else { return String::new() };
        let path = self.why(relation.1).place.path.clone().filter(|p| !p.is_empty());
        path.unwrap_or_else(|| relation.0.label.clone()).to_string()
    }
    /// Every slot that is involved, with its name and shape.
    fn participants(&self, context: &Context) -> Vec<(String, Term)> {
        let named = |s: Slot| Some((format!("`{}`", self.name(s)), self.term(s).ok()?));
        match context {
            Context::Nothing => Vec::new(),
            Context::Declared(s, _) => {
                let declared =
                    self.declared.as_ref().map(|term| ("given".to_owned(), self.resolve_term(term)));
                named(*s).into_iter().chain(declared).collect()
            }
            Context::Equal(a, b, _) => [*a, *b].into_iter().filter_map(named).collect(),
            Context::Relation(r) => {
                let Some(relation) = self.relations.get(*r) else { return Vec::new() };
                let outputs = relation.0.outputs.iter().filter_map(|s| named(*s));
                self.input_participants(&relation.0).into_iter().chain(outputs).collect()
            }
        }
    }
    fn input_participants(&self, relation: &Relation) -> Vec<(String, Term)> {
        (0..relation.inputs.len()).filter_map(|i| self.input_participant(relation, i)).collect()
    }
    /// A tensor input that is not absent.
    fn input_participant(&self, relation: &Relation, i: usize) -> Option<(String, Term)> {
        let slot = *relation.inputs.get(i).filter(|s| relation.is_tensor(i) && !self.is_absent(**s))?;
        let own = || format!("`{}`", self.name(slot));
        let name = relation.port_names.get(i).map_or_else(own, ToString::to_string);
        Some((name, self.term(slot).ok()?))
    }
    fn explain_sizes(&self, a: &Size, b: &Size, context: &Context) -> Error {
        let mut lines = Vec::new();
        let (mut has_a, mut has_b) = (false, false);
        for (what, term) in self.participants(context) {
            let hit = |x: &Size| term.sizes().any(|s| s == x);
            let (in_a, in_b) = (hit(a), hit(b));
            if in_a || in_b {
                let why = if in_a && !has_a {
                    a.why
                } else if in_b {
                    b.why
                } else {
                    a.why
                };
                lines.push(Line { what, value: term.to_shape().to_string(), why });
            }
            has_a |= in_a;
            has_b |= in_b;
        }
        for (size, shown) in [(a, has_a), (b, has_b)] {
            if !shown {
                lines.push(Line { what: "size".into(), value: plain(&size.dim), why: size.why });
            }
        }
        let error = Error::new(Code::ShapeMismatch, self.headline("shapes", context));
        let error = self.with_lines(error, &lines);
        let (x, y) = (plain(&a.dim), plain(&b.dim));
        let help = self.equal_sizes([a, b], &lines);
        let error = match self.rule(context) {
            Some((label, Rule::Pattern(text))) => {
                let inputs = text.split("->").next().unwrap_or(text).trim();
                error.note(format!("{label} takes shapes ({inputs}), so {x} and {y} would have to be equal"))
            }
            _ => error.note(format!("{x} and {y} would have to be equal")),
        };
        error.help(help)
    }
    fn explain_axis(&self, a: &Size, b: &Size, axis: usize, context: &Context) -> Error {
        let mut participants = self.participants(context);
        participants.retain(|(_, t)| t.at_right(axis).is_some_and(|s| s.dim == a.dim || s.dim == b.dim));
        // Two inputs that differ suffice; the output only repeats one of them.
        let dim = |t: &Term| t.at_right(axis).map(|s| s.dim.clone());
        if let Some(second) = participants.iter().position(|(_, t)| dim(t) != dim(&participants[0].1)) {
            participants.truncate(second + 1);
        }
        let line = |(what, term): &(String, Term)| {
            let why = term.at_right(axis).map_or(WhyId::NONE, |s| s.why);
            Line { what: what.clone(), value: term.to_shape().to_string(), why }
        };
        let lines: Vec<Line> = participants.iter().map(line).collect();
        // Counted from the left if all have the same rank.
        let mut ranks: Vec<Option<usize>> = participants.iter().map(|(_, t)| t.rank()).collect();
        ranks.dedup();
        let place = match ranks.as_slice() {
            [Some(rank)] => format!("{}", rank - axis - 1),
            _ => format!("-{}", axis + 1),
        };
        let label = self.rule(context).map_or("this", |(label, _)| label);
        let error = Error::new(Code::ShapeMismatch, self.headline("shapes", context));
        let help = match participants.iter().map(|(_, term)| term.at_right(axis)).collect::<Vec<_>>()[..] {
            [Some(first), Some(second)] => self.equal_sizes([first, second], &lines),
            _ => self.equal_sizes([a, b], &lines),
        };
        self.with_lines(error, &lines)
            .note(format!("{label} needs equal sizes, or 1, along axis {place}"))
            .help(format!("{help}; or insert an axis of size 1 with expand_dims"))
    }
    /// Says which of two sizes to change, and where, to make them equal.
    fn equal_sizes(&self, sizes: [&Size; 2], lines: &[Line]) -> String {
        let texts = sizes.map(|size| plain(&size.dim));
        let places = [0, 1].map(|i| self.origin(sizes[i], &texts[i], lines.get(i)));
        let [(x, y), (first_place, second_place)] = [(&texts[0], &texts[1]), (&places[0], &places[1])];
        if first_place == second_place {
            return format!("make {x} and {y} equal{first_place}");
        }
        format!("change {x} to {y}{first_place}, or {y} to {x}{second_place}")
    }
    /// The origin of a size: the user's declaration if that names it, else the shape that has it.
    fn origin(&self, size: &Size, text: &str, line: Option<&Line>) -> String {
        let why = self.why(size.why);
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        if why.text.split(|c| !is_word(c)).any(|word| word == text)
            || (line.is_none() && !why.text.is_empty())
        {
            let place = why.place.line.as_ref().map_or_else(String::new, |line| format!(" ({line})"));
            return format!(" where {}{place}", why.text);
        }
        line.filter(|line| line.what != "size")
            .map_or_else(String::new, |line| format!(" in {} {}", line.what, line.value).replace("  ", " "))
    }
    fn explain_ranks(&self, a: &Term, b: &Term, context: &Context) -> Error {
        let participants = self.participants(context);
        let mut lines: Vec<Line> = Vec::new();
        for (what, term) in &participants {
            lines.push(Line { what: what.clone(), value: term.to_shape().to_string(), why: term.why });
        }
        let is_shown = |t: &Term| participants.iter().any(|(_, p)| p.same(t));
        for term in [a, b].into_iter().filter(|t| !is_shown(t)) {
            lines.push(Line { what: "needed".into(), value: term.to_shape().to_string(), why: term.why });
        }
        let error = Error::new(Code::RankMismatch, self.headline("shapes", context));
        let count = |t: &Term| match t.rank() {
            Some(n) => n.to_string(),
            None => format!("at least {}", t.min_rank()),
        };
        self.with_lines(error, &lines)
            .note(format!("the numbers of dimensions differ: {} and {}", count(a), count(b)))
            .help("add or remove a dimension with expand_dims, squeeze or reshape")
    }
    fn explain_input(&self, i: usize, error: Error, context: &Context) -> Error {
        let Context::Relation(r) = context else { return error };
        let Some(relation) = self.relations.get(*r) else { return error };
        match self.input_participant(&relation.0, i) {
            Some((what, term)) => {
                let why = term.why;
                self.with_lines(error, &[Line { what, value: term.to_shape().to_string(), why }])
            }
            None => error,
        }
    }
    fn explain_error(&self, error: Error, context: &Context) -> Error {
        let Context::Relation(_) = context else { return error };
        if error.code().class() != Class::Shape {
            return error;
        }
        let lines: Vec<Line> = self
            .participants(context)
            .into_iter()
            .filter(|(_, term)| !self.why(term.why).text.is_empty())
            .map(|(what, term)| Line { what, value: term.to_shape().to_string(), why: term.why })
            .collect();
        self.with_lines(error, &lines)
    }
    fn rule(&self, context: &Context) -> Option<(&str, &Rule)> {
        let Context::Relation(r) = context else { return None };
        self.relations.get(*r).map(|relation| (&*relation.0.label, &relation.0.rule))
    }
    /// The lines as notes, in columns.
    fn with_lines(&self, mut error: Error, lines: &[Line]) -> Error {
        let width = |f: fn(&Line) -> &str| lines.iter().map(|r| f(r).chars().count()).max().unwrap_or(0);
        let (what, value) = (width(|r| &r.what), width(|r| &r.value));
        let reasons: Vec<_> = lines.iter().map(|r| self.why(r.why)).collect();
        let text = reasons.iter().map(|w| w.text.chars().count()).max().unwrap_or(0);
        for (line, why) in lines.iter().zip(reasons) {
            let mut note = String::new();
            if what > 0 {
                note = format!("{:what$}  ", line.what);
            }
            // Writing to a `String` cannot fail.
            let _ = write!(note, "{:value$}", line.value);
            if !why.text.is_empty() {
                let _ = write!(note, "   because {:text$}", why.text);
            }
            if let Some(place) = &why.place.line {
                let _ = write!(note, "   {place}");
            }
            error = error.note(note.trim_end());
        }
        error
    }
}
