/* Words of 32 bits hold several low-bit integers: weights of one column, side by side along k. */
#if MITHRIL_VECTOR > 1
typedef uint32_t mithril_u32 __attribute__((vector_size(4 * MITHRIL_VECTOR), may_alias));
typedef uint32_t mithril_u32_memory __attribute__((vector_size(4 * MITHRIL_VECTOR), aligned(4), may_alias));
typedef int32_t mithril_i32 __attribute__((vector_size(4 * MITHRIL_VECTOR), may_alias));
typedef int32_t mithril_i32_memory __attribute__((vector_size(4 * MITHRIL_VECTOR), aligned(4), may_alias));
typedef uint8_t mithril_u8 __attribute__((vector_size(MITHRIL_VECTOR)));
#else
typedef uint32_t mithril_u32, mithril_u32_memory;
typedef int32_t mithril_i32, mithril_i32_memory;
#endif
/* The float of these bits. */
MITHRIL_INLINE mithril_f32 mithril_float_of(mithril_u32 bits) {
    union { mithril_u32 bits; mithril_f32 value; } both = {.bits = bits};
    return both.value;
}
