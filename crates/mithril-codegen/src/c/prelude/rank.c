/* Numbers as integers in the same order: a compiler makes vector instructions of a search for the largest integer, but
 * not of one for the largest float, because of NaN. A NaN of either sign ranks above every number. */

static inline int32_t mithril_rank_f32(float x) {
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const int32_t size = bits & INT32_MAX;
    /* All ones for a negative number, 0 for a positive one and for NaN, whose size is above that of infinity. */
    const int32_t minus = (bits >> 31) & ((size - 0x7f800001) >> 31);
    return (size ^ minus) - minus;
}

static inline int64_t mithril_rank_f64(double x) {
    int64_t bits;
    memcpy(&bits, &x, sizeof bits);
    const int64_t size = bits & INT64_MAX;
    const int64_t minus = (bits >> 63) & ((size - 0x7ff0000000000001) >> 63);
    return (size ^ minus) - minus;
}

/* As the rank, but the same for all NaN. */
static inline int32_t mithril_level_f32(float x) {
    const int32_t rank = mithril_rank_f32(x);
    return rank < 0x7f800001 ? rank : 0x7f800001;
}

static inline int64_t mithril_level_f64(double x) {
    const int64_t rank = mithril_rank_f64(x), nan = 0x7ff0000000000001;
    return rank < nan ? rank : nan;
}

/* The number of a rank. */
static inline float mithril_ranked_f32(int32_t rank) {
    const int32_t bits = rank < 0 ? -rank : rank;
    float x;
    memcpy(&x, &bits, sizeof x);
    return rank < 0 ? -x : x;
}

static inline double mithril_ranked_f64(int64_t rank) {
    const int64_t bits = rank < 0 ? -rank : rank;
    double x;
    memcpy(&x, &bits, sizeof x);
    return rank < 0 ? -x : x;
}
