/* Yields the processor to another thread, where the system has a call for that. */
#if defined(__unix__) || defined(__APPLE__)
#include <sched.h>
#define MITHRIL_YIELD sched_yield()
#endif

/* A barrier that all threads of a call wait at. */
struct mithril_barrier {
    atomic_int arrived;
    atomic_int round;
};

/* Waits until all threads have arrived. What they wrote before is visible after it. Where a header that the compiler is
   told to include defines MITHRIL_SLEEP(address, value), which sleeps while *address is value, and MITHRIL_WAKE(address), a
   thread that has waited for some microseconds sleeps. */
static MITHRIL_NOINLINE void mithril_wait(struct mithril_barrier *barrier, int threads) {
    if (threads == 1) return;
    int round = atomic_load_explicit(&barrier->round, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&barrier->arrived, 1, memory_order_acq_rel) == threads - 1) {
        atomic_store_explicit(&barrier->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&barrier->round, round + 1, memory_order_release);
#ifdef MITHRIL_WAKE
        MITHRIL_WAKE(&barrier->round);
#endif
        return;
    }
    for (int64_t spins = 0; atomic_load_explicit(&barrier->round, memory_order_acquire) == round; spins++) {
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#endif
#ifdef MITHRIL_SLEEP
        if (spins >= 16384) MITHRIL_SLEEP(&barrier->round, round);
#elif defined MITHRIL_YIELD
        /* The thread that is waited for may need this processor. */
        if (spins % 64 == 63) MITHRIL_YIELD;
#endif
    }
}

/* Records an error of a thread. The smallest code wins, so that the result does not depend on the number of threads. */
static inline void mithril_note_error(atomic_int *error, int code) {
    int known = atomic_load(error);
    while ((known == 0 || code < known) && !atomic_compare_exchange_weak(error, &known, code)) {
    }
}
