/* The same for @rows@ rows. Sums of at most TERMS terms are added to the tile: in one long chain every term would be
   rounded to what all before it have come to. */
static MITHRIL_ONCE void mithril_micro_@p@@panels@_@rows@(long k, const @factor@ *restrict a, const @factor@ *restrict panel,
        @type@ *restrict tile, int accumulate, const char *next, long stride) {
    enum { TERMS = 256 };
    for (long done = 0; done < k || done == 0; done += TERMS)
        mithril_micro_@p@@panels@(@rows@, k - done < TERMS ? k - done : TERMS, a + done * @rows@, panel + done * 2 * @lanes@, tile,
                accumulate || done > 0, next + done * stride, stride);
}
