/* The bits of a float as an integer that compares as the float does, with NaN beyond the infinities. It is its own inverse. */
MITHRIL_INLINE int32_t mithril_order(int32_t bits) {
    return bits ^ (bits >> 31 & INT32_MAX);
}

/* Scale, inverse scale and zero point that map the numbers from low to high, as integers in the same order, to bytes:
   number · inverse + zero. The scale is NaN if one of them is not finite, and so is what is computed with it. */
MITHRIL_INLINE void mithril_bytes(int32_t low, int32_t high, float *scale, float *inverse, float *zero) {
    union { int32_t bits; float value; } least = {.bits = mithril_order(low)}, most = {.bits = mithril_order(high)};
    const float range = most.value - least.value;
    const int is_finite = range <= FLT_MAX, is_range = range > 1e-30f;
    *scale = is_finite ? range / 255 : NAN;
    *inverse = is_finite && is_range ? 255 / range : 0;
    *zero = floorf(0.5f - (is_finite ? least.value : 0) * *inverse);
}
