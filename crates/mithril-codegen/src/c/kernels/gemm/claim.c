/* Asks for the lines that the end of a tile needs: they come while its sums are computed. */
MITHRIL_INLINE void @name@_claim(long batch, long first_row, long rows, long first_column@given@) {
    enum { N = @n@, WIDTH = 2 * @lanes@ };
    const long end = first_column + WIDTH < N ? first_column + WIDTH : N;
    for (long row = first_row; row < first_row + rows; row++) {@lines@
    }
    (void)batch;
}
