/* Checks of the arguments of a call; with -DNDEBUG these are unused, of which compilers would warn. */
#ifndef NDEBUG
/* Bytes of a tensor, and of an element of it. */
struct mithril_extent {
    size_t bytes;
    size_t element;
};

/* The first of the pointers to tensors that is null or not aligned; -1 if there is none. */
static inline int mithril_invalid_pointer(const void *const pointers[], const struct mithril_extent *are, int count) {
    for (int i = 0; i < count; i++)
        if (are[i].bytes > 0 && (!pointers[i] || (uintptr_t)pointers[i] % are[i].element)) return i;
    return -1;
}

/* Whether two tensors share memory. */
static inline bool mithril_overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes) {
    const uintptr_t first = (uintptr_t)a, second = (uintptr_t)b;
    return a_bytes > 0 && b_bytes > 0 && first < second + b_bytes && second < first + a_bytes;
}

/* The first output that overlaps an input or another output; -1 if there is none. */
static inline int mithril_overlapping(const void *const inputs[], const struct mithril_extent *inputs_are,
        int input_count, void *const outputs[], const struct mithril_extent *outputs_are, int output_count) {
    for (int i = 0; i < output_count; i++) {
        for (int j = 0; j < input_count; j++)
            if (mithril_overlap(outputs[i], outputs_are[i].bytes, inputs[j], inputs_are[j].bytes)) return i;
        for (int j = 0; j < i; j++)
            if (mithril_overlap(outputs[i], outputs_are[i].bytes, outputs[j], outputs_are[j].bytes)) return i;
    }
    return -1;
}
#endif
