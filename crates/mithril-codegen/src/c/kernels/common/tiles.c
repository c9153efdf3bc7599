/* Tiles (AMX): matrices of up to 16 rows of 64 bytes in registers of their own. A program asks the system for them once, and a
   thread configures them for each kernel and releases them behind it, since other libraries use the same registers.
   Where the compiler, the processor or the system has none, mithril_start_tiles returns 0 and nothing else is called. */
#if MITHRIL_VECTOR == 16 && defined(__x86_64__) && defined(__linux__) && (defined(__AMX_TILE__) || defined(__AMXTILE__)) \
    && (defined(__AMX_BF16__) || defined(__AMXBF16__)) && (defined(__AMX_INT8__) || defined(__AMXINT8__))
#define MITHRIL_HAS_TILES 1
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#ifndef ARCH_REQ_XCOMP_PERM
#define ARCH_REQ_XCOMP_PERM 0x1023
#endif
extern long syscall(long, ...);

/* Whether this process may use tiles: 1, or 2 if not. */
static MITHRIL_NOINLINE int mithril_request_tiles(void) {
    unsigned a = 0, b = 0, c = 0, d = 0;
    const unsigned bf16 = 1u << 22, tile = 1u << 24, int8 = 1u << 25, all = bf16 | tile | int8;
    const int exists = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & all) == all;
    return exists && syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, 18 /* XTILEDATA */) == 0 ? 1 : 2;
}

/* Configures the tiles of a product: 0 to 3 are sums, two beside each other for `top` and for `bottom` rows; 4 and 5 those rows
   of the left factor, of so many words; 6 and 7 the right one. Returns whether there are tiles. */
static MITHRIL_NOINLINE int mithril_shape_tiles(int top, int bottom, int words) {
    static int known;
    int state = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (state == 0) {
        state = mithril_request_tiles();
        __atomic_store_n(&known, state, __ATOMIC_RELAXED);
    }
    if (state == 2)
        return 0;
    struct { uint8_t palette, start_row, reserved[14]; uint16_t bytes[16]; uint8_t rows[16]; } shape;
    memset(&shape, 0, sizeof shape);
    shape.palette = 1;
    const int heights[8] = {top, top, bottom, bottom, top, bottom, words, words};
    for (int i = 0; i < 8; i++) {
        shape.bytes[i] = (uint16_t)(i == 4 || i == 5 ? 4 * words : 64);
        shape.rows[i] = (uint8_t)heights[i];
    }
    /* Compilers need not know what the instruction reads. */
    __asm__ volatile("" : : "r"(&shape) : "memory");
    _tile_loadconfig(&shape);
    return 1;
}

MITHRIL_INLINE void mithril_stop_tiles(int has_tiles) {
    if (has_tiles)
        _tile_release();
}

MITHRIL_INLINE void mithril_zero_sums(void) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

/* Stores the sums of the top rows and of the bottom ones, both [row][32 words]. */
MITHRIL_INLINE void mithril_store_sums(void *top, void *bottom) {
    _tile_stored(0, top, 128);
    _tile_stored(1, (char *)top + 64, 128);
    _tile_stored(2, bottom, 128);
    _tile_stored(3, (char *)bottom + 64, 128);
}
#else
#define MITHRIL_HAS_TILES 0
MITHRIL_INLINE int mithril_shape_tiles(int top, int bottom, int words) {
    (void)top, (void)bottom, (void)words;
    return 0;
}

MITHRIL_INLINE void mithril_stop_tiles(int has_tiles) {
    (void)has_tiles;
}
#endif

/* The same for a product of so many rows in two halves, and 16 words of the left factor. Of few rows, 2 and 3 are further sums
   of the same rows. */
MITHRIL_INLINE int mithril_start_tiles(long rows) {
    return mithril_shape_tiles((int)(rows > 16 ? (rows + 1) / 2 : rows), (int)(rows > 16 ? rows / 2 : rows), 16);
}
