#if MITHRIL_HAS_TILES
/* tile[rows][32] = (accumulate ? tile : 0) + a · panel with tiles: a step of 16 words of k loads two tiles of the panel and one
   for each half of the rows. Of at most 16 rows it is two steps, so that additions do not wait for each other.
   a: blocks of 16 words of k, each block [height][16]; panel: [k][32], k a multiple of 16. The tiles are
   configured for `rows`, of which the last may be one too many. */
static MITHRIL_NOINLINE void @name@(const long rows, const long height, long k, const uint32_t *restrict a,
        const uint32_t *restrict panel, @sum@ *restrict tile, int accumulate, const char *next, long stride) {
    const long top = rows > 16 ? (rows + 1) / 2 : 0;
    /* Compilers need not know what the instructions read. */
    __asm__ volatile("" : : : "memory");
    mithril_zero_sums();
    if (top > 0)
        for (; k > 0; k -= 16, a += 16 * height, panel += 16 * 32) {
            _tile_loadd(4, a, 64);
            _tile_loadd(6, panel, 128);
            _tile_loadd(7, panel + 16, 128);
            _tile_loadd(5, a + 16 * top, 64);
            @fetch@
            @multiply@(0, 4, 6);
            @multiply@(1, 4, 7);
            @multiply@(2, 5, 6);
            @multiply@(3, 5, 7);
        }
    else {
        for (; k > 16; k -= 32, a += 2 * 16 * height, panel += 2 * 16 * 32) {
            _tile_loadd(4, a, 64);
            _tile_loadd(6, panel, 128);
            _tile_loadd(7, panel + 16, 128);
            @fetch@
            @multiply@(0, 4, 6);
            @multiply@(1, 4, 7);
            _tile_loadd(5, a + 16 * height, 64);
            _tile_loadd(6, panel + 16 * 32, 128);
            _tile_loadd(7, panel + 16 * 32 + 16, 128);
            @fetch@
            @multiply@(2, 5, 6);
            @multiply@(3, 5, 7);
        }
        if (k > 0) {
            _tile_loadd(4, a, 64);
            _tile_loadd(6, panel, 128);
            _tile_loadd(7, panel + 16, 128);
            @multiply@(0, 4, 6);
            @multiply@(1, 4, 7);
        }
    }
    if (top > 0 && !accumulate) {
        mithril_store_sums(tile, tile + 32 * top);
        return;
    }
    /* Long sums are sums of partial sums, which bounds their rounding error. */
    @sum@ sums[2 * 16 * 32] __attribute__((aligned(64)));
    mithril_store_sums(sums, sums + 32 * (top > 0 ? top : 16));
    for (long i = 0; i < 32 * rows; i++)
        tile[i] = (accumulate ? tile[i] : 0) + (top > 0 ? sums[i] : sums[i] + sums[16 * 32 + i]);
}
#endif
