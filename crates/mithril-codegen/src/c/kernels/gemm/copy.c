MITHRIL_INLINE void @name@_copy(const @stored@ *restrict a, long first_row, const long rows, long first_k, long steps,
        @type@ *restrict copy) {
    enum { K = @k@, LANES = @lanes@ };
    for (long k = first_k; k < first_k + steps; k += LANES)
        for (long row = first_row; row < first_row + rows; row++, copy += LANES) {
            const @stored@ *restrict from = a + @a_place@;
            if (K - k >= LANES)
                for (long lane = 0; lane < LANES; lane++)
                    copy[lane] = @open@from[lane * @a_column@]@close@;
            else
                for (long lane = 0; lane < K % LANES; lane++)
                    copy[lane] = @open@from[lane * @a_column@]@close@;
        }
}
