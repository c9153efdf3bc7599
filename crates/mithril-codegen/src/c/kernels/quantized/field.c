/* The integer at bit `at` of each word, minus half of its range, as a float: its bits become the lowest bits of the mantissa
   of 2^23 / 2^place, so that no conversion is needed. */
MITHRIL_INLINE mithril_f32 mithril_field_@bits@(mithril_u32 words, const int at) {
    enum { BITS = @bits@, UNSHIFTED = 23 / BITS * BITS };
    const int place = at % UNSHIFTED;
    const uint32_t mask = ((1u << BITS) - 1) << place, exponent = (uint32_t)(150 - place) << 23;
    const mithril_u32 field = ((at < UNSHIFTED ? words : words >> UNSHIFTED) & mask) | exponent;
    return mithril_float_of(field) - (float)((1 << (23 - place)) + (1 << (BITS - 1)));
}
