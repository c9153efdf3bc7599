/* out[@n@, @filters@, @oh@, @ow@] = convolution of image[@n@, @channels@, @h@, @w@], each channel by itself, by
   weights[@filters@, 1, @kh@, @kw@]. Each channel is first copied with zero padding@phases@.
   A tile of sums stays in registers while its vectors of pixels are multiplied by all weights. */

/* The sums of `across` vectors. */
MITHRIL_INLINE void @name@_tile(const long across, const @type@ *restrict pixels, const @type@ *restrict kernel,
        @type@ *restrict sums) {
    mithril_@t@ sum[@most@];
    MITHRIL_UNROLL(@most@)
    for (long i = 0; i < across; i++)
        sum[i] = (mithril_@t@){0};
    @products@
    MITHRIL_UNROLL(@most@)
    for (long i = 0; i < across; i++)
        MITHRIL_STORE(@t@, sums + i * @out_step@, sum[i]);
}

static MITHRIL_NOINLINE void @name@(long thread, long threads, const @type@ *restrict image, const @type@ *restrict weights,
        @out@ *restrict out@parameters@, @type@ *restrict scratch) {
    enum {
        FILTERS = @filters@, OUT_HEIGHT = @oh@, OUT_WIDTH = @ow@, H = @h@, W = @w@, LANES = @lanes@,
        PLANE = @plane@, BAND = @band@, TILES = @tiles@,
        ACROSS = @across@, REMAINDER = @remainder@ /* the first REMAINDER tiles have ACROSS + 1 vectors */
    };
    @type@ *const plane = scratch, *const sums = scratch + PLANE@rows@;
    for (long i = 0; i < PLANE; i++)
        plane[i] = 0;
    const @type@ *copied = 0;
    long lines = 0; /* of the image in the copy */
    const long units = (long)@n@ * FILTERS;
    for (long unit = units * thread / threads; unit < units * (thread + 1) / threads; unit++) {
        const long batch = unit / FILTERS, row = unit % FILTERS;
        const @type@ *const kernel = weights + row * @kh@ * @kw@;
        const @type@ *const from = image + (batch * @channels@ + row / (FILTERS / @channels@)) * H * W;
        if (copied != from)
            lines = 0;
        copied = from;
        for (long band = 0; band < OUT_HEIGHT; band += BAND) {
            /* The last one begins with rows that the one before has computed. */
            const long first = band + BAND < OUT_HEIGHT ? band : OUT_HEIGHT - BAND;
            const long last = band + BAND < OUT_HEIGHT ? band + BAND : OUT_HEIGHT;
            for (; lines < H && lines < @lines@; lines++) {
                @copy@
            }
            @sum_up@
            for (long column = band * OUT_WIDTH; column < last * OUT_WIDTH; column++) {
                const @type@ accumulator = @results@[column - first * OUT_WIDTH];
                out[@out_place@] = @expression@;
            }
        }
    }
}
