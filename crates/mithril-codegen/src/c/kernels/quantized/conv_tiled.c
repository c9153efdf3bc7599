/* out[@n@, @filters@, @oh@, @ow@] = convolution of image[@n@, @channels@, ...] by weights[@filters@, @channels@,
   @kh@, @kw@] in 8-bit integers: the image from 0 to 255 with a zero point and a scale, the weights from -127 to 127
   with a scale for each filter. Tiles of @top@ and @bottom@ pixels are multiplied by two vectors of filters. Work is cut into
   strips of @down@ rows of pixels and panels of filters; the strips of a section stay in the cache for all panels. */

@epilogue@
#if MITHRIL_HAS_TILES
/* sums[pixel][2 vectors of filters] of two tiles, one of @top@ pixels and one of @bottom@, which lies `second` words behind
   the first. A step reads @chunk@ words of each pixel; behind a run some may be those of the next pixel, where weights are
   zeros. */
static MITHRIL_NOINLINE void @name@_tiles(const uint32_t *restrict image, long second, const uint32_t *restrict weights,
        int32_t *restrict sums, const char *next, long stride) {
    /* Compilers need not know what the instructions read. */
    __asm__ volatile("" : : : "memory");
    mithril_zero_sums();
    for (long y = 0; y < @kh@; y++)
        for (long x = 0; x < @places@; x++) {
            const uint32_t *place = image + y * @row@ + x * @column@;
            for (long i = 0; i < @chunks@; i++, place += @chunk@, weights += @chunk@ * 32, next += @chunk@ * stride) {
                _tile_loadd(4, place, 4 * @step@);
                _tile_loadd(6, weights, 128);
                _tile_loadd(7, weights + 16, 128);
                _tile_loadd(5, place + second, 4 * @step@);
                for (long j = 0; j < @chunk@ * stride; j += 64)
                    MITHRIL_PREFETCH_L2(next + j);
                _tile_dpbusd(0, 4, 6);
                _tile_dpbusd(1, 4, 7);
                _tile_dpbusd(2, 5, 6);
                _tile_dpbusd(3, 5, 7);
            }
        }
    mithril_store_sums(sums, sums + 32 * @top@);
}
#endif

/* The same with vectors, where there are no tiles. */
static MITHRIL_NOINLINE void @name@_vectors(const uint32_t *restrict image, long second, const uint32_t *restrict weights,
        int32_t *restrict sums) {
    @parts@
}

static MITHRIL_NOINLINE void @name@(long thread, long threads, const void *restrict image, const void *restrict packed,
        @out@ *restrict out@parameters@) {
    enum {
        K = @k@, WIDTH = 2 * @lanes@, PANELS = @panels@, OUT_HEIGHT = @oh@, OUT_WIDTH = @ow@, DOWN = @down@,
        GROUPS = @groups@, ACROSS = @across@, /* the last group ends with the row */
        STRIPS_OF = (OUT_HEIGHT + DOWN - 1) / DOWN, STRIPS = @n@ * STRIPS_OF, SECTIONS = @sections@
    };
    int32_t sums[(@top@ + @bottom@) * WIDTH] __attribute__((aligned(64)));
    @strips@
    mithril_stop_tiles(has_tiles);
}
