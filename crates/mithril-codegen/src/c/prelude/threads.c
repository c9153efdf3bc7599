/* Where threads wait for each other. */
struct mithril_barrier {
  atomic_int arrived;
  atomic_int round;
};

/* Waits until all threads are here. Reads of what others wrote before come after it. */
static inline void mithril_wait(struct mithril_barrier *barrier, int threads) {
  if (threads == 1) return;
  int round = atomic_load_explicit(&barrier->round, memory_order_relaxed);
  if (atomic_fetch_add_explicit(&barrier->arrived, 1, memory_order_acq_rel) == threads - 1) {
    atomic_store_explicit(&barrier->arrived, 0, memory_order_relaxed);
    atomic_store_explicit(&barrier->round, round + 1, memory_order_release);
    return;
  }
  while (atomic_load_explicit(&barrier->round, memory_order_acquire) == round) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
  }
}
