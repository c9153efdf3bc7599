/* Numbers rounded to integers from 0 to 255; NaN becomes 0. */
MITHRIL_INLINE mithril_i32 mithril_clipped(mithril_f32 numbers) {
#if MITHRIL_VECTOR == 16 && defined(__AVX512F__)
    /* The maximum of NaN and 0 is the second operand, 0. */
    const __m512 positive = _mm512_max_ps((__m512)numbers, _mm512_setzero_ps());
    return (mithril_i32)_mm512_cvttps_epi32(_mm512_min_ps(positive, _mm512_set1_ps(255)));
#else
    const mithril_f32 positive = mithril_float_of((mithril_u32)numbers & (mithril_u32)(numbers > 0));
    const mithril_u32 fits = (mithril_u32)(positive < 255), most = (mithril_u32)MITHRIL_BROADCAST_f32(255.0f);
    const mithril_f32 within = mithril_float_of(((mithril_u32)positive & fits) | (most & ~fits));
    return __builtin_convertvector(within, mithril_i32);
#endif
}

/* Numbers as bytes of words. */
MITHRIL_INLINE void mithril_store_words(uint8_t *to, mithril_f32 numbers) {
    const mithril_u8 bytes = __builtin_convertvector(mithril_clipped(numbers) - MITHRIL_DOT_OFFSET, mithril_u8);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    for (long lane = 0; lane < MITHRIL_VECTOR; lane++)
        to[lane ^ 3] = bytes[lane];
#else
    memcpy(to, &bytes, sizeof bytes);
#endif
}
