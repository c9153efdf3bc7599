/* Sets the margins of @planes@ blocks of @height@ by @width@ pixels to zero (@top@ rows above, @bottom@ below, @left@ pixels to the left, @right@ to the
   right): what convolutions read beyond the edges. */
static MITHRIL_ONCE void @name@(long thread, long threads, @type@ *restrict blocks)
{
    enum {
        LANES = @lanes@, ROW = (@left@ + @width@ + @right@) * LANES, TOP = @top@ * ROW, ROWS = @height@,
        BOTTOM = @bottom@ * ROW, PLANE = @plane@
    };
    for (long plane = @planes@L * thread / threads; plane < @planes@L * (thread + 1) / threads; plane++) {
        @type@ *line = blocks + plane * PLANE;
        memset(line, 0, sizeof(@type@) * TOP);
        line += TOP;
        for (long row = 0; row < ROWS; row++, line += ROW) {
            memset(line, 0, sizeof(@type@) * @left@ * LANES);
            memset(line + (@left@ + @width@) * LANES, 0, sizeof(@type@) * @right@ * LANES);
        }
        memset(line, 0, sizeof(@type@) * BOTTOM);
    }
}
