/* Running sums and products.
 *
 * A tensor is seen as [outer, size, inner]; the scan runs along the middle axis, from its end with reverse, and
 * leaves the element itself out with exclusive. Sums are kept in double. Every thread runs along some of the lines. What
 * is written here for float (_f32) is used for double (_f64), int64_t (_i64) and uint64_t (_u64) too. */

/* scratch: inner · 8 bytes, the values so far. */
static void mithril_cumsum_f32(int64_t thread, int64_t threads, const float *input, float *output, int64_t outer,
        int64_t size, int64_t inner, int exclusive, int reverse, void *scratch) {
    double *sum = scratch;
    const int64_t last = mithril_part(outer * inner, thread + 1, threads);
    for (int64_t line = mithril_part(outer * inner, thread, threads), count; line < last; line += count) {
        count = mithril_beside(line, last, inner);
        const int64_t start = line / inner * size * inner + line % inner;
        for (int64_t i = 0; i < count; i++) sum[i] = 0;
        for (int64_t step = 0; step < size; step++) {
            const int64_t k = reverse ? size - 1 - step : step;
            const float *from = input + start + k * inner;
            float *to = output + start + k * inner;
            for (int64_t i = 0; i < count; i++) {
                double before = sum[i];
                sum[i] = before + from[i];
                to[i] = (float)(exclusive ? before : sum[i]);
            }
        }
    }
}

/* scratch: inner · 8 bytes, the values so far. */
static void mithril_cumprod_f32(int64_t thread, int64_t threads, const float *input, float *output, int64_t outer,
        int64_t size, int64_t inner, int exclusive, int reverse, void *scratch) {
    double *product = scratch;
    const int64_t last = mithril_part(outer * inner, thread + 1, threads);
    for (int64_t line = mithril_part(outer * inner, thread, threads), count; line < last; line += count) {
        count = mithril_beside(line, last, inner);
        const int64_t start = line / inner * size * inner + line % inner;
        for (int64_t i = 0; i < count; i++) product[i] = 1;
        for (int64_t step = 0; step < size; step++) {
            const int64_t k = reverse ? size - 1 - step : step;
            const float *from = input + start + k * inner;
            float *to = output + start + k * inner;
            for (int64_t i = 0; i < count; i++) {
                double before = product[i];
                product[i] = before * from[i];
                to[i] = (float)(exclusive ? before : product[i]);
            }
        }
    }
}

/* The largest so far; NaN from the first one on. */
static void mithril_cummax_f32(int64_t thread, int64_t threads, const float *input, float *output, int64_t outer,
        int64_t size, int64_t inner, int reverse) {
    const int64_t last = mithril_part(outer * inner, thread + 1, threads);
    for (int64_t line = mithril_part(outer * inner, thread, threads), count; line < last; line += count) {
        count = mithril_beside(line, last, inner);
        const int64_t start = line / inner * size * inner + line % inner;
        for (int64_t step = 0; step < size; step++) {
            const int64_t k = reverse ? size - 1 - step : step, before = reverse ? k + 1 : k - 1;
            const float *from = input + start + k * inner;
            float *to = output + start + k * inner;
            const float *most = step > 0 ? output + start + before * inner : from;
            for (int64_t i = 0; i < count; i++) to[i] = mithril_maximum_f32(most[i], from[i]);
        }
    }
}

/* The smallest so far; NaN from the first one on. */
static void mithril_cummin_f32(int64_t thread, int64_t threads, const float *input, float *output, int64_t outer,
        int64_t size, int64_t inner, int reverse) {
    const int64_t last = mithril_part(outer * inner, thread + 1, threads);
    for (int64_t line = mithril_part(outer * inner, thread, threads), count; line < last; line += count) {
        count = mithril_beside(line, last, inner);
        const int64_t start = line / inner * size * inner + line % inner;
        for (int64_t step = 0; step < size; step++) {
            const int64_t k = reverse ? size - 1 - step : step, before = reverse ? k + 1 : k - 1;
            const float *from = input + start + k * inner;
            float *to = output + start + k * inner;
            const float *least = step > 0 ? output + start + before * inner : from;
            for (int64_t i = 0; i < count; i++) to[i] = mithril_minimum_f32(least[i], from[i]);
        }
    }
}
