/* tile[@rows@][2 vectors] = a · panel. a: [k][@rows@]; panel: [word][2 vectors], a word being @fields@ steps of k of
   one column. Each weight is read once and dequantized in a register; each sum is split into @chains@ independent
   chains. */
static void @name@(long words, const float *restrict a, const uint32_t *restrict panel, float *restrict tile) {
    enum { LANES = @lanes@, ROWS = @rows@, FIELDS = @fields@, BITS = 32 / FIELDS, CHAINS = @chains@ };
    mithril_f32 sum[ROWS][CHAINS][2];
    MITHRIL_UNROLL(@rows@)
    for (long row = 0; row < ROWS; row++)
        MITHRIL_UNROLL(@chains@)
        for (long chain = 0; chain < CHAINS; chain++)
            sum[row][chain][0] = sum[row][chain][1] = (mithril_f32){0};
    for (; words > 0; words--, panel += 2 * LANES, a += FIELDS * ROWS) {
        MITHRIL_PREFETCH_L2(panel + 32 * LANES);
        const mithril_u32 left = MITHRIL_LOAD(u32, panel), right = MITHRIL_LOAD(u32, panel + LANES);
        MITHRIL_UNROLL(@fields@)
        for (int step = 0; step < FIELDS; step++) {
            const mithril_f32 first = mithril_field_@bits@(left, step * BITS), second = mithril_field_@bits@(right, step * BITS);
            MITHRIL_UNROLL(@rows@)
            for (long row = 0; row < ROWS; row++) {
                const mithril_f32 factor = MITHRIL_BROADCAST_f32(a[step * ROWS + row]);
                sum[row][step % CHAINS][0] += factor * first;
                sum[row][step % CHAINS][1] += factor * second;
            }
        }
    }
    MITHRIL_UNROLL(@rows@)
    for (long row = 0; row < ROWS; row++) {
        MITHRIL_UNROLL(@chains@)
        for (long chain = 1; chain < CHAINS; chain++) {
            sum[row][0][0] += sum[row][chain][0];
            sum[row][0][1] += sum[row][chain][1];
        }
        MITHRIL_STORE(f32, tile + row * 2 * LANES, sum[row][0][0]);
        MITHRIL_STORE(f32, tile + row * 2 * LANES + LANES, sum[row][0][1]);
    }
}
