/* out[@n@, @filters@, @oh@, @ow@] = convolution of image[@n@, @channels@, ...] by weights[@filters@, @channels@,
   @kh@, @kw@], the result in blocks of @lanes@ channels. `image` points to what lies under the first weight at the
   first pixel. Work is cut into strips of @down@ rows of pixels and panels of two vectors of filters; the strips of
   a section stay in the cache for all panels. `next_step` are the weights that the next step of the program starts
   with. */

@epilogue@
static MITHRIL_NOINLINE void @name@(long thread, long threads, const @image_type@ *restrict image, const @stored@ *restrict packed,
        @out@ *restrict out@parameters@@scratch@, const char *next_step) {
    enum {
        K = @k@, WIDTH = 2 * @lanes@, PANELS = @panels@, OUT_HEIGHT = @oh@, DOWN = @down@,
        GROUPS = @groups@, ACROSS = @across@, REMAINDER = @remainder@, /* the first REMAINDER groups of a row have ACROSS + 1 pixels */
        STRIPS_OF = (OUT_HEIGHT + DOWN - 1) / DOWN, STRIPS = @n@ * STRIPS_OF, SECTIONS = @sections@
    };
    @type@ sums[@most@ * WIDTH] __attribute__((aligned(64)));
    const long units = (long)SECTIONS * PANELS, end = units * (thread + 1) / threads;@known@
    for (long unit = units * thread / threads; unit < end; unit++) {
        @section@
        const long stride = @step_bytes@ / ((last - first) * GROUPS);
        for (long strip = first; strip < last; strip++) {
            const long batch = strip / STRIPS_OF, y = strip % STRIPS_OF * DOWN;
            const @factor@ *const line = @words@image + @image@ + y * @image_line@;
            for (long group = 0, x = 0; group < GROUPS; group++, next += K * stride) {
                @tiles@
            }
        }
    }
}
