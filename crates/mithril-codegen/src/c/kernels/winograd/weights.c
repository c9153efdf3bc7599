/* Transforms the weights of so many channels, [channel][3][3][2 vectors], to points with stride `step`, each
   [channel][2 vectors]. The packed weights are untransformed, since these are less to read. */
static void mithril_winograd@m@_weights(const float *restrict weights, long channels, float *restrict points, long step) {
    enum { LANES = @lanes@, HIGH = @weights_high@, WIDE = @weights_wide@ };
    for (long vector = 0; vector < 2 * channels; vector++) {
        const float *const from = weights + (vector / 2 * 18 + vector % 2) * LANES;
        mithril_f32 half[HIGH][3], d[3], down[HIGH], across[WIDE];
        MITHRIL_UNROLL(3)
        for (long x = 0; x < 3; x++) {
            MITHRIL_UNROLL(3)
            for (long y = 0; y < 3; y++)
                d[y] = MITHRIL_LOAD(f32, from + (y * 3 + x) * 2 * LANES);
            mithril_winograd@line_down@_line_weights(d, down);
            MITHRIL_UNROLL(@weights_high@)
            for (long y = 0; y < HIGH; y++)
                half[y][x] = down[y];
        }
        MITHRIL_UNROLL(@weights_high@)
        for (long y = 0; y < HIGH; y++) {
            mithril_winograd@line_across@_line_weights(half[y], across);
            MITHRIL_UNROLL(@weights_wide@)
            for (long x = 0; x < WIDE; x++)
                MITHRIL_STORE(f32, points + (y * WIDE + x) * step + vector * LANES, across[x]);
        }
    }
}
