/* out[@n@, @filters@, @oh@, @ow@] = convolution of image[@n@, @channels@, ...] by weights[@filters@, @group_channels@, @kh@, @kw@] in groups of
   channels, in blocks of @lanes@: a block of filters reads @span@ of channels, with weights of 0 for those of other
   groups. `image` points to what lies under the first weight at the first pixel. */

@epilogue@
/* sums[down * across pixels][LANES] of one block of filters. */
MITHRIL_INLINE void @name@_tile(const long down, const long across, const @factor@ *restrict image,
        const @factor@ *restrict weights, @type@ *restrict sums) {
    enum { LANES = @lanes@ };
    mithril_@t@ sum[@most@];
    MITHRIL_UNROLL(@most@)
    for (long pixel = 0; pixel < down * across; pixel++)
        sum[pixel] = (mithril_@t@){0};
    for (long block = 0; block < @span@; block++, image += @plane@)
        for (long y = 0; y < @kh@; y++)
            for (long x = 0; x < @kw@; x++) {
                const @factor@ *const place = image + y * @row@ + x * @column@;
                for (long i = 0; i < @run@; i++, weights += LANES) {
                    const mithril_@p@ weight = MITHRIL_LOAD(@p@, weights);
                    MITHRIL_UNROLL(@most@)
                    for (long pixel = 0; pixel < down * across; pixel++) {
                        const @factor@ element = place[pixel / across * @image_line@ + pixel % across * @step@ + i];
                        sum[pixel] = MITHRIL_ADD_@p@(sum[pixel], MITHRIL_BROADCAST_@p@(element), weight);
                    }
                }
            }
    MITHRIL_UNROLL(@most@)
    for (long pixel = 0; pixel < down * across; pixel++)
        MITHRIL_STORE(@t@, sums + pixel * LANES, sum[pixel]);
}

static MITHRIL_NOINLINE void @name@(long thread, long threads, const @image_type@ *restrict image, const @stored@ *restrict packed,
        @out@ *restrict out@parameters@@scratch@) {
    enum {
        LANES = @lanes@, BLOCKS = @filters@ / LANES, OUT_HEIGHT = @oh@, DOWN = @down@, GROUPS = @groups@,
        STRIPS = (OUT_HEIGHT + DOWN - 1) / DOWN,
        ACROSS = @across@, REMAINDER = @remainder@ /* the first REMAINDER groups of a row have ACROSS + 1 pixels */
    };
    @type@ sums[@most@ * LANES] __attribute__((aligned(64)));
    const long units = (long)@n@ * BLOCKS * STRIPS;
    for (long unit = units * thread / threads; unit < units * (thread + 1) / threads; unit++) {
        const long y = unit % STRIPS * DOWN, panel = unit / STRIPS % BLOCKS, batch = unit / STRIPS / BLOCKS;
        const @factor@ *const line = @words@image + @image@ + @first_block@ * @plane@ + y * @image_line@;
        const @factor@ *const right = packed + panel * @span@ * @kh@ * @kw@ * @run@ * LANES;
        for (long group = 0, x = 0; group < GROUPS; group++) {
            @tiles@
        }
    }
}
