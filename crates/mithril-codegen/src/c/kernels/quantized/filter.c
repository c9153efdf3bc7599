/* The inverse scale of a filter, which brings its largest weight to 127, and the scale: NaN if a weight is NaN or infinite. */
MITHRIL_INLINE float mithril_filter_inverse(const float *restrict weights, long terms, float *restrict scale) {
    float largest = 0;
    int is_finite = 1;
    for (long i = 0; i < terms; i++) {
        const float size = fabsf(weights[i]);
        largest = size > largest ? size : largest;
        is_finite &= size <= FLT_MAX;
    }
    *scale = is_finite ? largest / 127 : NAN;
    return largest > 1e-30f && is_finite ? 127 / largest : 0;
}

/* The integer nearest to a weight that was multiplied by the inverse scale. */
MITHRIL_INLINE int32_t mithril_filter_number(float weight) {
    return fabsf(weight) <= 128 ? (int32_t)(weight + (weight < 0 ? -0.5f : 0.5f)) : 0;
}
