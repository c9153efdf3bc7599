/* Before a function that is not to be inlined: compilers take long for large functions. */
#if defined(__clang__)
#define MITHRIL_ONCE __attribute__((noinline, unused))
#elif defined(__GNUC__)
#define MITHRIL_ONCE __attribute__((noinline, noclone, unused))
#else
#define MITHRIL_ONCE
#endif

/* Before a function with loops of few turns: GCC 12 writes them out, makes vectors of the lines that come of it, and mixes
 * up their elements. */
#if defined(__GNUC__) && !defined(__clang__)
#define MITHRIL_SHORT_LOOPS __attribute__((noinline, noclone, unused, optimize("no-tree-slp-vectorize")))
#else
#define MITHRIL_SHORT_LOOPS MITHRIL_ONCE
#endif

/* Before a helper that is not used on every processor. */
#if defined(__GNUC__)
#define MITHRIL_SPARE __attribute__((unused))
#else
#define MITHRIL_SPARE
#endif
