/* Applies the epilogue to sums[rows][2 * LANES] and stores them in out. */
@once@ void @name@_epilogue(@sums@ *restrict sums, long batch, long first_row, long rows,
        long first_column, const long columns, @out@ *restrict out@parameters@) {
    enum { LANES = @lanes@ };
    @store@
    (void)batch;
}
