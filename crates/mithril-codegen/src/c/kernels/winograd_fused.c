/* Fused form: a thread takes a block of tiles through all three steps, so that the points never leave its cache. */
static MITHRIL_ONCE void @name@(long thread, long threads, const float *restrict blocked, const float *restrict weights,
                   @out@ *restrict out@parameters@, float *restrict own, const char *ahead)
{
    enum {
        POINTS = @points@, LANES = @lanes@, WIDTH = 2 * LANES, CHANNELS = @channels@, CHANNEL_BLOCKS = (CHANNELS + LANES - 1) / LANES,
        PANELS = (@filters@ + WIDTH - 1) / WIDTH, ACROSS = @across@, DOWN = @down@, /* tiles of an image */
        GROUPS = @groups@, ROWS = @rows@, LONGER = @longer@, /* the first LONGER groups have ROWS + 1 tiles */
        BLOCK = @block@, TILES = BLOCK * (ROWS + (LONGER > 0)), /* groups and tiles of a block, at most */
        IN_STEP = TILES * CHANNEL_BLOCKS * LANES + 48, OUT_STEP = TILES * WIDTH + 48 /* no power of two */
    };
    float *const in = own, *const products = in + POINTS * IN_STEP, *const strip = products + POINTS * OUT_STEP;
    const long begin = GROUPS * thread / threads, groups = GROUPS * (thread + 1) / threads - begin;
    const long blocks = (groups + BLOCK - 1) / BLOCK;
    for (long block = 0; block < blocks; block++) {
        const long first = begin + groups * block / blocks, last = begin + groups * (block + 1) / blocks;
        const long tile = first * ROWS + (first < LONGER ? first : LONGER);
        const long count = last * ROWS + (last < LONGER ? last : LONGER) - tile;
        for (long group = first, start = 0; group < last; group++) {
            const long rows = ROWS + (group < LONGER);
            for (long row = 0; row < rows; row++)
                for (long channels = 0; channels < CHANNEL_BLOCKS; channels++) {
                    const long t = tile + start + row, batch = t / ACROSS / DOWN;
                    mithril_winograd@m@_tile(blocked + @tile_place@, @row@,
                                in + start * CHANNEL_BLOCKS * LANES + (channels * rows + row) * LANES, IN_STEP);
                }
            start += rows;
        }
        for (long panel = 0; panel < PANELS; panel++) {
            const long following = panel + 1 < PANELS ? panel + 1 : 0;
            const char *const then = following || block + 1 < blocks ? (const char *)(weights + following * CHANNELS * WIDTH) : ahead;
            for (long point = 0; point < POINTS; point++) {
                const float *const right = weights + (point * PANELS + panel) * CHANNELS * WIDTH;
                const char *const next = point + 1 < POINTS ? (const char *)(right + PANELS * CHANNELS * WIDTH) : then;
                const long stride = WIDTH * (long)sizeof(float) / (last - first);
                for (long group = first, start = 0; group < last; group++) {
                    const long longer = group < LONGER;
                    const float *const left = in + point * IN_STEP + start * CHANNEL_BLOCKS * LANES;
                    float *const tile_sums = products + point * OUT_STEP + start * WIDTH;
                    const char *const fetch = next + (group - first) * CHANNELS * stride;
                    @micro_calls@
                    start += ROWS + longer;
                }
            }
            @name@_finish(products, OUT_STEP, tile, count, panel, out@arguments@, strip);
        }
    }
}
