/* out[@m@, @n@] = a[@m@, @k@] · b[@k@, @n@]@batched@, where b is stored in @bits@ bits and dequantized in
   registers. A unit of work is one panel of b times a block of groups of rows, copied in the order of the
   micro-kernel. */
MITHRIL_INLINE void @name@_copy(const float *restrict a, long first_row, const long rows, float *restrict copy) {
    enum { K = @k@, K_PADDED = @k_padded@ };
    for (long k = 0; k < K; k++)
        for (long row = 0; row < rows; row++)
            copy[k * rows + row] = a[(first_row + row) * @a_row@ + k * @a_column@];
    for (long i = K * rows; i < K_PADDED * rows; i++)
        copy[i] = 0;
    (void)first_row;
}

@epilogue@
static void @name@(long thread, long threads, const float *restrict a, const void *restrict packed,
        @out@ *restrict out@parameters@, float *restrict scratch) {
    enum {
        N = @n@, LANES = @lanes@, WIDTH = 2 * LANES, PANELS = (N + WIDTH - 1) / WIDTH,
        GROUPS = @groups@, ROWS = @rows@, REMAINDER = @remainder@, /* the first REMAINDER groups have ROWS + 1 rows */
        BLOCK = @block@, BLOCKS = (GROUPS + BLOCK - 1) / BLOCK, COPY = (ROWS + (REMAINDER > 0)) * @k_padded@,
        STEPS = @steps@, PANEL = @panel@ /* @step@ of a panel, and its words */
    };
    float *const tile = scratch + (long)BLOCK * COPY;
    const long units = (long)@batches@ * BLOCKS * PANELS;
    long copied = -1;
    for (long unit = units * thread / threads; unit < units * (thread + 1) / threads; unit++) {
        @unit@
        for (long group = first; group < last; group++) {
            const long extra = group < REMAINDER, rows = ROWS + extra, row = group * ROWS + (extra ? group : REMAINDER);
            float *const copy = scratch + (group - first) * COPY;
            if (block != copied) {
                @copy_calls@
            }
            @micro_calls@
            if (N % WIDTH == 0 || panel < PANELS - 1)
                @name@_epilogue(tile, scales, batch, row, rows, panel * WIDTH, WIDTH, out@arguments@);
            else
                @name@_epilogue(tile, scales, batch, row, rows, panel * WIDTH, N % WIDTH, out@arguments@);
        }
        copied = block;
    }
}
