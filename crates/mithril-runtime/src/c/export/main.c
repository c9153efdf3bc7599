/* Written by Mithril. Checks the model: runs it on recorded data and compares its outputs with recorded ones.

   @usage@ */
#include "@prefix@@header@.h"

#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct {
    const char *name;
    char kind; /* f: float, d: double, h: float16, b: bfloat16, i: anything else, compared bit for bit */
    size_t count, item;
} tensor;

enum { DATA = @data_count@, RESULTS = @results@, CALLS = @calls@ };
static const tensor data[DATA + 1] = {
@data_tensors@    {0, 0, 0, 0}};
static const tensor results[RESULTS + 1] = {
@result_tensors@    {0, 0, 0, 0}};
/* The largest distance of each result that is allowed: more where the model computes it in float16 or bfloat16. */
static const double allowed[RESULTS + 1] = {@allowed@0};

static double half(uint16_t bits) {
    int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    double sign = bits >> 15 ? -1 : 1;
    if (exponent == 31) return mantissa ? NAN : sign * INFINITY;
    return sign * (exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24));
}

static double value(const tensor *t, const void *at, size_t i) {
    if (t->kind == 'f') return ((const float *)at)[i];
    if (t->kind == 'd') return ((const double *)at)[i];
    uint16_t bits = ((const uint16_t *)at)[i];
    if (t->kind == 'h') return half(bits);
    uint32_t wide = (uint32_t)bits << 16;
    float result;
    memcpy(&result, &wide, sizeof result);
    return result;
}

/* The largest recorded number. */
static double size(const tensor *t, const void *recorded) {
    double largest = 0;
    for (size_t i = 0; i < t->count && t->kind != 'i'; i++) {
        double w = fabs(value(t, recorded, i));
        if (isfinite(w) && w > largest) largest = w;
    }
@whole@    return largest;
}

static int is_gradient(const tensor *t) { return strncmp(t->name, "gradient_", 9) == 0; }

/* Largest distance from the recorded output, relative to its largest number; 0 if all bits are equal. A gradient that is
   zero except for rounding, such as that of a bias in front of a batch norm, is relative to the largest gradient. */
static double distance(const tensor *t, const void *output, const void *recorded, double steepest) {
    if (t->kind == 'i') return memcmp(output, recorded, t->count * t->item) ? INFINITY : 0;
    double scale = size(t, recorded), largest = 0;
    if (is_gradient(t) && scale < 1e-5 * steepest) scale = 1e-2 * steepest;
    for (size_t i = 0; i < t->count; i++) {
        double f = value(t, output, i), w = value(t, recorded, i);
        if (f == w || (isnan(f) && isnan(w))) continue;
        double d = fabs(f - w) / (scale > 0 ? scale : 1);
        if (!(d <= largest)) largest = isnan(d) ? INFINITY : d;
    }
    return largest;
}

static void *allocate(size_t bytes) { return aligned_alloc(64, (bytes / 64 + 1) * 64); }

static int fail(const char *what, const char *name) {
    fprintf(stderr, "%s: %s\n", name, what);
@abort@    return 1;
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 1, wrong = 0;
@file_names@    const void *inputs[DATA + 1];
    void *outputs[RESULTS + 1], *recorded[RESULTS + 1];
    FILE *file = fopen(check, "rb");
    if (!file) return fail("cannot be opened", check);
    for (int i = 0; i < DATA + RESULTS; i++) {
        const tensor *t = i < DATA ? &data[i] : &results[i - DATA];
        size_t bytes = t->count * t->item;
        void *memory = allocate(bytes);
        if (!memory) return fail("no memory", t->name);
        if (fread(memory, 1, bytes, file) != bytes) return fail("too short", check);
        if (i < DATA)
            inputs[i] = memory;
        else
            recorded[i - DATA] = memory;
    }
    fclose(file);
    for (int i = 0; i < RESULTS; i++) {
        outputs[i] = allocate(results[i].count * results[i].item);
        if (!outputs[i]) return fail("no memory", results[i].name);
    }

    @prefix@_model *model = @prefix@_open(weights, threads@main_mesh@);
    if (!model) {
        const char *of = weights ? weights : @weights_path@;
        if (errno == EINVAL && of)
            return fail("these are not the weights of @prefix@.c, all of them: export both again", of);
        perror(of ? of : "@prefix@");
@abort@        return 1;
    }
    /* The outputs of call number CALLS were recorded: states change from call to call. */
    for (int i = 0; i < CALLS; i++) {
        int code = @checked_call@;
        if (code) return fail(@prefix@_error(code), "the model");
    }
    double steepest = 0;
    for (int i = 0; i < RESULTS; i++)
        if (is_gradient(&results[i])) steepest = fmax(steepest, size(&results[i], recorded[i]));
    for (int i = 0; i < RESULTS; i++) {
        double d = distance(&results[i], outputs[i], recorded[i], steepest);
@largest@        int is_right = d <= allowed[i];
        @first@printf("%s: largest distance %.3g%s\n", results[i].name, d, is_right ? "" : ": too large");
        wrong |= !is_right;
    }
    clock_t start = clock();
    int calls = 0;
    while (@goes_on@) {
        if (@checked_call@) return fail("fails when called again", "the model");
        calls++;
    }
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC / (threads > 1 ? threads : 1);
    @first@printf("arena: %zu bytes\npacked parameters: %zu bytes\nscratch while packing: %zu bytes\n",
            @arena_function@(threads), @prefix@_packed_bytes(), @prefix@_pack_bytes());
    @first@printf("time of a call: %.4g ms\n", calls ? 1e3 * seconds / calls : 0);
    @prefix@_close(model);
    for (int i = 0; i < DATA; i++) free((void *)inputs[i]);
    for (int i = 0; i < RESULTS; i++) {
        free(outputs[i]);
        free(recorded[i]);
    }
@mesh_end@    @first@puts(wrong ? "WRONG" : "ok");
    return wrong;
}
