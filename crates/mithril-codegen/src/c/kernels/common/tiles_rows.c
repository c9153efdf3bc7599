/* The same for groups of @rows@ rows, with tiles for @most@ if there are any, else part by part with vectors. */
static MITHRIL_NOINLINE void @name@(int has_tiles, long k, const uint32_t *restrict a, const uint32_t *restrict panel,
        @sum@ *restrict tile, int accumulate, const char *next, long stride) {
#if MITHRIL_HAS_TILES
    if (has_tiles) {
        @tiles@(@most@, @rows@, k, a, panel, tile, accumulate, next, stride);
        return;
    }
#endif
    (void)has_tiles, (void)next, (void)stride;
    @parts@
}
