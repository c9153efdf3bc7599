/* Applies the epilogue to the sums of a tile of pixels and stores them: row is the filter, column the pixel.@note@ */
MITHRIL_INLINE void @name@_epilogue(const int32_t *restrict sums, float scale, int32_t zero, const float *restrict scales, long batch,
        long top, long left, const long down, const long across, long panel,
        @place@ *restrict out@parameters@) {
    enum { LANES = @lanes@, BLOCKS = @panel_blocks@, FILTERS = @filters@, FILLED = @filled@ };
    const int32_t *const totals = (const int32_t *)scales + FILLED;
    for (long y = top; y < top + down; y++)
        for (long x = left; x < left + across; x++, sums += BLOCKS * LANES) {
            MITHRIL_UNROLL(@panel_blocks@)
            for (long part = 0; part < BLOCKS; part++) {
                const long block = panel * BLOCKS + part;@skip@
                @finish@
            }
        }
    (void)batch;
}
