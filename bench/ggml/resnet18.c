/* ResNet-18 by hand with ggml; the norms are folded into the convolutions, as every engine does it. */
#include "program.h"

static tensor *convolve(program *p, tensor *x, int channels, int size, int stride, int pad) {
    struct ggml_context *c = p->work;
    tensor *kernel = program_weight(p, GGML_TYPE_F32, size, size, x->ne[2], channels);
    tensor *bias = program_weight(p, GGML_TYPE_F32, 1, 1, channels, 1);
    return ggml_add(c, ggml_conv_2d_direct(c, kernel, x, stride, stride, pad, pad, 1, 1), bias);
}

static tensor *block(program *p, tensor *x, int channels, int stride) {
    struct ggml_context *c = p->work;
    tensor *hidden = ggml_relu(c, convolve(p, x, channels, 3, stride, 1));
    hidden = convolve(p, hidden, channels, 3, 1, 1);
    tensor *skipped = stride > 1 ? convolve(p, x, channels, 1, stride, 0) : x;
    return ggml_relu(c, ggml_add(c, hidden, skipped));
}

/* Values: kernel and bias of each convolution, a block's way around it last; weight and bias of the last layer. */
void *make(const float *const values[], const int *sizes, int type, int threads) {
    program *p = program_new(values, threads);
    struct ggml_context *c = p->work;
    p->inputs[0] = ggml_new_tensor_4d(c, GGML_TYPE_F32, sizes[1], sizes[1], 3, sizes[0]);
    ggml_set_input(p->inputs[0]);
    tensor *x = ggml_relu(c, convolve(p, p->inputs[0], 64, 7, 2, 3));
    x = ggml_pool_2d(c, x, GGML_OP_POOL_MAX, 3, 3, 2, 2, 1, 1);
    for (int stage = 0; stage < 4; stage++) {
        x = block(p, x, 64 << stage, stage ? 2 : 1);
        x = block(p, x, 64 << stage, 1);
    }
    x = ggml_pool_2d(c, x, GGML_OP_POOL_AVG, (int)x->ne[0], (int)x->ne[1], (int)x->ne[0], (int)x->ne[1], 0, 0);
    x = ggml_reshape_2d(c, x, 512, sizes[0]);
    tensor *weight = program_weight(p, (enum ggml_type)type, 512, 1000, 1, 1);
    tensor *bias = program_weight(p, GGML_TYPE_F32, 1000, 1, 1, 1);
    p->output = ggml_add(c, ggml_mul_mat(c, weight, x), bias);
    program_plan(p);
    return p;
}
