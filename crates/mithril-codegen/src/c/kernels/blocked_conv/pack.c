/* weights[@filters@, @channels@, @kh@, @kw@] in panels, [filters / WIDTH][channels / BLOCK][ky][kx][BLOCK][WIDTH],
   with zeros for filters beyond the last@of_pairs@. */
static MITHRIL_NOINLINE void @name@(long thread, long threads, const @type@ *restrict weights, @packed@ *restrict packed) {
    enum {
        FILTERS = @filters@, CHANNELS = @channels@, PLACES = @kh@ * @kw@, BLOCK = @block@, WIDTH = 2 * @lanes@,
        PANELS = (FILTERS + WIDTH - 1) / WIDTH
    };
    const long units = (long)PANELS * CHANNELS;
    for (long unit = units * thread / threads; unit < units * (thread + 1) / threads; unit++) {
        const long panel = unit / CHANNELS, channel = unit % CHANNELS;
        for (long place = 0; place < PLACES; place++) {
            const long block = panel * (CHANNELS / BLOCK) + channel / BLOCK;
            @packed@ *const to = packed + @place@;
            for (long i = 0; i < WIDTH; i++) {
                const long filter = panel * WIDTH + i;
                const @type@ weight = filter < FILTERS ? weights[(filter * CHANNELS + @channel_of_weights@) * PLACES + place] : 0;
                to[@lane@] = @weight@;
            }
        }
    }
}
