/* out[@n@, @filters@, @oh@, @ow@] = convolution of image[@n@, @channels@, ...] by weights[@filters@, @channels@,
   @kh@, @kw@] in 8-bit integers: the image from 0 to 255 with a zero point and a scale, the weights from -127 to 127
   with a scale for each filter. Work is cut into strips of @down@ rows of pixels and panels of two
   vectors of filters; the strips of a section stay in the cache for all panels. */

@epilogue@
static MITHRIL_NOINLINE void @name@(long thread, long threads, const void *restrict image, const void *restrict packed,
        @out@ *restrict out@parameters@) {
    enum {
        K = @k@, WIDTH = 2 * @lanes@, PANELS = @panels@, OUT_HEIGHT = @oh@, DOWN = @down@,
        GROUPS = @groups@, ACROSS = @across@, REMAINDER = @remainder@, /* the first REMAINDER groups of a row have ACROSS + 1 pixels */
        STRIPS_OF = (OUT_HEIGHT + DOWN - 1) / DOWN, STRIPS = @n@ * STRIPS_OF, SECTIONS = @sections@
    };
    int32_t sums[@most@ * WIDTH] __attribute__((aligned(64)));
    @given@
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
            const uint32_t *const line = (const uint32_t *)image + batch * @image_batch@ + y * @image_line@@group_words@;
            if (batch != known) {
                @scale@
                known = batch;
            }@none@
            for (long group = 0, x = 0; group < GROUPS; group++, next += K * stride) {
                @tiles@
            }@note@
        }
    }
}
