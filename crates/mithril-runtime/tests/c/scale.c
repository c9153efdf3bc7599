/* Follows the interface of generated code, by hand: y = 3 * factor * x, where the factor is packed as 3 * factor; the
   threads share the work and meet at a barrier. An x that starts with a negative number is error 7; with -DONCE, packing again
   is error 6. */
#include <stdatomic.h>
#include <stddef.h>

typedef struct mithril_pool {
    int threads;
    void (*run)(struct mithril_pool *self, void (*work)(void *context, int thread), void *context);
} mithril_pool;

enum { COUNT = 1000 };

typedef struct {
    const float *x;
    const float *packed;
    float *y;
    float *arena;
    int threads;
    atomic_int arrived;
} call;

size_t scale_arena_bytes(int threads) { return sizeof(float) * (COUNT + (size_t)threads); }
size_t scale_packed_bytes(void) { return sizeof(float); }
size_t scale_pack_bytes(void) { return sizeof(float); }

int scale_pack_part(int part, const void *const inputs[], void *packed, void *scratch) {
    if ((size_t)scratch % 64) return 8;
#ifdef ONCE
    static atomic_int times;
    if (atomic_fetch_add(&times, 1)) return 6;
#endif
    *(float *)packed = 3.0f * *(const float *)inputs[0];
    return 0;
}

static void work(void *context, int thread) {
    call *c = context;
    for (int i = thread; i < COUNT; i += c->threads) c->arena[i] = c->x[i] * *c->packed;
    atomic_fetch_add(&c->arrived, 1);
    while (atomic_load(&c->arrived) < c->threads) {
    }
    /* Reads what the other threads wrote. */
    for (int i = thread; i < COUNT; i += c->threads) c->y[COUNT - 1 - i] = c->arena[COUNT - 1 - i];
}

int scale_run(const void *const inputs[], void *const outputs[], const void *packed, void *arena,
        const mithril_pool *pool) {
    call c = {inputs[1], packed, outputs[0], arena, pool ? pool->threads : 1, 0};
    if ((size_t)arena % 64 || (size_t)packed % 64) return 8;
    if (c.x[0] < 0) return 7;
    if (pool) pool->run((mithril_pool *)pool, work, &c);
    else work(&c, 0);
    return 0;
}

const char *scale_error(int code) { return code == 7 ? "x starts below zero" : code == 6 ? "packed again" : 0; }
