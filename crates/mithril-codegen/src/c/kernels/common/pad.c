/* Copies the @planes@ planes of an image with zero padding: @top@ rows above, @left@ pixels to the left.@phases@ */
static MITHRIL_NOINLINE void @name@(long thread, long threads, const @type@ *restrict image, @type@ *restrict padded) {
    enum { H = @h@, W = @w@, LEFT = @left@, STEP = @stride_x@, PADDED_H = @padded_height@, PADDED_W = @padded_width@ };
    const long rows = (long)@planes@ * PADDED_H;
    for (long row = rows * thread / threads; row < rows * (thread + 1) / threads; row++) {
        const long y = row % PADDED_H - @top@;
        @type@ *restrict to = padded + row * PADDED_W;
        memset(to, 0, sizeof(@type@) * PADDED_W);
        if (y < 0 || y >= H)
            continue;
        const @type@ *restrict from = image + (row / PADDED_H * H + y) * W;
        /* GCC 12 vectorizes this loop incorrectly if it unrolls it. */
        MITHRIL_UNROLL_BY(1)
        for (long part = 0; part < STEP; part++) {
            const long first = (part + LEFT * (STEP - 1)) % STEP; /* column of the image where this part begins */
            @type@ *restrict line = to + part * (PADDED_W / STEP) + (first + LEFT) / STEP;
            for (long i = 0; i < (W - first + STEP - 1) / STEP; i++)
                line[i] = from[first + i * STEP];
        }
    }
}
