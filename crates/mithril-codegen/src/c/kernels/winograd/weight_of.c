/* The transformed weights of a point: with stride 2, all points of odd pixels of a line share the last ones. */
MITHRIL_INLINE long mithril_winograd@m@_weight(long point) {
    const long y = point / @tile_wide@, x = point % @tile_wide@;
    return (y < @weights_high@ ? y : @weights_high@ - 1) * @weights_wide@ + (x < @weights_wide@ ? x : @weights_wide@ - 1);
}
