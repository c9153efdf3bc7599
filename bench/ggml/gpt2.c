/* GPT-2 by hand with ggml: the next token, from one token and a cache of earlier keys and values. */
#include "program.h"

#include <math.h>

enum { DIMS = 768, HEADS = 12, WIDTH = DIMS / HEADS };

static tensor *norm(program *p, tensor *x, tensor *weight, tensor *bias) {
    struct ggml_context *c = p->work;
    return ggml_add(c, ggml_mul(c, ggml_norm(c, x, 1e-5f), weight), bias);
}

static tensor *linear(program *p, tensor *x, tensor *weight, tensor *bias) {
    return ggml_add(p->work, ggml_mul_mat(p->work, weight, x), bias);
}

static tensor *vector(program *p, int64_t size) { return program_weight(p, GGML_TYPE_F32, size, 1, 1, 1); }
static tensor *matrix(program *p, enum ggml_type type, int64_t in, int64_t out) {
    return program_weight(p, type, in, out, 1, 1);
}

/* One head after the other lies in a row of `mixed`, `offset` bytes from its start. */
static tensor *heads(program *p, tensor *mixed, size_t offset) {
    return ggml_view_3d(p->work, mixed, WIDTH, HEADS, 1, WIDTH * sizeof(float), mixed->nb[1], offset);
}

/* Attention to `past` cached tokens and the new one, which is written into the caches. */
static tensor *attend(program *p, tensor *mixed, tensor *keys, tensor *values, int past) {
    struct ggml_context *c = p->work;
    tensor *query = ggml_permute(c, heads(p, mixed, 0), 0, 2, 1, 3);
    tensor *key = ggml_permute(c, heads(p, mixed, DIMS * sizeof(float)), 0, 2, 1, 3);
    tensor *value = ggml_permute(c, heads(p, mixed, 2 * DIMS * sizeof(float)), 1, 2, 0, 3);
    /* Keys lie as [head, token, width], values as [head, width, token]. */
    tensor *slot = ggml_view_3d(c, keys, WIDTH, 1, HEADS, keys->nb[1], keys->nb[2], past * keys->nb[1]);
    ggml_build_forward_expand(p->graph, ggml_cpy(c, key, slot));
    slot = ggml_view_3d(c, values, 1, WIDTH, HEADS, values->nb[1], values->nb[2], past * values->nb[0]);
    ggml_build_forward_expand(p->graph, ggml_cpy(c, value, slot));
    tensor *scores = ggml_mul_mat(c, keys, query);
    scores = ggml_soft_max_ext(c, scores, NULL, 1.0f / sqrtf(WIDTH), 0.0f);
    tensor *found = ggml_mul_mat(c, values, scores);
    return ggml_cont_2d(c, ggml_permute(c, found, 0, 2, 1, 3), DIMS, 1);
}

/* Values: tokens, positions; per block the norm, query-key-value, projection, norm, two layers; the last norm. */
void *make(const float *const values[], const int *sizes, int type, int threads) {
    int vocabulary = sizes[0], positions = sizes[1], blocks = sizes[2], past = sizes[3];
    program *p = program_new(values, threads);
    struct ggml_context *c = p->work;
    tensor *tokens = matrix(p, type, DIMS, vocabulary), *places = matrix(p, GGML_TYPE_F32, DIMS, positions);
    tensor *w[64][12], *last[2], *keys[64], *cached[64];
    for (int i = 0; i < blocks; i++) {
        w[i][0] = vector(p, DIMS), w[i][1] = vector(p, DIMS);
        w[i][2] = matrix(p, type, DIMS, 3 * DIMS), w[i][3] = vector(p, 3 * DIMS);
        w[i][4] = matrix(p, type, DIMS, DIMS), w[i][5] = vector(p, DIMS);
        w[i][6] = vector(p, DIMS), w[i][7] = vector(p, DIMS);
        w[i][8] = matrix(p, type, DIMS, 4 * DIMS), w[i][9] = vector(p, 4 * DIMS);
        w[i][10] = matrix(p, type, 4 * DIMS, DIMS), w[i][11] = vector(p, DIMS);
        keys[i] = ggml_new_tensor_3d(p->weights, GGML_TYPE_F32, WIDTH, past + 1, HEADS);
        cached[i] = ggml_new_tensor_3d(p->weights, GGML_TYPE_F32, past + 1, WIDTH, HEADS);
    }
    last[0] = vector(p, DIMS), last[1] = vector(p, DIMS);
    for (int i = 0; i < 2; i++) {
        p->inputs[i] = ggml_new_tensor_1d(c, GGML_TYPE_I32, 1);
        ggml_set_input(p->inputs[i]);
    }
    tensor *x = ggml_add(c, ggml_get_rows(c, tokens, p->inputs[0]), ggml_get_rows(c, places, p->inputs[1]));
    for (int i = 0; i < blocks; i++) {
        tensor *mixed = linear(p, norm(p, x, w[i][0], w[i][1]), w[i][2], w[i][3]);
        tensor *attended = attend(p, mixed, keys[i], cached[i], past);
        x = ggml_add(c, x, linear(p, attended, w[i][4], w[i][5]));
        tensor *hidden = ggml_gelu(c, linear(p, norm(p, x, w[i][6], w[i][7]), w[i][8], w[i][9]));
        x = ggml_add(c, x, linear(p, hidden, w[i][10], w[i][11]));
    }
    p->output = ggml_mul_mat(c, tokens, norm(p, x, last[0], last[1]));
    program_plan(p);
    for (int i = 0; i < blocks; i++) p->made[p->count + 2 * i] = keys[i], p->made[p->count + 2 * i + 1] = cached[i];
    return p;
}

/* Fills the caches of a block: keys as [head, token, width], values as [head, width, token]. */
void cache(program *p, int block, const float *keys, const float *values) {
    tensor **found = p->made + p->count + 2 * block;
    memcpy(found[0]->data, keys, ggml_nbytes(found[0]));
    memcpy(found[1]->data, values, ggml_nbytes(found[1]));
}
