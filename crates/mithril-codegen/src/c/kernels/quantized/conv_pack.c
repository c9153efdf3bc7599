/* Weights[@filters@, @channels@, @kh@, @kw@] in 8 bits: @what@. Panels of two vectors of filters, [panel][row][column][word][2 * LANES], a word being 4 channels of one
   filter, the first in the lowest byte; then the scales of all filters and the sums of their integers. Each @run_places@ places
   are a run of @run_filled@ words, the last of which may be zeros. */
static MITHRIL_NOINLINE void @name@(long thread, long threads, const float *restrict weights, void *restrict packed) {
    enum {
        FILTERS = @filters@, CHANNELS = @channels@, PLACES = @kh@ * @kw@, WORDS = (CHANNELS + 3) / 4,
        RUN_PLACES = @run_places@, RUN = @run_filled@, K = PLACES / RUN_PLACES * RUN,
        WIDTH = 2 * @lanes@, PANELS = (FILTERS + WIDTH - 1) / WIDTH
    };
    uint32_t *const panels = packed;
    float *const scales = (float *)packed + (long)PANELS * K * WIDTH;
    int32_t *const sums = (int32_t *)packed + (long)PANELS * (K + 1) * WIDTH;
    for (long filter = PANELS * WIDTH * thread / threads; filter < PANELS * WIDTH * (thread + 1) / threads; filter++) {
        const float *const from = weights + filter * CHANNELS * PLACES;
        const long terms = filter < FILTERS ? CHANNELS * PLACES : 0;
        const float inverse = @inverse@
        int32_t sum = 0;
        for (long place = 0; place < PLACES; place++)
            for (long word = 0; word < WORDS; word++) {
                uint32_t bits = 0;
                for (long channel = 4 * word; channel < 4 * word + 4; channel++) {
                    const float weight = terms > 0 && channel < CHANNELS ? from[channel * PLACES + place] * inverse : 0;
                    const int32_t number = mithril_filter_number(weight);
                    bits |= (uint32_t)(number & 255) << 8 * (channel & 3);
                    sum += number;
                }
                const long at = place / RUN_PLACES * RUN + place % RUN_PLACES * WORDS + word;
                panels[(filter / WIDTH * K + at) * WIDTH + filter % WIDTH] = bits;
            }
        for (long run = 0; run < PLACES / RUN_PLACES; run++)
            for (long word = RUN_PLACES * WORDS; word < RUN; word++)
                panels[(filter / WIDTH * K + run * RUN + word) * WIDTH + filter % WIDTH] = 0;
        sums[filter] = sum;
    }
}
