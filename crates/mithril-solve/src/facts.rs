//! Slots: their dtypes and literals, and the relations that are functions.

use mithril_ir::dtype::Kinds;
use mithril_ir::{DType, Dim, Lit, Shape};

use crate::relation::{Answer, Fact, Facts, Relation, Rule};
use crate::report::{Clash, Step};
use crate::store::{Id, Key, Slot, Store};
use crate::term::{ShapeTerm, Size, Term};
use crate::why::WhyId;

/// Largest depth of nested tuples that are unified; deeper ones are compared.
const MAX_DEPTH: usize = 32;

impl Store {
    /// The shape of a slot, resolved.
    pub fn term(&self, s: Slot) -> Step<Term> {
        let root = self.class(s)?;
        Ok(self.resolve_term(&Term::run(self.slots[root as usize].seq)))
    }
    /// Whether the slot is an absent optional input, as far as known.
    pub fn is_absent(&self, s: Slot) -> bool {
        self.node(s).is_some_and(|node| matches!(node.literal, Some((Lit::None, _))))
    }
    pub fn literal(&self, s: Slot) -> Option<Lit> {
        let (lit, _) = self.node(s)?.literal.as_ref()?;
        Some(self.resolve_literal(lit, 0))
    }
    fn resolve_literal(&self, lit: &Lit, depth: usize) -> Lit {
        match lit {
            Lit::Int(dim) => Lit::Int(self.resolve(dim)),
            Lit::Tuple(items) if depth < MAX_DEPTH => {
                Lit::Tuple(items.iter().map(|item| self.resolve_literal(item, depth + 1)).collect())
            }
            Lit::Slice(parts) if depth < MAX_DEPTH => {
                let part = |i: usize| self.resolve_literal(&parts[i], depth + 1);
                Lit::Slice(std::sync::Arc::new([part(0), part(1), part(2)]))
            }
            other => other.clone(),
        }
    }
    pub fn watch_slot(&mut self, s: Slot, id: Id) -> Step {
        let root = self.class(s)?;
        self.watch(Key::Slot(root), id);
        Ok(())
    }

    // Facts.

    pub fn unify_dtype(&mut self, s: Slot, dtype: (DType, WhyId)) -> Step {
        let root = self.class(s)?;
        let node = &self.slots[root as usize];
        if let Some(old) = node.dtype {
            return if old.0 == dtype.0 { Ok(()) } else { Err(Box::new(Clash::DTypes(old, dtype))) };
        }
        if let Some(kinds) = node.kinds.filter(|(kinds, _)| !kinds.has(dtype.0.kind())) {
            return Err(Box::new(Clash::Kinds(dtype, kinds)));
        }
        self.put_dtype(root, dtype);
        Ok(())
    }
    pub fn unify_kinds(&mut self, s: Slot, kinds: (Kinds, WhyId)) -> Step {
        let root = self.class(s)?;
        let node = &self.slots[root as usize];
        if let Some(dtype) = node.dtype.filter(|(dtype, _)| !kinds.0.has(dtype.kind())) {
            return Err(Box::new(Clash::Kinds(dtype, kinds)));
        }
        let both = match node.kinds {
            None => kinds,
            Some(old) => match old.0.intersect(kinds.0) {
                None => return Err(Box::new(Clash::NoKind(old, kinds))),
                Some(both) if both == old.0 => return Ok(()),
                Some(both) => (both, kinds.1),
            },
        };
        self.put_kinds(root, both);
        Ok(())
    }
    pub fn unify_literal(&mut self, s: Slot, literal: (Lit, WhyId)) -> Step {
        let root = self.class(s)?;
        self.intern_literal(&literal.0, 0);
        if let Some(old) = self.slots[root as usize].literal.clone() {
            return self.unify_literals(&old, &literal, 0);
        }
        let why = literal.1;
        let (shape, dtype) = match &literal.0 {
            Lit::Bool(_) | Lit::Int(_) | Lit::Float(_) => (Some(Shape::scalar()), None),
            Lit::Tensor(t) => (Some(Shape::of(t.shape().iter().copied())), Some(t.dtype())),
            _ => (None, None),
        };
        self.put_literal(root, literal);
        if let Some(shape) = shape {
            self.put_shape(s, &Term::from_shape(ShapeTerm::known(shape), why))?;
        }
        match dtype {
            Some(dtype) => self.unify_dtype(s, (dtype, why)),
            None => Ok(()),
        }
    }
    fn intern_literal(&mut self, lit: &Lit, depth: usize) {
        match lit {
            Lit::Int(dim) => self.intern(dim),
            Lit::Tuple(items) if depth < MAX_DEPTH => {
                items.iter().for_each(|item| self.intern_literal(item, depth + 1));
            }
            Lit::Slice(parts) if depth < MAX_DEPTH => {
                parts.iter().for_each(|part| self.intern_literal(part, depth + 1));
            }
            _ => {}
        }
    }
    fn unify_literals(&mut self, a: &(Lit, WhyId), b: &(Lit, WhyId), depth: usize) -> Step {
        let (x, y) = match (&a.0, &b.0) {
            (Lit::Int(x), Lit::Int(y)) => {
                let size = |dim: &Dim, why| Size { dim: dim.clone(), why };
                return self.unify_size(&size(x, a.1), &size(y, b.1)).map_err(|clash| match *clash {
                    Clash::Sizes(..) => Box::new(Clash::Literals(a.clone(), b.clone())),
                    other => Box::new(other),
                });
            }
            (Lit::Tuple(x), Lit::Tuple(y)) if x.len() == y.len() && depth < MAX_DEPTH => (&x[..], &y[..]),
            (Lit::Slice(x), Lit::Slice(y)) if depth < MAX_DEPTH => (&x[..], &y[..]),
            (x, y) if x == y => return Ok(()),
            _ => return Err(Box::new(Clash::Literals(a.clone(), b.clone()))),
        };
        for (x, y) in x.iter().zip(y) {
            self.unify_literals(&(x.clone(), a.1), &(y.clone(), b.1), depth + 1).map_err(
                |clash| match *clash {
                    Clash::Literals(..) => Box::new(Clash::Literals(a.clone(), b.clone())),
                    other => Box::new(other),
                },
            )?;
        }
        Ok(())
    }
    /// Unifies two slots.
    pub fn unify_slots(&mut self, a: Slot, b: Slot) -> Step {
        let (a_root, b_root) = (self.class(a)?, self.class(b)?);
        if a_root == b_root {
            return Ok(());
        }
        let (x, y) = (self.term(a)?, self.term(b)?);
        self.unify_term(&x, &y)?;
        let (root, child) = self.link(a_root, b_root);
        let (dtype, kinds, literal) = {
            let node = &self.slots[child as usize];
            (node.dtype, node.kinds, node.literal.clone())
        };
        let root = Slot(root);
        if let Some(kinds) = kinds {
            self.unify_kinds(root, kinds)?;
        }
        if let Some(dtype) = dtype {
            self.unify_dtype(root, dtype)?;
        }
        match literal {
            Some(literal) => self.unify_literal(root, literal),
            None => Ok(()),
        }
    }

    // Relations that are functions.

    /// The facts known about the inputs. The constraint waits for the others; returns whether there are any.
    fn facts(&mut self, relation: &Relation, shapes: bool, id: Id) -> Step<(Vec<Fact>, bool)> {
        let mut facts = Vec::with_capacity(relation.inputs.len());
        let mut waits = false;
        for (i, slot) in relation.inputs.iter().enumerate() {
            let literal = self.literal(*slot);
            let dtype = self.node(*slot).and_then(|node| node.dtype).map(|(dtype, _)| dtype);
            let tensor = relation.is_tensor(i) && !matches!(literal, Some(Lit::None));
            let mut shape = None;
            if shapes && tensor {
                let term = self.term(*slot)?;
                waits |= self.watch_term(&term, id);
                shape = (term.rest.is_none() || term.min_rank() > 0).then(|| term.to_shape());
            }
            let open = match &literal {
                None if tensor => dtype.is_none() || (shapes && shape.is_none()),
                None => true,
                Some(lit) => self.watch_literal(lit, id, 0),
            };
            if open {
                self.watch_slot(*slot, id)?;
                waits = true;
            }
            facts.push(Fact { shape, dtype, literal });
        }
        Ok((facts, waits))
    }
    fn watch_literal(&mut self, lit: &Lit, id: Id, depth: usize) -> bool {
        match lit {
            Lit::Int(dim) => self.watch_dim(dim, id),
            Lit::Tuple(items) if depth < MAX_DEPTH => {
                items.iter().fold(false, |waits, item| self.watch_literal(item, id, depth + 1) | waits)
            }
            Lit::Slice(parts) if depth < MAX_DEPTH => {
                parts.iter().fold(false, |waits, part| self.watch_literal(part, id, depth + 1) | waits)
            }
            _ => false,
        }
    }
    pub fn run_shapes(&mut self, id: Id) -> Step {
        let Some(relation) = self.relation_of(id) else { return Ok(()) };
        let (relation, why) = (&relation.0, relation.1);
        let Rule::When(f) = &relation.rule else { return Ok(()) };
        let (facts, waits) = self.facts(relation, true, id)?;
        if let Answer::Now(answer) = f(&facts)? {
            if !waits {
                self.finish(id);
            }
            self.apply(relation, &answer, why)?;
        }
        Ok(())
    }
    pub fn run_dtypes(&mut self, id: Id) -> Step {
        let Some(relation) = self.relation_of(id) else { return Ok(()) };
        let (relation, why) = (&relation.0, relation.1);
        let Some(f) = &relation.dtype else { return Ok(()) };
        let (facts, waits) = self.facts(relation, false, id)?;
        if let Answer::Now(answer) = f(&facts)? {
            if !waits {
                self.finish(id);
            }
            self.apply(relation, &answer, why)?;
        }
        Ok(())
    }
    fn apply(&mut self, relation: &Relation, facts: &Facts, why: WhyId) -> Step {
        for (a, b) in &facts.equations {
            self.intern(a);
            self.intern(b);
            let size = |dim: &Dim| Size { dim: dim.clone(), why };
            self.unify_size(&size(a), &size(b))?;
        }
        let outputs = relation.outputs.iter().zip(&facts.outputs);
        for (slot, fact) in relation.inputs.iter().zip(&facts.inputs).chain(outputs) {
            if let Some(shape) = &fact.shape {
                self.put_shape(*slot, &Term::from_shape(shape.clone(), why))?;
            }
            if let Some(dtype) = fact.dtype {
                self.unify_dtype(*slot, (dtype, why))?;
            }
            if let Some(literal) = &fact.literal {
                self.unify_literal(*slot, (literal.clone(), why))?;
            }
        }
        Ok(())
    }
}
