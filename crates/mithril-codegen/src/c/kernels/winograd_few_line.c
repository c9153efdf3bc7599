static MITHRIL_ONCE void @name@_lines_@rows@(long line, long channels, const float *restrict weights, const float *restrict in,
                               float *restrict products, int accumulate, const char *next, long stride)
{
    const long first = line / @parts@ * @tile_wide@ + line % @parts@ * @line_points@;
    in += first * @name@_IN_STEP;
    products += first * @name@_OUT_STEP;
    switch (line) {
    @cases@
    default:
        break;
    }
}
