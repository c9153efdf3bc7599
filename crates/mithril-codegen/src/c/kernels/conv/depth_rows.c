for (long x = 0; x < @kw@; x++) {
    const @type@ *const from = pixels + @column@;
    mithril_@t@ weight[@kh@];
    MITHRIL_UNROLL(@kh@)
    for (long y = 0; y < @kh@; y++)
        weight[y] = MITHRIL_BROADCAST_@t@(kernel[y * @kw@ + x]);
    @each_phase@MITHRIL_UNROLL(@most_lines@)
    for (long line = 0; line < across + @reach@; line++) {
        mithril_@t@ under = MITHRIL_LOAD(@t@, from + @place@ * @phase_width@);
        MITHRIL_KEEP(under);
        MITHRIL_UNROLL(@kh@)
        for (long y = 0; y < @kh@; y++) {
            const long i = @row@;
            if (@of_phase@i >= 0 && i < across)
                sum[i] += weight[y] * under;
        }
    }
}