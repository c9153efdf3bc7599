/* The same for @vectors_of@@down@ by @across@ pixels with stride @step@, @run@ contiguous elements, and @height@ by @width@ weights. Long
   sums are computed as sums of partial sums of about TERMS terms, which bounds their rounding error. */
static MITHRIL_NOINLINE void @name@(const @factor@ *restrict image, long line, long blocks, long plane, long row, long column,
        const @factor@ *restrict weights, @type@ *restrict sums, const char *next, long stride) {
    enum { TERMS = 576, OF_BLOCK = @height@ * @width@ * @run@ };
    const long pieces = (blocks * OF_BLOCK + TERMS - 1) / TERMS;
    const long most = (blocks + pieces - 1) / pieces; /* blocks of a partial sum */
    for (long done = 0; done < blocks; done += most)
        mithril_tile_@p@(@vectors@, @down@, @across@, @step@, @run@, image + done * plane, line, blocks - done < most ? blocks - done : most,
                plane, @height@, row, @width@, column, weights + done * OF_BLOCK * 2 * @lanes@, 0, 0, sums, done > 0,
                next + done * OF_BLOCK * stride, stride);
}
