/* Transposes a square of @lanes@ by @lanes@: log2(@lanes@) rounds, each of which interleaves row i with row i +
   @lanes@ / 2. */
static MITHRIL_NOINLINE void mithril_transpose_@t@(const @type@ *restrict from, long from_stride, @type@ *restrict to, long to_stride) {
    enum { LANES = @lanes@ };
    mithril_@t@ even[LANES], odd[LANES];
    MITHRIL_UNROLL(@lanes@)
    for (long i = 0; i < LANES; i++)
        even[i] = MITHRIL_LOAD(@t@, from + i * from_stride);
    @rounds@
    MITHRIL_UNROLL(@lanes@)
    for (long i = 0; i < LANES; i++)
        MITHRIL_STORE(@t@, to + i * to_stride, @last@[i]);
    (void)odd;
}
