//! What is said about connections after they were made: shapes, dtypes, values, roles, names.

use std::sync::Arc;

use mithril_ir::{Code, DType, Error, Lit, Place, Result, Role};

use crate::key::{IOKey, Size};
use crate::model::{EdgeId, Label, Model};
use crate::names;

impl Model {
    /// Declares shapes of connections; sizes are numbers, symbols or unknown.
    pub fn set_shapes<N: AsRef<str>>(
        &mut self,
        shapes: impl IntoIterator<Item = (N, Vec<Size>)>,
        place: &Place,
    ) -> Result<()> {
        self.say(shapes.into_iter().map(|(name, shape)| (name, IOKey::unnamed().shape(shape))), place)
    }
    /// Declares dtypes of connections.
    pub fn set_dtypes<N: AsRef<str>>(
        &mut self,
        dtypes: impl IntoIterator<Item = (N, DType)>,
        place: &Place,
    ) -> Result<()> {
        self.say(dtypes.into_iter().map(|(name, dtype)| (name, IOKey::unnamed().dtype(dtype))), place)
    }
    /// Says which inputs are learned.
    pub fn set_differentiability<N: AsRef<str>>(
        &mut self,
        flags: impl IntoIterator<Item = (N, bool)>,
        place: &Place,
    ) -> Result<()> {
        let keys: Vec<(N, IOKey)> =
            flags.into_iter().map(|(name, flag)| (name, IOKey::unnamed().trainable(flag))).collect();
        if let Some(c) = self.composite() {
            for (name, _) in &keys {
                if c.edge(c.lookup(name.as_ref()).map_err(|e| e.at(place))?).source.is_some() {
                    let message =
                        format!("`{}` is computed by the model, so that it cannot be learned", name.as_ref());
                    return Err(Error::new(Code::BadArgument, message)
                        .help("state for each input whether it is trained")
                        .at(place));
                }
            }
        }
        self.say(keys, place)
    }
    /// Gives inputs constant values.
    pub fn set_values<N: AsRef<str>>(
        &mut self,
        values: impl IntoIterator<Item = (N, Lit)>,
        place: &Place,
    ) -> Result<()> {
        self.say(values.into_iter().map(|(name, value)| (name, IOKey::unnamed().value(value))), place)
    }
    /// Says several things about connections that exist, all or nothing.
    pub fn say<N: AsRef<str>>(
        &mut self,
        keys: impl IntoIterator<Item = (N, IOKey)>,
        place: &Place,
    ) -> Result<()> {
        self.change(place, |edit| {
            for (name, key) in keys {
                let name = name.as_ref();
                let e = match edit.c.outputs().iter().find(|(n, _)| &**n == name) {
                    Some((_, e)) => *e,
                    None => edit.c.lookup(name)?,
                };
                edit.declare(e, &key)?;
            }
            Ok(())
        })
    }
    /// Gives a connection another name; an output keeps its place.
    pub fn rename(&mut self, old: &str, new: &str, place: &Place) -> Result<()> {
        names::check_path(new, "a connection").map_err(|e| e.at(place))?;
        let new: Arc<str> = new.into();
        let e = self.change(place, |edit| {
            let e = match edit.c.outputs().iter().find(|(n, _)| &**n == old) {
                Some((_, e)) => *e,
                None => edit.c.lookup(old)?,
            };
            if edit.c.find(&new).is_some_and(|other| other != e) {
                return Err(Error::new(Code::BadName, format!("a connection is called {new:?} already"))
                    .help("choose another name, or connect the two by `|=`"));
            }
            if edit.c.find(&new).is_none() {
                edit.name_edge(&new, e)?;
            }
            let slot = edit.c.edge(e).slot;
            edit.solver.rename(slot, new.clone());
            edit.edge_mut(e).label = Label::Name(new.clone());
            Ok(e)
        })?;
        let c = self.composite_mut()?;
        if c.named.get(old) == Some(&e) && old != &*new {
            c.named.remove(old);
        }
        for (name, output) in c.chosen.iter_mut().flatten() {
            if *output == e && &**name == old {
                *name = new.clone();
            }
        }
        Ok(())
    }
    /// The shape of a connection as far as it is known, for reading: `[batch, ?, 64]`, or `...` for an unknown run.
    pub fn shape_text(&self, name: &str) -> Result<String> {
        let e = self.known_edge(name)?;
        let c = self.composite().ok_or_else(|| Error::internal("a leaf has no solver"))?;
        Ok(c.solver.shape(c.edge(e).slot).to_string())
    }
    /// The shape of a connection, if its rank is known; unknown sizes are `None`.
    pub fn shape_of(&self, name: &str) -> Result<Option<Vec<Option<mithril_ir::Dim>>>> {
        let e = self.known_edge(name)?;
        let c = self.composite().ok_or_else(|| Error::internal("a leaf has no solver"))?;
        let shape = c.solver.shape(c.edge(e).slot).to_shape();
        Ok(shape.map(|s| s.iter().map(|d| (!d.has_var()).then(|| d.clone())).collect()))
    }
    /// The dtype of a connection, if known.
    pub fn dtype_of(&self, name: &str) -> Result<Option<DType>> {
        let e = self.known_edge(name)?;
        Ok(self.composite().and_then(|c| c.solver.dtype(c.edge(e).slot)))
    }
    /// What an input is for.
    pub fn role_of(&self, name: &str) -> Result<Role> {
        let port = self.find_port(name).ok_or_else(|| self.no_port(name))?;
        Ok(self.port_role(port))
    }
    fn known_edge(&self, name: &str) -> Result<EdgeId> {
        let c = self.composite().ok_or_else(|| {
            Error::new(Code::BadConnection, format!("{} is a single layer", self.title()))
                .help("add it to a model, and ask the model")
        })?;
        match c.outputs().iter().find(|(n, _)| &**n == name) {
            Some((_, e)) => Ok(*e),
            None => c.lookup(name),
        }
    }
}
