/* Stores sums[channel][place][2 vectors of filters] in out[filter][channel][place], transposed in squares where
   these are whole. */
static void @name@_epilogue(const @type@ *restrict sums, long first_channel, long end_channel, long first_filter,
        long filters, @out@ *restrict out) {
    enum { LANES = @lanes@, WIDTH = 2 * LANES, PLACES = @kh@ * @kw@, ROW = @out_row@ };
    const long count = (end_channel - first_channel) * PLACES;
    out += first_filter * ROW + first_channel * PLACES;
    for (long first = 0; first < filters; first += LANES)
        for (long i = 0; i < count; i += LANES) {
            if (first + LANES <= filters && i + LANES <= count) {
                @transpose@(sums + i * WIDTH + first, WIDTH, out + first * ROW + i, ROW);
                continue;
            }
            for (long row = first; row < first + LANES && row < filters; row++)
                for (long column = i; column < i + LANES && column < count; column++)
                    out[row * ROW + column] = sums[column * WIDTH + row];
        }
}
