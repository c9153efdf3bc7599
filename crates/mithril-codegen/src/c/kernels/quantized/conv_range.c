/* The smallest and the largest number of each part of an image, @n@ times @parts@ parts of @channels@ channels, as
   integers in the same order; 0 is one of them, since the image is padded with it. */
static MITHRIL_NOINLINE void @name@(long thread, long threads, const float *restrict image, int32_t *restrict ranges) {
    const long units = (long)@n@ * @parts@;
    for (long unit = units * thread / threads; unit < units * (thread + 1) / threads; unit++) {
        const float *const part = image + unit / @parts@ * @image_batch@ + unit % @parts@ * @plane@;
        int32_t low = 0, high = 0;
        for (long y = 0; y < @lines@; y++) {
            const float *const line = part + y * @image_row@;
            for (long i = 0; i < @line_elements@; i++) {
                union { float value; int32_t bits; } number = {.value = line[i]};
                const int32_t order = mithril_order(number.bits);
                low = order < low ? order : low;
                high = order > high ? order : high;
            }
        }
        ranges[2 * unit] = low;
        ranges[2 * unit + 1] = high;
    }
}
