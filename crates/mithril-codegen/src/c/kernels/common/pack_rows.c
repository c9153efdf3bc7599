/* Rows of weights[@m@, @k@] in groups that the micro-kernel holds in registers: [group][k / LANES][row][LANES]. */
static MITHRIL_NOINLINE void @name@(long thread, long threads, const @type@ *restrict weights, @type@ *restrict packed) {
    enum {
        K = @k@, LANES = @lanes@, K_PADDED = (K + LANES - 1) / LANES * LANES,
        GROUPS = @row_groups@, ROWS = @rows@, REMAINDER = @remainder@, /* the first REMAINDER groups have ROWS + 1 rows */
        MATRIX = ROWS * GROUPS + REMAINDER
    };
    const long units = (long)@matrices@ * GROUPS;
    for (long unit = units * thread / threads; unit < units * (thread + 1) / threads; unit++) {
        const long group = unit % GROUPS, rows = ROWS + (group < REMAINDER);
        const long first = unit / GROUPS * MATRIX + group * ROWS + (group < REMAINDER ? group : REMAINDER);
        @type@ *restrict to = packed + first * K_PADDED;
        for (long k = 0; k < K; k += LANES)
            for (long row = first; row < first + rows; row++, to += LANES) {
                MITHRIL_UNROLL_BY(1)
                for (long lane = 0; lane < LANES; lane++)
                    to[lane] = k + lane < K ? weights[row * K + k + lane] : 0;
            }
    }
}
