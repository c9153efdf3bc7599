//! Memory of large outputs that is used again: the system clears and maps pages that are new to a process, which may
//! take as long as a tenth of a call. What the memory is, is left to the caller: an array of its language, for instance.

use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// From this size on, memory is used again.
const LARGE: usize = 1 << 20;

/// What the last output that is gone has left for the next one: at most one.
type Left<M> = Mutex<Option<M>>;

/// The memory of one output from call to call.
///
/// ```
/// use mithril_runtime::recycled::Recycled;
///
/// let recycled = Recycled::<Vec<u8>>::default();
/// let first = recycled.lend(|_| true, || Ok::<_, ()>(vec![1, 2]))?;
/// drop(first);
/// let again = recycled.lend(|memory| memory.len() == 2, || Err(()))?;
/// assert_eq!(*again, [1, 2]);
/// # Ok::<(), ()>(())
/// ```
#[derive(Debug)]
pub struct Recycled<M>(Arc<Left<M>>);

impl<M> Default for Recycled<M> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<M> Recycled<M> {
    /// Memory that was left, if it fits, or new memory; in use until the loan is dropped.
    ///
    /// # Errors
    /// What `allocate` returns.
    pub fn lend<E>(
        &self,
        fits: impl FnOnce(&M) -> bool,
        allocate: impl FnOnce() -> Result<M, E>,
    ) -> Result<Loan<M>, E> {
        let left = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let memory = match left.filter(fits) {
            Some(memory) => memory,
            None => allocate()?,
        };
        Ok(Loan { memory: Some(memory), left: Arc::downgrade(&self.0) })
    }
}

/// Whether an output of so many bytes is worth it.
pub fn is_large(bytes: usize) -> bool {
    bytes >= LARGE
}

/// Memory in use, which is left for the next output when it is dropped.
#[derive(Debug)]
pub struct Loan<M> {
    /// Taken when it is dropped.
    memory: Option<M>,
    left: Weak<Left<M>>,
}

impl<M> Deref for Loan<M> {
    type Target = M;
    fn deref(&self) -> &M {
        self.memory.as_ref().expect("a loan has its memory until it is dropped")
    }
}

impl<M> Drop for Loan<M> {
    fn drop(&mut self) {
        // Without the program there is no next call.
        let Some(left) = self.left.upgrade() else { return };
        let before =
            std::mem::replace(&mut *left.lock().unwrap_or_else(PoisonError::into_inner), self.memory.take());
        drop(before);
    }
}
