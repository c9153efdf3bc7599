/* Winograd's F(@m@, 3): a tile of @tile@ by @tile@ pixels and the kernel are transformed, multiplied point by point and transformed
   back into @m@ by @m@ pixels. Here are the transform of a line of a tile, and the one back. */
MITHRIL_INLINE void mithril_winograd@m@_line(const mithril_f32 *restrict d, mithril_f32 *restrict r)
{
    @line@
}

MITHRIL_INLINE void mithril_winograd@m@_line_back(const mithril_f32 *restrict d, mithril_f32 *restrict r)
{
    @line_back@
}

/* Transforms the tile at `image` (vectors of channels, rows `row` apart) to @points@ points, `step` apart. */
static void mithril_winograd@m@_tile(const float *restrict image, long row, float *restrict points, long step)
{
    enum { LANES = @lanes@, TILE = @tile@ };
    mithril_f32 half[TILE][TILE], d[TILE], r[TILE];
    MITHRIL_UNROLL(@tile@)
    for (long x = 0; x < TILE; x++) {
        MITHRIL_UNROLL(@tile@)
        for (long y = 0; y < TILE; y++)
            d[y] = MITHRIL_LOAD(f32, image + y * row + x * LANES);
        mithril_winograd@m@_line(d, r);
        MITHRIL_UNROLL(@tile@)
        for (long y = 0; y < TILE; y++)
            half[y][x] = r[y];
    }
    MITHRIL_UNROLL(@tile@)
    for (long y = 0; y < TILE; y++) {
        mithril_winograd@m@_line(half[y], r);
        MITHRIL_UNROLL(@tile@)
        for (long x = 0; x < TILE; x++)
            MITHRIL_STORE(f32, points + (y * TILE + x) * step, r[x]);
    }
}

/* Transforms @points@ points, `step` apart, back to @m@ by @m@ pixels of `strip`, whose rows have `width` pixels. */
static void mithril_winograd@m@_tile_back(const float *restrict points, long step, float *restrict strip, long width)
{
    enum { LANES = @lanes@, TILE = @tile@, M = @m@ };
    mithril_f32 half[M][TILE], d[TILE], r[M];
    MITHRIL_UNROLL(@tile@)
    for (long x = 0; x < TILE; x++) {
        MITHRIL_UNROLL(@tile@)
        for (long y = 0; y < TILE; y++)
            d[y] = MITHRIL_LOAD(f32, points + (y * TILE + x) * step);
        mithril_winograd@m@_line_back(d, r);
        MITHRIL_UNROLL(@m@)
        for (long y = 0; y < M; y++)
            half[y][x] = r[y];
    }
    MITHRIL_UNROLL(@m@)
    for (long y = 0; y < M; y++) {
        mithril_winograd@m@_line_back(half[y], r);
        MITHRIL_UNROLL(@m@)
        for (long x = 0; x < M; x++)
            MITHRIL_STORE(f32, strip + (y * width + x) * LANES, r[x]);
    }
}
