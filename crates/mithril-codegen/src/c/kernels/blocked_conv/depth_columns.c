for (long y = 0; y < @kd@ * @kh@; y++, weights += @kw@ * @pitch@) {
    const @image_type@ *const line = image + @line_of_weights@;
    mithril_@t@ weight[@kw@];
    MITHRIL_UNROLL(@kw@)
    for (long x = 0; x < @kw@; x++)
        weight[x] = MITHRIL_LOAD(@t@, weights + x * @pitch@);
    /* Each vector of the line is read once, for all pixels that it is under. */
    MITHRIL_UNROLL(@most_columns@)
    for (long column = 0; column < (across - 1) * @stride@ + @reach@; column++) {
        mithril_@t@ under = @load@line + column * LANES);
        MITHRIL_KEEP(under);
        MITHRIL_UNROLL(@kw@)
        for (long x = 0; x < @kw@; x++) {
            const long first = column - x * @gap@, pixel = first / @stride@;
            if (first >= 0 && first % @stride@ == 0 && pixel < across)
                sum[pixel] += weight[x] * under;
        }
    }
}
