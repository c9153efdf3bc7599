/* Trigonometric functions and their inverses; like math.c in every respect. */

/* Word i of 2/pi in binary, after two words of zeros; by masks, since vectors read tables slowly. */
static inline uint32_t mithril_two_over_pi_word(uint32_t i) {
    uint32_t word = (0u - (i > 1u)) & 0xa2f9836eu;
    word ^= (0u - (i > 2u)) & (0xa2f9836eu ^ 0x4e441529u);
    word ^= (0u - (i > 3u)) & (0x4e441529u ^ 0xfc2757d1u);
    word ^= (0u - (i > 4u)) & (0xfc2757d1u ^ 0xf534ddc0u);
    word ^= (0u - (i > 5u)) & (0xf534ddc0u ^ 0xdb629599u);
    word ^= (0u - (i > 6u)) & (0xdb629599u ^ 0x3c439041u);
    word ^= (0u - (i > 7u)) & (0x3c439041u ^ 0xfe5163abu);
    return word;
}

/* 32 bits of 2/pi, from bit `start` of these words on. */
static inline uint32_t mithril_two_over_pi_bits(uint32_t start) {
    uint32_t word = start >> 5, shift = start & 31u;
    return mithril_two_over_pi_word(word) << shift | mithril_two_over_pi_word(word + 1u) >> (31u - shift) >> 1;
}

/* |x| in quarter turns modulo 4, times 2^62 (Payne and Hanek 1983): the product of the 24 bits of x with those 96 bits
 * of 2/pi that matter. Of very small numbers only that they are small is right. */
static inline uint64_t mithril_quarter_turns_f32(float x) {
    uint32_t bits = mithril_bits_f32(x) & 0x7fffffffu;
    uint64_t mantissa = (bits & 0x007fffffu) | 0x00800000u;
    uint32_t exponent = bits >> 23, start = (exponent > 94u ? exponent : 94u) - 88u;
    uint64_t high = (uint64_t)((uint32_t)mantissa * mithril_two_over_pi_bits(start)) << 32;
    return high + mantissa * mithril_two_over_pi_bits(start + 32u) +
            (mantissa * mithril_two_over_pi_bits(start + 64u) >> 32);
}

/* How many quarter turns are nearest to |x|; only the last two bits count. */
static inline uint32_t mithril_quadrant_f32(float x) {
    uint32_t turns = (uint32_t)(mithril_quarter_turns_f32(x) >> 61);
    return (turns + 1u) >> 1;
}

/* The angle that remains of |x|, from -pi/4 to pi/4. */
static inline float mithril_angle_f32(float x) {
    double turns = (double)(int64_t)(mithril_quarter_turns_f32(x) << 2);
    float angle = (float)(turns * 0x1.921fb54442d18p-64);
    return mithril_abs_f32(x) < 0.75f ? mithril_abs_f32(x) : angle;
}

/* sin(r) for |r| up to pi/4 */
static inline float mithril_sin_octant_f32(float r) {
    float z = r * r;
    float p = z * (z * -1.951565669e-4f + 0.008332166372f) - 0.1666665476f;
    return r + r * z * p;
}

/* cos(r) for |r| up to pi/4 */
static inline float mithril_cos_octant_f32(float r) {
    float z = r * r;
    float p = z * (z * 2.44366086e-5f - 0.001388735199f) + 0.04166664656f;
    return 1.0f - 0.5f * z + z * z * p;
}

/* x with its sign turned round where bit 1 of n is set */
static inline float mithril_turned_f32(float x, uint32_t n) {
    return mithril_number_f32(mithril_bits_f32(x) ^ (n << 30 & 0x80000000u));
}

/* NaN where x is infinite or NaN, else y */
static inline float mithril_if_finite_f32(float x, float y) { return mithril_abs_f32(x) < INFINITY ? y : NAN; }

/* Sine of an angle in radians. */
static inline float mithril_sin_f32(float x) {
    uint32_t n = mithril_quadrant_f32(x);
    float r = mithril_angle_f32(x);
    float y = n & 1u ? mithril_cos_octant_f32(r) : mithril_sin_octant_f32(r);
    y = mithril_turned_f32(y, n);
    return mithril_if_finite_f32(x, x < 0.0f ? -y : y);
}

static inline double mithril_sin_f64(double x) { return sin(x); }

/* Cosine of an angle in radians. */
static inline float mithril_cos_f32(float x) {
    uint32_t n = mithril_quadrant_f32(x);
    float r = mithril_angle_f32(x);
    float y = n & 1u ? mithril_sin_octant_f32(r) : mithril_cos_octant_f32(r);
    return mithril_if_finite_f32(x, mithril_turned_f32(y, n + 1u));
}

static inline double mithril_cos_f64(double x) { return cos(x); }

/* Tangent of an angle in radians. */
static inline float mithril_tan_f32(float x) {
    uint32_t n = mithril_quadrant_f32(x);
    float r = mithril_angle_f32(x);
    float sine = mithril_sin_octant_f32(r), cosine = mithril_cos_octant_f32(r);
    float y = (n & 1u ? -cosine : sine) / (n & 1u ? sine : cosine);
    return mithril_if_finite_f32(x, x < 0.0f ? -y : y);
}

static inline double mithril_tan_f64(double x) { return tan(x); }

/* Fast forms for angles up to 8192. Beyond, and for NaN, they set `slow` to 1: the caller then calls the functions above. */

/* |x|, at most 8192 */
static inline float mithril_fast_magnitude_f32(uint32_t *slow, float x) {
    float a = mithril_abs_f32(x);
    *slow |= !(a <= 8192.0f);
    return mithril_at_most_f32(a, 8192.0f);
}

/* How many quarter turns are nearest to an angle from 0 to 8192. */
static inline uint32_t mithril_fast_quadrant_f32(float a) { return (uint32_t)(int32_t)(a * 0.636619772f + 0.5f); }

/* The angle that remains of it. pi/2 is in three parts, or in two of double; what the first leaves is exact. */
static inline float mithril_fast_angle_f32(float a, uint32_t n) {
#ifdef MITHRIL_FUSES
    float turns = (float)(int32_t)n, angle = fmaf(turns, -1.57079637f, a);
    return fmaf(turns, 1.71512451e-15f, fmaf(turns, 4.37113883e-8f, angle));
#else
    double turns = (double)(int32_t)n, angle = (double)a - turns * 0x1.921fb54442p+0;
    return (float)(angle - turns * 7.443547480486623e-13);
#endif
}

static inline float mithril_sin_fast_f32(uint32_t *slow, float x) {
    float a = mithril_fast_magnitude_f32(slow, x);
    uint32_t n = mithril_fast_quadrant_f32(a);
    float r = mithril_fast_angle_f32(a, n);
    float y = mithril_turned_f32(n & 1u ? mithril_cos_octant_f32(r) : mithril_sin_octant_f32(r), n);
    return mithril_number_f32(mithril_bits_f32(y) ^ (mithril_bits_f32(x) & 0x80000000u));
}

static inline float mithril_cos_fast_f32(uint32_t *slow, float x) {
    float a = mithril_fast_magnitude_f32(slow, x);
    uint32_t n = mithril_fast_quadrant_f32(a);
    float r = mithril_fast_angle_f32(a, n);
    return mithril_turned_f32(n & 1u ? mithril_sin_octant_f32(r) : mithril_cos_octant_f32(r), n + 1u);
}

static inline float mithril_tan_fast_f32(uint32_t *slow, float x) {
    float a = mithril_fast_magnitude_f32(slow, x);
    uint32_t n = mithril_fast_quadrant_f32(a);
    float r = mithril_fast_angle_f32(a, n);
    float sine = mithril_sin_octant_f32(r), cosine = mithril_cos_octant_f32(r);
    float y = (n & 1u ? -cosine : sine) / (n & 1u ? sine : cosine);
    return mithril_number_f32(mithril_bits_f32(y) ^ (mithril_bits_f32(x) & 0x80000000u));
}

/* (arcsin(s) / s - 1) for s^2 = z up to 1/4 */
static inline float mithril_asin_rest_f32(float z) {
    float p = z * 0.04221854616f + 0.02414761185f;
    p = z * p + 0.04547709712f;
    p = z * p + 0.07495241777f;
    return z * (z * p + 0.1666675393f);
}

/* Arc sine in radians; NaN outside of [-1, 1]. */
static inline float mithril_asin_f32(float x) {
    float a = mithril_abs_f32(x);
    /* Beyond 1/2 it is pi/2 - 2 arcsin(sqrt((1 - a) / 2)). */
    float z = a > 0.5f ? 0.5f - 0.5f * a : a * a;
    float s = a > 0.5f ? sqrtf(z) : a;
    float y = s + s * mithril_asin_rest_f32(z);
    return mithril_with_sign_f32(a > 0.5f ? 1.57079633f - 2.0f * y : y, x);
}

static inline double mithril_asin_f64(double x) { return asin(x); }

/* Arc cosine in radians; NaN outside of [-1, 1]. */
static inline float mithril_acos_f32(float x) {
    float a = mithril_abs_f32(x);
    float z = a > 0.5f ? 0.5f - 0.5f * a : a * a;
    float s = a > 0.5f ? sqrtf(z) : x;
    float y = s + s * mithril_asin_rest_f32(z);
    float outer = x > 0.0f ? y + y : 3.14159265f - (y + y);
    return a > 0.5f ? outer : 1.57079633f - y;
}

static inline double mithril_acos_f64(double x) { return acos(x); }

/* arctan(t) for t from 0 to 1 */
static inline float mithril_atan_unit_f32(float t) {
    float z = t * t;
    float p = z * -0.001827184681f + 0.01106431517f;
    p = z * p - 0.03145546938f;
    p = z * p + 0.05823432036f;
    p = z * p - 0.08419445983f;
    p = z * p + 0.1095757186f;
    p = z * p - 0.142652446f;
    p = z * p + 0.1999863855f;
    p = z * p - 0.3333330186f;
    return t + t * z * p;
}

/* Arc tangent in radians. */
static inline float mithril_atan_f32(float x) {
    float a = mithril_abs_f32(x);
    float y = mithril_atan_unit_f32((a > 1.0f ? 1.0f : a) / (a > 1.0f ? a : 1.0f));
    return mithril_with_sign_f32(a > 1.0f ? 1.57079633f - y : y, x);
}

static inline double mithril_atan_f64(double x) { return atan(x); }

/* Angle in radians of the point (x, y), from -pi to pi. */
static inline float mithril_atan2_f32(float y, float x) {
    float a = mithril_abs_f32(y), b = mithril_abs_f32(x);
    float small = a < b ? a : b, large = a < b ? b : a;
    float t = small / (large == 0.0f ? 1.0f : large);
    float angle = mithril_atan_unit_f32(small == INFINITY ? 1.0f : t);
    angle = a > b ? 1.57079633f - angle : angle;
    angle = mithril_bits_f32(x) >> 31 ? 3.14159265f - angle : angle;
    return x == x && y == y ? mithril_with_sign_f32(angle, y) : NAN;
}

static inline double mithril_atan2_f64(double y, double x) { return atan2(y, x); }
