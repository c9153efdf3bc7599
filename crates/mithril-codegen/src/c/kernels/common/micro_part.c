/* The same for @rows@ of `height` rows. */
static MITHRIL_NOINLINE void @name@(long height, long k, const @factor@ *restrict a, const @factor@ *restrict panel,
        @type@ *restrict tile, int accumulate) {
    enum { TERMS = 256 };
    for (long done = 0; done < k || done == 0; done += TERMS)
        mithril_micro_@p@@panels@(2, @rows@, height, k - done < TERMS ? k - done : TERMS, a + done * height, panel + done * 2 * @lanes@,
                tile, accumulate || done > 0, (const char *)panel, 0);
}
