/* What the hand-written programs share: weights in a buffer of the CPU, a graph that is planned once, and its calls. */
#ifndef PROGRAM_H
#define PROGRAM_H

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"

#include <stdlib.h>
#include <string.h>

typedef struct ggml_tensor tensor;

typedef struct program {
    struct ggml_context *weights; /* what lives as long as the program: weights, caches */
    struct ggml_context *work;    /* what is computed */
    ggml_backend_t backend;
    ggml_backend_buffer_t buffer;
    ggml_gallocr_t planner;
    struct ggml_cgraph *graph;
    tensor *inputs[2];
    tensor *output;
    const float *const *values; /* of the weights, in the order in which they are made */
    tensor *made[512];
    int count;
} program;

static program *program_new(const float *const values[], int threads) {
    struct ggml_init_params room = {16u << 20, NULL, true};
    program *p = calloc(1, sizeof *p);
    p->values = values;
    p->weights = ggml_init(room);
    p->work = ggml_init(room);
    p->graph = ggml_new_graph_custom(p->work, 4096, false);
    p->backend = ggml_backend_cpu_init();
    ggml_backend_cpu_set_n_threads(p->backend, threads);
    /* Threads that stay; without them each call starts new ones. They look for work as long as those of Mithril. */
    struct ggml_threadpool_params pool = ggml_threadpool_params_default(threads);
    pool.poll = 1;
    ggml_backend_cpu_set_threadpool(p->backend, ggml_threadpool_new(&pool));
    return p;
}

/* The next weight. */
static tensor *program_weight(program *p, enum ggml_type type, int64_t a, int64_t b, int64_t c, int64_t d) {
    tensor *weight = ggml_new_tensor_4d(p->weights, type, a, b, c, d);
    p->made[p->count++] = weight;
    return weight;
}

/* The values of a weight in its type. All columns count alike, as they do for ours: the same values are the same blocks. */
static void program_quantize(tensor *weight, const float *values) {
    const int64_t columns = weight->ne[0];
    float *importance = malloc((size_t)columns * sizeof *importance);
    for (int64_t i = 0; i < columns; i++)
        importance[i] = 1;
    ggml_quantize_chunk(weight->type, values, weight->data, 0, ggml_nrows(weight), columns, importance);
    free(importance);
}

/* Memory for everything, and the values of the weights in their types. */
static void program_plan(program *p) {
    ggml_set_output(p->output);
    p->buffer = ggml_backend_alloc_ctx_tensors(p->weights, p->backend);
    ggml_backend_buffer_clear(p->buffer, 0);
    for (int i = 0; i < p->count; i++) {
        tensor *weight = p->made[i];
        if (weight->type == GGML_TYPE_F32) {
            memcpy(weight->data, p->values[i], ggml_nbytes(weight));
        } else {
            program_quantize(weight, p->values[i]);
        }
    }
    p->planner = ggml_gallocr_new(ggml_backend_get_default_buffer_type(p->backend));
    ggml_build_forward_expand(p->graph, p->output);
    ggml_gallocr_alloc_graph(p->planner, p->graph);
}

void run(program *p, const void *const inputs[], float *output) {
    for (int i = 0; i < 2 && p->inputs[i]; i++) {
        memcpy(p->inputs[i]->data, inputs[i], ggml_nbytes(p->inputs[i]));
    }
    ggml_backend_graph_compute(p->backend, p->graph);
    memcpy(output, p->output->data, ggml_nbytes(p->output));
}

/* Bytes of the weights, and of what is computed. */
size_t weight_bytes(const program *p) { return ggml_backend_buffer_get_size(p->buffer); }
size_t work_bytes(const program *p) { return ggml_gallocr_get_buffer_size(p->planner, 0); }

#endif
