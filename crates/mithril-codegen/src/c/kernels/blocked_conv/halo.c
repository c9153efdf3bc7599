/* Fills the halo of @planes@ blocks of @height@ by @width@ pixels with @value@ (@top@ rows above, @bottom@ below,
   @left@ pixels to the left, @right@ to the right): convolutions read it beyond the edges of the image. */
static MITHRIL_NOINLINE void @name@(long thread, long threads, @type@ *restrict blocks) {
    enum {
        LANES = @lanes@, LEFT = @left@ * LANES, RIGHT = @right@ * LANES, ROW = LEFT + @width@ * LANES + RIGHT,
        TOP = @top@ * ROW, ROWS = @height@, BOTTOM = @bottom@ * ROW, PLANE = @plane@
    };
    for (long plane = @planes@L * thread / threads; plane < @planes@L * (thread + 1) / threads; plane++) {
        @type@ *line = blocks + plane * PLANE;@whole@
        memset(line, @value@, sizeof(@type@) * TOP);
        line += TOP;
        for (long row = 0; row < ROWS; row++, line += ROW) {
            memset(line, @value@, sizeof(@type@) * LEFT);
            memset(line + LEFT + @width@ * LANES, @value@, sizeof(@type@) * RIGHT);
        }
        memset(line, @value@, sizeof(@type@) * BOTTOM);
    }
}
