//! What programs of C and of ggml share: functions that are made for each choice of sizes when it comes, and calls of
//! them with tensors by name.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use mithril_compile::compiled::{Compiled, gradient_of};
use mithril_ir::{Result, Role, Tensor};

use crate::c::Interface;
use crate::interpreter::{Evaluation, Tensors, missing};

/// What was made, by what it is for.
#[derive(Debug)]
pub(crate) struct Made<K, T>(Mutex<BTreeMap<K, Arc<T>>>);

impl<K, T> Default for Made<K, T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Ord, T> Made<K, T> {
    /// What is for a key, made if it is not there. Who needs the same meanwhile waits for it instead of making it twice.
    pub fn find(&self, key: K, make: impl FnOnce() -> Result<T>) -> Result<Arc<T>> {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(program) = entries.get(&key) {
            return Ok(program.clone());
        }
        let program = Arc::new(make()?);
        entries.insert(key, program.clone());
        Ok(program)
    }
}

/// Tensors by name: of inputs, from the first map to the last, and cotangents.
#[derive(Clone, Copy)]
pub(crate) struct Named<'a> {
    pub inputs: &'a [&'a Tensors],
    pub cotangents: &'a Tensors,
}

impl<'a> Named<'a> {
    fn find(self, name: &str) -> Result<&'a Arc<Tensor>> {
        self.inputs.iter().find_map(|map| map.get(name)).ok_or_else(|| missing(name, self.inputs))
    }
    /// Names of the inputs of a model with their sizes.
    pub fn shapes(self, compiled: &Compiled) -> Result<Vec<(&str, Vec<usize>)>> {
        compiled.inputs.iter().map(|i| Ok((&*i.name, self.find(&i.name)?.shape().to_vec()))).collect()
    }
    /// Runs a function on them.
    pub fn evaluate(
        self,
        interface: &Interface,
        run: impl FnOnce(&[Arc<Tensor>]) -> Result<Vec<Tensor>>,
    ) -> Result<Evaluation> {
        let mut tensors = Vec::with_capacity(interface.inputs.len());
        for (buffer, role) in interface.inputs.iter().zip(&interface.roles) {
            let cotangent = || missing(&buffer.name, &[self.cotangents]);
            let tensor = match role {
                Role::Cotangent => self.cotangents.get(&buffer.name).ok_or_else(cotangent)?,
                _ => self.find(&buffer.name)?,
            };
            tensors.push(tensor.clone());
        }
        let mut results = run(&tensors)?.into_iter().map(Arc::new);
        let mut evaluation = Evaluation::default();
        for (buffer, t) in interface.results().iter().zip(results.by_ref()) {
            match gradient_of(&buffer.name) {
                Some(input) => evaluation.gradients.insert(input.into(), t),
                None => evaluation.outputs.insert(buffer.name.clone(), t),
            };
        }
        let updates = interface.outputs[interface.results().len()..].iter();
        evaluation.state.extend(updates.map(|b| b.name.clone()).zip(results));
        Ok(evaluation)
    }
}
