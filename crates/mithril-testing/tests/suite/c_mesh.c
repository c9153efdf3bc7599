/* A mesh whose ranks are threads of one process, and a program that runs the model on it: reads the inputs of all ranks,
   writes their outputs. */
#include "model.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const int sizes[] = MODEL_MESH_SIZES;
static const size_t input_bytes[] = {@input_bytes@}, output_bytes[] = {@output_bytes@};
enum { INPUTS = sizeof input_bytes / sizeof *input_bytes, OUTPUTS = sizeof output_bytes / sizeof *output_bytes };

typedef struct {
    mithril_mesh mesh;
    int rank, places[MODEL_MESH_AXES], code;
    void *inputs[INPUTS], *outputs[OUTPUTS];
} rank;

static rank ranks[MODEL_RANKS];
static const void *sent[MODEL_RANKS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t all_are_there = PTHREAD_COND_INITIALIZER;
static int waiting, round_number;

/* All ranks wait for each other. */
static void meet(void) {
    pthread_mutex_lock(&lock);
    const int own = round_number;
    if (++waiting == MODEL_RANKS) {
        waiting = 0;
        round_number++;
        pthread_cond_broadcast(&all_are_there);
    }
    while (own == round_number) pthread_cond_wait(&all_are_there, &lock);
    pthread_mutex_unlock(&lock);
}

/* The rank at a place along an axis. */
static int peer(const rank *own, int axis, int place) {
    int stride = 1;
    for (int later = axis + 1; later < MODEL_MESH_AXES; later++) stride *= sizes[later];
    return own->rank + (place - own->places[axis]) * stride;
}

static void wait_for_all(rank *own, const void *in) {
    sent[own->rank] = in;
    meet();
}

static int done(void) {
    meet();
    return 0;
}

#define PICK(T)                                                                                   \
    for (size_t i = 0; i < count; i++) {                                                          \
        T all = ((const T *)sent[peer(own, axis, 0)])[from + i];                                  \
        for (int place = 1; place < sizes[axis]; place++) {                                       \
            const T x = ((const T *)sent[peer(own, axis, place)])[from + i];                      \
            all = reduction == MITHRIL_SUM ? (T)(all + x)                                         \
                : isnan((double)x) || (reduction == MITHRIL_MAX ? x > all : x < all) ? x : all;             \
        }                                                                                         \
        ((T *)out)[i] = all;                                                                      \
    }                                                                                             \
    break

static void reduce(const rank *own, int axis, void *out, size_t from, size_t count, int dtype, int reduction) {
    switch (dtype) {
    case MITHRIL_INT8: PICK(int8_t);
    case MITHRIL_UINT8: PICK(uint8_t);
    case MITHRIL_INT16: PICK(int16_t);
    case MITHRIL_UINT16: PICK(uint16_t);
    case MITHRIL_INT32: PICK(int32_t);
    case MITHRIL_UINT32: PICK(uint32_t);
    case MITHRIL_INT64: PICK(int64_t);
    case MITHRIL_UINT64: PICK(uint64_t);
    case MITHRIL_FLOAT32: PICK(float);
    default: PICK(double);
    }
}

static int all_reduce(mithril_mesh *self, int axis, const void *in, void *out, size_t count, int dtype, int reduction) {
    rank *own = (rank *)self;
    wait_for_all(own, in);
    reduce(own, axis, out, 0, count, dtype, reduction);
    return done();
}

static int reduce_scatter(mithril_mesh *self, int axis, const void *in, void *out, size_t count, int dtype,
        int reduction) {
    rank *own = (rank *)self;
    wait_for_all(own, in);
    reduce(own, axis, out, (size_t)own->places[axis] * count, count, dtype, reduction);
    return done();
}

static int all_gather(mithril_mesh *self, int axis, const void *in, void *out, size_t bytes) {
    rank *own = (rank *)self;
    wait_for_all(own, in);
    for (int place = 0; place < sizes[axis]; place++)
        memcpy((char *)out + (size_t)place * bytes, sent[peer(own, axis, place)], bytes);
    return done();
}

static int all_to_all(mithril_mesh *self, int axis, const void *in, void *out, size_t bytes) {
    rank *own = (rank *)self;
    wait_for_all(own, in);
    for (int place = 0; place < sizes[axis]; place++) {
        const char *block = (const char *)sent[peer(own, axis, place)] + (size_t)own->places[axis] * bytes;
        memcpy((char *)out + (size_t)place * bytes, block, bytes);
    }
    return done();
}

/* Only those call it that send or receive, so that each sender waits for its receiver alone: it says whom the data are for
   (its rank and one), and the receiver takes that back. */
static _Atomic int receiver[MODEL_RANKS];

static int permute(mithril_mesh *self, int axis, const void *in, void *out, size_t bytes, int to, int from) {
    rank *own = (rank *)self;
    if (to >= 0) {
        sent[own->rank] = in;
        receiver[own->rank] = peer(own, axis, to) + 1;
    }
    if (from >= 0) {
        const int source = peer(own, axis, from);
        while (receiver[source] != own->rank + 1) sched_yield();
        memcpy(out, sent[source], bytes);
        receiver[source] = 0;
    }
    if (to >= 0)
        while (receiver[own->rank]) sched_yield();
    return 0;
}

static void *run(void *argument) {
    rank *own = argument;
    void *arena = aligned_alloc(64, (model_arena_bytes(1) / 64 + 1) * 64);
    own->code = model_run((const void *const *)own->inputs, own->outputs, NULL, arena, NULL, &own->mesh);
    free(arena);
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[MODEL_RANKS];
    alarm(120); /* Ranks that wait for each other for ever are killed. */
    FILE *in = argc > 1 ? fopen(argv[1], "rb") : NULL, *out = argc > 2 ? fopen(argv[2], "wb") : NULL;
    if (!in || !out) return 1;
    for (int r = 0; r < MODEL_RANKS; r++) {
        ranks[r] = (rank){{MODEL_MESH_AXES, sizes, ranks[r].places, all_reduce, all_gather, reduce_scatter, all_to_all,
                permute}, .rank = r};
        for (int axis = MODEL_MESH_AXES - 1, rest = r; axis >= 0; rest /= sizes[axis--])
            ranks[r].places[axis] = rest % sizes[axis];
        for (int i = 0; i < INPUTS; i++) {
            ranks[r].inputs[i] = aligned_alloc(64, (input_bytes[i] / 64 + 1) * 64);
            if (fread(ranks[r].inputs[i], 1, input_bytes[i], in) != input_bytes[i]) return 2;
        }
        for (int i = 0; i < OUTPUTS; i++) ranks[r].outputs[i] = aligned_alloc(64, (output_bytes[i] / 64 + 1) * 64);
    }
    for (int r = 0; r < MODEL_RANKS; r++) pthread_create(&threads[r], NULL, run, &ranks[r]);
    for (int r = 0; r < MODEL_RANKS; r++) {
        pthread_join(threads[r], NULL);
        if (ranks[r].code) return 3;
        for (int i = 0; i < OUTPUTS; i++) fwrite(ranks[r].outputs[i], 1, output_bytes[i], out);
    }
    return fclose(out) ? 4 : 0;
}
