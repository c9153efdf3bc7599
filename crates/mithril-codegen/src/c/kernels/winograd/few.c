/* `count` points of a line, from point `from` on, of the tiles of a group, for a vector of filters. `y` selects how the
   weights are transformed to this line; with -1 the row of weights at `weights` is used as it is. Transforming the
   weights in memory would take as long as the products of so few tiles: they are transformed in registers and
   multiplied by all tiles of the group. Every step prefetches the weights at `next` and advances it by `stride`
   bytes. */
MITHRIL_INLINE void @name@_points(const long rows, const long y, const long from, const long count, long channels,
        const float *restrict weights, const float *restrict in, float *restrict products,
        int accumulate, const char *next, long stride) {
    enum { LANES = @lanes@, WIDTH = 2 * LANES, HIGH = @weights_high@, WIDE = @weights_wide@, COUNT = @line_points@, ROWS = @most@ };
    mithril_f32 sums[COUNT][ROWS], d[3], half[3], down[HIGH], across[WIDE];
    MITHRIL_UNROLL(@line_points@)
    for (long point = 0; point < count; point++) {
        MITHRIL_UNROLL(@most@)
        for (long row = 0; row < rows; row++)
            sums[point][row] = (mithril_f32){0};
    }
    for (long left = channels; left > 0; left -= LANES, in += rows * LANES) {
        const long steps = left < LANES ? left : LANES;
        for (long step = 0; step < steps; step++, weights += 9 * WIDTH, next += stride) {
            MITHRIL_PREFETCH_L2(next);
            MITHRIL_PREFETCH_L2(next + stride / 2);
            MITHRIL_UNROLL(3)
            for (long x = 0; x < 3; x++) {
                if (y < 0) {
                    half[x] = MITHRIL_LOAD(f32, weights + x * WIDTH);
                    continue;
                }
                MITHRIL_UNROLL(3)
                for (long i = 0; i < 3; i++)
                    d[i] = MITHRIL_LOAD(f32, weights + (i * 3 + x) * WIDTH);
                mithril_winograd@line_down@_line_weights(d, down);
                half[x] = down[y];
            }
            mithril_winograd@line_across@_line_weights(half, across);
            MITHRIL_UNROLL(@line_points@)
            for (long point = 0; point < count; point++) {
                const float *const at = in + point * @name@_IN_STEP + step;
                MITHRIL_UNROLL(@most@)
                for (long row = 0; row < rows; row++)
                    sums[point][row] += across[@weight_across@] * MITHRIL_BROADCAST_f32(at[row * LANES]);
            }
        }
    }
    if (accumulate) {
        MITHRIL_UNROLL(@line_points@)
        for (long point = 0; point < count; point++) {
            MITHRIL_UNROLL(@most@)
            for (long row = 0; row < rows; row++)
                sums[point][row] += MITHRIL_LOAD(f32, products + point * @name@_OUT_STEP + row * WIDTH);
        }
    }
    MITHRIL_UNROLL(@line_points@)
    for (long point = 0; point < count; point++) {
        MITHRIL_UNROLL(@most@)
        for (long row = 0; row < rows; row++)
            MITHRIL_STORE(f32, products + point * @name@_OUT_STEP + row * WIDTH, sums[point][row]);
    }
}

@line_functions@

static MITHRIL_NOINLINE void @name@_products(long thread, long threads, const float *restrict in, const float *restrict weights,
        float *restrict products, const char *next_step) {
    enum {
        LANES = @lanes@, WIDTH = 2 * LANES, CHANNELS = @channels@, CHANNEL_BLOCKS = (CHANNELS + LANES - 1) / LANES,
        PANELS = (@filters@ + WIDTH - 1) / WIDTH, GROUPS = @groups@, ROWS = @rows@, REMAINDER = @remainder@,
        LINES = @lines@, /* rows of points of a tile, or parts of them */
        CHUNK = @chunk@ /* channels at a time: their weights and pixels stay in the cache */
    };
    const long units = PANELS * LINES, end = units * (thread + 1) / threads;
    for (long unit = units * thread / threads, count; unit < end; unit += count) {
        const long panel = unit / LINES, first = unit % LINES;
        count = LINES - first < end - unit ? LINES - first : end - unit;
        for (long channel = 0; channel < CHANNELS; channel += CHUNK) {
            const long channels = CHANNELS - channel < CHUNK ? CHANNELS - channel : CHUNK;
            const float *const kept = weights + (panel * CHANNELS + channel) * 9 * WIDTH;
            const int is_last = channel + channels == CHANNELS && unit + count == end;
            const char *next = is_last ? next_step : (const char *)(kept + channels * 9 * WIDTH);
            const long stride = 9 * WIDTH * (long)sizeof(float) / (2 * count * GROUPS);
            for (long lane = 0; lane < WIDTH; lane += LANES)
                for (long line = first; line < first + count; line++)
                    for (long group = 0, start = 0; group < GROUPS; group++, next += channels * stride) {
                        const long extra = group < REMAINDER, rows = ROWS + extra;
                        const float *const left = in + start * CHANNEL_BLOCKS * LANES + rows * channel;
                        float *const tile_sums = products + (panel * @tiles@ + start) * WIDTH + lane;
                        @line_calls@
                        start += rows;
                    }
        }
    }
}
