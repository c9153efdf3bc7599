/* The micro-kernel for few rows: each sum is split into @chains@ independent chains, one for every @chains@th step of k,
   so that additions do not wait for each other. */
MITHRIL_INLINE void @name@_terms(long k, const @factor@ *restrict a, const @factor@ *restrict panel,
        @type@ *restrict tile, int accumulate, const char *next, long stride) {
    enum { LANES = @lanes@, ROWS = @rows@, CHAINS = @chains@ };
    mithril_@t@ sum[ROWS][CHAINS][2];
    MITHRIL_UNROLL(@rows@)
    for (long row = 0; row < ROWS; row++) {
        MITHRIL_UNROLL(@chains@)
        for (long chain = 0; chain < CHAINS; chain++)
            sum[row][chain][0] = sum[row][chain][1] = (mithril_@t@){0};
    }
    for (; k >= LANES; k -= LANES, a += ROWS * LANES)
        /* Unrolling it further is slower where another thread shares the core. */
        MITHRIL_UNROLL_BY(1)
        for (long step = 0; step < LANES; step += CHAINS) {
            MITHRIL_UNROLL(@chains@)
            for (long chain = 0; chain < CHAINS; chain++, panel += 2 * LANES, next += stride) {
                @fetch@
                const mithril_@p@ left = MITHRIL_LOAD(@p@, panel), right = MITHRIL_LOAD(@p@, panel + LANES);
                MITHRIL_UNROLL(@rows@)
                for (long row = 0; row < ROWS; row++) {
                    const mithril_@p@ factor = MITHRIL_BROADCAST_@p@(a[row * LANES + step + chain]);
                    sum[row][chain][0] = MITHRIL_ADD_@p@(sum[row][chain][0], factor, left);
                    sum[row][chain][1] = MITHRIL_ADD_@p@(sum[row][chain][1], factor, right);
                }
            }
        }
    for (long step = 0; step < k; step++, panel += 2 * LANES) {
        MITHRIL_UNROLL(@rows@)
        for (long row = 0; row < ROWS; row++) {
            const mithril_@p@ factor = MITHRIL_BROADCAST_@p@(a[row * LANES + step]);
            sum[row][0][0] = MITHRIL_ADD_@p@(sum[row][0][0], factor, MITHRIL_LOAD(@p@, panel));
            sum[row][0][1] = MITHRIL_ADD_@p@(sum[row][0][1], factor, MITHRIL_LOAD(@p@, panel + LANES));
        }
    }
    MITHRIL_UNROLL(@rows@)
    for (long row = 0; row < ROWS; row++) {
        MITHRIL_UNROLL(@chains@)
        for (long chain = 1; chain < CHAINS; chain++) {
            sum[row][0][0] += sum[row][chain][0];
            sum[row][0][1] += sum[row][chain][1];
        }
        if (accumulate) {
            sum[row][0][0] += MITHRIL_LOAD(@t@, tile + row * 2 * LANES);
            sum[row][0][1] += MITHRIL_LOAD(@t@, tile + row * 2 * LANES + LANES);
        }
        MITHRIL_STORE(@t@, tile + row * 2 * LANES, sum[row][0][0]);
        MITHRIL_STORE(@t@, tile + row * 2 * LANES + LANES, sum[row][0][1]);
    }
}

/* In partial sums, as with more rows: each chain adds up at most 256 terms. */
static MITHRIL_NOINLINE void @name@(long k, const @factor@ *restrict a, const @factor@ *restrict panel,
        @type@ *restrict tile, int accumulate, const char *next, long stride) {
    enum { TERMS = 256 * @chains@ };
    for (long done = 0; done < k || done == 0; done += TERMS)
        @name@_terms(k - done < TERMS ? k - done : TERMS, a + done * @rows@, panel + done * 2 * @lanes@, tile,
                accumulate || done > 0, next + done * stride, stride);
}
