/* What a caller passes is looked at unless -DNDEBUG: then nobody calls these, which compilers warn of. */
#ifndef NDEBUG
/* How many bytes a tensor has, and an element of it. */
struct mithril_extent {
  size_t bytes;
  size_t element;
};

/* Whether pointers to tensors are there, and aligned. */
static inline bool mithril_fits(const void *const pointers[], const struct mithril_extent *are, int64_t count) {
  for (int64_t i = 0; i < count; i++)
    if (are[i].bytes > 0 && (!pointers[i] || (uintptr_t)pointers[i] % are[i].element)) return false;
  return true;
}

/* Whether two tensors share memory. */
static inline bool mithril_overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes) {
  const uintptr_t first = (uintptr_t)a, second = (uintptr_t)b;
  return a_bytes > 0 && b_bytes > 0 && first < second + b_bytes && second < first + a_bytes;
}

/* Whether no output lies where an input or another output does. */
static inline bool mithril_are_apart(const void *const inputs[], const struct mithril_extent *inputs_are,
                                     int64_t input_count, void *const outputs[],
                                     const struct mithril_extent *outputs_are, int64_t output_count) {
  for (int64_t i = 0; i < output_count; i++) {
    for (int64_t j = 0; j < input_count; j++)
      if (mithril_overlap(outputs[i], outputs_are[i].bytes, inputs[j], inputs_are[j].bytes)) return false;
    for (int64_t j = 0; j < i; j++)
      if (mithril_overlap(outputs[i], outputs_are[i].bytes, outputs[j], outputs_are[j].bytes)) return false;
  }
  return true;
}
#endif
