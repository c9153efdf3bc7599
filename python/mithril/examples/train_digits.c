/* Trains a classifier of handwritten digits in C: train EPOCHS LEARNING_RATE. It reads digits.data, batches of 72 images
   of 64 floats and 72 labels; prints the loss of every step; writes the trained parameters to digits.trained. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "digits.h"

enum { IMAGES = 72, PIXELS = 64, BATCHES = 20, HIDDEN = 32, CLASSES = 10 };

static struct batch {
    float images[IMAGES][PIXELS];
    int32_t labels[IMAGES];
} batches[BATCHES];

/* Parameters by their numbers; see digits_weight in digits.h. */
static const struct {
    int number;
    size_t count;
} parameters[] = {{0, HIDDEN * PIXELS}, {1, HIDDEN}, {2, CLASSES * HIDDEN}, {3, CLASSES}};

static int fail(const char *what) {
    perror(what);
    return 1;
}

int main(int argc, char **argv) {
    int epochs = argc > 1 ? atoi(argv[1]) : 10;
    float rate = argc > 2 ? strtof(argv[2], NULL) : 0.003f;
    FILE *file = fopen("digits.data", "rb");
    if (!file || fread(batches, sizeof *batches, BATCHES, file) != BATCHES) return fail("digits.data");
    fclose(file);

    digits_model *model = digits_open(NULL, 1);
    if (!model) return fail("digits");
    for (int epoch = 0; epoch < epochs; epoch++) {
        /* A schedule of the learning rate is a line of C. */
        float now = rate * (float)(epochs - epoch) / (float)epochs, loss;
        for (int i = 0; i < BATCHES; i++) {
            const void *data[] = {batches[i].images, batches[i].labels, &now};
            void *outputs[] = {&loss};
            int code = digits_call(model, data, outputs);
            if (code) {
                fprintf(stderr, "%s\n", digits_error(code));
                return 1;
            }
            printf("%.9g\n", (double)loss);
        }
    }

    file = fopen("digits.trained", "wb");
    if (!file) return fail("digits.trained");
    for (size_t i = 0; i < sizeof parameters / sizeof *parameters; i++)
        fwrite(digits_weight(model, parameters[i].number), sizeof(float), parameters[i].count, file);
    if (fclose(file)) return fail("digits.trained");
    digits_close(model);
    return 0;
}
