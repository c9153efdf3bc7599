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
    @strips@
}
