//! The state of the solver, and the log with which changes are rolled back.
//!
//! There are three tables of unknowns: symbols (variables and named ones), which are bound to expressions; runs of dimensions,
//! which are bound to terms; slots, which are linked into classes. A binding is never overwritten, so undoing it means clearing
//! it. Chains stay short because the smaller class is bound to the larger one. Each unknown lists the constraints to process
//! again when it is bound.

use std::collections::VecDeque;
use std::sync::Arc;

use mithril_ir::dim::DimFactor;
use mithril_ir::dtype::Kinds;
use mithril_ir::shape::MAX_RANK;
use mithril_ir::{Code, DType, Dim, Error, Lit, Symbol};
use rustc_hash::FxHashMap;

use crate::pattern::Pattern;
use crate::relation::Relation;
use crate::report::{Clash, Context, Step};
use crate::term::{Seq, Size, Term};
use crate::why::{Why, WhyId};

/// Largest number of symbols in an expression; larger ones are an error.
const MAX_SYMBOLS: usize = 256;

/// Largest depth of nested divisions in an expression; deeper ones are an error.
const MAX_DEPTH: usize = 64;

/// The unknowns of one connection: shape, dtype, literal value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub(crate) u32);

/// Index of a constraint.
pub(crate) type Id = u32;

#[derive(Clone, Debug)]
pub(crate) struct SlotNode {
    pub name: Arc<str>,
    pub parent: u32,
    pub members: u32,
    pub seq: Seq,
    pub dtype: Option<(DType, WhyId)>,
    pub kinds: Option<(Kinds, WhyId)>,
    pub literal: Option<(Lit, WhyId)>,
    pub watchers: Vec<Id>,
}

#[derive(Clone, Debug)]
pub(crate) struct SymbolNode {
    /// The symbol itself.
    pub dim: Dim,
    pub members: u32,
    pub bound: Option<Size>,
    pub watchers: Vec<Id>,
}

#[derive(Clone, Debug)]
pub(crate) struct SeqNode {
    pub members: u32,
    pub bound: Option<Term>,
    pub watchers: Vec<Id>,
}

/// A constraint that is not decided yet.
#[derive(Clone, Debug)]
pub(crate) enum Constraint {
    /// The shapes of a broadcasting relation.
    Broadcast,
    /// The shapes of a relation that is a function.
    When,
    /// The dtypes of a relation.
    DTypes,
    /// Two sizes are equal.
    Sizes(Size, Size),
    /// Two runs are equal.
    Terms(Term, Term),
    /// A symbol that is bound to an expression is a size, and therefore not negative.
    NotNegative(u32),
}

#[derive(Clone, Debug)]
pub(crate) struct ConstraintNode {
    pub what: Arc<Constraint>,
    pub context: Context,
    pub queued: bool,
    pub done: bool,
}

/// An unknown that constraints watch.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Key {
    Symbol(u32),
    Seq(u32),
    Slot(u32),
}

/// A change that can be undone.
#[derive(Clone, Debug)]
enum Undo {
    Link { child: u32, root: u32 },
    DType(u32),
    Literal(u32),
    Kinds(u32, Option<(Kinds, WhyId)>),
    Rename(u32, Arc<str>),
    Symbol(u32),
    SymbolMembers(u32, u32),
    Seq(u32),
    SeqMembers(u32, u32),
    Watched(Key),
    Woken(Key, Vec<Id>),
    Done(Id),
    Pending(Dim),
}

/// A state to roll back to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    undo: usize,
    slots: usize,
    symbols: usize,
    seqs: usize,
    constraints: usize,
    relations: usize,
    whys: usize,
}

/// The tables.
#[derive(Clone, Debug, Default)]
pub(crate) struct Store {
    pub slots: Vec<SlotNode>,
    pub symbols: Vec<SymbolNode>,
    names: FxHashMap<Arc<str>, u32>,
    pub seqs: Vec<SeqNode>,
    pub constraints: Vec<ConstraintNode>,
    pub relations: Vec<Arc<(Relation, WhyId)>>,
    whys: Vec<Why>,
    /// Undecided equations by their difference, to avoid duplicates.
    pending: FxHashMap<Dim, Id>,
    /// Undecided equations of the form `P x = y Q`.
    pub overlaps: Vec<Id>,
    queue: VecDeque<Id>,
    undo: Vec<Undo>,
    depth: u32,
    /// The fact or relation that is being processed.
    pub context: Context,
    /// The shape that is being declared for a slot.
    pub declared: Option<Term>,
    /// Cache of parsed patterns.
    pub patterns: FxHashMap<&'static str, Arc<Pattern>>,
}

impl Store {
    fn log(&mut self, undo: Undo) {
        if self.depth > 0 {
            self.undo.push(undo);
        }
    }

    // Transactions.

    pub fn begin(&mut self) -> Mark {
        self.depth += 1;
        Mark {
            undo: self.undo.len(),
            slots: self.slots.len(),
            symbols: self.symbols.len(),
            seqs: self.seqs.len(),
            constraints: self.constraints.len(),
            relations: self.relations.len(),
            whys: self.whys.len(),
        }
    }
    pub fn end(&mut self, mark: Mark, keep: bool) {
        if !keep {
            self.roll_back(mark);
        }
        self.depth -= 1;
        if self.depth == 0 {
            self.undo.clear();
        }
    }
    fn roll_back(&mut self, mark: Mark) {
        for id in std::mem::take(&mut self.queue) {
            self.constraints[id as usize].queued = false;
        }
        while self.undo.len() > mark.undo {
            let Some(undo) = self.undo.pop() else { break };
            self.undo_change(undo);
        }
        for node in self.symbols.drain(mark.symbols..) {
            if let Some(Symbol::Named(name)) = node.dim.as_symbol() {
                self.names.remove(name);
            }
        }
        while self.overlaps.last().is_some_and(|id| *id as usize >= mark.constraints) {
            self.overlaps.pop();
        }
        self.slots.truncate(mark.slots);
        self.seqs.truncate(mark.seqs);
        self.constraints.truncate(mark.constraints);
        self.relations.truncate(mark.relations);
        self.whys.truncate(mark.whys);
    }
    fn undo_change(&mut self, undo: Undo) {
        match undo {
            Undo::Link { child, root } => {
                let members = self.slots[child as usize].members;
                self.slots[root as usize].members -= members;
                self.slots[child as usize].parent = child;
            }
            Undo::DType(s) => self.slots[s as usize].dtype = None,
            Undo::Literal(s) => self.slots[s as usize].literal = None,
            Undo::Kinds(s, old) => self.slots[s as usize].kinds = old,
            Undo::Rename(s, old) => self.slots[s as usize].name = old,
            Undo::Symbol(s) => self.symbols[s as usize].bound = None,
            Undo::SymbolMembers(s, old) => self.symbols[s as usize].members = old,
            Undo::Seq(s) => self.seqs[s as usize].bound = None,
            Undo::SeqMembers(s, old) => self.seqs[s as usize].members = old,
            Undo::Watched(key) => {
                self.watchers(key).pop();
            }
            Undo::Woken(key, list) => *self.watchers(key) = list,
            Undo::Done(id) => self.constraints[id as usize].done = false,
            Undo::Pending(difference) => {
                self.pending.remove(&difference);
            }
        }
    }

    // Reasons.

    pub fn add_why(&mut self, why: Why) -> WhyId {
        self.whys.push(why);
        WhyId(self.whys.len() as u32 - 1)
    }
    pub fn why(&self, id: WhyId) -> &Why {
        static NONE: std::sync::LazyLock<Why> = std::sync::LazyLock::new(Why::default);
        self.whys.get(id.0 as usize).unwrap_or(&NONE)
    }

    // Slots.

    pub fn add_slot(&mut self, name: Arc<str>) -> Slot {
        let seq = self.add_seq();
        let id = self.slots.len() as u32;
        self.slots.push(SlotNode {
            name,
            parent: id,
            members: 1,
            seq,
            dtype: None,
            kinds: None,
            literal: None,
            watchers: Vec::new(),
        });
        Slot(id)
    }
    pub fn rename(&mut self, s: Slot, name: Arc<str>) {
        if let Some(node) = self.slots.get_mut(s.0 as usize) {
            let old = std::mem::replace(&mut node.name, name);
            self.log(Undo::Rename(s.0, old));
        }
    }
    pub fn name(&self, s: Slot) -> Arc<str> {
        self.slots.get(s.0 as usize).map_or_else(|| "?".into(), |node| node.name.clone())
    }
    /// The class of a slot; `None` for a slot of another solver.
    pub fn root(&self, s: Slot) -> Option<u32> {
        let mut at = s.0;
        loop {
            let parent = self.slots.get(at as usize)?.parent;
            if parent == at {
                return Some(at);
            }
            at = parent;
        }
    }
    /// As [`Self::root`]; a slot of another solver is an error.
    pub fn class(&self, s: Slot) -> Step<u32> {
        let foreign = || Clash::Error(Error::internal("a slot of another solver"));
        self.root(s).ok_or_else(|| Box::new(foreign()))
    }
    pub fn node(&self, s: Slot) -> Option<&SlotNode> {
        self.root(s).map(|root| &self.slots[root as usize])
    }
    /// Joins two classes; returns the root and the child.
    pub fn link(&mut self, a: u32, b: u32) -> (u32, u32) {
        let weight = |s: u32| self.slots[s as usize].members;
        let (root, child) = if weight(a) < weight(b) { (b, a) } else { (a, b) };
        self.slots[root as usize].members += weight(child);
        self.slots[child as usize].parent = root;
        self.log(Undo::Link { child, root });
        self.wake(Key::Slot(child));
        (root, child)
    }
    pub fn put_dtype(&mut self, root: u32, dtype: (DType, WhyId)) {
        self.slots[root as usize].dtype = Some(dtype);
        self.log(Undo::DType(root));
        self.wake(Key::Slot(root));
    }
    pub fn put_literal(&mut self, root: u32, literal: (Lit, WhyId)) {
        self.slots[root as usize].literal = Some(literal);
        self.log(Undo::Literal(root));
        self.wake(Key::Slot(root));
    }
    pub fn put_kinds(&mut self, root: u32, kinds: (Kinds, WhyId)) {
        let old = self.slots[root as usize].kinds.replace(kinds);
        self.log(Undo::Kinds(root, old));
    }

    // Symbols.

    pub fn add_var(&mut self) -> Dim {
        let dim = Dim::var(self.symbols.len() as u32);
        self.push_symbol(dim.clone());
        dim
    }
    fn push_symbol(&mut self, dim: Dim) {
        self.symbols.push(SymbolNode { dim, members: 1, bound: None, watchers: Vec::new() });
    }
    /// Adds the named symbols of an expression to the table.
    pub fn intern(&mut self, dim: &Dim) {
        if dim.known().is_some() {
            return;
        }
        dim.each_symbol(&mut |symbol| {
            if let Symbol::Named(name) = symbol
                && !self.names.contains_key(name)
            {
                self.names.insert(name.clone(), self.symbols.len() as u32);
                self.push_symbol(Dim::of_symbol(symbol.clone()));
            }
        });
    }
    /// Index of a symbol in the table; `None` if it is not in the table.
    pub fn index(&self, symbol: &Symbol) -> Option<u32> {
        match symbol {
            Symbol::Var(n) => ((*n as usize) < self.symbols.len()).then_some(*n),
            Symbol::Named(name) => self.names.get(name).copied(),
        }
    }
    /// The binding of a symbol.
    fn binding(&self, symbol: &Symbol) -> Option<&Size> {
        self.symbols[self.index(symbol)? as usize].bound.as_ref()
    }
    pub fn resolve(&self, dim: &Dim) -> Dim {
        self.resolve_from(dim, WhyId::NONE).0
    }
    pub fn resolve_size(&self, size: &Size) -> Size {
        if matches!(size.dim, Dim::Const(_)) {
            return size.clone();
        }
        let (dim, why) = self.resolve_from(&size.dim, size.why);
        Size { dim, why }
    }
    fn resolve_from(&self, dim: &Dim, mut why: WhyId) -> (Dim, WhyId) {
        let mut dim = dim.clone();
        // Single symbols, the most frequent case, are followed to their value and its reason.
        while let Some(next) = dim.as_symbol().and_then(|s| self.binding(s)) {
            why = next.why;
            dim = next.dim.clone();
        }
        while self.has_bound(&dim) && count_symbols(&dim) <= MAX_SYMBOLS {
            dim = dim.substitute(&|s| self.binding(s).map(|size| size.dim.clone()));
        }
        (dim, why)
    }
    fn has_bound(&self, dim: &Dim) -> bool {
        let mut has_binding = false;
        if dim.known().is_none() {
            dim.each_symbol(&mut |s| has_binding |= self.binding(s).is_some());
        }
        has_binding
    }
    /// Binds an unbound symbol to a size that does not contain it.
    pub fn bind_symbol(&mut self, symbol: u32, size: Size) -> Step {
        self.check_sign(symbol, &size)?;
        check_extent(&size.dim)?;
        if let Some(root) = size.dim.as_symbol().and_then(|s| self.index(s)) {
            let old = self.symbols[root as usize].members;
            self.symbols[root as usize].members = old + self.symbols[symbol as usize].members;
            self.log(Undo::SymbolMembers(root, old));
        }
        if may_be_negative(&size.dim) {
            self.add_constraint(Constraint::NotNegative(symbol));
        }
        self.symbols[symbol as usize].bound = Some(size);
        self.log(Undo::Symbol(symbol));
        self.wake(Key::Symbol(symbol));
        Ok(())
    }

    /// Reports a negative size.
    pub fn check_sign(&self, symbol: u32, size: &Size) -> Step {
        let Some(n) = size.dim.known().filter(|n| *n < 0) else { return Ok(()) };
        let name = &self.symbols[symbol as usize].dim;
        let of = if name.has_var() { "a size".to_owned() } else { format!("`{name}`") };
        let why = self.why(size.why);
        let error = Error::new(Code::BadSize, format!("{of} would be negative: {n}"));
        let error = if why.text.is_empty() { error } else { error.note(format!("because {}", why.text)) };
        Err(Box::new(Clash::Error(error.help("make the sizes it is computed from larger"))))
    }

    // Runs of dimensions.

    pub fn add_seq(&mut self) -> Seq {
        self.seqs.push(SeqNode { members: 1, bound: None, watchers: Vec::new() });
        Seq(self.seqs.len() as u32 - 1)
    }
    /// A term with all known values substituted.
    pub fn resolve_term(&self, term: &Term) -> Term {
        let mut out = Term { prefix: Vec::new(), rest: term.rest, suffix: Vec::new(), why: term.why };
        out.prefix.extend(term.prefix.iter().map(|d| self.resolve_size(d)));
        // Inner suffixes precede outer ones, so they are collected in reverse.
        let mut backwards: Vec<Size> = term.suffix.iter().rev().map(|d| self.resolve_size(d)).collect();
        while let Some(bound) = out.rest.and_then(|s| self.seqs.get(s.0 as usize)?.bound.as_ref()) {
            out.prefix.extend(bound.prefix.iter().map(|d| self.resolve_size(d)));
            backwards.extend(bound.suffix.iter().rev().map(|d| self.resolve_size(d)));
            out.rest = bound.rest;
            out.why = bound.why;
        }
        let target = if out.rest.is_some() { &mut out.suffix } else { &mut out.prefix };
        target.extend(backwards.into_iter().rev());
        out
    }
    /// Binds an unbound run to a term that does not contain it.
    pub fn bind_seq(&mut self, seq: Seq, term: Term) -> Step {
        if term.min_rank() > MAX_RANK {
            let message = format!("a tensor has {} dimensions", term.min_rank());
            let error = Error::new(Code::BadSize, message).help(format!("the maximum is {MAX_RANK}"));
            return Err(Box::new(Clash::Error(error)));
        }
        if let (Some(root), 0) = (term.rest, term.min_rank()) {
            let old = self.seqs[root.0 as usize].members;
            self.seqs[root.0 as usize].members = old + self.seqs[seq.0 as usize].members;
            self.log(Undo::SeqMembers(root.0, old));
        }
        self.seqs[seq.0 as usize].bound = Some(term);
        self.log(Undo::Seq(seq.0));
        self.wake(Key::Seq(seq.0));
        Ok(())
    }

    // Constraints.

    pub fn add_constraint(&mut self, what: Constraint) -> Id {
        let id = self.constraints.len() as Id;
        let context = self.context.clone();
        self.constraints.push(ConstraintNode { what: Arc::new(what), context, queued: false, done: false });
        self.enqueue(id);
        id
    }
    /// Keeps an undecided equation, unless it is already kept.
    pub fn add_equation(&mut self, difference: Dim, a: Size, b: Size) {
        if self.pending.contains_key(&difference) {
            return;
        }
        let id = self.constraints.len() as Id;
        self.pending.insert(difference.clone(), id);
        self.log(Undo::Pending(difference));
        let context = self.context.clone();
        for dim in [&a.dim, &b.dim] {
            self.watch_dim_later(dim, id);
        }
        let what = Arc::new(Constraint::Sizes(a, b));
        self.constraints.push(ConstraintNode { what, context, queued: false, done: false });
    }
    /// Keeps an equation between shapes that depends on an unknown rank.
    pub fn add_overlap(&mut self, a: Term, b: Term) {
        let id = self.constraints.len() as Id;
        let context = self.context.clone();
        self.watch_term(&a, id);
        self.watch_term(&b, id);
        let what = Arc::new(Constraint::Terms(a, b));
        self.constraints.push(ConstraintNode { what, context, queued: false, done: false });
        self.overlaps.push(id);
    }
    pub fn finish(&mut self, id: Id) {
        self.constraints[id as usize].done = true;
        self.log(Undo::Done(id));
    }
    pub fn enqueue(&mut self, id: Id) {
        let node = &mut self.constraints[id as usize];
        if !node.queued && !node.done {
            node.queued = true;
            self.queue.push_back(id);
        }
    }
    /// The next constraint to process.
    pub fn next(&mut self) -> Option<Id> {
        let id = self.queue.pop_front()?;
        self.constraints[id as usize].queued = false;
        Some(id)
    }
    fn watchers(&mut self, key: Key) -> &mut Vec<Id> {
        match key {
            Key::Symbol(s) => &mut self.symbols[s as usize].watchers,
            Key::Seq(s) => &mut self.seqs[s as usize].watchers,
            Key::Slot(s) => &mut self.slots[s as usize].watchers,
        }
    }
    pub fn wake(&mut self, key: Key) {
        let list = std::mem::take(self.watchers(key));
        if list.is_empty() {
            return;
        }
        for &id in &list {
            self.enqueue(id);
        }
        self.log(Undo::Woken(key, list));
    }
    pub fn watch(&mut self, key: Key, id: Id) {
        let list = self.watchers(key);
        // A constraint that is processed again usually is already on the list.
        if list.iter().rev().take(8).any(|x| *x == id) {
            return;
        }
        list.push(id);
        self.log(Undo::Watched(key));
    }
    /// Watches every symbol of an expression; returns whether there is one.
    pub fn watch_dim(&mut self, dim: &Dim, id: Id) -> bool {
        if dim.known().is_some() {
            return false;
        }
        self.watch_dim_later(dim, id);
        true
    }
    fn watch_dim_later(&mut self, dim: &Dim, id: Id) {
        let mut symbols: smallvec::SmallVec<[u32; 4]> = smallvec::SmallVec::new();
        dim.each_symbol(&mut |s| symbols.extend(self.index(s)));
        for symbol in symbols {
            self.watch(Key::Symbol(symbol), id);
        }
    }
    /// Watches every unknown of a resolved term; returns whether there is one.
    pub fn watch_term(&mut self, term: &Term, id: Id) -> bool {
        let mut waits = false;
        if let Some(Seq(seq)) = term.rest {
            self.watch(Key::Seq(seq), id);
            waits = true;
        }
        for size in term.prefix.iter().chain(&term.suffix) {
            waits |= self.watch_dim(&size.dim, id);
        }
        waits
    }
}

fn count_symbols(dim: &Dim) -> usize {
    let mut count = 0;
    if dim.known().is_none() {
        dim.each_symbol(&mut |_| count += 1);
    }
    count
}

/// Reports expressions that are too large or too deep.
pub(crate) fn check_extent(dim: &Dim) -> Step {
    if dim.known().is_some() || (count_symbols(dim) <= MAX_SYMBOLS && depth(dim, 0) <= MAX_DEPTH) {
        return Ok(());
    }
    let message = format!(
        "a size is an expression of more than {MAX_SYMBOLS} symbols, or {MAX_DEPTH} nested divisions"
    );
    let error = Error::new(Code::BadSize, message).help("declare some of the sizes as numbers");
    Err(Box::new(Clash::Error(error)))
}

/// Depth of nested divisions, at most one more than [`MAX_DEPTH`].
fn depth(dim: &Dim, outer: usize) -> usize {
    let factors = dim.parts().0.iter().flat_map(|(factors, _)| factors);
    factors.fold(outer, |deepest, factor| match factor {
        DimFactor::Div(a, b) if outer <= MAX_DEPTH => {
            deepest.max(depth(a, outer + 1)).max(depth(b, outer + 1))
        }
        _ => deepest,
    })
}

fn may_be_negative(dim: &Dim) -> bool {
    let (terms, constant) = dim.parts();
    let positive = |factors: &[DimFactor]| factors.iter().all(|f| matches!(f, DimFactor::Symbol(_)));
    !terms.is_empty() && (constant < 0 || terms.iter().any(|(factors, c)| *c < 0 || !positive(factors)))
}
