for (long group = 0; group < GROUPS; group++, next += K * stride) {
    const long x = group + 1 < GROUPS ? group * ACROSS : OUT_WIDTH - ACROSS;
    /* Pixels that the group before has stored. */
    const long stored = group * ACROSS - x;
#if MITHRIL_HAS_TILES
    if (has_tiles)
        @name@_tiles(line + x * @step@, second, right, sums, next, stride);
    else
#endif
        @name@_vectors(line + x * @step@, second, right, sums);
    @store_tiles@
}
