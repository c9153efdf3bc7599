/* Elementwise functions of one float: exponentials, logarithms, error functions, activations.
 *
 * The functions on `float` have no branch, no table and no call, so that a compiler turns a loop over them into
 * vector instructions; on `double` they call the C library. Products and sums may be fused (-ffp-contract=fast); where
 * it matters which ones, mithril_fused_f32 says so. Polynomials are minimax fits of our own; errors are at most 2 units
 * in the last place for exp, log, tanh and erf, at most 6 for gelu and erfc, at most 4 for the rest. */

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

/* --- Bits ---------------------------------------------------------------------------------------------------- */

/* The bits of a number. */
static inline uint32_t mithril_bits_f32(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* The number that has these bits. */
static inline float mithril_number_f32(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Whether processors multiply and add at once, without rounding between. */
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA) || defined(__FP_FAST_FMAF) || defined(__riscv_f)
#define MITHRIL_FUSES 1
#endif

/* x y + z, of which no other product is fused with the sum. */
static inline float mithril_fused_f32(float x, float y, float z) {
#ifdef MITHRIL_FUSES
    return fmaf(x, y, z);
#else
    return x * y + z;
#endif
}

/* What rounding took from the square s of x, which is neither very large nor very small. */
static inline float mithril_square_rest_f32(float x, float s) {
#ifdef MITHRIL_FUSES
    return fmaf(x, x, -s);
#else
    /* The square of 12 digits is exact. */
    float high = mithril_number_f32(mithril_bits_f32(x) & 0xfffff000u), low = x - high;
    return high * high - s + low * (high + x);
#endif
}

/* --- Signs and bounds ---------------------------------------------------------------------------------------- */

/* |x| */
static inline float mithril_abs_f32(float x) { return mithril_number_f32(mithril_bits_f32(x) & 0x7fffffffu); }

static inline double mithril_abs_f64(double x) { return fabs(x); }

/* |x| with the sign of s */
static inline float mithril_with_sign_f32(float x, float s) {
    return mithril_number_f32((mithril_bits_f32(x) & 0x7fffffffu) | (mithril_bits_f32(s) & 0x80000000u));
}

/* The larger of two numbers, NaN if one is. */
static inline float mithril_maximum_f32(float a, float b) { return ((a >= b) | (a != a)) ? a : b; }

static inline double mithril_maximum_f64(double a, double b) { return ((a >= b) | (a != a)) ? a : b; }

/* The smaller of two numbers, NaN if one is. */
static inline float mithril_minimum_f32(float a, float b) { return ((a <= b) | (a != a)) ? a : b; }

static inline double mithril_minimum_f64(double a, double b) { return ((a <= b) | (a != a)) ? a : b; }

/* The nearest of the numbers that integers from least to most stand for, by a scale and the integer of zero; NaN is as the
   integer 0. */
static inline float mithril_dequantized_f32(float x, float scale, float zero, float least, float most) {
    float n = rintf(x / scale) + zero;
    n = n == n ? n : 0.0f;
    n = n > least ? n : least;
    n = n < most ? n : most;
    return (n - zero) * scale;
}

/* -1, 0 or 1; NaN stays NaN. */
static inline float mithril_sign_f32(float x) {
    float y = x > 0.0f ? 1.0f : x;
    return x < 0.0f ? -1.0f : y;
}

static inline double mithril_sign_f64(double x) { return x > 0.0 ? 1.0 : x < 0.0 ? -1.0 : x; }

/* max(x, 0); this way round NaN passes. */
static inline float mithril_relu_f32(float x) { return x < 0.0f ? 0.0f : x; }

static inline double mithril_relu_f64(double x) { return x < 0.0 ? 0.0 : x; }

/* x above 0, slope * x below */
static inline float mithril_leaky_relu_f32(float x, float slope) { return x > 0.0f ? x : slope * x; }

static inline double mithril_leaky_relu_f64(double x, double slope) { return x > 0.0 ? x : slope * x; }

/* x x */
static inline float mithril_square_f32(float x) { return x * x; }

static inline double mithril_square_f64(double x) { return x * x; }

/* x x x */
static inline float mithril_cube_f32(float x) { return x * x * x; }

static inline double mithril_cube_f64(double x) { return x * x * x; }

/* --- Exponentials -------------------------------------------------------------------------------------------- */

/* (e^r - 1 - r) / r^2 for |r| up to ln(2) / 2 */
static inline float mithril_exp_rest_f32(float r) {
    float q = r * 0.00139505137f + 0.00836890441f;
    q = r * q + 0.04166620546f;
    q = r * q + 0.1666651871f;
    return r * q + 0.5000000095f;
}

/* The smaller of two numbers that are not negative, `bound` for NaN; as integers their minimum is one instruction. */
static inline float mithril_at_most_f32(float x, float bound) {
    uint32_t bits = mithril_bits_f32(x), most = mithril_bits_f32(bound);
    return mithril_number_f32(bits < most ? bits : most);
}

/* x, but no more than `high` and no less than `low`, which is below 0; one of these for NaN. */
static inline float mithril_within_f32(float x, float low, float high) {
    /* Of negative numbers the larger ones are further from 0: a minimum without signs, and one with them. */
    uint32_t bits = mithril_bits_f32(x), least = mithril_bits_f32(low);
    int32_t above = (int32_t)(bits < least ? bits : least), most = (int32_t)mithril_bits_f32(high);
    return mithril_number_f32((uint32_t)(above < most ? above : most));
}

/* Small numbers plus this are whole: in the last bits of the sum. */
#define MITHRIL_WHOLE_F32 12582912.0f

/* The whole number next to x y, plus z, which is the number above and perhaps a small one. */
static inline float mithril_whole_f32(float x, float y, float z) { return mithril_fused_f32(x, y, z); }

/* Such a sum less z. */
static inline float mithril_whole_part_f32(float sum, float z) { return sum - z; }

/* x - k ln(2), which is below 0.5 in size; ln(2) in two parts, of which the first times k is exact. */
static inline float mithril_exp_remainder_f32(float x, float k) {
    return mithril_fused_f32(k, -0.693359375f, x) + k * 2.12194440e-4f;
}

/* e^r for |r| up to ln(2) / 2 */
static inline float mithril_exp_near_f32(float r) { return 1.0f + (r + r * r * mithril_exp_rest_f32(r)); }

/* 2^shift e^(x + tail) for a small tail; subnormal results are exact to their last bit too. */
static inline float mithril_exp_scaled_f32(float x, float tail, unsigned shift) {
    float held = mithril_within_f32(x, -110.0f, 110.0f);
    float whole = mithril_whole_f32(held, 1.44269504f, MITHRIL_WHOLE_F32);
    float r = mithril_exp_remainder_f32(held, mithril_whole_part_f32(whole, MITHRIL_WHOLE_F32)) + tail;
    float y = mithril_exp_near_f32(r);
    /* 2^k in two factors, since it may be out of range where the result is not. */
    uint32_t k = mithril_bits_f32(whole) + shift, least = mithril_bits_f32(MITHRIL_WHOLE_F32) - 151u;
    uint32_t half = k << 22 & 0xff800000u;
    /* 0 for what rounds to it: processors take long to find that out by themselves. */
    uint32_t rest = k < least ? 0u : (k << 23) - half + 0x3f800000u;
    y = mithril_number_f32(mithril_bits_f32(y) + half) * mithril_number_f32(rest);
    return x == x ? y : x;
}

/* e^x for |x| up to 20, to be added to larger numbers: k ln(2) in one part will do. */
static inline float mithril_exp_middle_f32(float x) {
    float whole = mithril_whole_f32(x, 1.44269504f, MITHRIL_WHOLE_F32);
    float y = mithril_exp_near_f32(x - mithril_whole_part_f32(whole, MITHRIL_WHOLE_F32) * 0.693147181f);
    return mithril_number_f32(mithril_bits_f32(y) + (mithril_bits_f32(whole) << 23));
}

/* 2^24 e^-a for a from 0 on, so that it is not subnormal before it is 0; NaN of NaN. */
static inline float mithril_exp_falling_f32(float a) {
    a = a > 104.5f ? 104.5f : a;
    /* The last bits are the exponent of 2^(24 + k), which is 0 where a is largest. */
    float whole = mithril_whole_f32(a, -1.44269504f, MITHRIL_WHOLE_F32 + 151.0f);
    float r = mithril_exp_remainder_f32(-a, mithril_whole_part_f32(whole, MITHRIL_WHOLE_F32 + 151.0f));
    return mithril_exp_near_f32(r) * mithril_number_f32(mithril_bits_f32(whole) << 23);
}

/* e^x */
static inline float mithril_exp_f32(float x) { return mithril_exp_scaled_f32(x, 0.0f, 0u); }

static inline double mithril_exp_f64(double x) { return exp(x); }

/* e^x for x up to 0 as a weight beside others, the largest of which is 1: 0 below 1e-30, so that weights divided by the sum
   of up to 2^26 of them are not subnormal. */
static inline float mithril_exp_weight_f32(float x) {
    float held = mithril_within_f32(x, -80.0f, 1.0f);
    float whole = mithril_whole_f32(held, 1.44269504f, MITHRIL_WHOLE_F32);
    float r = mithril_exp_remainder_f32(held, mithril_whole_part_f32(whole, MITHRIL_WHOLE_F32));
    float y = mithril_number_f32(mithril_bits_f32(mithril_exp_near_f32(r)) + (mithril_bits_f32(whole) << 23));
    y = x < -69.0f ? 0.0f : y;
    return x == x ? y : x;
}

/* e^x - 1 */
static inline float mithril_expm1_f32(float x) {
    float held = mithril_within_f32(x, -86.0f, 89.0f);
    float whole = mithril_whole_f32(held, 1.44269504f, MITHRIL_WHOLE_F32 + 126.0f);
    float r = mithril_exp_remainder_f32(held, mithril_whole_part_f32(whole, MITHRIL_WHOLE_F32 + 126.0f));
    float p = r + r * r * mithril_exp_rest_f32(r);
    /* Half of 2^k (1 + p) - 1, which does not overflow before its end; its 2^(k - 1) is 0 where it does not count. */
    float scale = mithril_number_f32(mithril_bits_f32(whole) << 23);
    float y = scale * p + (scale - 0.5f);
    return x == x ? y + y : x;
}

static inline double mithril_expm1_f64(double x) { return expm1(x); }

/* Hyperbolic tangent. */
static inline float mithril_tanh_f32(float x) {
    float a = mithril_abs_f32(x), z = x * x;
    float p = z * -0.005704978373f + 0.02063907874f;
    p = z * p - 0.05373971216f;
    p = z * p + 0.1333144216f;
    p = z * p - 0.3333328194f;
    float outer = -2.0f / (mithril_exp_middle_f32(2.0f * mithril_at_most_f32(a, 10.0f)) + 1.0f);
    float start = a >= 0.625f ? 1.0f : a;
    return mithril_with_sign_f32(start + (a < 0.625f ? a * z * p : outer), x);
}

static inline double mithril_tanh_f64(double x) { return tanh(x); }

/* Hyperbolic sine. */
static inline float mithril_sinh_f32(float x) {
    float a = mithril_abs_f32(x), z = x * x;
    float half = mithril_exp_scaled_f32(a, 0.0f, -1u);
    float p = z * (z * (z * (z * 2.817439651e-6f + 1.983606625e-4f) + 0.008333350598f) + 0.1666666649f);
    float y = a < 1.0f ? a + a * p : half - 0.25f / half;
    return mithril_with_sign_f32(y, x);
}

static inline double mithril_sinh_f64(double x) { return sinh(x); }

/* Hyperbolic cosine. */
static inline float mithril_cosh_f32(float x) {
    float a = mithril_abs_f32(x);
    float half = mithril_exp_scaled_f32(a, 0.0f, -1u);
    return half + 0.25f / half;
}

static inline double mithril_cosh_f64(double x) { return cosh(x); }

/* --- Logarithms ---------------------------------------------------------------------------------------------- */

/* log(1 + f) for 1 + f from 2/3 to 4/3, as f + this */
static inline float mithril_log_rest_f32(float f) {
    float p = f * -0.1319212466f + 0.139617458f;
    p = f * p - 0.1211501658f;
    p = f * p + 0.1401107609f;
    p = f * p - 0.1668547392f;
    p = f * p + 0.2001003325f;
    p = f * p - 0.2499968857f;
    p = f * p + 0.3333322406f;
    float square = f * f;
    return square * (f * p) - 0.5f * square;
}

/* k ln(2) + f + rest */
static inline float mithril_log_sum_f32(float k, float f, float rest) { return k * 0.693147181f + (f + rest); }

/* The logarithm y of x where it has none in the real numbers: -inf of 0, inf of inf, NaN below 0 and of NaN. */
static inline float mithril_log_ends_f32(float x, float y) {
    y = x < INFINITY ? y : x;
    float end = x == 0.0f ? -INFINITY : NAN;
    /* x > 0 by its bits: of comparisons of one kind a compiler would make more than there are. */
    return (int32_t)mithril_bits_f32(x) > 0 ? y : end;
}

/* The bits of x = 2^k (1 + f), with 1 + f from 2/3 to 4/3, less those of 2/3: from bit 23 on they are k. */
static inline uint32_t mithril_log_bits_f32(float x) {
    uint32_t bits = mithril_bits_f32(x);
    /* Subnormal numbers times 2^23. */
    bits = x < FLT_MIN ? mithril_bits_f32(x * 8388608.0f) - (23u << 23) : bits;
    return bits - 0x3f2aaaabu;
}

/* k, of these bits */
static inline float mithril_log_exponent_f32(uint32_t bits) { return (float)((int32_t)bits >> 23); }

/* f, of these bits */
static inline float mithril_log_fraction_f32(uint32_t bits) {
    return mithril_number_f32((bits & 0x007fffffu) + 0x3f2aaaabu) - 1.0f;
}

/* ln x */
static inline float mithril_log_f32(float x) {
    uint32_t bits = mithril_log_bits_f32(x);
    float k = mithril_log_exponent_f32(bits), f = mithril_log_fraction_f32(bits);
    return mithril_log_ends_f32(x, mithril_log_sum_f32(k, f, mithril_log_rest_f32(f)));
}

static inline double mithril_log_f64(double x) { return log(x); }

/* log2 x */
static inline float mithril_log2_f32(float x) {
    uint32_t bits = mithril_log_bits_f32(x);
    float k = mithril_log_exponent_f32(bits), f = mithril_log_fraction_f32(bits);
    float rest = mithril_log_rest_f32(f);
    /* 1/ln(2) = 1 + 0.44269504 */
    float y = ((f + rest) * 0.44269504f + rest) + f;
    return mithril_log_ends_f32(x, y + k);
}

static inline double mithril_log2_f64(double x) { return log2(x); }

/* log10 x */
static inline float mithril_log10_f32(float x) {
    uint32_t bits = mithril_log_bits_f32(x);
    float k = mithril_log_exponent_f32(bits), f = mithril_log_fraction_f32(bits);
    float y = (f + mithril_log_rest_f32(f)) * 0.4342944819f;
    return mithril_log_ends_f32(x, k * 0.301025390625f + (y + k * 4.6050390e-6f));
}

static inline double mithril_log10_f64(double x) { return log10(x); }

/* ln(1 + x) */
static inline float mithril_log1p_f32(float x) {
    float u = 1.0f + x;
    /* u = 2^k (1 + f), with f from x itself, so that what the sum lost counts; u is not subnormal. */
    uint32_t bits = mithril_bits_f32(u) - 0x3f2aaaabu;
    float scale = mithril_number_f32(0x3f800000u - (bits & 0xff800000u));
    float f = scale * x + (scale - 1.0f);
    f = u < 1e30f ? f : mithril_log_fraction_f32(bits);
    float k = mithril_log_exponent_f32(bits);
    return mithril_log_ends_f32(u, mithril_log_sum_f32(k, f, mithril_log_rest_f32(f)));
}

static inline double mithril_log1p_f64(double x) { return log1p(x); }

/* Inverse of the hyperbolic sine. */
static inline float mithril_asinh_f32(float x) {
    float a = mithril_abs_f32(x), square = a * a;
    /* Far out the inverse is ln(2 a), and a square would overflow. */
    float sum = a + square / (1.0f + sqrtf(square + 1.0f));
    float y = mithril_log1p_f32(a > 1e10f ? a : sum);
    y = y + (a > 1e10f ? 0.69314718f : 0.0f);
    return mithril_with_sign_f32(y, x);
}

static inline double mithril_asinh_f64(double x) { return asinh(x); }

/* Inverse of the hyperbolic cosine; NaN below 1. */
static inline float mithril_acosh_f32(float x) {
    float t = x - 1.0f;
    float y = mithril_log1p_f32(x > 1e10f ? x : t + sqrtf(t * (x + 1.0f)));
    y = y + (x > 1e10f ? 0.69314718f : 0.0f);
    return x < 1.0f ? NAN : y;
}

static inline double mithril_acosh_f64(double x) { return x < 1.0 ? (double)NAN : acosh(x); }

/* Inverse of the hyperbolic tangent; infinite at -1 and 1, NaN outside. */
static inline float mithril_atanh_f32(float x) {
    float a = mithril_abs_f32(x);
    return mithril_with_sign_f32(0.5f * mithril_log1p_f32((a + a) / (1.0f - a)), x);
}

static inline double mithril_atanh_f64(double x) { return atanh(x); }

/* --- Error functions ----------------------------------------------------------------------------------------- */

/* erf(x) / x - 1 for |x| up to 1 */
static inline float mithril_erf_near_f32(float x) {
    float z = x * x;
    float p = z * 7.853857699e-5f - 8.010192519e-4f;
    p = z * p + 0.00518832756f;
    p = z * p - 0.02685381187f;
    p = z * p + 0.1128358515f;
    p = z * p - 0.3761262582f;
    return z * p + 0.1283791657f;
}

/* erf(x): 2/sqrt(pi) times the integral of e^(-t^2) from 0 to x */
static inline float mithril_erf_f32(float x) {
    float a = mithril_abs_f32(x);
    /* Above 1 the logarithm of 1 - erf is a polynomial. */
    float b = mithril_at_most_f32(a, 4.0f);
    float q = b * -2.169772928e-5f + 4.414740198e-4f;
    q = b * q - 0.004205291552f;
    q = b * q + 0.02521035807f;
    q = b * q - 0.1084221285f;
    q = b * q - 0.6332163701f;
    q = b * q - 1.129580325f;
    q = b * q + 1.884706579e-4f;
    float start = a >= 1.0f ? 1.0f : a;
    float rest = a >= 1.0f ? -mithril_exp_middle_f32(q) : a * mithril_erf_near_f32(a);
    return mithril_with_sign_f32(start + rest, x);
}

static inline double mithril_erf_f64(double x) { return erf(x); }

/* e^(-x^2): the square is kept to twice the digits. */
static inline float mithril_gauss_f32(float x) {
    float high = mithril_number_f32(mithril_bits_f32(x) & 0xfffff000u);
    return mithril_exp_scaled_f32(-(high * high), (high - x) * (high + x), 0u);
}

/* e^(a^2) erfc(a) for a from 0 to 10.2 */
static inline float mithril_erfc_factor_f32(float a) {
    float t = 1.0f / (a + 1.5f);
    float q = 1.0f - 3.0f * t;
    float p = q * -0.0001397920595f - 0.0001718115058f;
    p = q * p + 0.0007349209045f;
    p = q * p + 0.001827560517f;
    p = q * p - 0.0007379075468f;
    p = q * p - 0.009473723363f;
    p = q * p - 0.008134683925f;
    p = q * p + 0.04776972349f;
    p = q * p + 0.07562289136f;
    p = q * p - 0.5078500629f;
    return t * (q * p + 0.9647562369f);
}

/* 1 - erf(x) */
static inline float mithril_erfc_f32(float x) {
    float a = mithril_abs_f32(x);
    a = mithril_at_most_f32(a, 10.2f);
    float outer = mithril_erfc_factor_f32(a) * mithril_gauss_f32(a);
    float y = a < 0.75f ? 1.0f - a - a * mithril_erf_near_f32(a) : outer;
    y = x < 0.0f ? 2.0f - y : y;
    return x == x ? y : x;
}

static inline double mithril_erfc_f64(double x) { return erfc(x); }

/* Inverse of erf; infinite at -1 and 1, NaN outside. */
static inline float mithril_erfinv_f32(float x) {
    float a = mithril_abs_f32(x);
    float w = -mithril_log_f32((1.0f - a) * (1.0f + a));
    float s = w - 2.5f;
    float p = s * -8.791109402e-9f + 2.323267206e-8f;
    p = s * p + 4.661713945e-7f;
    p = s * p - 3.462705099e-6f;
    p = s * p - 4.963351195e-6f;
    p = s * p + 2.183444407e-4f;
    p = s * p - 0.001252741873f;
    p = s * p - 0.004177386783f;
    p = s * p + 0.2466402862f;
    p = s * p + 1.501409359f;
    float t = sqrtf(w) - 3.0f;
    float q = t * 1.136405318e-4f - 3.0774856e-4f;
    q = t * q - 5.376355287e-5f;
    q = t * q + 0.001482855506f;
    q = t * q - 0.003598987995f;
    q = t * q + 0.005687808271f;
    q = t * q - 0.007636955231f;
    q = t * q + 0.009445192384f;
    q = t * q + 1.001674947f;
    q = t * q + 2.832976803f;
    float y = x * (w < 5.0f ? p : q);
    return a == 1.0f ? x * INFINITY : y;
}

/* By Halley's iteration from the estimate of S. Winitzki (2008). */
static inline double mithril_erfinv_f64(double x) {
    double goal = fabs(x);
    if (!(goal < 1.0) || goal == 0.0) {
        return goal == 1.0 ? x * (double)INFINITY : goal == 0.0 ? x : (double)NAN;
    }
    double depth = log((1.0 - goal) * (1.0 + goal));
    double half = 4.330746750799873 + 0.5 * depth;
    double y = sqrt(sqrt(half * half - depth / 0.147) - half);
    for (int i = 0; i < 3; i++) {
        /* In the tail from the other end, where nothing cancels. */
        double excess = goal < 0.5 ? erf(y) - goal : (1.0 - goal) - erfc(y);
        double step = excess / (1.1283791670955126 * exp(-y * y));
        y -= step / (1.0 + y * step);
    }
    return copysign(y, x);
}

/* --- Activations --------------------------------------------------------------------------------------------- */

/* 1 / (1 + e^-x); of the negative magnitude, which cannot overflow */
static inline float mithril_sigmoid_f32(float x) {
    float small = mithril_exp_falling_f32(mithril_abs_f32(x)), one = 16777216.0f;
    return (x < 0.0f ? small : one) / (small + one);
}

static inline double mithril_sigmoid_f64(double x) { return 1.0 / (1.0 + exp(-x)); }

/* x sigmoid(x), of which no factor is subnormal where the product is not. */
static inline float mithril_silu_f32(float x) {
    float small = mithril_exp_falling_f32(mithril_abs_f32(x));
    float sum = small + 16777216.0f;
    return x * (x < 0.0f ? small : 1.0f) / (x < 0.0f ? sum : sum * 5.9604645e-8f);
}

static inline double mithril_silu_f64(double x) { return x / (1.0 + exp(-x)); }

/* x times the normal distribution function: max(x, 0) less what is missing there, which is the same for -x */
static inline float mithril_gelu_f32(float x) {
    float size = mithril_abs_f32(x), a = mithril_at_most_f32(size, 14.45f);
    /* a times what that function lacks of 1 is t p e^(-a^2 / 2). */
    float t = a / (a + 3.0f), q = 2.0f * t - 1.0f;
    float p = q * -2.653396514e-4f - 9.023123421e-4f;
    p = q * p + 0.001075347885f;
    p = q * p + 0.006924398243f;
    p = q * p - 0.01047972497f;
    p = q * p - 0.04725670442f;
    p = q * p + 0.2300193459f;
    p = q * p - 0.50933218f;
    p = q * p + 0.7290836573f;
    /* The square in two parts; e^(-r / 2) with r = a^2 - 2 k ln(2), and 2^(24 - k), which is 0 where a is largest. */
    float square = a * a;
    float whole = mithril_whole_f32(square, -0.72134752f, MITHRIL_WHOLE_F32 + 151.0f);
    float k = mithril_whole_part_f32(whole, MITHRIL_WHOLE_F32 + 151.0f);
    float r = mithril_fused_f32(k, 1.38671875f, square) - k * 4.2438888e-4f;
    r = r + mithril_square_rest_f32(a, square);
    float y = r * 2.178581781e-5f - 2.615435515e-4f;
    y = r * y + 0.002604148583f;
    y = r * y - 0.02083314396f;
    y = r * y + 0.125f;
    y = r * y - 0.5f;
    y = r * y + 1.0f;
    float missing = t * p * y * mithril_number_f32(mithril_bits_f32(whole) << 23);
    /* The larger of x and 0, but NaN of NaN and of -inf. */
    float larger = 0.5f * x + 0.5f * size;
    return mithril_fused_f32(missing, -5.9604645e-8f, larger);
}

static inline double mithril_gelu_f64(double x) { return 0.5 * x * erfc(-x * 0.7071067811865476); }

/* x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2, as x sigmoid(…). The exponent is computed in double: its error is that
 * of the result many times over where the result is small. */
static inline float mithril_gelu_tanh_f32(float x) {
    double wide = x, exponent = -fabs(wide * (wide * wide * 0.07135481627159545 + 1.5957691216057308));
    exponent = exponent < -200.0 ? -200.0 : exponent;
    float high = (float)exponent;
    float small = mithril_exp_scaled_f32(high, (float)(exponent - (double)high), 0u);
    return x * ((x < 0.0f ? small : 1.0f) / (small + 1.0f));
}

static inline double mithril_gelu_tanh_f64(double x) {
    return x * mithril_sigmoid_f64(1.5957691216057308 * (x + 0.044715 * x * x * x));
}

/* ln(1 + e^x), which neither overflows nor cancels */
static inline float mithril_log_sum_with_one_f32(float x) {
    /* ln(1 + e) for e from 0 to 1, above 1/3 as ln(2) + ln(1/2 + e/2) */
    float e = mithril_exp_falling_f32(mithril_abs_f32(x)) * 5.9604645e-8f;
    float f = e > 0.333333333f ? 0.5f * e - 0.5f : e;
    float k = e > 0.333333333f ? 1.0f : 0.0f;
    return (x < 0.0f ? 0.0f : x) + mithril_log_sum_f32(k, f, mithril_log_rest_f32(f));
}

static inline double mithril_log_sum_with_one_f64(double x) { return (x < 0.0 ? 0.0 : x) + log1p(exp(-fabs(x))); }

/* ln(1 + e^(beta x)) / beta, and x itself where beta x is above the threshold */
static inline float mithril_softplus_f32(float x, float beta, float threshold) {
    return x * beta > threshold ? x : mithril_log_sum_with_one_f32(x * beta) / beta;
}

static inline double mithril_softplus_f64(double x, double beta, double threshold) {
    return x * beta > threshold ? x : mithril_log_sum_with_one_f64(x * beta) / beta;
}

/* ln sigmoid(x) */
static inline float mithril_log_sigmoid_f32(float x) { return -mithril_log_sum_with_one_f32(-x); }

static inline double mithril_log_sigmoid_f64(double x) { return -mithril_log_sum_with_one_f64(-x); }

/* x tanh(softplus(x)) */
static inline float mithril_mish_f32(float x) {
    /* With e = e^x it is x n / (n + 2) for n = e (e + 2), and x where n is large. */
    float e = mithril_exp_f32(x > 20.0f ? 20.0f : x);
    float n = e * (e + 2.0f);
    return x > 20.0f ? x : x * (n / (n + 2.0f));
}

static inline double mithril_mish_f64(double x) { return x * tanh(mithril_log_sum_with_one_f64(x)); }

/* x above 0, alpha (e^x - 1) below */
static inline float mithril_elu_f32(float x, float alpha) { return x > 0.0f ? x : alpha * mithril_expm1_f32(x); }

static inline double mithril_elu_f64(double x, double alpha) { return x > 0.0 ? x : alpha * expm1(x); }

/* x above 0, alpha (e^(x / alpha) - 1) below */
static inline float mithril_celu_f32(float x, float alpha) {
    return x > 0.0f ? x : alpha * mithril_expm1_f32(x / alpha);
}

static inline double mithril_celu_f64(double x, double alpha) { return x > 0.0 ? x : alpha * expm1(x / alpha); }

/* The exponential linear unit with the constants that keep mean 0 and variance 1. */
static inline float mithril_selu_f32(float x) { return 1.05070099f * mithril_elu_f32(x, 1.67326324f); }

static inline double mithril_selu_f64(double x) {
    return 1.0507009873554805 * mithril_elu_f64(x, 1.6732632423543772);
}

/* x / (1 + |x|) */
static inline float mithril_softsign_f32(float x) { return x / (1.0f + mithril_abs_f32(x)); }

static inline double mithril_softsign_f64(double x) { return x / (1.0 + fabs(x)); }

/* min(max(x + 3, 0), 6) / 6 */
static inline float mithril_hard_sigmoid_f32(float x) {
    float y = mithril_relu_f32(x + 3.0f);
    return (y > 6.0f ? 6.0f : y) * 0.16666667f;
}

static inline double mithril_hard_sigmoid_f64(double x) {
    return mithril_minimum_f64(mithril_relu_f64(x + 3.0), 6.0) / 6.0;
}

/* x min(max(x + 3, 0), 6) / 6 */
static inline float mithril_hard_swish_f32(float x) {
    return x > 3.0f ? x : x * mithril_relu_f32(x + 3.0f) * 0.16666667f;
}

static inline double mithril_hard_swish_f64(double x) {
    double y = x * mithril_minimum_f64(mithril_relu_f64(x + 3.0), 6.0) / 6.0;
    return x > 3.0 ? x : y;
}
