/* out[@n@, @filters@, @oh@, @ow@] = convolution of image[@n@, @channels@, ...], each channel by itself, by
   weights[@filters@, 1, @kh@, @kw@], channels in blocks of @lanes@. `image` points to what lies under the first
   weight at the first pixel. */

@epilogue@
/* sums[across pixels][LANES] of one block of channels. */
MITHRIL_INLINE void @name@_line(const long across, const @image_type@ *restrict image, const @type@ *restrict weights,
        @type@ *restrict sums) {
    enum { LANES = @lanes@ };
    mithril_@t@ sum[@most@];
    MITHRIL_UNROLL(@most@)
    for (long pixel = 0; pixel < across; pixel++)
        sum[pixel] = (mithril_@t@){0};
    @products@
    MITHRIL_UNROLL(@most@)
    for (long pixel = 0; pixel < across; pixel++)
        MITHRIL_STORE(@t@, sums + pixel * LANES, sum[pixel]);
}

static MITHRIL_NOINLINE void @name@(long thread, long threads, const @image_type@ *restrict image, const @stored@ *restrict packed,
        @out@ *restrict out@parameters@@scratch@) {
    enum {
        LANES = @lanes@, BLOCKS = @filters@ / LANES, OUT_HEIGHT = @oh@, GROUPS = @groups@,
        ACROSS = @across@, REMAINDER = @remainder@ /* the first REMAINDER groups of a row have ACROSS + 1 pixels */
    };
    @type@ sums[@most@ * LANES] __attribute__((aligned(64)));
    const long units = (long)@n@ * BLOCKS * OUT_HEIGHT;@known@
    for (long unit = units * thread / threads; unit < units * (thread + 1) / threads; unit++) {
        const long y = unit % OUT_HEIGHT, panel = unit / OUT_HEIGHT % BLOCKS, batch = unit / OUT_HEIGHT / BLOCKS;
        const @image_type@ *const line = image + @image@ + panel * @plane@ + y * @image_line@;
        @weights@
        for (long group = 0, x = 0; group < GROUPS; group++) {
            @tiles@
        }
    }
}
