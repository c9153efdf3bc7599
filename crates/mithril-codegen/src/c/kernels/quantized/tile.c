/* sums[down * across pixels][2 vectors of filters, of which those behind the first `vectors` are 0] = the weights times the image under them, in integers. Since down, across,
   step and run are constants, all sums stay in registers: a step loads two vectors of weights and broadcasts one
   word of 4 channels for each pixel. Under a pixel are `height` rows with stride `row`, each of `width` taps with
   stride `column`, each of `run` contiguous words; behind the weights of these, `unused` words are skipped. */
MITHRIL_INLINE void mithril_tile_words(const long vectors, const long down, const long across, const long step, const long run, const long unused,
        const uint32_t *restrict image, long line, long height, long row, long width, long column,
        const uint32_t *restrict weights, int32_t *restrict sums, const char *next, long stride) {
    enum { LANES = @lanes@ };
    mithril_i32 sum[@most_rows@][2];
    MITHRIL_UNROLL(@most_rows@)
    for (long pixel = 0; pixel < down * across; pixel++)
        sum[pixel][0] = sum[pixel][1] = (mithril_i32){0};
    for (long y = 0; y < height; y++)
        for (long x = 0; x < width; x++) {
            const uint32_t *const place = image + y * row + x * column;
            for (long i = 0; i < run; i++, weights += 2 * LANES, next += stride) {
                MITHRIL_PREFETCH_L2(next);
                const mithril_u32 left = MITHRIL_LOAD(u32, weights), right = MITHRIL_LOAD(u32, weights + LANES);
                MITHRIL_UNROLL(@most_rows@)
                for (long pixel = 0; pixel < down * across; pixel++) {
                    const uint32_t word = place[pixel / across * line + pixel % across * step + i];
                    const mithril_u32 numbers = MITHRIL_BROADCAST_u32(word);
                    sum[pixel][0] = MITHRIL_DOT(sum[pixel][0], numbers, left);
                    if (vectors > 1)
                        sum[pixel][1] = MITHRIL_DOT(sum[pixel][1], numbers, right);
                }
            }
            weights += unused * 2 * LANES;
            next += unused * stride;
        }
    MITHRIL_UNROLL(@most_rows@)
    for (long pixel = 0; pixel < down * across; pixel++) {
        MITHRIL_STORE(i32, sums + pixel * 2 * LANES, sum[pixel][0]);
        MITHRIL_STORE(i32, sums + pixel * 2 * LANES + LANES, sum[pixel][1]);
    }
}
