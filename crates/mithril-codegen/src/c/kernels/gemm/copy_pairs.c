MITHRIL_INLINE void @name@_copy(const @stored@ *restrict a, long first_row, const long rows, long first_k, long steps,
        @factor@ *restrict copy) {
    enum { TERMS = @terms@, LANES = @lanes@ };
    for (long k = first_k; k < first_k + steps; k += LANES)
        for (long row = first_row; row < first_row + rows; row++, copy += LANES) {
            const @stored@ *restrict from = a + row * @a_row@ + 2 * k * @a_column@;
            const long terms = TERMS - 2 * k;
            if (terms >= 2 * LANES) {
                @copy_pairs@
            } else
                for (long lane = 0; lane < LANES; lane++)
                    copy[lane] = 2 * lane >= terms ? 0
                        : mithril_pair(from[2 * lane * @a_column@], 2 * lane + 1 < terms ? from[(2 * lane + 1) * @a_column@] : 0);
        }
}
