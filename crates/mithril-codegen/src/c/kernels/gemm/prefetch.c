/* Prefetches the cache lines that the epilogue of a tile reads and writes, while its sums are computed. */
MITHRIL_INLINE void @name@_prefetch(long batch, long first_row, long rows, long first_column@arrays@) {
    enum { N = @n@, WIDTH = 2 * @lanes@ };
    const long end = first_column + WIDTH < N ? first_column + WIDTH : N;
    for (long row = first_row; row < first_row + rows; row++) {@lines@
    }
    (void)batch;
}
