/* For functions that are not to be inlined: large functions take long to compile. */
#if defined(__clang__)
#define MITHRIL_NOINLINE __attribute__((noinline, unused))
#elif defined(__GNUC__)
#define MITHRIL_NOINLINE __attribute__((noinline, noclone, unused))
#else
#define MITHRIL_NOINLINE
#endif

/* For functions with loops of few iterations: GCC 12 unrolls them, vectorizes the resulting statements (SLP), and mixes up
 * their elements. */
#if defined(__GNUC__) && !defined(__clang__)
#define MITHRIL_SHORT_LOOPS __attribute__((noinline, noclone, unused, optimize("no-tree-slp-vectorize")))
#else
#define MITHRIL_SHORT_LOOPS MITHRIL_NOINLINE
#endif

/* For functions that only call others, thousands of times: optimizing them takes minutes and gains nothing. */
#if defined(__clang__)
#define MITHRIL_ONLY_CALLS __attribute__((noinline, optnone))
#elif defined(__GNUC__)
#define MITHRIL_ONLY_CALLS __attribute__((noinline, optimize("O0")))
#else
#define MITHRIL_ONLY_CALLS
#endif

/* A zero that GCC cannot see through. GCC 12 replaces a masked load with a constant mask by a load of the whole vector, which may
 * read outside of the tensor and fault. */
#if defined(__GNUC__) && !defined(__clang__) && defined(__AVX512F__)
static inline int64_t mithril_zero(void) {
    int64_t zero = 0;
    __asm__("" : "+r"(zero));
    return zero;
}
#define MITHRIL_ZERO mithril_zero()
#else
#define MITHRIL_ZERO 0
#endif

/* For helpers that are not used on every processor. */
#if defined(__GNUC__)
#define MITHRIL_UNUSED __attribute__((unused))
#else
#define MITHRIL_UNUSED
#endif
