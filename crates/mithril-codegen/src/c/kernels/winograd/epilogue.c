/* out[@n@, @filters@, @oh@, @ow@] = convolution of image[@n@, @channels@, ...] by weights[@filters@, @channels@, 3, 3], stride
   @step_down@ by @step_across@, by Winograd's F(@size@, 3), with @points@ products instead of @products@. The
   products of all tiles at one point are a matrix product over the channels. */

/* Transforms the tiles from `first` on, of the filters of one panel, from points to rows of pixels, applies the epilogue
   and stores them in out. `step` is the stride between the points of a tile. batch is the image, row the filter,
   column the pixel. */
static void @name@_epilogue(const float *restrict points, long step, long first, long count, long panel,
        @out@ *restrict out@parameters@, float *restrict strip) {
    enum {
        LANES = @lanes@, WIDTH = 2 * LANES, HIGH = @high@, WIDE = @wide@, FILTERS = @filters@, OUT_HEIGHT = @oh@, OUT_WIDTH = @ow@,
        ACROSS = @across@, DOWN = @down@, /* tiles of an image */
        STRIP = (ACROSS * WIDE + LANES - 1) / LANES * LANES
    };
    float *const line = strip + HIGH * STRIP * LANES;
    for (long tile = first, run; tile < first + count; tile += run) {
        const long left = tile % ACROSS, top = tile / ACROSS % DOWN * HIGH, batch = tile / ACROSS / DOWN;
        run = ACROSS - left < first + count - tile ? ACROSS - left : first + count - tile;
        const long pixels = OUT_WIDTH - left * WIDE < run * WIDE ? OUT_WIDTH - left * WIDE : run * WIDE;
        for (long filter = panel * WIDTH; filter < (panel + 1) * WIDTH && filter < FILTERS; filter += LANES) {
            const long filters = FILTERS - filter < LANES ? FILTERS - filter : LANES;
            for (long i = 0; i < run; i++)
                mithril_winograd@m@_tile_back(points + (tile - first + i) * WIDTH + (filter - panel * WIDTH), step,
                        strip + i * WIDE * LANES, STRIP);
            for (long y = 0; y < HIGH && top + y < OUT_HEIGHT; y++) {
                const long place = (top + y) * OUT_WIDTH + left * WIDE;
                for (long pixel = 0; pixel < pixels; pixel += LANES)
                    mithril_transpose_f32(strip + (y * STRIP + pixel) * LANES, LANES, line + pixel, STRIP);
                for (long row = filter; row < filter + filters; row++)
                    for (long column = place; column < place + pixels; column++) {
                        const float accumulator = line[(row - filter) * STRIP + column - place];
                        out[@out_place@] = @expression@;
                    }
            }
        }
        (void)batch;
    }
}
