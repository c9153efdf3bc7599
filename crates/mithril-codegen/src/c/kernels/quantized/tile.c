/* sums[down * across pixels][2 vectors of filters] = the weights times the image under them, in whole numbers. As the tile
   of floats: with down, across, step and run constants all sums stay in registers; a step loads two vectors of weights,
   and for each pixel broadcasts one word, which is 4 channels. Under a pixel lie `height` rows, `row` apart, of `width`
   places, `column` apart, of `run` words that lie together. */
MITHRIL_INLINE void mithril_tile_words(const long down, const long across, const long step, const long run,
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
                MITHRIL_FETCH(next);
                const mithril_u32 left = MITHRIL_LOAD(u32, weights), right = MITHRIL_LOAD(u32, weights + LANES);
                MITHRIL_UNROLL(@most_rows@)
                for (long pixel = 0; pixel < down * across; pixel++) {
                    const uint32_t word = place[pixel / across * line + pixel % across * step + i];
                    const mithril_u32 numbers = MITHRIL_BROADCAST_u32(word);
                    sum[pixel][0] = MITHRIL_DOT(sum[pixel][0], numbers, left);
                    sum[pixel][1] = MITHRIL_DOT(sum[pixel][1], numbers, right);
                }
            }
        }
    MITHRIL_UNROLL(@most_rows@)
    for (long pixel = 0; pixel < down * across; pixel++) {
        MITHRIL_STORE(i32, sums + pixel * 2 * LANES, sum[pixel][0]);
        MITHRIL_STORE(i32, sums + pixel * 2 * LANES + LANES, sum[pixel][1]);
    }
}
