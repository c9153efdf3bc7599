/* Weights[@filters@, @channels@, 3, 3] in panels: [filters / WIDTH][channel][3][3][WIDTH]. */
static MITHRIL_NOINLINE void @name@(long thread, long threads, const float *restrict weights, float *restrict packed) {
    enum { CHANNELS = @channels@, FILTERS = @filters@, WIDTH = 2 * @lanes@, PANELS = (FILTERS + WIDTH - 1) / WIDTH };
    const long units = (long)PANELS * CHANNELS;
    for (long unit = units * thread / threads; unit < units * (thread + 1) / threads; unit++) {
        const long first = unit / CHANNELS * WIDTH, channel = unit % CHANNELS;
        for (long place = 0; place < 9; place++)
            for (long column = 0; column < WIDTH; column++) {
                const long filter = first + column;
                packed[(unit * 9 + place) * WIDTH + column] =
                    filter < FILTERS ? weights[(filter * CHANNELS + @channel_of_weights@) * 9 + place] : 0;
            }
    }
}
