/* Vectors of the processor, as vector extensions of GCC and Clang. A vector in memory need not be aligned, hence the
   two types: mithril_f32 is a value, mithril_f32_memory is one in memory. With one lane all of it is plain C. */
#ifdef MITHRIL_VECTOR
#error "the kernels below are shaped for one width: generate the file for another"
#endif
#if defined(__clang__)
#if __has_warning("-Wpsabi")
#pragma clang diagnostic ignored "-Wpsabi" /* functions that take vectors are inline, so that their ABI does not matter */
#endif
#elif defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wpsabi"
#endif
#define MITHRIL_VECTOR @lanes@ /* lanes of a vector of float */
#if MITHRIL_VECTOR > 1
typedef float mithril_f32 __attribute__((vector_size(4 * MITHRIL_VECTOR), may_alias));
typedef float mithril_f32_memory __attribute__((vector_size(4 * MITHRIL_VECTOR), aligned(4), may_alias));
#define MITHRIL_BROADCAST_f32(x) ((x) - (mithril_f32){0})
#else
typedef float mithril_f32, mithril_f32_memory;
#define MITHRIL_BROADCAST_f32(x) (x)
#endif
#if MITHRIL_VECTOR > 2
typedef double mithril_f64 __attribute__((vector_size(4 * MITHRIL_VECTOR), may_alias));
typedef double mithril_f64_memory __attribute__((vector_size(4 * MITHRIL_VECTOR), aligned(8), may_alias));
#define MITHRIL_BROADCAST_f64(x) ((x) - (mithril_f64){0})
#else
typedef double mithril_f64, mithril_f64_memory;
#define MITHRIL_BROADCAST_f64(x) (x)
#endif
/* multiply and add */
#define MITHRIL_ADD_f32(sum, x, y) ((sum) + (x) * (y))
#define MITHRIL_ADD_f64(sum, x, y) ((sum) + (x) * (y))
#define MITHRIL_LOAD(type, p) ((mithril_##type)*(const mithril_##type##_memory *)(p))
#define MITHRIL_STORE(type, p, v) (*(mithril_##type##_memory *)(p) = (v))
#define MITHRIL_INLINE static inline __attribute__((always_inline, unused))
#define MITHRIL_PRAGMA(text) _Pragma(#text)
/* MITHRIL_UNROLL(n) fully unrolls a loop whose trip count is a constant of at most n, so that sums stay in registers; Clang
   would leave them in memory if the number were given. MITHRIL_UNROLL_BY(n) unrolls n iterations; with 1 the loop
   is kept. */
#ifdef __clang__
#define MITHRIL_UNROLL(n) MITHRIL_PRAGMA(clang loop unroll(full))
#define MITHRIL_UNROLL_BY(n) MITHRIL_PRAGMA(unroll n)
#else
#define MITHRIL_UNROLL(n) MITHRIL_PRAGMA(GCC unroll n)
#define MITHRIL_UNROLL_BY(n) MITHRIL_PRAGMA(GCC unroll n)
#endif
/* For short loops whose iterations are independent: Clang would write them out for WebAssembly, and make vectors of the
   simplest statements only. */
#if defined(__clang__) && defined(__wasm_simd128__)
#pragma clang diagnostic ignored "-Wpass-failed" /* what cannot be vectorized stays as it is */
#define MITHRIL_VECTORIZE MITHRIL_PRAGMA(clang loop vectorize(enable) interleave(disable))
#else
#define MITHRIL_VECTORIZE
#endif
/* MITHRIL_KEEP(v) keeps a vector that was read in its register for all its uses: GCC would read it again for each. */
#if defined(__GNUC__) && !defined(__clang__) && MITHRIL_VECTOR > 2 && (MITHRIL_VECTOR <= 4 || defined(__AVX512F__) || (MITHRIL_VECTOR <= 8 && defined(__AVX__)))
#if defined(__x86_64__)
#define MITHRIL_KEEP(v) __asm__("" : "+v"(v))
#elif defined(__aarch64__)
#define MITHRIL_KEEP(v) __asm__("" : "+w"(v))
#endif
#endif
#ifndef MITHRIL_KEEP
#define MITHRIL_KEEP(v) (void)(v)
#endif
#define MITHRIL_SHUFFLE(left, right, ...) __builtin_shufflevector(left, right, __VA_ARGS__)
#define MITHRIL_PREFETCH_L2(p) __builtin_prefetch((p), 0, 2) /* into the L2 cache */
#define MITHRIL_PREFETCH_L1(p) __builtin_prefetch((p), 0, 3) /* into the L1 cache */
#define MITHRIL_PREFETCH_WRITE(p) __builtin_prefetch((p), 1, 2) /* into the L2 cache, to be written */
