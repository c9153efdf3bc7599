//! The memory that all choices of sizes of a program may have together: what each needs to be there at all, and what
//! calls in flight need besides.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use mithril_ir::{Code, Error, Result};

use super::function::Needs;

/// What functions have of a limit of memory.
#[derive(Debug, Default)]
pub struct Budget {
    limit: Option<usize>,
    state: Mutex<State>,
    /// Something was given back.
    freed: Condvar,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// Weights that are read where they are given, by name: all functions read the same.
    borrowed: BTreeMap<Arc<str>, usize>,
    /// What functions have for themselves.
    own: usize,
    /// How many functions there are.
    functions: usize,
    /// What calls have besides, where several run at a time.
    further: usize,
}

impl State {
    fn fixed(&self) -> usize {
        self.borrowed.values().fold(self.own, |sum, bytes| sum.saturating_add(*bytes))
    }
}

impl Budget {
    /// So many bytes, or any number.
    pub fn new(limit: Option<usize>) -> Arc<Self> {
        Arc::new(Self { limit, ..Self::default() })
    }
    /// What all functions have.
    pub fn taken(&self) -> usize {
        self.lock().fixed()
    }
    /// Whether there is an end to it.
    pub(super) fn is_limited(&self) -> bool {
        self.limit.is_some()
    }
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Takes what a function needs that reads these weights as they are given; an error if that is too much.
    pub(super) fn reserve(
        self: &Arc<Self>,
        needs: Needs,
        borrowed: &[(Arc<str>, usize)],
    ) -> Result<Reserved> {
        let bytes = needs.total().saturating_sub(needs.borrowed);
        let mut state = self.lock();
        let fresh: Vec<_> = borrowed.iter().filter(|(name, _)| !state.borrowed.contains_key(name)).collect();
        let grows = fresh.iter().fold(bytes, |sum, (_, bytes)| sum.saturating_add(*bytes));
        let there = state.fixed();
        if let Some(limit) = self.limit.filter(|&limit| there.saturating_add(grows) > limit) {
            return Err(too_much(needs, there, grows, state.functions, limit));
        }
        state.borrowed.extend(fresh.into_iter().cloned());
        state.own = state.own.saturating_add(bytes);
        state.functions += 1;
        // What calls have besides comes back when they are over.
        let limit = self.limit.unwrap_or(usize::MAX);
        let is_full = |state: &mut State| state.further > limit.saturating_sub(state.fixed());
        drop(self.freed.wait_while(state, is_full).unwrap_or_else(PoisonError::into_inner));
        Ok(Reserved { budget: self.clone(), bytes })
    }
    /// Waits until `find` finds something, or there is room for so many bytes besides.
    pub(super) fn further<T>(&self, bytes: usize, mut find: impl FnMut() -> Option<T>) -> Option<T> {
        let limit = self.limit.unwrap_or(usize::MAX);
        let mut state = self.lock();
        loop {
            if let Some(instance) = find() {
                return Some(instance);
            }
            let room = limit.saturating_sub(state.fixed()).saturating_sub(state.further);
            if bytes <= room {
                state.further = state.further.saturating_add(bytes);
                return None;
            }
            state = self.freed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
    /// Gives back what a call had: `keep` says whether it keeps its memory for later ones, or so many bytes are free.
    pub(super) fn give_back(&self, bytes: usize, keep: impl FnOnce() -> bool) {
        let mut state = self.lock();
        if !keep() {
            state.further = state.further.saturating_sub(bytes);
        }
        drop(state);
        self.freed.notify_all();
    }
}

fn too_much(needs: Needs, there: usize, grows: usize, functions: usize, limit: usize) -> Error {
    let needed = there.saturating_add(grows);
    let Needs { borrowed, prepared, graphs, work, packing } = needs;
    let error = Error::new(
        Code::OutOfMemory,
        format!("the model needs {needed} bytes, the limit is {limit}"),
    )
    .note(format!(
        "weights have {borrowed}, what is made of them {prepared}, graphs {graphs}, the threads work in {work}; \
             packing takes {packing}"
    ));
    let error = match functions {
        0 => error,
        _ => error.note(format!(
            "{functions} other choice(s) of sizes have {there} bytes already, this one takes {grows} more"
        )),
    };
    error.help(
        "make the batch smaller, use lower-bit weights, raise memory_limit, or call it with fewer distinct sizes",
    )
}

/// What a function has, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Reserved {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Reserved {
    pub fn budget(&self) -> &Budget {
        &self.budget
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut state = self.budget.lock();
        state.own = state.own.saturating_sub(self.bytes);
        state.functions -= 1;
        drop(state);
        self.budget.freed.notify_all();
    }
}
