/* Winograd's F(@pixels@, 3) of a line@step@: @tile@ pixels and the three weights of a line are transformed, multiplied point by point, and
   transformed back into @pixels@ pixels@step@. These are the transforms of pixels, of weights, and of the result. */
MITHRIL_INLINE void mithril_winograd@m@_line(const mithril_f32 *restrict d, mithril_f32 *restrict r) {
    @line@
}

MITHRIL_INLINE void mithril_winograd@m@_line_weights(const mithril_f32 *restrict d, mithril_f32 *restrict r) {
    @line_weights@
}

MITHRIL_INLINE void mithril_winograd@m@_line_back(const mithril_f32 *restrict d, mithril_f32 *restrict r) {
    @line_back@
}
