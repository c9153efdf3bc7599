/* The same for @down@ by @across@ pixels with stride @step@, @run@ contiguous elements, and @height@ by @width@ weights. Long
   sums are computed as sums of partial sums of about TERMS terms, which bounds their rounding error.
  @rows_note@ */
static MITHRIL_NOINLINE void @name@(const @type@ *restrict image, long line, long blocks, long plane, long row, long column,
        @rows_parameters@const @type@ *restrict weights, @type@ *restrict sums, const char *next, long stride) {
    enum { TERMS = 576, OF_ROW = @width@ * @run@, OF_BLOCK = @height@ * OF_ROW };
    const long pieces = (blocks * OF_BLOCK + TERMS - 1) / TERMS;
    const long most = (blocks + pieces - 1) / pieces; /* blocks of a partial sum */
    for (long done = 0; done < blocks; done += most)
        mithril_tile_@t@(@down@, @across@, @step@, @run@, image + done * plane + @from@ * row, line, blocks - done < most ? blocks - done : most,
                plane, @count@, row, @width@, column, weights + (done * OF_BLOCK + @from@ * OF_ROW) * 2 * @lanes@,
                (@height@ - (@count@)) * OF_ROW * 2 * @lanes@, sums, done > 0,
                next + done * OF_BLOCK * stride, stride);
}
