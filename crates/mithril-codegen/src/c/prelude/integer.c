/* Integers: they wrap around, and nothing that C leaves undefined happens. All widths are computed in 64 bits, of
 * which the low part is stored: uint64_t in itself (_u64), others in int64_t (_i64). */

/* -x */
static inline int64_t mithril_negative_i64(int64_t x) { return (int64_t)(0u - (uint64_t)x); }

/* |x|; the least integer stays as it is */
static inline int64_t mithril_abs_i64(int64_t x) { return x < 0 ? mithril_negative_i64(x) : x; }

/* -1, 0 or 1 */
static inline int64_t mithril_sign_i64(int64_t x) { return (x > 0) - (x < 0); }

/* x x */
static inline int64_t mithril_square_i64(int64_t x) { return (int64_t)((uint64_t)x * (uint64_t)x); }

/* The larger of two numbers. */
static inline int64_t mithril_maximum_i64(int64_t a, int64_t b) { return a > b ? a : b; }

/* The smaller of two numbers. */
static inline int64_t mithril_minimum_i64(int64_t a, int64_t b) { return a < b ? a : b; }

/* max(x, 0) */
static inline int64_t mithril_relu_i64(int64_t x) { return x > 0 ? x : 0; }

/* The quotient rounded down; 0 for a divisor of 0. */
static inline int64_t mithril_floor_divide_i64(int64_t a, int64_t b) {
    if (b == 0) return 0;
    if (b == -1) return mithril_negative_i64(a);
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

/* The remainder of that quotient, with the sign of the divisor; 0 for a divisor of 0. */
static inline int64_t mithril_remainder_i64(int64_t a, int64_t b) {
    if (b == 0 || b == -1) return 0;
    int64_t rest = a % b;
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

/* base to the power of exponent; negative ones give 0, except for the bases 1 and -1 */
static inline int64_t mithril_power_i64(int64_t base, int64_t exponent) {
    if (exponent < 0) return base == 1 ? 1 : base == -1 ? 1 - 2 * (exponent & 1) : 0;
    uint64_t result = 1, square = (uint64_t)base;
    for (; exponent > 0; exponent >>= 1) {
        result *= exponent & 1 ? square : 1;
        square *= square;
    }
    return (int64_t)result;
}

/* Bits moved up; by 64 places or more, or by a negative number, none is left. */
static inline int64_t mithril_left_shift_i64(int64_t x, int64_t by) {
    return by >= 0 && by < 64 ? (int64_t)((uint64_t)x << (by & 63)) : 0;
}

/* Bits moved down, the sign is kept; by 64 places or more, or by a negative number, only the sign is left. */
static inline int64_t mithril_right_shift_i64(int64_t x, int64_t by) { return x >> (by >= 0 && by < 64 ? by : 63); }

/* A number cut towards zero and held inside bounds; 0 for NaN. */
static inline int64_t mithril_to_integer(double x, int64_t least, int64_t most) {
    double held = x < 0x1p63 && x >= -0x1p63 ? x : 0.0;
    int64_t n = (int64_t)held;
    n = x >= 0x1p63 ? INT64_MAX : n;
    n = x < -0x1p63 ? INT64_MIN : n;
    n = n < least ? least : n;
    return n > most ? most : n;
}

/* The same for uint64_t. */
static inline uint64_t mithril_negative_u64(uint64_t x) { return 0u - x; }

static inline uint64_t mithril_abs_u64(uint64_t x) { return x; }

static inline uint64_t mithril_sign_u64(uint64_t x) { return x > 0; }

static inline uint64_t mithril_square_u64(uint64_t x) { return x * x; }

static inline uint64_t mithril_maximum_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }

static inline uint64_t mithril_minimum_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }

static inline uint64_t mithril_relu_u64(uint64_t x) { return x; }

/* The quotient rounded down; 0 for a divisor of 0. */
static inline uint64_t mithril_floor_divide_u64(uint64_t a, uint64_t b) { return b == 0 ? 0 : a / b; }

static inline uint64_t mithril_remainder_u64(uint64_t a, uint64_t b) { return b == 0 ? 0 : a % b; }

static inline uint64_t mithril_power_u64(uint64_t base, uint64_t exponent) {
    uint64_t result = 1, square = base;
    for (; exponent > 0; exponent >>= 1) {
        result *= exponent & 1 ? square : 1;
        square *= square;
    }
    return result;
}

/* Bits moved; by 64 places or more, none is left. */
static inline uint64_t mithril_left_shift_u64(uint64_t x, uint64_t by) { return by < 64 ? x << by : 0; }

static inline uint64_t mithril_right_shift_u64(uint64_t x, uint64_t by) { return by < 64 ? x >> by : 0; }

/* A number cut towards zero and held inside the range; 0 for NaN. */
static inline uint64_t mithril_to_u64(double x) {
    uint64_t n = (uint64_t)(x < 0x1p64 && x > 0 ? x : 0.0);
    return x >= 0x1p64 ? UINT64_MAX : n;
}
