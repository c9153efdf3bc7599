/* sum + the products of the four bytes of each word, numbers being unsigned and weights signed, without any rounding or
   saturation. Where the processor only multiplies signed bytes, MITHRIL_DOT_OFFSET is subtracted from the numbers. */
#if MITHRIL_VECTOR == 16 && defined(__AVX512VNNI__)
#include <immintrin.h>
#define MITHRIL_DOT_OFFSET 0
#define MITHRIL_DOT(sum, numbers, weights) \
    ((mithril_i32)_mm512_dpbusd_epi32((__m512i)(sum), (__m512i)(numbers), (__m512i)(weights)))
#elif MITHRIL_VECTOR == 8 && defined(__AVX512VNNI__) && defined(__AVX512VL__)
#include <immintrin.h>
#define MITHRIL_DOT_OFFSET 0
#define MITHRIL_DOT(sum, numbers, weights) \
    ((mithril_i32)_mm256_dpbusd_epi32((__m256i)(sum), (__m256i)(numbers), (__m256i)(weights)))
#elif MITHRIL_VECTOR == 8 && defined(__AVXVNNI__)
#include <immintrin.h>
#define MITHRIL_DOT_OFFSET 0
#define MITHRIL_DOT(sum, numbers, weights) \
    ((mithril_i32)_mm256_dpbusd_avx_epi32((__m256i)(sum), (__m256i)(numbers), (__m256i)(weights)))
#elif MITHRIL_VECTOR == 4 && defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#define MITHRIL_DOT_OFFSET 128
#define MITHRIL_DOT(sum, numbers, weights) \
    ((mithril_i32)vdotq_s32((int32x4_t)(sum), (int8x16_t)(numbers), (int8x16_t)(weights)))
#elif MITHRIL_VECTOR == 4 && defined(__aarch64__)
#include <arm_neon.h>
#define MITHRIL_DOT_OFFSET 128
MITHRIL_INLINE mithril_i32 mithril_dot(mithril_i32 sum, mithril_u32 numbers, mithril_u32 weights) {
    const int8x16_t a = (int8x16_t)numbers, b = (int8x16_t)weights;
    const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)));
    const int32x4_t high = vpaddlq_s16(vmull_s8(vget_high_s8(a), vget_high_s8(b)));
    return sum + (mithril_i32)vpaddq_s32(low, high);
}
#define MITHRIL_DOT(sum, numbers, weights) mithril_dot(sum, numbers, weights)
#elif (MITHRIL_VECTOR == 16 && defined(__AVX512BW__)) || (MITHRIL_VECTOR == 8 && defined(__AVX2__)) || (MITHRIL_VECTOR == 4 && defined(__SSE2__))
/* Products of bytes in pairs would not fit into 16 bits: even and odd bytes are promoted to 16 bits first. */
#include <immintrin.h>
#if MITHRIL_VECTOR == 16
#define MITHRIL_MADD(a, b) ((mithril_i32)_mm512_madd_epi16((__m512i)(a), (__m512i)(b)))
#elif MITHRIL_VECTOR == 8
#define MITHRIL_MADD(a, b) ((mithril_i32)_mm256_madd_epi16((__m256i)(a), (__m256i)(b)))
#else
#define MITHRIL_MADD(a, b) ((mithril_i32)_mm_madd_epi16((__m128i)(a), (__m128i)(b)))
#endif
typedef int16_t mithril_i16 __attribute__((vector_size(4 * MITHRIL_VECTOR), may_alias));
typedef uint16_t mithril_u16 __attribute__((vector_size(4 * MITHRIL_VECTOR), may_alias));
#define MITHRIL_DOT_OFFSET 0
MITHRIL_INLINE mithril_i32 mithril_dot(mithril_i32 sum, mithril_u32 numbers, mithril_u32 weights) {
    const mithril_i16 even = (mithril_i16)((mithril_u16)weights << 8) >> 8, odd = (mithril_i16)weights >> 8;
    sum += MITHRIL_MADD((mithril_u16)numbers & 255, even);
    return sum + MITHRIL_MADD((mithril_u16)numbers >> 8, odd);
}
#define MITHRIL_DOT(sum, numbers, weights) mithril_dot(sum, numbers, weights)
#else
#define MITHRIL_DOT_OFFSET 0
MITHRIL_INLINE mithril_i32 mithril_dot(mithril_i32 sum, mithril_u32 numbers, mithril_u32 weights) {
    for (int at = 0; at < 32; at += 8)
        sum += (mithril_i32)(numbers >> at & 255) * ((mithril_i32)(weights << (24 - at)) >> 24);
    return sum;
}
#define MITHRIL_DOT(sum, numbers, weights) mithril_dot(sum, numbers, weights)
#endif
/* The same by the name that micro-kernels of words have for it. */
#define MITHRIL_ADD_u32(sum, numbers, weights) MITHRIL_DOT(sum, numbers, weights)
#if MITHRIL_VECTOR > 1
#define MITHRIL_BROADCAST_u32(x) ((x) | (mithril_u32){0})
#else
#define MITHRIL_BROADCAST_u32(x) (x)
#endif
