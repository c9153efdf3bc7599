/* out[@m@, @n@] = a[@m@, @k@] · b[@k@, @n@]@batched@ in 8-bit integers: rows of a from 0 to 255 with a
   zero point and a scale each, columns of b from -127 to 127 with a scale each. A unit of work is one panel of b
   times a block of groups of rows. */
MITHRIL_INLINE void @name@_epilogue(const int32_t *restrict sums, const void *restrict shared, const float *restrict weight_scales,
        long batch, long first_row, long rows, long first_column, const long columns,
        @out@ *restrict out@parameters@) {
    enum { M = @m@, N = @n@, LANES = @lanes@, WORDS = @steps@, WIDTH = 2 * LANES, COLUMNS = (N + WIDTH - 1) / WIDTH * WIDTH };
    const int32_t *const totals = (const int32_t *)weight_scales + (long)@matrices@ * COLUMNS;
    const float *const scales = (const float *)shared + (long)@lefts@ * M * WORDS + (@left@) * M;
    const int32_t *const zeros = (const int32_t *)shared + (long)@lefts@ * M * (WORDS + 1) + (@left@) * M;
    for (@outer@)
        for (@inner@) {
            const int32_t sum = sums[(row - first_row) * 2 * LANES + column - first_column] - zeros[row] * totals[column];
            const float accumulator = (float)sum * (scales[row] * weight_scales[column]);
            out[@out_place@] = @expression@;
        }
    (void)batch;
}

static void @name@(long thread, long threads, const void *restrict shared, const void *restrict packed,
        @out@ *restrict out@parameters@, int32_t *restrict scratch) {
    enum {
        M = @m@, N = @n@, LANES = @lanes@, WIDTH = 2 * LANES, PANELS = (N + WIDTH - 1) / WIDTH,
        GROUPS = @groups@, ROWS = @rows@, REMAINDER = @remainder@, /* the first REMAINDER groups have ROWS + 1 rows */
        BLOCK = @block@, BLOCKS = (GROUPS + BLOCK - 1) / BLOCK, WORDS = @steps@, PANEL = @panel@ /* words of a panel */
    };@start@
    const long units = (long)@batches@ * BLOCKS * PANELS;
    for (long unit = units * thread / threads; unit < units * (thread + 1) / threads; unit++) {
        @unit@
        for (long group = first; group < last; group++) {
            const long extra = group < REMAINDER, rows = ROWS + extra, row = group * ROWS + (extra ? group : REMAINDER);
            const uint32_t *const left = (const uint32_t *)shared + ((@left@) * M + row) * WORDS;
            @fetch@@micro_calls@
            if (N % WIDTH == 0 || panel < PANELS - 1)
                @name@_epilogue(scratch, shared, scales, batch, row, rows, panel * WIDTH, WIDTH, out@arguments@);
            else
                @name@_epilogue(scratch, shared, scales, batch, row, rows, panel * WIDTH, N % WIDTH, out@arguments@);
        }
    }@stop@
}
