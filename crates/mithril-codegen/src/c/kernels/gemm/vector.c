/* out[@n@] = a[@k@] · b[@k@, @n@], where b stays in the cache: one row times a matrix. b comes in panels of
   @vectors@ vectors of columns; a step broadcasts one element of a. The sums of a panel stay in registers, each split
   into @chains@ independent chains so that additions do not wait for each other; they are added up after at most
   256 terms. The threads divide the panels. */
MITHRIL_INLINE void @name@_epilogue(const @type@ *restrict sums, long first_column, const long columns,
        @out@ *restrict out@parameters@) {
    const long batch = 0, row = 0;
    for (long column = first_column; column < first_column + columns; column++) {
        const @type@ accumulator = sums[column - first_column];
        out[@out_place@] = @expression@;
    }
    (void)batch, (void)row;
}

static MITHRIL_NOINLINE void @name@(long thread, long threads, const @type@ *restrict a, const @type@ *restrict panels,
        @out@ *restrict out@parameters@) {
    enum {
        N = @n@, K = @k@, LANES = @lanes@, VECTORS = @vectors@, WIDTH = VECTORS * LANES, PANELS = (N + WIDTH - 1) / WIDTH,
        CHAINS = @chains@, TERMS = 256 * CHAINS
    };
    for (long panel = PANELS * thread / threads; panel < PANELS * (thread + 1) / threads; panel++) {
        const @type@ *b = panels + panel * K * WIDTH;
        @type@ sums[WIDTH] __attribute__((aligned(64))) = {0};
        for (long k = 0, end; k < K; k = end) {
            end = K - k < TERMS ? K : k + TERMS;
            mithril_@t@ sum[CHAINS][VECTORS];
            MITHRIL_UNROLL(@chains@)
            for (long chain = 0; chain < CHAINS; chain++) {
                MITHRIL_UNROLL(@vectors@)
                for (long i = 0; i < VECTORS; i++)
                    sum[chain][i] = (mithril_@t@){0};
            }
            for (; k + CHAINS <= end; k += CHAINS) {
                MITHRIL_UNROLL(@chains@)
                for (long chain = 0; chain < CHAINS; chain++, b += WIDTH) {
                    const mithril_@t@ factor = MITHRIL_BROADCAST_@t@(a[@a_place@]);
                    MITHRIL_UNROLL(@vectors@)
                    for (long i = 0; i < VECTORS; i++)
                        sum[chain][i] += factor * MITHRIL_LOAD(@t@, b + i * LANES);
                }
            }
            for (const long chain = 0; k < end; k++, b += WIDTH) {
                const mithril_@t@ factor = MITHRIL_BROADCAST_@t@(a[@a_place@]);
                MITHRIL_UNROLL(@vectors@)
                for (long i = 0; i < VECTORS; i++)
                    sum[chain][i] += factor * MITHRIL_LOAD(@t@, b + i * LANES);
            }
            MITHRIL_UNROLL(@vectors@)
            for (long i = 0; i < VECTORS; i++) {
                MITHRIL_UNROLL(@chains@)
                for (long chain = 1; chain < CHAINS; chain++)
                    sum[0][i] += sum[chain][i];
                MITHRIL_STORE(@t@, sums + i * LANES, MITHRIL_LOAD(@t@, sums + i * LANES) + sum[0][i]);
            }
        }
        if (N % WIDTH == 0 || panel < PANELS - 1)
            @name@_epilogue(sums, panel * WIDTH, WIDTH, out@arguments@);
        else
            @name@_epilogue(sums, panel * WIDTH, N % WIDTH, out@arguments@);
    }
}
