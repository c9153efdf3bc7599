/* Writes the finished sums of `down` by `across` pixels, for the filters of one panel, to their place. */
MITHRIL_INLINE void @name@_finish(const @type@ *restrict sums, long batch, long top, long left, const long down,
                                  const long across, long panel, @out@ *restrict out@parameters@)
{
    enum { LANES = @lanes@, BLOCKS = @panel_blocks@, FILTERS = @filters@ };
    for (long y = top; y < top + down; y++)
        for (long x = left; x < left + across; x++, sums += BLOCKS * LANES)
            for (long block = panel * BLOCKS; block < (panel + 1) * BLOCKS && block * LANES < FILTERS; block++)
                for (long lane = 0; lane < @lanes_end@; lane++) {
                    const @type@ accumulator = sums[block % BLOCKS * LANES + lane];@coordinates@
                    out[@out_place@] = @expression@;
                }
    (void)batch;
}
