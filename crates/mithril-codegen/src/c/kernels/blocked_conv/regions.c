/* out[@n@, @filters@, @oh@, @ow@] = convolution of image[@n@, @channels@, ...] by weights[@filters@, @channels@,
   @kh@, @kw@], the result in blocks of @lanes@ channels, where most weights meet nothing but the zeros around the
   image. Pixels are grouped into regions, rectangles under which the same weights meet the image: only these are
   multiplied. `image` points to
   @origin@.
   Work is cut into strips of rows of a region and panels of two vectors of filters. `next_step` are the weights that
   the next step of the program starts with. */

@epilogue@
static MITHRIL_NOINLINE void @name@(long thread, long threads, const @image_type@ *restrict image, const @stored@ *restrict packed,
        @out@ *restrict out@parameters@@scratch@, const char *next_step) {
    enum {
        K = @k@, WIDTH = 2 * @lanes@, PANELS = @panels@, STRIPS_OF = @strips@, STRIPS = @n@ * STRIPS_OF, SECTIONS = @sections@,
        STEPS = @steps@ /* that the tiles of an image take for one panel */
    };
    static const struct {
        int strip; /* its first one */
        int top, bottom, down; /* rows of pixels, and how many of them a strip has */
        int left, groups, across, longer; /* pixels of a row in groups, the first `longer` of which have across + 1 */
        int row, rows, column, columns; /* weights that meet the image: the first and how many, down and across */
    } regions[] = {
        @regions@,
        {.strip = STRIPS_OF}
    };
    @type@ sums[@most@ * WIDTH] __attribute__((aligned(64)));
    const long units = (long)SECTIONS * PANELS, end = units * (thread + 1) / threads;@known@
    for (long unit = units * thread / threads; unit < end; unit++) {
        @section@
        const long stride = (long)K * @step_bytes@ * STRIPS_OF / ((last - first) * STEPS);
        for (long strip = first; strip < last; strip++) {
            const long batch = strip / STRIPS_OF, place = strip % STRIPS_OF;
            long region = 0;
            while (place >= regions[region + 1].strip)
                region++;
            const long row = regions[region].row, rows = regions[region].rows;
            const long column = regions[region].column, columns = regions[region].columns;
            const long y = regions[region].top + (place - regions[region].strip) * regions[region].down;
            const long left = regions[region].bottom - y, down = left < regions[region].down ? left : regions[region].down;
            const @factor@ *const line = @words@image + @image@ + y * @image_line@ + (row * @dilation_y@ - @above@) * @row_pitch@ + (column * @dilation_x@ - @before@) * @pixel@;
            const @factor@ *const taps = right + (row * @width@ + column) * @run@ * WIDTH;
            for (long group = 0, x = regions[region].left; group < regions[region].groups; group++) {
                const long across = regions[region].across + (group < regions[region].longer);
                @tiles@
                @name@_epilogue(sums, batch, y, x, down, across, panel, out@arguments@);
                next += @outer@ * rows * columns * @run@ * stride;
                x += across;
            }
        }
    }
}
