/* tile[@rows@][2 vectors] = a · panel. a: [k][@rows@]; panel: for each @group@ steps of k one vector of scales
   (those of the two vectors of columns in the upper and the lower half of a word, as bfloat16), then [word][2
   vectors], a word being @fields@ steps of k of one column. With few rows the sum of a group is
   scaled; with many it is cheaper to scale the weights. */
static void @name@(long groups, const float *restrict a, const uint32_t *restrict panel, float *restrict tile) {
    enum { LANES = @lanes@, ROWS = @rows@, FIELDS = @fields@, BITS = 32 / FIELDS, WORDS = @group@ / FIELDS, CHAINS = 2, IS_FEW = ROWS <= 2 };
    mithril_f32 sum[ROWS][2];
    MITHRIL_UNROLL(@rows@)
    for (long row = 0; row < ROWS; row++)
        sum[row][0] = sum[row][1] = (mithril_f32){0};
    for (; groups > 0; groups--, panel += (1 + 2 * WORDS) * LANES) {
        const mithril_u32 scales = MITHRIL_LOAD(u32, panel);
        const mithril_f32 left_scale = mithril_float_of(scales & 0xffff0000u), right_scale = mithril_float_of(scales << 16);
        mithril_f32 part[ROWS][CHAINS][2];
        if (IS_FEW)
            MITHRIL_UNROLL(@rows@)
            for (long row = 0; row < ROWS; row++)
                part[row][0][0] = part[row][0][1] = part[row][1][0] = part[row][1][1] = (mithril_f32){0};
        MITHRIL_UNROLL(@group@)
        for (long word = 0; word < WORDS; word++, a += FIELDS * ROWS) {
            const uint32_t *const place = panel + (1 + 2 * word) * LANES;
            MITHRIL_PREFETCH_L2(place + 32 * LANES);
            const mithril_u32 left = MITHRIL_LOAD(u32, place), right = MITHRIL_LOAD(u32, place + LANES);
            MITHRIL_UNROLL(@fields@)
            for (int step = 0; step < FIELDS; step++) {
                mithril_f32 first = mithril_field_@bits@(left, step * BITS), second = mithril_field_@bits@(right, step * BITS);
                if (!IS_FEW)
                    first *= left_scale, second *= right_scale;
                MITHRIL_UNROLL(@rows@)
                for (long row = 0; row < ROWS; row++) {
                    const mithril_f32 factor = MITHRIL_BROADCAST_f32(a[step * ROWS + row]);
                    mithril_f32 *const to = IS_FEW ? part[row][step % CHAINS] : sum[row];
                    to[0] += factor * first;
                    to[1] += factor * second;
                }
            }
        }
        if (IS_FEW)
            MITHRIL_UNROLL(@rows@)
            for (long row = 0; row < ROWS; row++) {
                sum[row][0] += (part[row][0][0] + part[row][1][0]) * left_scale;
                sum[row][1] += (part[row][0][1] + part[row][1][1]) * right_scale;
            }
    }
    MITHRIL_UNROLL(@rows@)
    for (long row = 0; row < ROWS; row++) {
        MITHRIL_STORE(f32, tile + row * 2 * LANES, sum[row][0]);
        MITHRIL_STORE(f32, tile + row * 2 * LANES + LANES, sum[row][1]);
    }
}
