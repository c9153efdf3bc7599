/* out[@n@, @filters@, @oh@, @ow@] = convolution of image[@n@, @channels@, @h@, @w@], each channel by itself, by
   weights[@filters@, 1, @kh@, @kw@]. Each channel is first copied with zero padding: a loop over the pixels of a row
   then takes all products of a sum at once. */
static MITHRIL_NOINLINE void @name@(long thread, long threads, const @type@ *restrict image, const @type@ *restrict weights,
        @out@ *restrict out@parameters@, @type@ *restrict scratch) {
    enum {
        FILTERS = @filters@, OUT_HEIGHT = @oh@, OUT_WIDTH = @ow@, H = @h@, W = @w@,
        IN_WIDTH = @padded_width@, PLANE = @padded_plane@
    };
    @type@ *const plane = scratch, *const sums = scratch + PLANE;
    for (long i = 0; i < PLANE; i++)
        plane[i] = 0;
    const long units = (long)@n@ * FILTERS;
    for (long unit = units * thread / threads; unit < units * (thread + 1) / threads; unit++) {
        const long batch = unit / FILTERS, row = unit % FILTERS;
        const @type@ *const kernel = weights + row * @kh@ * @kw@;
        const @type@ *const from = image + (batch * @channels@ + row / (FILTERS / @channels@)) * H * W;
        for (long y = 0; y < H; y++)
            for (long x = 0; x < W; x++)
                plane[(y + @top@) * IN_WIDTH + @left@ + x] = from[y * W + x];
        for (long y = 0; y < OUT_HEIGHT; y++) {
            const @type@ *const line = plane + y * @stride_y@ * IN_WIDTH;
            for (long x = 0; x < OUT_WIDTH; x++)
                sums[x] = @terms@;
            for (long column = y * OUT_WIDTH; column < (y + 1) * OUT_WIDTH; column++) {
                const @type@ accumulator = sums[column - y * OUT_WIDTH];
                out[@out_place@] = @expression@;
            }
        }
    }
}
