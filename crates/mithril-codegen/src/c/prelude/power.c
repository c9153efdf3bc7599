/* Powers, floor division and rounding of floats; like math.c in every respect. Powers of floats are computed in double,
 * where neither the logarithm nor its product needs care. */

/* log2(x) of a number from 0 on, to 37 bits */
static inline double mithril_log2_wide(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    /* x = 2^k m with m from sqrt(1/2) to sqrt(2), log2(m) by the series of artanh((m - 1) / (m + 1)). */
    uint64_t shifted = bits - 0x3fe6a09e667f3bcdu;
    double k = (double)((int64_t)shifted >> 52), m;
    bits = (shifted & 0x000fffffffffffffu) + 0x3fe6a09e667f3bcdu;
    memcpy(&m, &bits, sizeof m);
    double s = (m - 1.0) / (m + 1.0), z = s * s;
    double p = z * 0.34073826250815026 + 0.4116722234482875;
    p = z * p + 0.5770835943678118;
    p = z * p + 0.9617966732847268;
    p = z * p + 2.88539008179014;
    double y = k + s * p;
    y = x < (double)INFINITY ? y : x;
    return x == 0.0 ? -(double)INFINITY : y;
}

/* 2^x, from -200 to 200 */
static inline double mithril_exp2_wide(double x) {
    x = x < -200.0 ? -200.0 : x;
    x = x > 200.0 ? 200.0 : x;
    double k = floor(x + 0.5), r = x - k;
    double p = r * 1.5201918607484037e-05 + 0.00015469291145836319;
    p = r * p + 0.0013333922577136858;
    p = r * p + 0.009618027253670877;
    p = r * p + 0.055504103534309145;
    p = r * p + 0.24022651198157335;
    p = r * p + 0.6931471807284524;
    p = r * p + 0.9999999999616823;
    uint64_t bits = (uint64_t)((int64_t)(k == k ? k : 0.0) + 1023) << 52;
    double scale;
    memcpy(&scale, &bits, sizeof scale);
    return p * scale;
}

/* x to the power of y as IEEE 754 has it: 0^0 is 1, a negative base with a fractional exponent gives NaN. */
static inline float mithril_power_f32(float x, float y) {
    /* Exponents that are too large to tell from infinite ones, of which a product with 0 would be NaN. */
    double exponent = y > 1e30f ? 1e30 : y;
    exponent = exponent < -1e30 ? -1e30 : exponent;
    double size = mithril_exp2_wide(exponent * mithril_log2_wide(fabs((double)x)));
    /* In float, as all that follows: comparisons of two widths would keep a compiler from making vectors. */
    float half = y * 0.5f;
    int is_whole = floorf(y) == y, is_odd = is_whole & (floorf(half) != half);
    float result = (float)size;
    result = ((x < 0.0f) & !is_whole & (x > -INFINITY)) ? NAN : result;
    result = is_odd & (int)(mithril_bits_f32(x) >> 31) ? -result : result;
    result = ((x != x) | (y != y)) ? NAN : result;
    return ((y == 0.0f) | (x == 1.0f)) ? 1.0f : result;
}

static inline double mithril_power_f64(double x, double y) { return pow(x, y); }

/* The floor of the exact quotient; a divisor of 0 gives what a division gives. */
static inline double mithril_floor_divide_f64(double a, double b) {
    /* Not floor(a / b): 1.0 / 0.1 is rounded up to 10, though 0.1 as stored fits only 9 times. */
    double rest = fmod(a, b);
    double quotient = round((a - rest) / b) - (rest != 0.0 && (rest < 0.0) != (b < 0.0));
    return b == 0.0 ? a / b : quotient;
}

static inline float mithril_floor_divide_f32(float a, float b) { return (float)mithril_floor_divide_f64(a, b); }

/* The remainder of that quotient, with the sign of the divisor; NaN for a divisor of 0. */
static inline double mithril_remainder_f64(double a, double b) {
    double rest = fmod(a, b);
    rest = rest != 0.0 && (rest < 0.0) != (b < 0.0) ? rest + b : rest;
    return rest == 0.0 ? copysign(0.0, b) : rest;
}

static inline float mithril_remainder_f32(float a, float b) { return (float)mithril_remainder_f64(a, b); }
