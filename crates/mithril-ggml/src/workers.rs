//! Threads of ggml, which stay for later calls.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use crate::ffi::{self, ggml_threadpool};

/// How long threads wait actively after a graph, in ggml's unit of 131072 looks: longer than the gaps inside a model.
const POLL: u32 = 1;

/// Threads that compute one graph at a time.
#[derive(Debug)]
pub struct Workers {
    pool: *mut ggml_threadpool,
    threads: usize,
    busy: AtomicBool,
    process: u32,
}

// SAFETY: ggml's pool may be given work by any thread, one at a time, which `busy` takes care of.
unsafe impl Send for Workers {}
// SAFETY: as above.
unsafe impl Sync for Workers {}

/// The right to use workers, given back when dropped.
#[derive(Debug)]
pub struct Lease(&'static Workers);

impl Drop for Lease {
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::Release);
    }
}

impl Lease {
    /// How many threads there are, the caller's included.
    pub fn threads(&self) -> usize {
        self.0.threads
    }
    pub(crate) fn raw(&self) -> *mut ggml_threadpool {
        self.0.pool
    }
}

impl Workers {
    /// So many threads, the caller's included; there are one such set per process and number. It has fewer where the
    /// system gives no more.
    pub fn of(threads: usize) -> &'static Self {
        static ALL: Mutex<Option<HashMap<(usize, u32), &'static Workers>>> = Mutex::new(None);
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        // The child of a fork has the table of its parent, but none of its threads.
        let key = (threads, std::process::id());
        all.get_or_insert_default().entry(key).or_insert_with(|| Box::leak(Box::new(Self::new(threads))))
    }
    fn new(threads: usize) -> Self {
        let threads = obtainable(threads.clamp(1, ffi::MAX_THREADS));
        // SAFETY: parameters as ggml makes them; that as many threads can be started was tried, since ggml ends the
        // process where they cannot.
        let pool = unsafe {
            let mut params = ffi::ggml_threadpool_params_default(threads as i32);
            params.poll = POLL;
            ffi::ggml_threadpool_new(&raw mut params)
        };
        Self { pool, threads, busy: AtomicBool::new(false), process: std::process::id() }
    }
    /// How many threads there are, the caller's included.
    pub fn threads(&self) -> usize {
        self.threads
    }
    /// The right to use them, unless somebody else has it, or they were left behind by a fork.
    pub fn lease(&'static self) -> Option<Lease> {
        if self.process != std::process::id() {
            return None;
        }
        let taken = self.busy.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        taken.ok().map(|_| Lease(self))
    }
}

/// How many of so many threads the system gives at the same time.
fn obtainable(threads: usize) -> usize {
    let released = AtomicBool::new(false);
    thread::scope(|scope| {
        let mut started = Vec::new();
        for _ in 1..threads {
            let waits = || {
                while !released.load(Ordering::Acquire) {
                    thread::park_timeout(std::time::Duration::from_millis(10));
                }
            };
            match thread::Builder::new().stack_size(64 << 10).spawn_scoped(scope, waits) {
                Ok(handle) => started.push(handle.thread().clone()),
                Err(_) => break,
            }
        }
        released.store(true, Ordering::Release);
        started.iter().for_each(thread::Thread::unpark);
        started.len() + 1
    })
}
