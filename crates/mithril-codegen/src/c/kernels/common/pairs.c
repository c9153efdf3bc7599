/* Pairs of bfloat16 in words of 32 bits: two steps of k of one row or column. MITHRIL_ADD_bf16(sum, x, y) is sum + the
   products of both. The instructions for that flush subnormal numbers to 0, and each rounds in its own way. */
typedef uint32_t mithril_word __attribute__((may_alias)); /* of two elements in memory */
typedef mithril_u32 mithril_bf16;
typedef mithril_u32_memory mithril_bf16_memory;
#if MITHRIL_VECTOR > 1
#define MITHRIL_BROADCAST_bf16(x) ((x) | (mithril_u32){0})
#else
#define MITHRIL_BROADCAST_bf16(x) (x)
#endif
#if MITHRIL_VECTOR == 16 && defined(__AVX512BF16__)
#include <immintrin.h>
#define MITHRIL_ADD_bf16(sum, x, y) ((mithril_f32)_mm512_dpbf16_ps((__m512)(sum), (__m512bh)(x), (__m512bh)(y)))
#elif MITHRIL_VECTOR == 8 && defined(__AVX512BF16__) && defined(__AVX512VL__)
#include <immintrin.h>
#define MITHRIL_ADD_bf16(sum, x, y) ((mithril_f32)_mm256_dpbf16_ps((__m256)(sum), (__m256bh)(x), (__m256bh)(y)))
#elif MITHRIL_VECTOR == 4 && defined(__AVX512BF16__) && defined(__AVX512VL__)
#include <immintrin.h>
#define MITHRIL_ADD_bf16(sum, x, y) ((mithril_f32)_mm_dpbf16_ps((__m128)(sum), (__m128bh)(x), (__m128bh)(y)))
#elif MITHRIL_VECTOR == 4 && defined(__aarch64__) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#include <arm_neon.h>
#define MITHRIL_ADD_bf16(sum, x, y) ((mithril_f32)vbfdotq_f32((float32x4_t)(sum), (bfloat16x8_t)(x), (bfloat16x8_t)(y)))
#else
/* A bfloat16 is the upper half of a float. */
MITHRIL_INLINE mithril_f32 mithril_add_pairs(mithril_f32 sum, mithril_u32 x, mithril_u32 y) {
    sum += mithril_float_of(x << 16) * mithril_float_of(y << 16);
    return sum + mithril_float_of(x & 0xffff0000u) * mithril_float_of(y & 0xffff0000u);
}
#define MITHRIL_ADD_bf16(sum, x, y) mithril_add_pairs(sum, x, y)
#endif
/* The word of two elements. Any order of the halves is correct as long as it is the same for both factors; that of memory
   allows copying contiguous elements. */
MITHRIL_INLINE uint32_t mithril_pair(uint16_t first, uint16_t second) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    return (uint32_t)first << 16 | second;
#else
    return (uint32_t)second << 16 | first;
#endif
}
