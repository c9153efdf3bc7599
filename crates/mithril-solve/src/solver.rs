//! The solver's face.

use std::sync::Arc;

use mithril_ir::dtype::Kinds;
use mithril_ir::{Code, DType, Dim, Error, Lit, Result};

use crate::relation::{Answer, Fact, Relation, Rule};
use crate::term::{Seq, ShapeTerm};
use crate::why::Why;

/// The unknowns of one connection: shape, dtype, literal value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(u32);

#[derive(Clone, Debug)]
struct Node {
    name: Arc<str>,
    parent: u32,
    shape: Option<ShapeTerm>,
    seq: Seq,
    dtype: Option<DType>,
    literal: Option<Lit>,
}

/// Knows what is known of slots, and derives what follows.
#[derive(Clone, Debug, Default)]
pub struct Solver {
    slots: Vec<Node>,
    dims: u32,
    seqs: u32,
}

impl Solver {
    /// A new slot; `name` is for messages, e.g. `block.fc1.weight`.
    pub fn slot(&mut self, name: impl Into<Arc<str>>) -> Slot {
        let seq = self.fresh_seq();
        let id = self.slots.len() as u32;
        self.slots.push(Node { name: name.into(), parent: id, shape: None, seq, dtype: None, literal: None });
        Slot(id)
    }
    /// Gives a slot another name for messages.
    pub fn rename(&mut self, s: Slot, name: Arc<str>) {
        if let Some(node) = self.slots.get_mut(s.0 as usize) {
            node.name = name;
        }
    }
    /// A new dimension variable: some size, never negative.
    pub fn fresh_dim(&mut self) -> Dim {
        self.dims += 1;
        Dim::var(self.dims - 1)
    }
    /// A new run of dimensions.
    pub fn fresh_seq(&mut self) -> Seq {
        self.seqs += 1;
        Seq(self.seqs - 1)
    }
    fn root(&self, s: Slot) -> usize {
        let mut at = s.0 as usize;
        while self.slots[at].parent as usize != at {
            at = self.slots[at].parent as usize;
        }
        at
    }
    /// The slot has that shape.
    pub fn set_shape(&mut self, s: Slot, shape: ShapeTerm, why: Why) -> Result<()> {
        let node = self.root(s);
        match &self.slots[node].shape {
            Some(old) if *old != shape && old.rest.is_none() => {
                Err(Error::new(Code::ShapeMismatch, format!("{old} and {shape}"))
                    .note(&*why.text)
                    .at(&why.place))
            }
            _ => {
                self.slots[node].shape = Some(shape);
                Ok(())
            }
        }
    }
    /// The slot has that dtype.
    pub fn set_dtype(&mut self, s: Slot, dtype: DType, _why: Why) -> Result<()> {
        let node = self.root(s);
        self.slots[node].dtype = Some(dtype);
        Ok(())
    }
    /// The slot's dtype is of one of these kinds.
    pub fn set_kinds(&mut self, _s: Slot, _kinds: Kinds, _why: Why) -> Result<()> {
        Ok(())
    }
    /// The slot is a literal: an argument, a number, or absent.
    pub fn set_literal(&mut self, s: Slot, lit: Lit, _why: Why) -> Result<()> {
        let node = self.root(s);
        self.slots[node].literal = Some(lit);
        Ok(())
    }
    /// Both slots are one value.
    pub fn equate(&mut self, a: Slot, b: Slot, why: Why) -> Result<()> {
        let (a_root, b_root) = (self.root(a), self.root(b));
        let old = self.slots[b_root].clone();
        self.slots[b_root].parent = a_root as u32;
        if let Some(shape) = old.shape {
            self.set_shape(a, shape, why)?;
        }
        Ok(())
    }
    /// Adds a relation and derives what follows.
    pub fn relate(&mut self, relation: Relation, why: Why) -> Result<()> {
        let Rule::When(f) = &relation.rule else { return Ok(()) };
        let facts: Vec<Fact> = relation
            .inputs
            .iter()
            .map(|s| Fact {
                shape: self.slots[self.root(*s)].shape.clone(),
                dtype: self.dtype(*s),
                literal: self.literal(*s),
            })
            .collect();
        if let Answer::Now(facts) = f(&facts)? {
            for (fact, s) in facts.outputs.into_iter().zip(&relation.outputs) {
                if let Some(shape) = fact.shape {
                    self.set_shape(*s, shape, why.clone())?;
                }
            }
        }
        Ok(())
    }
    /// The shape as far as it is known.
    pub fn shape(&self, s: Slot) -> ShapeTerm {
        let node = &self.slots[self.root(s)];
        node.shape.clone().unwrap_or_else(|| ShapeTerm::unknown(node.seq))
    }
    /// The dtype, if known.
    pub fn dtype(&self, s: Slot) -> Option<DType> {
        self.slots[self.root(s)].dtype
    }
    /// The literal value, if the slot is one.
    pub fn literal(&self, s: Slot) -> Option<Lit> {
        self.slots[self.root(s)].literal.clone()
    }
    /// A dimension with everything put in that is known.
    pub fn resolve(&self, d: &Dim) -> Dim {
        d.clone()
    }
    /// Runs `f`; if it fails, everything is as before.
    pub fn transaction<T>(&mut self, f: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let before = self.clone();
        f(self).inspect_err(|_| *self = before)
    }
}
