static void @name@(const uint32_t *restrict image, long line, long height, long row, long width, long column,
        const uint32_t *restrict weights, int32_t *restrict sums, const char *next, long stride) {
    mithril_tile_words(@vectors@, @down@, @across@, @step@, @run@, @unused@, image, line, height, row, width, column, weights, sums, next, stride);
}
