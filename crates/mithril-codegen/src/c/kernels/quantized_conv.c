/* out[@n@, @filters@, @oh@, @ow@] = convolution of image[@n@, @channels@, ...] by weights[@filters@, @channels@, @kh@, @kw@] in whole numbers of
   8 bits: the image as bytes from 0 to 255 with a zero and a scale, the weights from -127 to 127 with a scale for each filter.
   Work is cut into strips of @down@ rows of pixels and panels of two vectors of filters; the strips of a section stay in
   the cache for all panels. */

/* Writes the finished sums of some pixels to their place: row is the filter, column the pixel. */
MITHRIL_INLINE void @name@_finish(const int32_t *restrict sums, float scale, int32_t zero, const float *restrict scales, long batch,
                                  long top, long left, const long down, const long across, long panel,
                                  @out@ *restrict out@parameters@)
{
    enum { LANES = @lanes@, FILTERS = @filters@, FILLED = (FILTERS + 2 * LANES - 1) / (2 * LANES) * 2 * LANES };
    const int32_t *const totals = (const int32_t *)scales + FILLED;
    for (long y = top; y < top + down; y++)
        for (long x = left; x < left + across; x++, sums += 2 * LANES)
            for (long block = 2 * panel; block < 2 * panel + 2 && block * LANES < FILTERS; block++)
                for (long lane = 0; lane < @lanes_end@; lane++) {
                    const long filter = block * LANES + lane;
                    const int32_t sum = sums[block % 2 * LANES + lane] - zero * totals[filter];
                    const float accumulator = (float)sum * (scale * scales[filter]);@coordinates@
                    out[@out_place@] = @expression@;
                }
    (void)batch;
}

static MITHRIL_ONCE void @name@(long thread, long threads, const void *restrict shared, const void *restrict packed,
                   @out@ *restrict out@parameters@)
{
    enum {
        K = @k@, WIDTH = 2 * @lanes@, PANELS = @panels@, OUT_HEIGHT = @oh@, DOWN = @down@, HEIGHT = @height@,
        GROUPS = @groups@, ACROSS = @across@, LONGER = @longer@, /* the first LONGER groups of a row have ACROSS + 1 pixels */
        STRIPS_OF = (OUT_HEIGHT + DOWN - 1) / DOWN, STRIPS = @n@ * STRIPS_OF, SECTIONS = @sections@
    };
    int32_t sums[@most@ * WIDTH] __attribute__((aligned(64)));
    const float *const row_scales = (const float *)shared + (long)@n@ * HEIGHT * @line@;
    const int32_t *const zeros = (const int32_t *)row_scales + @n@ * HEIGHT;
    const float *const filter_scales = (const float *)packed + (long)PANELS * K * WIDTH;
    const long units = (long)SECTIONS * PANELS, end = units * (thread + 1) / threads;
    float scale = 0;
    for (long unit = units * thread / threads, known = -1; unit < end; unit++) {
        const long section = unit / PANELS, panel = unit % PANELS;
        const long first = STRIPS * section / SECTIONS, last = STRIPS * (section + 1) / SECTIONS;
        const uint32_t *const right = (const uint32_t *)packed + panel * K * WIDTH;
        const char *next = (const char *)((const uint32_t *)packed + (panel + 1) % PANELS * K * WIDTH);
        const long stride = WIDTH * (long)sizeof(uint32_t) / ((last - first) * GROUPS);
        for (long strip = first; strip < last; strip++) {
            const long batch = strip / STRIPS_OF, y = strip % STRIPS_OF * DOWN;
            const uint32_t *const line = (const uint32_t *)shared + (batch * HEIGHT + y * @stride_y@) * @line@@group_words@;
            if (batch != known) { /* an image with a number that is none has NaN among its scales */
                scale = row_scales[batch * HEIGHT];
                for (long row = 1; row < HEIGHT; row++)
                    scale = row_scales[batch * HEIGHT + row] == scale ? scale : NAN;
                known = batch;
            }
            for (long group = 0, x = 0; group < GROUPS; group++, next += K * stride) {
                @tiles@
            }
        }
    }
}
