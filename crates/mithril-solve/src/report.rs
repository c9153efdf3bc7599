//! Contradictions, and how they are told: what does not fit, and for each side why it is as it is.

use std::fmt::Write;

use mithril_ir::dtype::Kinds;
use mithril_ir::error::Class;
use mithril_ir::{Code, DType, Error, Lit};

use crate::relation::{Relation, Rule};
use crate::store::{Slot, Store};
use crate::term::{Size, Term, plain};
use crate::why::{Why, WhyId};

/// On whose behalf something is derived.
#[derive(Clone, Debug, Default)]
pub(crate) enum Context {
    /// Nobody's.
    #[default]
    Nothing,
    /// A fact about a slot was given.
    Given(Slot, WhyId),
    /// Two slots were connected.
    Equal(Slot, Slot, WhyId),
    /// A relation, by its position.
    Relation(usize),
}

/// A contradiction, before it is put in words.
#[derive(Debug)]
pub(crate) enum Clash {
    /// Sizes that must be equal and are not.
    Sizes(Size, Size),
    /// Sizes that do not broadcast, so far from the right end.
    Axis(Size, Size, usize),
    /// Shapes of different rank.
    Ranks(Term, Term),
    /// Two dtypes.
    DTypes((DType, WhyId), (DType, WhyId)),
    /// A dtype and the kinds allowed.
    Kinds((DType, WhyId), (Kinds, WhyId)),
    /// Kinds that have nothing in common.
    NoKind((Kinds, WhyId), (Kinds, WhyId)),
    /// Two literals.
    Literals((Lit, WhyId), (Lit, WhyId)),
    /// The tensor input at that position does not fit.
    Input(usize, Error),
    /// Anything else, in words already.
    Error(Error),
}

/// Result of a derivation.
pub(crate) type Step<T = ()> = Result<T, Box<Clash>>;

/// A line of an explanation: what, its value, and why.
struct Row {
    what: String,
    value: String,
    why: WhyId,
}

impl Store {
    /// Puts a contradiction in words.
    #[cold]
    pub fn explain(&self, clash: Clash, context: &Context) -> Error {
        let error = match clash {
            Clash::Sizes(a, b) => self.explain_sizes(&a, &b, context),
            Clash::Axis(a, b, axis) => self.explain_axis(&a, &b, axis, context),
            Clash::Ranks(a, b) => self.explain_ranks(&a, &b, context),
            Clash::DTypes(a, b) => {
                let rows = [a, b].map(|(d, why)| Row { what: String::new(), value: d.name().into(), why });
                let error = Error::new(Code::DTypeMismatch, self.headline("dtypes", context));
                self.with_rows(error, &rows).help("convert one of them with cast")
            }
            Clash::Kinds(a, b) => {
                let dtype = Row { what: "it is".into(), value: a.0.name().into(), why: a.1 };
                let kinds = Row { what: "allowed".into(), value: b.0.to_string(), why: b.1 };
                let error = Error::new(Code::DTypeMismatch, self.headline("dtypes", context));
                self.with_rows(error, &[dtype, kinds]).help("convert it with cast")
            }
            Clash::NoKind(a, b) => {
                let rows = [a, b].map(|(k, why)| Row { what: String::new(), value: k.to_string(), why });
                let error = Error::new(Code::DTypeMismatch, self.headline("dtypes", context));
                self.with_rows(error, &rows).help("convert with cast between the two uses")
            }
            Clash::Literals(a, b) => {
                let rows = [a, b].map(|(l, why)| Row { what: String::new(), value: l.to_string(), why });
                let error = Error::new(Code::ConflictingOptions, self.headline("values", context));
                self.with_rows(error, &rows).help("give one value only")
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
            Context::Given(_, why) | Context::Equal(_, _, why) => Some(self.why(*why)),
            Context::Relation(r) => self.relations.get(*r).map(|relation| self.why(relation.1)),
        }
    }
    /// "shapes do not fit in `block.add`"
    fn headline(&self, what: &str, context: &Context) -> String {
        match context {
            Context::Nothing => format!("{what} do not fit"),
            Context::Given(s, _) => format!("{what} of `{}` do not fit", self.name(*s)),
            Context::Equal(a, b, _) => {
                format!("{what} of `{}` and `{}` do not fit", self.name(*a), self.name(*b))
            }
            Context::Relation(r) => format!("{what} do not fit in `{}`", self.relation_name(*r)),
        }
    }
    fn relation_name(&self, r: usize) -> String {
        let Some(relation) = self.relations.get(r) else { return String::new() };
        let path = self.why(relation.1).place.path.clone().filter(|p| !p.is_empty());
        path.unwrap_or_else(|| relation.0.label.clone()).to_string()
    }
    /// Every slot that takes part, with the name it has there and its shape.
    fn parties(&self, context: &Context) -> Vec<(String, Term)> {
        let named = |s: Slot| Some((format!("`{}`", self.name(s)), self.term(s).ok()?));
        match context {
            Context::Nothing => Vec::new(),
            Context::Given(s, _) => {
                let given = self.given.as_ref().map(|term| ("given".to_owned(), self.resolve_term(term)));
                named(*s).into_iter().chain(given).collect()
            }
            Context::Equal(a, b, _) => [*a, *b].into_iter().filter_map(named).collect(),
            Context::Relation(r) => {
                let Some(relation) = self.relations.get(*r) else { return Vec::new() };
                let outputs = relation.0.outputs.iter().filter_map(|s| named(*s));
                self.input_parties(&relation.0).into_iter().chain(outputs).collect()
            }
        }
    }
    fn input_parties(&self, relation: &Relation) -> Vec<(String, Term)> {
        (0..relation.inputs.len()).filter_map(|i| self.input_party(relation, i)).collect()
    }
    /// A tensor input that is not absent.
    fn input_party(&self, relation: &Relation, i: usize) -> Option<(String, Term)> {
        let slot = *relation.inputs.get(i).filter(|s| relation.is_tensor(i) && !self.is_absent(**s))?;
        let own = || format!("`{}`", self.name(slot));
        let name = relation.port_names.get(i).map_or_else(own, ToString::to_string);
        Some((name, self.term(slot).ok()?))
    }
    fn explain_sizes(&self, a: &Size, b: &Size, context: &Context) -> Error {
        let mut rows = Vec::new();
        let (mut has_a, mut has_b) = (false, false);
        for (what, term) in self.parties(context) {
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
                rows.push(Row { what, value: term.to_shape().to_string(), why });
            }
            has_a |= in_a;
            has_b |= in_b;
        }
        for (size, told) in [(a, has_a), (b, has_b)] {
            if !told {
                rows.push(Row { what: "size".into(), value: plain(&size.dim), why: size.why });
            }
        }
        let error = Error::new(Code::ShapeMismatch, self.headline("shapes", context));
        let error = self.with_rows(error, &rows);
        let (x, y) = (plain(&a.dim), plain(&b.dim));
        let help = self.equal_sizes([a, b], &rows);
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
        let mut parties = self.parties(context);
        parties.retain(|(_, t)| t.at_right(axis).is_some_and(|s| s.dim == a.dim || s.dim == b.dim));
        // Two inputs that disagree say it all; the output only repeats one of them.
        let dim = |t: &Term| t.at_right(axis).map(|s| s.dim.clone());
        if let Some(second) = parties.iter().position(|(_, t)| dim(t) != dim(&parties[0].1)) {
            parties.truncate(second + 1);
        }
        let row = |(what, term): &(String, Term)| {
            let why = term.at_right(axis).map_or(WhyId::NONE, |s| s.why);
            Row { what: what.clone(), value: term.to_shape().to_string(), why }
        };
        let rows: Vec<Row> = parties.iter().map(row).collect();
        // Counted from the left if that means the same for all.
        let mut ranks: Vec<Option<usize>> = parties.iter().map(|(_, t)| t.rank()).collect();
        ranks.dedup();
        let place = match ranks.as_slice() {
            [Some(rank)] => format!("{}", rank - axis - 1),
            _ => format!("-{}", axis + 1),
        };
        let label = self.rule(context).map_or("this", |(label, _)| label);
        let error = Error::new(Code::ShapeMismatch, self.headline("shapes", context));
        let help = match parties.iter().map(|(_, term)| term.at_right(axis)).collect::<Vec<_>>()[..] {
            [Some(first), Some(second)] => self.equal_sizes([first, second], &rows),
            _ => self.equal_sizes([a, b], &rows),
        };
        self.with_rows(error, &rows)
            .note(format!("{label} needs equal sizes, or 1, along axis {place}"))
            .help(format!("{help}; or insert an axis of size 1 with expand_dims"))
    }
    /// Which of two sizes to change where, so that they are equal.
    fn equal_sizes(&self, sizes: [&Size; 2], rows: &[Row]) -> String {
        let texts = sizes.map(|size| plain(&size.dim));
        let places = [0, 1].map(|i| self.origin(sizes[i], &texts[i], rows.get(i)));
        let [(x, y), (here, there)] = [(&texts[0], &texts[1]), (&places[0], &places[1])];
        if here == there {
            return format!("make {x} and {y} equal{here}");
        }
        format!("change {x} to {y}{here}, or {y} to {x}{there}")
    }
    /// Where a size comes from: the user's own declaration if that names it, else the shape that has it.
    fn origin(&self, size: &Size, text: &str, row: Option<&Row>) -> String {
        let why = self.why(size.why);
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        if why.text.split(|c| !is_word(c)).any(|word| word == text) || (row.is_none() && !why.text.is_empty())
        {
            let place = why.place.line.as_ref().map_or_else(String::new, |line| format!(" ({line})"));
            return format!(" where {}{place}", why.text);
        }
        row.filter(|row| row.what != "size")
            .map_or_else(String::new, |row| format!(" in {} {}", row.what, row.value).replace("  ", " "))
    }
    fn explain_ranks(&self, a: &Term, b: &Term, context: &Context) -> Error {
        let parties = self.parties(context);
        let mut rows: Vec<Row> = Vec::new();
        for (what, term) in &parties {
            rows.push(Row { what: what.clone(), value: term.to_shape().to_string(), why: term.why });
        }
        let is_told = |t: &Term| parties.iter().any(|(_, p)| p.same(t));
        for term in [a, b].into_iter().filter(|t| !is_told(t)) {
            rows.push(Row { what: "needed".into(), value: term.to_shape().to_string(), why: term.why });
        }
        let error = Error::new(Code::RankMismatch, self.headline("shapes", context));
        let count = |t: &Term| match t.rank() {
            Some(n) => n.to_string(),
            None => format!("at least {}", t.min_rank()),
        };
        self.with_rows(error, &rows)
            .note(format!("the numbers of dimensions differ: {} and {}", count(a), count(b)))
            .help("add or remove a dimension with expand_dims, squeeze or reshape")
    }
    fn explain_input(&self, i: usize, error: Error, context: &Context) -> Error {
        let Context::Relation(r) = context else { return error };
        let Some(relation) = self.relations.get(*r) else { return error };
        match self.input_party(&relation.0, i) {
            Some((what, term)) => {
                let why = term.why;
                self.with_rows(error, &[Row { what, value: term.to_shape().to_string(), why }])
            }
            None => error,
        }
    }
    fn explain_error(&self, error: Error, context: &Context) -> Error {
        let Context::Relation(_) = context else { return error };
        if error.code().class() != Class::Shape {
            return error;
        }
        let rows: Vec<Row> = self
            .parties(context)
            .into_iter()
            .filter(|(_, term)| !self.why(term.why).text.is_empty())
            .map(|(what, term)| Row { what, value: term.to_shape().to_string(), why: term.why })
            .collect();
        self.with_rows(error, &rows)
    }
    fn rule(&self, context: &Context) -> Option<(&str, &Rule)> {
        let Context::Relation(r) = context else { return None };
        self.relations.get(*r).map(|relation| (&*relation.0.label, &relation.0.rule))
    }
    /// The rows as notes, in columns.
    fn with_rows(&self, mut error: Error, rows: &[Row]) -> Error {
        let width = |f: fn(&Row) -> &str| rows.iter().map(|r| f(r).chars().count()).max().unwrap_or(0);
        let (what, value) = (width(|r| &r.what), width(|r| &r.value));
        let reasons: Vec<_> = rows.iter().map(|r| self.why(r.why)).collect();
        let text = reasons.iter().map(|w| w.text.chars().count()).max().unwrap_or(0);
        for (row, why) in rows.iter().zip(reasons) {
            let mut line = String::new();
            if what > 0 {
                line = format!("{:what$}  ", row.what);
            }
            // Writing to a `String` cannot fail.
            let _ = write!(line, "{:value$}", row.value);
            if !why.text.is_empty() {
                let _ = write!(line, "   because {:text$}", why.text);
            }
            if let Some(place) = &why.place.line {
                let _ = write!(line, "   {place}");
            }
            error = error.note(line.trim_end());
        }
        error
    }
}
