/* out[@m@, @n@] = a[@m@, @terms@] · b[@terms@, @n@]@batched@.@pairs_too@
   b is packed in panels of two vectors of columns; the rows of a form groups whose sums fit into the registers of the
   micro-kernel, and several groups form a block that stays in the L2 cache. A unit of work is one block times one
   panel. Every thread takes consecutive units, a stretch of panels of one block at a time: it copies the rows of
   the block in the order of the micro-kernel, [group][k / LANES][row][LANES], which avoids conflicts of cache sets,
   and then multiplies them by the panels. Long k is processed in blocks of K_BLOCK steps with partial sums in
   scratch memory. Otherwise the copied rows of a block are used for all SAME_A consecutive matrices with the same
   a. */
@copy@
@epilogue@
static MITHRIL_NOINLINE void @name@(long thread, long threads, const @stored@ *restrict a, const @factor@ *restrict panels,
        @out@ *restrict out@parameters@, @type@ *restrict scratch) {
    enum {
        N = @n@, K = @k@,@of_pairs@ LANES = @lanes@, WIDTH = 2 * LANES, PANELS = (N + WIDTH - 1) / WIDTH,
        GROUPS = @groups@, ROWS = @rows@, REMAINDER = @remainder@, /* the first REMAINDER groups have ROWS + 1 rows */
        BLOCK = @block@, BLOCKS = (GROUPS + BLOCK - 1) / BLOCK, /* groups of a block at most; blocks of a matrix, which divide its groups evenly */
        SAME_A = @same_a@, /* consecutive matrices with the same a, whose units are ordered by block */
        K_BLOCK = @k_block@, STRETCH = @stretch@, /* steps of k, and panels at most, at a time */
        COPY = (ROWS + (REMAINDER > 0)) * ((K_BLOCK + LANES - 1) / LANES * LANES) /* elements of a copied group */
    };
    @factor@ *const copies = @scratch@;
    @type@ *const sums = scratch + (long)BLOCK * COPY;@start@
    const long units = (long)@batches@ * BLOCKS * PANELS, end = units * (thread + 1) / threads;
    for (long unit = units * thread / threads, stretch, copied = -1; unit < end; unit += stretch) {
        const long first_panel = unit % PANELS, block = unit / PANELS / SAME_A;
        const long batch = block / BLOCKS * SAME_A + unit / PANELS % SAME_A;
        const long first = block % BLOCKS * GROUPS / BLOCKS, last = (block % BLOCKS + 1) * GROUPS / BLOCKS;
        const @factor@ *const b = panels + (@b_batch@) * ((long)PANELS * K * WIDTH);
        const long stride = WIDTH * (long)sizeof(@factor@) / (last - first);
        stretch = PANELS - first_panel < STRETCH ? PANELS - first_panel : STRETCH;
        stretch = end - unit < stretch ? end - unit : stretch;
        for (long k = 0; k < K || k == 0; k += K_BLOCK) {
            const long steps = K - k < K_BLOCK ? K - k : K_BLOCK;
            for (long group = first; group < last && (block != copied || K > K_BLOCK); group++) {
                const long extra = group < REMAINDER, row = group * ROWS + (extra ? group : REMAINDER);
                @factor@ *const copy = copies + (group - first) * COPY;
                @copy_calls@
            }
            copied = block;
            for (long panel = first_panel; panel < first_panel + stretch; panel++) {
                const @factor@ *const right = b + (panel * K + k) * WIDTH;
                const char *const next = (const char *)(b + ((panel + 1 < PANELS ? panel + 1 : 0) * K + k) * WIDTH);
                for (long group = first; group < last; group++) {
                    const long extra = group < REMAINDER, rows = ROWS + extra;
                    const long row = group * ROWS + (extra ? group : REMAINDER), tile_index = (panel - first_panel) * BLOCK + group - first;
                    @type@ *const tile = sums + (K > K_BLOCK ? tile_index * (ROWS + 1) * WIDTH : 0);
                    const @factor@ *const left = copies + (group - first) * COPY;
                    const char *const fetch = next + (group - first) * steps * stride;
                    @micro_calls@
                    if (k + K_BLOCK < K)
                        continue;
                    if (N % WIDTH == 0 || panel < PANELS - 1)
                        @name@_epilogue(tile, batch, row, rows, panel * WIDTH, WIDTH, out@arguments@);
                    else
                        @name@_epilogue(tile, batch, row, rows, panel * WIDTH, N % WIDTH, out@arguments@);
                }
            }
        }
    }@stop@
}
