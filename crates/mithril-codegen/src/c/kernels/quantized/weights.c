/* out[@m@, @n@] = a[@m@, @k@] · b[@k@, @n@]@batched@, where b is kept in @bits@ bits and becomes float in registers.
   A unit of work is one panel of b times a block of groups of rows, which lie copied as the micro-kernel reads them. */
MITHRIL_INLINE void @name@_copy(const float *restrict a, long first_row, const long rows, float *restrict copy) {
    enum { K = @k@, K_PADDED = @k_padded@ };
    for (long k = 0; k < K; k++)
        for (long row = 0; row < rows; row++)
            copy[k * rows + row] = a[(first_row + row) * @a_row@ + k * @a_column@];
    for (long i = K * rows; i < K_PADDED * rows; i++)
        copy[i] = 0;
}

@finish@
static void @name@(long thread, long threads, const float *restrict a, const void *restrict packed,
        @out@ *restrict out@parameters@, float *restrict own) {
    enum {
        N = @n@, LANES = @lanes@, WIDTH = 2 * LANES, PANELS = (N + WIDTH - 1) / WIDTH,
        GROUPS = @groups@, ROWS = @rows@, LONGER = @longer@, /* the first LONGER groups have ROWS + 1 rows */
        BLOCK = @block@, BLOCKS = (GROUPS + BLOCK - 1) / BLOCK, COPY = (ROWS + (LONGER > 0)) * @k_padded@,
        STEPS = @steps@, PANEL = @panel@ /* @step@ of a panel, and its words */
    };
    float *const tile = own + (long)BLOCK * COPY;
    const long units = (long)@batches@ * BLOCKS * PANELS;
    long copied = -1;
    for (long unit = units * thread / threads; unit < units * (thread + 1) / threads; unit++) {
        @unit@
        for (long group = first; group < last; group++) {
            const long longer = group < LONGER, rows = ROWS + longer, row = group * ROWS + (longer ? group : LONGER);
            float *const copy = own + (group - first) * COPY;
            if (block != copied) {
                @copy_calls@
            }
            @micro_calls@
            if (N % WIDTH == 0 || panel < PANELS - 1)
                @name@_finish(tile, scales, batch, row, rows, panel * WIDTH, WIDTH, out@arguments@);
            else
                @name@_finish(tile, scales, batch, row, rows, panel * WIDTH, N % WIDTH, out@arguments@);
        }
        copied = block;
    }
}
