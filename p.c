#include <stdint.h>
#include <string.h>
#include <math.h>
enum { MITHRIL_ERROR_INDEX=1, MITHRIL_ERROR_SINGULAR, MITHRIL_ERROR_INDEFINITE };
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
void mithril_sort_run_f32(const float *line, int64_t *order, int64_t first, int64_t last, int descending) {
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
void mithril_merge_runs_f32(const float *line, const int64_t *from, int64_t *to, int64_t first, int64_t middle,
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
void mithril_argsort_f32(const float *input, int64_t *positions, int64_t outer, int64_t size, int64_t inner,
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
void mithril_topk_f32(const float *input, int64_t *positions, int64_t outer, int64_t size, int64_t k,
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
/* Whether a is less than b. */
static inline int mithril_less_f64(double a, double b) {
  return a < b || (mithril_is_nan_f64(b) && !mithril_is_nan_f64(a));
}
/* Sorts the positions first … last - 1, short runs, by moving each to its place among those before it. */
void mithril_sort_run_f64(const double *line, int64_t *order, int64_t first, int64_t last, int descending) {
  for (int64_t i = first + 1; i < last; i++) {
    int64_t moved = order[i], at = i;
    while (at > first) {
      double before = line[order[at - 1]], x = line[moved];
      if (!(descending ? mithril_less_f64(before, x) : mithril_less_f64(x, before))) break;
      order[at] = order[at - 1];
      at--;
    }
    order[at] = moved;
  }
}
/* Merges the sorted positions from[first … middle - 1] and from[middle … last - 1] into to; of equals the first. */
void mithril_merge_runs_f64(const double *line, const int64_t *from, int64_t *to, int64_t first, int64_t middle,
                                   int64_t last, int descending) {
  int64_t left = first, right = middle;
  for (int64_t at = first; at < last; at++) {
    int take_right = right < last;
    if (take_right && left < middle) {
      double a = line[from[left]], b = line[from[right]];
      take_right = descending ? mithril_less_f64(a, b) : mithril_less_f64(b, a);
    }
    to[at] = take_right ? from[right++] : from[left++];
  }
}
/* The positions that sort each line; equal elements keep their order. scratch: 3 · size · 8 bytes. */
void mithril_argsort_f64(const double *input, int64_t *positions, int64_t outer, int64_t size, int64_t inner,
                                int descending, void *scratch) {
  const int64_t run = 16;
  double *line = scratch;
  int64_t *order = (int64_t *)scratch + size, *other = order + size;
  for (int64_t o = 0; o < outer; o++) {
    for (int64_t i = 0; i < inner; i++) {
      const double *from = input + o * size * inner + i;
      for (int64_t k = 0; k < size; k++) {
        line[k] = from[k * inner];
        order[k] = k;
      }
      for (int64_t first = 0; first < size; first += run) {
        mithril_sort_run_f64(line, order, first, first + run < size ? first + run : size, descending);
      }
      for (int64_t width = run; width < size; width *= 2) {
        for (int64_t first = 0; first < size; first += 2 * width) {
          int64_t middle = first + width < size ? first + width : size;
          int64_t last = middle + width < size ? middle + width : size;
          mithril_merge_runs_f64(line, order, other, first, middle, last, descending);
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
void mithril_topk_f64(const double *input, int64_t *positions, int64_t outer, int64_t size, int64_t k,
                             int64_t inner, int largest) {
  for (int64_t line = 0; line < outer * inner && k > 0; line++) {
    const double *from = input + line / inner * size * inner + line % inner;
    int64_t *found = positions + line / inner * k * inner + line % inner;
    int64_t count = 0;
    double last = 0;
    for (int64_t i = 0; i < size; i++) {
      double x = from[i * inner];
      if (count == k && !(largest ? mithril_less_f64(last, x) : mithril_less_f64(x, last))) continue;
      int64_t at = count < k ? count++ : k - 1;
      while (at > 0) {
        double before = from[found[(at - 1) * inner] * inner];
        if (!(largest ? mithril_less_f64(before, x) : mithril_less_f64(x, before))) break;
        found[at * inner] = found[(at - 1) * inner];
        at--;
      }
      found[at * inner] = i;
      last = from[found[(count - 1) * inner] * inner];
    }
  }
}

/* Whether a is less than b. */
static inline int mithril_less_i64(int64_t a, int64_t b) {
  return a < b || (mithril_is_nan_i64(b) && !mithril_is_nan_i64(a));
}
/* Sorts the positions first … last - 1, short runs, by moving each to its place among those before it. */
void mithril_sort_run_i64(const int64_t *line, int64_t *order, int64_t first, int64_t last, int descending) {
  for (int64_t i = first + 1; i < last; i++) {
    int64_t moved = order[i], at = i;
    while (at > first) {
      int64_t before = line[order[at - 1]], x = line[moved];
      if (!(descending ? mithril_less_i64(before, x) : mithril_less_i64(x, before))) break;
      order[at] = order[at - 1];
      at--;
    }
    order[at] = moved;
  }
}
/* Merges the sorted positions from[first … middle - 1] and from[middle … last - 1] into to; of equals the first. */
void mithril_merge_runs_i64(const int64_t *line, const int64_t *from, int64_t *to, int64_t first, int64_t middle,
                                   int64_t last, int descending) {
  int64_t left = first, right = middle;
  for (int64_t at = first; at < last; at++) {
    int take_right = right < last;
    if (take_right && left < middle) {
      int64_t a = line[from[left]], b = line[from[right]];
      take_right = descending ? mithril_less_i64(a, b) : mithril_less_i64(b, a);
    }
    to[at] = take_right ? from[right++] : from[left++];
  }
}
/* The positions that sort each line; equal elements keep their order. scratch: 3 · size · 8 bytes. */
void mithril_argsort_i64(const int64_t *input, int64_t *positions, int64_t outer, int64_t size, int64_t inner,
                                int descending, void *scratch) {
  const int64_t run = 16;
  int64_t *line = scratch;
  int64_t *order = (int64_t *)scratch + size, *other = order + size;
  for (int64_t o = 0; o < outer; o++) {
    for (int64_t i = 0; i < inner; i++) {
      const int64_t *from = input + o * size * inner + i;
      for (int64_t k = 0; k < size; k++) {
        line[k] = from[k * inner];
        order[k] = k;
      }
      for (int64_t first = 0; first < size; first += run) {
        mithril_sort_run_i64(line, order, first, first + run < size ? first + run : size, descending);
      }
      for (int64_t width = run; width < size; width *= 2) {
        for (int64_t first = 0; first < size; first += 2 * width) {
          int64_t middle = first + width < size ? first + width : size;
          int64_t last = middle + width < size ? middle + width : size;
          mithril_merge_runs_i64(line, order, other, first, middle, last, descending);
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
void mithril_topk_i64(const int64_t *input, int64_t *positions, int64_t outer, int64_t size, int64_t k,
                             int64_t inner, int largest) {
  for (int64_t line = 0; line < outer * inner && k > 0; line++) {
    const int64_t *from = input + line / inner * size * inner + line % inner;
    int64_t *found = positions + line / inner * k * inner + line % inner;
    int64_t count = 0;
    int64_t last = 0;
    for (int64_t i = 0; i < size; i++) {
      int64_t x = from[i * inner];
      if (count == k && !(largest ? mithril_less_i64(last, x) : mithril_less_i64(x, last))) continue;
      int64_t at = count < k ? count++ : k - 1;
      while (at > 0) {
        int64_t before = from[found[(at - 1) * inner] * inner];
        if (!(largest ? mithril_less_i64(before, x) : mithril_less_i64(x, before))) break;
        found[at * inner] = found[(at - 1) * inner];
        at--;
      }
      found[at * inner] = i;
      last = from[found[(count - 1) * inner] * inner];
    }
  }
}

/* Running sums and products.
 *
 * A tensor is seen as [outer, size, inner]; the scan runs along the middle axis, from its end with reverse, and
 * leaves the element itself out with exclusive. Sums are kept in double. What is written here for float (_f32) is
 * used for double (_f64) and int64_t (_i64) too. */

/* scratch: inner · 8 bytes, the values so far. */
void mithril_cumsum_f32(const float *input, float *output, int64_t outer, int64_t size, int64_t inner,
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
void mithril_cumprod_f32(const float *input, float *output, int64_t outer, int64_t size, int64_t inner,
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
/* scratch: inner · 8 bytes, the values so far. */
void mithril_cumsum_f64(const double *input, double *output, int64_t outer, int64_t size, int64_t inner,
                               int exclusive, int reverse, void *scratch) {
  double *sum = scratch;
  for (int64_t o = 0; o < outer; o++) {
    for (int64_t i = 0; i < inner; i++) sum[i] = 0;
    for (int64_t step = 0; step < size; step++) {
      int64_t k = reverse ? size - 1 - step : step;
      const double *from = input + (o * size + k) * inner;
      double *to = output + (o * size + k) * inner;
      for (int64_t i = 0; i < inner; i++) {
        double before = sum[i];
        sum[i] = before + from[i];
        to[i] = (double)(exclusive ? before : sum[i]);
      }
    }
  }
}
/* scratch: inner · 8 bytes, the values so far. */
void mithril_cumprod_f64(const double *input, double *output, int64_t outer, int64_t size, int64_t inner,
                                int exclusive, int reverse, void *scratch) {
  double *product = scratch;
  for (int64_t o = 0; o < outer; o++) {
    for (int64_t i = 0; i < inner; i++) product[i] = 1;
    for (int64_t step = 0; step < size; step++) {
      int64_t k = reverse ? size - 1 - step : step;
      const double *from = input + (o * size + k) * inner;
      double *to = output + (o * size + k) * inner;
      for (int64_t i = 0; i < inner; i++) {
        double before = product[i];
        product[i] = before * from[i];
        to[i] = (double)(exclusive ? before : product[i]);
      }
    }
  }
}

/* scratch: inner · 8 bytes, the values so far. */
void mithril_cumsum_i64(const int64_t *input, int64_t *output, int64_t outer, int64_t size, int64_t inner,
                               int exclusive, int reverse, void *scratch) {
  uint64_t *sum = scratch;
  for (int64_t o = 0; o < outer; o++) {
    for (int64_t i = 0; i < inner; i++) sum[i] = 0;
    for (int64_t step = 0; step < size; step++) {
      int64_t k = reverse ? size - 1 - step : step;
      const int64_t *from = input + (o * size + k) * inner;
      int64_t *to = output + (o * size + k) * inner;
      for (int64_t i = 0; i < inner; i++) {
        uint64_t before = sum[i];
        sum[i] = before + from[i];
        to[i] = (int64_t)(exclusive ? before : sum[i]);
      }
    }
  }
}
/* scratch: inner · 8 bytes, the values so far. */
void mithril_cumprod_i64(const int64_t *input, int64_t *output, int64_t outer, int64_t size, int64_t inner,
                                int exclusive, int reverse, void *scratch) {
  uint64_t *product = scratch;
  for (int64_t o = 0; o < outer; o++) {
    for (int64_t i = 0; i < inner; i++) product[i] = 1;
    for (int64_t step = 0; step < size; step++) {
      int64_t k = reverse ? size - 1 - step : step;
      const int64_t *from = input + (o * size + k) * inner;
      int64_t *to = output + (o * size + k) * inner;
      for (int64_t i = 0; i < inner; i++) {
        uint64_t before = product[i];
        product[i] = before * from[i];
        to[i] = (int64_t)(exclusive ? before : product[i]);
      }
    }
  }
}

/* Additions and replacements at positions that are data.
 *
 * Tensors are seen as [outer, size, inner], sources as [outer, count, inner]. Negative positions count from the end;
 * a position outside the axis is MITHRIL_ERROR_INDEX, and then the output is not complete. What is written here for
 * float (_f32) is used for double (_f64) and int64_t (_i64) too. */

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

/* The input with each element of source added at the position along the axis that indices, shaped as source, gives. */
int mithril_scatter_add_f32(const float *input, const int64_t *indices, const float *source, float *output,
                                   int64_t outer, int64_t size, int64_t count, int64_t inner) {
  memcpy(output, input, (size_t)(outer * size * inner) * sizeof(float));
  for (int64_t o = 0; o < outer; o++) {
    for (int64_t k = 0; k < count; k++) {
      const int64_t *index = indices + (o * count + k) * inner;
      const float *from = source + (o * count + k) * inner;
      for (int64_t i = 0; i < inner; i++) {
        int64_t at = mithril_position(index[i], size);
        if (at < 0) return MITHRIL_ERROR_INDEX;
        mithril_add_f32(output + (o * size + at) * inner + i, from + i, 1);
      }
    }
  }
  return 0;
}

/* The input with the slices of source added at positions (count of them) along the axis. */
int mithril_index_add_f32(const float *input, const int64_t *indices, const float *source, float *output,
                                 int64_t outer, int64_t size, int64_t count, int64_t inner) {
  memcpy(output, input, (size_t)(outer * size * inner) * sizeof(float));
  for (int64_t o = 0; o < outer; o++) {
    for (int64_t k = 0; k < count; k++) {
      int64_t at = mithril_position(indices[k], size);
      if (at < 0) return MITHRIL_ERROR_INDEX;
      mithril_add_f32(output + (o * size + at) * inner, source + (o * count + k) * inner, inner);
    }
  }
  return 0;
}

/* The input with the slices of source in place of those at the positions; inner counts bytes. */
int mithril_index_copy(const void *input, const int64_t *indices, const void *source, void *output,
                              int64_t outer, int64_t size, int64_t count, int64_t inner) {
  memcpy(output, input, (size_t)(outer * size * inner));
  for (int64_t o = 0; o < outer; o++) {
    for (int64_t k = 0; k < count; k++) {
      int64_t at = mithril_position(indices[k], size);
      if (at < 0) return MITHRIL_ERROR_INDEX;
      char *to = (char *)output + (o * size + at) * inner;
      memcpy(to, (const char *)source + (o * count + k) * inner, (size_t)inner);
    }
  }
  return 0;
}
/* Adds n elements. */
static inline void mithril_add_f64(double *sum, const double *x, int64_t n) {
  for (int64_t i = 0; i < n; i++) sum[i] += x[i];
}
/* The input with each element of source added at the position along the axis that indices, shaped as source, gives. */
int mithril_scatter_add_f64(const double *input, const int64_t *indices, const double *source, double *output,
                                   int64_t outer, int64_t size, int64_t count, int64_t inner) {
  memcpy(output, input, (size_t)(outer * size * inner) * sizeof(double));
  for (int64_t o = 0; o < outer; o++) {
    for (int64_t k = 0; k < count; k++) {
      const int64_t *index = indices + (o * count + k) * inner;
      const double *from = source + (o * count + k) * inner;
      for (int64_t i = 0; i < inner; i++) {
        int64_t at = mithril_position(index[i], size);
        if (at < 0) return MITHRIL_ERROR_INDEX;
        mithril_add_f64(output + (o * size + at) * inner + i, from + i, 1);
      }
    }
  }
  return 0;
}
/* The input with the slices of source added at positions (count of them) along the axis. */
int mithril_index_add_f64(const double *input, const int64_t *indices, const double *source, double *output,
                                 int64_t outer, int64_t size, int64_t count, int64_t inner) {
  memcpy(output, input, (size_t)(outer * size * inner) * sizeof(double));
  for (int64_t o = 0; o < outer; o++) {
    for (int64_t k = 0; k < count; k++) {
      int64_t at = mithril_position(indices[k], size);
      if (at < 0) return MITHRIL_ERROR_INDEX;
      mithril_add_f64(output + (o * size + at) * inner, source + (o * count + k) * inner, inner);
    }
  }
  return 0;
}
/* The input with each element of source added at the position along the axis that indices, shaped as source, gives. */
int mithril_scatter_add_i64(const int64_t *input, const int64_t *indices, const int64_t *source, int64_t *output,
                                   int64_t outer, int64_t size, int64_t count, int64_t inner) {
  memcpy(output, input, (size_t)(outer * size * inner) * sizeof(int64_t));
  for (int64_t o = 0; o < outer; o++) {
    for (int64_t k = 0; k < count; k++) {
      const int64_t *index = indices + (o * count + k) * inner;
      const int64_t *from = source + (o * count + k) * inner;
      for (int64_t i = 0; i < inner; i++) {
        int64_t at = mithril_position(index[i], size);
        if (at < 0) return MITHRIL_ERROR_INDEX;
        mithril_add_i64(output + (o * size + at) * inner + i, from + i, 1);
      }
    }
  }
  return 0;
}
/* The input with the slices of source added at positions (count of them) along the axis. */
int mithril_index_add_i64(const int64_t *input, const int64_t *indices, const int64_t *source, int64_t *output,
                                 int64_t outer, int64_t size, int64_t count, int64_t inner) {
  memcpy(output, input, (size_t)(outer * size * inner) * sizeof(int64_t));
  for (int64_t o = 0; o < outer; o++) {
    for (int64_t k = 0; k < count; k++) {
      int64_t at = mithril_position(indices[k], size);
      if (at < 0) return MITHRIL_ERROR_INDEX;
      mithril_add_i64(output + (o * size + at) * inner, source + (o * count + k) * inner, inner);
    }
  }
  return 0;
}
/* Decompositions of square matrices, row-major and in double; matrices follow one another. A function that can meet
 * a matrix it has no result for returns MITHRIL_ERROR_SINGULAR or MITHRIL_ERROR_INDEFINITE. */

/* P·A = L·U in place by elimination with the largest pivot of each column, both factors in one matrix; rows[i] is
 * the row of A that stands at i. The sign of the permutation, or 0 if the matrix is singular. */
int mithril_lu(double *a, int64_t *rows, int64_t n) {
  int sign = 1;
  for (int64_t i = 0; i < n; i++) rows[i] = i;
  for (int64_t k = 0; k < n; k++) {
    int64_t pivot = k;
    for (int64_t i = k + 1; i < n; i++) {
      if (fabs(a[i * n + k]) > fabs(a[pivot * n + k])) pivot = i;
    }
    if (pivot != k) {
      for (int64_t j = 0; j < n; j++) {
        double x = a[k * n + j];
        a[k * n + j] = a[pivot * n + j];
        a[pivot * n + j] = x;
      }
      int64_t row = rows[k];
      rows[k] = rows[pivot];
      rows[pivot] = row;
      sign = -sign;
    }
    if (a[k * n + k] == 0) return 0;
    for (int64_t i = k + 1; i < n; i++) {
      double factor = a[i * n + k] / a[k * n + k];
      a[i * n + k] = factor;
      for (int64_t j = k + 1; j < n; j++) a[i * n + j] -= factor * a[k * n + j];
    }
  }
  return sign;
}

/* Replaces the right-hand sides x [n, columns] by the solutions of a triangular system: row by row from the diagonal's
 * end that is known. With unit the diagonal is 1 and not read; with transposed the matrix is the transpose of a. */
void mithril_substitute(const double *a, double *x, int64_t n, int64_t columns, int lower, int transposed,
                               int unit) {
  for (int64_t step = 0; step < n; step++) {
    int64_t i = lower ? step : n - 1 - step;
    int64_t first = lower ? 0 : i + 1, last = lower ? i : n;
    for (int64_t j = first; j < last; j++) {
      double factor = transposed ? a[j * n + i] : a[i * n + j];
      for (int64_t c = 0; c < columns; c++) x[i * columns + c] -= factor * x[j * columns + c];
    }
    if (!unit) {
      for (int64_t c = 0; c < columns; c++) x[i * columns + c] /= a[i * n + i];
    }
  }
}

/* solution with left · solution = right for count systems of columns right-hand sides each.
 * scratch: (n · n + n) · 8 bytes. */
int mithril_solve(const double *left, const double *right, double *solution, int64_t count, int64_t n,
                         int64_t columns, void *scratch) {
  double *lu = scratch;
  int64_t *rows = (int64_t *)(lu + n * n);
  for (int64_t m = 0; m < count; m++) {
    memcpy(lu, left + m * n * n, (size_t)(n * n) * sizeof(double));
    if (mithril_lu(lu, rows, n) == 0) return MITHRIL_ERROR_SINGULAR;
    double *x = solution + m * n * columns;
    for (int64_t i = 0; i < n; i++) {
      memcpy(x + i * columns, right + (m * n + rows[i]) * columns, (size_t)columns * sizeof(double));
    }
    mithril_substitute(lu, x, n, columns, 1, 0, 1);
    mithril_substitute(lu, x, n, columns, 0, 0, 0);
  }
  return 0;
}

/* As mithril_solve for triangular matrices, of which only the lower or the upper triangle is read. */
int mithril_triangular_solve(const double *left, const double *right, double *solution, int64_t count,
                                    int64_t n, int64_t columns, int lower, int transposed) {
  memcpy(solution, right, (size_t)(count * n * columns) * sizeof(double));
  for (int64_t m = 0; m < count; m++) {
    const double *a = left + m * n * n;
    for (int64_t i = 0; i < n; i++) {
      if (a[i * n + i] == 0) return MITHRIL_ERROR_SINGULAR;
    }
    mithril_substitute(a, solution + m * n * columns, n, columns, lower != transposed, transposed, 0);
  }
  return 0;
}

/* The inverses of count matrices. scratch: (n · n + n) · 8 bytes. */
int mithril_inverse(const double *input, double *inverse, int64_t count, int64_t n, void *scratch) {
  double *lu = scratch;
  int64_t *rows = (int64_t *)(lu + n * n);
  for (int64_t m = 0; m < count; m++) {
    memcpy(lu, input + m * n * n, (size_t)(n * n) * sizeof(double));
    if (mithril_lu(lu, rows, n) == 0) return MITHRIL_ERROR_SINGULAR;
    double *x = inverse + m * n * n;
    for (int64_t i = 0; i < n; i++) {
      for (int64_t j = 0; j < n; j++) x[i * n + j] = rows[i] == j;
    }
    mithril_substitute(lu, x, n, n, 1, 0, 1);
    mithril_substitute(lu, x, n, n, 0, 0, 0);
  }
  return 0;
}

/* The determinants of count matrices. scratch: (n · n + n) · 8 bytes. */
void mithril_determinant(const double *input, double *determinant, int64_t count, int64_t n, void *scratch) {
  double *lu = scratch;
  int64_t *rows = (int64_t *)(lu + n * n);
  for (int64_t m = 0; m < count; m++) {
    memcpy(lu, input + m * n * n, (size_t)(n * n) * sizeof(double));
    int sign = mithril_lu(lu, rows, n);
    double product = sign;
    for (int64_t i = 0; i < n && sign != 0; i++) product *= lu[i * n + i];
    determinant[m] = product;
  }
}

/* Signs of the determinants of count matrices and logarithms of their absolute values; 0 and minus infinity for a
 * singular matrix. scratch: (n · n + n) · 8 bytes. */
void mithril_log_determinant(const double *input, double *signs, double *logarithms, int64_t count, int64_t n,
                                    void *scratch) {
  double *lu = scratch;
  int64_t *rows = (int64_t *)(lu + n * n);
  for (int64_t m = 0; m < count; m++) {
    memcpy(lu, input + m * n * n, (size_t)(n * n) * sizeof(double));
    int sign = mithril_lu(lu, rows, n);
    double logarithm = sign == 0 ? -INFINITY : 0;
    double direction = sign;
    for (int64_t i = 0; i < n && sign != 0; i++) {
      double pivot = lu[i * n + i];
      logarithm += log(fabs(pivot));
      direction *= pivot != pivot ? pivot : pivot < 0 ? -1 : 1;
    }
    signs[m] = direction;
    logarithms[m] = logarithm;
  }
}

/* The lower Cholesky factors of the symmetric parts of count matrices. */
int mithril_cholesky(const double *input, double *factor, int64_t count, int64_t n) {
  for (int64_t m = 0; m < count; m++) {
    const double *a = input + m * n * n;
    double *l = factor + m * n * n;
    for (int64_t i = 0; i < n; i++) {
      for (int64_t j = 0; j <= i; j++) {
        double rest = 0.5 * a[i * n + j] + 0.5 * a[j * n + i];
        for (int64_t k = 0; k < j; k++) rest -= l[i * n + k] * l[j * n + k];
        if (i == j && rest <= 0) return MITHRIL_ERROR_INDEFINITE;
        l[i * n + j] = i == j ? sqrt(rest) : rest / l[j * n + j];
      }
      for (int64_t j = i + 1; j < n; j++) l[i * n + j] = 0;
    }
  }
  return 0;
}
/* Discrete Fourier transforms of any size, in double: real and imaginary parts lie in arrays of their own.
 *
 * A tensor is seen as [outer, size, inner] and transformed along the middle axis. A size is split into its prime
 * factors (Cooley and Tukey 1965). One with a prime factor above MITHRIL_FFT_LARGEST_PRIME becomes a convolution
 * of a size that is a power of two (Bluestein 1970). */

enum { MITHRIL_FFT_LARGEST_PRIME = 61 };

/* exp(2πi·j/n), exact where it is simple; 0 <= j < n. */
void mithril_fft_root(int64_t j, int64_t n, double *re, double *im) {
  const double turn = 6.283185307179586476925286766559;
  double quarter[4][2] = {{1, 0}, {0, 1}, {-1, 0}, {0, -1}};
  /* By symmetry to an angle of at most an eighth of a turn around the nearest quarter. */
  int64_t nearest = (8 * j + n) / (2 * n);
  double angle = turn * (double)(4 * j - nearest * n) / (double)(4 * n);
  double c = cos(angle), s = sin(angle), *q = quarter[nearest % 4];
  *re = q[0] * c - q[1] * s;
  *im = q[0] * s + q[1] * c;
}

/* Whether all prime factors of n are small. */
int mithril_fft_is_smooth(int64_t n) {
  for (int64_t p = 2; p <= MITHRIL_FFT_LARGEST_PRIME; p++) {
    while (n % p == 0) n /= p;
  }
  return n == 1;
}

/* Joins the transforms of four quarters, m elements each, one after the other at re and im. */
void mithril_fft_join4(double *restrict re, double *restrict im, int64_t m, double sign,
                              const double *restrict root_re, const double *restrict root_im, int64_t stride) {
  for (int64_t k = 0; k < m; k++) {
    const double c1 = root_re[k * stride], s1 = sign * root_im[k * stride];
    const double c2 = root_re[2 * k * stride], s2 = sign * root_im[2 * k * stride];
    const double c3 = root_re[3 * k * stride], s3 = sign * root_im[3 * k * stride];
    const double x0 = re[k], y0 = im[k];
    const double x1 = re[m + k] * c1 - im[m + k] * s1, y1 = re[m + k] * s1 + im[m + k] * c1;
    const double x2 = re[2 * m + k] * c2 - im[2 * m + k] * s2, y2 = re[2 * m + k] * s2 + im[2 * m + k] * c2;
    const double x3 = re[3 * m + k] * c3 - im[3 * m + k] * s3, y3 = re[3 * m + k] * s3 + im[3 * m + k] * c3;
    const double even_x = x0 + x2, even_y = y0 + y2, rest_x = x0 - x2, rest_y = y0 - y2;
    const double odd_x = x1 + x3, odd_y = y1 + y3, turned_x = sign * (y3 - y1), turned_y = sign * (x1 - x3);
    re[k] = even_x + odd_x;
    im[k] = even_y + odd_y;
    re[m + k] = rest_x + turned_x;
    im[m + k] = rest_y + turned_y;
    re[2 * m + k] = even_x - odd_x;
    im[2 * m + k] = even_y - odd_y;
    re[3 * m + k] = rest_x - turned_x;
    im[3 * m + k] = rest_y - turned_y;
  }
}

/* Joins the transforms of p parts, m elements each. work: 2 · p elements. */
void mithril_fft_join(double *re, double *im, int64_t p, int64_t m, double sign, const double *root_re,
                             const double *root_im, int64_t stride, double *work) {
  double *x = work, *y = work + p;
  for (int64_t k = 0; k < m; k++) {
    /* The k-th results of the parts, turned. */
    for (int64_t r = 0; r < p; r++) {
      const double c = root_re[r * k * stride], s = sign * root_im[r * k * stride];
      x[r] = re[r * m + k] * c - im[r * m + k] * s;
      y[r] = re[r * m + k] * s + im[r * m + k] * c;
    }
    for (int64_t q = 0; q < p; q++) {
      double sum_x = x[0], sum_y = y[0];
      int64_t j = 0; /* (r · q mod p) of p parts of the turn */
      for (int64_t r = 1; r < p; r++) {
        j += q * m * stride;
        if (j >= p * m * stride) j -= p * m * stride;
        const double c = root_re[j], s = sign * root_im[j];
        sum_x += x[r] * c - y[r] * s;
        sum_y += x[r] * s + y[r] * c;
      }
      re[q * m + k] = sum_x;
      im[q * m + k] = sum_y;
    }
  }
}

/* The transform of n elements at from, step apart, into to; sign is that of the exponent. roots holds exp(2πi·j/whole)
 * for all j below whole, a multiple of n. work: 2 · MITHRIL_FFT_LARGEST_PRIME elements. */
void mithril_fft_smooth(const double *from_re, const double *from_im, int64_t step, double *to_re,
                               double *to_im, int64_t n, double sign, const double *root_re, const double *root_im,
                               int64_t whole, double *work) {
  int64_t p = n % 4 == 0 ? 4 : 2;
  while (p < n && n % p != 0) p++;
  const int64_t m = n / p, stride = whole / n;
  if (m <= 1) {
    for (int64_t r = 0; r < n; r++) {
      to_re[r] = from_re[r * step];
      to_im[r] = from_im[r * step];
    }
  } else {
    for (int64_t r = 0; r < p; r++) {
      mithril_fft_smooth(from_re + r * step, from_im + r * step, step * p, to_re + r * m, to_im + r * m, m, sign,
                         root_re, root_im, whole, work);
    }
  }
  if (n == 1) return;
  if (p == 4) {
    mithril_fft_join4(to_re, to_im, m, sign, root_re, root_im, stride);
  } else {
    mithril_fft_join(to_re, to_im, p, m, sign, root_re, root_im, stride, work);
  }
}

/* The least power of two that a convolution of n by n elements fits into. */
int64_t mithril_fft_padded(int64_t n) {
  int64_t padded = 1;
  while (padded < 2 * n - 1) padded *= 2;
  return padded;
}

/* Fills the tables of a transform of n elements: the roots, and for a convolution its chirp exp(πi·k²/n) and the
 * transform of that. tables: as said at mithril_fft. */
void mithril_fft_prepare(double *tables, int64_t n, double *work) {
  int64_t whole = mithril_fft_is_smooth(n) ? n : mithril_fft_padded(n);
  double *root_re = tables, *root_im = tables + whole;
  for (int64_t j = 0; j < whole; j++) mithril_fft_root(j, whole, root_re + j, root_im + j);
  if (whole == n && mithril_fft_is_smooth(n)) return;
  double *chirp_re = tables + 2 * whole, *chirp_im = chirp_re + n, *filter_re = chirp_im + n;
  double *filter_im = filter_re + whole, *long_re = filter_im + whole, *long_im = long_re + whole;
  for (int64_t i = 0; i < whole; i++) long_re[i] = long_im[i] = 0;
  int64_t square = 0; /* k² mod 2n, by differences so that it never overflows */
  for (int64_t k = 0; k < n; k++) {
    mithril_fft_root(square, 2 * n, chirp_re + k, chirp_im + k);
    long_re[k] = long_re[(whole - k) % whole] = chirp_re[k];
    long_im[k] = long_im[(whole - k) % whole] = chirp_im[k];
    square = (square + 2 * k + 1) % (2 * n);
  }
  mithril_fft_smooth(long_re, long_im, 1, filter_re, filter_im, whole, -1, root_re, root_im, whole, work);
}

/* The transform of n elements with a large prime factor: with k·t = (k² + t² - (k-t)²)/2 a convolution with the
 * chirp. The sign of the exponent is that of the imaginary parts on both sides. */
void mithril_fft_chirp(const double *from_re, const double *from_im, double *to_re, double *to_im, int64_t n,
                              double sign, double *tables, double *work) {
  int64_t whole = mithril_fft_padded(n);
  double *root_re = tables, *root_im = tables + whole;
  double *chirp_re = tables + 2 * whole, *chirp_im = chirp_re + n, *filter_re = chirp_im + n;
  double *filter_im = filter_re + whole, *long_re = filter_im + whole, *long_im = long_re + whole;
  double *spectrum_re = long_im + whole, *spectrum_im = spectrum_re + whole;
  for (int64_t k = 0; k < whole; k++) {
    double re = k < n ? from_re[k] : 0, im = k < n ? -sign * from_im[k] : 0;
    double c = k < n ? chirp_re[k] : 0, s = k < n ? -chirp_im[k] : 0;
    long_re[k] = re * c - im * s;
    long_im[k] = re * s + im * c;
  }
  mithril_fft_smooth(long_re, long_im, 1, spectrum_re, spectrum_im, whole, -1, root_re, root_im, whole, work);
  for (int64_t k = 0; k < whole; k++) {
    double re = spectrum_re[k], im = spectrum_im[k];
    spectrum_re[k] = re * filter_re[k] - im * filter_im[k];
    spectrum_im[k] = re * filter_im[k] + im * filter_re[k];
  }
  mithril_fft_smooth(spectrum_re, spectrum_im, 1, long_re, long_im, whole, 1, root_re, root_im, whole, work);
  for (int64_t k = 0; k < n; k++) {
    double re = long_re[k] / (double)whole, im = long_im[k] / (double)whole;
    to_re[k] = re * chirp_re[k] + im * chirp_im[k];
    to_im[k] = -sign * (im * chirp_re[k] - re * chirp_im[k]);
  }
}

/* Output k of each line is scale · Σ_t input[t] · exp(sign·2πi·k·t/size), for k below kept. The input has given
 * elements along the axis: size, or size / 2 + 1, and then the rest mirrors them (the spectrum of a real signal).
 * imag may be NULL: 0; so may output_imag: not wanted.
 * scratch: (128 + 4·size + 2·w) · 8 bytes, where w is size if all its prime factors are at most 61; otherwise
 * (128 + 6·size + 8·w) · 8 bytes, where w is the least power of two that is at least 2·size - 1. */
void mithril_fft(const double *real, const double *imag, double *output_real, double *output_imag,
                        int64_t outer, int64_t given, int64_t size, int64_t kept, int64_t inner, double sign,
                        double scale, void *scratch) {
  double *work = scratch, *re = work + 128, *im = re + size, *to_re = im + size, *to_im = to_re + size;
  double *tables = to_im + size;
  int is_smooth = mithril_fft_is_smooth(size);
  mithril_fft_prepare(tables, size, work);
  for (int64_t line = 0; line < outer * inner; line++) {
    int64_t o = line / inner, i = line % inner;
    for (int64_t t = 0; t < size; t++) {
      int64_t mirrored = t < given ? t : size - t, from = (o * given + mirrored) * inner + i;
      re[t] = real[from];
      im[t] = imag == NULL ? 0 : t < given ? imag[from] : -imag[from];
      /* The spectrum of a real signal is real where it mirrors itself. */
      if (given < size && (t == 0 || 2 * t == size)) im[t] = 0;
    }
    if (is_smooth) {
      mithril_fft_smooth(re, im, 1, to_re, to_im, size, sign, tables, tables + size, size, work);
    } else {
      mithril_fft_chirp(re, im, to_re, to_im, size, sign, tables, work);
    }
    for (int64_t k = 0; k < kept; k++) {
      int64_t at = (o * kept + k) * inner + i;
      output_real[at] = scale * to_re[k];
      if (output_imag != NULL) output_imag[at] = scale * to_im[k];
    }
  }
}
