/* Applies the epilogue to sums[channel][place][2 vectors of filters] and stores them in out: batch is the channel, row the
   filter, column the place. */
static void @name@_epilogue(const @type@ *restrict sums, long first_channel, long end_channel, long first_filter,
        long filters, @out@ *restrict out@parameters@) {
    enum { WIDTH = 2 * @lanes@, PLACES = @kh@ * @kw@ };
    for (long row = first_filter; row < first_filter + filters; row++)
        for (long batch = first_channel; batch < end_channel; batch++)
            for (long column = 0; column < PLACES; column++) {
                const @type@ accumulator = sums[((batch - first_channel) * PLACES + column) * WIDTH + row - first_filter];
                out[@out_place@] = @expression@;
            }
}
