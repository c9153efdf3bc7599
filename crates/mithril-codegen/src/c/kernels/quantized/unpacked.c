/* out[@m@, @n@] = a[@m@, @k@] · b[@k@, @n@]@batched@, where b is stored in @bits@ bits. A piece of a panel of b
   is dequantized into scratch memory once for all groups of rows of a block; with many rows that is cheaper than in
   registers, once for each group. The rows are copied in the order of the micro-kernel, piece by piece. A unit of
   work is one panel of b times one block. */
@copy@
@epilogue@
static void @name@(long thread, long threads, const float *restrict a, const void *restrict packed,
        @out@ *restrict out@parameters@, float *restrict scratch) {
    enum {
        N = @n@, K = @k@, LANES = @lanes@, WIDTH = 2 * LANES, PANELS = (N + WIDTH - 1) / WIDTH,
        GROUPS = @groups@, ROWS = @rows@, REMAINDER = @remainder@, /* the first REMAINDER groups have ROWS + 1 rows */
        BLOCK = @block@, BLOCKS = (GROUPS + BLOCK - 1) / BLOCK, MOST = ROWS + (REMAINDER > 0),
        STEP = @step_terms@, STEP_WORDS = @step_words@, PANEL = @steps@ * STEP_WORDS, /* steps of k of a @step@, and words */
        PIECE = @piece@, COPY = MOST * PIECE, TILE = MOST * WIDTH /* steps of k of a piece; elements of a group in it, and of its sums */
    };
    float *const right = scratch, *const tiles = right + PIECE * WIDTH, *const copies = tiles + (long)BLOCK * TILE;
    const long units = (long)@batches@ * BLOCKS * PANELS;
    long copied = -1;
    for (long unit = units * thread / threads; unit < units * (thread + 1) / threads; unit++) {
        @unit@
        for (long k = 0; k < K || k == 0; k += PIECE) {
            const long steps = K - k < PIECE ? K - k : PIECE, count = (steps + STEP - 1) / STEP;
            @unpack@(count, words, right);
            words += count * STEP_WORDS;
            /* The words of the next piece are prefetched meanwhile. */
            const long stride = (long)sizeof(uint32_t) * STEP_WORDS / STEP / (last - first) + 1;
            for (long group = first; group < last; group++) {
                const long extra = group < REMAINDER, rows = ROWS + extra, row = group * ROWS + (extra ? group : REMAINDER);
                float *const left = copies + k * BLOCK * MOST + (group - first) * COPY, *const tile = tiles + (group - first) * TILE;
                const char *const fetch = (const char *)words + (group - first) * steps * stride;
                if (block != copied) {
                    @copy_calls@
                }
                @micro_calls@
                if (k + PIECE < K)
                    continue;
                if (N % WIDTH == 0 || panel < PANELS - 1)
                    @name@_epilogue(tile, scales, batch, row, rows, panel * WIDTH, WIDTH, out@arguments@);
                else
                    @name@_epilogue(tile, scales, batch, row, rows, panel * WIDTH, N % WIDTH, out@arguments@);
            }
        }
        copied = block;
    }
}
