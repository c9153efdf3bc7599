/* Stores a tile of sums, [row][2 * LANES], of which each column is contiguous in out, and columns are `stride` apart. Reads
   whole squares: rows of the tile up to a multiple of LANES, and all of its columns. */
static MITHRIL_NOINLINE void mithril_store_columns_@t@(const @type@ *restrict tile, long rows, long columns,
        @type@ *restrict out, long stride) {
    enum { LANES = @lanes@, HALF = LANES / 2 };
    @type@ square[LANES * LANES] __attribute__((aligned(64)));
    for (long row = 0; row < rows; row += LANES)
        for (long column = 0; column < columns; column += LANES) {
            const long height = rows - row < LANES ? rows - row : LANES;
            const long width = columns - column < LANES ? columns - column : LANES;
            const @type@ *const from = tile + row * 2 * LANES + column;
            @type@ *to = out + column * stride + row;
            if (height == LANES && width == LANES) {
                mithril_transpose_@t@(from, 2 * LANES, to, stride);
                continue;
            }
            mithril_transpose_@t@(from, 2 * LANES, square, LANES);
            for (long lane = 0; lane < width; lane++, to += stride) {
                const @type@ *const line = square + lane * LANES;
                if (height >= HALF) {
                    /* Two halves, which may overlap. */
                    memcpy(to, line, HALF * sizeof *to);
                    memcpy(to + height - HALF, line + height - HALF, HALF * sizeof *to);
                    continue;
                }
                MITHRIL_UNROLL_BY(1)
                for (long i = 0; i < height; i++)
                    to[i] = line[i];
            }
        }
}
