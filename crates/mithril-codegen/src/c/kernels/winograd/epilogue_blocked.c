/* out[@n@, @filters@, @oh@, @ow@] = convolution of image[@n@, @channels@, ...] by weights[@filters@, @channels@, 3, 3], stride
   @step_down@ by @step_across@, by Winograd's F(@size@, 3), with @points@ products instead of @products@. The
   products of all tiles at one point are a matrix product over the channels. */

/* Transforms the tiles from `first` on, of the filters of one panel, from points to pixels, applies the epilogue and stores
   them in out. `step` is the stride between the points of a tile. */
static void @name@_epilogue(const float *restrict points, long step, long first, long count, long panel,
        @out@ *restrict out@parameters@, float *restrict square) {
    enum {
        LANES = @lanes@, WIDTH = 2 * LANES, HIGH = @high@, WIDE = @wide@, FILTERS = @filters@, OUT_HEIGHT = @oh@, OUT_WIDTH = @ow@,
        ACROSS = @across@, DOWN = @down@ /* tiles of an image */
    };
    for (long block = panel * 2; block < panel * 2 + 2 && block * LANES < FILTERS; block++)
        for (long tile = first; tile < first + count; tile++) {
            const long left = tile % ACROSS * WIDE, top = tile / ACROSS % DOWN * HIGH, batch = tile / ACROSS / DOWN;
            const float *restrict sums = square;
            mithril_winograd@m@_tile_back(points + (tile - first) * WIDTH + block % 2 * LANES, step, square, WIDE);
            for (long y = top; y < top + HIGH && y < OUT_HEIGHT; y++, sums += WIDE * LANES)
                for (long x = left; x < left + WIDE && x < OUT_WIDTH; x++) {
                    const float *const from = sums + (x - left) * LANES;
                    @epilogue_lanes@
                }
            (void)batch;
        }
}
