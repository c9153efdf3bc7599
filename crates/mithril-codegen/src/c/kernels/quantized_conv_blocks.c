for (long block = 0; block < CHANNELS / @lanes@; block++) {
    const float *const from = image + batch * @image_batch@ + block * @plane@ + y * @image_row@;
    for (long x = 0; x < WIDTH; x++) {
        uint8_t *const bytes = (uint8_t *)(to + x * WORDS) + block * @lanes@;
        for (long lane = 0; lane < @lanes@; lane++) {
            const float given = from[x * @image_step@ + lane], number = given * inverse + offset;
            bytes[MITHRIL_BYTE(lane)] = (uint8_t)((number > 0 ? number < 255 ? (int32_t)number : 255 : 0) - MITHRIL_DOT_OFFSET);
            is_number &= given == given;
        }
    }
}
