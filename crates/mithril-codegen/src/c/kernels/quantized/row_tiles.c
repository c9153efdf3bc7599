/* 64 bytes, the row of a tile, at a time. What fills the last one meets weights that are 0. */
uint8_t *to = (uint8_t *)(words + 16 * row);
const mithril_f32 middle = MITHRIL_BROADCAST_f32(zero + 0.5f);
for (long k = 0; k < K; k += 64, to += 64 * rows) {
    float rest[64] = {0};
    const float *numbers = from + k;
    if (K - k < 64)
        numbers = memcpy(rest, numbers, (size_t)(K - k) * sizeof *rest);
    for (long i = 0; i < 64; i += 16)
        mithril_store_words(to + i, MITHRIL_LOAD(f32, numbers + i) * inverse + middle);
}
(void)scratch;
