static void @name@(const @type@ *restrict image, long line, long blocks, long plane, long height, long row, long width,
                   long column, const @type@ *restrict weights, @type@ *restrict sums, const char *next, long stride)
{
    mithril_tile_@t@(@down@, @across@, @step@, @run@, image, line, blocks, plane, height, row, width, column, weights, sums, next, stride);
}
