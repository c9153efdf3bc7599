/* to[4 * words][2 vectors] = the numbers of a panel@by_scales@, a word being 4 steps of k of one column. */
static void @name@(long words, const uint32_t *restrict panel@scales@, float *restrict to) {
    enum { LANES = @lanes@, FIELDS = @fields@, BITS = 32 / FIELDS };@load_scales@
    for (; words > 0; words--, panel += 2 * LANES) {
        const mithril_u32 left = MITHRIL_LOAD(u32, panel), right = MITHRIL_LOAD(u32, panel + LANES);
        MITHRIL_UNROLL(@fields@)
        for (int step = 0; step < FIELDS; step++, to += 2 * LANES) {
            MITHRIL_STORE(f32, to, mithril_field_@bits@(left, step * BITS)@scaled_left@);
            MITHRIL_STORE(f32, to + LANES, mithril_field_@bits@(right, step * BITS)@scaled_right@);
        }
    }
}
