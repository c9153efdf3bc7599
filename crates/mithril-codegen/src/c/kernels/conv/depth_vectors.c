for (long y = 0; y < @kh@; y++)
    for (long x = 0; x < @kw@; x++) {
        const @type@ *const from = pixels + @line@ * @phase_width@ + @column@;
        const mithril_@t@ weight = MITHRIL_BROADCAST_@t@(kernel[y * @kw@ + x]);
        MITHRIL_UNROLL(@most@)
        for (long i = 0; i < across; i++)
            sum[i] += weight * MITHRIL_LOAD(@t@, from + i * @step@);
    }