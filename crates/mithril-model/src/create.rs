//! Making a model of expressions.

use std::sync::Arc;

use mithril_ir::{Code, Error, Place, Result};
use rustc_hash::FxHashSet;

use crate::connection::{Arg, Connection, Source};
use crate::model::{Bound, EdgeId, Model};
use crate::names;

impl Model {
    /// The model with these outputs; its inputs are the free-standing connections that they are computed from.
    ///
    /// ```
    /// use mithril_model::{Connection, Model, layers};
    /// let x = Connection::input("input");
    /// let y = layers::linear(10, true)?.call([&x])?;
    /// let model = Model::from_outputs([("output", y)])?;
    /// assert_eq!(model.parameters().len(), 2);
    /// # Ok::<(), mithril_ir::Error>(())
    /// ```
    pub fn from_outputs<N: AsRef<str>>(outputs: impl IntoIterator<Item = (N, Connection)>) -> Result<Self> {
        let mut model = Self::new();
        let outputs: Vec<(Arc<str>, Connection)> =
            outputs.into_iter().map(|(n, c)| (n.as_ref().into(), c)).collect();
        if outputs.is_empty() {
            return Err(Error::new(Code::EmptyModel, "a model needs at least one output")
                .help("name the connections that the model computes"));
        }
        model.add_outputs(&outputs, &Place::default())?;
        Ok(model)
    }

    /// Enters inputs before what uses them: parts that are added later then take other names than theirs begin with.
    pub fn declare<'a>(
        &mut self,
        inputs: impl IntoIterator<Item = &'a Connection>,
        place: &Place,
    ) -> Result<()> {
        self.change(place, |edit| inputs.into_iter().try_for_each(|input| edit.connection(input).map(|_| ())))
    }

    /// Makes an expression a part of the model (`model |= relu(x)`); what is added next by [`Model::chain`] follows it.
    pub fn include(&mut self, connection: &Connection, place: &Place) -> Result<()> {
        let outputs = [(Arc::from("output"), connection.clone())];
        let mut with_output = self.clone();
        with_output.add_outputs(&outputs, place)?;
        self.change(place, |edit| {
            if let Bound::Edge(e) = edit.connection(connection)? {
                edit.set_last(Some(e));
            }
            Ok(())
        })?;
        let inner = self.inner_mut();
        inner.size = with_output.0.size;
        inner.depth = with_output.0.depth;
        Ok(())
    }

    /// Makes connections outputs of the model, under these names; expressions are added to it.
    pub fn add_outputs(&mut self, outputs: &[(Arc<str>, Connection)], place: &Place) -> Result<()> {
        for (i, (name, _)) in outputs.iter().enumerate() {
            names::check_path(name, "an output").map_err(|e| e.at(place))?;
            if outputs[..i].iter().any(|(other, _)| other == name) {
                return Err(Error::new(Code::BadName, format!("two outputs are called {name:?}"))
                    .help("give every output its own name")
                    .at(place));
            }
        }
        let before = self.0.clone();
        let size = |m: &Self| m.composite().map_or(1, |c| c.children.iter().map(|c| c.model.0.size).sum());
        let depth = |m: &Self| m.children().map(|(_, c)| c.0.depth).max().unwrap_or(0) + 1;
        let chosen = self.change(place, |edit| {
            // First, so that no part is called as a name with a dot begins.
            for input in dotted_inputs(outputs) {
                edit.connection(&input)?;
            }
            let mut chosen = edit.c.chosen.clone().unwrap_or_default();
            for (name, connection) in outputs {
                let e = match edit.connection(connection)? {
                    Bound::Edge(e) => e,
                    Bound::Lit(_) | Bound::Default => {
                        return Err(Error::new(
                            Code::BadConnection,
                            format!("output {name:?} is a constant, so that nothing is computed"),
                        ));
                    }
                };
                chosen.retain(|(other, _)| other != name);
                chosen.push((name.clone(), e));
                // The name also leads to the connection, unless it leads elsewhere or has a name already.
                if edit.c.find(name).is_none() && !is_named(edit.c.edge(e)) {
                    edit.name_edge(name, e)?;
                    edit.edge_mut(e).label = crate::model::Label::Name(name.clone());
                }
            }
            Ok(chosen)
        })?;
        if let Ok(c) = self.composite_mut() {
            c.chosen = Some(chosen);
        }
        let (size, depth) = (size(self), depth(self));
        if depth > crate::MAX_DEPTH || size > crate::MAX_SIZE {
            self.0 = before;
            return Err(Error::new(Code::BadConnection, "the model becomes too large or too deep").at(place));
        }
        let inner = self.inner_mut();
        inner.size = size;
        inner.depth = depth;
        Ok(())
    }

    /// Lets what is added later have outputs of its own, as if the model had been written with [`Model::extend`]:
    /// named connections that nothing uses are the outputs, and those that are outputs now although the model
    /// itself uses them.
    #[must_use]
    pub fn open(mut self) -> Self {
        if let Ok(c) = self.composite_mut() {
            for (_, e) in c.chosen.take().into_iter().flatten() {
                let edge = &mut c.edges[e.index()];
                if !edge.users.is_empty() {
                    edge.expose = Some(true);
                }
            }
        }
        self
    }

    /// Says which connections are the outputs of the model.
    pub fn set_outputs<N: AsRef<str>>(
        &mut self,
        outputs: impl IntoIterator<Item = (N, Connection)>,
        place: &Place,
    ) -> Result<()> {
        let outputs: Vec<(Arc<str>, Connection)> =
            outputs.into_iter().map(|(n, c)| (n.as_ref().into(), c)).collect();
        let before = self.0.clone();
        self.composite_mut().map_err(|e| e.at(place))?.chosen = None;
        self.add_outputs(&outputs, place).inspect_err(|_| self.0 = before)
    }
}

fn is_named(edge: &crate::model::Edge) -> bool {
    matches!(edge.label, crate::model::Label::Name(_))
}

impl Model {
    /// A composite with the same inputs and outputs as this leaf; a composite itself.
    pub(crate) fn wrapped(&self) -> Result<Self> {
        if self.composite().is_some() {
            return Ok(self.clone());
        }
        let mut model = Self::with_class(self.class());
        let mut spec = crate::Spec::new();
        for i in (0..self.port_count()).filter(|&i| self.port_default(i).is_none()) {
            let name = self.port_name(i);
            spec = spec.with(&*name, crate::IOKey::new(&*name));
        }
        let output = |i: usize| {
            let name = self.output_name(i);
            // An output may be called as an input is.
            if self.find_port(&name).is_some() { Arc::from(format!("{name}_out")) } else { name }
        };
        let child = model.extend(self, spec, Place::default())?;
        let c = model.composite().ok_or_else(|| Error::internal("a new model is a leaf"))?;
        let edges: Vec<EdgeId> = c.children[c.by_name[&child.name] as usize].outputs.to_vec();
        let chosen = edges.into_iter().enumerate().map(|(i, e)| (output(i), e)).collect();
        model.composite_mut()?.chosen = Some(chosen);
        Ok(model)
    }
}

impl Connection {
    /// The constant, if it is one.
    pub fn constant_value(&self) -> Option<&mithril_ir::Lit> {
        match &*self.0 {
            Source::Value(lit) => Some(lit),
            _ => None,
        }
    }
}

/// The inputs that expressions read whose names begin, up to a dot, as a part could be called.
fn dotted_inputs(outputs: &[(Arc<str>, Connection)]) -> Vec<Connection> {
    let (mut inputs, mut parts) = (Vec::new(), FxHashSet::default());
    let mut seen = FxHashSet::default();
    let mut pending: Vec<Arg> = outputs.iter().map(|(_, c)| Arg::Connection(c.clone())).collect();
    while let Some(arg) = pending.pop() {
        match arg {
            Arg::Connection(c) => match &*c.0 {
                Source::Key(id, key) if seen.insert(*id) => {
                    if let Some((first, _)) = key.name.as_deref().and_then(|name| name.split_once('.')) {
                        inputs.push((first.to_owned(), c.clone()));
                    }
                }
                Source::Out(call, _) if seen.insert(call.id) => {
                    if call.model.name().is_none() {
                        parts.insert(call.model.base_name());
                    }
                    pending.extend(call.args.iter().map(|(_, arg)| arg.clone()));
                }
                _ => {}
            },
            Arg::List(items) => pending.extend(items),
            Arg::Slice(parts) => pending.extend(*parts),
            _ => {}
        }
    }
    // Of several parts with one name, all but the first have a number behind.
    let base = |name: &str| {
        let (base, number) = name.rsplit_once('_').unwrap_or((name, ""));
        if number.parse::<u32>().is_ok() { base.to_owned() } else { name.to_owned() }
    };
    inputs.retain(|(first, _)| parts.contains(first.as_str()) || parts.contains(base(first).as_str()));
    inputs.into_iter().map(|(_, c)| c).collect()
}
