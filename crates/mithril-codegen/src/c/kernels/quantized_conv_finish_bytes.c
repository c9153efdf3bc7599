/* Writes the finished sums of some pixels as bytes to their place: row is the filter, column the pixel. Where a number is none,
   the highest bits of `none` are set. */
MITHRIL_INLINE void @name@_finish(const int32_t *restrict sums, float scale, int32_t zero, const float *restrict scales, long batch,
                                  long top, long left, const long down, const long across, long panel,
                                  mithril_u32 *restrict none, uint8_t *restrict out@parameters@)
{
    enum { LANES = @lanes@, BLOCKS = @panel_blocks@, FILTERS = @filters@, FILLED = @filled@ };
    const int32_t *const totals = (const int32_t *)scales + FILLED;
    for (long y = top; y < top + down; y++)
        for (long x = left; x < left + across; x++, sums += BLOCKS * LANES) {
            MITHRIL_UNROLL(@panel_blocks@)
            for (long part = 0; part < BLOCKS; part++) {
                const long block = panel * BLOCKS + part;@skip@
                float numbers[LANES] __attribute__((aligned(64)));
                for (long lane = 0; lane < LANES; lane++) {
                    const long filter = block * LANES + lane;
                    const int32_t sum = sums[part * LANES + lane] - zero * totals[filter];
                    const float accumulator = (float)sum * (scale * scales[filter]);@coordinates@
                    numbers[lane] = @expression@;
                }
                const mithril_f32 found = MITHRIL_LOAD(f32, numbers);
                const long lane = 0;
                *none |= ((mithril_u32)found & INT32_MAX) + 0x7fffff; /* beyond the infinity lies NaN */
                mithril_store_words(out + @out_place@, found * @inverse@ + @offset@);
            }
        }
    (void)batch;
}
