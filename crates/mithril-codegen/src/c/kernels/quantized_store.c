/* Numbers as bytes of words: what is below 0, or NaN, is 0, what is above 255 is 255. */
typedef uint8_t mithril_u8 __attribute__((vector_size(MITHRIL_VECTOR)));
MITHRIL_INLINE void mithril_store_bytes(uint8_t *to, mithril_f32 numbers)
{
    const mithril_f32 positive = mithril_float_of((mithril_u32)numbers & (mithril_u32)(numbers > 0));
    const mithril_u32 fits = (mithril_u32)(positive < 255), most = (mithril_u32)MITHRIL_BROADCAST_f32(255.0f);
    const mithril_f32 within = mithril_float_of(((mithril_u32)positive & fits) | (most & ~fits));
    const mithril_u8 bytes = __builtin_convertvector(__builtin_convertvector(within, mithril_i32) - MITHRIL_DOT_OFFSET, mithril_u8);
    for (long lane = 0; lane < MITHRIL_VECTOR; lane++)
        to[MITHRIL_BYTE(lane)] = bytes[lane];
}
