/* sums[down * across pixels][2 vectors of filters, of which those behind the first `vectors` are 0] = (accumulate ? sums : 0) + the weights times the image under
   them. With down, across, step and run constants all sums stay in registers: a step loads two vectors of weights,
   and for each pixel broadcasts one element of the image. The stride between pixels is `step`, between rows of
   pixels `line`. Under a pixel are `blocks` planes with stride `plane`, each of `height` rows with stride `row`,
   each of `width` taps with stride `column`, each of `run` contiguous elements; `row_gap` weights between two rows of
   taps and `block_gap` between two blocks are not used. Every step prefetches the cache line at `next`, which are
   weights that are used later, and advances it by `stride` bytes. */
MITHRIL_INLINE void mithril_tile_@p@(const long vectors, const long down, const long across, const long step, const long run,
        const @factor@ *restrict image, long line, long blocks, long plane, long height, long row,
        long width, long column, const @factor@ *restrict weights, long row_gap, long block_gap, @type@ *restrict sums,
        int accumulate, const char *next, long stride) {
    enum { LANES = @lanes@ };
    mithril_@t@ sum[@most_rows@][2];
    MITHRIL_UNROLL(@most_rows@)
    for (long pixel = 0; pixel < down * across; pixel++)
        sum[pixel][0] = sum[pixel][1] = (mithril_@t@){0};
    for (; blocks > 0; blocks--, image += plane, weights += block_gap)
        for (long y = 0; y < height; y++, weights += row_gap)
            for (long x = 0; x < width; x++) {
                const @factor@ *const place = image + y * row + x * column;
                MITHRIL_UNROLL_BY(4)
                for (long i = 0; i < run; i++, weights += 2 * LANES, next += stride) {
                    MITHRIL_PREFETCH_L2(next);
                    if (run >= down * across) /* a step for each pixel prefetches what is under it in the next plane */
                        MITHRIL_PREFETCH_L1(place + plane + (down > 1 ? i / across * line : 0) + (down > 1 ? i % across : i) * step);
                    const mithril_@p@ left = MITHRIL_LOAD(@p@, weights), right = MITHRIL_LOAD(@p@, weights + LANES);
                    MITHRIL_UNROLL(@most_rows@)
                    for (long pixel = 0; pixel < down * across; pixel++) {
                        const @factor@ element = place[pixel / across * line + pixel % across * step + i];
                        const mithril_@p@ factor = MITHRIL_BROADCAST_@p@(element);
                        sum[pixel][0] = MITHRIL_ADD_@p@(sum[pixel][0], factor, left);
                        if (vectors > 1)
                            sum[pixel][1] = MITHRIL_ADD_@p@(sum[pixel][1], factor, right);
                    }
                }
            }
    if (accumulate) {
        MITHRIL_UNROLL(@most_rows@)
        for (long pixel = 0; pixel < down * across; pixel++) {
            sum[pixel][0] += MITHRIL_LOAD(@t@, sums + pixel * 2 * LANES);
            if (vectors > 1)
                sum[pixel][1] += MITHRIL_LOAD(@t@, sums + pixel * 2 * LANES + LANES);
        }
    }
    MITHRIL_UNROLL(@most_rows@)
    for (long pixel = 0; pixel < down * across; pixel++) {
        MITHRIL_STORE(@t@, sums + pixel * 2 * LANES, sum[pixel][0]);
        MITHRIL_STORE(@t@, sums + pixel * 2 * LANES + LANES, sum[pixel][1]);
    }
}
