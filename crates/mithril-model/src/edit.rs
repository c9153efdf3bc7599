//! Changing a composite, with everything undone after an error.

use std::sync::Arc;

use mithril_ir::error::Line;
use mithril_ir::{Code, Dim, Error, Lit, Place, Result, Role};
use mithril_solve::{Slot, Solver};
use smallvec::SmallVec;

use crate::connection::{Arg, Call, Source};
use crate::init::Init;
use crate::key::{Declared, IOKey, Size};
use crate::model::{Bound, Child, Composite, Edge, EdgeId, Label, Model};
use crate::names;
use crate::relations::{self, Term};

/// Where an output of a child goes.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub key: IOKey,
    /// The connection, if there is one of that name already.
    pub edge: Option<EdgeId>,
}

enum Undo {
    Edge(EdgeId, Box<Edge>),
    Named(Arc<str>),
    Dotted(Arc<str>),
    Counter(Arc<str>, Option<u32>),
    Call(u64),
    Key(u64),
    Last(Option<EdgeId>),
    Chosen(Option<Vec<(Arc<str>, EdgeId)>>),
}

/// A change in progress.
pub(crate) struct Edit<'a> {
    /// Identity of the model.
    pub id: u64,
    pub c: &'a mut Composite,
    pub solver: &'a mut Solver,
    /// Where the change is asked for.
    place: Place,
    log: Vec<Undo>,
    edges: usize,
    children: usize,
}

impl<'a> Edit<'a> {
    pub fn new(id: u64, c: &'a mut Composite, solver: &'a mut Solver, place: Place) -> Self {
        let (edges, children) = (c.edges.len(), c.children.len());
        Self { id, c, solver, place, log: Vec::new(), edges, children }
    }
    /// Undoes everything but the solver's part, which its transaction undoes.
    pub fn undo(&mut self) {
        for undo in self.log.drain(..).rev() {
            match undo {
                Undo::Edge(e, edge) => self.c.edges[e.index()] = *edge,
                Undo::Named(name) => {
                    self.c.named.remove(&name);
                }
                Undo::Dotted(part) => {
                    if let Some(n) = self.c.dotted.get_mut(&part) {
                        *n -= 1;
                    }
                }
                Undo::Counter(name, Some(n)) => {
                    self.c.counters.insert(name, n);
                }
                Undo::Counter(name, None) => {
                    self.c.counters.remove(&name);
                }
                Undo::Call(id) => {
                    self.c.calls.remove(&id);
                }
                Undo::Key(id) => {
                    self.c.keys.remove(&id);
                }
                Undo::Last(last) => self.c.last = last,
                Undo::Chosen(chosen) => self.c.chosen = chosen,
            }
        }
        for child in self.c.children.drain(self.children..) {
            self.c.by_name.remove(&child.name);
        }
        self.c.edges.truncate(self.edges);
    }

    pub fn edge_mut(&mut self, e: EdgeId) -> &mut Edge {
        if e.index() < self.edges {
            self.log.push(Undo::Edge(e, Box::new(self.c.edge(e).clone())));
        }
        &mut self.c.edges[e.index()]
    }
    pub fn set_last(&mut self, last: Option<EdgeId>) {
        self.log.push(Undo::Last(self.c.last));
        self.c.last = last.or(self.c.last);
    }
    pub fn remember_key(&mut self, id: u64, e: EdgeId) {
        self.c.keys.insert(id, e);
        self.log.push(Undo::Key(id));
    }
    /// A name for a connection that is not taken: `base`, `base_1` …
    pub fn free_name(&self, base: &str) -> Arc<str> {
        if self.c.find(base).is_none() {
            return base.into();
        }
        let mut n = 1;
        loop {
            let name = format!("{base}_{n}");
            if self.c.find(&name).is_none() {
                return name.into();
            }
            n += 1;
        }
    }

    pub fn new_edge(&mut self, label: Label, slot: Slot) -> EdgeId {
        let e = EdgeId(self.c.edges.len() as u32);
        self.c.edges.push(Edge {
            label,
            source: None,
            users: SmallVec::new(),
            value: None,
            declared: Declared::default(),
            inherited: Declared::default(),
            inherits_frozen: false,
            expose: None,
            slot,
        });
        e
    }

    /// The connection of that name, made if there is none, with what the key says about it.
    pub fn named_edge(&mut self, key: &IOKey) -> Result<EdgeId> {
        let name = key.name.clone().ok_or_else(|| Error::internal("a connection without a name"))?;
        let e = match self.c.find(&name) {
            Some(e) => e,
            None => self.give_name(&name)?,
        };
        self.declare(e, key)?;
        Ok(e)
    }
    fn give_name(&mut self, name: &Arc<str>) -> Result<EdgeId> {
        let slot = self.solver.slot(name.clone());
        let e = self.new_edge(Label::Name(name.clone()), slot);
        self.name_edge(name, e)?;
        Ok(e)
    }
    /// Enters a name for a connection that exists.
    pub fn name_edge(&mut self, name: &Arc<str>, e: EdgeId) -> Result<()> {
        names::check_path(name, "a connection")?;
        if let Some((part, _)) = name.split_once('.') {
            if self.c.by_name.contains_key(part) {
                return Err(Error::new(
                    Code::BadName,
                    format!("{name:?} would be a port of the part {part:?}, which has no such port"),
                )
                .help("give the connection a name without a dot"));
            }
            let part: Arc<str> = part.into();
            *self.c.dotted.entry(part.clone()).or_default() += 1;
            self.log.push(Undo::Dotted(part));
        }
        self.c.named.insert(name.clone(), e);
        self.log.push(Undo::Named(name.clone()));
        Ok(())
    }

    /// Enters what a key says about a connection.
    pub fn declare(&mut self, e: EdgeId, key: &IOKey) -> Result<()> {
        if key.declared == Declared::default() && key.value.is_none() && key.expose.is_none() {
            return Ok(());
        }
        let (slot, name) = (self.c.edge(e).slot, self.c.edge_name(e));
        let key = &self.start(e, key, &name)?;
        relations::declare(self.solver, slot, &key.declared, &name, &self.place)?;
        if let Some(value) = &key.value {
            self.set_value(e, value)?;
        }
        let edge = self.edge_mut(e);
        let mut declared = key.declared.clone();
        declared.fill_from(&edge.declared);
        edge.declared = declared;
        if let Some(expose) = key.expose {
            edge.expose = Some(expose);
            let is_computed = edge.source.is_some();
            self.choose(e, key.name.as_ref().unwrap_or(&name), expose && is_computed);
        }
        Ok(())
    }
    /// The key of an input that is learned, whose value is where it starts.
    fn start(&self, e: EdgeId, key: &IOKey, name: &str) -> Result<IOKey> {
        let mut key = key.clone();
        if key.declared.role != Some(Role::Param) {
            return Ok(key);
        }
        if let Some(value) = &self.c.edge(e).value {
            return Err(Error::new(
                Code::BadArgument,
                format!("`{name}` is the constant {value} and cannot be learned"),
            )
            .help(format!(
                "say both at once, so that the value is where training starts: \
                 IOKey({name:?}, value={value}, differentiable=True)"
            )));
        }
        let Some(value) = key.value.take() else { return Ok(key) };
        let init = Init::of(&value).ok_or_else(|| {
            Error::new(Code::BadArgument, format!("`{name}` cannot be initialized with {value}"))
                .help("give a number, or an array of numbers")
        })?;
        let declared = &mut key.declared;
        if declared.shape.is_none() && self.c.edge(e).declared.shape.is_none() {
            declared.shape = match &init {
                Init::Value(values) => {
                    Some(values.0.shape().iter().map(|&n| Size::Is(Dim::from(n))).collect())
                }
                _ => Some(Vec::new()),
            };
        }
        declared.init = Some(init);
        Ok(key)
    }
    /// Adds a connection to the outputs that were chosen before, or removes it from them.
    fn choose(&mut self, e: EdgeId, name: &Arc<str>, expose: bool) {
        let Some(chosen) = &self.c.chosen else { return };
        if chosen.iter().any(|(_, output)| *output == e) == expose {
            return;
        }
        let mut new = chosen.clone();
        if expose {
            new.push((name.clone(), e));
        } else {
            new.retain(|(_, output)| *output != e);
        }
        self.log.push(Undo::Chosen(self.c.chosen.replace(new)));
    }
    pub fn set_value(&mut self, e: EdgeId, value: &Lit) -> Result<()> {
        let name = self.c.edge_name(e);
        if self.c.edge(e).source.is_some() {
            return Err(Error::new(
                Code::TwoSources,
                format!("`{name}` is computed and cannot have a value too"),
            )
            .help("give values to inputs only"));
        }
        if let Some(old) = &self.c.edge(e).value
            && old != value
        {
            return Err(Error::new(Code::TwoSources, format!("`{name}` has the value {old} already"))
                .help("give a connection one value"));
        }
        let slot = self.c.edge(e).slot;
        relations::set_literal(self.solver, slot, value, &name)?;
        self.edge_mut(e).value = Some(value.clone());
        Ok(())
    }

    /// The child for a call; those it depends on are added before. Without recursion, since expressions may be
    /// chains of any length.
    pub fn expression(&mut self, call: &Arc<Call>) -> Result<u32> {
        let mut stack: Vec<(Arc<Call>, bool)> = vec![(call.clone(), false)];
        while let Some((call, ready)) = stack.pop() {
            if self.c.calls.contains_key(&call.id) {
                continue;
            }
            if ready {
                self.add_call(&call)?;
                continue;
            }
            stack.push((call.clone(), true));
            let before = stack.len();
            for (_, arg) in &call.args {
                each_call(arg, &mut |inner| {
                    if !self.c.calls.contains_key(&inner.id) {
                        stack.push((inner.clone(), false));
                    }
                });
            }
            stack[before..].reverse();
        }
        self.c.calls.get(&call.id).copied().ok_or_else(|| Error::internal("a call was not added"))
    }
    fn add_call(&mut self, call: &Arc<Call>) -> Result<()> {
        let mut inputs: Vec<Option<Bound>> = vec![None; call.model.port_count()];
        for (port, arg) in &call.args {
            inputs[*port] = Some(self.input(&call.model, *port, arg.clone())?);
        }
        let outputs = vec![None; call.model.output_count()];
        let child = self.attach(&call.model, inputs, outputs, call.line.as_ref())?;
        self.c.calls.insert(call.id, child);
        self.log.push(Undo::Call(call.id));
        let last = self.c.children[child as usize].outputs.first().copied();
        self.set_last(last);
        Ok(())
    }

    /// Adds a child whose ports are resolved.
    pub fn attach(
        &mut self,
        model: &Model,
        inputs: Vec<Option<Bound>>,
        outputs: Vec<Option<Target>>,
        line: Option<&Line>,
    ) -> Result<u32> {
        let index = self.c.children.len() as u32;
        let name = self.child_name(model)?;
        let prefix: Arc<str> = name.clone();
        let mut bound: SmallVec<[Bound; 4]> = SmallVec::with_capacity(inputs.len());
        for (i, input) in inputs.into_iter().enumerate() {
            let input = match input {
                Some(input) => input,
                None if model.port_default(i).is_some() => Bound::Default,
                None => {
                    let slot = self.solver.slot(format!("{prefix}.{}", model.port_name(i)));
                    Bound::Edge(self.new_edge(Label::Input { child: index, port: i as u32 }, slot))
                }
            };
            if let Bound::Edge(e) = input {
                self.consume(e, index, i, model);
            }
            bound.push(input);
        }
        let mut sourced: SmallVec<[EdgeId; 1]> = SmallVec::with_capacity(outputs.len());
        for (o, target) in outputs.into_iter().enumerate() {
            sourced.push(self.produce(target, index, o, model, &prefix)?);
        }
        self.check_cycle(&bound, &sourced, &name)?;
        self.enter_child(name, model, bound, sourced, line)?;
        Ok(index)
    }
    /// Enters a child and its relations.
    pub fn enter_child(
        &mut self,
        name: Arc<str>,
        model: &Model,
        inputs: SmallVec<[Bound; 4]>,
        outputs: SmallVec<[EdgeId; 1]>,
        line: Option<&Line>,
    ) -> Result<()> {
        let ins: Vec<Term> = inputs.iter().enumerate().map(|(i, b)| self.term(model, i, b)).collect();
        let outs: Vec<Slot> = outputs.iter().map(|&e| self.c.edge(e).slot).collect();
        self.c.by_name.insert(name.clone(), self.c.children.len() as u32);
        let path = name.clone();
        self.c.children.push(Child { name, model: model.clone(), inputs, outputs, line: line.cloned() });
        relations::instantiate(self.solver, model, &ins, &outs, &path, line)
    }
    pub fn term(&self, model: &Model, port: usize, bound: &Bound) -> Term {
        match bound {
            Bound::Edge(e) => Term::Slot(self.c.edge(*e).slot),
            Bound::Lit(lit) => Term::Lit(lit.clone()),
            Bound::Default => Term::Lit(model.port_default(port).cloned().unwrap_or(Lit::None)),
        }
    }

    pub fn consume(&mut self, e: EdgeId, child: u32, port: usize, model: &Model) {
        let (role, init) = (model.port_role(port), model.port_init(port).cloned());
        let is_frozen = model.is_port_frozen(port);
        let edge = self.edge_mut(e);
        edge.users.push((child, port as u32));
        edge.inherits_frozen |= is_frozen;
        // A parameter somewhere is a parameter everywhere.
        let stronger = |old: Option<Role>| match old {
            Some(Role::Param) => Role::Param,
            Some(Role::State) if role != Role::Param => Role::State,
            _ => role,
        };
        edge.inherited.role = Some(stronger(edge.inherited.role));
        if edge.inherited.init.is_none() {
            edge.inherited.init = init;
        }
    }

    fn produce(
        &mut self,
        target: Option<Target>,
        child: u32,
        output: usize,
        model: &Model,
        prefix: &str,
    ) -> Result<EdgeId> {
        let label = Label::Output { child, port: output as u32 };
        let Some(target) = target else {
            let slot = self.solver.slot(output_name(model, output, prefix));
            let e = self.new_edge(label, slot);
            self.edge_mut(e).source = Some((child, output as u32));
            return Ok(e);
        };
        // Another output of this child may have made the connection meanwhile.
        let known = target.edge.or_else(|| target.key.name().and_then(|n| self.c.find(n)));
        let e = match (known, &target.key.name) {
            (Some(e), _) => e,
            (None, Some(name)) => self.give_name(name)?,
            (None, None) => {
                let slot = self.solver.slot(output_name(model, output, prefix));
                self.new_edge(label, slot)
            }
        };
        let edge = self.c.edge(e);
        if let Some((other, _)) = edge.source {
            let name = self.c.edge_name(e);
            let other = self.c.children.get(other as usize).map_or(prefix, |c| &*c.name);
            return Err(Error::new(
                Code::TwoSources,
                format!("`{name}` would have two sources: `{other}` and `{prefix}`"),
            )
            .help("give the output another name"));
        }
        if let Some(value) = &edge.value {
            let name = self.c.edge_name(e);
            return Err(Error::new(
                Code::TwoSources,
                format!("`{name}` has the value {value} and cannot be computed by `{prefix}` too"),
            )
            .help("give the output another name"));
        }
        self.edge_mut(e).source = Some((child, output as u32));
        self.declare(e, &target.key)?;
        if self.c.edge(e).expose == Some(true) {
            let name = self.c.edge_name(e);
            self.choose(e, &name, true);
        }
        Ok(e)
    }

    /// A child that reads what depends on it would never run.
    fn check_cycle(&self, inputs: &[Bound], outputs: &[EdgeId], name: &str) -> Result<()> {
        let edges: Vec<EdgeId> = inputs
            .iter()
            .filter_map(|b| match b {
                Bound::Edge(e) if self.c.edge(*e).source.is_some() => Some(*e),
                _ => None,
            })
            .collect();
        // In a model that grows forwards nothing uses the new outputs yet.
        if edges.is_empty() || outputs.iter().all(|e| self.c.edge(*e).users.is_empty()) {
            return Ok(());
        }
        let mut seen = vec![false; self.c.edges.len()];
        let mut stack = outputs.to_vec();
        while let Some(e) = stack.pop() {
            if std::mem::replace(&mut seen[e.index()], true) {
                continue;
            }
            if edges.contains(&e) {
                return Err(Error::new(
                    Code::Cycle,
                    format!("`{name}` reads `{}`, which depends on `{name}`", self.c.edge_name(e)),
                )
                .help("a model computes in one direction; use another connection at one of the two places"));
            }
            for &(child, _) in &self.c.edge(e).users {
                if let Some(child) = self.c.children.get(child as usize) {
                    stack.extend_from_slice(&child.outputs);
                }
            }
        }
        Ok(())
    }

    fn child_name(&mut self, model: &Model) -> Result<Arc<str>> {
        let taken = |c: &Composite, name: &str| {
            c.by_name.contains_key(name) || c.dotted.get(name).is_some_and(|n| *n > 0)
        };
        let base = model.base_name();
        if model.name().is_some() {
            if taken(self.c, &base) {
                return Err(Error::new(Code::BadName, format!("a part is called {base:?} already"))
                    .help("give one of the two another name"));
            }
            return Ok(base);
        }
        let old = self.c.counters.get(&base).copied();
        let mut n = old.unwrap_or(0);
        let name = loop {
            let name: Arc<str> = if n == 0 { base.clone() } else { format!("{base}_{n}").into() };
            n += 1;
            if !taken(self.c, &name) {
                break name;
            }
        };
        self.log.push(Undo::Counter(base.clone(), old));
        self.c.counters.insert(base, n);
        Ok(name)
    }
}

fn output_name(model: &Model, output: usize, prefix: &str) -> Arc<str> {
    format!("{prefix}.{}", model.output_name(output)).into()
}

/// Calls `f` for every call that `arg` depends on directly.
fn each_call(arg: &Arg, f: &mut dyn FnMut(&Arc<Call>)) {
    match arg {
        Arg::Connection(c) => {
            if let Source::Out(call, _) = &*c.0 {
                f(call);
            }
        }
        Arg::List(items) => items.iter().for_each(|item| each_call(item, f)),
        Arg::Slice(parts) => parts.iter().for_each(|part| each_call(part, f)),
        _ => {}
    }
}
