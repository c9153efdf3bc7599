//! Ops of ours inside of graphs of ggml: functions of whole tensors, or of parts that threads share.

use std::ffi::{c_int, c_void};
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use mithril_codegen::ggml::Element;
use mithril_ir::{Error, Result};

use crate::ffi::{self, ggml_tensor};

/// The elements of a tensor that is read.
#[derive(Clone, Copy, Debug)]
pub enum Elements<'a> {
    /// Floats of 32 bits.
    Floats(&'a [f32]),
    /// Anything else.
    Bytes(&'a [u8]),
}

/// Elements that are written.
#[derive(Debug)]
pub enum ElementsMut<'a> {
    /// Floats of 32 bits.
    Floats(&'a mut [f32]),
    /// Anything else.
    Bytes(&'a mut [u8]),
}

/// An op of ours. What it returns as an error, or panics with, is the error of the computation; its result is zeros then.
pub trait Custom: Debug + Send + Sync {
    /// Threads share the elements of its result in parts of so many, each computed on its own; `None`: one does all.
    fn shared(&self) -> Option<usize> {
        None
    }
    /// Computes the elements of the result from number `first` on; there may be none.
    fn run(&self, operands: &[Elements<'_>], first: usize, out: &mut ElementsMut<'_>) -> Result<()>;
}

/// The first error of the custom ops of a graph.
#[derive(Clone, Debug, Default)]
pub(crate) struct Failure(Arc<Kept>);

#[derive(Debug, Default)]
struct Kept {
    error: Mutex<Option<Error>>,
    is_there: AtomicBool,
}

impl Failure {
    /// Takes it out.
    pub fn take(&self) -> Option<Error> {
        self.0.is_there.store(false, Ordering::Relaxed);
        self.0.error.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
    fn keep(&self, error: Error) {
        self.0.error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.0.is_there.store(true, Ordering::Relaxed);
    }
}

/// What ggml asks after each node: whether to go no further.
///
/// # Safety
/// It is given the [`Failure`] of a graph that lives.
pub(crate) unsafe extern "C" fn has_failed(failure: *mut c_void) -> bool {
    // SAFETY: as said.
    unsafe { &*failure.cast::<Failure>() }.0.is_there.load(Ordering::Relaxed)
}

/// A custom op with where it puts its error.
#[derive(Debug)]
pub(crate) struct Work {
    op: Box<dyn Custom>,
    failure: Failure,
}

impl Work {
    pub fn new(op: Box<dyn Custom>, failure: Failure) -> Self {
        Self { op, failure }
    }
    pub fn is_shared(&self) -> bool {
        self.op.shared().is_some()
    }
}

/// Custom ops of a graph. Its tensors point to them, so that they stay where they are.
pub(crate) type Works = Vec<Box<Work>>;

/// What ggml calls: by each thread of those that share the work.
///
/// # Safety
/// ggml calls it for a tensor that [`crate::Context::custom`] made, whose operands are computed, with the [`Work`] that
/// was given.
pub(crate) unsafe extern "C" fn call(
    out: *mut ggml_tensor,
    thread: c_int,
    threads: c_int,
    work: *mut c_void,
) {
    // SAFETY: as said; nobody writes the work.
    let work = unsafe { &*work.cast::<Work>() };
    let shared = work.op.shared();
    let threads = if shared.is_some() { threads as usize } else { 1 };
    if thread as usize >= threads {
        return;
    }
    // SAFETY: the result is a tensor without gaps, in memory that nothing else uses now: layout gives custom ops places
    // of their own. Operands have no gaps either, and are only read.
    unsafe {
        let count = (*out).ne.iter().product::<i64>() as usize;
        let part = count.div_ceil(threads).next_multiple_of(shared.unwrap_or(1).max(1));
        let first = (part * thread as usize).min(count);
        let length = part.min(count - first);
        let mut result = if (*out).kind == Element::F32.code() {
            ElementsMut::Floats(slice::from_raw_parts_mut((*out).data.cast::<f32>().add(first), length))
        } else {
            let size = ffi::ggml_nbytes(out) / count;
            let start = (*out).data.cast::<u8>().add(first * size);
            ElementsMut::Bytes(slice::from_raw_parts_mut(start, length * size))
        };
        let operands = (*out).src.iter().take_while(|s| !s.is_null()).map(|&s| {
            let bytes = ffi::ggml_nbytes(s);
            if (*s).kind == Element::F32.code() {
                Elements::Floats(slice::from_raw_parts((*s).data.cast(), bytes / 4))
            } else {
                Elements::Bytes(slice::from_raw_parts((*s).data.cast(), bytes))
            }
        });
        let operands: Vec<_> = operands.collect();
        work.run(&operands, first, &mut result);
    }
}

impl Work {
    /// No panic may reach ggml.
    fn run(&self, operands: &[Elements<'_>], first: usize, out: &mut ElementsMut<'_>) {
        let caught = catch_unwind(AssertUnwindSafe(|| self.op.run(operands, first, out)));
        let result = caught.unwrap_or_else(|_| Err(Error::internal(format!("{:?} panicked", self.op))));
        if let Err(error) = result {
            match out {
                ElementsMut::Floats(out) => out.fill(0.0),
                ElementsMut::Bytes(out) => out.fill(0),
            }
            self.failure.keep(error);
        }
    }
}
