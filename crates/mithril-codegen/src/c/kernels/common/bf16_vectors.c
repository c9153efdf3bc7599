
/* Vectors of bfloat16 in memory, as vectors of float: a bfloat16 is the upper half of one. */
typedef uint16_t mithril_bf16_lanes __attribute__((vector_size(2 * MITHRIL_VECTOR)));
typedef uint16_t mithril_bf16_lanes_memory __attribute__((vector_size(2 * MITHRIL_VECTOR), aligned(2), may_alias));
typedef uint32_t mithril_bits __attribute__((vector_size(4 * MITHRIL_VECTOR), may_alias));
MITHRIL_INLINE mithril_f32 mithril_from_bf16_lanes(mithril_bf16_lanes x) {
    return (mithril_f32)(__builtin_convertvector(x, mithril_bits) << 16);
}
#define MITHRIL_LOAD_BF16(p) mithril_from_bf16_lanes(*(const mithril_bf16_lanes_memory *)(p))
/* Rounded to nearest, halves to even. The instruction for that takes subnormal numbers for 0, as the products do. */
#if MITHRIL_VECTOR == 16 && defined(__AVX512BF16__)
#include <immintrin.h>
#define MITHRIL_TO_BF16(x) ((mithril_bf16_lanes)_mm512_cvtneps_pbh((__m512)(x)))
#elif MITHRIL_VECTOR == 8 && defined(__AVX512BF16__) && defined(__AVX512VL__)
#include <immintrin.h>
#define MITHRIL_TO_BF16(x) ((mithril_bf16_lanes)_mm256_cvtneps_pbh((__m256)(x)))
#else
MITHRIL_INLINE mithril_bf16_lanes mithril_to_bf16_lanes(mithril_f32 x) {
    const mithril_bits bits = (mithril_bits)x, is_nan = (mithril_bits)(x != x);
    const mithril_bits rounded = bits + 0x7fffu + (bits >> 16 & 1u);
    return __builtin_convertvector(((rounded & ~is_nan) | ((bits | 0x400000u) & is_nan)) >> 16, mithril_bf16_lanes);
}
#define MITHRIL_TO_BF16(x) mithril_to_bf16_lanes(x)
#endif
#define MITHRIL_STORE_BF16(p, x) (*(mithril_bf16_lanes_memory *)(p) = MITHRIL_TO_BF16(x))
/* Rounded to bfloat16. */
MITHRIL_INLINE mithril_f32 mithril_round_bf16_vector(mithril_f32 x) {
    return mithril_from_bf16_lanes(MITHRIL_TO_BF16(x));
}
