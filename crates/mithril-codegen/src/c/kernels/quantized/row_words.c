for (long k = 0; k < K; k++) {
    const float number = from[k * @a_column@] * inverse + (zero + 0.5f);
    scratch[k] = (uint8_t)((number > 0 ? number < 255 ? (int32_t)number : 255 : 0) - MITHRIL_DOT_OFFSET);
}
for (long k = K; k < 4 * WORDS; k++)
    scratch[k] = 0;
for (long word = 0; word < WORDS; word++)
    words[@row_place@] = scratch[4 * word] | (uint32_t)scratch[4 * word + 1] << 8
        | (uint32_t)scratch[4 * word + 2] << 16 | (uint32_t)scratch[4 * word + 3] << 24;
