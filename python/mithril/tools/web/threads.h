/* Threads in WebAssembly: workers that share the memory. Included in front of the code of a model, behind its header. */
#ifndef MITHRIL_WEB_THREADS
#define MITHRIL_WEB_THREADS
#include <stdatomic.h>

/* Whether the code has failed on one of the threads, so that the others need not wait for it. */
extern atomic_int mithril_has_failed;

/* Sleeps while a number has this value, for a while; who waits looks again. Traps once a thread has failed. */
static inline void mithril_sleep(atomic_int *address, int value) {
    enum { NANOSECONDS = 50000000 };
    __builtin_wasm_memory_atomic_wait32((int *)address, value, NANOSECONDS);
    if (atomic_load(&mithril_has_failed)) __builtin_trap();
}

#define MITHRIL_SLEEP(address, value) mithril_sleep(address, value)
#define MITHRIL_WAKE(address) __builtin_wasm_memory_atomic_notify((int *)(address), (unsigned)-1)

#endif
