/* float16 and bfloat16 in memory, and rounding to them. Computed with integers, so that loops become vector
 * instructions on every machine; numbers are rounded once, to nearest, halves to even. */

/* The number that a float16 is. */
static inline float mithril_from_f16(uint16_t half) {
    uint32_t size = (uint32_t)(half & 0x7fffu) << 13, bits = size + 0x38000000u;
    /* The exponents differ by 112; that of infinity and NaN by twice as much. */
    bits += size >= 0x0f800000u ? 0x38000000u : 0u;
    /* Subnormal numbers count in steps of those from 2^-14 on; computing with subnormal floats would take long. */
    uint32_t above = size + 0x38800000u;
    float x;
    memcpy(&x, &above, sizeof x);
    x -= 0x1p-14f;
    memcpy(&above, &x, sizeof above);
    bits = size < 0x00800000u ? above : bits;
    bits |= (uint32_t)(half & 0x8000u) << 16;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The float16 nearest to a number. */
static inline uint16_t mithril_to_f16(float x) {
    uint32_t bits, small;
    memcpy(&bits, &x, sizeof bits);
    uint32_t size = bits & 0x7fffffffu;
    /* Below 2^-14 the sum with 1/2 is rounded to multiples of 2^-24, which are the subnormal numbers. */
    float sum;
    memcpy(&sum, &size, sizeof sum);
    sum += 0.5f;
    memcpy(&small, &sum, sizeof small);
    uint32_t normal = (size - 0x38000000u + 0xfffu + (size >> 13 & 1u)) >> 13;
    uint32_t half = size < 0x38800000u ? small - 0x3f000000u : normal;
    half = size >= 0x477ff000u ? 0x7c00u : half;
    half = size > 0x7f800000u ? 0x7e00u | (size >> 13 & 0x3ffu) : half;
    return (uint16_t)(half | (bits >> 16 & 0x8000u));
}

/* The number that a bfloat16 is. */
static inline float mithril_from_bf16(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The bfloat16 nearest to a number. */
static inline uint16_t mithril_to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? bits >> 16 | 0x40u : rounded);
}

/* Of the two floats around an inexact x the one with an odd last bit: rounded further to 16 bits, it gives what x
 * rounded once gives. */
static inline float mithril_to_odd(double x) {
    float nearest = (float)x;
    uint32_t bits;
    memcpy(&bits, &nearest, sizeof bits);
    /* One step towards zero where the size was rounded up; then a bit for what is lost. */
    uint32_t lower = (bits - (fabs((double)nearest) > fabs(x))) | 1u;
    bits = (double)nearest == x || x != x ? bits : lower;
    memcpy(&nearest, &bits, sizeof nearest);
    return nearest;
}

/* Rounded to float16. */
static inline float mithril_round_f16(float x) { return mithril_from_f16(mithril_to_f16(x)); }

/* Rounded to bfloat16. */
static inline float mithril_round_bf16(float x) { return mithril_from_bf16(mithril_to_bf16(x)); }
