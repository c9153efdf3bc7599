/* Before a function that is not to be inlined: compilers take long for large functions. */
#if defined(__clang__)
#define MITHRIL_ONCE __attribute__((noinline, unused))
#elif defined(__GNUC__)
#define MITHRIL_ONCE __attribute__((noinline, noclone, unused))
#else
#define MITHRIL_ONCE
#endif
