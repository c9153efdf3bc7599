/* Lets another thread have the processor, where the system has a call for that. */
#if defined(__unix__) || defined(__APPLE__)
#include <sched.h>
#define MITHRIL_YIELD sched_yield()
#endif

/* Where threads wait for each other. */
struct mithril_barrier {
    atomic_int arrived;
    atomic_int round;
};

/* Waits until all threads are here. Reads of what others wrote before come after it. */
static MITHRIL_ONCE void mithril_wait(struct mithril_barrier *barrier, int threads) {
    if (threads == 1) return;
    int round = atomic_load_explicit(&barrier->round, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&barrier->arrived, 1, memory_order_acq_rel) == threads - 1) {
        atomic_store_explicit(&barrier->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&barrier->round, round + 1, memory_order_release);
        return;
    }
    for (int64_t turns = 0; atomic_load_explicit(&barrier->round, memory_order_acquire) == round; turns++) {
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#endif
#ifdef MITHRIL_YIELD
        /* Whoever is waited for may have no processor. */
        if (turns % 64 == 63) MITHRIL_YIELD;
#endif
    }
}

/* Of what threads fail with, the least counts, so that it is the same for any number of them. */
static inline void mithril_note_error(atomic_int *error, int found) {
    int known = atomic_load(error);
    while ((known == 0 || found < known) && !atomic_compare_exchange_weak(error, &known, found)) {
    }
}
