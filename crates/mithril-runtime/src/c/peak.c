/* What a processor can do at most: multiply-adds in registers, and reading of memory. inputs[0]: int64_t rounds of
   multiply-adds, or 0 to read memory; inputs[1]: float[FLOATS]; outputs[0]: float[threads], so that nothing is left out. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { LANES = @lanes@, FLOATS = @floats@ };
#define PEAK_CHAINS 12 /* so many independent sums hide how long one multiply-add takes */

typedef float vector __attribute__((vector_size(sizeof(float) * LANES)));
typedef struct mithril_pool {
    int threads;
    void (*run)(struct mithril_pool *self, void (*work)(void *context, int thread), void *context);
} mithril_pool;
struct call {
    const void *const *inputs;
    float *sums;
    int threads;
};

static vector load(const float *from) {
    vector v;
    memcpy(&v, from, sizeof v);
    return v;
}

static float total(vector v) {
    float sum = 0;
    for (int lane = 0; lane < LANES; lane++) sum += v[lane];
    return sum;
}

static float multiply_add(int64_t rounds, const float *from) {
    vector x = load(from), y = load(from + LANES);
#define START(i) vector sum_##i = load(from + (i) * LANES);
#define STEP(i) sum_##i = sum_##i * x + y;
#define END(i) + sum_##i
#define ALL(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11)
    ALL(START)
    for (int64_t round = 0; round < rounds; round++) {
        ALL(STEP)
    }
    return total(x ALL(END));
}

static float add_up(const float *from, int64_t count) {
    vector sums[4] = {load(from), load(from), load(from), load(from)};
    for (int64_t i = 0; i + 4 * LANES <= count; i += 4 * LANES)
        for (int chain = 0; chain < 4; chain++) sums[chain] += load(from + i + chain * LANES);
    return total(sums[0] + sums[1] + sums[2] + sums[3]);
}

static void work(void *context, int thread) {
    struct call *call = context;
    const int64_t rounds = *(const int64_t *)call->inputs[0];
    const float *from = call->inputs[1];
    const int64_t count = FLOATS / call->threads;
    call->sums[thread] = rounds > 0 ? multiply_add(rounds, from) : add_up(from + thread * count, count);
}

size_t peak_arena_bytes(int threads) { return (void)threads, 0; }
size_t peak_packed_bytes(void) { return 0; }
size_t peak_pack_bytes(void) { return 0; }
int peak_pack_part(int part, const void *const inputs[], void *packed, void *scratch) {
    return (void)part, (void)inputs, (void)packed, (void)scratch, 0;
}
const char *peak_error(int code) { return (void)code, "no error"; }
int peak_run(const void *const inputs[], void *const outputs[], const void *packed, void *arena,
        const mithril_pool *pool) {
    (void)packed, (void)arena;
    struct call call = {inputs, outputs[0], pool ? pool->threads : 1};
    if (call.threads > 1) {
        pool->run((mithril_pool *)pool, work, &call);
    } else {
        work(&call, 0);
    }
    return 0;
}
