//! Threads for generated code: workers that wait actively for a moment and then sleep.
//!
//! Generated code asks for all threads at once and meets them at barriers of its own, so that a pool serves one call at
//! a time: a call that finds it busy works on its own thread alone.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use super::affinity;

/// How long a thread waits actively before it sleeps or yields: longer than the gaps inside a model, shorter than
/// what would be noticed.
const SPIN: Duration = Duration::from_micros(50);

/// Stack of a worker, as large as that of a main thread.
const STACK: usize = 8 << 20;

type Work = unsafe extern "C" fn(*mut c_void, c_int);

/// `mithril_pool` of the generated header.
#[repr(C)]
#[derive(Debug)]
pub struct RawPool {
    threads: c_int,
    run: unsafe extern "C" fn(*mut RawPool, Work, *mut c_void),
}

/// Threads that work together.
#[repr(C)]
#[derive(Debug)]
pub struct Pool {
    // First, so that its address is that of the pool.
    raw: RawPool,
    shared: Arc<Shared>,
    sleepers: Vec<Thread>,
    busy: AtomicBool,
    process: u32,
}

#[derive(Debug)]
struct Shared {
    /// Counts the jobs; its change publishes `work` and `context`.
    job: AtomicUsize,
    work: AtomicPtr<()>,
    context: AtomicPtr<c_void>,
    /// The processor of the caller.
    processor: AtomicI32,
    /// Workers that have not finished the job.
    remaining: AtomicUsize,
    /// Per worker: whether it sleeps, or is about to.
    asleep: Vec<AtomicBool>,
}

/// The right to use a pool, given back when dropped.
#[derive(Debug)]
pub struct Lease(&'static Pool);

impl Drop for Lease {
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::Release);
    }
}

impl Lease {
    /// What generated code is given.
    pub fn raw(&self) -> *const RawPool {
        std::ptr::from_ref(self.0).cast()
    }
}

impl Pool {
    /// The pool of that many threads; there is one per process and number. It may have fewer where the system gives
    /// no more.
    pub fn of(threads: usize) -> &'static Pool {
        static POOLS: Mutex<Option<HashMap<(usize, u32), &'static Pool>>> = Mutex::new(None);
        let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
        // The child of a fork has the table of its parent, but none of its threads.
        let key = (threads, std::process::id());
        pools.get_or_insert_default().entry(key).or_insert_with(|| Box::leak(Box::new(Pool::new(threads))))
    }
    fn new(threads: usize) -> Self {
        let workers = threads.max(1) - 1;
        let shared = Arc::new(Shared {
            job: AtomicUsize::new(0),
            work: AtomicPtr::default(),
            context: AtomicPtr::default(),
            processor: AtomicI32::new(-1),
            remaining: AtomicUsize::new(0),
            asleep: (0..workers).map(|_| AtomicBool::new(false)).collect(),
        });
        let mut sleepers = Vec::new();
        for worker in 0..workers {
            let shared = shared.clone();
            let builder = thread::Builder::new().name(format!("mithril-{}", worker + 1)).stack_size(STACK);
            match builder.spawn(move || shared.serve(worker)) {
                Ok(handle) => sleepers.push(handle.thread().clone()),
                Err(_) => break,
            }
        }
        let raw = RawPool { threads: sleepers.len() as c_int + 1, run };
        Self { raw, shared, sleepers, busy: AtomicBool::new(false), process: std::process::id() }
    }
    /// Number of threads, the caller's included.
    pub fn threads(&self) -> usize {
        self.sleepers.len() + 1
    }
    /// The right to use the pool, unless somebody else has it, or its threads were left behind by a fork.
    pub fn lease(&'static self) -> Option<Lease> {
        if self.process != std::process::id() {
            return None;
        }
        let taken = self.busy.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        taken.ok().map(|_| Lease(self))
    }
}

impl Shared {
    /// What a worker does all its life.
    fn serve(&self, worker: usize) {
        let mut done = 0;
        loop {
            done = self.next(worker, done);
            let work = self.work.load(Ordering::Relaxed);
            // SAFETY: `run` stored a function of this type before it counted up `job`, which `next` has seen.
            let work = unsafe { std::mem::transmute::<*mut (), Work>(work) };
            // SAFETY: the caller of `run` gave `work` with this context, to be called once for each thread, and
            // waits until `remaining` says that all have returned.
            unsafe { work(self.context.load(Ordering::Relaxed), worker as c_int + 1) };
            self.remaining.fetch_sub(1, Ordering::Release);
        }
    }
    /// Waits for a job after number `done`.
    fn next(&self, worker: usize, done: usize) -> usize {
        let fresh = Cell::new(done);
        let is_there = |order| {
            fresh.set(self.job.load(order));
            fresh.get() != done
        };
        if !spin(|| is_there(Ordering::Acquire)) {
            // Sleeping is announced before the last look, and a job before the look at who sleeps: one of them sees
            // the other.
            while !is_there(Ordering::SeqCst) {
                self.asleep[worker].store(true, Ordering::SeqCst);
                if !is_there(Ordering::SeqCst) {
                    thread::park();
                }
            }
            self.asleep[worker].store(false, Ordering::Relaxed);
            affinity::leave(self.processor.load(Ordering::Relaxed));
        }
        fresh.get()
    }
}

/// Looks again and again for a moment; whether it came true.
fn spin(is_true: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    loop {
        for _ in 0..64 {
            if is_true() {
                return true;
            }
            std::hint::spin_loop();
        }
        if start.elapsed() > SPIN {
            return false;
        }
    }
}

/// Calls `work(context, thread)` on every thread of a pool and returns when all are done.
///
/// # Safety
/// `pool` is the first field of a [`Pool`] that the caller holds a [`Lease`] of; `work` may be called with `context`
/// on several threads at once.
unsafe extern "C" fn run(pool: *mut RawPool, work: Work, context: *mut c_void) {
    // SAFETY: `raw` is the first field of a `#[repr(C)]` struct, which is never moved nor freed.
    let pool = unsafe { &*pool.cast::<Pool>() };
    let shared = &pool.shared;
    shared.work.store(work as *mut (), Ordering::Relaxed);
    shared.context.store(context, Ordering::Relaxed);
    shared.processor.store(affinity::processor(), Ordering::Relaxed);
    shared.remaining.store(pool.sleepers.len(), Ordering::Relaxed);
    shared.job.fetch_add(1, Ordering::SeqCst);
    for (asleep, thread) in shared.asleep.iter().zip(&pool.sleepers) {
        if asleep.load(Ordering::SeqCst) {
            thread.unpark();
        }
    }
    // SAFETY: by the contract of this function.
    unsafe { work(context, 0) };
    let is_done = || shared.remaining.load(Ordering::Acquire) == 0;
    while !spin(is_done) {
        thread::yield_now();
    }
}
