/* Applies the epilogue to the sums of `down` by `across` pixels and stores them, for the filters of one panel: one block of
   filters after the other, since the pixels of a block are contiguous in out. */
MITHRIL_INLINE void @name@_epilogue(const @type@ *restrict sums, long batch, long top, long left, const long down,
        const long across, long panel, @out@ *restrict out@parameters@) {
    enum { LANES = @lanes@, BLOCKS = @panel_blocks@, FILTERS = @filters@ };
    MITHRIL_UNROLL(@panel_blocks@)
    for (long of = 0; of < BLOCKS; of++) {
        const long block = panel * BLOCKS + of;
        if (FILTERS % (BLOCKS * LANES) > 0 && block * LANES >= FILTERS)
            continue;
        @unroll_rows@
        for (long j = 0; j < down; j++) {
            @unroll_pixels@
            for (long i = 0; i < across; i++) {
                const long y = top + j, x = left + i;
                const @type@ *const from = sums + ((j * across + i) * BLOCKS + of) * LANES;
                @epilogue_lanes@
            }
        }
    }
    (void)batch;
}
