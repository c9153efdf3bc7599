/* The same for @rows@ rows@vectors_of@. Long sums are computed as sums of partial sums of at most TERMS terms, which bounds
   their rounding error. */
static MITHRIL_NOINLINE void mithril_micro_@p@@panels@@half@_@rows@(long k, const @factor@ *restrict a, const @factor@ *restrict panel,
        @type@ *restrict tile, int accumulate, const char *next, long stride) {
    enum { TERMS = 256 };
    for (long done = 0; done < k || done == 0; done += TERMS)
        mithril_micro_@p@@panels@(@vectors@, @rows@, @rows@, k - done < TERMS ? k - done : TERMS, a + done * @rows@, panel + done * 2 * @lanes@, tile,
                accumulate || done > 0, next + done * stride, stride);
}
