@epilogue@
/* Adds up the partial sums parts[PARTS][panels][channels][places][2 vectors of filters] and stores the result. */
static MITHRIL_NOINLINE void @name@(long thread, long threads, const @type@ *restrict parts, @out@ *restrict out@parameters@,
        @type@ *restrict scratch) {
    enum {
        WIDTH = 2 * @lanes@, FILTERS = @filters@, PANELS = (FILTERS + WIDTH - 1) / WIDTH, CHANNELS = @channels@,
        SIZE = @kh@ * @kw@ * WIDTH, PARTS = @parts@
    };
    const long units = (long)PANELS * CHANNELS;
    for (long unit = units * thread / threads; unit < units * (thread + 1) / threads; unit++) {
        const long first = unit / CHANNELS * WIDTH, channel = unit % CHANNELS;
        for (long i = 0; i < SIZE; i++) {
            scratch[i] = parts[unit * SIZE + i];
            for (long part = 1; part < PARTS; part++)
                scratch[i] += parts[(part * units + unit) * SIZE + i];
        }
        @name@_epilogue(scratch, channel, channel + 1, first, FILTERS - first < WIDTH ? FILTERS - first : WIDTH, out@arguments@);
    }
}
