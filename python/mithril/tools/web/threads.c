/* The thread pool of a model in WebAssembly. Its threads are workers, each with an instance of the same code and a stack of
   its own; thread.mjs calls mithril_thread in each of them, program.mjs the other functions. */

/* How often a thread looks before it sleeps: some microseconds. */
enum { MITHRIL_SPINS = 16384 };

static struct {
    mithril_pool pool; /* first: its address is that of the pool */
    void (*work)(void *context, int thread);
    void *context;
    atomic_int job;       /* how many calls there were */
    atomic_int remaining; /* threads that still work on the last one */
} mithril_workers;

atomic_int mithril_has_failed;
static char mithril_failure_text[256];

static void mithril_run_all(mithril_pool *pool, void (*work)(void *context, int thread), void *context) {
    mithril_workers.work = work;
    mithril_workers.context = context;
    atomic_store(&mithril_workers.remaining, pool->threads - 1);
    atomic_fetch_add(&mithril_workers.job, 1);
    MITHRIL_WAKE(&mithril_workers.job);
    work(context, 0);
    int remaining;
    for (long spins = 0; (remaining = atomic_load(&mithril_workers.remaining)) > 0; spins++)
        if (spins >= MITHRIL_SPINS) mithril_sleep(&mithril_workers.remaining, remaining);
}

/* The pool, for so many threads, that of the caller included. */
mithril_pool *mithril_threads(int count) {
    mithril_workers.pool.threads = count;
    mithril_workers.pool.run = mithril_run_all;
    return &mithril_workers.pool;
}

/* What a worker does until it is terminated. Its numbers are from 1 on. */
void mithril_thread(int thread) {
    for (int done = 0;; done++) {
        for (long spins = 0; atomic_load(&mithril_workers.job) == done; spins++)
            if (spins >= MITHRIL_SPINS)
                __builtin_wasm_memory_atomic_wait32((int *)&mithril_workers.job, done, -1);
        mithril_workers.work(mithril_workers.context, thread);
        if (atomic_fetch_sub(&mithril_workers.remaining, 1) == 1) MITHRIL_WAKE(&mithril_workers.remaining);
    }
}

/* The buffer for the error message of a thread, of at most 255 bytes; mithril_fail then notifies the other threads. */
char *mithril_failure(void) { return mithril_failure_text; }
void mithril_fail(void) { atomic_store(&mithril_has_failed, 1); }
