static MITHRIL_NOINLINE void @name@_lines_@rows@(long line, long channels, const float *restrict weights, const float *restrict in,
        float *restrict products, int accumulate, const char *next, long stride) {
    static const long row[] = {@weights@}; /* of weights, for lines that take one as it is */
    weights += row[line / @parts@] * 3 * @width@;
    const long first = line / @parts@ * @tile_wide@ + line % @parts@ * @line_points@;
    in += first * @name@_IN_STEP;
    products += first * @name@_OUT_STEP;
    switch (line) {
    @cases@
    default:
        break;
    }
}
