/* out[@n@, @filters@, @oh@, @ow@] = convolution of image[@n@, @channels@, ...] by weights[@filters@, @channels@,
   @kh@, @kw@] in blocks of @lanes@ channels of bfloat16, with tiles of @top@ and @bottom@ pixels by two vectors of filters.
   `image` points to what lies under the first weight at the first pixel. Work is cut into strips of @down@ rows of pixels and
   panels of filters; the strips of a section stay in the cache for all panels. `next_step` are the weights that the next step
   of the program starts with. */

@epilogue@
#if MITHRIL_HAS_TILES
/* sums[pixel][2 vectors of filters] of two tiles, one of @top@ pixels and one of @bottom@, which lies `second` words behind
   the first. */
static MITHRIL_NOINLINE void @name@_tiles(const @factor@ *restrict image, long second, const @factor@ *restrict weights,
        float *restrict sums, const char *next, long stride) {
    /* Compilers need not know what the instructions read. */
    __asm__ volatile("" : : : "memory");
    mithril_zero_sums();
    for (long block = 0; block < @outer@; block++, image += @plane@)
        for (long y = 0; y < @kh@; y++)
            for (long x = 0; x < @kw@; x++, weights += @run@ * 32, next += @run@ * stride) {
                const @factor@ *const place = image + y * @row@ + x * @column@;
                _tile_loadd(4, place, 4 * @step@);
                _tile_loadd(6, weights, 128);
                _tile_loadd(7, weights + 16, 128);
                _tile_loadd(5, place + second, 4 * @step@);
                for (long i = 0; i < @run@ * stride; i += 64)
                    MITHRIL_PREFETCH_L2(next + i);
                _tile_dpbf16ps(0, 4, 6);
                _tile_dpbf16ps(1, 4, 7);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
    mithril_store_sums(sums, sums + 32 * @top@);
}
#endif

/* The same with vectors, where there are no tiles. */
static MITHRIL_NOINLINE void @name@_vectors(const @factor@ *restrict image, long second, const @factor@ *restrict weights,
        float *restrict sums) {
    @parts@
}

static MITHRIL_NOINLINE void @name@(long thread, long threads, const @image_type@ *restrict image, const @stored@ *restrict packed,
        @out@ *restrict out@parameters@@scratch@, const char *next_step) {
    enum {
        K = @k@, WIDTH = 2 * @lanes@, PANELS = @panels@, OUT_HEIGHT = @oh@, OUT_WIDTH = @ow@, DOWN = @down@,
        GROUPS = @groups@, ACROSS = @across@, /* the last group ends with the row */
        STRIPS_OF = (OUT_HEIGHT + DOWN - 1) / DOWN, STRIPS = @n@ * STRIPS_OF, SECTIONS = @sections@
    };
    @type@ sums[(@top@ + @bottom@) * WIDTH] __attribute__((aligned(64)));
    const int has_tiles = mithril_shape_tiles(@top@, @bottom@, @run@);
    const long units = (long)SECTIONS * PANELS, end = units * (thread + 1) / threads;@known@
    for (long unit = units * thread / threads; unit < end; unit++) {
        @section@
        const long stride = @step_bytes@ / ((last - first) * GROUPS);
        for (long strip = first; strip < last; strip++) {
            const long batch = strip / STRIPS_OF, y = strip % STRIPS_OF * DOWN;
            const @factor@ *const line = @words@image + @image@ + y * @image_line@;
            const int is_whole = y + DOWN <= OUT_HEIGHT;
            const long second = DOWN == 1 ? @top@ * @step@ : is_whole ? @image_line@ : 0;
            for (long group = 0; group < GROUPS; group++, next += K * stride) {
                const long x = group + 1 < GROUPS ? group * ACROSS : OUT_WIDTH - ACROSS;
#if MITHRIL_HAS_TILES
                if (has_tiles)
                    @name@_tiles(line + x * @step@, second, right, sums, next, stride);
                else
#endif
                    @name@_vectors(line + x * @step@, second, right, sums);
                @store@
            }
        }
    }
    mithril_stop_tiles(has_tiles);
}
