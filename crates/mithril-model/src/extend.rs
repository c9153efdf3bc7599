//! Adding a child to a model: `model |= child(...)` ([`Model::extend`]) and `model += child(...)`
//! ([`Model::chain`]). Everything is checked, and its relations enter the solver, at once; after an error the
//! model is as before.

use std::sync::Arc;

use mithril_ir::build::attr_fits;
use mithril_ir::op::{Attr, PortKind};
use mithril_ir::{Code, Error, Lit, Place, Result};

use crate::connection::{Arg, Connection, Source, Spec};
use crate::edit::{Edit, Target};
use crate::key::IOKey;
use crate::model::{Bound, Cache, MAX_DEPTH, MAX_SIZE, Model};
use crate::names;

/// A child as it was added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Child {
    /// Its name in the model.
    pub name: Arc<str>,
}

impl Model {
    /// Adds `child` (`model |= child(...)`).
    ///
    /// `spec` says what stands at which port of the child: a name connects to the connection of that name or
    /// makes one. Inputs that are not listed become inputs of the model called `child.port`, unless they have a
    /// default. An output that is given the name of an input of the model becomes the source of that input.
    ///
    /// ```
    /// use mithril_model::{Model, layers};
    /// use mithril_ir::Place;
    /// let mut model = Model::new();
    /// let linear = layers::linear(64, true)?;
    /// model.extend(&linear, [("input", "input"), ("output", "hidden")], Place::default())?;
    /// assert_eq!(model.outputs()[..], ["hidden".into()]);
    /// # Ok::<(), mithril_ir::Error>(())
    /// ```
    #[allow(clippy::needless_pass_by_value, reason = "callers make the place for this call")]
    pub fn extend(&mut self, child: &Self, spec: impl Into<Spec>, place: Place) -> Result<Child> {
        self.add(child, spec.into(), &place, false)
    }
    /// Adds `child` behind the child added last (`model += child(...)`): its data input is fed by the last
    /// output, unless `spec` gives an input.
    #[allow(clippy::needless_pass_by_value, reason = "callers make the place for this call")]
    pub fn chain(&mut self, child: &Self, spec: impl Into<Spec>, place: Place) -> Result<Child> {
        self.add(child, spec.into(), &place, true)
    }

    fn add(&mut self, child: &Self, spec: Spec, place: &Place, chain: bool) -> Result<Child> {
        let (depth, size) = (self.0.depth.max(child.0.depth + 1), self.0.size.saturating_add(child.0.size));
        if depth > MAX_DEPTH || size > MAX_SIZE {
            let what = if depth > MAX_DEPTH { "deep" } else { "large" };
            return Err(Error::new(Code::BadConnection, format!("the model becomes too {what}"))
                .help(format!("models nest at most {MAX_DEPTH} deep and hold at most {MAX_SIZE} ops"))
                .at(place));
        }
        self.change(place, |edit| edit.add(child, spec, chain, place)).map(|name| {
            let inner = self.inner_mut();
            inner.depth = depth;
            inner.size = size;
            Child { name }
        })
    }

    /// Runs a change on the composite; after an error everything is as before.
    pub(crate) fn change<T>(
        &mut self,
        place: &Place,
        f: impl FnOnce(&mut Edit<'_>) -> Result<T>,
    ) -> Result<T> {
        let id = self.0.id;
        let c = self.composite_mut().map_err(|e| e.at(place))?;
        let mut solver = std::mem::take(&mut c.solver);
        let result = solver.transaction(|solver| {
            let mut edit = Edit::new(id, c, solver, place.clone());
            f(&mut edit).inspect_err(|_| edit.undo())
        });
        c.solver = solver;
        c.cache = Cache::default();
        result.map_err(|e| e.at(place))
    }
}

impl Edit<'_> {
    fn add(&mut self, child: &Model, spec: Spec, chain: bool, place: &Place) -> Result<Arc<str>> {
        let mut inputs: Vec<Option<Bound>> = vec![None; child.port_count()];
        let mut outputs: Vec<Option<Target>> = vec![None; child.output_count()];
        let fed = if chain { Self::fed(child, &spec)? } else { None };
        if let Some(port) = fed {
            inputs[port] = Some(match self.c.last {
                Some(last) => Bound::Edge(last),
                None => Bound::Edge(self.named_edge(&IOKey::new(&*child.port_name(port)))?),
            });
        }
        for (name, arg) in spec.0 {
            let input = child.find_port(&name);
            let output = child.find_output(&name);
            match (input, output) {
                (Some(i), _) => {
                    if inputs[i].is_some() {
                        return Err(passed_twice(child, &name));
                    }
                    inputs[i] = Some(self.input(child, i, arg)?);
                }
                (None, Some(o)) => {
                    if outputs[o].is_some() {
                        return Err(passed_twice(child, &name));
                    }
                    outputs[o] = Some(self.target(child, &name, arg)?);
                }
                (None, None) => return Err(child.no_port(&name)),
            }
        }
        let index = self.attach(child, inputs, outputs, place.line.as_ref())?;
        let added = &self.c.children[index as usize];
        let (name, last) = (added.name.clone(), added.outputs.first().copied());
        self.set_last(last);
        Ok(name)
    }

    /// The port that the last output feeds, if none is given.
    fn fed(child: &Model, spec: &Spec) -> Result<Option<usize>> {
        let free = child.data_ports();
        let is_passed = |&i: &usize| spec.0.iter().any(|(name, _)| child.find_port(name) == Some(i));
        if free.iter().any(is_passed) {
            return Ok(None);
        }
        let canonical = free.iter().copied().find(|&i| &*child.port_name(i) == "input");
        match (canonical, free.as_slice()) {
            (Some(i), _) => Ok(Some(i)),
            (None, [i]) => Ok(Some(*i)),
            (None, []) => Err(Error::new(
                Code::BadConnection,
                format!("{} has no input that the last output could feed", child.title()),
            )
            .help("add it with `|=`")),
            (None, several) => {
                let names =
                    several.iter().map(|&i| child.port_name(i).to_string()).collect::<Vec<_>>().join(", ");
                Err(Error::new(
                    Code::BadConnection,
                    format!("{} has several inputs that the last output could feed", child.title()),
                )
                .help(format!("give one of them: {names}")))
            }
        }
    }

    /// What stands at an input.
    pub(crate) fn input(&mut self, child: &Model, port: usize, arg: Arg) -> Result<Bound> {
        let kind = child.port_kind(port);
        match arg {
            Arg::Name(text) if is_text(kind) => {
                let lit = read(kind, Lit::Str(text))?;
                check_literal(child, port, kind, &lit)?;
                Ok(Bound::Lit(lit))
            }
            Arg::Name(name) => Ok(Bound::Edge(self.named_edge(&IOKey::new(&*name))?)),
            Arg::Key(key) => self.key(&key, None),
            Arg::Connection(c) => self.connection(&c),
            Arg::Lit(lit) => {
                let lit = read(kind, lit)?;
                check_literal(child, port, kind, &lit)?;
                Ok(Bound::Lit(lit))
            }
            Arg::List(_) | Arg::Slice(_) => match arg.nested()? {
                Arg::Connection(c) => self.connection(&c),
                Arg::Lit(lit) => {
                    let lit = read(kind, lit)?;
                    check_literal(child, port, kind, &lit)?;
                    Ok(Bound::Lit(lit))
                }
                other => Err(Error::internal(format!("{other:?} is not a literal"))),
            },
        }
    }

    /// Where an output goes.
    fn target(&mut self, child: &Model, port: &str, arg: Arg) -> Result<Target> {
        let key = match arg {
            Arg::Name(name) => IOKey::new(&*name),
            Arg::Key(key) => key,
            Arg::Connection(c) => match &*c.0 {
                Source::Key(_, key) if key.name().is_some() => key.clone(),
                Source::Key(..) | Source::Port(..) | Source::Edge(..) => {
                    return match self.connection(&c)? {
                        Bound::Edge(e) => Ok(Target { key: IOKey::unnamed(), edge: Some(e) }),
                        _ => Err(not_a_target(child, port)),
                    };
                }
                _ => return Err(not_a_target(child, port)),
            },
            Arg::Lit(_) | Arg::List(_) | Arg::Slice(_) => return Err(not_a_target(child, port)),
        };
        let edge = match key.name() {
            Some(name) => {
                names::check_path(name, "a connection")?;
                self.c.find(name)
            }
            None => None,
        };
        Ok(Target { key, edge })
    }

    /// The connection or constant of a key; `id` tells free-standing keys without a name apart.
    pub(crate) fn key(&mut self, key: &IOKey, id: Option<u64>) -> Result<Bound> {
        match (key.name(), &key.value, id) {
            (Some(_), ..) => Ok(Bound::Edge(self.named_edge(key)?)),
            (None, Some(value), _) if key.declared.role != Some(mithril_ir::Role::Param) => {
                Ok(Bound::Lit(value.clone()))
            }
            (None, _, Some(id)) => {
                if let Some(&e) = self.c.keys.get(&id) {
                    return Ok(Bound::Edge(e));
                }
                let name = self.free_name("input");
                let e = self.named_edge(&IOKey { name: Some(name), ..key.clone() })?;
                self.remember_key(id, e);
                Ok(Bound::Edge(e))
            }
            (None, _, None) => {
                let name = self.free_name("input");
                Ok(Bound::Edge(self.named_edge(&IOKey { name: Some(name), ..key.clone() })?))
            }
        }
    }

    /// What a connection is in this model; expressions become children.
    pub(crate) fn connection(&mut self, c: &Connection) -> Result<Bound> {
        match &*c.0 {
            Source::Key(id, key) => self.key(key, Some(*id)),
            Source::Value(lit) => Ok(Bound::Lit(lit.clone())),
            Source::Edge(id, name) if *id == self.id => Ok(Bound::Edge(self.c.lookup(name)?)),
            Source::Edge(_, name) => {
                Err(Error::new(Code::BadConnection, format!("`{name}` is a connection of another model"))
                    .help("connect by a name, or add the model it belongs to and use its port"))
            }
            Source::Port(model, port) => self.port_of(model, port).map(Bound::Edge),
            Source::Out(call, output) => {
                let child = self.expression(call)?;
                Ok(Bound::Edge(self.c.children[child as usize].outputs[*output]))
            }
        }
    }

    fn port_of(&self, model: &Model, port: &str) -> Result<crate::model::EdgeId> {
        let mut children = self.c.children.iter().filter(|child| child.model.is(model));
        let Some(child) = children.next_back() else {
            return Err(Error::new(
                Code::BadConnection,
                format!("`{port}` of {} is not part of the model", model.title()),
            )
            .help("add that model first, then use its port"));
        };
        if let Some(other) = children.next() {
            return Err(Error::new(
                Code::BadConnection,
                format!(
                    "{} is part of the model more than once: `{}` and `{}`",
                    model.title(),
                    other.name,
                    child.name
                ),
            )
            .help(format!("name the one you mean, e.g. {:?}", format!("{}.{port}", child.name))));
        }
        match model.find_port(port).map(|i| &child.inputs[i]) {
            Some(Bound::Edge(e)) => Ok(*e),
            Some(_) => Err(Error::new(
                Code::BadConnection,
                format!("`{port}` of `{}` has a constant value, so that it is not a connection", child.name),
            )),
            None => {
                let output = model.find_output(port).ok_or_else(|| model.no_port(port))?;
                Ok(child.outputs[output])
            }
        }
    }
}

/// Whether a text at that port is a value rather than the name of a connection.
fn is_text(kind: PortKind) -> bool {
    matches!(kind, PortKind::Attr(Attr::Choice(_) | Attr::Text | Attr::DType))
}

/// A literal in the canonical form of its port.
fn read(kind: PortKind, lit: Lit) -> Result<Lit> {
    match kind {
        PortKind::Attr(kind) => kind.read(lit),
        _ => Ok(lit),
    }
}

/// Whether a literal may stand at a port of that kind.
pub(crate) fn literal_fits(kind: PortKind, lit: &Lit) -> bool {
    match kind {
        PortKind::Attr(kind) => attr_fits(kind, lit),
        PortKind::Optional(_) => lit.is_numeric() || lit.is_none(),
        PortKind::Tensor(_) | PortKind::Variadic(_) => lit.is_numeric(),
    }
}

pub(crate) fn check_literal(child: &Model, port: usize, kind: PortKind, lit: &Lit) -> Result<()> {
    if literal_fits(kind, lit) {
        return Ok(());
    }
    let message = format!("`{}` of {} is {lit}", child.port_name(port), child.title());
    Err(Error::new(Code::BadArgument, message).help(match kind {
        PortKind::Attr(Attr::Choice(all)) => format!("it must be one of {}", all.join(", ")),
        PortKind::Attr(kind) => format!("it must be {}", kind.text()),
        _ => "it must be a connection, a number or a tensor".into(),
    }))
}

fn passed_twice(child: &Model, port: &str) -> Error {
    Error::new(Code::BadArgument, format!("`{port}` of {} is given twice", child.title()))
        .help("give it once")
}

fn not_a_target(child: &Model, port: &str) -> Error {
    Error::new(Code::BadConnection, format!("output `{port}` of {} cannot be connected there", child.title()))
        .help("give an output the name of a connection, or an input of the model that has no source")
}
