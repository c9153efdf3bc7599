/* Runs exported models on memory of its own, without heap, files and threads, and prints the bytes of what they
   compute: a program for machines that have nothing but a line to write to. models.h is written by program.py. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "models.h"

_Alignas(64) static unsigned char arena[ARENA_BYTES + 64];
_Alignas(64) static unsigned char packed[PACKED_BYTES + 64];
_Alignas(64) static unsigned char memory[OUTPUT_BYTES + 64];
_Alignas(64) static unsigned char states[OUTPUT_BYTES + 64];

static int run(const model *m) {
    static const void *inputs[MOST_INPUTS + 1];
    static void *outputs[MOST_OUTPUTS + 1];
    for (int i = 0; i < m->inputs; i++) inputs[i] = m->weights[i];
    for (int i = 0; m->places[i] >= 0; i++) inputs[m->places[i]] = m->data[i];
    size_t end = 0;
    for (int i = 0; i < m->outputs; i++) {
        outputs[i] = memory + end;
        end += (m->sizes[i] + 63) / 64 * 64;
    }
    if (m->arena_bytes(1) > ARENA_BYTES || m->pack_bytes() > ARENA_BYTES || m->packed_bytes() > PACKED_BYTES) {
        printf("%s: needs more memory than was recorded\n", m->name);
        return 1;
    }
    /* Scratch memory of packing is needed no longer when the calls begin. */
    int code = m->packed ? 0 : m->pack(inputs, packed, arena);
    for (int call = 0; call < m->calls && !code; call++) {
        code = m->run(inputs, outputs, m->packed ? m->packed : packed, arena, NULL);
        /* The new states are inputs of the next call. */
        memcpy(states, memory, end);
        for (int i = m->results; i < m->outputs; i++)
            inputs[m->states[i - m->results]] = states + ((unsigned char *)outputs[i] - memory);
    }
    if (code) {
        printf("%s: %s\n", m->name, m->error(code));
        return 1;
    }
    for (int i = 0; i < m->results; i++) {
        printf("%s ", m->name);
        for (size_t n = 0; n < m->sizes[i]; n++) printf("%02x", ((const unsigned char *)outputs[i])[n]);
        printf("\n");
    }
    return 0;
}

int main(void) {
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        if (run(&models[i])) return 1;
    return 0;
}
