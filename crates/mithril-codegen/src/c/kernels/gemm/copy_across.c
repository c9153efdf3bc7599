/* Columns of a are contiguous: squares of LANES rows by LANES steps of k are transposed. The last
   square begins early enough to end with the matrix. */
static MITHRIL_NOINLINE void @name@_copy(const @type@ *restrict a, long first_row, long rows, long first_k, long steps,
        @type@ *restrict copy) {
    enum { M = @m@, K = @k@, LANES = @lanes@ };
    @type@ square[LANES * LANES] __attribute__((aligned(64)));
    for (long k = first_k; k + LANES <= first_k + steps; k += LANES, copy += rows * LANES) {
        for (long done = 0; done < rows; done += LANES) {
            const long row = first_row + done, start = row + LANES <= M ? row : M - LANES;
            const long count = rows - done < LANES ? rows - done : LANES;
            mithril_transpose_@t@(a + start + k * @a_column@, @a_column@, square, LANES);
            for (long i = 0; i < count * LANES; i++)
                copy[done * LANES + i] = square[(row - start) * LANES + i];
        }
    }
    for (long row = 0; row < rows; row++)
        for (long lane = 0; lane < steps % LANES; lane++)
            copy[row * LANES + lane] = a[first_row + row + (K / LANES * LANES + lane) * @a_column@];
}
