/* out[@n@, @filters@, @oh@, @ow@] = @what@ of image[@n@, @channels@, @h@, @w@] by weights[@filters@,
   @group_channels@, @kh@, @kw@]. Implicit GEMM: rows are filters, columns are pixels of the result, and the terms of
   a column are the part of the image under the kernel. The im2col matrix is not stored: every thread gathers a
   panel of it (two vectors of pixels) just before it is used, and multiplies it with all filters while it is in the
   cache. */

@gather@
/* Applies the epilogue to sums[rows][2 * LANES] and stores them in out: batch is the image, row the filter, column the pixel. */
MITHRIL_INLINE void @name@_epilogue(const @type@ *restrict sums, long batch, long first_row, long rows,
        long first_column, const long columns, @out@ *restrict out@parameters@) {
    enum { LANES = @lanes@ };
    for (long row = first_row; row < first_row + rows; row++)
        for (long column = first_column; column < first_column + columns; column++) {
            const @type@ accumulator = sums[(row - first_row) * 2 * LANES + column - first_column];
            out[@out_place@] = @expression@;
        }
    (void)batch;
}

static MITHRIL_NOINLINE void @name@(long thread, long threads, const @type@ *restrict image, const @type@ *restrict weights,
        @out@ *restrict out@parameters@, @type@ *restrict scratch) {
    enum {
        GROUPS = @groups@, /* of channels */
        K = @k@, LANES = @lanes@, WIDTH = 2 * LANES, K_PADDED = (K + LANES - 1) / LANES * LANES,
        FILTERS = @filters@ / GROUPS, PIXELS = @oh@ * @ow@, PANELS = (PIXELS + WIDTH - 1) / WIDTH,
        ROW_GROUPS = @row_groups@, ROWS = @rows@, REMAINDER = @remainder@, /* the first REMAINDER have ROWS + 1 filters */
        ROW_BLOCK = @row_block@, ROW_BLOCKS = (ROW_GROUPS + ROW_BLOCK - 1) / ROW_BLOCK,
        PANEL_BLOCK = @panel_block@, PANEL_BLOCKS = (PANELS + PANEL_BLOCK - 1) / PANEL_BLOCK
    };
    @type@ *const tile = scratch + (PANEL_BLOCK * K + 1) * WIDTH; /* behind the panels */
    const long units = (long)@n@ * GROUPS * PANEL_BLOCKS * ROW_BLOCKS, end = units * (thread + 1) / threads;
    long gathered = -1;
    for (long unit = units * thread / threads; unit < end; unit++) {
        const long panels = unit / ROW_BLOCKS, first = panels % PANEL_BLOCKS * PANEL_BLOCK;
        const long group = panels / PANEL_BLOCKS % GROUPS, batch = panels / PANEL_BLOCKS / GROUPS;
        const long count = PANELS - first < PANEL_BLOCK ? PANELS - first : PANEL_BLOCK;
        if (panels != gathered)
            for (long panel = 0; panel < count; panel++)
                @name@_gather(image + (batch * GROUPS + group) * @group_elements@, (first + panel) * WIDTH, scratch + panel * K * WIDTH);
        gathered = panels;
        const long row_end = (unit % ROW_BLOCKS + 1) * ROW_BLOCK;
        for (long row_group = unit % ROW_BLOCKS * ROW_BLOCK; row_group < row_end && row_group < ROW_GROUPS; row_group++) {
            const long extra = row_group < REMAINDER, rows = ROWS + extra;
            const long row = group * FILTERS + row_group * ROWS + (extra ? row_group : REMAINDER);
            const @type@ *const left = weights + row * K_PADDED;
            const char *const next = (const char *)(left + (row + rows < FILTERS * GROUPS ? rows * K_PADDED : 0));
            const long stride = rows * (long)sizeof(@type@) / count;
            for (long panel = 0; panel < count; panel++) {
                const char *const fetch = next + panel * K * stride;
                const @type@ *const right = scratch + panel * K * WIDTH;
                const long column = (first + panel) * WIDTH;
                @micro_calls@
                if (column + WIDTH <= PIXELS)
                    @name@_epilogue(tile, batch, row, rows, column, WIDTH, out@arguments@);
                else
                    @name@_epilogue(tile, batch, row, rows, column, PIXELS % WIDTH, out@arguments@);
            }
        }
    }
}
