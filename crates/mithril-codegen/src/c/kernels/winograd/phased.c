/* Phased form, in three phases with barriers between them: the transform of all tiles, all products (divided by panel and
   points, so that few weights are read by two threads), the inverse transform of all tiles. */
enum {
    @name@_IN_STEP = @tiles@ * ((@channels@ + @lanes@ - 1) / @lanes@) * @lanes@ + @pad@, /* elements of one point of all tiles */
    @name@_OUT_STEP = @tiles@ * ((@filters@ + 2 * @lanes@ - 1) / (2 * @lanes@)) * 2 * @lanes@ + @pad@
};

static MITHRIL_NOINLINE void @name@_in(long thread, long threads, const float *restrict blocked, float *restrict in) {
    enum {
        LANES = @lanes@, CHANNEL_BLOCKS = (@channels@ + LANES - 1) / LANES, ACROSS = @across@, DOWN = @down@,
        GROUPS = @groups@, ROWS = @rows@, REMAINDER = @remainder@ /* the first REMAINDER groups have ROWS + 1 tiles */
    };
    const long units = (long)GROUPS * CHANNEL_BLOCKS;
    for (long unit = units * thread / threads; unit < units * (thread + 1) / threads; unit++) {
        const long channels = unit / GROUPS, group = unit % GROUPS, rows = ROWS + (group < REMAINDER);
        const long start = group * ROWS + (group < REMAINDER ? group : REMAINDER);
        for (long row = 0; row < rows; row++) {
            const long t = start + row, batch = t / ACROSS / DOWN;
            mithril_winograd@m@_tile(blocked + @tile_place@, @row@,
                    in + start * CHANNEL_BLOCKS * LANES + (channels * rows + row) * LANES, @name@_IN_STEP);
        }
    }
}

@products_function@

static MITHRIL_NOINLINE void @name@_out(long thread, long threads, const float *restrict products, @out@ *restrict out@parameters@,
        float *restrict scratch) {
    enum { ACROSS = @across@, LINES = @n@ * @down@, WIDTH = 2 * @lanes@, PANELS = (@filters@ + WIDTH - 1) / WIDTH };
    const long units = (long)PANELS * LINES;
    for (long unit = units * thread / threads; unit < units * (thread + 1) / threads; unit++) {
        const long panel = unit / LINES, tile = unit % LINES * ACROSS;
        @name@_epilogue(products + (panel * @tiles@ + tile) * WIDTH, @name@_OUT_STEP, tile, ACROSS, panel, out@arguments@, scratch);
    }
}
