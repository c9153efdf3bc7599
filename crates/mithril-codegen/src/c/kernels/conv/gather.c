/* A panel of the pixels from `first` on, [channel][kernel row][kernel column][2 * LANES], from a padded image.
   Pixels of one row of the result are a run in the image. Every run is copied as if it were of full length: the
   excess is overwritten by the next run, or belongs to pixels beyond the last, which are not used. */
static void @name@_gather(const @type@ *restrict image, long first, @type@ *restrict panel) {
    enum { LANES = @lanes@, WIDTH = 2 * LANES, OUT_WIDTH = @ow@, PIXELS = @oh@ * @ow@, RUN = @run@, IN_WIDTH = @padded_width@ };
    long runs = 0, from[WIDTH], to[WIDTH];
    for (long pixel = first; pixel < first + WIDTH && pixel < PIXELS; runs++) {
        const long y = pixel / OUT_WIDTH, x = pixel % OUT_WIDTH;
        from[runs] = y * @stride_y@ * IN_WIDTH + x;
        to[runs] = pixel - first;
        pixel += OUT_WIDTH - x;
    }
    for (long channel = 0; channel < @group_channels@; channel++)
        for (long y = 0; y < @kh@; y++)
            for (long x = 0; x < @kw@; x++, panel += WIDTH) {
                const @type@ *const place = image + channel * @padded_plane@ + y * @dilation_y@ * IN_WIDTH + x * @dilation_x@ % @stride_x@ * (IN_WIDTH / @stride_x@) + x * @dilation_x@ / @stride_x@;
                for (long run = 0; run < runs; run++)
                    for (long i = 0; i < RUN; i += LANES)
                        MITHRIL_STORE(@t@, panel + to[run] + i, MITHRIL_LOAD(@t@, place + from[run] + i));
            }
}
