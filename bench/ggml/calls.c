/* What ggml offers for attention and rotary embeddings in one function, beside the same made of several: how exact, and how
   fast. Prints a table; errors are the largest in units of epsilon (2^-23), relative to the same of absolute values in
   double precision. */
#include "ggml-cpu.h"
#include "ggml.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct ggml_tensor tensor;

enum { WIDTH = 64, HEADS = 12, THREADS = 2, ROUNDS = 31 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static int smaller(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static float noise(void) { /* nearly normal */
    float sum = 0;
    for (int i = 0; i < 12; i++) sum += (float)rand() / (float)RAND_MAX;
    return sum - 6;
}

static tensor *filled(struct ggml_context *c, int64_t a, int64_t b, int64_t d) {
    tensor *t = ggml_new_tensor_3d(c, GGML_TYPE_F32, a, b, d);
    for (int64_t i = 0; i < ggml_nelements(t); i++) ((float *)t->data)[i] = noise();
    return t;
}

/* A graph that is run again and again. */
typedef struct {
    struct ggml_cgraph *graph;
    struct ggml_cplan plan;
    double times[ROUNDS];
} program;

static void prepare(program *p, struct ggml_context *c, tensor *out, struct ggml_threadpool *pool) {
    p->graph = ggml_new_graph(c);
    ggml_build_forward_expand(p->graph, out);
    p->plan = ggml_graph_plan(p->graph, THREADS, pool);
    p->plan.work_data = malloc(p->plan.work_size + 64);
    ggml_graph_compute(p->graph, &p->plan);
}

static double median(program *p) {
    qsort(p->times, ROUNDS, sizeof(double), smaller);
    return p->times[ROUNDS / 2] * 1e6;
}

/* In turns, each often enough to be measured. */
static void measure(program *a, program *b, int calls) {
    for (int round = 0; round < ROUNDS; round++) {
        for (int side = 0; side < 2; side++) {
            program *p = side == round % 2 ? a : b;
            double start = now();
            for (int i = 0; i < calls; i++) ggml_graph_compute(p->graph, &p->plan);
            p->times[round] = (now() - start) / calls;
        }
    }
}

/* Queries that see the keys up to their own position, the last of which is the last key: [width, query, head]. */
static void attention(const char *what, int queries, int keys, int calls, struct ggml_threadpool *pool) {
    struct ggml_context *c = ggml_init((struct ggml_init_params){512u << 20, NULL, false});
    tensor *q = filled(c, WIDTH, queries, HEADS), *k = filled(c, WIDTH, keys, HEADS), *v = filled(c, WIDTH, keys, HEADS);
    tensor *mask = ggml_new_tensor_2d(c, GGML_TYPE_F32, keys, queries), *half = NULL;
    half = ggml_new_tensor_2d(c, GGML_TYPE_F16, keys, queries);
    for (int i = 0; i < queries; i++) {
        for (int j = 0; j < keys; j++) {
            float open = j - (keys - queries) <= i ? 0.0f : -INFINITY;
            ((float *)mask->data)[i * keys + j] = open;
            ((ggml_fp16_t *)half->data)[i * keys + j] = ggml_fp32_to_fp16(open);
        }
    }
    float scale = 1.0f / sqrtf(WIDTH);
    int one = queries == 1;
    /* For one query the values as they lie, for more in columns. */
    tensor *scores = ggml_soft_max_ext(c, ggml_mul_mat(c, k, q), one ? NULL : mask, scale, 0);
    tensor *parts, *whole;
    if (one) {
        tensor *shares = ggml_permute(c, scores, 1, 0, 2, 3);
        parts = ggml_out_prod(c, v, shares);
    } else {
        parts = ggml_mul_mat(c, ggml_cont(c, ggml_transpose(c, v)), scores);
    }
    parts = ggml_cont(c, ggml_permute(c, parts, 0, 2, 1, 3));
    whole = ggml_flash_attn_ext(c, q, k, v, one ? NULL : half, scale, 0, 0);
    ggml_prec_set_acc(whole, GGML_PREC_F32);
    program a, b;
    prepare(&a, c, parts, pool);
    prepare(&b, c, whole, pool);
    double error[2] = {0, 0}, *share = malloc(sizeof(double) * keys);
    const float *Q = q->data, *K = k->data, *V = v->data, *found[2] = {parts->data, whole->data};
    for (int h = 0; h < HEADS; h++) {
        for (int i = 0; i < queries; i++) {
            double largest = -INFINITY, sum = 0;
            int seen = keys - queries + i + 1;
            for (int j = 0; j < seen; j++) {
                double dot = 0;
                for (int d = 0; d < WIDTH; d++) {
                    dot += (double)Q[(h * queries + i) * WIDTH + d] * K[(h * keys + j) * WIDTH + d];
                }
                share[j] = dot * scale;
                largest = fmax(largest, share[j]);
            }
            for (int j = 0; j < seen; j++) sum += share[j] = exp(share[j] - largest);
            for (int d = 0; d < WIDTH; d++) {
                double wanted = 0, absolute = 0;
                for (int j = 0; j < seen; j++) {
                    double x = share[j] / sum * V[(h * keys + j) * WIDTH + d];
                    wanted += x;
                    absolute += fabs(x);
                }
                for (int side = 0; side < 2; side++) {
                    double off = fabs(found[side][(i * HEADS + h) * WIDTH + d] - wanted) / absolute * 0x1p23;
                    if (!(off <= error[side])) error[side] = off;
                }
            }
        }
    }
    measure(&a, &b, calls);
    printf("| attention, %s | %.1f | %.0f µs | %.1f | %.0f µs |\n", what, error[0], median(&a), error[1], median(&b));
    free(a.plan.work_data), free(b.plan.work_data), free(share);
    ggml_free(c);
}

/* Rows of 64 features turned by their positions, up to a last one. */
static void rotary(const char *what, int mode, int last, struct ggml_threadpool *pool) {
    enum { COUNT = 128, HALF = WIDTH / 2 };
    struct ggml_context *c = ggml_init((struct ggml_init_params){64u << 20, NULL, false});
    tensor *x = filled(c, WIDTH, HEADS, COUNT), *at = ggml_new_tensor_1d(c, GGML_TYPE_I32, COUNT);
    tensor *cosines = ggml_new_tensor_3d(c, GGML_TYPE_F32, HALF, 1, COUNT), *sines = ggml_dup_tensor(c, cosines);
    tensor *angles = ggml_dup_tensor(c, cosines), *places = ggml_new_tensor_3d(c, GGML_TYPE_F32, 1, 1, COUNT);
    tensor *speeds = ggml_new_tensor_3d(c, GGML_TYPE_F32, HALF, 1, 1);
    for (int i = 0; i < COUNT; i++) {
        ((int32_t *)at->data)[i] = last - COUNT + 1 + i;
        ((float *)places->data)[i] = (float)(last - COUNT + 1 + i);
    }
    for (int i = 0; i < HALF; i++) ((float *)speeds->data)[i] = (float)pow(10000.0, -2.0 * i / WIDTH);
    /* Angles, their sines and cosines, and products of the halves, or of even and odd features. */
    tensor *turned = ggml_mul(c, ggml_repeat(c, places, angles), speeds);
    cosines = ggml_cos(c, turned), sines = ggml_sin(c, turned);
    int pairs = mode == GGML_ROPE_TYPE_NORMAL;
    size_t step = (pairs ? 2 : 1) * sizeof(float), other = (pairs ? 1 : HALF) * sizeof(float);
    tensor *halves[2];
    for (int i = 0; i < 2; i++) {
        tensor *part = ggml_view_4d(c, x, 1, HALF, HEADS, COUNT, step, x->nb[1], x->nb[2], i * other);
        halves[i] = pairs ? ggml_reshape_3d(c, ggml_cont(c, part), HALF, HEADS, COUNT)
                          : ggml_view_3d(c, x, HALF, HEADS, COUNT, x->nb[1], x->nb[2], i * other);
    }
    tensor *low = ggml_sub(c, ggml_mul(c, halves[0], cosines), ggml_mul(c, halves[1], sines));
    tensor *high = ggml_add(c, ggml_mul(c, halves[1], cosines), ggml_mul(c, halves[0], sines));
    tensor *parts;
    if (pairs) {
        low = ggml_reshape_4d(c, low, 1, HALF, HEADS, COUNT), high = ggml_reshape_4d(c, high, 1, HALF, HEADS, COUNT);
    }
    parts = ggml_concat(c, low, high, 0);
    tensor *whole = ggml_rope_ext(c, x, at, NULL, WIDTH, mode, 0, 10000.0f, 1, 0, 1, 32, 1);
    program a, b;
    prepare(&a, c, parts, pool);
    prepare(&b, c, whole, pool);
    double error[2] = {0, 0};
    const float *X = x->data, *found[2] = {parts->data, whole->data};
    for (int row = 0; row < COUNT * HEADS; row++) {
        for (int i = 0; i < HALF; i++) {
            double angle = ((int32_t *)at->data)[row / HEADS] * pow(10000.0, -2.0 * i / WIDTH);
            int first = row * WIDTH + (pairs ? 2 * i : i), second = row * WIDTH + (pairs ? 2 * i + 1 : i + HALF);
            double wanted[2] = {X[first] * cos(angle) - X[second] * sin(angle),
                                X[second] * cos(angle) + X[first] * sin(angle)};
            double absolute = hypot(X[first], X[second]);
            for (int side = 0; side < 2; side++) {
                double off = fmax(fabs(found[side][first] - wanted[0]), fabs(found[side][second] - wanted[1]));
                error[side] = fmax(error[side], off / absolute * 0x1p23);
            }
        }
    }
    measure(&a, &b, 20);
    printf("| rope, %s, up to %d | %.0f | %.0f µs | %.0f | %.0f µs |\n", what, last, error[0], median(&a), error[1],
           median(&b));
    free(a.plan.work_data), free(b.plan.work_data);
    ggml_free(c);
}

int main(void) {
    struct ggml_threadpool_params params = ggml_threadpool_params_default(THREADS);
    params.poll = 1;
    struct ggml_threadpool *pool = ggml_threadpool_new(&params);
    printf("| what | error of several | time | error of one | time |\n|---|---|---|---|---|\n");
    attention("16 queries", 16, 16, 100, pool);
    attention("128 queries", 128, 128, 10, pool);
    attention("1 query of 1024 keys", 1, 1024, 50, pool);
    attention("1 query of 128 keys", 1, 128, 100, pool);
    rotary("neighbours", GGML_ROPE_TYPE_NORMAL, 127, pool);
    rotary("halves", GGML_ROPE_TYPE_NEOX, 127, pool);
    rotary("neighbours", GGML_ROPE_TYPE_NORMAL, 4095, pool);
    rotary("halves", GGML_ROPE_TYPE_NEOX, 4095, pool);
    ggml_threadpool_free(pool);
    return 0;
}
