/* b[@k@, @n@]@batched@ in 4 bits: each @group@ steps of k of a column have a scale that brings the weight of largest
   size to -8. Panels of two vectors of columns, [panel][group]: one vector of scales (of the two vectors of columns
   in the upper and the lower half of a word, as bfloat16), then [word][2 * LANES], a word being 8 steps of k of one
   column, the first in the lowest bits. A group with NaN or infinities has the scale NaN. */
static void @name@(long thread, long threads, const float *restrict b, void *restrict packed) {
    enum {
        N = @n@, K = @k@, LANES = @lanes@, WIDTH = 2 * LANES, PANELS = (N + WIDTH - 1) / WIDTH,
        GROUP = @group@, GROUPS = (K + GROUP - 1) / GROUP, WORDS = GROUP / 8
    };
    const long all = (long)@matrices@ * PANELS;
    for (long panel = all * thread / threads; panel < all * (thread + 1) / threads; panel++)
        for (long group = 0; group < GROUPS; group++) {
            uint32_t *const to = (uint32_t *)packed + (panel * GROUPS + group) * (1 + 2 * WORDS) * LANES;
            for (long lane = 0; lane < LANES; lane++)
                to[lane] = 0;
            for (long lane = 0; lane < WIDTH; lane++) {
                const long batch = panel / PANELS, column = panel % PANELS * WIDTH + lane, first = group * GROUP;
                const long end = column >= N ? 0 : K - first < GROUP ? K : first + GROUP;
                const float *const from = b + @b_batch@ + column * @b_column@;
                float largest = 0;
                int is_finite = 1;
                for (long k = first; k < end; k++) {
                    const float weight = from[@b_term@];
                    largest = fabsf(weight) > fabsf(largest) ? weight : largest;
                    is_finite &= fabsf(weight) <= FLT_MAX;
                }
                union { float value; uint32_t bits; } scale = {.value = largest / -8};
                scale.bits = (scale.bits + 0x7fff + (scale.bits >> 16 & 1)) & 0xffff0000u; /* the nearest bfloat16 */
                const float inverse = is_finite && fabsf(scale.value) > 1e-30f ? 1 / scale.value : 0;
                scale.bits = is_finite ? scale.bits : 0x7fc00000u;
                to[lane % LANES] |= lane < LANES ? scale.bits : scale.bits >> 16;
                for (long word = 0; word < WORDS; word++) {
                    uint32_t bits = 0;
                    for (long k = first + 8 * word; k < first + 8 * word + 8; k++) {
                        const float weight = k < end ? from[@b_term@] * inverse + 8.5f : 8;
                        const uint32_t number = weight > 0 ? weight < 15 ? (uint32_t)weight : 15 : 0;
                        bits |= number << 4 * (k & 7);
                    }
                    to[LANES + word * WIDTH + lane] = bits;
                }
                (void)batch;
            }
        }
}
