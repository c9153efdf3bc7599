/* weights[@n@, @k@], dequantized from low-bit integers, a panel of two vectors of filters at a time. */
static MITHRIL_NOINLINE void @name@(long thread, long threads, const void *restrict packed, float *restrict weights, float *restrict scratch) {
    enum { N = @n@, K = @k@, WIDTH = 2 * @lanes@, PANELS = (N + WIDTH - 1) / WIDTH };
    for (long panel = (long)PANELS * thread / threads; panel < (long)PANELS * (thread + 1) / threads; panel++) {
        const long first = panel * WIDTH, count = N - first < WIDTH ? N - first : WIDTH;
        @unpack@
        for (long filter = 0; filter < count; filter++)
            for (long k = 0; k < K; k++)
                weights[(first + filter) * K + k] = scratch[k * WIDTH + filter];
    }
}
