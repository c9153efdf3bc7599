//! What calls in flight have for themselves: graphs of ggml, and the memory in which they compute. A limit of memory
//! counts all of it: a call for which there is no room waits until another one is over.

use std::sync::{Mutex, MutexGuard, PoisonError};

use mithril_ggml::Graph;
use mithril_ir::Result;

use super::budget::Reserved;
use crate::c::memory::Memory;

/// So many instances are kept for later calls; with more calls at a time, the others are made anew.
const KEPT: usize = 4;

/// What one call has.
#[derive(Debug)]
pub(super) struct Instance {
    /// Per step, if it is a segment.
    pub graphs: Vec<Option<Graph>>,
    pub memory: Memory,
}

/// The instances of a function, of which there is always one.
#[derive(Debug)]
pub(super) struct Instances {
    /// What each takes.
    bytes: usize,
    reserved: Reserved,
    free: Mutex<Vec<Instance>>,
}

impl Instances {
    /// The first of so many bytes was reserved with the function.
    pub fn new(first: Instance, bytes: usize, reserved: Reserved) -> Self {
        Self { bytes, reserved, free: Mutex::new(vec![first]) }
    }
    fn free(&self) -> MutexGuard<'_, Vec<Instance>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Works with an instance that no other call has; `make` makes one if there are too few, and room for it.
    pub fn with<T>(
        &self,
        make: impl FnOnce() -> Result<Instance>,
        work: impl FnOnce(&mut Instance) -> T,
    ) -> Result<T> {
        let free = self.reserved.budget().further(self.bytes, || self.free().pop());
        // Its place is free again whatever happens.
        let mut taken = Taken { all: self, instance: free };
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
        let Instances { bytes, reserved, .. } = self.all;
        let budget = reserved.budget();
        // Another function may need what is not kept.
        let kept = if budget.is_limited() { 1 } else { KEPT };
        budget.give_back(*bytes, || {
            let mut free = self.all.free();
            let instance = self.instance.take().filter(|_| free.len() < kept);
            let is_kept = instance.is_some();
            free.extend(instance);
            is_kept
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use mithril_ir::Error;

    use super::super::budget::Budget;
    use super::super::function::Needs;
    use super::*;

    fn instance() -> Result<Instance> {
        Ok(Instance { graphs: Vec::new(), memory: Memory::new(64)? })
    }

    /// Instances of one byte each, of which there is room for so many.
    fn instances(most: usize) -> Instances {
        let needs = Needs { work: 1, ..Needs::default() };
        let reserved = Budget::new(Some(most)).reserve(needs, &[]).unwrap();
        Instances::new(instance().unwrap(), 1, reserved)
    }

    #[test]
    fn calls_wait_where_there_is_no_room() {
        for most in [1, 2, 7] {
            let all = instances(most);
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
            assert_eq!(all.free().len(), 1);
        }
    }

    /// Neither an error nor a panic keeps the place of an instance.
    #[test]
    fn places_are_given_back() {
        let all = instances(2);
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
