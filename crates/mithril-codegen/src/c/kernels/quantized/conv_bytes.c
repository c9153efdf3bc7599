/* Images of @channels@ channels as bytes, @n@ times [@height@ rows][@width@ pixels][@words@ words], a word being 4
   channels of a pixel, the first in the lowest byte; then for each row the scale, and for each image the zero point.
   @padding@. */
static MITHRIL_NOINLINE void @name@(long thread, long threads, const float *restrict image, void *restrict shared@parameters@) {
    enum { CHANNELS = @channels@, HEIGHT = @height@, WIDTH = @width@, WORDS = @words@ };
    float *const scales = (float *)shared + (long)@n@ * HEIGHT * WIDTH * WORDS;
    int32_t *const zeros = (int32_t *)scales + @n@ * HEIGHT;
    const long units = (long)@n@ * HEIGHT;
    float scale = 0, inverse = 0, zero = 0;
    for (long unit = units * thread / threads, known = -1; unit < units * (thread + 1) / threads; unit++) {
        const long batch = unit / HEIGHT, y = unit % HEIGHT;
        uint32_t *const to = (uint32_t *)shared + unit * WIDTH * WORDS;
        if (batch != known) {
            @range@
            known = batch;
        }
        const float offset = zero + 0.5f;
        int32_t is_number = 1;
        @line@
        scales[unit] = is_number ? scale : NAN;
        if (y == 0)
            zeros[batch] = (int32_t)zero - MITHRIL_DOT_OFFSET;
    }
}
