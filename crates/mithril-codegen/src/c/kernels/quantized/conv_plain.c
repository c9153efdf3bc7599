for (long word = 0; word < WORDS; word++) {
    for (long x = 0; x < WIDTH; x++)
        scratch[x] = 0;
    for (long part = 0; part < 4; part++) {
        const long channel = 4 * word + part, row = y * @take_y@ - @top@;
        const float *const from = image + batch * @image_batch@ + channel * @plane@ + row * @image_row@;
        const int is_inside = channel < CHANNELS && row >= 0 && row < @h@;
        const uint32_t padding_byte = (uint32_t)((int32_t)zero - MITHRIL_DOT_OFFSET) & 255;
        const long first = is_inside ? @first@ : WIDTH, last = is_inside ? @last@ : WIDTH;
        for (long x = 0; x < first; x++)
            scratch[x] |= padding_byte << 8 * part;
        for (long x = first; x < last; x++) {
            const float value = from[x * @take_x@ - @left@], number = value * inverse + offset;
            scratch[x] |= ((uint32_t)((number > 0 ? number < 255 ? (int32_t)number : 255 : 0) - MITHRIL_DOT_OFFSET) & 255) << 8 * part;
            is_number &= value == value;
        }
        for (long x = last; x < WIDTH; x++)
            scratch[x] |= padding_byte << 8 * part;
    }
    for (long x = 0; x < WIDTH; x++)
        to[x * WORDS + word] = scratch[x];
}
