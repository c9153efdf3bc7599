/* Transforms the tile of @tile_high@ by @tile_wide@ pixels at `image` (vectors of channels, stride `row` between rows) to @points@ points
   with stride `step`: its columns, then its rows. */
static MITHRIL_NOINLINE void mithril_winograd@m@_tile(const float *restrict image, long row, float *restrict points, long step) {
    enum { LANES = @lanes@, TILE_HIGH = @tile_high@, TILE_WIDE = @tile_wide@ };
    mithril_f32 half[TILE_HIGH][TILE_WIDE], d[TILE_HIGH], down[TILE_HIGH], across[TILE_WIDE];
    @unroll_columns@
    for (long x = 0; x < TILE_WIDE; x++) {
        MITHRIL_UNROLL(@tile_high@)
        for (long y = 0; y < TILE_HIGH; y++)
            d[y] = MITHRIL_LOAD(f32, image + y * row + x * LANES);
        mithril_winograd@line_down@_line(d, down);
        MITHRIL_UNROLL(@tile_high@)
        for (long y = 0; y < TILE_HIGH; y++)
            half[y][x] = down[y];
    }
    @unroll_rows@
    for (long y = 0; y < TILE_HIGH; y++) {
        mithril_winograd@line_across@_line(half[y], across);
        MITHRIL_UNROLL(@tile_wide@)
        for (long x = 0; x < TILE_WIDE; x++)
            MITHRIL_STORE(f32, points + (y * TILE_WIDE + x) * step, across[x]);
    }
}

/* Transforms @points@ points with stride `step` back to @high@ by @wide@ pixels of `strip`, whose rows have `width` pixels. */
static MITHRIL_NOINLINE void mithril_winograd@m@_tile_back(const float *restrict points, long step, float *restrict strip, long width) {
    enum { LANES = @lanes@, TILE_HIGH = @tile_high@, TILE_WIDE = @tile_wide@, HIGH = @high@, WIDE = @wide@ };
    mithril_f32 half[HIGH][TILE_WIDE], d[TILE_HIGH], down[HIGH], across[WIDE];
    @unroll_columns@
    for (long x = 0; x < TILE_WIDE; x++) {
        MITHRIL_UNROLL(@tile_high@)
        for (long y = 0; y < TILE_HIGH; y++)
            d[y] = MITHRIL_LOAD(f32, points + (y * TILE_WIDE + x) * step);
        mithril_winograd@line_down@_line_back(d, down);
        MITHRIL_UNROLL(@high@)
        for (long y = 0; y < HIGH; y++)
            half[y][x] = down[y];
    }
    MITHRIL_UNROLL(@high@)
    for (long y = 0; y < HIGH; y++) {
        mithril_winograd@line_across@_line_back(half[y], across);
        MITHRIL_UNROLL(@wide@)
        for (long x = 0; x < WIDE; x++)
            MITHRIL_STORE(f32, strip + (y * width + x) * LANES, across[x]);
    }
}
