/* to[@group@ * groups][2 vectors] = the weights of a panel: for each @group@ steps of k one vector of scales (those
   of the two vectors of columns in the upper and the lower half of a word, as bfloat16), then words of @fields@
   steps of one column. */
static void @name@(long groups, const uint32_t *restrict panel, float *restrict to) {
    enum { LANES = @lanes@, FIELDS = @fields@, BITS = 32 / FIELDS, WORDS = @group@ / FIELDS };
    for (; groups > 0; groups--, panel += (1 + 2 * WORDS) * LANES) {
        const mithril_u32 scales = MITHRIL_LOAD(u32, panel);
        const mithril_f32 left_scale = mithril_float_of(scales & 0xffff0000u), right_scale = mithril_float_of(scales << 16);
        for (long word = 0; word < WORDS; word++) {
            const uint32_t *const place = panel + (1 + 2 * word) * LANES;
            const mithril_u32 left = MITHRIL_LOAD(u32, place), right = MITHRIL_LOAD(u32, place + LANES);
            MITHRIL_UNROLL(@fields@)
            for (int step = 0; step < FIELDS; step++, to += 2 * LANES) {
                MITHRIL_STORE(f32, to, mithril_field_@bits@(left, step * BITS) * left_scale);
                MITHRIL_STORE(f32, to + LANES, mithril_field_@bits@(right, step * BITS) * right_scale);
            }
        }
    }
}
