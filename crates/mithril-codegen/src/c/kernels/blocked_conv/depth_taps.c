for (long y = 0; y < @kd@ * @kh@; y++)
    for (long x = 0; x < @kw@; x++, weights += @pitch@) {
        const @image_type@ *const place = image + @line_of_weights@ + x * @column@;
        const mithril_@t@ weight = MITHRIL_LOAD(@t@, weights);
        MITHRIL_UNROLL(@most@)
        for (long pixel = 0; pixel < across; pixel++)
            sum[pixel] += weight * @load@place + pixel * @step@);
    }
