/* tile[@rows@][2 vectors] = a · panel in integers. a: [word][@rows@]; panel: [word][2 vectors]; a word is 4
   steps of k. */
static void @name@(long words, const uint32_t *restrict a, const uint32_t *restrict panel, int32_t *restrict tile) {
    enum { LANES = @lanes@, ROWS = @rows@ };
    mithril_i32 sum[ROWS][2];
    MITHRIL_UNROLL(@rows@)
    for (long row = 0; row < ROWS; row++)
        sum[row][0] = sum[row][1] = (mithril_i32){0};
    for (; words > 0; words--, panel += 2 * LANES, a += ROWS) {
        MITHRIL_PREFETCH_L2(panel + 32 * LANES);
        const mithril_u32 left = MITHRIL_LOAD(u32, panel), right = MITHRIL_LOAD(u32, panel + LANES);
        MITHRIL_UNROLL(@rows@)
        for (long row = 0; row < ROWS; row++) {
            const mithril_u32 numbers = MITHRIL_BROADCAST_u32(a[row]);
            sum[row][0] = MITHRIL_DOT(sum[row][0], numbers, left);
            sum[row][1] = MITHRIL_DOT(sum[row][1], numbers, right);
        }
    }
    MITHRIL_UNROLL(@rows@)
    for (long row = 0; row < ROWS; row++) {
        MITHRIL_STORE(i32, tile + row * 2 * LANES, sum[row][0]);
        MITHRIL_STORE(i32, tile + row * 2 * LANES + LANES, sum[row][1]);
    }
}
