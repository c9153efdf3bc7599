/* Applies the epilogue to sums[rows][2 * LANES] and stores them in out. */
MITHRIL_INLINE void @name@_epilogue(const float *restrict sums, const float *restrict scales, long batch, long first_row, long rows,
        long first_column, const long columns, @out@ *restrict out@parameters@) {
    enum { LANES = @lanes@ };
    for (@outer@)
        for (@inner@) {
            const float accumulator = sums[(row - first_row) * 2 * LANES + column - first_column]@scaled@;
            out[@out_place@] = @expression@;
        }
    (void)batch, (void)scales;
}
