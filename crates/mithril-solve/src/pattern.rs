//! Pattern relations: `"*b k, n k, n -> *b n"`.
//!
//! A pattern is parsed once per solver. Matching takes sizes and runs of dimensions from the inputs as far as they are known,
//! and creates variables for the rest.

use mithril_ir::pattern::{Token, split, tokens};
use mithril_ir::{Code, Dim, Error};
use rustc_hash::FxHashMap;

use crate::relation::Relation;
use crate::report::{Clash, Step};
use crate::store::{Store, check_extent};
use crate::term::{Seq, Size, Term};
use crate::why::WhyId;

/// One size of a pattern.
#[derive(Clone, Copy, Debug)]
enum Item {
    Name(usize),
    Number(i64),
    Any,
}

/// One shape of a pattern.
#[derive(Clone, Debug, Default)]
struct Side {
    prefix: Vec<Item>,
    run: Option<usize>,
    suffix: Vec<Item>,
}

/// A pattern with its names numbered.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    inputs: Vec<Side>,
    outputs: Vec<Side>,
    names: usize,
    runs: usize,
    texts: Vec<&'static str>,
}

impl Pattern {
    /// `None` if a shape has two runs.
    pub fn parse(text: &'static str) -> Option<Self> {
        let (inputs, outputs) = split(text);
        let (mut names, mut runs) = (FxHashMap::default(), FxHashMap::default());
        let mut side = |text: &'static str| {
            let mut side = Side::default();
            for token in tokens(text) {
                let item = match token {
                    Token::Sequence(name) => {
                        let next = runs.len();
                        if side.run.replace(*runs.entry(name).or_insert(next)).is_some() {
                            return None;
                        }
                        continue;
                    }
                    Token::Name(name) => {
                        let next = names.len();
                        Item::Name(*names.entry(name).or_insert(next))
                    }
                    Token::Number(n) => Item::Number(n),
                    Token::Any => Item::Any,
                };
                if side.run.is_some() { side.suffix.push(item) } else { side.prefix.push(item) }
            }
            Some(side)
        };
        let texts = inputs.clone();
        let inputs = inputs.into_iter().map(&mut side).collect::<Option<_>>()?;
        let outputs = outputs.into_iter().map(&mut side).collect::<Option<_>>()?;
        Some(Self { inputs, outputs, names: names.len(), runs: runs.len(), texts })
    }
}

/// The values of names and runs in one use.
struct Bindings {
    names: Vec<Option<Size>>,
    runs: Vec<Option<Term>>,
    why: WhyId,
}

impl Store {
    /// Derives all consequences of a pattern, so that no constraint has to be kept.
    pub fn pattern(&mut self, text: &'static str, relation: &Relation, why: WhyId) -> Step {
        let pattern = if let Some(pattern) = self.patterns.get(text) {
            pattern.clone()
        } else {
            let parsed = Pattern::parse(text)
                .ok_or_else(|| Clash::Error(Error::internal(format!("pattern {text:?} has two runs"))))?;
            self.patterns.entry(text).or_insert(std::sync::Arc::new(parsed)).clone()
        };
        let mut bindings = Bindings { names: vec![None; pattern.names], runs: vec![None; pattern.runs], why };
        let inputs = relation.inputs.iter().enumerate().filter(|(i, _)| relation.is_tensor(*i));
        for (k, ((i, slot), side)) in inputs.zip(&pattern.inputs).enumerate() {
            if self.is_absent(*slot) {
                continue;
            }
            let term = self.term(*slot)?;
            if term.rank().is_some_and(|rank| !side.accepts(rank)) {
                let message = format!("{} does not accept {}", relation.label, term.to_shape());
                let error = Error::new(Code::RankMismatch, message)
                    .help(format!("it must match [{}]", pattern.texts[k].replace(' ', ", ")));
                return Err(Box::new(Clash::Input(i, error)));
            }
            self.match_side(side, &term, &mut bindings)?;
        }
        for (slot, side) in relation.outputs.iter().zip(&pattern.outputs) {
            let built = self.build_side(side, &mut bindings);
            let term = self.term(*slot)?;
            self.unify_term(&term, &built)?;
        }
        Ok(())
    }
    fn match_side(&mut self, side: &Side, term: &Term, bindings: &mut Bindings) -> Step {
        let (p, q) = (side.prefix.len(), side.suffix.len());
        let visible = match (term.rest, side.run) {
            (None, _) => true,
            (Some(_), run) => run.is_some() && p <= term.prefix.len() && q <= term.suffix.len(),
        };
        if !visible {
            let built = self.build_side(side, bindings);
            return self.unify_term(term, &built);
        }
        for (item, size) in side.prefix.iter().zip(&term.prefix) {
            self.match_item(*item, size, bindings)?;
        }
        let right = term.right();
        for (item, size) in side.suffix.iter().zip(&right[right.len() - q..]) {
            self.match_item(*item, size, bindings)?;
        }
        let Some(run) = side.run else { return Ok(()) };
        let mut part = term.clone();
        let (end, list) = if term.rest.is_some() {
            (part.suffix.len() - q, &mut part.suffix)
        } else {
            (part.prefix.len() - q, &mut part.prefix)
        };
        list.truncate(end);
        part.prefix.drain(..p);
        if let Some(old) = bindings.runs[run].clone() {
            self.unify_term(&old, &part)
        } else {
            bindings.runs[run] = Some(part);
            Ok(())
        }
    }
    fn match_item(&mut self, item: Item, size: &Size, bindings: &mut Bindings) -> Step {
        match item {
            Item::Name(name) => {
                if let Some(old) = bindings.names[name].clone() {
                    self.unify_size(&old, size)
                } else {
                    bindings.names[name] = Some(size.clone());
                    Ok(())
                }
            }
            Item::Number(n) => self.unify_size(&Size { dim: Dim::Const(n), why: bindings.why }, size),
            Item::Any => Ok(()),
        }
    }
    fn build_side(&mut self, side: &Side, bindings: &mut Bindings) -> Term {
        let prefix = side.prefix.iter().map(|item| self.build_item(*item, bindings)).collect();
        let suffix: Vec<Size> = side.suffix.iter().map(|item| self.build_item(*item, bindings)).collect();
        let mut term = Term { prefix, rest: None, suffix: Vec::new(), why: bindings.why };
        if let Some(run) = side.run {
            let part = if let Some(part) = &bindings.runs[run] {
                part.clone()
            } else {
                let part = Term::run(self.add_seq());
                bindings.runs[run] = Some(part.clone());
                part
            };
            term.prefix.extend(part.prefix);
            term.suffix = part.suffix;
            term.rest = part.rest;
            term.why = part.why;
        }
        let end = if term.rest.is_some() { &mut term.suffix } else { &mut term.prefix };
        end.extend(suffix);
        term
    }
    fn build_item(&mut self, item: Item, bindings: &mut Bindings) -> Size {
        let why = bindings.why;
        match item {
            Item::Number(n) => Size { dim: Dim::Const(n), why },
            Item::Any => Size { dim: self.add_var(), why },
            Item::Name(name) => {
                if let Some(size) = &bindings.names[name] {
                    size.clone()
                } else {
                    let size = Size { dim: self.add_var(), why };
                    bindings.names[name] = Some(size.clone());
                    size
                }
            }
        }
    }
}

impl Side {
    fn accepts(&self, rank: usize) -> bool {
        let fixed = self.prefix.len() + self.suffix.len();
        if self.run.is_some() { rank >= fixed } else { rank == fixed }
    }
}

/// Validation of shapes from outside.
impl Store {
    /// Checks that a shape from outside has runs and sizes that this solver can work with.
    pub fn admit(&mut self, term: &Term) -> Step {
        for size in term.sizes() {
            check_extent(&size.dim)?;
            self.intern(&size.dim);
            if let Some(n) = size.dim.known().filter(|n| *n < 0) {
                let shape = term.to_shape();
                let error = Error::new(Code::BadSize, format!("shape {shape} has a negative size: {n}"));
                return Err(Box::new(Clash::Error(error.help("sizes are 0 or more"))));
            }
        }
        if let Some(Seq(seq)) = term.rest
            && seq as usize >= self.seqs.len()
        {
            return Err(Box::new(Clash::Error(Error::internal(
                "a run of dimensions belongs to another solver",
            ))));
        }
        match term.to_shape().to_shape() {
            Some(shape) => shape.check().map_err(|e| Box::new(Clash::Error(e))),
            None => Ok(()),
        }
    }
}
