/* Positions in order of size.
 *
 * A tensor is seen as [outer, size, inner]; the lines along the middle axis are sorted, some of them by every thread. NaN
 * is larger than every number. Numbers become unsigned integers in the same order, which are sorted by their bytes, from
 * the last one on; short lines by moving each to its place. */

enum { MITHRIL_SHORT_LINE = 48 };

/* The integer that stands for a number, all NaN the same and -0 as 0; of 32 bits for float. */
static inline uint64_t mithril_order_f32(float x) { return (uint32_t)mithril_level_f32(x) ^ 0x80000000u; }

static inline uint64_t mithril_order_f64(double x) { return (uint64_t)mithril_level_f64(x) ^ 0x8000000000000000u; }

static inline uint64_t mithril_order_i64(int64_t x) { return (uint64_t)x ^ 0x8000000000000000u; }

static inline uint64_t mithril_order_u64(uint64_t x) { return x; }

/* The places where the elements with each value of a byte start, from how many there are; 0 if all have the same. */
static inline int mithril_byte_places(int64_t *counts, int64_t size) {
    int64_t place = 0;
    for (int value = 0; value < 256; value++) {
        const int64_t count = counts[value];
        if (count == size) return 0;
        counts[value] = place;
        place += count;
    }
    return 1;
}

/* An integer of 64 bits and where it comes from. */
struct mithril_keyed {
    uint64_t key;
    int64_t at;
};

/* Sorts by keys; equal ones keep their order. Where they are then: in items or in other. */
static struct mithril_keyed *mithril_sort_keyed(struct mithril_keyed *items, struct mithril_keyed *other,
        int64_t size) {
    if (size <= MITHRIL_SHORT_LINE) {
        for (int64_t i = 1; i < size; i++) {
            const struct mithril_keyed moved = items[i];
            int64_t at = i;
            for (; at > 0 && items[at - 1].key > moved.key; at--) items[at] = items[at - 1];
            items[at] = moved;
        }
        return items;
    }
    uint64_t least = UINT64_MAX, most = 0;
    for (int64_t i = 0; i < size; i++) {
        least = items[i].key < least ? items[i].key : least;
        most = items[i].key > most ? items[i].key : most;
    }
    /* Above the distance between the least and the most nothing differs. */
    for (int shift = 0; shift < 64 && (most - least) >> shift > 0; shift += 8) {
        int64_t counts[256] = {0};
        for (int64_t i = 0; i < size; i++) counts[(items[i].key - least) >> shift & 255]++;
        if (!mithril_byte_places(counts, size)) continue;
        for (int64_t i = 0; i < size; i++) other[counts[(items[i].key - least) >> shift & 255]++] = items[i];
        struct mithril_keyed *sorted = other;
        other = items;
        items = sorted;
    }
    return items;
}

/* The positions that sort each line; equal elements keep their order. scratch: 32 · size bytes. */
static void mithril_argsort_f32(int64_t thread, int64_t threads, const float *input, int64_t *positions,
        int64_t outer, int64_t size, int64_t inner, int descending, void *scratch) {
    struct mithril_keyed *items = scratch, *other = items + size;
    const uint64_t turned = descending ? UINT64_MAX : 0;
    const int64_t last = mithril_part(outer * inner, thread + 1, threads);
    for (int64_t line = mithril_part(outer * inner, thread, threads); line < last; line++) {
        const float *from = input + line / inner * size * inner + line % inner;
        for (int64_t k = 0; k < size; k++) {
            items[k].key = mithril_order_f32(from[k * inner]) ^ turned;
            items[k].at = k;
        }
        const struct mithril_keyed *sorted = mithril_sort_keyed(items, other, size);
        int64_t *to = positions + line / inner * size * inner + line % inner;
        for (int64_t k = 0; k < size; k++) to[k * inner] = sorted[k].at;
    }
}

static inline int mithril_is_nan_f32(float x) { return x != x; }

static inline int mithril_is_nan_f64(double x) { return x != x; }

static inline int mithril_is_nan_i64(int64_t x) {
    (void)x;
    return 0;
}

static inline int mithril_is_nan_u64(uint64_t x) {
    (void)x;
    return 0;
}

/* Whether a is less than b. */
static inline int mithril_less_f32(float a, float b) {
    return a < b || (mithril_is_nan_f32(b) && !mithril_is_nan_f32(a));
}

/* The positions of the k largest (or smallest) elements of each line, in order; of equal elements the first come
 * first. For small k: an element is moved to its place among those selected so far. */
static void mithril_topk_f32(int64_t thread, int64_t threads, const float *input, int64_t *positions, int64_t outer,
        int64_t size, int64_t k, int64_t inner, int largest) {
    const int64_t end = k > 0 ? mithril_part(outer * inner, thread + 1, threads) : 0;
    for (int64_t line = mithril_part(outer * inner, thread, threads); line < end; line++) {
        const float *from = input + line / inner * size * inner + line % inner;
        int64_t *selected = positions + line / inner * k * inner + line % inner;
        int64_t count = 0;
        float last = 0;
        for (int64_t i = 0; i < size; i++) {
            float x = from[i * inner];
            if (count == k && !(largest ? mithril_less_f32(last, x) : mithril_less_f32(x, last))) continue;
            int64_t at = count < k ? count++ : k - 1;
            while (at > 0) {
                float before = from[selected[(at - 1) * inner] * inner];
                if (!(largest ? mithril_less_f32(before, x) : mithril_less_f32(x, before))) break;
                selected[at * inner] = selected[(at - 1) * inner];
                at--;
            }
            selected[at * inner] = i;
            last = from[selected[(count - 1) * inner] * inner];
        }
    }
}
