/* b[@k@, @n@]@batched@ in 8 bits: for each column the scale that brings its largest weight to 127. Panels of two vectors of
   columns, [panel][word][2 * LANES], a word being 4 steps of k of one column, the first in the lowest byte;@filled@ then the
   scales of all columns@sums_too@. A column with NaN or infinities has the scale NaN. */
static void @name@(long thread, long threads, const float *restrict b, void *restrict packed) {
    enum { N = @n@, K = @k@, WIDTH = 2 * @lanes@, PANELS = (N + WIDTH - 1) / WIDTH, WORDS = @words@, OFFSET = @offset@ };
    const long all = (long)@matrices@ * PANELS;
    uint32_t *const panels = packed;
    float *const scales = (float *)packed + all * WORDS * WIDTH;
    int32_t *const sums = (int32_t *)packed + all * (WORDS + 1) * WIDTH;
    for (long panel = all * thread / threads; panel < all * (thread + 1) / threads; panel++)
        for (long lane = 0; lane < WIDTH; lane++) {
            const long batch = panel / PANELS, column = panel % PANELS * WIDTH + lane;
            const float *const from = b + @b_batch@ + column * @b_column@;
            const long steps = column < N ? K : 0;@search@
            const float inverse = @inverse@;
            int32_t sum = 0;
            for (long word = 0; word < WORDS; word++) {
                uint32_t bits = 0;
                for (long k = 4 * word; k < 4 * word + 4; k++) {
                    const float weight = k < steps ? from[@b_term@] * inverse : 0;
                    const int32_t number = fabsf(weight) <= 128 ? (int32_t)(weight + (weight < 0 ? -0.5f : 0.5f)) : 0;
                    bits |= (uint32_t)((number + OFFSET) & 255) << 8 * (k & 3);
                    sum += number;
                }
                panels[(panel * WORDS + word) * WIDTH + lane] = bits;
            }
            scales[panel * WIDTH + lane] = @scale@;
            @sums@
            (void)batch;
        }
    (void)sums;
}
