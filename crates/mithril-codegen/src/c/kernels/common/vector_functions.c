
/* Functions of epilogues on vectors; arguments may be scalars, too. The lanes of a test are all ones where it holds, else
   zeros. */
typedef int32_t mithril_test __attribute__((vector_size(4 * MITHRIL_VECTOR), may_alias));
MITHRIL_INLINE mithril_f32 mithril_where(mithril_test test, mithril_f32 yes, mithril_f32 no) {
    return (mithril_f32)((test & (mithril_test)yes) | (~test & (mithril_test)no));
}
/* max(x, 0); NaN is propagated. GCC does not recognize the one instruction of AVX-512 for it in a comparison and a blend. */
#ifdef __has_builtin
#if MITHRIL_VECTOR == 16 && defined(__AVX512F__) && __has_builtin(__builtin_ia32_maxps512_mask)
#define MITHRIL_RELU(x) (mithril_f32) __builtin_ia32_maxps512_mask((mithril_f32){0}, (x), (x), 0xffff, 4)
#endif
#endif
#ifndef MITHRIL_RELU
#define MITHRIL_RELU(x) (mithril_f32)(~(mithril_test)((x) < 0.0f) & (mithril_test)(x))
#endif
MITHRIL_INLINE mithril_f32 mithril_relu_vector(mithril_f32 x) {
    return MITHRIL_RELU(x);
}
/* The larger and the smaller of two numbers, NaN if one is. */
MITHRIL_INLINE mithril_f32 mithril_maximum_of(mithril_f32 a, mithril_f32 b) {
    return mithril_where((mithril_test)(a >= b) | (mithril_test)(a != a), a, b);
}
MITHRIL_INLINE mithril_f32 mithril_minimum_of(mithril_f32 a, mithril_f32 b) {
    return mithril_where((mithril_test)(a <= b) | (mithril_test)(a != a), a, b);
}
#define mithril_maximum_vector(a, b) mithril_maximum_of(MITHRIL_BROADCAST_f32(a), MITHRIL_BROADCAST_f32(b))
#define mithril_minimum_vector(a, b) mithril_minimum_of(MITHRIL_BROADCAST_f32(a), MITHRIL_BROADCAST_f32(b))
/* x above 0, slope * x below */
MITHRIL_INLINE mithril_f32 mithril_leaky_of(mithril_f32 x, mithril_f32 slope) {
    return mithril_where((mithril_test)(x > 0.0f), x, slope * x);
}
#define mithril_leaky_relu_vector(x, slope) mithril_leaky_of(x, MITHRIL_BROADCAST_f32(slope))
/* min(max(x + 3, 0), 6) / 6 */
MITHRIL_INLINE mithril_f32 mithril_hard_sigmoid_vector(mithril_f32 x) {
    const mithril_f32 y = mithril_relu_vector(x + 3.0f);
    return mithril_where((mithril_test)(y > 6.0f), MITHRIL_BROADCAST_f32(6.0f), y) * 0.16666667f;
}
/* x min(max(x + 3, 0), 6) / 6 */
MITHRIL_INLINE mithril_f32 mithril_hard_swish_vector(mithril_f32 x) {
    return mithril_where((mithril_test)(x > 3.0f), x, x * mithril_relu_vector(x + 3.0f) * 0.16666667f);
}
