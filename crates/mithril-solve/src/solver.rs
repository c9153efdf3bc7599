//! The interface of the solver, and the loop that derives facts to the fixpoint.

use std::fmt;
use std::sync::Arc;

use mithril_ir::dtype::Kinds;
use mithril_ir::{DType, Dim, Lit, Result};

use crate::relation::{Relation, Rule};
use crate::report::{Clash, Context, Step};
use crate::store::{Constraint, Id, Slot, Store};
use crate::term::{Seq, ShapeTerm, Size, Term};
use crate::why::{Why, WhyId};

/// Holds the facts about slots, and derives their consequences.
///
/// A method that adds something either succeeds or leaves the solver unchanged.
#[derive(Clone, Default)]
pub struct Solver {
    store: Store,
}

impl fmt::Debug for Solver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slots = self.store.slots.len();
        let mut map = f.debug_map();
        for s in (0..slots as u32).map(Slot) {
            map.entry(&self.store.name(s), &format_args!("{} {:?}", self.shape(s), self.dtype(s)));
        }
        map.finish()
    }
}

impl Solver {
    /// A new slot; `name` is for messages, e.g. `block.fc1.weight`.
    pub fn slot(&mut self, name: impl Into<Arc<str>>) -> Slot {
        self.store.add_slot(name.into())
    }
    /// Changes the name of a slot in messages.
    pub fn rename(&mut self, s: Slot, name: Arc<str>) {
        self.store.rename(s, name);
    }
    /// The name of a slot.
    pub fn name(&self, s: Slot) -> Arc<str> {
        self.store.name(s)
    }
    /// A new dimension variable: a size that is not negative.
    pub fn fresh_dim(&mut self) -> Dim {
        self.store.add_var()
    }
    /// A new run of dimensions.
    pub fn fresh_seq(&mut self) -> Seq {
        self.store.add_seq()
    }

    /// Declares the shape of a slot.
    pub fn set_shape(&mut self, s: Slot, shape: ShapeTerm, why: Why) -> Result<()> {
        self.derive(|store| {
            let why = store.add_why(why);
            store.context = Context::Declared(s, why);
            let term = Term::from_shape(shape, why);
            store.declared = Some(term.clone());
            store.put_shape(s, &term)
        })
    }
    /// Declares the dtype of a slot.
    pub fn set_dtype(&mut self, s: Slot, dtype: DType, why: Why) -> Result<()> {
        self.derive(|store| {
            let why = store.add_why(why);
            store.context = Context::Declared(s, why);
            store.unify_dtype(s, (dtype, why))
        })
    }
    /// Restricts the dtype of a slot to these kinds.
    pub fn set_kinds(&mut self, s: Slot, kinds: Kinds, why: Why) -> Result<()> {
        self.derive(|store| {
            let why = store.add_why(why);
            store.context = Context::Declared(s, why);
            store.unify_kinds(s, (kinds, why))
        })
    }
    /// Declares that a slot is a literal: an argument, a number in place of a tensor (which determines its shape), or absent.
    pub fn set_literal(&mut self, s: Slot, lit: Lit, why: Why) -> Result<()> {
        self.derive(|store| {
            let why = store.add_why(why);
            store.context = Context::Declared(s, why);
            store.unify_literal(s, (lit, why))
        })
    }
    /// Declares that two slots are the same value.
    pub fn equate(&mut self, a: Slot, b: Slot, why: Why) -> Result<()> {
        self.derive(|store| {
            let why = store.add_why(why);
            store.context = Context::Equal(a, b, why);
            store.unify_slots(a, b)
        })
    }
    /// Declares that two sizes are equal.
    pub fn equate_dims(&mut self, a: &Dim, b: &Dim, why: Why) -> Result<()> {
        self.derive(|store| {
            let why = store.add_why(why);
            store.context = Context::Nothing;
            store.intern(a);
            store.intern(b);
            let size = |dim: &Dim| Size { dim: dim.clone(), why };
            store.unify_size(&size(a), &size(b))
        })
    }
    /// Adds a relation and derives its consequences.
    pub fn relate(&mut self, relation: Relation, why: Why) -> Result<()> {
        self.derive(|store| {
            let why = store.add_why(why);
            store.add_relation(relation, why)
        })
    }

    /// The shape, as far as it is known.
    pub fn shape(&self, s: Slot) -> ShapeTerm {
        self.store.term(s).map_or_else(|_| ShapeTerm::default(), |term| term.to_shape())
    }
    /// The dtype, if known.
    pub fn dtype(&self, s: Slot) -> Option<DType> {
        self.store.node(s)?.dtype.map(|(dtype, _)| dtype)
    }
    /// The possible kinds of the dtype.
    pub fn kinds(&self, s: Slot) -> Kinds {
        self.store.node(s).and_then(|node| node.kinds).map_or(Kinds::ANY, |(kinds, _)| kinds)
    }
    /// The literal value, if the slot is one.
    pub fn literal(&self, s: Slot) -> Option<Lit> {
        self.store.literal(s)
    }
    /// Whether two slots are the same value.
    pub fn is_same(&self, a: Slot, b: Slot) -> bool {
        self.store.root(a).is_some_and(|root| Some(root) == self.store.root(b))
    }
    /// A dimension with all known values substituted.
    pub fn resolve(&self, d: &Dim) -> Dim {
        self.store.resolve(d)
    }

    /// Runs `f`; if it fails, all changes are rolled back.
    pub fn transaction<T>(&mut self, f: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let mark = self.store.begin();
        let result = f(self);
        self.store.end(mark, result.is_ok());
        result
    }
    /// Adds a fact or relation and derives its consequences.
    fn derive(&mut self, add: impl FnOnce(&mut Store) -> Step) -> Result<()> {
        let mark = self.store.begin();
        let result = add(&mut self.store).and_then(|()| self.store.run());
        let result = result.map_err(|clash| {
            let context = self.store.context.clone();
            self.store.explain(*clash, &context)
        });
        self.store.declared = None;
        self.store.end(mark, result.is_ok());
        result
    }
}

impl Store {
    /// Processes constraints whose inputs have changed, until there are no new facts.
    fn run(&mut self) -> Step {
        while let Some(id) = self.next() {
            let node = &self.constraints[id as usize];
            if node.done {
                continue;
            }
            let what = node.what.clone();
            self.context = node.context.clone();
            match &*what {
                Constraint::Sizes(a, b) => {
                    self.finish(id);
                    self.unify_size(a, b)?;
                }
                Constraint::Terms(a, b) => {
                    self.finish(id);
                    self.unify_term(a, b)?;
                }
                Constraint::NotNegative(symbol) => {
                    let dim = self.symbols[*symbol as usize].dim.clone();
                    let size = self.resolve_size(&Size { dim, why: WhyId::NONE });
                    self.check_sign(*symbol, &size)?;
                    if !self.watch_dim(&size.dim, id) {
                        self.finish(id);
                    }
                }
                Constraint::Broadcast => self.run_broadcast(id)?,
                Constraint::When => self.run_shapes(id)?,
                Constraint::DTypes => self.run_dtypes(id)?,
            }
        }
        Ok(())
    }
    fn add_relation(&mut self, relation: Relation, why: WhyId) -> Step {
        for slot in relation.inputs.iter().chain(&relation.outputs) {
            self.class(*slot)?;
        }
        self.context = Context::Relation(self.relations.len());
        let relation = Arc::new((relation, why));
        self.relations.push(relation.clone());
        let relation = &relation.0;
        if relation.dtype.is_some() {
            self.add_constraint(Constraint::DTypes);
        }
        match &relation.rule {
            Rule::Free => Ok(()),
            Rule::Same => {
                let first = (0..relation.inputs.len()).find(|i| relation.is_tensor(*i));
                let Some(first) = first.and_then(|i| relation.inputs.get(i)) else { return Ok(()) };
                let term = self.term(*first)?;
                relation.outputs.iter().try_for_each(|s| {
                    let output = self.term(*s)?;
                    self.unify_term(&output, &term)
                })
            }
            Rule::Pattern(text) => self.pattern(text, relation, why),
            Rule::Broadcast => {
                self.add_constraint(Constraint::Broadcast);
                Ok(())
            }
            Rule::When(_) => {
                self.add_constraint(Constraint::When);
                Ok(())
            }
        }
    }
    /// The relation that a constraint belongs to.
    pub fn relation_of(&self, id: Id) -> Option<Arc<(Relation, WhyId)>> {
        match self.constraints[id as usize].context {
            Context::Relation(r) => self.relations.get(r).cloned(),
            _ => None,
        }
    }
    fn run_broadcast(&mut self, id: Id) -> Step {
        let Some(relation) = self.relation_of(id) else { return Ok(()) };
        let (relation, why) = (&relation.0, relation.1);
        let Some((first, others)) = relation.outputs.split_first() else { return Ok(()) };
        let mut inputs = Vec::with_capacity(relation.inputs.len());
        for (i, slot) in relation.inputs.iter().enumerate() {
            if !relation.is_tensor(i) || self.is_absent(*slot) {
                continue;
            }
            let term = self.term(*slot)?;
            if term.rest.is_some() {
                self.watch_slot(*slot, id)?;
            }
            inputs.push(term);
        }
        let output = self.term(*first)?;
        for other in others {
            let other = self.term(*other)?;
            self.unify_term(&other, &output)?;
        }
        let operands = crate::broadcast::operands(&inputs);
        if operands.len() > 1 {
            // Watches first, so that facts derived below wake the constraint again, up to the fixpoint.
            for term in operands.iter().copied().chain([&output]) {
                self.watch_term(term, id);
            }
        }
        if self.broadcast(&operands, &output, why)? {
            self.finish(id);
        }
        Ok(())
    }
    /// Checks a shape from outside and unifies it with that of a slot.
    pub fn put_shape(&mut self, s: Slot, term: &Term) -> Step {
        self.class(s)?;
        self.admit(term)?;
        let old = self.term(s)?;
        self.unify_term(&old, term)
    }
}

impl From<mithril_ir::Error> for Box<Clash> {
    fn from(error: mithril_ir::Error) -> Self {
        Box::new(Clash::Error(error))
    }
}
