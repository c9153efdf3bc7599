/* Positions in order of size.
 *
 * A tensor is seen as [outer, size, inner]; the lines along the middle axis are sorted. NaN is larger than every
 * number. What is written here for float (_f32) is used for double (_f64) and int64_t (_i64) too. */

static inline int mithril_is_nan_f32(float x) { return x != x; }

static inline int mithril_is_nan_f64(double x) { return x != x; }

static inline int mithril_is_nan_i64(int64_t x) { (void)x; return 0; }

/* Whether a is less than b. */
static inline int mithril_less_f32(float a, float b) {
  return a < b || (mithril_is_nan_f32(b) && !mithril_is_nan_f32(a));
}

/* Sorts the positions first … last - 1, short runs, by moving each to its place among those before it. */
static void mithril_sort_run_f32(const float *line, int64_t *order, int64_t first, int64_t last, int descending) {
  for (int64_t i = first + 1; i < last; i++) {
    int64_t moved = order[i], at = i;
    while (at > first) {
      float before = line[order[at - 1]], x = line[moved];
      if (!(descending ? mithril_less_f32(before, x) : mithril_less_f32(x, before))) break;
      order[at] = order[at - 1];
      at--;
    }
    order[at] = moved;
  }
}

/* Merges the sorted positions from[first … middle - 1] and from[middle … last - 1] into to; of equals the first. */
static void mithril_merge_runs_f32(const float *line, const int64_t *from, int64_t *to, int64_t first, int64_t middle,
                                   int64_t last, int descending) {
  int64_t left = first, right = middle;
  for (int64_t at = first; at < last; at++) {
    int take_right = right < last;
    if (take_right && left < middle) {
      float a = line[from[left]], b = line[from[right]];
      take_right = descending ? mithril_less_f32(a, b) : mithril_less_f32(b, a);
    }
    to[at] = take_right ? from[right++] : from[left++];
  }
}

/* The positions that sort each line; equal elements keep their order. scratch: 3 · size · 8 bytes. */
static void mithril_argsort_f32(const float *input, int64_t *positions, int64_t outer, int64_t size, int64_t inner,
                                int descending, void *scratch) {
  const int64_t run = 16;
  float *line = scratch;
  int64_t *order = (int64_t *)scratch + size, *other = order + size;
  for (int64_t o = 0; o < outer; o++) {
    for (int64_t i = 0; i < inner; i++) {
      const float *from = input + o * size * inner + i;
      for (int64_t k = 0; k < size; k++) {
        line[k] = from[k * inner];
        order[k] = k;
      }
      for (int64_t first = 0; first < size; first += run) {
        mithril_sort_run_f32(line, order, first, first + run < size ? first + run : size, descending);
      }
      for (int64_t width = run; width < size; width *= 2) {
        for (int64_t first = 0; first < size; first += 2 * width) {
          int64_t middle = first + width < size ? first + width : size;
          int64_t last = middle + width < size ? middle + width : size;
          mithril_merge_runs_f32(line, order, other, first, middle, last, descending);
        }
        int64_t *sorted = other;
        other = order;
        order = sorted;
      }
      int64_t *to = positions + o * size * inner + i;
      for (int64_t k = 0; k < size; k++) to[k * inner] = order[k];
    }
  }
}

/* The positions of the k largest (or smallest) elements of each line, in order; of equal elements the first come
 * first. For small k: an element is moved to its place among those found so far. */
static void mithril_topk_f32(const float *input, int64_t *positions, int64_t outer, int64_t size, int64_t k,
                             int64_t inner, int largest) {
  for (int64_t line = 0; line < outer * inner && k > 0; line++) {
    const float *from = input + line / inner * size * inner + line % inner;
    int64_t *found = positions + line / inner * k * inner + line % inner;
    int64_t count = 0;
    float last = 0;
    for (int64_t i = 0; i < size; i++) {
      float x = from[i * inner];
      if (count == k && !(largest ? mithril_less_f32(last, x) : mithril_less_f32(x, last))) continue;
      int64_t at = count < k ? count++ : k - 1;
      while (at > 0) {
        float before = from[found[(at - 1) * inner] * inner];
        if (!(largest ? mithril_less_f32(before, x) : mithril_less_f32(x, before))) break;
        found[at * inner] = found[(at - 1) * inner];
        at--;
      }
      found[at * inner] = i;
      last = from[found[(count - 1) * inner] * inner];
    }
  }
}
