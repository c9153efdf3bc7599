/* Running sums and products.
 *
 * A tensor is seen as [outer, size, inner]; the scan runs along the middle axis, from its end with reverse, and
 * leaves the element itself out with exclusive. Sums are kept in double. What is written here for float (_f32) is
 * used for double (_f64) and int64_t (_i64) too. */

/* scratch: inner · 8 bytes, the values so far. */
static void mithril_cumsum_f32(const float *input, float *output, int64_t outer, int64_t size, int64_t inner,
                               int exclusive, int reverse, void *scratch) {
  double *sum = scratch;
  for (int64_t o = 0; o < outer; o++) {
    for (int64_t i = 0; i < inner; i++) sum[i] = 0;
    for (int64_t step = 0; step < size; step++) {
      int64_t k = reverse ? size - 1 - step : step;
      const float *from = input + (o * size + k) * inner;
      float *to = output + (o * size + k) * inner;
      for (int64_t i = 0; i < inner; i++) {
        double before = sum[i];
        sum[i] = before + from[i];
        to[i] = (float)(exclusive ? before : sum[i]);
      }
    }
  }
}

/* scratch: inner · 8 bytes, the values so far. */
static void mithril_cumprod_f32(const float *input, float *output, int64_t outer, int64_t size, int64_t inner,
                                int exclusive, int reverse, void *scratch) {
  double *product = scratch;
  for (int64_t o = 0; o < outer; o++) {
    for (int64_t i = 0; i < inner; i++) product[i] = 1;
    for (int64_t step = 0; step < size; step++) {
      int64_t k = reverse ? size - 1 - step : step;
      const float *from = input + (o * size + k) * inner;
      float *to = output + (o * size + k) * inner;
      for (int64_t i = 0; i < inner; i++) {
        double before = product[i];
        product[i] = before * from[i];
        to[i] = (float)(exclusive ? before : product[i]);
      }
    }
  }
}
