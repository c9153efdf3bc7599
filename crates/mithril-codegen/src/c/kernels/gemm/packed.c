/* out[@m@, @n@] = a[@m@, @terms@] · b[@terms@, @n@]@batched@.@pairs_too@
   b comes in panels of two vectors of columns; the rows of a in groups that the micro-kernel can hold in registers,
   and several groups form a block that stays in the second-level cache. A unit of work is one block times one panel.
   Every thread takes a run of units, as far as they share a block in one stretch: it copies the block's rows in the
   micro-kernel's order, [group][k / LANES][row][LANES], so that they never fight for the same cache set, and goes
   through the panels. Where k is long, it does so for K_BLOCK steps after another, and keeps the unfinished sums.
   Else a block's rows, once copied, serve for all SAME_A matrices that have the same a. */
@copy@
/* Writes finished sums[rows][2 * LANES] to their place in out. */
@once@ void @name@_finish(const @type@ *restrict sums, long batch, long first_row, long rows,
        long first_column, const long columns, @out@ *restrict out@parameters@) {
    enum { LANES = @lanes@ };
    for (@outer@)
        for (@inner@) {
            const @type@ accumulator = sums[(row - first_row) * 2 * LANES + column - first_column];
            out[@out_place@] = @expression@;
        }
    (void)batch;
}

static MITHRIL_ONCE void @name@(long thread, long threads, const @stored@ *restrict a, const @factor@ *restrict panels,
        @out@ *restrict out@parameters@, @type@ *restrict own) {
    enum {
        N = @n@, K = @k@,@of_pairs@ LANES = @lanes@, WIDTH = 2 * LANES, PANELS = (N + WIDTH - 1) / WIDTH,
        GROUPS = @groups@, ROWS = @rows@, LONGER = @longer@, /* the first LONGER groups have ROWS + 1 rows */
        BLOCK = @block@, BLOCKS = (GROUPS + BLOCK - 1) / BLOCK, /* most groups in a block; blocks in a matrix, all about as long */
        SAME_A = @same_a@, /* matrices after another whose units go block by block, since they have the same a */
        K_BLOCK = @k_block@, STRETCH = @stretch@, /* steps of k, and at most so many panels, at once */
        COPY = (ROWS + (LONGER > 0)) * ((K_BLOCK + LANES - 1) / LANES * LANES) /* elements of a copied group */
    };
    @factor@ *const copies = @own@;
    @type@ *const sums = own + (long)BLOCK * COPY;
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
                const long longer = group < LONGER, row = group * ROWS + (longer ? group : LONGER);
                @factor@ *const copy = copies + (group - first) * COPY;
                @copy_calls@
            }
            copied = block;
            for (long panel = first_panel; panel < first_panel + stretch; panel++) {
                const @factor@ *const right = b + (panel * K + k) * WIDTH;
                const char *const next = (const char *)(b + ((panel + 1 < PANELS ? panel + 1 : 0) * K + k) * WIDTH);
                for (long group = first; group < last; group++) {
                    const long longer = group < LONGER, rows = ROWS + longer;
                    const long row = group * ROWS + (longer ? group : LONGER), unfinished = (panel - first_panel) * BLOCK + group - first;
                    @type@ *const tile = sums + (K > K_BLOCK ? unfinished * (ROWS + 1) * WIDTH : 0);
                    const @factor@ *const left = copies + (group - first) * COPY;
                    const char *const fetch = next + (group - first) * steps * stride;
                    @micro_calls@
                    if (k + K_BLOCK < K)
                        continue;
                    if (N % WIDTH == 0 || panel < PANELS - 1)
                        @name@_finish(tile, batch, row, rows, panel * WIDTH, WIDTH, out@arguments@);
                    else
                        @name@_finish(tile, batch, row, rows, panel * WIDTH, N % WIDTH, out@arguments@);
                }
            }
        }
    }
}
