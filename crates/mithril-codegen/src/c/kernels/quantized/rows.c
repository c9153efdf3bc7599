/* Rows of a[@m@, @k@]@lefts_batched@ as bytes, each with a scale and a zero point, in groups as the micro-kernel
   reads them:
   @row_order@, a word being 4 steps of k, the first in the lowest byte; then the scales, then
   the zero points. */
static void @name@(long thread, long threads, const float *restrict a, void *restrict shared, uint8_t *restrict scratch) {
    enum {
        M = @m@, K = @k@, WORDS = @words@,
        GROUPS = @groups@, ROWS = @rows@, REMAINDER = @remainder@ /* the first REMAINDER groups have ROWS + 1 rows */
    };
    float *const scales = (float *)shared + (long)@lefts@ * M * WORDS;
    int32_t *const zeros = (int32_t *)scales + (long)@lefts@ * M;
    const long units = (long)@lefts@ * GROUPS;
    for (long unit = units * thread / threads; unit < units * (thread + 1) / threads; unit++) {
        const long group = unit % GROUPS, batch = unit / GROUPS, extra = group < REMAINDER, rows = ROWS + extra;
        const long first = group * ROWS + (extra ? group : REMAINDER);
        uint32_t *const words = (uint32_t *)shared + (batch * M + first) * WORDS;
        for (long row = 0; row < rows; row++) {
            const float *const from = a + @left_batch@ + (first + row) * @a_row@;
            @range@
            @bytes@
            scales[batch * M + first + row] = scale;
            zeros[batch * M + first + row] = (int32_t)zero - MITHRIL_DOT_OFFSET;
        }
    }
}
