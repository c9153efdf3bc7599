/* Before a function that is one for all who call it, and no part of them: compilers take long for large functions. */
#if defined(__clang__)
#define MITHRIL_ONCE __attribute__((noinline, unused))
#elif defined(__GNUC__)
#define MITHRIL_ONCE __attribute__((noinline, noclone, unused))
#else
#define MITHRIL_ONCE
#endif
