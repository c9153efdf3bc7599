/* tile[rows][2 vectors] = (accumulate ? tile : 0) + a · panel; those behind the first `vectors` are 0. Since rows is a constant, all sums stay in registers: a
   step of k loads two vectors of the panel and broadcasts one element of a for each row.
   a: blocks of @lanes@ steps of k, each block [height][@lanes@], of which these are the first rows; panel: [k][2 vectors].
   Where `next` is prefetched, it points to weights that are used later; every step advances it by `stride` bytes. */
MITHRIL_INLINE void mithril_micro_@p@@panels@(const long vectors, const long rows, const long height, long k, const @factor@ *restrict a, const @factor@ *restrict panel,
        @type@ *restrict tile, int accumulate, const char *next, long stride) {
    enum { LANES = @lanes@ };
    mithril_@t@ sum[@most_rows@][2];
    MITHRIL_UNROLL(@most_rows@)
    for (long row = 0; row < rows; row++)
        sum[row][0] = sum[row][1] = (mithril_@t@){0};
    for (; k > 0; k -= LANES, a += height * LANES) {
        const long steps = k < LANES ? k : LANES;
        MITHRIL_UNROLL_BY(4)
        for (long step = 0; step < steps; step++, panel += 2 * LANES, next += stride) {
            @fetch@
            const mithril_@p@ left = MITHRIL_LOAD(@p@, panel), right = MITHRIL_LOAD(@p@, panel + LANES);
            MITHRIL_UNROLL(@most_rows@)
            for (long row = 0; row < rows; row++) {
                const mithril_@p@ factor = MITHRIL_BROADCAST_@p@(a[row * LANES + step]);
                sum[row][0] = MITHRIL_ADD_@p@(sum[row][0], factor, left);
                if (vectors > 1)
                    sum[row][1] = MITHRIL_ADD_@p@(sum[row][1], factor, right);
            }
        }
    }
    if (accumulate) {
        MITHRIL_UNROLL(@most_rows@)
        for (long row = 0; row < rows; row++) {
            sum[row][0] += MITHRIL_LOAD(@t@, tile + row * 2 * LANES);
            if (vectors > 1)
                sum[row][1] += MITHRIL_LOAD(@t@, tile + row * 2 * LANES + LANES);
        }
    }
    MITHRIL_UNROLL(@most_rows@)
    for (long row = 0; row < rows; row++) {
        MITHRIL_STORE(@t@, tile + row * 2 * LANES, sum[row][0]);
        MITHRIL_STORE(@t@, tile + row * 2 * LANES + LANES, sum[row][1]);
    }
}
