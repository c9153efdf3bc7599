/* Additions and replacements at positions that are data.
 *
 * Tensors are seen as [outer, size, inner], sources as [outer, count, inner]; what is added to is changed in place.
 * Every thread changes some of the lines along the axis. Negative positions count from the end; a position outside the
 * axis is MITHRIL_ERROR_INDEX. What is written here for float (_f32) is used for double (_f64), int64_t (_i64) and uint64_t
 * (_u64) too. */

/* The place that an index stands for, or -1 if it lies outside. */
static inline int64_t mithril_position(int64_t index, int64_t size) {
    if (index < -size || index >= size) return -1;
    return index < 0 ? index + size : index;
}

/* Adds n elements. */
static inline void mithril_add_f32(float *sum, const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) sum[i] += x[i];
}

/* Integers wrap around. */
static inline void mithril_add_i64(int64_t *sum, const int64_t *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) sum[i] = (int64_t)((uint64_t)sum[i] + (uint64_t)x[i]);
}

static inline void mithril_add_u64(uint64_t *sum, const uint64_t *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) sum[i] += x[i];
}

/* The product of two numbers. */
static inline float mithril_times_f32(float a, float b) { return a * b; }

/* Integers wrap around. */
static inline int64_t mithril_times_i64(int64_t a, int64_t b) { return (int64_t)((uint64_t)a * (uint64_t)b); }

/* Adds each element of source at the position along the axis that indices, shaped as source, gives. */
static int mithril_scatter_add_f32(int64_t thread, int64_t threads, float *output, const int64_t *indices,
        const float *source, int64_t outer, int64_t size, int64_t count, int64_t inner) {
    const int64_t last = mithril_part(outer * inner, thread + 1, threads);
    for (int64_t line = mithril_part(outer * inner, thread, threads), together; line < last; line += together) {
        together = mithril_beside(line, last, inner);
        const int64_t o = line / inner, first = line % inner;
        for (int64_t k = 0; k < count; k++) {
            const int64_t *index = indices + (o * count + k) * inner + first;
            const float *from = source + (o * count + k) * inner + first;
            for (int64_t i = 0; i < together; i++) {
                int64_t at = mithril_position(index[i], size);
                if (at < 0) return MITHRIL_ERROR_INDEX;
                mithril_add_f32(output + (o * size + at) * inner + first + i, from + i, 1);
            }
        }
    }
    return 0;
}

/* Adds the slices of source at positions (count of them) along the axis. */
static int mithril_index_add_f32(int64_t thread, int64_t threads, float *output, const int64_t *indices,
        const float *source, int64_t outer, int64_t size, int64_t count, int64_t inner) {
    const int64_t last = mithril_part(outer * inner, thread + 1, threads);
    for (int64_t line = mithril_part(outer * inner, thread, threads), together; line < last; line += together) {
        together = mithril_beside(line, last, inner);
        const int64_t o = line / inner, first = line % inner;
        for (int64_t k = 0; k < count; k++) {
            int64_t at = mithril_position(indices[k], size);
            if (at < 0) return MITHRIL_ERROR_INDEX;
            mithril_add_f32(output + (o * size + at) * inner + first, source + (o * count + k) * inner + first,
                    together);
        }
    }
    return 0;
}

/* Puts the slices of source in place of those at the positions; inner counts bytes. */
static int mithril_index_copy(int64_t thread, int64_t threads, void *output, const int64_t *indices,
        const void *source, int64_t outer, int64_t size, int64_t count, int64_t inner) {
    const int64_t last = mithril_part(outer * inner, thread + 1, threads);
    for (int64_t line = mithril_part(outer * inner, thread, threads), together; line < last; line += together) {
        together = mithril_beside(line, last, inner);
        const int64_t o = line / inner, first = line % inner;
        for (int64_t k = 0; k < count; k++) {
            int64_t at = mithril_position(indices[k], size);
            if (at < 0) return MITHRIL_ERROR_INDEX;
            char *to = (char *)output + (o * size + at) * inner + first;
            memcpy(to, (const char *)source + (o * count + k) * inner + first, (size_t)together);
        }
    }
    return 0;
}

/* Multiplies the element at the position along the axis that indices, shaped as source, gives by each of source. */
static int mithril_scatter_prod_f32(int64_t thread, int64_t threads, float *output, const int64_t *indices,
        const float *source, int64_t outer, int64_t size, int64_t count, int64_t inner) {
    const int64_t last = mithril_part(outer * inner, thread + 1, threads);
    for (int64_t line = mithril_part(outer * inner, thread, threads), together; line < last; line += together) {
        together = mithril_beside(line, last, inner);
        const int64_t o = line / inner, first = line % inner;
        for (int64_t k = 0; k < count; k++) {
            const int64_t *index = indices + (o * count + k) * inner + first;
            const float *from = source + (o * count + k) * inner + first;
            for (int64_t i = 0; i < together; i++) {
                const int64_t at = mithril_position(index[i], size);
                if (at < 0) return MITHRIL_ERROR_INDEX;
                const int64_t to = (o * size + at) * inner + first + i;
                output[to] = mithril_times_f32(output[to], from[i]);
            }
        }
    }
    return 0;
}

/* Puts the larger of the two at the position along the axis that indices, shaped as source, gives. */
static int mithril_scatter_max_f32(int64_t thread, int64_t threads, float *output, const int64_t *indices,
        const float *source, int64_t outer, int64_t size, int64_t count, int64_t inner) {
    const int64_t last = mithril_part(outer * inner, thread + 1, threads);
    for (int64_t line = mithril_part(outer * inner, thread, threads), together; line < last; line += together) {
        together = mithril_beside(line, last, inner);
        const int64_t o = line / inner, first = line % inner;
        for (int64_t k = 0; k < count; k++) {
            const int64_t *index = indices + (o * count + k) * inner + first;
            const float *from = source + (o * count + k) * inner + first;
            for (int64_t i = 0; i < together; i++) {
                const int64_t at = mithril_position(index[i], size);
                if (at < 0) return MITHRIL_ERROR_INDEX;
                const int64_t to = (o * size + at) * inner + first + i;
                output[to] = mithril_maximum_f32(output[to], from[i]);
            }
        }
    }
    return 0;
}

/* Puts the smaller of the two at the position along the axis that indices, shaped as source, gives. */
static int mithril_scatter_min_f32(int64_t thread, int64_t threads, float *output, const int64_t *indices,
        const float *source, int64_t outer, int64_t size, int64_t count, int64_t inner) {
    const int64_t last = mithril_part(outer * inner, thread + 1, threads);
    for (int64_t line = mithril_part(outer * inner, thread, threads), together; line < last; line += together) {
        together = mithril_beside(line, last, inner);
        const int64_t o = line / inner, first = line % inner;
        for (int64_t k = 0; k < count; k++) {
            const int64_t *index = indices + (o * count + k) * inner + first;
            const float *from = source + (o * count + k) * inner + first;
            for (int64_t i = 0; i < together; i++) {
                const int64_t at = mithril_position(index[i], size);
                if (at < 0) return MITHRIL_ERROR_INDEX;
                const int64_t to = (o * size + at) * inner + first + i;
                output[to] = mithril_minimum_f32(output[to], from[i]);
            }
        }
    }
    return 0;
}

/* Puts each element of source, of so many bytes, at the position along the axis that indices, shaped as source, gives: the
 * last one stays. */
static int mithril_scatter(int64_t thread, int64_t threads, void *output, const int64_t *indices, const void *source,
        int64_t outer, int64_t size, int64_t count, int64_t inner, int64_t bytes) {
    const int64_t last = mithril_part(outer * inner, thread + 1, threads);
    for (int64_t line = mithril_part(outer * inner, thread, threads), together; line < last; line += together) {
        together = mithril_beside(line, last, inner);
        const int64_t o = line / inner, first = line % inner;
        for (int64_t k = 0; k < count; k++) {
            const int64_t from = (o * count + k) * inner + first;
            for (int64_t i = 0; i < together; i++) {
                const int64_t at = mithril_position(indices[from + i], size);
                if (at < 0) return MITHRIL_ERROR_INDEX;
                char *to = (char *)output + ((o * size + at) * inner + first + i) * bytes;
                memcpy(to, (const char *)source + (from + i) * bytes, (size_t)bytes);
            }
        }
    }
    return 0;
}
