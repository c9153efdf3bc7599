/* Writes the finished sums of `down` by `across` pixels, for the filters of one panel, to their place: the pixels of
   one block of filters after those of the other, since they lie together there. */
MITHRIL_INLINE void @name@_finish(const @type@ *restrict sums, long batch, long top, long left, const long down,
                                  const long across, long panel, @out@ *restrict out@parameters@)
{
    enum { LANES = @lanes@, BLOCKS = @panel_blocks@, FILTERS = @filters@ };
    MITHRIL_UNROLL(@panel_blocks@)
    for (long of = 0; of < BLOCKS; of++) {
        const long block = panel * BLOCKS + of;
        if (FILTERS % (BLOCKS * LANES) > 0 && block * LANES >= FILTERS)
            continue;
        MITHRIL_UNROLL_KEPT(@rows_at_once@)
        for (long y = top; y < top + down; y++) {
            MITHRIL_UNROLL_KEPT(@pixels_at_once@)
            for (long x = left; x < left + across; x++) {
                const @type@ *const from = sums + (((y - top) * across + x - left) * BLOCKS + of) * LANES;
                @finish_lanes@
            }
        }
    }
    (void)batch;
}
