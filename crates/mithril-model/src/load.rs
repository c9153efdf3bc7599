//! Reading a model from JSON. Nothing in the file is trusted: every index, name and count is checked, ops and
//! functions come from the registry, and what the parts say about shapes is entered anew.

use std::sync::Arc;

use mithril_ir::op::OpDef;
use mithril_ir::{Place, Result, ops};
use smallvec::SmallVec;

use crate::edit::Edit;
use crate::extend::{check_literal, literal_fits};
use crate::file::{BodyFile, BoundFile, CompositeFile, FORMAT, File, LeafFile, PortFile, VERSION, bad};
use crate::key::IOKey;
use crate::leaf::is_random_key;
use crate::literal_fn::LiteralFn;
use crate::model::{Body, Bound, Composite, EdgeId, Label, Leaf, LeafPort, MAX_DEPTH, Model, Prim};
use crate::names;

/// Ops that may be entered while reading, all levels and all sub-models together.
const MAX_WORK: usize = 1_000_000;

impl Model {
    /// Reads a model that [`Model::to_json`] wrote.
    pub fn from_json(text: &str) -> Result<Self> {
        let file: File =
            serde_json::from_str(text).map_err(|e| bad(format!("the model file cannot be read: {e}")))?;
        if file.format != FORMAT {
            return Err(bad(format!("the file is {:?} and no {FORMAT:?}", file.format)));
        }
        if file.version != VERSION {
            return Err(bad(format!("the file has version {}", file.version))
                .help(format!("this Mithril reads version {VERSION}; use a newer one")));
        }
        let mut models: Vec<Self> = Vec::with_capacity(file.models.len().min(1 << 16));
        let mut work = 0_usize;
        for (i, entry) in file.models.into_iter().enumerate() {
            let at = |e: mithril_ir::Error| within(&e, &format!("models[{i}]"));
            let body = match entry.body {
                BodyFile::Op(leaf) => read_op(leaf).map_err(at)?,
                BodyFile::Shape(leaf) => read_literal_fn(leaf).map_err(at)?,
                BodyFile::Parts(parts) => {
                    for child in &parts.children {
                        let size = models.get(child.model).map_or(0, |m| m.0.size);
                        work = work.saturating_add(size.max(1));
                    }
                    if work > MAX_WORK {
                        return Err(at(bad(format!("the models hold more than {MAX_WORK} ops"))));
                    }
                    read_composite(parts, &models).map_err(at)?
                }
            };
            names::check(&entry.class, "a class").map_err(at)?;
            let mut model = Self::from_body(&entry.class, body);
            model.measure().map_err(at)?;
            if let Some(name) = &entry.name {
                model.set_name(Some(name)).map_err(at)?;
            }
            models.push(model);
        }
        models.pop().ok_or_else(|| bad("the file holds no model"))
    }
    /// Enters depth and size.
    fn measure(&mut self) -> Result<()> {
        let Some(c) = self.composite() else { return Ok(()) };
        let depth = c.children.iter().map(|c| c.model.0.depth).max().unwrap_or(0) + 1;
        let size = c.children.iter().fold(0_usize, |n, c| n.saturating_add(c.model.0.size));
        if depth > MAX_DEPTH {
            return Err(bad(format!("the models nest more than {MAX_DEPTH} deep")));
        }
        let inner = self.inner_mut();
        (inner.depth, inner.size) = (depth, size);
        Ok(())
    }
}

/// The same failure as one of the file, with the place in it.
fn within(error: &mithril_ir::Error, place: &str) -> mithril_ir::Error {
    let separator = if error.message().starts_with('.') { "" } else { ": " };
    let mut out = bad(format!("{place}{separator}{}", error.message()));
    for note in error.notes() {
        out = out.note(note.clone());
    }
    out
}

fn read_ports(ports: Vec<PortFile>) -> Result<Vec<LeafPort>> {
    let mut out: Vec<LeafPort> = Vec::with_capacity(ports.len());
    let mut seen = rustc_hash::FxHashSet::default();
    for port in ports {
        names::check_path(&port.name, "a port")?;
        if !seen.insert(port.name.clone()) {
            return Err(bad(format!("two ports are called {:?}", port.name)));
        }
        out.push(LeafPort {
            name: port.name.into(),
            default: port.default.map(crate::file::LitFile::read).transpose()?,
            declared: port.declared.read()?,
        });
    }
    Ok(out)
}

fn read_op(file: LeafFile) -> Result<Body> {
    let op = ops::find(&file.is).ok_or_else(|| bad(format!("there is no op {:?}", file.is)))?;
    let fixed = op.ports.len() - usize::from(op.is_variadic());
    let count = file.ports.len();
    if count > 1 << 16 || if op.is_variadic() { count < fixed } else { count != fixed } {
        return Err(bad(format!("{} has {count} ports", op.name)));
    }
    let ports = read_ports(file.ports)?;
    for (i, port) in ports.iter().enumerate() {
        check_default(op, i, port)?;
    }
    let outputs = read_outputs(&file.outputs)?;
    if outputs.len() > op.outputs.len() && op.port("sections").is_none() && !op.has_output_for_each() {
        return Err(bad(format!("{} has {} outputs", op.name, outputs.len())));
    }
    if file.updates.iter().any(|&(i, o)| i >= count || o >= op.outputs.len()) {
        return Err(bad(format!("{} updates what it does not have", op.name)));
    }
    Ok(Body::Leaf(Leaf { prim: Prim::Op(op), ports, outputs, updates: file.updates }))
}

fn check_default(op: &'static OpDef, i: usize, port: &LeafPort) -> Result<()> {
    let (Some(lit), Some(row)) = (&port.default, op.port_of(i)) else { return Ok(()) };
    if literal_fits(row.kind, lit) || (lit.is_none() && is_random_key(op, i)) {
        Ok(())
    } else {
        Err(bad(format!("`{}` of {} is {lit}", port.name, op.name)))
    }
}

fn read_literal_fn(file: LeafFile) -> Result<Body> {
    let f = LiteralFn::find(&file.is).ok_or_else(|| bad(format!("there is no function {:?}", file.is)))?;
    if file.ports.len() > 10_000
        || f.ports(file.ports.len()).len() != file.ports.len()
        || !file.updates.is_empty()
    {
        return Err(bad(format!("{} has {} ports", f.name(), file.ports.len())));
    }
    let outputs = read_outputs(&file.outputs)?;
    if outputs.len() != 1 {
        return Err(bad(format!("{} has {} outputs", f.name(), outputs.len())));
    }
    Ok(Body::Leaf(Leaf {
        prim: Prim::Literal(f),
        ports: read_ports(file.ports)?,
        outputs,
        updates: Vec::new(),
    }))
}

fn read_outputs(names_: &[String]) -> Result<Vec<Arc<str>>> {
    if names_.is_empty() || names_.len() > 1 << 16 {
        return Err(bad(format!("an op has {} outputs", names_.len())));
    }
    let mut seen = rustc_hash::FxHashSet::default();
    for name in names_ {
        names::check_path(name, "an output")?;
        if !seen.insert(name) {
            return Err(bad(format!("two outputs are called {name:?}")));
        }
    }
    Ok(names_.iter().map(|n| n.as_str().into()).collect())
}

fn read_composite(file: CompositeFile, models: &[Model]) -> Result<Body> {
    let count = file.connections.len();
    let edge = |e: u32| {
        if (e as usize) < count { Ok(EdgeId(e)) } else { Err(bad(format!("there is no connection {e}"))) }
    };
    let mut c = Composite::default();
    let mut solver = std::mem::take(&mut c.solver);
    let mut edit = Edit::new(0, &mut c, &mut solver, Place::default());
    let labels = labels(&file, models)?;
    for (i, (entry, label)) in file.connections.into_iter().zip(labels).enumerate() {
        let at = |e: mithril_ir::Error| within(&e, &format!(".connections[{i}]"));
        let key = IOKey {
            name: None,
            value: entry.value.map(crate::file::LitFile::read).transpose().map_err(at)?,
            expose: entry.expose,
            declared: entry.declared.read().map_err(at)?,
        };
        edit.read_edge(label, entry.name.as_deref(), key).map_err(at)?;
    }
    for (i, child) in file.children.into_iter().enumerate() {
        let at = |e: mithril_ir::Error| within(&e, &format!(".children[{i}]"));
        let model = &models[child.model];
        let mut inputs: SmallVec<[Bound; 4]> = SmallVec::new();
        for (port, bound) in child.inputs.into_iter().enumerate() {
            inputs.push(match bound {
                BoundFile::Default if model.port_default(port).is_some() => Bound::Default,
                BoundFile::Default => return Err(at(bad(format!("input {port} has no default")))),
                BoundFile::Value(lit) => {
                    let lit = lit.read().map_err(at)?;
                    check_literal(model, port, model.port_kind(port), &lit).map_err(at)?;
                    Bound::Lit(lit)
                }
                BoundFile::From(e) => Bound::Edge(edge(e).map_err(at)?),
            });
        }
        let outputs = child.outputs.iter().map(|&e| edge(e)).collect::<Result<_>>().map_err(at)?;
        edit.read_child(&child.name, model, inputs, outputs).map_err(at)?;
    }
    c.solver = solver;
    finish(&mut c, file.outputs, file.last, &file.updates, edge)?;
    if crate::flatten::order(&c).len() != c.children.len() {
        return Err(bad("the parts depend on each other in a circle"));
    }
    Ok(Body::Composite(Box::new(c)))
}

fn finish(
    c: &mut Composite,
    outputs: Option<Vec<(String, u32)>>,
    last: Option<u32>,
    updates: &[(u32, u32)],
    edge: impl Fn(u32) -> Result<EdgeId>,
) -> Result<()> {
    if let Some(outputs) = outputs {
        let mut seen = rustc_hash::FxHashSet::default();
        let mut chosen = Vec::with_capacity(outputs.len());
        for (name, e) in outputs {
            names::check_path(&name, "an output")?;
            if !seen.insert(name.clone()) {
                return Err(bad(format!("two outputs are called {name:?}")));
            }
            chosen.push((name.into(), edge(e)?));
        }
        c.chosen = Some(chosen);
    }
    c.last = last.map(&edge).transpose()?.filter(|e| c.edge(*e).source.is_some());
    for &(a, b) in updates {
        c.updates.push((edge(a)?, edge(b)?));
    }
    Ok(())
}

/// Labels of the connections: by name, by the output that feeds one, or by the first input that it feeds.
fn labels(file: &CompositeFile, models: &[Model]) -> Result<Vec<Label>> {
    let mut labels: Vec<Option<Label>> =
        file.connections.iter().map(|c| c.name.as_ref().map(|n| Label::Name(n.as_str().into()))).collect();
    let mut enter = |e: u32, label: Label| {
        if let Some(slot) = labels.get_mut(e as usize) {
            slot.get_or_insert(label);
        }
    };
    for (i, child) in file.children.iter().enumerate() {
        let at = |e: mithril_ir::Error| within(&e, &format!(".children[{i}]"));
        let model = models
            .get(child.model)
            .ok_or_else(|| at(bad(format!("there is no earlier model {}", child.model))))?;
        if child.inputs.len() != model.port_count() || child.outputs.len() != model.output_count() {
            return Err(at(bad(format!(
                "{} has {} inputs and {} outputs, but {} and {} are connected",
                model.title(),
                model.port_count(),
                model.output_count(),
                child.inputs.len(),
                child.outputs.len()
            ))));
        }
        for (o, &e) in child.outputs.iter().enumerate() {
            enter(e, Label::Output { child: i as u32, port: o as u32 });
        }
    }
    for (i, child) in file.children.iter().enumerate() {
        for (p, bound) in child.inputs.iter().enumerate() {
            if let BoundFile::From(e) = bound {
                enter(*e, Label::Input { child: i as u32, port: p as u32 });
            }
        }
    }
    labels
        .into_iter()
        .enumerate()
        .map(|(i, label)| {
            label.ok_or_else(|| bad(format!("connection {i} has no name and connects nothing")))
        })
        .collect()
}

impl Edit<'_> {
    fn read_edge(&mut self, label: Label, name: Option<&str>, key: IOKey) -> Result<()> {
        let slot = self.solver.slot(name.unwrap_or("a connection"));
        let e = self.new_edge(label, slot);
        if let Some(name) = name {
            if self.c.named.contains_key(name) {
                return Err(bad(format!("two connections are called {name:?}")));
            }
            self.name_edge(&name.into(), e)?;
        }
        crate::relations::declare(
            self.solver,
            slot,
            &key.declared,
            name.unwrap_or("a connection"),
            &Place::default(),
        )?;
        if let Some(value) = &key.value {
            crate::relations::set_literal(self.solver, slot, value, name.unwrap_or("a connection"))?;
        }
        let edge = self.edge_mut(e);
        edge.declared = key.declared;
        edge.value = key.value;
        edge.expose = key.expose;
        Ok(())
    }
    fn read_child(
        &mut self,
        name: &str,
        model: &Model,
        inputs: SmallVec<[Bound; 4]>,
        outputs: SmallVec<[EdgeId; 1]>,
    ) -> Result<()> {
        names::check_child(name)?;
        if self.c.by_name.contains_key(name) || self.c.dotted.get(name).is_some_and(|n| *n > 0) {
            return Err(bad(format!("the name {name:?} is taken")));
        }
        let index = self.c.children.len() as u32;
        for (o, &e) in outputs.iter().enumerate() {
            if self.c.edge(e).source.is_some() || self.c.edge(e).value.is_some() {
                return Err(bad(format!("connection {} has two sources", e.0)));
            }
            self.edge_mut(e).source = Some((index, o as u32));
        }
        for (i, bound) in inputs.iter().enumerate() {
            if let Bound::Edge(e) = bound {
                self.consume(*e, index, i, model);
            }
        }
        self.enter_child(name.into(), model, inputs, outputs, None)
    }
}
