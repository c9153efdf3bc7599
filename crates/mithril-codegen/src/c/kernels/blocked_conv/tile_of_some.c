/* The same for @vectors_of@@down@ by @across@ pixels with stride @step@ and @run@ contiguous elements, and `height` rows of `width` weights
   out of @height@ by @width@. Long sums are computed as sums of partial sums of about TERMS terms, which bounds their
   rounding error. */
static MITHRIL_NOINLINE void @name@(const @factor@ *restrict image, long line, long blocks, long plane, long height, long row,
        long width, long column, const @factor@ *restrict weights, @type@ *restrict sums, const char *next, long stride) {
    enum { TERMS = 576, OF_ROW = @width@ * @run@, OF_BLOCK = @height@ * OF_ROW, PANEL = 2 * @lanes@ };
    const long terms = height * width * @run@, pieces = blocks * terms / TERMS + 1;
    const long most = (blocks + pieces - 1) / pieces; /* blocks of a partial sum */
    for (long done = 0; done < blocks; done += most)
        mithril_tile_@p@(@vectors@, @down@, @across@, @step@, @run@, image + done * plane, line, blocks - done < most ? blocks - done : most,
                plane, height, row, width, column, weights + done * OF_BLOCK * PANEL, (@width@ - width) * @run@ * PANEL,
                (@height@ - height) * OF_ROW * PANEL, sums, done > 0, next + done * terms * stride, stride);
}
