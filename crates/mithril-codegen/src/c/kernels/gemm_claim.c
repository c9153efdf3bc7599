/* Asks for the lines of out in which a tile will be written: they come from memory while its sums are computed. */
MITHRIL_INLINE void @name@_claim(long batch, long first_row, long rows, long first_column, const @out@ *restrict out)
{
    enum { N = @n@, WIDTH = 2 * @lanes@, LINE = 64 / sizeof(@out@) };
    const long end = first_column + WIDTH < N ? first_column + WIDTH : N;
    for (long row = first_row; row < first_row + rows; row++) {
        for (long column = first_column; column < end; column += LINE)
            MITHRIL_CLAIM(&out[@out_place@]);
        /* A tile need not begin with a line. */
        const long column = end - 1;
        MITHRIL_CLAIM(&out[@out_place@]);
    }
    (void)batch;
}
