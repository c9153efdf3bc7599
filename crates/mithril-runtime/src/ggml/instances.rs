//! What calls in flight have for themselves: graphs of ggml, and the memory in which they compute. A limit of memory
//! counts all of it: a call for which there is no room waits until another one is over.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use mithril_ggml::Graph;
use mithril_ir::Result;

use crate::c::memory::Memory;

/// So many instances are kept for later calls; with more calls at a time, the others are made anew.
const KEPT: usize = 4;

/// What one call has.
#[derive(Debug)]
pub(super) struct Instance {
    pub graphs: Vec<Graph>,
    pub memory: Memory,
}

/// The instances of a function.
#[derive(Debug)]
pub(super) struct Instances {
    /// How many there may be at a time.
    most: usize,
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    free: Vec<Instance>,
    /// How many there are, those of calls in flight too.
    count: usize,
}

impl Instances {
    /// At most so many at a time, the first of which is there.
    pub fn new(first: Instance, most: usize) -> Self {
        let state = Mutex::new(State { free: vec![first], count: 1 });
        Self { most: most.max(1), state, freed: Condvar::new() }
    }
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Works with an instance that no other call has; `make` makes one if there are too few.
    pub fn with<T>(
        &self,
        make: impl FnOnce() -> Result<Instance>,
        work: impl FnOnce(&mut Instance) -> T,
    ) -> Result<T> {
        let is_busy = |state: &mut State| state.free.is_empty() && state.count >= self.most;
        let mut state = self.freed.wait_while(self.lock(), is_busy).unwrap_or_else(PoisonError::into_inner);
        let found = state.free.pop();
        state.count += usize::from(found.is_none());
        drop(state);
        // Its place is free again whatever happens.
        let mut taken = Taken { all: self, instance: found };
        let instance = match &mut taken.instance {
            Some(instance) => instance,
            none => none.insert(make()?),
        };
        Ok(work(instance))
    }
}

/// The place of an instance, given back when dropped.
struct Taken<'a> {
    all: &'a Instances,
    instance: Option<Instance>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut state = self.all.lock();
        match self.instance.take() {
            Some(instance) if state.free.len() < KEPT => state.free.push(instance),
            _ => state.count -= 1,
        }
        drop(state);
        self.all.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use mithril_ir::Error;

    use super::*;

    fn instance() -> Result<Instance> {
        Ok(Instance { graphs: Vec::new(), memory: Memory::new(64)? })
    }

    #[test]
    fn calls_wait_where_there_is_no_room() {
        for most in [1, 2, 7] {
            let all = Instances::new(instance().unwrap(), most);
            let (now, largest) = (AtomicUsize::new(0), AtomicUsize::new(0));
            std::thread::scope(|scope| {
                for _ in 0..6 {
                    scope.spawn(|| {
                        let work = |_: &mut Instance| {
                            largest.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                            std::thread::sleep(std::time::Duration::from_millis(20));
                            now.fetch_sub(1, Ordering::SeqCst);
                        };
                        all.with(instance, work).unwrap();
                    });
                }
            });
            assert!((1..=most).contains(&largest.into_inner()), "{most}");
            assert!(all.lock().count <= most.min(KEPT));
        }
    }

    /// Neither an error nor a panic keeps the place of an instance.
    #[test]
    fn places_are_given_back() {
        let all = Instances::new(instance().unwrap(), 2);
        let nested = all.with(instance, |_| {
            all.with(|| Err(Error::internal("no memory")), |_| ()).unwrap_err();
            all.with(instance, |_| ()).unwrap();
        });
        nested.unwrap();
        let panics = || all.with::<()>(instance, |_| panic!("of this test"));
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics));
        assert!(failed.is_err());
        all.with(instance, |_| all.with(instance, |_| ()).unwrap()).unwrap();
    }
}
