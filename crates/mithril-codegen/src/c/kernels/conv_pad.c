/* Copies the @planes@ planes of an image with margins of zeros: @top@ above, @left@ to the left. */
static void @name@(long thread, long threads, const @type@ *restrict image, @type@ *restrict padded)
{
    enum { H = @h@, W = @w@, PADDED_H = @padded_height@, PADDED_W = @padded_width@ };
    const long rows = (long)@planes@ * PADDED_H;
    for (long row = rows * thread / threads; row < rows * (thread + 1) / threads; row++) {
        const long y = row % PADDED_H - @top@;
        @type@ *restrict to = padded + row * PADDED_W;
        if (y < 0 || y >= H) {
            for (long x = 0; x < PADDED_W; x++)
                to[x] = 0;
            continue;
        }
        const @type@ *restrict from = image + (row / PADDED_H * H + y) * W;
        for (long x = 0; x < @left@; x++)
            to[x] = 0;
        for (long x = 0; x < W; x++)
            to[@left@ + x] = from[x];
        for (long x = W + @left@; x < PADDED_W; x++)
            to[x] = 0;
    }
}
