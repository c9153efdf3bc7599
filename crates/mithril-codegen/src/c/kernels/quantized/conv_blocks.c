mithril_i32 is_none = {0};
for (long block = 0; block < CHANNELS / @lanes@; block++) {
    const float *const from = image + batch * @image_batch@ + block * @plane@ + y * @image_row@;
    for (long x = 0; x < WIDTH; x++) {
        const mithril_f32 value = MITHRIL_LOAD(f32, from + x * @image_step@);
        is_none |= (mithril_i32)(value != value);
        mithril_store_words((uint8_t *)(to + x * WORDS) + block * @lanes@, value * inverse + offset);
    }
}
for (long lane = 0; lane < @lanes@; lane++)
    is_number &= !is_none[lane];
