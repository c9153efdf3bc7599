/* The bits of a float such that they compare as the numbers do; NaN lies beyond the infinities. Its own inverse. */
MITHRIL_INLINE int32_t mithril_order(int32_t bits) {
    return bits ^ (bits >> 31 & INT32_MAX);
}

/* How numbers from low to high, given by their order, become bytes: number · inverse + zero. Where one of them is not
   finite, the scale is NaN, and so is what is computed with it. */
MITHRIL_INLINE void mithril_bytes(int32_t low, int32_t high, float *scale, float *inverse, float *zero) {
    union { int32_t bits; float value; } least = {.bits = mithril_order(low)}, most = {.bits = mithril_order(high)};
    const float range = most.value - least.value;
    const int is_finite = range <= FLT_MAX, is_range = range > 1e-30f;
    *scale = is_finite ? range / 255 : NAN;
    *inverse = is_finite && is_range ? 255 / range : 0;
    *zero = floorf(0.5f - (is_finite ? least.value : 0) * *inverse);
}
