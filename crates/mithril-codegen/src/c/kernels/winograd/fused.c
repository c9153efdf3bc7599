/* Fused form: a thread performs all three steps for one block of tiles after the other, so that points stay in its cache. */
static MITHRIL_NOINLINE void @name@(long thread, long threads, const float *restrict blocked, const float *restrict weights,
        @out@ *restrict out@parameters@, float *restrict scratch, const char *next_step) {
    enum {
        POINTS = @points@, WEIGHTS = @weight_points@, LANES = @lanes@, WIDTH = 2 * LANES, CHANNELS = @channels@, CHANNEL_BLOCKS = (CHANNELS + LANES - 1) / LANES,
        PANELS = (@filters@ + WIDTH - 1) / WIDTH, ACROSS = @across@, DOWN = @down@, /* tiles of an image */
        GROUPS = @groups@, ROWS = @rows@, REMAINDER = @remainder@, /* the first REMAINDER groups have ROWS + 1 tiles */
        BLOCK = @block@, TILES = BLOCK * (ROWS + (REMAINDER > 0)), /* groups and tiles of a block, at most */
        CHUNK = @chunk@, HELD = @held@, /* channels and panels whose transformed weights are kept */
        ONCE = CHUNK == CHANNELS && HELD == PANELS, /* whether these are all of them, transformed with the first block */
        IN_STEP = TILES * CHANNEL_BLOCKS * LANES + @pad@, OUT_STEP = TILES * WIDTH + @pad@, /* not a power of two */
        STEP = CHUNK * WIDTH + @pad@
    };
    float *const in = scratch, *const products = in + POINTS * IN_STEP, *const held = products + POINTS * OUT_STEP;
    float *const strip = held + HELD * WEIGHTS * STEP;
    const long begin = GROUPS * thread / threads, groups = GROUPS * (thread + 1) / threads - begin;
    const long blocks = (groups + BLOCK - 1) / BLOCK;
    for (long block = 0; block < blocks; block++) {
        const long first = begin + groups * block / blocks, last = begin + groups * (block + 1) / blocks;
        const long tile = first * ROWS + (first < REMAINDER ? first : REMAINDER);
        const long count = last * ROWS + (last < REMAINDER ? last : REMAINDER) - tile;
        for (long group = first, start = 0; group < last; group++) {
            const long rows = ROWS + (group < REMAINDER);
            for (long row = 0; row < rows; row++)
                for (long channels = 0; channels < CHANNEL_BLOCKS; channels++) {
                    const long t = tile + start + row, batch = t / ACROSS / DOWN;
                    mithril_winograd@m@_tile(blocked + @tile_place@, @row@,
                            in + start * CHANNEL_BLOCKS * LANES + (channels * rows + row) * LANES, IN_STEP);
                }
            start += rows;
        }
        for (long panel = 0; panel < PANELS; panel++) {
            float *const factors = held + panel % HELD * WEIGHTS * STEP;
            for (long channel = 0; channel < CHANNELS; channel += CHUNK) {
                const long channels = CHANNELS - channel < CHUNK ? CHANNELS - channel : CHUNK;
                const float *const kept = weights + (panel * CHANNELS + channel) * 9 * WIDTH;
                const int is_first = !ONCE || block == 0;
                if (is_first)
                    mithril_winograd@m@_weights(kept, channels, factors, STEP);
                const int is_last = channel + channels == CHANNELS && panel + 1 == PANELS;
                const float *const following = is_last ? weights : kept + channels * 9 * WIDTH;
                const int is_last_use = !is_first || (is_last && (ONCE || block + 1 == blocks));
                const char *const next = is_last_use ? next_step : (const char *)following;
                const long stride = 9 * WIDTH * (long)sizeof(float) / (POINTS * (last - first));
                for (long point = 0; point < POINTS; point++)
                    for (long group = first, start = 0; group < last; group++) {
                        const long extra = group < REMAINDER, rows = ROWS + extra;
                        const float *const left = in + point * IN_STEP + start * CHANNEL_BLOCKS * LANES + rows * channel;
                        const float *const right = factors + @weight@ * STEP;
                        float *const tile_sums = products + point * OUT_STEP + start * WIDTH;
                        const char *const fetch = next + (point * (last - first) + group - first) * channels * stride;
                        @micro_calls@
                        start += rows;
                    }
            }
            @name@_epilogue(products, OUT_STEP, tile, count, panel, out@arguments@, strip);
        }
    }
}
