static MITHRIL_NOINLINE void @name@_products(long thread, long threads, const float *restrict in, const float *restrict weights,
        float *restrict products, float *restrict scratch, const char *next_step) {
    enum {
        POINTS = @points@, LANES = @lanes@, WIDTH = 2 * LANES, CHANNELS = @channels@, CHANNEL_BLOCKS = (CHANNELS + LANES - 1) / LANES,
        PANELS = (@filters@ + WIDTH - 1) / WIDTH, GROUPS = @groups@, ROWS = @rows@, REMAINDER = @remainder@,
        CHUNK = @chunk@, /* channels at a time: the points of their weights stay in the cache */
        STEP = CHUNK * WIDTH + @pad@
    };
    const long units = PANELS * POINTS, end = units * (thread + 1) / threads;
    for (long unit = units * thread / threads, count; unit < end; unit += count) {
        const long panel = unit / POINTS, first = unit % POINTS;
        count = POINTS - first < end - unit ? POINTS - first : end - unit;
        for (long channel = 0; channel < CHANNELS; channel += CHUNK) {
            const long channels = CHANNELS - channel < CHUNK ? CHANNELS - channel : CHUNK;
            const float *const kept = weights + (panel * CHANNELS + channel) * 9 * WIDTH;
            mithril_winograd@m@_weights(kept, channels, scratch, STEP);
            const int is_last = channel + channels == CHANNELS && unit + count == end;
            const char *const next = is_last ? next_step : (const char *)(kept + channels * 9 * WIDTH);
            const long stride = 9 * WIDTH * (long)sizeof(float) / (count * GROUPS);
            for (long point = first; point < first + count; point++)
                for (long group = 0, start = 0; group < GROUPS; group++) {
                    const long extra = group < REMAINDER, rows = ROWS + extra;
                    const float *const left = in + point * @name@_IN_STEP + start * CHANNEL_BLOCKS * LANES + rows * channel;
                    const float *const right = scratch + @weight@ * STEP;
                    float *const tile_sums = products + point * @name@_OUT_STEP + (panel * @tiles@ + start) * WIDTH;
                    const char *const fetch = next + ((point - first) * GROUPS + group) * channels * stride;
                    @micro_calls@
                    start += rows;
                }
        }
    }
}
